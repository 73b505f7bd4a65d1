"""Translates a stream of lines in four stages: read -> encode -> decode -> write.

    read     a thread reads windows of lines ahead
    encode   the same thread tokenizes the lines and puts them into a queue, which holds a few windows
    decode   one or more decoders take batches of lines with similar lengths from the queue
    write    hypotheses are converted to translations, in the order of the input

`Pipeline` runs the stages, and `JobQueue` connects the second and third stages. From the second stage on, each line is
a `Job`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Condition, Lock, Semaphore, Thread
from typing import Protocol

import torch

from nmtkit.core import device as devices
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.inference import inputs
from nmtkit.inference.constraints.requests import InputLine
from nmtkit.inference.inputs import SourceLine, TextModel
from nmtkit.inference.result import EMPTY, Translation

IDLE_SECONDS = 0.1
"""Seconds that idle decoders wait for more lines before they stop."""
TYPICAL_BEAM = range(4, 17)
"""Beam sizes for which the token budget of a batch is designed; a batch has fewer sentences if the beam size is larger,
and more if it is smaller."""
SIMILAR_SHARE = 0.75
"""A sentence may fill a free slot in a batch if its length is at least this share of the batch's width."""
PREFETCH_WINDOWS = 3
"""Number of windows that are read ahead of the window whose results are being written."""

Lines = Sequence[InputLine]
"""A window of input lines."""


@dataclass
class Job:
    """A line on its way through the pipeline."""

    number: int
    """Position in the input, counted from 0."""
    source: SourceLine
    """The encoded line, with constraints on its translation."""
    hypotheses: Sequence[Hypothesis] | None = None
    """Result of the decoding stage, best first."""
    unsupported: str = ""
    """Why the external engine could not decode the line, so that nmtkit's own did; empty otherwise."""
    translations: list[Translation] | None = None
    """Result of the writing stage; a single empty translation for an empty line."""


