"""Work that is shared out to processes and comes back in order.

The processes import only what the work needs: they start quickly, stay small, and do not mind what libraries or threads
the caller has. They end when the caller does, however that happens, for their input is closed then.
"""

import os
import pickle
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from nmtkit.core.errors import NmtkitError

Item = TypeVar("Item")
Result = TypeVar("Result")

_CUTS = ("helps to cut the text into tokens", "try again with fewer (preprocess --workers N)")
_PROGRAM = "import sys; sys.path[:] = {path!r}; from nmtkit.data.workers import serve; serve()"


def available_cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    processes: int,
    size: Callable[[Item], int],
    alone: int,
) -> Generator[Result, None, None]:
    """`work`, which can be pickled, of every item, in order, by several processes where that pays.

    The first items, up to the size `alone` in all, are done in this process; then others start, and items are read
    ahead by a few for each. A fault of `work` or of `items` is raised after the results of the items before it. To be
    closed if it is not read to its end.

    Raises:
        NmtkitError: a process was ended from outside.
    """
    coming = iter(items)
    done = 0
    for item in coming:
        yield work(item)
        done += size(item)
        if processes > 1 and done >= alone:
            with _Pool(work, processes) as pool:
                yield from pool.map(coming)


class WorkerProcess:
    """One process, which does an item at a time.

    Args:
        work: what is called with every item, pickled.
        said: of a process that was ended from outside: what it does, and what may help.
        variables: its environment; None: this process's.
    """

    def __init__(self, work: bytes, said: tuple[str, str], variables: Mapping[str, str] | None = None) -> None:
        self._said = said
        program = [sys.executable, "-c", _PROGRAM.format(path=list(map(str, sys.path)))]
        # A session of its own: Ctrl-C is for the caller, who then closes its input.
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=variables
        )
        self._work: bytes | None = work

    def __call__(self, item: Any) -> Any:
        """What the work makes of an item; raises NmtkitError if the process was ended from outside."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if self._work is not None:
                self._process.stdin.write(self._work)
                self._work = None
            pickle.dump(item, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            good, answer = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as fault:
            code = self._process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            does, remedy = self._said
            raise NmtkitError(
                f"a process that {does} {how}; most likely the memory was not enough for all of them: {remedy}"
            ) from fault
        if not good:
            raise answer
        return answer

    def end(self) -> None:
        """Ends it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was never read cannot be flushed any more
                pipe.close()


class _Pool(Generic[Item, Result]):
    """Processes, each with a thread here that hands it an item and waits for the result."""

    def __init__(self, work: Callable[[Item], Result], count: int) -> None:
        self._count = count
        self._threads = ThreadPoolExecutor(count)
        pickled = pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
        self._processes: list[WorkerProcess] = []
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        try:
            for _ in range(count):
                self._processes.append(WorkerProcess(pickled, _CUTS))
        except OSError as fault:
            self.__exit__()
            raise NmtkitError(
                f"no process can be started ({fault.strerror}); try with preprocess --workers 1"
            ) from fault
        for process in self._processes:
            self._idle.put(process)

    def __enter__(self) -> "_Pool[Item, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        self._threads.shutdown(cancel_futures=True)

    def map(self, items: Iterator[Item]) -> Iterator[Result]:
        """The results in order."""
        waiting: deque[Future[Result]] = deque()
        for coming in self._handed_out(items):
            waiting.append(coming)
            if len(waiting) == 2 * self._count:  # each process has its next item ready
                yield waiting.popleft().result()
        yield from (coming.result() for coming in waiting)

    def _handed_out(self, items: Iterator[Item]) -> Iterator[Future[Result]]:
        """A result to come for each item; a fault of the items themselves waits for its turn like one."""
        try:
            for item in items:
                yield self._threads.submit(self._turn, item)
        except NmtkitError as fault:
            failed: Future[Result] = Future()
            failed.set_exception(fault)
            yield failed

    def _turn(self, item: Item) -> Result:
        process = self._idle.get()
        try:
            result: Result = process(item)
        finally:
            self._idle.put(process)
        return result


def serve() -> None:
    """The program of a process: reads the work, then item by item, and writes `(True, result)` or `(False, fault)`."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not come between the results
    given = sys.stdin.buffer
    try:
        work = pickle.load(given)
        while True:
            item = pickle.load(given)
            answer: tuple[bool, Any]
            try:
                answer = (True, work(item))
            except NmtkitError as fault:
                answer = (False, fault)
            except Exception:  # whatever it is, the caller shows it
                answer = (False, RuntimeError(traceback.format_exc()))
            pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):  # the caller is done, or is no more
        os._exit(0)
