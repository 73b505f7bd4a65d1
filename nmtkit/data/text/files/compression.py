"""Decompression of gzip, bzip2, xz and zstandard, which are recognized by the first bytes of a file."""

import bz2
import gzip
import importlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, cast

MAGIC_BYTES = 6
"""Number of bytes that are needed to recognize a format."""
_ZSTD_INPUT = 1 << 12
"""Number of compressed bytes that are decompressed at once, which limits the memory of the result."""

_FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


class DamagedArchiveError(Exception):
    """A compressed file cannot be decompressed to its end; the message has the cause and the remedy."""


def compression_of(head: bytes) -> str:
    """Returns the format of a compressed file that begins with these bytes; "" if it is not compressed."""
    for magic, name in _FORMATS.items():
        if head.startswith(magic):
            return name
    return ""


class _Observed:
    """A file that passes all its bytes to an observer while they are read."""

    def __init__(self, file: BinaryIO, observe: Callable[[bytes], object]) -> None:
        self._file = file
        self._observe = observe

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._observe(data)
        return data

    def read1(self, size: int) -> bytes:
        data: bytes = self._file.read1(size)  # type: ignore[attr-defined]  # all files that are opened here have it
        self._observe(data)
        return data


class _ZstdFile:
    """The decompressed bytes of a file of zstandard frames.

    Unlike the reader of the library, it raises an error for a frame that is cut off.
    """

    def __init__(self, file: Any) -> None:
        try:
            library = importlib.import_module("zstandard")
        except ImportError as fault:
            raise DamagedArchiveError(
                "it is compressed with zstd; to read it, install the package zstandard (pip install zstandard)"
            ) from fault
        self._new_decompressor = library.ZstdDecompressor().decompressobj
        self._error = library.ZstdError
        self._decompressor = self._new_decompressor()
        self._file = file
        self._rest = b""  # bytes that were read after the end of a frame
        self._inside_frame = False

    def read1(self, size: int) -> bytes:
        while True:
            data = self._rest or self._file.read(_ZSTD_INPUT)
            self._rest = b""
            if not data:
                if self._inside_frame:
                    raise EOFError("Compressed file ended before the end of its last frame")
                return b""
            try:
                result: bytes = self._decompressor.decompress(data)
            except self._error as fault:
                raise EOFError(str(fault)) from fault
            self._inside_frame = not self._decompressor.eof
            if self._decompressor.eof:
                self._rest = self._decompressor.unused_data
                self._decompressor = self._new_decompressor()
            if result:
                return result


class _Decompressed:
    """The decompressed bytes of a file; damage is a `DamagedArchiveError`."""

    def __init__(self, kind: str, file: Any) -> None:
        self._kind = kind
        self._file = file
        self._stream: Any = None

    def _open(self) -> Any:
        if self._kind == "gzip":
            return gzip.GzipFile(fileobj=self._file)
        if self._kind == "bzip2":
            return bz2.BZ2File(self._file)
        if self._kind == "xz":
            return lzma.LZMAFile(self._file)
        return _ZstdFile(self._file)

    def read1(self, size: int) -> bytes:
        try:
            self._stream = self._stream or self._open()
            data: bytes = self._stream.read1(size)
        except _DAMAGE as fault:
            raise self._damage(fault) from fault
        except OSError as fault:
            # an error of the disk; those of the libraries have no number
            if fault.errno is not None:
                raise
            raise self._damage(fault) from fault
        return data

    def _damage(self, fault: Exception) -> DamagedArchiveError:
        return DamagedArchiveError(
            f"broken {self._kind} file ({fault}); download or compress it again"
        )


def verify_archive(stream: BinaryIO) -> None:
    """Reads a compressed stream to its end, since damage that is found there may explain bytes that are not text.

    Raises:
        DamagedArchiveError: the stream is damaged.
    """
    if isinstance(stream, _Decompressed):
        while stream.read1(1 << 16):
            continue


def decompressed(file: BinaryIO, observe: Callable[[bytes], object] | None = None) -> BinaryIO:
    """Returns the bytes of an open file or pipe, decompressed if it is compressed.

    `observe` is called with all bytes as stored on disk, except for a terminal.
    """
    if file.isatty():
        return file  # after `peek`, the user would have to type Ctrl-D twice
    head = file.peek(MAGIC_BYTES)[:MAGIC_BYTES]  # type: ignore[attr-defined]  # all files that are opened here have it
    source: Any = file
    if observe is not None:
        source = _Observed(file, observe)
    kind = compression_of(head)
    if kind:
        source = _Decompressed(kind, source)
    return cast(BinaryIO, source)  # it has the methods of a file that are used here