class JobSource(Protocol):
    """Supplies jobs to a decoder. Both methods return an empty list if there are no jobs."""

    def next_batch(self) -> list[Job]:
        """Returns the jobs for a new batch, waiting for them if necessary; an empty list at the end of the input."""
        ...

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Returns up to `slots` unconstrained jobs whose sources fit into `columns` columns; does not wait."""
        ...


JobDecoder = Callable[[JobSource], Iterator[Job]]
"""Decodes jobs until there are none left, and yields each with its hypotheses or, in a worker, its translations."""


class Pipeline:
    """Runs the four stages on lines that arrive in windows; `run` may be called only once.

    Lines are read and encoded a few windows ahead, so that no decoder waits at the end of a window. Only these windows
    are held in memory.

    Args:
        encode: tokenizes lines.
        queue: an empty queue for the encoded lines.
        decoders: the decoders; if there are several, each runs in its own thread.
        write: converts a job's hypotheses to translations.
        in_process: whether the decoders compute in this process on the CPU. If so, and if there are several, each uses
            one core.
        stop: interrupts decoders that are still busy, if possible.
    """

    def __init__(
        self,
        encode: Callable[[Lines], list[SourceLine]],
        queue: JobQueue,
        decoders: Sequence[JobDecoder],
        write: Callable[[Job], list[Translation]],
        in_process: bool,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._encode_lines = encode
        self._queue = queue
        self._decoders = decoders
        self._write_job = write
        self._in_process = in_process
        self._stop = stop
        # Decoded or empty lines that have not been written yet, by number.
        self._finished: dict[int, Job] = {}
        self._next = 0  # number of the next line to write
        # End (last line number + 1) of each window that has not been written completely.
        self._window_ends: deque[int] = deque()
        self._windows_to_read = Semaphore(PREFETCH_WINDOWS)
        self._input_error: BaseException | None = None
        self._encoding = Lock()  # held while a window is encoded and put into the queue
        self._is_abandoned = False

    def run(self, windows: Iterator[Lines]) -> Iterator[list[list[Translation]]]:
        """Yields groups of translations in input order; close the generator if you do not exhaust it.

        An exception raised by `windows` is re-raised after the results of all earlier lines.
        """
        Thread(target=self._read, args=(windows,), daemon=True).start()
        try:
            while self._queue.wait_for_window():
                with self._restored_threads(), closing(self._decode()) as jobs:
                    for job in jobs:
                        self._finished[job.number] = job
                        group = self._write()
                        if group:
                            yield group
                # Write trailing empty lines, which no decoder returns.
                group = self._write()
                if group:
                    yield group
            if self._input_error is not None:
                raise self._input_error
        finally:
            # Python aborts if it exits while a thread is inside a C++ library. The reading thread may still be waiting
            # for a window, so make sure that it neither enters the tokenizer again nor holds the last reference to the
            # model.
            with self._encoding:
                self._is_abandoned = True
                self._queue.close(drop=True)
                del (
                    self._encode_lines,
                    self._queue,
                    self._decoders,
                    self._write_job,
                    self._stop,
                    self._finished,
                )
            self._windows_to_read.release()

    def _read(self, windows: Iterator[Lines]) -> None:
        """Reads windows ahead and encodes them (first and second stage); runs in the reading thread."""
        lines_read = 0
        try:
            while self._windows_to_read.acquire() and not self._is_abandoned:
                lines = next(windows, None)
                if lines is None:
                    break
                with self._encoding:
                    if self._is_abandoned:
                        break
                    self._encode(lines, lines_read)
                lines_read += len(lines)
        except BaseException as fault:
            self._input_error = fault
        with self._encoding:
            if not self._is_abandoned:
                self._queue.close()

    def _encode(self, lines: Lines, first: int) -> None:
        """Encodes a window and puts it into the queue (second stage); empty lines skip decoding.

        `first` is the number of the window's first line.
        """
        jobs = []
        for number, source in enumerate(self._encode_lines(lines), start=first):
            job = Job(number, source)
            if source.is_empty:
                job.translations = [EMPTY]
                self._finished[number] = job
            jobs.append(job)
        self._window_ends.append(first + len(lines))
        self._queue.put(jobs)

    def _restored_threads(self) -> AbstractContextManager[None]:
        """Restores torch's number of threads, which decoders change if they compute in this process."""
        return devices.restored_threads() if self._in_process else nullcontext()

    def _decode(self) -> Generator[Job]:
        """Yields jobs as they are decoded, until the queue stays empty (third stage)."""
        decoders = self._decoders[: self._queue.start_decoders()]
        if not decoders:
            return
        if len(decoders) == 1 and self._in_process:
            yield from self._decode_in_this_thread(decoders[0])
        else:
            yield from self._decode_in_threads(decoders)

    def _write(self) -> list[list[Translation]]:
        """Returns the translations of finished jobs up to the first line that is not finished (last stage)."""
        group = []
        while True:
            job = self._finished.pop(self._next, None)
            if job is None:
                break
            translations = job.translations
            if translations is None:
                translations = self._write_job(job)
            group.append(translations)
            self._next += 1
        while self._window_ends and self._window_ends[0] <= self._next:
            self._window_ends.popleft()
            self._windows_to_read.release()
        return group

    def _decode_in_this_thread(self, decoder: JobDecoder) -> Iterator[Job]:
        """Yields a single decoder's jobs. Between jobs, torch's thread count is reset to the caller's setting."""
        lines = self._queue.lines_at_start
        jobs = decoder(self._queue)
        while True:
            with devices.threads_for(lines):
                job = next(jobs, None)
            if job is None:
                return
            yield job

    def _decode_in_threads(self, decoders: Sequence[JobDecoder]) -> Iterator[Job]:
        """Yields the jobs of several decoders or of worker processes; each decoder runs in its own thread."""
        # Each decoder's last output is None, or an exception if it failed.
        outputs: SimpleQueue[Job | BaseException | None] = SimpleQueue()
        threads = [
            Thread(target=self._run_decoder, args=(decoder, outputs), daemon=True)
            for decoder in decoders
        ]
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
                self._queue.close(drop=True)
                self._stop()
            for thread in threads:
                thread.join()

    def _run_decoder(
        self, decoder: JobDecoder, outputs: SimpleQueue[Job | BaseException | None]
    ) -> None:
        end: BaseException | None = None
        try:
            if self._in_process:
                # The matrix products of a decoding step are so small that cores sharing a product mostly wait for each
                # other.
                devices.use_one_thread()
            for job in decoder(self._queue):
                outputs.put(job)
        except BaseException as fault:
            end = fault
        outputs.put(end)


