"""Worker processes, and a parallel map that keeps the order of its items.

A worker ends when its parent ends for any reason, because its connection is then closed.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from nmtkit.core.errors import NmtkitError
from nmtkit.core.user_module import execute_again, loaded_modules

Item = TypeVar("Item")
Result = TypeVar("Result")
Main: TypeAlias = Callable[[Connection], None]
"""The program of a worker. It must not catch the `EOFError` that `recv` raises when the parent has ended."""

_PROGRAM = "import sys; sys.path[:] = {path!r}; from nmtkit.core import processes; processes.run_worker({file})"
_SIGNALS = {signal.SIGINT, signal.SIGTERM}


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Returns the free memory in bytes: MemAvailable on Linux, the total memory elsewhere."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(
                1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:")
            )
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class WorkerProcess:
    """A process that runs a program.

    With `main`, it is a fork, which shares this process's memory (Linux only) and closes the connections of `siblings`.
    Without `main`, it is a new interpreter. The first message to the interpreter lists the user's files to execute, and
    the second is the program to run; the interpreter imports only what that program needs.
    """

    def __init__(self, main: Main | None = None, siblings: Sequence["WorkerProcess"] = ()) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self._process: subprocess.Popen[bytes] | multiprocessing.process.BaseProcess
        with theirs:
            if main is not None:
                inherited = [self.connection, *(one.connection for one in siblings)]
                context = multiprocessing.get_context("fork")
                self._process = context.Process(
                    target=_run_fork, args=(main, theirs, inherited), daemon=True
                )
                with (
                    warnings.catch_warnings()
                ):  # Python warns of forks while threads run; see `device.can_fork`
                    warnings.filterwarnings(
                        "ignore", "This process .* multi-threaded", DeprecationWarning
                    )
                    self._process.start()
            else:
                program = [
                    sys.executable,
                    "-c",
                    _PROGRAM.format(path=list(map(str, sys.path)), file=theirs.fileno()),
                ]
                # Output of libraries goes to standard error. In a separate session, the worker does not receive Ctrl-C.
                options: dict[str, Any] = {
                    "stdin": subprocess.DEVNULL,
                    "stdout": 2,
                    "start_new_session": True,
                }
                self._process = subprocess.Popen(program, pass_fds=[theirs.fileno()], **options)
        self.pid = self._process.pid

    def _wait(self) -> int:
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait()
        self._process.join()
        return self._process.exitcode or 0

    def exit_reason(self) -> str:
        """Returns why the process ended after its connection broke, e.g. "exited with code 1"."""
        code = self._wait()
        return (
            f"was killed by signal {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    def end(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._wait()
        self.connection.close()


def _run_fork(main: Main, connection: Connection, inherited: Sequence[Connection]) -> None:
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _run(main, connection)


def run_worker(file: int) -> None:
    """Runs a program in a new interpreter; `file` is the descriptor of its connection."""
    connection = Connection(file)
    execute_again(connection.recv())
    _run(connection.recv(), connection)


def _run(main: Main, connection: Connection) -> None:
    try:
        main(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        os._exit(0)


def start_workers(mains: Sequence[Main], option: str, fork: bool = False) -> list[WorkerProcess]:
    """Starts one process per program; if one cannot be started, ends all others.

    `option` is the option that sets the number of processes, for messages.
    """
    started: list[WorkerProcess] = []
    # A signal that arrives before a fork has set its own handlers ends the parent, and then also the fork, because its
    # connection is closed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS if fork else ())
    try:
        for main in mains:
            started.append(WorkerProcess(main if fork else None, started))
        for worker, main in zip(started, () if fork else mains, strict=False):
            worker.connection.send(loaded_modules())
            worker.connection.send(main)
    except OSError as fault:
        for worker in started:
            worker.end()
        raise NmtkitError(
            f"cannot start a worker process ({fault.strerror or fault}); use {option} 1, which needs no worker process"
        ) from fault
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return started


def call_each(function: Callable[[Any], Any], connection: Connection) -> None:
    """Answers each item from the connection with the function's result, as the program of a worker."""
    while True:
        item = connection.recv()
        answer: tuple[bool, Any]
        try:
            answer = (True, function(item))
        except NmtkitError as fault:
            answer = (False, fault)
        except Exception:  # raised again by the parent
            answer = (False, RuntimeError(traceback.format_exc()))
        connection.send(answer)


def call(worker: WorkerProcess, item: Any, remedy: str) -> Any:
    """Returns an item's result from a `call_each` worker; raises NmtkitError if the worker was killed."""
    try:
        worker.connection.send(item)
        good, answer = worker.connection.recv()
    except (OSError, EOFError) as fault:
        raise NmtkitError(
            f"a worker process {worker.exit_reason()}, probably because the machine ran out of "
            f"memory; {remedy}"
        ) from fault
    if not good:
        raise answer
    return answer


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    processes: int,
    size: Callable[[Item], int],
    serial_size: int,
    option: str = "--workers",
) -> Generator[Result, None, None]:
    """Maps a picklable function over items in order, in parallel processes if that is faster.

    This process maps the first items, up to a total size of `serial_size`. Then workers are started, and a few items
    are read ahead for each. An error of `function` or `items` is raised after the results of all earlier items. Close
    the generator if you do not exhaust it. `option` is the option that sets the number of processes, for messages.
    """
    coming = iter(items)
    done = 0
    for item in coming:
        yield function(item)
        done += size(item)
        if processes > 1 and done >= serial_size:
            yield from _map_in_workers(function, coming, processes, option)


def _map_in_workers(
    function: Callable[[Item], Result], items: Iterator[Item], processes: int, option: str
) -> Iterator[Result]:
    workers = start_workers([partial(call_each, function)] * processes, option)
    threads = ThreadPoolExecutor(processes)
    idle: SimpleQueue[WorkerProcess] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def call_idle(item: Item) -> Result:
        worker = idle.get()
        try:
            result: Result = call(worker, item, f"try again with fewer workers ({option} N)")
        finally:
            idle.put(worker)
        return result

    waiting: deque[Future[Result]] = deque()
    fault: NmtkitError | None = None
    try:
        while fault is None:
            try:
                item = next(items)
            except StopIteration:
                break
            except NmtkitError as raised:  # raised below, after the results of earlier items
                fault = raised
            else:
                waiting.append(threads.submit(call_idle, item))
                if len(waiting) == 2 * processes:  # the next item of each process is ready
                    yield waiting.popleft().result()
        yield from (future.result() for future in waiting)
        if fault is not None:
            raise fault
    finally:
        for worker in workers:
            worker.end()
        threads.shutdown(cancel_futures=True)
