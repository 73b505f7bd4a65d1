"""Decompresses gzip, bzip2, xz and zstandard files, which are recognized by their first bytes."""

import bz2
import gzip
import importlib
import lzma
import zlib
from collections.abc import Callable
from io import BufferedReader
from typing import Any, Protocol, TypeAlias

ByteObserver: TypeAlias = Callable[[bytes], object]
"""Receives a file's bytes, as stored on disk, piece by piece."""

MAGIC_BYTES = 6
"""Number of bytes needed to recognize a format."""
_ZSTD_INPUT = 1 << 12
"""Number of compressed bytes to decompress at a time; limits the memory needed for the result."""

_FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


class ByteStream(Protocol):
    """A source of bytes that is read piece by piece."""

    def read1(self, size: int, /) -> bytes:
        """Returns about `size` more bytes; an empty result means the end of the stream."""


class DamagedArchiveError(Exception):
    """A file cannot be decompressed completely; the message gives the cause and a remedy."""


def compression_of(head: bytes) -> str:
    """Returns the compression format of a file that begins with these bytes; "" if it is not compressed."""
    for magic, name in _FORMATS.items():
        if head.startswith(magic):
            return name
    return ""


class _Observed:
    """A file whose bytes are also passed to an observer when they are read."""

    def __init__(self, file: BufferedReader, observe: ByteObserver) -> None:
        self._file = file
        self._observe = observe

    def read(self, size: int) -> bytes:
        # Decompressors need all bytes of a header, but of the data only as many as have arrived through a pipe.
        data = self._file.read(size) if size < _ZSTD_INPUT else self._file.read1(size)
        self._observe(data)
        return data

    def read1(self, size: int) -> bytes:
        data = self._file.read1(size)
        self._observe(data)
        return data


class _ZstdFile:
    """The decompressed bytes of a zstandard file.

    Unlike the library's reader, it raises an error if the last frame is truncated.
    """

    def __init__(self, file: Any) -> None:
        try:
            library = importlib.import_module("zstandard")
        except ImportError as error:
            raise DamagedArchiveError(
                "compressed with zstd; to read it, install the package zstandard (pip install zstandard)"
            ) from error
        self._new_decompressor = library.ZstdDecompressor().decompressobj
        self._error = library.ZstdError
        self._decompressor = self._new_decompressor()
        self._file = file
        self._rest = b""  # bytes already read that follow the end of a frame
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
            except self._error as error:
                raise EOFError(str(error)) from error
            self._inside_frame = not self._decompressor.eof
            if self._decompressor.eof:
                self._rest = self._decompressor.unused_data
                self._decompressor = self._new_decompressor()
            if result:
                return result


class _Decompressed:
    """The decompressed bytes of a file; raises `DamagedArchiveError` if the file is damaged."""

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
        except (*_DAMAGE, OSError) as error:
            # Errors of the operating system have an errno; those of the decompression libraries do not.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise self._damage(error) from error
        return data

    def _damage(self, error: Exception) -> DamagedArchiveError:
        return DamagedArchiveError(
            f"broken {self._kind} file ({error}); download or compress it again"
        )


def verify_archive(stream: ByteStream) -> None:
    """Reads a compressed stream to its end; does nothing for other streams.

    Raises:
        DamagedArchiveError: the stream is damaged.
    """
    if isinstance(stream, _Decompressed):
        while stream.read1(1 << 16):
            continue


def decompressed(file: BufferedReader, observe: ByteObserver | None = None) -> ByteStream:
    """Returns the bytes of an open file or pipe, decompressed if necessary.

    `observe` receives all bytes as stored on disk, unless the file is a terminal.
    """
    if file.isatty():
        return file  # `peek` would make the user type Ctrl-D twice
    head = file.peek(MAGIC_BYTES)[:MAGIC_BYTES]
    kind = compression_of(head)
    if kind:
        return _Decompressed(kind, _Observed(file, observe or _ignore))
    if observe is not None:
        return _Observed(file, observe)
    return file


def _ignore(data: bytes) -> None:
    pass
