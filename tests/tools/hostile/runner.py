"""Commands as processes that can be killed, share a folder, meet a full disk and be counted.

They are begun by the server of tests/support/processes.py, so each costs a tenth of a start of Python with torch.
"""

import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import Server

MEMORY = 4 << 30
"""Bytes of address space that a command may take beyond those it begins with."""
CLOSED = "closed"
LIMITS = """\
import ctypes, os, resource, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives the test
os.setsid()
space = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + {memory}
resource.setrlimit(resource.RLIMIT_AS, (space, space))
if {file_size} >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({file_size}, {file_size}))
for number in {closed}:
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)
"""
SMALL_SHARDS = """\
from nmtkit.data.text.files import text_file
from nmtkit.data.batches import encoding
from nmtkit.data.batches import store
store.SHARD_EXAMPLES, encoding.SERIAL_CHARACTERS = 150, 1
text_file.BLOCK_BYTES, text_file.BLOCK_LINES = 2000, 1
"""
"""Preprocessing makes many small shards, with helpers, of text for which one would do."""


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it printed."""

    code: int
    """Exit code, or the negative number of the signal that ended it."""
    out: bytes
    err: str
    seconds: float
    hung: bool = False

    def __repr__(self) -> str:
        return f"exit code {self.code}, {self.seconds:.1f} s\n--- stdout\n{self.out[:2000]!r}\n--- stderr\n{self.err}"


class Process:
    """One command at work; its streams are files in a folder."""

    def __init__(self, server: Server, pid: int, folder: Path) -> None:
        self.pid = pid
        self._begun = time.monotonic()
        self._server, self._folder = server, folder
        self._code: int | None = None

    @property
    def printed(self) -> str:
        """What it has written to standard error so far."""
        return (self._folder / "err").read_text(encoding="utf-8", errors="backslashreplace")

    def runs(self) -> bool:
        if self._code is None:
            self._code = self._server.ask(wait=self.pid, how=os.WNOHANG)
        return self._code is None

    def ends_within(self, seconds: float) -> bool:
        """Waits so long for its end."""
        until = time.monotonic() + seconds
        while self.runs() and time.monotonic() < until:
            time.sleep(0.005)
        return not self.runs()

    def signal(self, number: int) -> None:
        """Sends a signal; nothing, if it has ended."""
        if self.runs():
            os.kill(self.pid, number)

    def wait(self, seconds: float = 60.0) -> Done:
        """Waits for its end, and makes one after so many seconds."""
        hung = not self.ends_within(seconds)
        self.signal(signal.SIGKILL)
        assert self.ends_within(60.0)
        out = (self._folder / "out").read_bytes()
        return Done(self._code, out, self.printed, time.monotonic() - self._begun, hung)


class Runner:
    """Runs commands with limits; to be used in a `with` statement, which leaves none alive.

    Args:
        server: that begins them; one of its own by default.
        first: what Python carries out before each command.
    """

    def __init__(self, server: Server | None = None, first: str = "") -> None:
        self._server, self._is_own = server or Server(), server is None
        self._first = first
        self._folder = tempfile.TemporaryDirectory(prefix="nmtkit-streams-")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NMTKIT_")}
        # what is measured here is kept for nobody else
        cache = os.path.join(self._folder.name, "cache")
        self._variables = {
            **kept,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "XDG_CACHE_HOME": cache,
        }

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *fault: object) -> None:
        if self._is_own:
            for pid in self.left():
                os.kill(pid, signal.SIGKILL)
            self._server.close()
        self._folder.cleanup()

    def start(
        self,
        *words: object,
        cwd: Path,
        stdin: bytes | str = b"",
        file_size: int = -1,
        device: str = "",
    ) -> Process:
        """Starts `nmtkit WORDS`.

        Args:
            words: its arguments.
            cwd: where.
            stdin: what it reads; `CLOSED` is none at all.
            file_size: no file may become larger, as on a full disk.
            device: a file for standard output, e.g. /dev/full; `CLOSED` is none at all.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        (folder / "in").write_bytes(stdin if isinstance(stdin, bytes) else b"")
        for name in ("out", "err"):
            (folder / name).touch()
        closed = [number for number, given in enumerate((stdin, device)) if given == CLOSED]
        path = device if device and device != CLOSED else folder / "out"
        streams = [os.open(folder / "in", os.O_RDONLY)]
        streams += [os.open(file, os.O_WRONLY | os.O_APPEND) for file in (path, folder / "err")]
        limits = LIMITS.format(memory=MEMORY, file_size=file_size, closed=closed) + self._first
        pid = self._server.start(words, cwd, self._variables, streams, limits=limits)
        for stream in streams:
            os.close(stream)
        return Process(self._server, pid, folder)

    def run(self, *words: object, seconds: float = 60.0, **how: Any) -> Done:
        """Runs `nmtkit WORDS` to its end; for the rest see `start`."""
        return self.start(*words, **how).wait(seconds)

    def left(self) -> list[int]:
        """All processes that were begun by the server, or by those, and are alive."""
        return self._server.children()
