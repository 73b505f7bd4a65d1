"""The search engine: keeps the slots of a batch filled, and returns sentences as they are finished.

Sentences come from a source, longest first. A batch has one slot per sentence, and its sentences are of similar length.
As soon as enough slots are free, waiting sentences make their first step in a batch of their own and then take these
slots. When no waiting sentence fits, the batch shrinks until all its sentences are finished, and the next batch begins.
`nmtkit.decoding.beam_search` defines what happens in a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from nmtkit.core.device import send, trim_malloc
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.decoding import graphs
from nmtkit.decoding.beam_search import NO_TOKEN_CLASSES, BeamSearch, StepResult, TokenClasses
from nmtkit.decoding.hypotheses import (
    Hypothesis,
    ResultReader,
    SentenceRecord,
    SentenceResult,
    StepSpan,
    read_hypotheses,
    record_event,
)
from nmtkit.decoding.search_state import Integers, SearchState
from nmtkit.decoding.settings import SearchConfig
from nmtkit.models.abilities import memory_lengths, reserve_positions
from nmtkit.models.base import Decoder

MIN_FREE_SHARE = 1 / 8
"""Minimum share of free slots for a refill. Each refill has a fixed cost, and each free slot wastes a part of every
step."""
CPU_POLLS_EVERY = 1
ACCELERATOR_POLLS_EVERY = 8
"""Steps between two polls for finished sentences. On CUDA a poll reads the flags of the previous poll."""
MANY_SENTENCES = 16
"""Batch size above which freed memory is returned to the system after each batch on a CPU. Otherwise batches of
different sizes would pile up memory. Returning it takes about one percent of the decoding time of such a batch."""

NumberedBatch = tuple[Sequence[int], Batch]
"""Sentence numbers within the whole search, and the sentences themselves as a batch, on any device."""
StepMode = Literal["auto", "eager", "graph"]
"""How steps run on CUDA. `auto` captures them as graphs once that pays off, `graph` captures them the first time, and
`eager` never captures them."""


def require_graph_support(steps: StepMode, device: torch.device, with_shortlist: bool) -> None:
    """Raises a RecipeError if `steps` requires graphs but the device or the shortlist rules them out.

    A shortlist changes the size of the output layer from batch to batch.
    """
    if steps != "graph":
        return
    if with_shortlist:
        raise RecipeError(
            "engine graph: steps with a shortlist cannot be captured; remove one of the two"
        )
    if not graphs.supports_cuda_graphs(device):
        raise RecipeError(
            f"engine graph: CUDA graphs need a CUDA device, and this is {device}; remove it"
        )


class SentenceSource(Protocol):
    """Supplies an engine with sentences."""

    def next_batch(self) -> NumberedBatch | None:
        """Returns the sentences that begin a new batch, or None if no sentence is left."""
        ...

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns at most `slots` sentences, padded to `columns` source columns, or None if no sentence fits.

        They must not have prompts, prefixes or terms.
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


class Engine:
    """Decodes many sentences with one search.

    Args:
        search: the model, the settings and what to return.
        steps: see `StepMode`.
    """

    def __init__(self, search: BeamSearch, steps: StepMode = "auto") -> None:
        require_graph_support(steps, search.device, search.shortlist is not None)
        self.search = search
        self.steps = steps
        self.device = search.device
        self._idle_graph_steps: dict[tuple[int, int], graphs.CapturedSteps] = {}
        """Captured steps that no batch is using, by number of slots and of source columns; the most recently used come
        last."""

    @property
    def replayed_steps(self) -> int:
        """Number of steps that replayed a graph; graphs that are in use or no longer exist are not counted."""
        return sum(graph_steps.replayed for graph_steps in self._idle_graph_steps.values())

    # not inference_mode: tensors that a model keeps from a search (positions) must still train
    @torch.no_grad()
    def run(self, source: SentenceSource, refill: bool = True) -> Iterator[SentenceResult]:
        """Searches for all sentences of a source, and yields each as soon as it is finished.

        With `refill`, waiting sentences take the slots of finished ones, except in batches with prompts, prefixes or
        terms. Without it, the cache is compacted on a CPU.
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
                yield from self._decode_batch(numbers, batch, source if refill else None, reader)
                if self.device.type == "cpu" and len(numbers) > MANY_SENTENCES:
                    trim_malloc()
            yield from reader.drain()

    def _decode_batch(
        self,
        numbers: Sequence[int],
        batch: Batch,
        source: SentenceSource | None,
        reader: ResultReader,
    ) -> Iterator[SentenceResult]:
        """Decodes a batch, and the sentences of `source` that take its slots; None: its slots are not refilled."""
        n_sentences = len(numbers)
        columns = 0 if batch.inputs is ABSENT else batch.inputs.mask.shape[1]  # source columns
        is_on_cpu = self.device.type == "cpu"
        polls_every = CPU_POLLS_EVERY if is_on_cpu else ACCELERATOR_POLLS_EVERY
        refill_source = source if _is_plain(batch) else None
        uses_graphs = _is_plain(batch) and self._may_use_graphs()
        # Refilling and compacting the cache exclude each other: the cache may be compacted only if all sentences began
        # together.
        compacts_cache = source is None and is_on_cpu and not uses_graphs

        # The first step, after which the sentences get their slots.
        first_state, first_result = self._start(numbers, batch, compacts_cache)
        graph_steps = self._check_out(first_state, batch, columns) if uses_graphs else None
        state = first_state if graph_steps is None else graph_steps.state
        slots = Slots(len(state.sentences.done), self.device)
        self._occupy(slots, np.arange(n_sentences), numbers, batch, first_state, first_result)

        # Each iteration makes one shared step. `steps_made` is the number of steps of the sentences that began with the
        # batch, including their first.
        for steps_made in count(1):
            is_poll_time = steps_made % polls_every == 0 or slots.has_reached_limit()
            found_finished = is_poll_time and slots.poll_finished(state.sentences.done)
            # Slots can be free before any sentence is finished: graphs round the number of slots up.
            may_refill = is_poll_time and refill_source is not None
            if found_finished or may_refill:
                is_over = not slots.live.any()
                # Read results in groups as large as the batch; reading sentences one by one is slower.
                if is_over or len(slots.finished) >= n_sentences:
                    yield from reader.submit(slots.take_finished(self.search))
                if is_over:
                    break
                if refill_source is not None:
                    has_fitting = self._refill(refill_source, state, slots, columns)
                    if not has_fitting:
                        refill_source = None  # from now on the batch only shrinks
                if refill_source is None and graph_steps is None:
                    _drop_free_slots(state, slots)

            n_positions = slots.n_positions()
            if graph_steps is not None:
                result = graph_steps.step(n_positions)
            else:
                # Drop positions that only finished sentences had reached, and entries that no hypothesis sees.
                state.cache.truncate(n_positions)
                state.cache.compact()
                result = self.search.step(state)
            slots.add(result)
        if graph_steps is not None:
            self._check_in(graph_steps, len(slots.live), columns)

    def _refill(
        self, source: SentenceSource, state: SearchState, slots: "Slots", columns: int
    ) -> bool:
        """Puts waiting sentences into the free slots, if these are enough; returns False if no sentence fits."""
        free_slots = np.flatnonzero(~slots.live)
        if len(free_slots) < MIN_FREE_SHARE * len(slots.live):
            return True
        next_batch = source.refill(len(free_slots), columns)
        if next_batch is None:
            return False
        numbers, batch = next_batch
        assert _is_plain(batch), "prompts, prefixes and terms need another batch"
        new_slots = free_slots[: batch.size]  # (M,)
        first_state, first_result = self._start(numbers, batch)
        device_slots = send(torch.from_numpy(new_slots), self.device)  # (M,)
        state.insert(device_slots, first_state, self.search.model)
        self._occupy(slots, new_slots, numbers, batch, first_state, first_result)
        return True

    def _start(
        self, numbers: Sequence[int], batch: Batch, compacts_cache: bool = False
    ) -> tuple[SearchState, StepResult]:
        """Makes the first step of new sentences; returns their state after it, and its result."""
        state = self.search.begin(batch)
        state.cache.compacts = compacts_cache
        number = send(torch.tensor(numbers), self.device)  # (B,)
        state.sentences = replace(state.sentences, number=number)
        result = self.search.step(state)
        return state, result

    def _occupy(
        self,
        slots: "Slots",
        new_slots: Integers,
        numbers: Sequence[int],
        batch: Batch,
        first_state: SearchState,
        first_result: StepResult,
    ) -> None:
        """Gives slots to the sentences of a batch, which have made their first step."""
        model = self.search.model
        lengths = memory_lengths(model, batch).tolist()
        records = []
        for row, number in enumerate(numbers):
            record = SentenceRecord(
                number=number,
                memory_length=lengths[row],
                limit=first_state.limits[row],
                extended_source=batch.inputs.copy.extended[row] if model.config.copies else None,
                first_result=first_result,
                first_row=row,
                start=slots.n_shared_steps,
            )
            records.append(record)
        # The cache also counts BOS, and the first token, which the next step reads.
        slots.occupy(new_slots, records, prompt_length=first_state.cache.length - 2)

    def _may_use_graphs(self) -> bool:
        """Whether steps may be captured as graphs; not with a shortlist, which changes the size of the output layer."""
        if self.steps == "eager" or self.search.shortlist is not None:
            return False
        return graphs.supports_cuda_graphs(self.device)

    def _check_out(
        self, first_state: SearchState, batch: Batch, columns: int
    ) -> graphs.CapturedSteps | None:
        """Checks out captured steps, or makes new ones, and fills in the sentences of a batch after their first step.

        Returns None if the model does not have enough positions.
        """
        # A power of two, so that few different numbers of slots occur and captured steps can be reused.
        n_slots = 1 << (batch.size - 1).bit_length()
        # Removed while in use, so that two searches never share it.
        graph_steps = self._idle_graph_steps.pop((n_slots, columns), None)
        if graph_steps is not None:
            graph_steps.fill(first_state)
            return graph_steps
        # the last step also moves on to the next position
        length = self.search.max_tokens(batch, columns) + 1
        if not reserve_positions(self.search.model, length):
            return None
        return graphs.CapturedSteps(
            self.search, first_state, slots=n_slots, length=length, at_once=self.steps == "graph"
        )

    def _check_in(self, graph_steps: graphs.CapturedSteps, n_slots: int, columns: int) -> None:
        """Makes captured steps available to other batches; drops the least recently used if there are too many."""
        self._idle_graph_steps[n_slots, columns] = graph_steps
        oldest = list(self._idle_graph_steps)[: -graphs.MAX_SHAPES]
        for shape in oldest:
            self._idle_graph_steps.pop(shape, None)  # another thread may have removed it


