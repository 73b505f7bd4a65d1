"""The search engine: keeps the slots of a batch filled, and returns sentences as they are finished.

Sentences come from a source, longest first. A batch holds sentences of nearly one length. As soon as enough of its
slots are free, waiting sentences take them, after a first step in a batch of their own. When none fits, the batch
shrinks slot by slot, and the next one begins. `nmtkit.decoding.beam_search` defines what happens in a step.
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
"""Share of free slots from which they are refilled: a refill costs a little, and a free slot costs a step."""
CPU_POLLS_EVERY = 1
ACCELERATOR_POLLS_EVERY = 8
"""Steps between two polls for finished sentences; on an accelerator a poll reads the flags of the previous poll."""
MANY_SENTENCES = 16
"""Batch size above which a CPU returns freed memory to the system after a batch. Batches of different sizes would
otherwise pile up memory; returning it takes about one percent of the time of such a batch."""

NumberedBatch = tuple[Sequence[int], Batch]
"""The numbers of some sentences within a search, and the sentences as a batch on any device."""
StepMode = Literal["auto", "eager", "graph"]
"""How steps run on CUDA: captured as graphs once that pays; never captured; captured from the first step on."""


def require_graph_support(steps: StepMode, device: torch.device, with_shortlist: bool) -> None:
    """Raises a RecipeError for graphs on a device without them, or with a shortlist, which resizes the output layer."""
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
    """The source that an engine takes sentences from."""

    def next_batch(self) -> NumberedBatch | None:
        """Returns the sentences of a new batch, which gets a slot for each; None if no sentence is left."""
        ...

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns at most `slots` sentences, padded to this number of source columns; None if none fits.

        They have no prompt, prefix and terms.
        """
        ...


class OneBatch:
    """A source of one batch."""

    def __init__(self, batch: Batch, numbers: Sequence[int] | None = None) -> None:
        if numbers is None:
            numbers = range(batch.size)
        self._batch: NumberedBatch | None = (numbers, batch)

    def next_batch(self) -> NumberedBatch | None:
        """Returns the batch in the first call, then None."""
        batch = self._batch
        self._batch = None
        return batch

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns None: all sentences are in the batch."""
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
        self._captured: dict[tuple[int, int], graphs.CapturedSteps] = {}
        """Captured steps that no search uses now, by slots and source columns; the least recently used are dropped."""

    @property
    def replayed_steps(self) -> int:
        """Number of steps that replayed a capture, among the captures that still exist."""
        return sum(captured.replayed for captured in self._captured.values())

    # not inference_mode: tensors that a model keeps from a search (positions) must still train
    @torch.no_grad()
    def run(self, source: SentenceSource, refill: bool = True) -> Iterator[SentenceResult]:
        """Searches for all sentences of a source, and yields each as soon as it is finished.

        With `refill`, waiting sentences take the slots of finished ones, unless these have a prompt, a prefix or
        constraints. Without it, a CPU compacts its cache.
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
        """Decodes a batch, and the sentences that take its slots."""
        size = len(numbers)
        columns = 0 if batch.inputs is ABSENT else batch.inputs.mask.shape[1]  # of the sources
        is_on_cpu = self.device.type == "cpu"
        polls_every = CPU_POLLS_EVERY if is_on_cpu else ACCELERATOR_POLLS_EVERY
        may_refill = source is not None and _is_plain(batch)
        captures = _is_plain(batch) and self._may_capture()
        compacts_cache = source is None and is_on_cpu and not captures

        # The first step, after which the sentences get their slots.
        first_state, first_result = self._start(numbers, batch, compacts_cache)
        captured = self._capture(first_state, batch, columns) if captures else None
        state = first_state if captured is None else captured.state
        slots = Slots(len(state.sentences.done), self.device)
        self._occupy(slots, np.arange(size), numbers, batch, first_state, first_result)

        for step in count(1):
            may_have_free = False
            if step % polls_every == 0 or slots.is_due():
                has_finished = slots.poll_finished(state.sentences.done)
                # some slots may be free from the start
                may_have_free = has_finished or source is not None
            if may_have_free:
                is_over = not slots.live.any()
                # reading few sentences at a time costs more
                if is_over or len(slots.finished) >= size:
                    yield from reader.submit(slots.take_finished(self.search))
                if is_over:
                    break
                free_slots = np.flatnonzero(~slots.live)
                has_enough_free = len(free_slots) >= MIN_FREE_SHARE * len(slots.live)
                if may_refill and source is not None and has_enough_free:
                    new_sentences = source.refill(len(free_slots), columns)
                    may_refill = self._refill(state, slots, free_slots, new_sentences)
                if len(free_slots) and not may_refill and captured is None:
                    live_slots = np.flatnonzero(slots.live)
                    order = compaction_order(live_slots)
                    state.compact(order)
                    slots.compact(order)
            if captured is not None:
                slots.add(captured.step(slots.length()))
            else:
                state.cache.truncate(slots.length())
                state.cache.compact()
                slots.add(self.search.step(state))
        if captured is not None:
            self._keep(captured, len(slots.live), columns)

    def _refill(
        self,
        state: SearchState,
        slots: "Slots",
        free_slots: Integers,
        next_batch: NumberedBatch | None,
    ) -> bool:
        """Puts sentences into free slots; returns whether there were any."""
        if next_batch is None:
            return False
        numbers, batch = next_batch
        assert _is_plain(batch), "prompts, prefixes and terms need another batch"
        new_slots = free_slots[: batch.size]
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
        """Records which slots the sentences of a batch have taken, after their first step."""
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
                start=slots.clock,
            )
            records.append(record)
        # The cache also counts BOS, and the position that the next step reads.
        slots.occupy(new_slots, records, prompt_length=first_state.cache.length - 2)

    def _may_capture(self) -> bool:
        """Whether steps may be captured. A shortlist changes the size of the output layer."""
        if self.steps == "eager" or self.search.shortlist is not None:
            return False
        return graphs.supports_cuda_graphs(self.device)

    def _capture(
        self, first_state: SearchState, batch: Batch, columns: int
    ) -> graphs.CapturedSteps | None:
        """Fixed slots that begin with the sentences of a batch; None if steps cannot be captured."""
        # A power of two: with few different numbers of slots, captures can be used again.
        n_slots = 1 << (batch.size - 1).bit_length()
        captured = self._captured.pop((n_slots, columns), None)
        if captured is not None:
            captured.fill(first_state)
            return captured
        # a step also moves on to the next position
        length = self.search.max_tokens(batch, columns) + 1
        if not reserve_positions(self.search.model, length):
            return None
        return graphs.CapturedSteps(
            self.search, first_state, slots=n_slots, length=length, at_once=self.steps == "graph"
        )

    def _keep(self, captured: graphs.CapturedSteps, n_slots: int, columns: int) -> None:
        self._captured[n_slots, columns] = captured
        oldest = list(self._captured)[: -graphs.MAX_SHAPES]
        for shape in oldest:
            self._captured.pop(shape, None)  # another thread may have removed it


