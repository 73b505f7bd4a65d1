"""From lines to translations in four stages: read -> encode -> decode -> write.

    read     a thread reads windows of lines ahead
    encode   and cuts them into tokens; they wait in a queue, which holds a few windows
    decode   one or more decoders take batches from the queue, lines of similar length together
    write    finished lines become translations, in the order of the input

A line is one `Job` from the second stage to the last.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Condition, Lock, Semaphore, Thread
from typing import Protocol

import torch

from nmtkit.core import device as devices
from nmtkit.data.text.features import Rows
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.inference import inputs
from nmtkit.inference.inputs import SourceLine, TextModel
from nmtkit.inference.requests import Request
from nmtkit.inference.result import EMPTY, Translation

IDLE_SECONDS = 0.1
"""Seconds that idle decoders wait for more lines before they end."""
TYPICAL_BEAM = range(4, 17)
"""Beam sizes that the token budget of a batch is meant for; wider beams get fewer sentences, narrower ones more."""
SIMILAR_SHARE = 0.75
"""A sentence may fill a free slot of a batch if it has at least this part of the columns of the batch."""
PREFETCH_WINDOWS = 3
"""Windows that are read ahead of the window whose results are being written."""


@dataclass
class Job:
    """A line on its way to its translations."""

    number: int
    """Its place in the input, from 0."""
    source: SourceLine
    """The line as tokens, with what is asked of its translation."""
    hypotheses: Sequence[Hypothesis] | None = None
    """What decoding has found, best first."""
    translations: list[Translation] | None = None
    """The result, once it is written; of an empty line an empty one."""


class JobSource(Protocol):
    """Where a decoder takes jobs from; both methods return an empty list if there is nothing for it."""

    def next_batch(self) -> list[Job]:
        """Returns the jobs of a new batch, and waits for more if need be; empty at the end."""
        ...

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Returns at most `slots` jobs without requests that fit into so many source columns."""
        ...


JobDecoder = Callable[[JobSource], Iterator[Job]]
"""Decodes jobs until there are none, and yields each with its hypotheses, or already with its translations."""
Lines = Sequence[str | Rows | Request]
"""A window of the input."""


class GivenJobs:
    """A source of some jobs, all in one batch."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs

    def next_batch(self) -> list[Job]:
        """Returns all jobs, the first time."""
        jobs = self._jobs
        self._jobs = []
        return jobs

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Returns none."""
        return []


