"""The standard streams: each may be closed, or lead to a full disk."""

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
    """Standard output, or a file; an error of writing it has the name by which the user knows it."""

    def __init__(self, file: int | Path, name: str = "standard output") -> None:
        super().__init__(file, "w", closefd=not isinstance(file, int))
        self._name = name

    @override
    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # a buffer, a type that Python 3.11 cannot name
        except BrokenPipeError:  # whoever read it has enough
            raise
        except OSError as fault:
            why = "it is closed" if fault.errno == errno.EBADF else fault.strerror
            raise NmtkitError(f"{self._name}: cannot be written: {why}") from fault


class _Messages(io.FileIO):
    """Standard error; messages that cannot be written are dropped, so that no work is lost for them."""

    def __init__(self, file: int) -> None:
        super().__init__(file, "w", closefd=False)

    @override
    def write(self, data: object, /) -> int:
        with suppress(OSError):
            super().write(data)  # type: ignore[arg-type]  # a buffer
        return memoryview(data).nbytes  # type: ignore[arg-type]  # a buffer


def prepare_streams() -> None:
    """Makes the streams UTF-8 and their errors clear, and keeps files from taking the number of a closed stream.

    A closed standard output becomes one that cannot be written, a closed standard error one that is dropped; a closed
    standard input leaves `sys.stdin` None. Ctrl-C waits meanwhile: a stream half replaced takes no text.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, flags)  # the lowest number that is free: this one
        sys.stdout = _as_file(sys.stdout, 1, NamedOutput, "strict")
        sys.stderr = _as_file(sys.stderr, 2, _Messages, "backslashreplace")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _as_file(
    stream: TextIO | None, number: int, kind: Callable[[int], io.FileIO], errors: str
) -> TextIO:
    """The stream as a file of this kind; a stream that is no file, as in a notebook or a test, is returned as it is."""
    by_line = False
    if stream is not None:
        if not isinstance(stream, io.TextIOWrapper):
            return stream
        # text is UTF-8 on the way in, so it is on the way out
        stream.reconfigure(encoding="utf-8", errors=errors)
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if type(raw) is not io.FileIO or raw.fileno() != number:
            return stream
        stream.flush()
        by_line = stream.line_buffering or raw is stream.buffer  # the second by PYTHONUNBUFFERED
    return io.TextIOWrapper(
        io.BufferedWriter(kind(number)), "utf-8", errors, line_buffering=by_line
    )


def flush_results() -> None:
    """Flushes standard output, or drops its buffer if that fails: Python must not try again."""
    try:
        sys.stdout.flush()
    except (NmtkitError, OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
