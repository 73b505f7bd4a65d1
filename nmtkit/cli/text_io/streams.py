"""The standard streams, which may be closed, or redirected to a file on a full disk."""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from typing_extensions import override

from nmtkit.core.errors import NmtkitError


class NamedOutput(io.FileIO):
    """Standard output or a file; write errors contain the name that the user knows."""

    def __init__(self, file: int | Path, name: str = "standard output") -> None:
        super().__init__(file, "w", closefd=not isinstance(file, int))
        self._name = name

    @override
    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # a buffer, a type that Python 3.11 cannot name
        except BrokenPipeError:  # the program that reads the output has exited
            raise
        except OSError as fault:
            why = "it is closed" if fault.errno == errno.EBADF else fault.strerror
            raise NmtkitError(f"{self._name}: cannot be written: {why}") from fault


class _Messages(io.FileIO):
    """Standard error; messages that cannot be written are dropped, so that they do not stop the command."""

    def __init__(self, file: int) -> None:
        super().__init__(file, "w", closefd=False)

    @override
    def write(self, data: object, /) -> int:
        with suppress(OSError):
            super().write(data)  # type: ignore[arg-type]  # a buffer
        return memoryview(data).nbytes  # type: ignore[arg-type]  # a buffer


def prepare_streams() -> None:
    """Sets the streams to UTF-8, makes write errors clear, and reserves the descriptors of closed streams.

    Writing to a closed standard output raises an error, and messages to a closed standard error are dropped. If
    standard input is closed, `sys.stdin` remains None. Ctrl-C is blocked during this function, because nothing can be
    written to a stream that is only partly replaced.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, flags)  # gets the lowest free descriptor, which is `number`
        sys.stdout = _as_file(sys.stdout, 1, NamedOutput, "strict")
        sys.stderr = _as_file(sys.stderr, 2, _Messages, "backslashreplace")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _as_file(
    stream: TextIO | None, number: int, kind: Callable[[int], io.FileIO], errors: str
) -> TextIO:
    """Returns a file of this kind that replaces a stream; returns the stream itself if it is not a file (notebooks)."""
    by_line = False
    if stream is not None:
        if not isinstance(stream, io.TextIOWrapper):
            return stream
        # input is UTF-8, so output is, too
        stream.reconfigure(encoding="utf-8", errors=errors)
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if type(raw) is not io.FileIO or raw.fileno() != number:
            return stream
        stream.flush()
        # if PYTHONUNBUFFERED is set, `raw` is the buffer itself
        by_line = stream.line_buffering or raw is stream.buffer
    return io.TextIOWrapper(
        io.BufferedWriter(kind(number)), "utf-8", errors, line_buffering=by_line
    )


def flush_results() -> None:
    """Flushes standard output; if that fails, discards the buffer, so that Python does not try again at exit."""
    try:
        sys.stdout.flush()
    except (NmtkitError, OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
