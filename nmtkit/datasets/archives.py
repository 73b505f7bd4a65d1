"""Reads zip and tar archives and single compressed files as streams, without unpacking them to disk.

Archives are not trusted: unsafe names, links and devices are rejected, and limits apply to the
bytes actually unpacked.
"""

import bz2
import functools
import gzip
import io
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from typing_extensions import override

from nmtkit.core.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 1 << 18
NOT_UTF8 = "convert the file to UTF-8 before you use it as a corpus"
"""The remedy for a corpus file in another encoding."""
RATIO_FREE_BYTES = 16 << 20
"""The compression ratio is not checked below this size."""
DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
)
"""Exceptions of the standard library for damaged or encrypted archives and unknown compression methods."""
MAX_BYTES = 200 << 30
"""Maximum total size in bytes of the uncompressed members of an archive."""
MAX_MEMBERS = 2_000_000
MAX_RATIO = 200
"""Maximum uncompressed bytes per compressed byte; text has about 10, zip bombs more than 1000."""
DECOMPRESSORS: Mapping[bytes, Callable[[Path], io.BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
"""Compression formats by the first bytes of a file."""
_LARGEST_HEADERS = {
    **dict.fromkeys((tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK), 1 << 12),
    **dict.fromkeys((tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE), 1 << 20),
}


@dataclass(frozen=True)
class Member:
    """A regular file in an archive."""

    name: str
    """Its path in the archive, with `/` as separator."""
    stream: Callable[[], io.BufferedReader]
    budget: "_Budget"

    def open(self) -> io.BufferedReader:
        """Opens the file for reading, decompressing gzip.

        A tar member must be read before the next one is requested.
        """
        stream = self.stream()
        is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
        return _guarded(gzip.GzipFile(fileobj=stream), self.budget) if is_packed else stream


def members(path: Path) -> Iterator[Member]:
    """Yields the regular files of an archive; a file that is not an archive is yielded as the only member.

    The format is detected from the first bytes. Folders are skipped.
    """
    budget = _Budget(path)
    with budget.clear_messages():
        with open(path, "rb") as file:
            start = file.read(8)
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            yield from _zip_members(path, budget)
            return
        decompressor = next(
            (one for magic, one in DECOMPRESSORS.items() if start.startswith(magic)), None
        )

        def opened() -> io.BufferedReader:
            return _guarded(decompressor(path) if decompressor else open(path, "rb"), budget)

        with opened() as stream:
            if _is_tar(stream.peek(tarfile.BLOCKSIZE)[: tarfile.BLOCKSIZE]):
                yield from _tar_members(stream, budget)
                return
        yield Member(path.stem if decompressor else path.name, opened, budget)


class _Budget:
    """Checks the bytes and members of an archive against the limits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_out = self.count = 0
        self.names: set[str] = set()
        with self.clear_messages():
            self.most = max(RATIO_FREE_BYTES, MAX_RATIO * path.stat().st_size)

    def spend(self, count: int) -> None:
        self.bytes_out += count
        if self.bytes_out > MAX_BYTES:
            raise DataError(
                f"{self.path}: unpacks to more than {MAX_BYTES:,} bytes; the archive was rejected"
            )
        if self.bytes_out > self.most:
            raise DataError(
                f"{self.path}: unpacks to more than {MAX_RATIO} bytes per compressed byte, like "
                "a zip bomb; the archive was rejected"
            )

    def enter(self, name: str, is_folder: bool, is_plain: bool) -> str:
        """Counts a member; returns its normalized name."""
        self.count += 1
        if self.count > MAX_MEMBERS:
            raise DataError(
                f"{self.path}: has more than {MAX_MEMBERS:,} members; the archive was rejected"
            )
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts or re.match(r"/|[A-Za-z]:|.*[\\\x00-\x1f]", name, re.DOTALL):
            raise DataError(
                f"{self.path}: has a member with the unsafe name {name!r}; the archive was rejected"
            )
        normalized = "/".join(parts)
        if not is_folder:
            if not is_plain:
                raise DataError(
                    f"{self.path}: member {name!r} is a link or a device, not a regular file; "
                    "the archive was rejected"
                )
            if not normalized or normalized in self.names:
                raise DataError(
                    f"{self.path}: "
                    + (
                        f"has two members named {name!r}"
                        if parts
                        else "has a member without a name"
                    )
                )
            self.names.add(normalized)
        return normalized

    @contextmanager
    def clear_messages(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE_ERRORS as fault:
            message = (
                f"damaged archive ({fault or type(fault).__name__}); delete it and fetch it again"
            )
            if isinstance(fault, OSError) and fault.errno is not None:
                message = f"cannot be read: {fault.strerror or fault}"
            raise DataError(f"{self.path}: {message}") from fault


class _GuardedStream(io.RawIOBase):
    """A stream that raises our errors; `counts` is False for a part of a stream that is already counted."""

    def __init__(
        self, stream: IO[bytes] | io.BufferedIOBase, budget: _Budget, counts: bool
    ) -> None:
        super().__init__()
        self._stream, self._budget, self._counts = stream, budget, counts

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        with self._budget.clear_messages():
            data = self._stream.read(len(view))
        if self._counts:
            self._budget.spend(len(data))
        view[: len(data)] = data
        return len(data)

    @override
    def close(self) -> None:
        self._stream.close()
        super().close()


def _guarded(
    stream: IO[bytes] | io.BufferedIOBase, budget: _Budget, counts: bool = True
) -> io.BufferedReader:
    return io.BufferedReader(_GuardedStream(stream, budget, counts), BUFFER_BYTES)


def _is_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _zip_members(path: Path, budget: _Budget) -> Iterator[Member]:
    archive = zipfile.ZipFile(path)  # stays open while members are read

    def opened(info: zipfile.ZipInfo) -> io.BufferedReader:
        with budget.clear_messages():
            return _guarded(archive.open(info), budget)

    for info in archive.infolist():
        is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
        name = budget.enter(info.filename, info.is_dir(), is_plain)
        if not info.is_dir():
            yield Member(name, functools.partial(opened, info), budget)


class _Header(tarfile.TarInfo):
    """A tar header that limits the length of names, which are read into memory; a damaged header is an error."""

    @classmethod
    @override
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(archive)
        except (tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError) as fault:  # type: ignore[attr-defined]  # not in typeshed
            # otherwise the archive would seem to end here
            raise tarfile.ReadError(str(fault)) from fault

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo | tarfile.TarFile:
        if self.size > _LARGEST_HEADERS.get(self.type, self.size):
            raise tarfile.ReadError(f"a header is too large ({self.size:,} bytes)")
        header: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # not in typeshed; the only hook
        return header


def _tar_members(stream: io.BufferedReader, budget: _Budget) -> Iterator[Member]:
    with tarfile.open(
        fileobj=stream, mode="r|", tarinfo=_Header, errors="replace", encoding="utf-8"
    ) as archive:
        while (info := archive.next()) is not None:
            vars(archive)["members"].clear()  # otherwise tarfile keeps them all in memory
            name = budget.enter(info.name, info.isdir(), info.isreg())
            if info.isdir():
                continue
            content = archive.extractfile(info)
            assert content is not None
            yield Member(name, functools.partial(_guarded, content, budget, counts=False), budget)
        # Reads up to the checksum of a compressed file; only zeros may follow the last member.
        while rest := stream.read(BUFFER_BYTES):
            if rest.strip(b"\0"):
                raise tarfile.ReadError("there is data after the end of the archive")
