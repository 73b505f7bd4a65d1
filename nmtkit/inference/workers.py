"""Processes that search for a translator, each with a core or a device of its own.

On Linux the workers of a CPU are forks, which share the weights, also those packed for this CPU. Each computes in one
thread, since OpenMP's threads do not survive a fork; see `nmtkit.core.device.can_fork`. Workers of other devices are
new interpreters.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.processes import WorkerProcess, start_workers
from nmtkit.inference.pipeline import Job, JobDecoder, JobSource


@dataclass(frozen=True)
class Workers:
    """Which processes are to search."""

    places: Sequence[str]
    """The device of each."""
    open: Callable[[str], Any] | None = None
    """Opens the translator on a device, in a process from scratch; can be pickled. None: they are forks."""
    least: int = 0
    """Lines that must be available at once for processes to be worth it."""

    def are_for(self, lines: int) -> bool:
        """Whether to use them for this many lines; False if forking is no longer possible."""
        return lines >= self.least and (self.open is not None or devices.can_fork())


class WorkerPool:
    """Decoders in processes, to be closed.

    Args:
        workers: how many, and where.
        make: returns the decoder for a device, whose jobs have translations; can be pickled unless workers are forks.
    """

    def __init__(self, workers: Workers, make: Callable[[str], JobDecoder]) -> None:
        devices.trim_malloc()  # else each fork copies every page of it that it writes into
        mains = [partial(_serve_searches, make, place) for place in workers.places]
        started = enumerate(start_workers(mains, "--workers", fork=workers.open is None), start=1)
        self.decoders = [
            _Worker(f"worker {number}", place, one)
            for (number, one), place in zip(started, workers.places, strict=True)
        ]

    def close(self) -> None:
        """Kills the workers."""
        for worker in self.decoders:
            worker.process.end()


@dataclass(frozen=True)
class _Worker:
    """A `JobDecoder` in another process."""

    name: str
    place: str
    process: WorkerProcess

    def __call__(self, source: JobSource) -> Iterator[Job]:
        connection = self.process.connection
        name = f"{self.name} (process {self.process.pid}, {self.place})"
        taken: dict[int, Job] = {}
        try:
            connection.send(True)
            while (message := connection.recv()) is not None:
                if isinstance(message, BaseException):
                    raise message
                kind, content = message
                if kind == "found":
                    number, translations = content
                    job = taken.pop(number)
                    job.translations = translations
                    yield job
                else:
                    jobs = source.next_batch() if kind == "next_batch" else source.refill(*content)
                    taken.update((job.number, job) for job in jobs)
                    connection.send(jobs)
        except MemoryError as fault:
            raise NmtkitError(
                f"{name} is out of memory: {fault}; take smaller batches (--batch-tokens N) or fewer workers"
            ) from fault
        except (EOFError, OSError) as fault:
            raise NmtkitError(
                f"{name} {self.process.exit_reason()}, so the lines that it had are lost; those that were written "
                "before are whole. If there was not enough memory for all workers, try with fewer (--workers N) or "
                "smaller batches (--batch-tokens N)"
            ) from fault


class _RemoteSource:
    """The source of jobs of the parent process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def next_batch(self) -> list[Job]:
        """Asks the parent for the jobs of a new batch."""
        return self._ask("next_batch", ())

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Asks the parent for jobs that fit."""
        return self._ask("refill", (slots, columns))

    def _ask(self, kind: str, content: tuple[int, ...]) -> list[Job]:
        self._connection.send((kind, content))
        jobs: list[Job] = self._connection.recv()
        return jobs


def _serve_searches(make: Callable[[str], JobDecoder], place: str, connection: Connection) -> None:
    # One search for each message.
    if place == "cpu":
        torch.set_num_threads(1)
    try:
        decoder = make(place)
        source = _RemoteSource(connection)
        while connection.recv():
            for job in decoder(source):
                connection.send(("found", (job.number, job.translations)))
            connection.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except NmtkitError as fault:
        connection.send(fault)
    except Exception as fault:  # shown by the parent
        said = str(fault).partition("\n")[0]
        short = isinstance(fault, MemoryError) or "out of memory" in said or "can't allocate memory" in said
        connection.send(MemoryError(said) if short else RuntimeError(traceback.format_exc()))
