"""The search engine: keeps the slots of a batch filled, and returns sentences as they are finished.

Sentences come from a source, longest first. A batch holds sentences of nearly one length; as soon as enough of its
slots are free, waiting sentences take them, after a first step of their own. When none fits, the batch shrinks slot by
slot, and the next one begins. How a step is made is the matter of `nmtkit.decoding.beam_search`.
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
    CompactionSpan,
    Hypothesis,
    ResultReader,
    SentenceRecord,
    SentenceResult,
    read_hypotheses,
    record_event,
)
from nmtkit.decoding.search_state import Integers, SearchState
from nmtkit.decoding.settings import SamplingConfig, SearchConfig
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.models.abilities import memory_lengths, reserve_positions
from nmtkit.models.base import Decoder

REFILL_SHARE = 8
"""Slots are refilled once one in REFILL_SHARE is free: a refill costs a little, and a free slot costs a step."""
CPU_POLLS_EVERY = 1
ACCELERATOR_POLLS_EVERY = 8
"""Steps between two polls for finished sentences; on an accelerator a poll reads the flags of the poll before."""
MANY_SENTENCES = 16
"""Sentences in a batch above which a CPU gives freed memory back after it: what batches of other sizes leave piles up,
and this takes a hundredth of such a batch's time."""

NumberedBatch = tuple[Sequence[int], Batch]
"""The numbers of some sentences within a search, and the sentences as a batch on any device."""
StepMode = Literal["auto", "eager", "graph"]
"""How steps run on CUDA: captured as graphs once that pays; never captured; captured from the first step on."""


def require_graph_support(steps: StepMode, device: torch.device, with_shortlist: bool) -> None:
    """Raises a RecipeError for graphs on a device without them, or with a shortlist, which resizes the output layer."""
    if steps == "graph" and with_shortlist:
        raise RecipeError("engine graph: steps with a shortlist cannot be captured; leave one of the two out")
    if steps == "graph" and not graphs.supports_cuda_graphs(device):
        raise RecipeError(f"engine graph: CUDA graphs need a CUDA device, and this is {device}; leave it out")


class SentenceSource(Protocol):
    """Where an engine takes sentences from."""

    def next_batch(self) -> NumberedBatch | None:
        """Returns the sentences of a new batch, which gets a slot for each; None if none waits."""
        ...

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns at most `slots` sentences in so many source columns; None if none fits.

        They have no prompt, prefix and terms.
        """
        ...


class OneBatch:
    """A source of one batch."""

    def __init__(self, batch: Batch, numbers: Sequence[int] | None = None) -> None:
        self._batch: NumberedBatch | None = (range(batch.size) if numbers is None else numbers, batch)

    def next_batch(self) -> NumberedBatch | None:
        """Returns it, the first time."""
        batch = self._batch
        self._batch = None
        return batch

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns None."""
        return None