class Slots:
    """Tracks the sentences in the slots of a batch, and keeps the results of steps until they are read; on the CPU.

    A sentence makes its first step, step 0, in a batch of new sentences and then takes its slot. All later steps are
    shared: all slots make them together. All times are counts of the shared steps made so far. For example, slot 0 is
    refilled after three shared steps:

        shared step      0    1    2    3    4
        slot 0           1    2    3    1    2       the step that its sentence makes
        slot 1           1    2    3    4    5

    A sentence makes its step t >= 1 in the shared step start + t - 1. The first sentence in slot 0 has start 0 and end
    3, so it made end - start + 1 = 4 steps and has 4 tokens. The second sentence in slot 0 has start 3.
    """

    def __init__(self, n_slots: int, device: torch.device) -> None:
        no_rows = np.zeros(0, dtype=np.int64)
        self.live = np.zeros(n_slots, dtype=bool)
        """Whether each slot has a sentence that is not finished."""
        self.finished: list[SentenceRecord] = []
        """Finished sentences whose results have not been read."""
        self.n_shared_steps = 0
        """Number of shared steps so far."""
        self._sentences: list[SentenceRecord | None] = [None] * n_slots
        self._start = np.zeros(n_slots, dtype=np.int64)  # when each slot's sentence took it
        self._limit_time = np.zeros(n_slots, dtype=np.int64)  # when it reaches its length limit
        self._earliest_start = 0  # among the live slots
        self._earliest_limit_time = 0  # among the live slots
        self._longest_prompt = 0  # zero in a refilled batch
        self._spans = [StepSpan(start=0, previous_rows=no_rows, results=[])]
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        # The flags of the previous poll, the event after which they are on the host, and the time of the poll.
        self._previous_poll: tuple[Tensor, torch.cuda.Event, int] | None = None

    def occupy(
        self, slots: Integers, sentences: Sequence[SentenceRecord], prompt_length: int
    ) -> None:
        """Gives slots to sentences that have made their first step; the longest prompt has `prompt_length` tokens."""
        for slot, sentence in zip(slots.tolist(), sentences, strict=True):
            self._sentences[slot] = sentence
        limits = np.array([sentence.limit for sentence in sentences])
        self.live[slots] = True
        self._start[slots] = self.n_shared_steps
        # -1: the first token has been written before any shared step.
        self._limit_time[slots] = self.n_shared_steps + limits - 1
        self._longest_prompt = prompt_length
        self._update_earliest()

    def add(self, result: StepResult) -> None:
        """Adds the result of a shared step."""
        self._spans[-1].results.append(result)
        self.n_shared_steps += 1

    def has_reached_limit(self) -> bool:
        """Returns whether any live sentence has reached its length limit, and so needs no further step."""
        return self._earliest_limit_time <= self.n_shared_steps

    def poll_finished(self, done: Tensor) -> bool:
        """Moves sentences to `finished` that have reached their limits or whose flags `done` `(B,)` are set.

        Returns whether it found any. Polling never waits for a GPU, since it reads the flags of the previous poll.
        """
        is_done, flag_time = self._read_flags(done)
        is_done = is_done & self.live
        if not self.has_reached_limit() and not is_done.any():
            return False
        # Flags on a GPU may be older than the sentence in the slot. On a CPU this only delays sentences that ended in
        # the first step of a batch: they are finished after its first shared step.
        is_done &= self._start < flag_time
        reached_limit = (self._limit_time <= self.n_shared_steps) & self.live
        finished_slots = np.flatnonzero(is_done | reached_limit).tolist()
        for slot in finished_slots:
            sentence = self._sentences[slot]
            assert sentence is not None
            sentence.slot = slot
            sentence.end = min(self.n_shared_steps, int(self._limit_time[slot]))
            self.finished.append(sentence)
            self.live[slot] = False
        self._update_earliest()
        return bool(finished_slots)

    def _read_flags(self, done: Tensor) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
        """Returns the most recent `done` flags that are on the host, and the time they are from."""
        if not self._is_asynchronous:
            flags = done.cpu()
            return flags.numpy(), self.n_shared_steps
        previous_poll = self._previous_poll
        host_flags = torch.empty(done.shape, dtype=torch.bool, pin_memory=True)  # (B,)
        host_flags.copy_(done, non_blocking=True)
        self._previous_poll = (host_flags, record_event(), self.n_shared_steps)
        if previous_poll is None:
            none_done = np.zeros(len(done), dtype=bool)
            return none_done, 0
        flags, event, flag_time = previous_poll
        event.synchronize()
        return flags.numpy(), flag_time

    def _update_earliest(self) -> None:
        never = np.iinfo(np.int64).max
        starts = self._start[self.live]
        limit_times = self._limit_time[self.live]
        self._earliest_start = int(starts.min(initial=self.n_shared_steps))
        self._earliest_limit_time = int(limit_times.min(initial=never))

    def n_positions(self) -> int:
        """Returns how many positions the next step reads for the live sentence that is furthest along.

        In the example of `Slots`, slot 1 has made its steps 0 to 5. Its next step reads 7 positions: BOS and 6 tokens.
        """
        n_steps = 1 + self.n_shared_steps - self._earliest_start
        return 1 + self._longest_prompt + n_steps  # BOS, the prompt, and one token for each step

    def compact(self, order: Integers) -> None:
        """Keeps only the slots in `order`, and renumbers them in this order."""
        self._spans.append(StepSpan(start=self.n_shared_steps, previous_rows=order, results=[]))
        self.live = self.live[order]
        self._sentences = [self._sentences[slot] for slot in order]
        self._start = self._start[order]
        self._limit_time = self._limit_time[order]
        self._previous_poll = None  # its flags are in the old order

    def take_finished(self, search: BeamSearch) -> Callable[[], list[SentenceResult]]:
        """Removes all finished sentences; returns a function that reads their hypotheses and may be called later."""
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


