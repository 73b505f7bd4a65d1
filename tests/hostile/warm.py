"""Real processes that begin with torch loaded: each `nmtkit` here is a fork of one process that has loaded everything.

They can be killed, share a folder, meet a full disk and be counted, and cost a tenth of a start of Python with torch.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space that a command may take beyond those it begins with."""
CLOSED = "closed"
ENDING = (signal.SIGINT, signal.SIGTERM)
"""What ends a command before its time, and may be answered by it."""


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
    """One command at work."""

    def __init__(self, warm: "Warm", pid: int, folder: Path) -> None:
        self.pid = pid
        self.begun = time.monotonic()
        self._warm = warm
        self._folder = folder

    @property
    def said(self) -> str:
        """What it has written to standard error so far."""
        return (self._folder / "err").read_text(encoding="utf-8", errors="backslashreplace")

    def runs(self) -> bool:
        """Whether it has not ended."""
        return not self._warm.ended(self.pid, 0.0)

    def signal(self, number: int) -> None:
        """Sends a signal; nothing, if it has ended."""
        if self.runs():
            os.kill(self.pid, number)

    def wait(self, seconds: float = 60.0) -> Done:
        """Waits for its end, and makes one after so many seconds."""
        hung = not self._warm.ended(self.pid, seconds)
        if hung:
            os.kill(self.pid, signal.SIGKILL)
            assert self._warm.ended(self.pid, 60.0)
        took = time.monotonic() - self.begun
        out = (self._folder / "out").read_bytes()
        done = Done(self._warm.codes.pop(self.pid), out, self.said, took, hung)
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()
        return done


class Warm:
    """The process that all others are copies of; to be used in a `with` statement, which leaves none alive.

    Args:
        small_shards: preprocessing makes many small shards, with helpers, of text for which one would do.
        copied: begins it as a copy of a process that has loaded everything (`Server.begin` of tests/processes.py).
    """

    def __init__(
        self, small_shards: bool = False, copied: Callable[..., AbstractContextManager[Any]] | None = None
    ) -> None:
        self.codes: dict[int, int] = {}
        self._began: list[int] = []
        self._buffer = b""
        self._streams = tempfile.TemporaryDirectory(prefix="nmtkit-streams-")
        cache = os.path.join(self._streams.name, "cache")  # what is measured here is kept for nobody else
        code = f"import os, sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); import hostile.warm as warm; "
        code += f"warm.serve({small_shards}); os._exit(0)"
        variables = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "XDG_CACHE_HOME": cache}
        with contextlib.ExitStack() as ending:
            if copied:
                self._server = ending.enter_context(copied(first=code, **variables))
            else:
                pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                words = [sys.executable, "-c", code]
                self._server = ending.enter_context(subprocess.Popen(words, **pipes, env={**os.environ, **variables}))
            self._ending = ending.pop_all()

    def __enter__(self) -> "Warm":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()  # it ends all that is still there, and itself
        self._server.wait()
        self._ending.close()
        self._streams.cleanup()

    def start(
        self, *words: object, cwd: Path, stdin: bytes | str = b"", file_size: int = -1, device: str = ""
    ) -> Process:
        """Starts `nmtkit WORDS`.

        Args:
            words: its arguments.
            cwd: where.
            stdin: what it reads; `CLOSED` is none at all.
            file_size: no file may become larger, as on a full disk.
            device: a file for standard output, e.g. /dev/full; `CLOSED` is none at all.
        """
        assert self._server.stdin is not None
        folder = Path(tempfile.mkdtemp(dir=self._streams.name))
        (folder / "in").write_bytes(stdin if isinstance(stdin, bytes) else b"")
        for name in ("out", "err"):
            (folder / name).touch()
        files = [CLOSED if stdin == CLOSED else str(folder / "in"), device or str(folder / "out"), str(folder / "err")]
        order = {"words": list(map(str, words)), "cwd": str(cwd), "files": files, "file_size": file_size}
        self._server.stdin.write(json.dumps(order).encode() + b"\n")
        self._server.stdin.flush()
        while not self._began:
            self._read(None)
        return Process(self, self._began.pop(), folder)

    def run(self, *words: object, cwd: Path, seconds: float = 60.0, **how: Any) -> Done:
        """Runs `nmtkit WORDS` to its end."""
        return self.start(*words, cwd=cwd, **how).wait(seconds)

    def ended(self, pid: int, seconds: float) -> bool:
        """Waits so long for the end of a process."""
        until = time.monotonic() + seconds
        while pid not in self.codes:
            if not self._read(max(until - time.monotonic(), 0.0)):
                return False
        return True

    def left(self) -> list[int]:
        """All processes that were begun here, or by those, and are alive."""
        pid = self._server.pid
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def _read(self, seconds: float | None) -> bool:
        """Reads what the server says; False if it says nothing for so long."""
        assert self._server.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self._server.stdout], [], [], seconds)[0]:
                return False
            self._buffer += os.read(self._server.stdout.fileno(), 4096)
            assert self._buffer, "the process that all others are copies of has ended"
        line, self._buffer = self._buffer.split(b"\n", 1)
        pid, *code = map(int, line.split())
        if code:
            self.codes[pid] = code[0]
        else:
            self._began.append(pid)
        return True