class JobQueue:
    """Holds encoded lines until they are decoded, window by window, and longest line first within a window.

    Several decoders may take jobs while lines are being added. The more hypotheses a sentence has, the fewer sentences
    a batch contains.

    Args:
        reader: the model, which determines the batch budget.
        device: the device on which the decoders compute.
        decoders: number of decoders that can compute concurrently.
        hypotheses: number of hypotheses per sentence.
        max_sentences: maximum number of sentences in a batch; None for no maximum. If there is one, the batch budget is
            only a limit on memory, which a batch never exceeds to have more sentences.
        spare_decoders: number of additional decoders, which keep batches ready for the next free core.
    """

    def __init__(
        self,
        reader: TextModel,
        device: torch.device,
        decoders: int,
        hypotheses: int = 1,
        max_sentences: int | None = None,
        spare_decoders: int = 0,
    ) -> None:
        self._reader = reader
        self._min_rows = inputs.MIN_ROWS.get(device.type, 32)
        self._max_overshoot = inputs.MAX_OVERSHOOT.get(device.type, inputs.MAX_OVERSHOOT["cpu"])
        if max_sentences is not None:
            self._max_overshoot = 1
        self._decoders = decoders
        self._spare_decoders = spare_decoders
        self._hypotheses = hypotheses
        self._max_sentences = max_sentences
        self._windows: deque[_Window] = deque()
        self._changed = Condition()  # guards all attributes below and the windows
        self._has_new_window = False  # whether a window was added since the last `wait_for_window`
        self._is_closed = False
        self._is_over = False  # all decoders are idle and have to stop
        self._running = 0  # number of decoders that were started
        self._idle = 0  # number of decoders that wait for a batch
        self.lines_at_start = 0
        """Number of lines in the queue at the last call to `start_decoders`."""

    def put(self, jobs: Iterable[Job]) -> None:
        """Adds a window's nonempty lines."""
        filled = [job for job in jobs if not job.source.is_empty]
        filled.sort(key=lambda job: -job.source.length)
        with self._changed:
            if filled:
                self._windows.append(_Window(filled))
            self._has_new_window = True
            self._changed.notify_all()

    def close(self, drop: bool = False) -> None:
        """Closes the queue; `drop` also discards the lines in it."""
        with self._changed:
            self._is_closed = True
            if drop:
                self._windows.clear()
            self._changed.notify_all()

    def wait_for_window(self) -> bool:
        """Waits for a window; returns False if the queue is closed and no window was added since the last call."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_new_window or self._is_closed)
            has_new_window = self._has_new_window
            self._has_new_window = False
            return has_new_window

    def start_decoders(self) -> int:
        """Returns the number of decoders to start now. They all stop once the queue stays empty."""
        with self._changed:
            lines = sum(len(window.jobs) for window in self._windows)
            self.lines_at_start = lines
            all_decoders = self._decoders + self._spare_decoders
            self._running = _useful_decoders(lines, all_decoders)
            if self._running > 1 and not self._is_closed:
                self._running = all_decoders  # more lines are likely to come
            self._idle = 0
            self._is_over = lines == 0
            return 0 if self._is_over else self._running

    def next_batch(self) -> list[Job]:
        """Waits for lines, and returns the longest ones of the first window; an empty list at the end of the input."""
        with self._changed:
            self._wait_for_lines()
            if not self._windows:
                return []
            window = self._windows[0]
            capacity = self.slots(window.columns)
            tokens_left = math.inf
            decoders = _useful_decoders(len(window.jobs), self._decoders)
            if len(self._windows) == 1 and decoders > 1:
                # Split the last window evenly by tokens, so that all decoders finish at about the same time.
                tokens_left = window.tokens / decoders
            jobs: list[Job] = []
            while window.jobs and len(jobs) < capacity and tokens_left > 0:
                job = window.take()
                jobs.append(job)
                tokens_left -= _counted_tokens(job)
            self._drop_empty_window()
            return jobs

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Returns lines of the first window that are nearly `columns` tokens long; stops at a constrained line."""
        with self._changed:
            if not self._windows:
                return []
            window = self._windows[0]
            jobs: list[Job] = []
            while window.jobs and len(jobs) < slots:
                is_similar = SIMILAR_SHARE * columns <= window.columns <= columns
                if not is_similar or window.jobs[0].source.is_constrained:
                    break
                jobs.append(window.take())
            self._drop_empty_window()
            return jobs

    def slots(self, columns: int) -> int:
        """Returns the number of sentences with `columns` tokens that fit into a batch."""
        budget = self._reader.batch_budget  # padded source tokens
        if self._reader.batch_tokens:  # a limit set by the user is observed exactly
            return max(1, budget // columns)
        # A batch of long sentences may exceed the budget by a factor of at most `_max_overshoot` to get `_min_rows`
        # rows. Very short sentences count as longer, so that a batch does not contain too many of them.
        length_for_min_rows = min(columns, budget // self._min_rows)
        counted_length = max(
            length_for_min_rows, columns // self._max_overshoot, inputs.MIN_COUNTED_LENGTH
        )
        slots = budget // counted_length
        slots = slots * TYPICAL_BEAM[0] // min(self._hypotheses, TYPICAL_BEAM[0])
        slots //= max(1, self._hypotheses // TYPICAL_BEAM[-1])
        if self._max_sentences is not None:
            slots = min(slots, self._max_sentences)
        return max(1, slots)

    def _wait_for_lines(self) -> None:
        """Waits for lines. The last decoder to become idle waits `IDLE_SECONDS`, and then stops all decoders."""
        self._idle += 1
        while not (self._windows or self._is_closed or self._is_over):
            is_last = self._idle == self._running
            has_changed = self._changed.wait(IDLE_SECONDS if is_last else None)
            if not has_changed and not self._windows:
                self._is_over = True
                self._changed.notify_all()
        self._idle -= 1

    def _drop_empty_window(self) -> None:
        if not self._windows[0].jobs:
            self._windows.popleft()


class SingleBatch:
    """A `JobSource` that supplies all of its jobs as a single batch."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs

    def next_batch(self) -> list[Job]:
        """Returns all jobs at the first call, and none afterwards."""
        jobs = self._jobs
        self._jobs = []
        return jobs

    def refill(self, slots: int, columns: int) -> list[Job]:
        """Returns an empty list, since the batch contains all jobs."""
        return []


class _Window:
    """The lines of a window that no decoder has taken yet.

    Args:
        jobs: the window's lines, longest first.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = deque(jobs)
        self.tokens = sum(_counted_tokens(job) for job in jobs)
        """Number of source tokens in `jobs`."""

    @property
    def columns(self) -> int:
        """Length of the longest line, including EOS."""
        return self.jobs[0].source.length + 1

    def take(self) -> Job:
        """Removes and returns the longest line."""
        job = self.jobs.popleft()
        self.tokens -= _counted_tokens(job)
        return job


def _useful_decoders(lines: int, decoders: int) -> int:
    """Returns how many of the decoders are worth using for a number of lines."""
    return max(1, min(decoders, lines // inputs.MIN_SENTENCES_PER_SEARCH))


def _counted_tokens(job: Job) -> int:
    """Returns the number of tokens of a source; an empty prompt counts as one token."""
    return max(1, job.source.length)
