"""The slots of a batch: which sentence occupies each slot, and the step results that have not been read yet.

A slot is a row of the batch. Sentences keep their slots until they are finished, unless free slots are removed and the
remaining ones are renumbered. (The slots in `KVCache` are something else: places for the cache entries of a sentence.)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.hypotheses import (
    SentenceRecord,
    SentenceResult,
    StepSpan,
    read_hypotheses,
    record_event,
)
from nmtkit.decoding.search_state import Integers


class Slots:
    """Tracks the sentences in the slots of a batch, and stores step results until they have been read.

    A sentence takes its first step, step 0, in a batch of new sentences, and then gets a slot. All later steps are
    shared: all slots take them together. Times are numbers of completed shared steps. In this example, slot 0 is
    refilled after three shared steps:

        shared step      0    1    2    3    4
        slot 0           1    2    3    1    2       which of its steps the sentence takes
        slot 1           1    2    3    4    5

    A sentence takes its step t >= 1 in the shared step start + t - 1. The first sentence in slot 0 has start 0 and end
    3, so it took end - start + 1 = 4 steps and has 4 tokens. The second sentence in slot 0 has start 3.

    Args:
        n_slots: number of slots, all of them free.
        device: device of the search. The slots themselves are tracked on the host.
        prompt_length: length of the longest prompt; 0 for a batch whose slots will be refilled.
    """

    def __init__(self, n_slots: int, device: torch.device, prompt_length: int) -> None:
        self.live = np.zeros(n_slots, dtype=bool)  # (B,)
        """Whether each slot has a sentence that is not finished."""
        self.finished: list[SentenceRecord] = []
        """Finished sentences whose results have not been read."""
        self.n_shared_steps = 0
        """Number of shared steps so far."""
        self._sentences: list[SentenceRecord | None] = [None] * n_slots
        self._starts = np.zeros(n_slots, dtype=np.int64)  # (B,)
        """Time at which each slot's sentence got the slot."""
        self._limit_times = np.zeros(n_slots, dtype=np.int64)  # (B,)
        """Time at which each slot's sentence reaches its length limit."""
        self._earliest_start = 0
        """Minimum of `_starts` over the live slots."""
        self._earliest_limit_time = 0
        """Minimum of `_limit_times` over the live slots."""
        self._prompt_length = prompt_length
        self._spans = [StepSpan(start=0, results=[])]
        # CUDA is not available if a test only simulates the device.
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        self._previous_poll: tuple[Tensor, torch.cuda.Event, int] | None = None
        """The flags of the previous poll, the event after which they are on the host, and the time of the poll."""

    def occupy(self, slots: Integers, sentences: Sequence[SentenceRecord]) -> None:
        """Gives free slots `(M,)` to M sentences that have taken their first step."""
        for slot, sentence in zip(slots.tolist(), sentences, strict=True):
            self._sentences[slot] = sentence
        limits = np.array([sentence.limit for sentence in sentences])  # (M,)
        self.live[slots] = True
        self._starts[slots] = self.n_shared_steps
        # The first step, which is not shared, has already written one token.
        self._limit_times[slots] = self.n_shared_steps + limits - 1
        self._update_earliest()

    def add(self, result: StepResult) -> None:
        """Adds the result of a shared step."""
        self._spans[-1].results.append(result)
        self.n_shared_steps += 1

    def has_reached_limit(self) -> bool:
        """Returns whether any live sentence has reached its length limit, and so needs no further step."""
        return self._earliest_limit_time <= self.n_shared_steps

    def move_finished(self, done: Tensor) -> None:
        """Moves to `finished` the sentences that have reached their limits or whose flags `done` `(B,)` are set.

        On CUDA, this uses the flags of the previous call, which have usually been copied to the host by now, so it
        rarely waits for the device.
        """
        is_done, flag_time = self._read_flags(done)  # is_done: (B,)
        is_done = is_done & self.live  # (B,)
        if not self.has_reached_limit() and not is_done.any():
            return
        # A flag counts only if it is newer than the sentence in the slot, because on CUDA, it may belong to the slot's
        # previous sentence. On a CPU, this check is not needed; it only delays sentences that ended in their first step
        # until after the next shared step. Such sentences are rare, so the rule is the same on all devices.
        is_done &= self._starts < flag_time
        reached_limit = (self._limit_times <= self.n_shared_steps) & self.live  # (B,)
        for slot in np.flatnonzero(is_done | reached_limit).tolist():
            sentence = self._sentences[slot]
            assert sentence is not None
            sentence.slot = slot
            # A sentence that refilled a slot and has a limit of 1 has taken a shared step beyond its limit by now. That
            # step does not count.
            sentence.end = min(self.n_shared_steps, int(self._limit_times[slot]))
            self.finished.append(sentence)
            self.live[slot] = False
        self._update_earliest()

    def _read_flags(self, done: Tensor) -> tuple[npt.NDArray[np.bool_], int]:
        """Returns the most recent `done` flags that are on the host, and the time at which they were set."""
        if not self._is_asynchronous:
            flags = done.cpu()  # (B,)
            return flags.numpy(), self.n_shared_steps
        previous_poll = self._previous_poll
        host_flags = torch.empty(done.shape, dtype=torch.bool, pin_memory=True)  # (B,)
        host_flags.copy_(done, non_blocking=True)
        self._previous_poll = (host_flags, record_event(), self.n_shared_steps)
        if previous_poll is None:
            none_done = np.zeros(len(done), dtype=bool)  # (B,)
            return none_done, 0
        flags, event, flag_time = previous_poll  # flags: (B,)
        event.synchronize()
        return flags.numpy(), flag_time

    def _update_earliest(self) -> None:
        never = np.iinfo(np.int64).max
        starts = self._starts[self.live]  # (live,)
        limit_times = self._limit_times[self.live]  # (live,)
        self._earliest_start = int(starts.min(initial=self.n_shared_steps))
        self._earliest_limit_time = int(limit_times.min(initial=never))

    def n_positions(self) -> int:
        """Returns how many positions the next step reads for the live sentence that is furthest along.

        In the example of `Slots`, slot 1 has completed its steps 0 to 5. Its next step reads 7 positions: BOS and 6
        tokens.
        """
        n_steps = 1 + self.n_shared_steps - self._earliest_start
        return 1 + self._prompt_length + n_steps  # BOS, the prompt, and one token for each step

    def keep_slots(self, order: Integers) -> None:
        """Keeps only the slots in `order`, and renumbers them in this order.

        `order` must contain all live slots, so that the earliest start and the earliest limit do not change.
        """
        self._spans.append(StepSpan(start=self.n_shared_steps, results=[], previous_rows=order))
        self.live = self.live[order]  # (B,)
        self._sentences = [self._sentences[slot] for slot in order]
        self._starts = self._starts[order]  # (B,)
        self._limit_times = self._limit_times[order]  # (B,)
        self._previous_poll = None  # its flags are in the old order

    def take_finished(self, search: BeamSearch) -> Callable[[], list[SentenceResult]]:
        """Empties `finished`; returns a function that reads the hypotheses of the sentences that were in it.

        The function may be called later and in another thread. `search` is the search that took the steps.
        """
        finished = self.finished
        self.finished = []
        # Copies, since later steps append results and old results are dropped.
        spans = [replace(span, results=list(span.results)) for span in self._spans]
        self._drop_old_results()

        def read() -> list[SentenceResult]:
            if not finished:
                return []
            hypotheses = read_hypotheses(
                finished,
                spans,
                n_best=search.n_best,
                vocabulary_size=search.model.sizes["tgt"],
                config=search.config,
            )
            numbers = [sentence.number for sentence in finished]
            return list(zip(numbers, hypotheses, strict=True))

        return read

    def _drop_old_results(self) -> None:
        """Drops the results of shared steps before the earliest start of a live sentence."""
        while len(self._spans) > 1 and self._spans[1].start <= self._earliest_start:
            del self._spans[0]
        span = self._spans[0]
        n_old = max(0, self._earliest_start - span.start)
        n_dropped = min(n_old, len(span.results))
        span.start += n_dropped
        span.results = span.results[n_dropped:]


def order_live_slots(live_slots: Integers) -> Integers:
    """Orders the live slots so that as few of them as possible move when the others are removed.

    `live_slots` are the numbers of the live slots in ascending order. With n live slots, those below n stay where they
    are, and the others fill the holes. For example, if slots 1, 3 and 4 of 5 slots are live, the order is 3, 1, 4: only
    slot 1 stays.
    """
    n_live = len(live_slots)
    order = np.arange(n_live)  # (n,)
    holes = np.setdiff1d(order, live_slots, assume_unique=True)  # (M,)
    order[holes] = live_slots[live_slots >= n_live]
    return order