# ------------------------------------------------------------------------------------------------ the program itself


def serve(small_shards: bool) -> None:
    """Forks a process for every order, says "PID" then and "PID CODE" when it ends."""
    signal.alarm(0)  # it lives as long as who gives the orders
    for name in [name for name in os.environ if name.startswith("NMTKIT_")]:
        del os.environ[name]
    from nmtkit.cli import COMMANDS, cli
    from nmtkit.corpus import text
    from nmtkit.data import encoding, store
    from nmtkit.recipe.loading import load

    if small_shards:
        store.SHARD_EXAMPLES, encoding.ALONE, text.BYTES, text.ROWS = 150, 1, 2000, 1
    drawing = [f"matplotlib.backends.backend_{kind}" for kind in ("agg", "svg", "pdf")]
    later = ["torch._dynamo", "torch.utils.tensorboard", "sacrebleu", "rouge_score.rouge_scorer"]
    for name in [*later, *drawing]:  # what commands load later on
        importlib.import_module(name)
    for name in COMMANDS:
        cli.get_command(None, name)
    load("demo")  # it makes what every recipe is checked with
    gc.freeze()
    _prctl(36)  # PR_SET_CHILD_SUBREAPER: who is left behind becomes a child of this process
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # a copy takes them once it stands where the program begins
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ours, said = set[int](), os.fdopen(os.dup(1), "w")
    orders, buffer = os.dup(0), b""
    while True:
        ready = select.select([orders, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in _reaped():
                if pid in ours:
                    print(pid, os.waitstatus_to_exitcode(status), file=said, flush=True)
        if orders in ready:
            given = os.read(orders, 1 << 16)
            if not given:
                break
            *lines, buffer = (buffer + given).split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    _become(json.loads(line))
                ours.add(pid)
                print(pid, file=said, flush=True)
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def _reaped() -> Iterable[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _become(order: dict[str, Any]) -> None:
    """Makes this process the command that was ordered, and ends it."""
    from nmtkit.cli import main

    try:
        _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives the test
        os.setsid()
        for number in (signal.SIGCHLD, *ENDING):
            signal.signal(number, signal.SIG_DFL)
        for number, name in enumerate(order["files"]):
            _put(number, name)
        os.chdir(order["cwd"])
        space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (space + MEMORY, space + MEMORY))
        if order["file_size"] >= 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does: writing fails, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"],) * 2)
        sys.argv = ["nmtkit", *order["words"]]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # one that came before ends this without a word
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt as end:
        if len(list(traceback.walk_tb(end.__traceback__))) <= 2:  # it came here, or as `main` was entered
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        traceback.print_exc()
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)  # at once: taking torch down in order costs ten times what the command did


def _put(number: int, name: str) -> None:
    """Makes a file descriptor of the three; where it is closed Python has no such stream."""
    if name == CLOSED:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)
        return
    file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
    os.dup2(file, number)
    os.close(file)


def _prctl(*what: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(*what)