class Slots:
    """The sentences in the slots of a batch, and the results of steps until they are read; on the CPU.

    Time is counted in steps of the batch, of which the first is step 0.
    """

    def __init__(self, n_slots: int, device: torch.device) -> None:
        no_rows = np.zeros(0, dtype=np.int64)
        self.live = np.zeros(n_slots, dtype=bool)
        """Slots with a sentence that is not finished."""
        self.finished: list[SentenceRecord] = []
        """Finished sentences that have not been read."""
        self.clock = 0
        """Number of steps so far."""
        self._sentences: list[SentenceRecord | None] = [None] * n_slots
        self._start = np.zeros(n_slots, dtype=np.int64)  # when the sentence of each slot began
        self._due = np.zeros(n_slots, dtype=np.int64)  # when it reaches its length limit
        self._earliest_due = 0  # among the live slots
        self._earliest_start = 0  # among the live slots
        self._longest_prompt = 0  # sentences with prompts all begin together
        self._spans = [StepSpan(start=0, previous_rows=no_rows, results=[])]
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        # The flags of the previous poll, the event after which they are on the host, and the number of steps before.
        self._previous_poll: tuple[Tensor, torch.cuda.Event, int] | None = None

    def occupy(
        self, slots: Integers, sentences: Sequence[SentenceRecord], prompt_length: int
    ) -> None:
        """Gives slots to sentences that have made their first step; `prompt_length` is that of the longest prompt."""
        for slot, sentence in zip(slots.tolist(), sentences, strict=True):
            self._sentences[slot] = sentence
        limits = np.array([sentence.limit for sentence in sentences])
        self.live[slots] = True
        self._start[slots] = self.clock
        self._due[slots] = self.clock + limits - 1
        self._longest_prompt = prompt_length
        self._update_earliest()

    def add(self, result: StepResult) -> None:
        """Adds the result of the next step."""
        self._spans[-1].results.append(result)
        self.clock += 1

    def is_due(self) -> bool:
        """Returns whether a sentence has reached its length limit, and must make no further step."""
        return self._earliest_due <= self.clock

    def poll_finished(self, done: Tensor) -> bool:
        """Moves sentences that are done, by the flags `done` `(B,)` of the state, to `finished`.

        Returns whether there are any. Nothing waits for a GPU: each poll reads the flags of the previous poll.
        """
        is_done, flag_clock = self._read_flags(done)
        is_done = is_done & self.live
        if not self.is_due() and not is_done.any():
            return False
        is_done &= self._start < flag_clock  # another sentence may have taken the slot since
        is_due = (self._due <= self.clock) & self.live
        finished_slots = np.flatnonzero(is_done | is_due).tolist()
        for slot in finished_slots:
            sentence = self._sentences[slot]
            assert sentence is not None
            sentence.slot = slot
            sentence.end = min(self.clock, int(self._due[slot]))
            self.finished.append(sentence)
            self.live[slot] = False
        self._update_earliest()
        return bool(finished_slots)

    def _read_flags(self, done: Tensor) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
        """Which slots are done, and the number of steps after which they were."""
        if not self._is_asynchronous:
            flags = done.cpu()
            return flags.numpy(), self.clock
        previous_poll = self._previous_poll
        host_flags = torch.empty(done.shape, dtype=torch.bool, pin_memory=True)
        host_flags.copy_(done, non_blocking=True)
        self._previous_poll = (host_flags, record_event(), self.clock)
        if previous_poll is None:
            none_done = np.zeros(len(done), dtype=bool)
            return none_done, 0
        flags, event, flag_clock = previous_poll
        event.synchronize()
        return flags.numpy(), flag_clock

    def _update_earliest(self) -> None:
        never = np.iinfo(np.int64).max
        due = self._due[self.live]
        starts = self._start[self.live]
        self._earliest_due = int(due.min(initial=never))
        self._earliest_start = int(starts.min(initial=self.clock + 1))

    def length(self) -> int:
        """Returns how many positions the next step has, for the live sentence that is at the last position."""
        n_steps = self.clock - self._earliest_start + 1  # including the first step of this sentence
        n_written = self._longest_prompt + n_steps
        return n_written + 1  # the next step reads one position more

    def compact(self, order: Integers) -> None:
        """Keeps these slots, in this order."""
        self._spans.append(StepSpan(start=self.clock, previous_rows=order, results=[]))
        self.live = self.live[order]
        self._sentences = [self._sentences[slot] for slot in order]
        self._start = self._start[order]
        self._due = self._due[order]
        self._previous_poll = None  # its flags are in the old order

    def take_finished(self, search: BeamSearch) -> Callable[[], list[SentenceResult]]:
        """Removes all finished sentences; returns a function that reads their hypotheses, at any later time."""
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
        """Drops the results of steps before the start of every live sentence."""
        starts = self._start[self.live]
        earliest_start = int(starts.min(initial=self.clock))
        while len(self._spans) > 1 and self._spans[1].start <= earliest_start:
            del self._spans[0]
        span = self._spans[0]
        n_old = max(0, earliest_start - span.start)
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

    `BeamConfig.stop` decides when a sentence is done. Hypotheses that reach the limit are returned as not finished,
    after all finished ones, unless `at_limit` is set otherwise. With `diversity_groups` each group is such a beam, and
    is done independently. When sampling, hypotheses are drawn: those that ended come first, then those cut at the
    limit, each kind ordered by score, which is the model's own probability.

    If the batch has a `prompt`, hypotheses continue it. It is read in one pass if the model can do so, is not scored,
    and counts neither for lengths nor for limits; but its n-grams are not repeated, and its tokens count for the
    repetition penalty.

    Args:
        model: any model, in eval mode.
        batch: the sentences, on the model's device; targets are not read.
        config: the search settings.
        n_best: hypotheses to return for each sentence.
        need_attention: whether to return attention and p_gen.
        prefix: the ids that the translations begin with `(B,P)`, padded on the right with PAD; their log-probability
            counts. A prefix that ends in EOS is a whole translation, which is only scored.
        token_classes: see `BeamSearch`.

    Returns:
        For each sentence its hypotheses, best first: at least one, and fewer than `n_best` only if no more exist.
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
    """Whether the sentences have no prompt, prefix and terms, so that other sentences can take their slots."""
    has_prompt = batch.prompt is not None and bool(batch.prompt.shape[1])
    return not has_prompt and batch.prefix is None and batch.terms is None


def compaction_order(live: Integers) -> Integers:
    """Returns the live slots in an order in which as many as possible stay in their place.

    Slots below the new number of slots stay; the others fill the holes between them.
    """
    order = np.arange(len(live))
    holes = np.setdiff1d(order, live, assume_unique=True)
    order[holes] = live[live >= len(live)]
    return order