class Engine:
    """Searches for the translations of many sentences.

    Args:
        model: any model, in eval mode; it is not changed.
        config: the search settings.
        n_best: hypotheses to return for each sentence, at most `beam_size`, or `samples`.
        need_attention: whether to return attention and p_gen.
        steps: see `StepMode`.
        shortlist: candidates for the words of the sources, on the model's device. Each sentence has only its own
            candidates. None: the whole vocabulary.
        token_classes: masks over the target vocabulary, and the rule that the settings name.
    """

    def __init__(
        self,
        model: Decoder,
        config: SearchConfig,
        n_best: int = 1,
        need_attention: bool = False,
        steps: StepMode = "auto",
        shortlist: Shortlist | None = None,
        token_classes: TokenClasses = NO_TOKEN_CLASSES,
    ) -> None:
        if n_best > config.hypotheses:
            size = "samples" if isinstance(config, SamplingConfig) else "beam_size"
            raise RecipeError(f"n_best {n_best} is more than {size} {config.hypotheses}: raise {size}, or lower n_best")
        if config.coverage_penalty and not model.has_attention:
            raise RecipeError("coverage_penalty: this model has no attention to measure coverage by; set it to 0")
        self.device = next(model.parameters(), torch.empty(0)).device
        require_graph_support(steps, self.device, shortlist is not None)
        self.search = BeamSearch(model, config, n_best, need_attention, shortlist, token_classes)
        self.steps = steps
        self._captured: dict[tuple[int, int], graphs.CapturedSteps] = {}
        """Captured steps that no search uses now, by slots and source columns; those unused for longest go."""

    @property
    def replayed_steps(self) -> int:
        """Steps that replayed a capture that is still kept."""
        return sum(captured.replayed for captured in self._captured.values())

    @torch.no_grad()  # not inference_mode: what a model keeps from a search (a table of positions) must still train
    def run(self, source: SentenceSource, refill: bool = True) -> Iterator[SentenceResult]:
        """Searches for all sentences of a source; each comes out as soon as it is finished.

        With `refill` other sentences take free slots, but none of sentences with a prompt, a prefix or constraints.
        Without, a CPU compacts its cache.
        """
        assert not self.search.model.training, "the model is in training mode: call model.eval() first"
        with ResultReader(self.device) as reader:
            while True:
                next_batch = source.next_batch()
                if next_batch is None:
                    break
                numbers, batch = next_batch
                yield from self._decode_batch(numbers, batch, source if refill else None, reader)
                if self.device.type == "cpu" and len(numbers) > MANY_SENTENCES:
                    trim_malloc()
            yield from reader.rest()

    def _decode_batch(
        self, numbers: Sequence[int], batch: Batch, source: SentenceSource | None, reader: ResultReader
    ) -> Iterator[SentenceResult]:
        """Decodes a batch, and the sentences that take its slots."""
        size = len(numbers)
        columns = 0 if batch.inputs is ABSENT else batch.inputs.mask.shape[1]  # of the sources
        may_refill = _is_plain(batch) and source is not None
        captures = _is_plain(batch) and self._may_capture()
        compacts = source is None and self.device.type == "cpu" and not captures
        fresh, result = self._start(numbers, batch, compacts)
        captured = self._capture(fresh, batch, columns) if captures else None
        state = fresh if captured is None else captured.state
        slots = Slots(len(state.sentences.done), self.device)
        slots.start(np.arange(size), numbers, self._lengths(batch), self._extended(batch), fresh, result)
        polls_every = CPU_POLLS_EVERY if self.device.type == "cpu" else ACCELERATOR_POLLS_EVERY
        for step in count(1):
            may_have_free = False
            if step % polls_every == 0 or slots.is_due():
                has_finished = slots.poll_finished(state.sentences.done)
                may_have_free = has_finished or source is not None  # some slots may be free from the start
            if may_have_free:
                is_over = not slots.live.any()
                if is_over or len(slots.finished) >= size:  # reading few sentences at a time costs more
                    yield from reader.submit(slots.take_finished(self.search))
                if is_over:
                    break
                free = np.flatnonzero(~slots.live)
                if may_refill and source is not None and len(free) * REFILL_SHARE >= len(slots.live):
                    may_refill = self._refill(state, slots, free, source.refill(len(free), columns))
                if len(free) and not may_refill and captured is None:
                    order = compaction_order(np.flatnonzero(slots.live))
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

    def _refill(self, state: SearchState, slots: "Slots", free: Integers, more: NumberedBatch | None) -> bool:
        """Puts more sentences into free slots; returns whether there were any."""
        if more is None:
            return False
        numbers, batch = more
        assert _is_plain(batch), "prompts, prefixes and terms need another batch"
        taken = free[: batch.size]
        fresh, result = self._start(numbers, batch)
        state.insert(send(torch.from_numpy(taken), self.device), fresh, self.search.model)
        slots.start(taken, numbers, self._lengths(batch), self._extended(batch), fresh, result)
        return True

    def _start(self, numbers: Sequence[int], batch: Batch, compacts: bool = False) -> tuple[SearchState, StepResult]:
        """New sentences after their first step."""
        state = self.search.begin(batch)
        state.cache.compacts = compacts
        number = send(torch.tensor(numbers), self.device)
        state.sentences = replace(state.sentences, number=number)
        return state, self.search.step(state)

    def _lengths(self, batch: Batch) -> list[int]:
        """How many positions the memory of each sentence has."""
        lengths: list[int] = memory_lengths(self.search.model, batch).tolist()
        return lengths

    def _extended(self, batch: Batch) -> list[Tensor] | None:
        """The extended ids of each source `(S,)`, of a model that copies."""
        return [*batch.inputs.copy.extended] if self.search.model.config.copies else None

    def _may_capture(self) -> bool:
        """Whether steps may be captured. A shortlist changes the size of the output layer."""
        return self.steps != "eager" and self.search.shortlist is None and graphs.supports_cuda_graphs(self.device)

    def _capture(self, fresh: SearchState, batch: Batch, columns: int) -> graphs.CapturedSteps | None:
        """Fixed slots that begin with the sentences of a batch; None where steps cannot be captured."""
        n_slots = 1 << (batch.size - 1).bit_length()  # few different sizes, so that captures serve again
        captured = self._captured.pop((n_slots, columns), None)
        if captured is not None:
            captured.fill(fresh)
            return captured
        length = self.search.most_tokens(batch, columns) + 1  # a step also moves on to the next position
        if not reserve_positions(self.search.model, length):
            return None
        return graphs.CapturedSteps(self.search, fresh, n_slots, length, at_once=self.steps == "graph")

    def _keep(self, captured: graphs.CapturedSteps, n_slots: int, columns: int) -> None:
        self._captured[n_slots, columns] = captured
        for oldest in [*self._captured][: -graphs.MAX_SHAPES]:
            self._captured.pop(oldest, None)  # searches in several threads keep theirs here


