"""Worker processes that decode for a translator, each on a CPU core or a device of its own.

On Linux, CPU workers are forks that share the weights, including those packed for the CPU. Each fork uses one thread,
since OpenMP threads do not survive a fork; see `nmtkit.core.device.can_fork`. Workers on other devices are new
interpreters, each of which loads the model.
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
from nmtkit.inference.streaming.job_queue import Job, JobDecoder, JobSource


@dataclass(frozen=True)
class Workers:
    """The number and kind of worker processes, and the number of lines for which they are used."""

    devices: Sequence[str]
    """Device of each process."""
    open_translator: Callable[[str], Any] | None = None
    """Picklable function that opens the translator on a device in a new interpreter; None if workers are forks."""
    min_lines: int = 0
    """Minimum number of lines available at once for workers to pay off."""

    def should_use(self, lines: int) -> bool:
        """Returns whether workers should decode this number of lines; False if forks are needed but not possible."""
        return lines >= self.min_lines and (self.open_translator is not None or devices.can_fork())


class WorkerPool:
    """Decoders in worker processes; close the pool after use.

    Args:
        workers: number and devices of the processes.
        make_decoder: returns the decoder for a device, which yields jobs with their translations. Must be picklable
            unless the processes are forks.
    """

    def __init__(self, workers: Workers, make_decoder: Callable[[str], JobDecoder]) -> None:
        devices.trim_malloc()  # otherwise each fork would copy every freed page that it reuses
        are_forks = workers.open_translator is None
        programs = [partial(_serve_searches, make_decoder, device) for device in workers.devices]
        processes = start_workers(programs, "--workers", fork=are_forks)
        self.decoders: list[_Worker] = []
        for process, device in zip(processes, workers.devices, strict=True):
            number = len(self.decoders) + 1
            self.decoders.append(_Worker(f"worker {number}", device, process))

    def close(self) -> None:
        """Kills the worker processes, even if they are decoding."""
        for worker in self.decoders:
            worker.process.end()


# Messages between parent and worker during one search:
#
#   parent -> worker   True                                     start a search
#   worker -> parent   ("next_batch", ()) or ("refill", (slots, columns))
#   parent -> worker   list of jobs                             the reply to either request
#   worker -> parent   ("found", (number, translations))        a job is finished
#   worker -> parent   None                                     the search has ended
#   worker -> parent   an exception                             the search has failed


@dataclass(frozen=True)
class _Worker:
    """The parent's proxy for a `JobDecoder` in a worker process."""

    name: str
    device: str
    process: WorkerProcess

    def __call__(self, source: JobSource) -> Iterator[Job]:
        connection = self.process.connection
        name = f"{self.name} (process {self.process.pid}, {self.device})"
        unfinished: dict[int, Job] = {}
        try:
            connection.send(True)
            while True:
                message = connection.recv()
                if message is None:
                    break
                if isinstance(message, BaseException):
                    raise message
                kind, content = message
                if kind == "found":
                    number, translations = content
                    job = unfinished.pop(number)
                    job.translations = translations
                    yield job
                    continue
                jobs = source.next_batch() if kind == "next_batch" else source.refill(*content)
                for job in jobs:
                    unfinished[job.number] = job
                connection.send(jobs)
        except MemoryError as fault:
            raise NmtkitError(
                f"{name} is out of memory: {fault}; use smaller batches (--batch-tokens N) or fewer workers"
            ) from fault
        except (EOFError, OSError) as fault:
            raise NmtkitError(
                f"{name} {self.process.exit_reason()}, and its unfinished lines are lost; the output before them is "
                "complete. If there was not enough memory for all workers, use fewer workers (--workers N) or "
                "smaller batches (--batch-tokens N)"
            ) from fault


class _RemoteSource:
    """The worker's proxy for the parent's source of jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def next_batch(self) -> list[Job]:
        return self._request("next_batch", ())

    def refill(self, slots: int, columns: int) -> list[Job]:
        return self._request("refill", (slots, columns))

    def _request(self, kind: str, content: tuple[int, ...]) -> list[Job]:
        self._connection.send((kind, content))
        jobs: list[Job] = self._connection.recv()
        return jobs


def _serve_searches(
    make_decoder: Callable[[str], JobDecoder], device: str, connection: Connection
) -> None:
    """Main function of a worker: decodes whenever the parent requests a search."""
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        decoder = make_decoder(device)
        source = _RemoteSource(connection)
        while connection.recv():
            for job in decoder(source):
                connection.send(("found", (job.number, job.translations)))
            connection.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except NmtkitError as fault:
        connection.send(fault)
    except Exception as fault:
        first_line = str(fault).partition("\n")[0]
        is_out_of_memory = (
            isinstance(fault, MemoryError)
            or "out of memory" in first_line
            or "can't allocate memory" in first_line
        )
        if is_out_of_memory:
            connection.send(MemoryError(first_line))
        else:
            # Send the worker's traceback as text, for the parent to show.
            connection.send(RuntimeError(traceback.format_exc()))
