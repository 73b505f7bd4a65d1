"""Batching: decodes the sentences of a source in batches, and returns their results in groups.

The source should supply the longest sentences first. A batch has one slot per sentence, and groups sentences
of similar length. As soon as enough slots are free, waiting sentences take their first step in a batch of their own and
then move into these slots. When no waiting sentence fits, the batch shrinks until all its sentences are finished, and
the next batch begins. If steps are captured as CUDA graphs, the number of slots is fixed and a power of two: some slots
may be free from the start, and the batch does not shrink.

A slot is a row of the batch. Sentences keep their slots until they are finished, unless free slots are removed and the
remaining ones are renumbered. (The slots in `KVCache` are something else: places for the cache entries of a sentence.)
`Engine` decides when sentences come and go, `Slots` tracks which sentence occupies each slot, and the functions at the
end move the rows of a state. What happens in a step is defined in `nmtkit.decoding.beam_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.device import send, trim_malloc
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.decoding import graphs
from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.hypotheses import (
    Integers,
    ResultReader,
    SentenceRecord,
    SentenceResult,
    StepSpan,
    begin_records,
    read_hypotheses,
    record_event,
)
from nmtkit.decoding.search_state import SearchState, can_share_slots, max_tokens, pad_history
from nmtkit.models.abilities import reserve_positions, with_shortlist
from nmtkit.models.base import Decoder

MIN_FREE_SHARE = 1 / 8
"""Minimum share of free slots at which a refill pays off: a refill has a fixed cost, and free slots waste part of every
step."""
CPU_POLL_INTERVAL = 1
"""Number of steps between two polls for finished sentences on a CPU."""
ACCELERATOR_POLL_INTERVAL = 8
"""Number of steps between two polls for finished sentences on CUDA and MPS. A poll makes the host wait for an MPS
device; on CUDA, the host hardly ever waits: see `Slots.move_finished`."""
MANY_SENTENCES = 16
"""Batch size above which freed memory is returned to the system after each batch on a CPU. Otherwise, memory freed by
batches of different sizes would accumulate. Returning memory takes about one percent of such a batch's decoding
time."""

NumberedBatch = tuple[Sequence[int], Batch]
"""Sentence numbers within the whole search, and the sentences themselves as a batch, on any device."""
StepMode = Literal["auto", "eager", "graph"]
"""How steps run on CUDA. `auto` captures them as graphs once that pays off, `graph` captures them immediately, and
`eager` never captures them. Even with `graph`, a batch is decoded without graphs if its sentences cannot share slots
with others, or if they may need more positions than the model has."""


class SentenceSource(Protocol):
    """Supplies an engine with sentences."""

    def next_batch(self) -> NumberedBatch | None:
        """Returns the sentences that begin a new batch, or None if no sentence is left."""
        ...

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns at most `slots` sentences, padded to `columns` source columns, or None if no sentence fits.

        The sentences must be able to share slots: see `can_share_slots`.
        """
        ...


