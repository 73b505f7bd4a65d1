"""The standard streams as the shell gave them: each of them may be closed, or a disk that is full."""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

STDOUT = "standard output"
"""What a fault of writing the results names as its file."""


class _Results(io.FileIO):
    """Standard output; a fault of writing it says that it is this and no file."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # a buffer, a type that Python 3.11 cannot name
        except OSError as fault:
            fault.filename = STDOUT
            if fault.errno == errno.EBADF:
                fault.strerror = "it is closed"
            raise


class _Messages(io.FileIO):
    """Standard error; what cannot be written there is dropped, so that no work ends because nobody reads of it."""

    def write(self, data: object, /) -> int:
        with suppress(OSError):
            super().write(data)  # type: ignore[arg-type]  # a buffer
        return memoryview(data).nbytes  # type: ignore[arg-type]  # a buffer


def prepare_streams() -> None:
    """Makes the streams UTF-8, their faults clear, and sure that no file is opened in the place of one that is closed.

    A closed standard output becomes one that cannot be written, a closed standard error one that is thrown away. Of a
    closed standard input `sys.stdin` tells: it is None. Ctrl-C waits meanwhile: a stream half changed takes no text.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        _prepare()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _prepare() -> None:
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest number that is free: this one
    sys.stdout = _made(sys.stdout, 1, _Results, "strict")
    sys.stderr = _made(sys.stderr, 2, _Messages, "backslashreplace")


def _made(stream: TextIO | None, number: int, kind: Callable[..., io.FileIO], errors: str) -> TextIO:
    """The stream as a file of this kind; one that is no file, as in a notebook or a test, stays what it is."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(kind(number, "w", closefd=False)), "utf-8", errors)
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(encoding="utf-8", errors=errors)  # text is UTF-8 on the way in, so it is on the way out
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if type(raw) is not io.FileIO or raw.fileno() != number:
        return stream
    stream.flush()
    file = kind(number, "w", closefd=False)
    return io.TextIOWrapper(
        file if raw is stream.buffer else io.BufferedWriter(file),  # the first by PYTHONUNBUFFERED
        "utf-8",
        errors,
        line_buffering=stream.line_buffering,
        write_through=raw is stream.buffer,
    )


def flush_results() -> None:
    """Writes what is still held back of the results, or drops it if it cannot be written: Python must not try again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