def beam_search(
    model: Decoder,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    token_classes: TokenClasses = NO_TOKEN_CLASSES,
) -> list[list[Hypothesis]]:
    """Translates every sentence of a batch.

    `BeamConfig.stop` decides when the search of a sentence ends, and `BeamConfig.at_limit` what happens to hypotheses
    that reach the length limit: they are returned unfinished, after all finished ones (`behind`) or ranked together
    with them (`compete`), or they are forced to end with EOS (`end`). With G `diversity_groups`, each group is a beam
    of K/G hypotheses that stops independently of the others.

    Sampling draws hypotheses instead. The finished ones come first, followed by those cut at the length limit. Both are
    sorted by score, which uses the model's own probabilities, before temperature and truncation.

    If the batch has a `prompt`, hypotheses continue it. The prompt is read in one pass if the model supports that. It
    is not scored, and does not count towards lengths and limits. But its n-grams are not repeated, and repeating its
    tokens incurs the repetition penalty.

    Args:
        model: any model, in eval mode.
        batch: the sentences, on the model's device; its targets are ignored.
        config: the search settings.
        n_best: hypotheses to return for each sentence.
        need_attention: whether to return attention and p_gen.
        prefix: the ids that each translation must begin with `(B,P)`, padded on the right with PAD. Their
            log-probabilities count towards the score. A prefix that ends with EOS is a complete translation, which is
            only scored.
        token_classes: see `BeamSearch`.

    Returns:
        The hypotheses of each sentence, best first: at least one, and fewer than `n_best` only if no more exist.
    """
    if prefix is not None:
        batch = replace(batch, prefix=prefix)
    search = BeamSearch(
        model, config, n_best=n_best, need_attention=need_attention, token_classes=token_classes
    )
    engine = Engine(search, steps="eager")
    hypotheses = dict(engine.run(OneBatch(batch), refill=False))
    return [hypotheses[number] for number in range(batch.size)]


def _is_plain(batch: Batch) -> bool:
    """Whether the batch has no prompt, prefix or terms, so that other sentences can take its slots."""
    has_prompt = batch.prompt is not None and bool(batch.prompt.shape[1])
    return not has_prompt and batch.prefix is None and batch.terms is None


def _drop_free_slots(state: SearchState, slots: Slots) -> None:
    """Shrinks the batch to its live slots."""
    live_slots = np.flatnonzero(slots.live)
    if len(live_slots) == len(slots.live):
        return
    order = compaction_order(live_slots)
    state.compact(order)
    slots.compact(order)


def compaction_order(live: Integers) -> Integers:
    """Returns the live slots in an order that moves as few of them as possible.

    With n live slots, those below n stay where they are, and the others fill the holes. For example, of 5 slots with
    the live ones 1, 3 and 4, the order is 3, 1, 4: only slot 1 stays.
    """
    order = np.arange(len(live))
    holes = np.setdiff1d(order, live, assume_unique=True)
    order[holes] = live[live >= len(live)]
    return order
