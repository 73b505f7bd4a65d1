"""Archives from elsewhere, read as if they were hostile: zip, tar (plain, gzip, bzip2, xz) and single packed files.

Nothing is believed that an archive says of itself: names may not lead out of a folder, only plain files are read, and
the bytes that count against the limits are those that really come out.
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

from nmtkit.core.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER = 1 << 18
FREE_BYTES = 16 << 20
"""Archives from which less comes out are not suspected of being bombs."""
LONGEST_NAME = 4096
"""Bytes of a member's name; a longer one is a bomb of another kind, since names are read into memory."""
DAMAGES = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, NotImplementedError)
"""What the standard library raises where an archive is damaged or uses a method that it does not know."""


@dataclass(frozen=True)
class ArchiveLimits:
    """The most that an archive may hold."""

    total_bytes: int = 200 << 30
    """Of all its members together."""
    members: int = 2_000_000
    ratio: float = 200.0
    """Bytes that come out for each byte of the archive; text packs to a tenth or so, bombs to less than a
    thousandth."""


LIMITS = ArchiveLimits()
PACKED: Mapping[bytes, Callable[[Path], io.BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
"""What single packed files begin with, and what unpacks them."""


@dataclass(frozen=True)
class Member:
    """One plain file of an archive."""

    name: str
    """Its path in the archive, with `/` between folders."""
    open: Callable[[], io.BufferedReader]
    """Opens it to be read, as a stream. Members of a tar must be read before the next member is asked for; members of a
    zip can be read at any time and several at once."""


def members(path: Path, limits: ArchiveLimits = LIMITS) -> Iterator[Member]:
    """The plain files of an archive, one at a time; a file that is no archive is its own only member.

    The kind is told by the first bytes, not by the name. Folders are passed over.

    Raises:
        DataError: it cannot be read, is damaged, encrypted, too large, or a member has a dangerous or doubled name or
            is a link or a device. Also while a member is read.
    """
    budget = _Budget(path, limits)
    with budget.clear_messages():
        with open(path, "rb") as file:
            start = file.read(8)
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            yield from _zip_members(path, budget)
            return
        unpacker = next((unpacker for magic, unpacker in PACKED.items() if start.startswith(magic)), None)

        def opened() -> io.BufferedReader:
            return _guarded(unpacker(path) if unpacker else open(path, "rb"), budget)

        with opened() as stream:
            if _is_tar(stream.peek(tarfile.BLOCKSIZE)[: tarfile.BLOCKSIZE]):
                yield from _tar_members(stream, budget)
                return
        yield Member(path.stem if unpacker else path.name, opened)


class _Budget:
    """What has come out of an archive, and what may."""

    def __init__(self, path: Path, limits: ArchiveLimits) -> None:
        self.path = path
        self.limits = limits
        self.bytes_out = 0
        self.names: set[str] = set()
        self.count = 0
        with self.clear_messages():
            self.most = max(FREE_BYTES, round(limits.ratio * path.stat().st_size))

    def spend(self, count: int) -> None:
        """Counts bytes that came out."""
        self.bytes_out += count
        if self.bytes_out > self.limits.total_bytes:
            raise DataError(f"{self.path}: more than {self.limits.total_bytes:,} bytes come out of it; refused")
        if self.bytes_out > self.most:
            raise DataError(
                f"{self.path}: more than {self.limits.ratio:g} bytes come out for each byte of it; no text "
                "packs so well, this is made to fill disks; refused"
            )

    def enter(self, name: str, is_folder: bool) -> str:
        """Counts a member and checks its name; gives it without `.` and doubled slashes. A file's must be its own."""
        self.count += 1
        if self.count > self.limits.members:
            raise DataError(f"{self.path}: more than {self.limits.members:,} members; refused")
        parts = name.split("/")
        if name.startswith("/") or "\\" in name or re.match(r"[A-Za-z]:", name) or ".." in parts:
            raise DataError(f"{self.path}: the member {name!r} would lie outside of the archive's folder; refused")
        if any(ord(letter) < 32 for letter in name):
            raise DataError(f"{self.path}: the member {name!r} has a control character in its name; refused")
        settled = "/".join(part for part in parts if part not in ("", "."))
        if not is_folder:
            if not settled or settled in self.names:
                raise DataError(f"{self.path}: " + (f"two members {name!r}" if settled else "a member without a name"))
            self.names.add(settled)
        return settled

    def require_plain(self, name: str, is_plain: bool) -> None:
        """Refuses links and devices."""
        if not is_plain:
            raise DataError(f"{self.path}: the member {name!r} is no plain file but a link or a device; refused")

    @contextmanager
    def clear_messages(self) -> Iterator[None]:
        """Turns the standard library's errors into ours."""
        try:
            yield
        except DAMAGES as fault:
            said = f"damaged archive ({fault or type(fault).__name__}); delete it and fetch again"
            if isinstance(fault, OSError) and fault.errno is not None:
                said = f"cannot read it: {fault.strerror or fault}"
            raise DataError(f"{self.path}: {said}") from fault


class CallbackStream(io.RawIOBase):
    """A stream of what a function gives when it is asked for so many bytes; `close`, if given, closes what it reads."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._read = read
        self._close = close

    def readable(self) -> bool:
        """See `RawIOBase`."""
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """See `RawIOBase`."""
        view = memoryview(buffer)
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See `RawIOBase`."""
        if self._close and not self.closed:
            self._close()
        super().close()


def _guarded(stream: IO[bytes] | io.BufferedIOBase, budget: _Budget, counts: bool = True) -> io.BufferedReader:
    """A stream whose errors are ours; its bytes count unless it is a part of one that counts already."""

    def read(size: int) -> bytes:
        with budget.clear_messages():
            data = stream.read(size)
        if counts:
            budget.spend(len(data))
        return data

    return io.BufferedReader(CallbackStream(read, stream.close), BUFFER)


def _is_tar(block: bytes) -> bool:
    """Whether a file begins like a tar: its first block has a checksum."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _spelled(raw: bytes) -> str:
    """A name as text: UTF-8, or whatever its bytes are as Latin-1."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _zip_members(path: Path, budget: _Budget) -> Iterator[Member]:
    archive = zipfile.ZipFile(path)  # stays open for as long as there are members to be opened

    def opened(info: zipfile.ZipInfo) -> io.BufferedReader:
        with budget.clear_messages():
            return _guarded(archive.open(info), budget)

    for info in archive.infolist():
        # Without the flag that says UTF-8 the standard library takes the name for code page 437.
        spelled = info.filename if info.flag_bits & 0x800 else _spelled(info.filename.encode("cp437"))
        name = budget.enter(spelled, info.is_dir())
        if info.is_dir():
            continue
        budget.require_plain(name, stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG))
        if info.flag_bits & 0x1:
            raise DataError(f"{path}: the member {name!r} is encrypted; nmtkit has no password for it")
        yield Member(name, functools.partial(opened, info))


class _Header(tarfile.TarInfo):
    """A header that does not read a name of any length into memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo | tarfile.TarFile:
        if self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK) and self.size > LONGEST_NAME:
            raise tarfile.ReadError(f"a name of {self.size:,} bytes")
        if self.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE) and self.size > 256 * LONGEST_NAME:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # not in typeshed; the only hook
        return found


def _tar_members(stream: io.BufferedReader, budget: _Budget) -> Iterator[Member]:
    with tarfile.open(
        fileobj=stream, mode="r|", tarinfo=_Header, errors="surrogateescape", encoding="utf-8"
    ) as archive:
        while (info := archive.next()) is not None:
            vars(archive)["members"].clear()  # it would keep them all
            name = budget.enter(_spelled(info.name.encode("utf-8", "surrogateescape")), info.isdir())
            if info.isdir():
                continue
            budget.require_plain(name, info.isreg())
            content = archive.extractfile(info)
            assert content is not None  # it is for folders and devices only
            yield Member(name, functools.partial(_guarded, content, budget, counts=False))
        # A checksum stands at the end of packed files, and after the last member there are only zeros.
        while rest := stream.read(BUFFER):
            if rest.strip(b"\0"):
                raise tarfile.ReadError("there is more behind its end")
