"""Commands in processes of their own, as a user runs them, without waiting for torch each time."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tests.support.commands import environment

# Loads the commands once, and what they load later on: their work, which declared commands do not load; an optimizer
# loads torch._dynamo, which takes as long as torch; the first recipe makes what all are checked with; and what is made
# once in a process: the model that identifies languages, the classes of all characters, the page of a report. Every
# command is then a copy of this process, with everything of its own.
SERVER = """\
import contextlib, ctypes, functools, gc, importlib, json, os, pkgutil, signal, socket, sys
import nmtkit
from nmtkit.cli import COMMANDS, cli, main
from nmtkit.config.loading import load
from nmtkit.datacheck import characters, language
from nmtkit.plots import pages

later = ["torch._dynamo", "torch.utils.tensorboard", "sacrebleu.tokenizers.tokenizer_13a", "rouge_score.rouge_scorer"]
later += ["numpy.ctypeslib"]
left = ("nmtkit.zoo", "nmtkit.__main__", "nmtkit.layers.triton_kernels")  # registered by name, runs, is optional
modules = [module.name for module in pkgutil.walk_packages(nmtkit.__path__, "nmtkit.")]
later += [name for name in modules if not name.startswith(left)]
for name in [*later, *(f"matplotlib.backends.backend_{kind}" for kind in ("agg", "pdf", "svg"))]:
    importlib.import_module(name)
for name in COMMANDS:
    cli.get_command(None, name)
load("demo")
language._load_identifier = functools.cache(language._load_identifier)
language._load_identifier()
characters.character_classes()
pages._environment().get_template("plots/templates/report.html")
gc.freeze()
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: who is left behind becomes a child of this process
ending = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # a copy takes them once it stands where the program begins
orders = socket.socket(fileno=int(sys.argv[1]))
while True:
    text, streams, _, _ = socket.recv_fds(orders, 1 << 20, 3)
    if not text:
        break
    order = json.loads(text)
    if "wait" in order:
        found, status = os.waitpid(order["wait"], order["how"])
        orders.send(json.dumps(os.waitstatus_to_exitcode(status) if found else None).encode())
        continue
    if child := os.fork():
        for stream in streams:
            os.close(stream)
        orders.send(json.dumps(child).encode())
        continue
    orders.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those of the server know whether its own streams could be read from any place, as files can and pipes cannot.
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "rww"[n], (-1, -1, 1)[n], closefd=False) for n in range(3))
    signal.alarm(1800)  # a command that hangs is ended
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["variables"])
    sys.argv = ["nmtkit", *order["words"]]
    try:
        exec(order["limits"], {"__name__": "limits"})
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)  # one that came before ends this without a word
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
        exec(order["first"], {"__name__": "first"})
        main()
    except SystemExit as end:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(end.code or 0)  # at once: taking torch down in order costs ten times what the command did
    except KeyboardInterrupt as end:
        if end.__traceback__.tb_next and end.__traceback__.tb_next.tb_next:
            raise
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it came as `main` was entered
        os.kill(os.getpid(), signal.SIGINT)
"""


class Begun:
    """A command that runs beside the test: its number, its streams and its end, as `subprocess.Popen` has them."""

    def __init__(
        self, pid: int, server: "Server", stdin: BinaryIO, stdout: BinaryIO, stderr: BinaryIO
    ) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or the signal that ended it as a negative number; None while it runs."""
        if self._code is None:
            self._code = self._server.ask(wait=self.pid, how=os.WNOHANG)
        return self._code

    def wait(self) -> int:
        """The exit code, as soon as there is one."""
        if self._code is None:
            self._code = self._server.ask(wait=self.pid, how=0)
        assert self._code is not None
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens to a command that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Server:
    """A process that has loaded torch and every command, and makes copies of itself that carry out one each."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-c", SERVER, str(theirs.fileno())]
        self._process = subprocess.Popen(words, env=environment(), pass_fds=[theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """Ends the server; commands that were not waited for go on."""
        self._orders.close()
        self._process.wait()

    def children(self) -> list[int]:
        """The numbers of commands that run, and of what ended ones have left behind."""
        return children(self._process.pid)

    def ask(self, **order: object) -> int | None:
        """Sends an order without streams; returns the answer."""
        self._orders.send(json.dumps(order).encode())
        return self._answer()

    def start(
        self,
        words: Sequence[object],
        folder: Path,
        variables: dict[str, str],
        streams: Sequence[int],
        first: str = "",
        limits: str = "",
    ) -> int:
        """Begins a command, before which Python carries out `limits`, which no signal meets, and `first`."""
        order = {"words": list(map(str, words)), "folder": str(folder), "variables": variables}
        order |= {"first": first, "limits": limits}
        socket.send_fds(self._orders, [json.dumps(order).encode()], list(streams))
        number = self._answer()
        assert number is not None
        return number

    def _answer(self) -> int | None:
        answer = self._orders.recv(1 << 10)
        assert answer, "the server of commands has ended"
        found: int | None = json.loads(answer)
        return found

    @contextmanager
    def begin(
        self, *words: object, cwd: Path | None = None, first: str = "", **changes: str
    ) -> Iterator[Begun]:
        """Begins a command with pipes for its streams; ends it where the test is over."""
        (given, stdin), (stdout, printed), (stderr, said) = (os.pipe() for _ in range(3))
        pid = self.start(
            words, cwd or Path.cwd(), environment(**changes), [given, printed, said], first
        )
        for theirs in (given, printed, said):
            os.close(theirs)
        begun = Begun(
            pid, self, os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")
        )
        try:
            yield begun
        finally:
            begun.send_signal(signal.SIGKILL)
            begun.wait()
            for stream in (begun.stdin, begun.stdout, begun.stderr):
                with suppress(OSError):
                    stream.close()


def children(pid: int) -> list[int]:
    """The processes that one began, as long as they run."""
    begun: list[str] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            begun += file.read_text().split()
    return [int(child) for child in begun if is_alive(int(child))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:  # it has just ended
        return False
