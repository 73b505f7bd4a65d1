"""Streaming translation: a queue of encoded lines, searches that take batches from it, and results in input order."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue
from threading import Condition, Lock, Semaphore, Thread

import torch

from nmtkit.core import device as devices
from nmtkit.data.text.features import Rows
from nmtkit.inference import inputs
from nmtkit.inference.inputs import SourceLine, TextModel
from nmtkit.inference.requests import Request
from nmtkit.inference.result import EMPTY, Translation

IDLE_SECONDS = 0.1
"""Seconds that idle searches wait for more lines before they end."""
TYPICAL_BEAM = range(4, 17)
"""Beam sizes that the token budget of a batch is meant for; wider beams get fewer sentences, narrower ones more."""
PREFETCH_WINDOWS = 3
"""Windows that are read ahead of the window whose results are being written."""

NumberedSources = Sequence[tuple[int, SourceLine]]
"""Encoded sources with their line numbers."""
TakeSources = Callable[[int | None, int | None], NumberedSources]
"""Gives waiting sources as `nmtkit.decoding.engine.BatchSource` does: of a new decoding batch, or at most `count`."""
PendingResult = Callable[[], list[Translation]]
"""Builds the translations of one line from its hypotheses, outside the search."""
DecodeLoop = Callable[[TakeSources], Iterator[tuple[int, PendingResult]]]
"""Decodes sources until none waits; yields line numbers and results as they finish."""
_SearchOutput = tuple[int, PendingResult] | BaseException | None
"""What the thread of a search puts out; last None, or the exception that ended it."""


class RequestQueue:
    """Queue of encoded source lines, window after window, the longest of a window first.

    Several searches may take from it while lines are added. The more hypotheses a sentence has, the fewer sentences are
    in a batch.
    """

    def __init__(self, reader: TextModel, place: torch.device, searches: int, hypotheses: int = 1) -> None:
        self._reader, self._least_rows, self._searches = reader, inputs.MIN_ROWS.get(place.type, 32), searches
        self._most_over = inputs.MAX_OVERSHOOT.get(place.type, inputs.MAX_OVERSHOOT["cpu"])
        self._hypotheses = hypotheses
        self._windows: deque[deque[tuple[int, SourceLine]]] = deque()
        self._changed = Condition()
        self._news = self._closed = self._is_over = False
        self._running = self._idle = 0
        self.begun_lines = 0
        """Lines that waited when `begin` was called last."""

    def put(self, sources: Iterable[tuple[int, SourceLine]]) -> None:
        """Adds a window, without its empty lines."""
        filled = sorted((one for one in sources if not one[1].is_empty), key=lambda one: -one[1].length)
        with self._changed:
            if filled:
                self._windows.append(deque(filled))
            self._news = True
            self._changed.notify_all()

    def close(self, drop: bool = False) -> None:
        """Ends the queue; `drop` also discards the lines that still wait."""
        with self._changed:
            self._closed = True
            if drop:
                self._windows.clear()
            self._changed.notify_all()

    def arrived(self) -> bool:
        """Waits for a window; whether one was put since this was asked last."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._closed)
            news, self._news = self._news, False
            return news

    def begin(self) -> int:
        """Says how many searches are to begin now; they end together, when nothing waits and nothing comes."""
        with self._changed:
            count = sum(map(len, self._windows))
            self.begun_lines = count
            worth = self._worth(count)
            self._running = worth if worth == 1 or self._closed else self._searches
            self._idle, self._is_over = 0, not count
            return self._running if count else 0

    def take(self, count: int | None, width: int | None) -> NumberedSources:
        """What a search takes, see `TakeSources`; it waits for more where a new batch finds nothing."""
        with self._changed:
            if count is None:
                self._wait()
            if not self._windows:
                return []
            window = self._windows[0]
            taken: list[tuple[int, SourceLine]] = []
            room = self.slots(_columns(window)) if count is None else count
            # The last of what waits is shared out, so that all searches come to its end at about the same time.
            searches = self._worth(len(window)) if len(self._windows) == 1 else 1
            share = sum(max(1, source.length) for _, source in window) / searches if searches > 1 else math.inf
            while window and len(taken) < room and share > 0:
                if width is not None and not 3 * width <= 4 * _columns(window) <= 4 * width:
                    break
                if count is not None and window[0][1].is_asked:  # it needs a batch of its own
                    break
                taken.append(window.popleft())
                share -= max(1, taken[-1][1].length)
            if not window:
                self._windows.popleft()
            return taken

    def slots(self, columns: int) -> int:
        """How many sentences of this length make a batch; long ones count as shorter."""
        budget = self._reader.batch_budget
        if self._reader.batch_tokens:
            fitting = budget // columns
        else:
            least = min(columns, budget // self._least_rows)
            fitting = budget // max(least, columns // self._most_over, inputs.MIN_COUNTED_LENGTH)
            fitting = fitting * TYPICAL_BEAM[0] // min(self._hypotheses, TYPICAL_BEAM[0])
            fitting //= max(1, self._hypotheses // TYPICAL_BEAM[-1])
        return max(1, fitting)

    def _worth(self, count: int) -> int:
        """How many searches pay off for this number of sentences."""
        return max(1, min(self._searches, count // inputs.MIN_SENTENCES_PER_SEARCH))

    def _wait(self) -> None:
        """Waits for sentences until all searches are idle."""
        self._idle += 1
        while not (self._windows or self._closed or self._is_over):
            last = self._idle == self._running
            if not self._changed.wait(IDLE_SECONDS if last else None) and not self._windows:
                self._is_over = True
                self._changed.notify_all()
        self._idle -= 1


def _columns(window: deque[tuple[int, SourceLine]]) -> int:
    """Tokens of the longest line of a window, EOS included."""
    return window[0][1].length + 1


class LineStream:
    """Lines that arrive in windows, searched as they come and answered in order.

    A thread reads windows ahead, a few of them, so that no search waits at the end of one; memory is that of these
    windows, however many there are. Searches `in_process`, on the CPU, have one core each if there are several. `stop`
    ends searches that are in the middle of something, if that can be done.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str | Rows | Request]], list[SourceLine]],
        waiting: RequestQueue,
        searches: Sequence[DecodeLoop],
        in_process: bool,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._encode, self._waiting, self._searches = encode, waiting, searches
        self._in_process, self._stop = in_process, stop
        self._answers: dict[int, PendingResult] = {}  # that were found and are not out
        self._next = 0  # the line that is to be answered next
        self._ends: deque[int] = deque()  # of the windows that are not all out
        self._ahead = Semaphore(PREFETCH_WINDOWS)
        self._fault: BaseException | None = None
        self._cutting = Lock()  # while a window is cut into tokens and put
        self._is_left = False

    def run(self, windows: Iterator[Sequence[str | Rows | Request]]) -> Iterator[list[list[Translation]]]:
        """Yields groups of finished results, in order.

        A fault of the windows is raised after the answers to those before it. To be closed if it is not read to its
        end.
        """
        Thread(target=self._read_ahead, args=(windows,), daemon=True).start()
        try:
            while self._waiting.arrived():
                with closing(self._results()) as results:
                    for number, answer in results:
                        self._answers[number] = answer
                        if ready := self._ready():
                            yield ready
                if ready := self._ready():  # the last lines may be empty, and are searched by nobody
                    yield ready
            if self._fault is not None:
                raise self._fault
        finally:
            # Python aborts if it ends while a thread is in a library of C++. So the one that reads ahead, which may
            # still wait for a window, is neither left in the tokenizer nor left to free the model.
            with self._cutting:
                self._is_left = True
                self._waiting.close(drop=True)
                del self._encode, self._waiting, self._searches, self._stop, self._answers
            self._ahead.release()

    def _read_ahead(self, windows: Iterator[Sequence[str | Rows | Request]]) -> None:
        count = 0
        try:
            while self._ahead.acquire() and not self._is_left:
                lines = next(windows, None)
                if lines is None:
                    break
                with self._cutting:
                    if self._is_left:
                        break
                    sources = list(enumerate(self._encode(lines), start=count))
                    self._answers |= {number: lambda: [EMPTY] for number, source in sources if source.is_empty}
                    count += len(lines)
                    self._ends.append(count)
                    self._waiting.put(sources)
        except BaseException as fault:
            self._fault = fault
        with self._cutting:
            if not self._is_left:
                self._waiting.close()

    def _ready(self) -> list[list[Translation]]:
        """Results whose predecessors have all been written."""
        ready = []
        while (answer := self._answers.pop(self._next, None)) is not None:
            ready.append(answer())
            self._next += 1
        while self._ends and self._ends[0] <= self._next:
            self._ends.popleft()
            self._ahead.release()
        return ready

    def _results(self) -> Generator[tuple[int, PendingResult]]:
        """Results of the searches until the queue is empty; several searches, or those of workers, run in threads."""
        searches = self._searches[: self._waiting.begin()]
        if len(searches) == 1 and self._in_process:
            yield from self._results_in_this_thread(searches[0])
            return
        outputs: SimpleQueue[_SearchOutput] = SimpleQueue()
        cores = torch.get_num_threads()
        threads = [Thread(target=self._search, args=(search, outputs), daemon=True) for search in searches]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                one = outputs.get()
                if isinstance(one, BaseException):
                    raise one
                if one is None:
                    running -= 1
                else:
                    yield one
        finally:
            if running:
                self._waiting.close(drop=True)
                self._stop()
            for thread in threads:
                thread.join()
            if self._in_process:
                torch.set_num_threads(cores)

    def _results_in_this_thread(self, search: DecodeLoop) -> Iterator[tuple[int, PendingResult]]:
        """The results of one search; between them torch has the caller's number of threads."""
        lines = self._waiting.begun_lines
        results = search(self._waiting.take)
        while True:
            with devices.threads_for(lines):
                result = next(results, None)
            if result is None:
                return
            yield result

    def _search(self, search: DecodeLoop, outputs: "SimpleQueue[_SearchOutput]") -> None:
        end: BaseException | None = None
        try:
            if self._in_process:
                # The products of one decoding step are so small that two cores at the same product wait for each other.
                devices.use_one_thread()
            for one in search(self._waiting.take):
                outputs.put(one)
        except BaseException as fault:
            end = fault
        outputs.put(end)
