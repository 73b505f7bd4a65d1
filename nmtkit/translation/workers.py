"""Processes that search for a translator, each with a core or a device of its own.

On Linux those of a CPU are forks, which share the weights, also those that were packed for this CPU. Each computes in
one thread, since those of OpenMP do not survive a fork; see `nmtkit.core.device.may_fork`. Workers on other devices are
processes from scratch.
"""

import multiprocessing
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch

from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.translation.result import Translation
from nmtkit.translation.stream import Answer, Search, Take

SOON = 5.0
"""Seconds until a process whose connection broke has ended."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Workers:
    """Which processes are to search."""

    places: Sequence[str]
    """The device of each."""
    open: Callable[[str], Any] | None = None
    """Opens the translator on a device, in a process from scratch; can be pickled. None: they are forks."""
    least: int = 0
    """They are worth it where so many lines are there at once."""

    def are_for(self, lines: int) -> bool:
        """Whether they are to search where so many lines are there at once; forks cannot where it is too late."""
        return lines >= self.least and (self.open is not None or devices.may_fork())


class WorkerPool:
    """Processes that are there until it is left.

    Args:
        workers: which.
        make: makes of a device what one there does; can be pickled unless they are forks.

    Raises:
        NmtkitError: no process can be started.
    """

    def __init__(self, workers: Workers, make: Callable[[str], Search]) -> None:
        self.searches: list[_Worker] = []
        method: Literal["fork", "spawn"] = "fork" if workers.open is None else "spawn"
        # What ends this process before they know what to do about a signal ends them by ending their input.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        devices.give_back_freed_memory()  # else each fork copies every page of it that it writes into
        try:
            for number, place in enumerate(workers.places, start=1):
                held = [one.connection for one in self.searches] if method == "fork" else []
                self.searches.append(_Worker(number, place, method, make, held))
        except OSError as fault:
            self.end()
            raise NmtkitError(f"no process can be started ({fault.strerror or fault}); try with --workers 1") from fault
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends them, whatever they are doing."""
        for worker in self.searches:
            worker.end()


class _Worker:
    """One process. `held` are connections of the parent that a fork is to close."""

    def __init__(
        self,
        number: int,
        place: str,
        method: Literal["fork", "spawn"],
        make: Callable[[str], Search],
        held: Sequence[Connection],
    ) -> None:
        context = multiprocessing.get_context(method)
        self.connection, theirs = context.Pipe()
        held = [*held, self.connection] if method == "fork" else []
        self._process = context.Process(target=_work, args=(theirs, make, place, held), daemon=True)  # type: ignore[attr-defined]  # typeshed's contexts
        with (
            warnings.catch_warnings()
        ):  # Python 3.12 and later warn of every fork beside threads; see `device.may_fork`
            warnings.filterwarnings("ignore", "This process .* multi-threaded", DeprecationWarning)
            self._process.start()
        theirs.close()
        self._name = f"worker {number} (process {self._process.pid}, {place})"

    def __call__(self, take: Take) -> Iterator[tuple[int, Answer]]:
        """A `Search`: hands the process what it asks for, and on what it finds.

        Raises:
            NmtkitError: the process was lost.
        """
        try:
            self.connection.send(True)
            while (message := self.connection.recv()) is not None:
                if isinstance(message, BaseException):
                    raise message
                what, given = message
                if what == "take":
                    self.connection.send(take(*given))
                else:
                    number, translations = given
                    yield number, _Given(translations)
        except MemoryError as fault:
            raise NmtkitError(
                f"{self._name} is out of memory: {fault}; take smaller batches (--batch-tokens N) or fewer workers"
            ) from fault
        except (EOFError, OSError) as fault:
            raise NmtkitError(self._lost()) from fault

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.join()

    def _lost(self) -> str:
        self._process.join(SOON)
        code = self._process.exitcode or 0
        how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return (
            f"{self._name} {how}, so the lines that it had are lost; those that were written before are whole. If the "
            "memory was not enough for all workers, try with fewer (--workers N) or smaller batches (--batch-tokens N)"
        )


@dataclass(frozen=True)
class _Given:
    """The `Answer` that a worker has made already."""

    translations: list[Translation]

    def __call__(self) -> list[Translation]:
        return self.translations


def _work(connection: Connection, make: Callable[[str], Search], place: str, held: Sequence[Connection]) -> None:
    """The program of a worker: searches whenever it is told to; ends when its connection does."""
    for one in held:
        one.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if place == "cpu":
        torch.set_num_threads(1)

    def take(count: int | None, width: int | None) -> Any:
        connection.send(("take", (count, width)))
        return connection.recv()

    try:
        search = make(place)
        while connection.recv():
            for number, answer in search(take):
                connection.send(("found", (number, answer())))
            connection.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is done, or is no more
    except NmtkitError as fault:
        connection.send(fault)
    except Exception as fault:  # whatever it is, the parent shows it
        said = str(fault).partition("\n")[0]
        short = isinstance(fault, MemoryError) or "out of memory" in said or "can't allocate memory" in said
        connection.send(MemoryError(said) if short else RuntimeError(traceback.format_exc()))