class JobQueue:
    """Encoded lines that wait to be decoded, window after window, the longest line of a window first.

    Several decoders may take from it while lines are added. The more hypotheses a sentence has, the fewer sentences are
    in a batch.

    Args:
        reader: has the budget of a batch.
        place: the device of the decoders.
        decoders: how many may decode at a time.
        hypotheses: of each sentence.
    """

    def __init__(self, reader: TextModel, place: torch.device, decoders: int, hypotheses: int = 1) -> None:
        self._reader = reader
        self._least_rows = inputs.MIN_ROWS.get(place.type, 32)
        self._most_over = inputs.MAX_OVERSHOOT.get(place.type, inputs.MAX_OVERSHOOT["cpu"])
        self._decoders = decoders
        self._hypotheses = hypotheses
        self._windows: deque[deque[Job]] = deque()
        self._changed = Condition()
        self._has_news = False  # a window was put since `arrived` was asked last
        self._is_closed = False
        self._is_over = False  # all decoders are idle, and end
        self._running = 0  # decoders
        self._idle = 0  # those that wait for a batch
        self.begun_lines = 0
        """Lines that waited when `begin` was called last."""

    def put(self, jobs: Iterable[Job]) -> None:
        """Adds a window, without its empty lines."""
        filled = [job for job in jobs if not job.source.is_empty]
        filled.sort(key=lambda job: -job.source.length)
        with self._changed:
            if filled:
                self._windows.append(deque(filled))
            self._has_news = True
            self._changed.notify_all()

    def close(self, drop: bool = False) -> None:
        """Ends the queue; `drop` also discards the lines that still wait."""
        with self._changed:
            self._is_closed = True
            if drop:
                self._windows.clear()
            self._changed.notify_all()

    def arrived(self) -> bool:
        """Waits for a window; returns whether one was put since this was asked last."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news or self._is_closed)
            has_news = self._has_news
            self._has_news = False
            return has_news

    def begin(self) -> int:
        """Returns how many decoders are to begin now; they end together, when nothing waits and nothing comes."""
        with self._changed:
            lines = sum(len(window) for window in self._windows)
            self.begun_lines = lines
            worth = self._worth(lines)
            may_get_more = worth > 1 and not self._is_closed
            self._running = self._decoders if may_get_more else worth
            self._idle = 0
            self._is_over = lines == 0
            return self._running if lines else 0

    def next_batch(self) -> list[Job]:
        """Returns the longest lines that wait; waits for more if there are none, and returns none at the end."""
        with self._changed:
            self._wait()
            if not self._windows:
                return []
            window = self._windows[0]
            room = self.slots(_columns(window))
            # The last of what waits is shared out, so that all decoders come to its end at about the same time.
            decoders = self._worth(len(window)) if len(self._windows) == 1 else 1
            share = math.inf
            if decoders > 1:
                share = sum(max(1, job.source.length) for job in window) / decoders
            jobs: list[Job] = []
            while window and len(jobs) < room and share > 0:
                job = window.popleft()
                share -= max(1, job.source.length)
                jobs.append(job)
            self._drop_empty_window()
            return jobs

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Returns lines of nearly the length of the batch, of one window, before the first that has a request."""
        with self._changed:
            if not self._windows:
                return []
            window = self._windows[0]
            jobs: list[Job] = []
            while window and len(jobs) < slots:
                is_similar = SIMILAR_SHARE * columns <= _columns(window) <= columns
                if not is_similar or window[0].source.is_asked:
                    break
                jobs.append(window.popleft())
            self._drop_empty_window()
            return jobs

    def slots(self, columns: int) -> int:
        """Returns how many sentences of this length make a batch; long ones count as shorter."""
        budget = self._reader.batch_budget  # padded source tokens
        if self._reader.batch_tokens:  # a user's limit, which holds as it is
            return max(1, budget // columns)
        # Very short sentences count as longer, so that they are not too many; long ones as shorter, so that at least
        # `_least_rows` are together, unless they are much longer than that.
        least = min(columns, budget // self._least_rows)
        slots = budget // max(least, columns // self._most_over, inputs.MIN_COUNTED_LENGTH)
        slots = slots * TYPICAL_BEAM[0] // min(self._hypotheses, TYPICAL_BEAM[0])
        slots //= max(1, self._hypotheses // TYPICAL_BEAM[-1])
        return max(1, slots)

    def _worth(self, lines: int) -> int:
        """How many decoders pay off for this number of lines."""
        return max(1, min(self._decoders, lines // inputs.MIN_SENTENCES_PER_SEARCH))

    def _wait(self) -> None:
        """Waits for lines until all decoders are idle."""
        self._idle += 1
        while not (self._windows or self._is_closed or self._is_over):
            is_last = self._idle == self._running
            has_changed = self._changed.wait(IDLE_SECONDS if is_last else None)
            if not has_changed and not self._windows:
                self._is_over = True
                self._changed.notify_all()
        self._idle -= 1

    def _drop_empty_window(self) -> None:
        if not self._windows[0]:
            self._windows.popleft()


def _columns(window: deque[Job]) -> int:
    """Tokens of the longest line of a window, EOS included."""
    return window[0].source.length + 1


class Pipeline:
    """The four stages, with lines that arrive in windows; `run` can be called once.

    A thread reads a few windows ahead, so that no decoder waits at the end of one; memory is that of these windows,
    however many there are.

    Args:
        encode: cuts lines into tokens.
        waiting: the queue between the stages.
        decoders: each may be used by one thread.
        write: makes the translations of a job that has hypotheses.
        in_process: whether they compute in this process on the CPU; several then have one core each.
        stop: ends decoders that are in the middle of something, if that can be done.
    """

    def __init__(
        self,
        encode: Callable[[Lines], list[SourceLine]],
        waiting: JobQueue,
        decoders: Sequence[JobDecoder],
        write: Callable[[Job], list[Translation]],
        in_process: bool,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._encode_lines = encode
        self._waiting = waiting
        self._decoders = decoders
        self._write_job = write
        self._in_process = in_process
        self._stop = stop
        self._finished: dict[int, Job] = {}  # by number; decoded, or empty, and not written
        self._next = 0  # the number of the line that is to be written next
        self._ends: deque[int] = deque()  # of the windows that are not all written
        self._ahead = Semaphore(PREFETCH_WINDOWS)  # windows that may still be read
        self._fault: BaseException | None = None  # of the input
        self._encoding = Lock()  # while a window is encoded and put
        self._is_left = False

    def run(self, windows: Iterator[Lines]) -> Iterator[list[list[Translation]]]:
        """Yields groups of translations, in the order of the lines.

        A fault of the windows is raised after the results of those before it. To be closed if it is not read to its
        end.
        """
        Thread(target=self._read, args=(windows,), daemon=True).start()
        try:
            while self._waiting.arrived():
                with closing(self._decode()) as jobs:
                    for job in jobs:
                        self._finished[job.number] = job
                        group = self._write()
                        if group:
                            yield group
                group = self._write()  # the last lines may be empty, and are decoded by nobody
                if group:
                    yield group
            if self._fault is not None:
                raise self._fault
        finally:
            # Python aborts if it ends while a thread is in a library of C++. So the thread that reads, which may still
            # wait for a window, is neither left in the tokenizer nor left to free the model.
            with self._encoding:
                self._is_left = True
                self._waiting.close(drop=True)
                del self._encode_lines, self._waiting, self._decoders, self._write_job, self._stop, self._finished
            self._ahead.release()

    def _read(self, windows: Iterator[Lines]) -> None:
        """First stage, in a thread of its own."""
        count = 0
        try:
            while self._ahead.acquire() and not self._is_left:
                lines = next(windows, None)
                if lines is None:
                    break
                with self._encoding:
                    if self._is_left:
                        break
                    self._encode(lines, count)
                count += len(lines)
        except BaseException as fault:
            self._fault = fault
        with self._encoding:
            if not self._is_left:
                self._waiting.close()

    def _encode(self, lines: Lines, first: int) -> None:
        """Second stage: puts lines, numbered from `first`, into the queue; empty ones are finished."""
        sources = self._encode_lines(lines)
        jobs = [Job(number, source) for number, source in enumerate(sources, start=first)]
        for job in jobs:
            if job.source.is_empty:
                job.translations = [EMPTY]
                self._finished[job.number] = job
        self._ends.append(first + len(lines))
        self._waiting.put(jobs)

    def _decode(self) -> Generator[Job]:
        """Third stage: yields jobs as they are decoded, until the queue is empty."""
        decoders = self._decoders[: self._waiting.begin()]
        if not decoders:
            return
        if len(decoders) == 1 and self._in_process:
            yield from self._decode_in_this_thread(decoders[0])
        else:
            yield from self._decode_in_threads(decoders)

    def _write(self) -> list[list[Translation]]:
        """Last stage: the translations of jobs whose predecessors have all been written."""
        group = []
        while True:
            job = self._finished.pop(self._next, None)
            if job is None:
                break
            translations = self._write_job(job) if job.translations is None else job.translations
            group.append(translations)
            self._next += 1
        while self._ends and self._ends[0] <= self._next:
            self._ends.popleft()
            self._ahead.release()
        return group

    def _decode_in_this_thread(self, decoder: JobDecoder) -> Iterator[Job]:
        """The jobs of one decoder; between them torch has the caller's number of threads."""
        lines = self._waiting.begun_lines
        jobs = decoder(self._waiting)
        while True:
            with devices.threads_for(lines):
                job = next(jobs, None)
            if job is None:
                return
            yield job

    def _decode_in_threads(self, decoders: Sequence[JobDecoder]) -> Iterator[Job]:
        """The jobs of several decoders, or of processes."""
        outputs: SimpleQueue[Job | BaseException | None] = SimpleQueue()  # of a decoder last None, or its fault
        cores = torch.get_num_threads()
        threads = [Thread(target=self._run_decoder, args=(decoder, outputs), daemon=True) for decoder in decoders]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                output = outputs.get()
                if isinstance(output, BaseException):
                    raise output
                if output is None:
                    running -= 1
                else:
                    yield output
        finally:
            if running:
                self._waiting.close(drop=True)
                self._stop()
            for thread in threads:
                thread.join()
            if self._in_process:
                torch.set_num_threads(cores)

    def _run_decoder(self, decoder: JobDecoder, outputs: "SimpleQueue[Job | BaseException | None]") -> None:
        end: BaseException | None = None
        try:
            if self._in_process:
                # The products of one decoding step are so small that two cores at the same product wait for each other.
                devices.use_one_thread()
            for job in decoder(self._waiting):
                outputs.put(job)
        except BaseException as fault:
            end = fault
        outputs.put(end)