class Slots:
    """Which sentence is in which slot of a batch, and the results of steps until they are read; on the CPU.

    Time is counted in steps of the batch, its first one being 0.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.live = np.zeros(slots, dtype=bool)
        """Slots with a sentence that is not finished."""
        self.finished: list[SentenceRecord] = []
        """Finished sentences that have not been read."""
        self._sentences: list[SentenceRecord | None] = [None] * slots
        self._start = np.zeros(slots, dtype=np.int64)  # when the sentence of each slot began
        self._due = np.zeros(slots, dtype=np.int64)  # when it reaches its length limit
        self._spans = [CompactionSpan(0, np.zeros(0, dtype=np.int64), [])]
        self._clock = 0  # steps so far
        self._next_due = 0  # of the live slots
        self._oldest = 0  # the earliest start of the live slots
        self._prompt_length = 0  # of the longest prompt; sentences with prompts all begin together
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        self._polled: tuple[Tensor, torch.cuda.Event, int] | None = None  # flags, when they are there, and their step

    def start(
        self,
        slots: Integers,
        numbers: Sequence[int],
        lengths: Sequence[int],
        extended: Sequence[Tensor] | None,
        state: SearchState,
        first: StepResult,
    ) -> None:
        """Gives slots to sentences that have made their first step, in a state of their own.

        Args:
            slots: one for each sentence.
            numbers: of the sentences, within the whole search.
            lengths: positions of the memory of each.
            extended: the extended ids of each source, if the model copies.
            state: after the first step.
            first: its result.
        """
        self._prompt_length = state.cache.length - 2  # without BOS and the position that the next step reads
        for row, slot in enumerate(slots.tolist()):
            self._sentences[slot] = SentenceRecord(
                number=numbers[row],
                length=lengths[row],
                limit=state.limits[row],
                extended=None if extended is None else extended[row],
                first=first,
                row=row,
                start=self._clock,
            )
        self.live[slots] = True
        self._start[slots] = self._clock
        self._due[slots] = self._clock + np.array(state.limits) - 1
        self._look_at_live()

    def add(self, result: StepResult) -> None:
        """Adds the result of the next step."""
        self._spans[-1].results.append(result)
        self._clock += 1

    def is_due(self) -> bool:
        """Whether a sentence has reached its length limit, and must not go on."""
        return self._next_due <= self._clock

    def poll_finished(self, done: Tensor) -> bool:
        """Takes note of finished sentences, and returns whether there are any; `done` is of the state, `(B,)`.

        Nobody waits for a GPU: each poll reads the flags of the poll before.
        """
        flags, clock = self._flags(done)
        ended = flags & self.live
        if not (self.is_due() or ended.any()):
            return False
        ended &= self._start < clock  # another sentence may have taken the slot since
        is_due = (self._due <= self._clock) & self.live
        finished = np.flatnonzero(ended | is_due).tolist()
        for slot in finished:
            sentence = self._sentences[slot]
            assert sentence is not None
            sentence.slot = slot
            sentence.end = min(self._clock, int(self._due[slot]))
            self.finished.append(sentence)
            self.live[slot] = False
        self._look_at_live()
        return bool(finished)

    def _flags(self, done: Tensor) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
        """Which slots are done, and after how many steps this was so."""
        if not self._is_asynchronous:
            return done.cpu().numpy(), self._clock
        earlier = self._polled
        copied = torch.empty(done.shape, dtype=torch.bool, pin_memory=True)
        copied.copy_(done, non_blocking=True)
        self._polled = copied, record_event(), self._clock
        if earlier is None:
            return np.zeros(len(done), dtype=bool), 0
        flags, event, clock = earlier
        event.synchronize()
        return flags.numpy(), clock

    def _look_at_live(self) -> None:
        self._next_due = int(self._due[self.live].min(initial=np.iinfo(np.int64).max))
        self._oldest = int(self._start[self.live].min(initial=self._clock + 1))

    def length(self) -> int:
        """Positions in the next step of the live sentence that has come farthest; none has reached its limit."""
        steps = self._clock + 1 - self._oldest  # the first step of the oldest sentence included
        return self._prompt_length + steps + 1  # and the position that the next step reads

    def compact(self, order: Integers) -> None:
        """Keeps these slots, in this order."""
        self._spans.append(CompactionSpan(self._clock, order, []))
        self.live = self.live[order]
        self._sentences = [self._sentences[slot] for slot in order]
        self._start = self._start[order]
        self._due = self._due[order]
        self._polled = None

    def take_finished(self, search: BeamSearch) -> Callable[[], list[SentenceResult]]:
        """Removes all finished sentences; returns how to read their hypotheses, at any later time."""
        finished = self.finished
        self.finished = []
        spans = [replace(span, results=list(span.results)) for span in self._spans]
        self._forget_results()

        def read() -> list[SentenceResult]:
            if not finished:
                return []
            hypotheses = read_hypotheses(finished, spans, search.n_best, search.model.sizes["tgt"], search.config)
            return [(sentence.number, ranked) for sentence, ranked in zip(finished, hypotheses, strict=True)]

        return read

    def _forget_results(self) -> None:
        """Drops the results of steps before the start of every live sentence."""
        first = int(self._start[self.live].min(initial=self._clock))
        while len(self._spans) > 1 and self._spans[1].start <= first:
            del self._spans[0]
        span = self._spans[0]
        passed = min(max(0, first - span.start), len(span.results))
        span.start += passed
        span.results = span.results[passed:]


def beam_search(
    model: Decoder,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    token_classes: TokenClasses = NO_TOKEN_CLASSES,
) -> list[list[Hypothesis]]:
    """Translates every sentence of the batch.

    `BeamConfig.stop` says when a sentence is done. Hypotheses that reach the limit are returned as not finished, after
    all finished ones, unless `at_limit` says otherwise.

    With `diversity_groups` each group is such a beam, done by itself. In sampling hypotheses are drawn: those that
    ended come first, then those cut at the limit, each kind ordered by score, which is the model's own probability.

    Where the batch has a `prompt`, hypotheses go on behind it. It is read in one pass if the model can, is not scored,
    and counts neither for lengths nor for limits; but no n-gram of it is repeated, nor a token of it without penalty.

    The batch is on the model's device; targets are not read. A `prefix` has the ids that the translations begin with
    `(B,P)`, padded on the right with PAD; its own log-probability counts. It may end in EOS: then the translation is
    given, and only scored. The other arguments are those of `Engine`.

    Returns for each sentence its hypotheses, best first: at least one; fewer than `n_best` only where no more exist.
    """
    if prefix is not None:
        batch = replace(batch, prefix=prefix)
    engine = Engine(model, config, n_best, need_attention, steps="eager", token_classes=token_classes)
    hypotheses = dict(engine.run(OneBatch(batch), refill=False))
    return [hypotheses[number] for number in range(batch.size)]


def _is_plain(batch: Batch) -> bool:
    """Whether nothing says how its sentences begin or what they contain."""
    return batch.prefix is None and batch.terms is None and (batch.prompt is None or not batch.prompt.shape[1])


def compaction_order(live: Integers) -> Integers:
    """Returns the live slots, in an order in which as many as possible stay where they are."""
    order = np.arange(len(live))
    holes = np.setdiff1d(order, live, assume_unique=True)
    order[holes] = live[live >= len(live)]
    return order