class OneBatch:
    """A source with a single batch."""

    def __init__(self, batch: Batch, numbers: Sequence[int] | None = None) -> None:
        if numbers is None:
            numbers = range(batch.size)
        self._batch: NumberedBatch | None = (numbers, batch)

    def next_batch(self) -> NumberedBatch | None:
        """Returns the batch on the first call and None after that."""
        batch = self._batch
        self._batch = None
        return batch

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns None, since all sentences are in the batch."""
        return None


@dataclass(frozen=True)
class _NewSentences:
    """Sentences that have taken their first step in a batch of their own and have no slots yet."""

    numbers: Sequence[int]
    batch: Batch
    state: SearchState
    """The state after the first step."""
    first_result: StepResult


class Engine:
    """Decodes many sentences with one search.

    Several threads may call `run` at the same time: each batch checks out its captured steps, so no two batches share
    them.

    Args:
        search: the beam search, which includes the model and the settings.
        steps: see `StepMode`.

    Raises:
        RecipeError: `steps` is `graph`, but the steps of this search cannot be captured.
    """

    def __init__(self, search: BeamSearch, steps: StepMode = "auto") -> None:
        obstacle = graphs.find_obstacle(search.device, with_shortlist=search.shortlist is not None)
        if steps == "graph" and obstacle:
            raise RecipeError(f'steps="graph": {obstacle}; use steps="auto" instead')
        self.search = search
        self.steps = steps
        self.device = search.device
        self._may_capture = steps != "eager" and not obstacle
        self._idle_graph_steps: dict[tuple[int, int], graphs.CapturedSteps] = {}
        """Captured steps that no batch is using, keyed by the numbers of slots and source columns; the most recently
        used ones come last. There is at most one entry per shape: if two batches of the same shape ran at once, the
        steps that are checked in last replace the others."""

    @property
    def replayed_steps(self) -> int:
        """Number of steps that replayed a graph, for tests. Graphs that are in use or were dropped do not count."""
        return sum(graph_steps.replayed for graph_steps in self._idle_graph_steps.values())

    # Not inference_mode, since a model may keep tensors from a search, such as position encodings, and use them in
    # training.
    @torch.no_grad()
    def run(self, source: SentenceSource, refill: bool = True) -> Iterator[SentenceResult]:
        """Decodes all sentences of a source, and yields their results.

        Nothing happens before the first result is requested. Results come in groups: whenever the number of finished
        sentences reaches the initial size of the batch, and at the end of the batch. On CUDA, a thread reads the
        results, so a group may come later.

        Args:
            source: the sentences.
            refill: whether waiting sentences take the slots of finished ones, except in batches that cannot share
                slots: see `can_share_slots`. A batch that is not refilled only shrinks, unless its steps are captured
                as graphs, and on a CPU its cache is compacted: see `KVCache.compact`.
        """
        assert not self.search.model.training, (
            "the model is in training mode: call model.eval() first"
        )
        with ResultReader(self.device) as reader:
            while True:
                next_batch = source.next_batch()
                if next_batch is None:
                    break
                numbers, batch = next_batch
                yield from self._decode_batch(
                    numbers, batch, refill_source=source if refill else None, reader=reader
                )
                if self.device.type == "cpu" and len(numbers) > MANY_SENTENCES:
                    trim_malloc()
            yield from reader.drain()

    def _decode_batch(
        self,
        numbers: Sequence[int],
        batch: Batch,
        refill_source: SentenceSource | None,
        reader: ResultReader,
    ) -> Iterator[SentenceResult]:
        """Decodes a batch, and refills its slots with sentences from `refill_source`, unless that is None."""
        n_sentences = len(numbers)
        columns = 0 if batch.inputs is ABSENT else batch.inputs.mask.shape[1]  # source columns
        is_on_cpu = self.device.type == "cpu"
        poll_interval = CPU_POLL_INTERVAL if is_on_cpu else ACCELERATOR_POLL_INTERVAL
        uses_graphs = can_share_slots(batch) and self._may_capture
        if not can_share_slots(batch):
            refill_source = None
        # Compacting the cache requires that all sentences begin together. On other devices, the host would have to
        # wait for it.
        compacts_cache = refill_source is None and is_on_cpu

        # All sentences take their first step, and then get their slots.
        new_sentences = self._begin(numbers, batch, compacts_cache)
        first_state = new_sentences.state
        graph_steps = self._check_out(first_state, batch, columns) if uses_graphs else None
        state = first_state if graph_steps is None else graph_steps.state
        prompt_length = 0 if batch.prompt is None else batch.prompt.shape[1]
        slots = Slots(len(state.sentences.done), self.device, prompt_length)
        self._give_slots(new_sentences, slots, np.arange(n_sentences))

        # Each iteration takes one shared step.
        while True:
            # Number of steps taken by the sentences that began with the batch.
            n_steps = 1 + slots.n_shared_steps
            if n_steps % poll_interval == 0 or slots.has_reached_limit():
                slots.move_finished(state.sentences.done)
                is_over = not slots.live.any()
                # Results are read in groups as large as the batch, since reading sentences one by one is slower.
                if is_over or len(slots.finished) >= n_sentences:
                    yield from reader.submit(slots.take_finished(self.search))
                # A batch whose slots are all free is not refilled: a new batch costs the same, and has only as many
                # columns as its own sentences need.
                if is_over:
                    break
                if refill_source is not None:
                    may_refill_again = self._refill(refill_source, state, slots, columns=columns)
                    if not may_refill_again:
                        refill_source = None  # from now on no sentences are added
                if refill_source is None and graph_steps is None:
                    remove_free_slots(state, slots)
            result = self._take_shared_step(state, graph_steps, slots.n_positions())
            slots.add(result)
        if graph_steps is not None:
            self._check_in(graph_steps, len(slots.live), columns)

    def _begin(
        self, numbers: Sequence[int], batch: Batch, compacts_cache: bool = False
    ) -> _NewSentences:
        """Takes the first step of new sentences."""
        state = self.search.begin(batch)
        state.cache.compacts = compacts_cache
        number = send(torch.tensor(numbers), self.device)  # (B,)
        state.sentences = replace(state.sentences, number=number)
        first_result = self.search.step(state)
        return _NewSentences(numbers=numbers, batch=batch, state=state, first_result=first_result)

    def _give_slots(self, new_sentences: _NewSentences, slots: Slots, free_slots: Integers) -> None:
        """Gives each new sentence one of the free slots `(B,)`."""
        records = begin_records(
            self.search.model,
            new_sentences.batch,
            numbers=new_sentences.numbers,
            limits=new_sentences.state.limits,
            first_result=new_sentences.first_result,
            start=slots.n_shared_steps,
        )
        slots.occupy(free_slots, records)

    def _refill(
        self, source: SentenceSource, state: SearchState, slots: Slots, columns: int
    ) -> bool:
        """Puts waiting sentences into the free slots if enough slots are free.

        Returns whether the source may still have sentences that fit.
        """
        free_slots = np.flatnonzero(~slots.live)  # (free,)
        if len(free_slots) < MIN_FREE_SHARE * len(slots.live):
            return True
        next_batch = source.refill(len(free_slots), columns)
        if next_batch is None:
            return False
        numbers, batch = next_batch
        assert can_share_slots(batch), "these sentences need a new batch"
        new_sentences = self._begin(numbers, batch)
        new_slots = free_slots[: batch.size]  # (M,)
        device_slots = send(torch.from_numpy(new_slots), self.device)  # (M,)
        insert(state, device_slots, new_sentences.state, self.search.model)
        self._give_slots(new_sentences, slots, new_slots)
        return True

    def _take_shared_step(
        self, state: SearchState, graph_steps: graphs.CapturedSteps | None, n_positions: int
    ) -> StepResult:
        """Takes a step with all slots; `n_positions` is the result of `Slots.n_positions`."""
        if graph_steps is not None:
            return graph_steps.step(n_positions)
        # Drop positions that only finished sentences had reached, and cache entries that no hypothesis sees.
        state.cache.truncate(n_positions)
        state.cache.compact()
        return self.search.step(state)

    def _check_out(
        self, first_state: SearchState, batch: Batch, columns: int
    ) -> graphs.CapturedSteps | None:
        """Checks out idle captured steps, or creates new ones, and fills their slots with a batch after its first step.

        Returns None if the model does not have enough positions.
        """
        # A power of two, so that the number of slots is often the same and captured steps can be reused.
        n_slots = 1 << (batch.size - 1).bit_length()
        # If a search is abandoned, the steps that it has checked out are lost.
        graph_steps = self._idle_graph_steps.pop((n_slots, columns), None)
        if graph_steps is not None:
            graph_steps.free_slots()
            slots = torch.arange(batch.size, device=self.device)  # (B,)
            insert(graph_steps.state, slots, first_state, self.search.model)
            return graph_steps
        # One more position, because even the last step advances to the position after its token.
        length = max_tokens(self.search, batch, columns) + 1
        if not reserve_positions(self.search.model, length):
            return None
        return graphs.CapturedSteps(
            self.search, first_state, slots=n_slots, length=length, at_once=self.steps == "graph"
        )

    def _check_in(self, graph_steps: graphs.CapturedSteps, n_slots: int, columns: int) -> None:
        """Makes captured steps available to other batches; drops the least recently used ones if there are too many."""
        self._idle_graph_steps.pop((n_slots, columns), None)  # so that the shape moves to the end
        self._idle_graph_steps[n_slots, columns] = graph_steps
        oldest_shapes = list(self._idle_graph_steps)[: -graphs.MAX_SHAPES]
        for shape in oldest_shapes:
            self._idle_graph_steps.pop(shape, None)  # another thread may have removed it


# ------------------------------------------------------------------------------------------------------------ slots


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


def remove_free_slots(state: SearchState, slots: Slots) -> None:
    """Shrinks the batch to its live slots."""
    live_slots = np.flatnonzero(slots.live)  # (live,)
    if len(live_slots) == len(slots.live):
        return
    order = order_live_slots(live_slots)  # (live,)
    keep_slots(state, order)
    slots.keep_slots(order)


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


def keep_slots(state: SearchState, order: Integers) -> None:
    """Keeps only the slots in `order`, the result of `order_live_slots`, and renumbers them in this order."""
    scores = state.sentences.scores
    width = scores.shape[1]
    device = scores.device
    n_sentences = len(order)
    # Sentences that stay in their slots are not copied. The others move to the slots of removed sentences.
    holes = np.flatnonzero(order != np.arange(n_sentences))  # (M,)
    movers = order[holes]  # (M,)
    host_holes = torch.from_numpy(holes)  # (M,)
    host_movers = torch.from_numpy(movers)  # (M,)
    device_holes = send(host_holes, device)  # (M,)
    device_movers = send(host_movers, device)  # (M,)
    moved_sentences = state.sentences.select(device_movers)
    state.sentences.put(device_holes, moved_sentences)
    moved_hypotheses = state.hypotheses.select(state.hypothesis_rows(device_movers))
    state.hypotheses.put(state.hypothesis_rows(device_holes), moved_hypotheses)
    state.sentences = state.sentences.select(slice(n_sentences))
    state.hypotheses = state.hypotheses.select(slice(n_sentences * width))
    state.cache.compact_batch(host_holes, host_movers, n_sentences)


def insert(state: SearchState, slots: Tensor, other: SearchState, model: Decoder) -> None:
    """Puts the sentences of another state into slots `(M,)` of a state.

    Both states must have taken at least one step, and must have the same number of source columns.
    """
    # Never true for captured steps, whose tensors must not be replaced.
    if len(other.divisors) > len(state.divisors):
        state.divisors = other.divisors

    # The shortlists of the two states differ in size, so both are replaced with a new one for all sentences.
    memory = with_shortlist(model, state.sentences.memory, None)
    sentences = replace(state.sentences, memory=memory)
    new_memory = with_shortlist(model, other.sentences.memory, None)
    new_sentences = replace(other.sentences, memory=new_memory)
    sentences.put(slots, new_sentences)
    if sentences.shortlist_mask is not None:
        memory = with_shortlist(model, sentences.memory, sentences.shortlist_mask)
        sentences = replace(sentences, memory=memory)
    state.sentences = sentences

    new_hypotheses = other.hypotheses
    history = state.hypotheses.history
    if history is not None and new_hypotheses.history is not None:
        padded_history = pad_history(new_hypotheses.history, history.shape[1])  # (M*W,*)
        new_hypotheses = replace(new_hypotheses, history=padded_history)
    state.hypotheses.put(state.hypothesis_rows(slots), new_hypotheses)
    state.cache.insert(slots, other.cache)
