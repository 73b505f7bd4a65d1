"""The queue between encoding and decoding, and the jobs in it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition, RLock
from typing import NamedTuple, Protocol

import torch

from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.inference import inputs
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.inputs import SourceLine, TextModel
from nmtkit.inference.result import Translation

IDLE_SECONDS = 0.1
"""Seconds that idle decoders wait for more lines before they stop."""
TYPICAL_BEAM = range(4, 17)
"""Beam sizes for which the token budget of a batch is designed; a batch has fewer sentences if the beam size is larger,
and more if it is smaller."""
SIMILAR_SHARE = 0.75
"""A sentence may fill a free slot in a batch if its length is at least this share of the batch's width."""
MAX_WINDOWS = 3
"""Maximum number of windows in the queue, including windows whose results have only been written in part."""
MAX_CHARACTERS = 1 << 23
"""Maximum number of characters, or rows of features, in the queue if it holds more than one window."""


@dataclass
class Job:
    """A line on its way from reading to writing; each stage fills in its result."""

    number: int
    """Position in the input, counted from 0."""
    request: Request
    """The line as it was read, with constraints on its translation."""
    source: SourceLine = field(init=False, repr=False)
    """Result of the encoding stage."""
    hypotheses: Sequence[Hypothesis] | None = None
    """Result of the decoding stage, best first."""
    unsupported: str = ""
    """Why the external engine could not decode the line, so that nmtkit's own did; empty otherwise."""
    translations: list[Translation] | None = None
    """Result of the writing stage; a single empty translation for an empty line."""

    @property
    def is_finished(self) -> bool:
        """Whether the job has been decoded, or need not be."""
        return self.hypotheses is not None or self.translations is not None


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


class JobQueue:
    """Holds jobs from the time they are encoded until they are written. The queue is bounded: `put` waits.

    Decoders take the jobs window by window, and longest line first within a window. Several decoders may take jobs
    while lines are being added. The more hypotheses a sentence has, the fewer sentences a batch contains. The writer
    takes finished jobs in the order of the input.

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
        self._batch_budget = reader.batch_budget  # padded source tokens
        self._is_exact_budget = bool(reader.batch_tokens)  # whether the user has set the budget
        self._min_rows = inputs.MIN_ROWS.get(device.type, 32)
        self._max_overshoot = inputs.MAX_OVERSHOOT.get(device.type, inputs.MAX_OVERSHOOT["cpu"])
        if max_sentences is not None:
            self._max_overshoot = 1
        self._decoders = decoders
        self._spare_decoders = spare_decoders
        self._hypotheses = hypotheses
        self._max_sentences = max_sentences
        lock = RLock()  # guards all attributes below
        self._changed = Condition(lock)  # there are new jobs, or decoders have to stop
        self._has_room = Condition(lock)
        self._windows: deque[_Window] = deque()
        self._unwritten: deque[Job] = deque()  # in the order of the input
        self._unwritten_windows: deque[_UnwrittenWindow] = deque()
        self._has_new_window = False  # whether a window was added since the last `wait_for_window`
        self._is_closed = False
        self._is_over = False  # all decoders are idle and have to stop
        self._running = 0  # number of decoders that were started
        self._idle = 0  # number of decoders that wait for a batch
        self.lines_at_start = 0
        """Number of lines in the queue at the last call to `start_decoders`."""

    def put(self, jobs: Sequence[Job]) -> bool:
        """Adds a window of encoded jobs as soon as there is room for it; returns False if the queue was closed."""
        to_decode = [job for job in jobs if not job.is_finished]
        to_decode.sort(key=lambda job: -job.source.length)
        characters = sum(_characters(job) for job in jobs)
        with self._changed:
            self._has_room.wait_for(lambda: self._is_closed or self._fits(characters))
            if self._is_closed:
                return False
            if jobs:
                self._unwritten.extend(jobs)
                self._unwritten_windows.append(_UnwrittenWindow(jobs[-1].number, characters))
            if to_decode:
                self._windows.append(_Window(to_decode))
            self._has_new_window = True
            self._changed.notify_all()
            return True

    def take_finished(self) -> list[Job]:
        """Removes and returns the jobs up to the first one that is not finished."""
        finished = []
        with self._changed:
            while self._unwritten and self._unwritten[0].is_finished:
                finished.append(self._unwritten.popleft())
            if finished:
                last = finished[-1].number
                while self._unwritten_windows and self._unwritten_windows[0].last <= last:
                    self._unwritten_windows.popleft()
                self._has_room.notify_all()
        return finished

    def close(self, drop: bool = False) -> None:
        """Closes the queue; `drop` also discards the lines in it."""
        with self._changed:
            self._is_closed = True
            if drop:
                self._windows.clear()
            self._changed.notify_all()
            self._has_room.notify_all()

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
        budget = self._batch_budget
        if self._is_exact_budget:
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

    def _fits(self, characters: int) -> bool:
        """Returns whether there is room for another window; an empty queue has room for a window of any size."""
        if not self._unwritten_windows:
            return True
        total = characters + sum(window.characters for window in self._unwritten_windows)
        return total <= MAX_CHARACTERS and len(self._unwritten_windows) < MAX_WINDOWS

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


class _UnwrittenWindow(NamedTuple):
    """A window with jobs that have not been taken for writing."""

    last: int
    """Number of the window's last job."""
    characters: int
    """Number of characters in the window, or of rows of features."""


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


def _characters(job: Job) -> int:
    """Returns the number of characters of a line, or its number of rows of features."""
    return len(job.request.source)
