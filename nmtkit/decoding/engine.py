"""The search engine: decodes the sentences of a source in batches, and returns their results in groups.

The source should supply the longest sentences first. A batch has one slot per sentence, and groups sentences
of similar length. As soon as enough slots are free, waiting sentences take their first step in a batch of their own and
then move into these slots. When no waiting sentence fits, the batch shrinks until all its sentences are finished, and
the next batch begins. If steps are captured as CUDA graphs, the number of slots is fixed and a power of two: some slots
may be free from the start, and the batch does not shrink.

`nmtkit.decoding.beam_search` defines what happens in a step, and `nmtkit.decoding.slots` tracks which sentence occupies
each slot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from nmtkit.core.device import send, trim_malloc
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.decoding import graphs
from nmtkit.decoding.beam_search import NO_TOKEN_CLASSES, BeamSearch, StepResult, TokenClasses
from nmtkit.decoding.hypotheses import Hypothesis, ResultReader, SentenceResult, begin_records
from nmtkit.decoding.search_state import Integers, SearchState
from nmtkit.decoding.settings import SearchConfig
from nmtkit.decoding.slots import Slots, order_live_slots
from nmtkit.models.abilities import reserve_positions
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
`eager` never captures them. Even with `graph`, a batch is decoded without graphs if it has prompts, prefixes or terms,
or if its sentences may need more positions than the model has."""


class SentenceSource(Protocol):
    """Supplies an engine with sentences."""

    def next_batch(self) -> NumberedBatch | None:
        """Returns the sentences that begin a new batch, or None if no sentence is left."""
        ...

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns at most `slots` sentences, padded to `columns` source columns, or None if no sentence fits.

        The sentences must not have prompts, prefixes or terms.
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
            refill: whether waiting sentences take the slots of finished ones, except in batches with prompts, prefixes
                or terms. A batch that is not refilled only shrinks, unless its steps are captured as graphs, and on a
                CPU its cache is compacted: see `KVCache.compact`.
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
        uses_graphs = _is_plain(batch) and self._may_capture
        if not _is_plain(batch):
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
                    _remove_free_slots(state, slots)
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
        assert _is_plain(batch), "sentences with prompts, prefixes or terms need a new batch"
        new_sentences = self._begin(numbers, batch)
        new_slots = free_slots[: batch.size]  # (M,)
        device_slots = send(torch.from_numpy(new_slots), self.device)  # (M,)
        state.insert(device_slots, new_sentences.state, self.search.model)
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
            graph_steps.fill(first_state)
            return graph_steps
        # One more position, because even the last step advances to the position after its token.
        length = self.search.max_tokens(batch, columns) + 1
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


def search_batch(
    model: Decoder,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    token_classes: TokenClasses = NO_TOKEN_CLASSES,
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses of each sentence in a batch, without refilling slots or capturing graphs.

    Args:
        model: any model, in eval mode.
        batch: the sentences, on any device; its targets are ignored.
        config: the search settings.
        n_best: number of hypotheses to return for each sentence.
        need_attention: whether to return attention and p_gen.
        prefix: the ids that each translation must begin with `(B,P)`, padded on the right with PAD; replaces
            `batch.prefix`. The log-probabilities of these ids count towards the score. A prefix that ends with EOS is
            a complete translation, which is only scored.
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
    """Returns whether the batch has no prompt, prefix or terms, so that other sentences can take its slots."""
    has_prompt = batch.prompt is not None and bool(batch.prompt.shape[1])
    return not has_prompt and batch.prefix is None and batch.terms is None


def _remove_free_slots(state: SearchState, slots: Slots) -> None:
    """Shrinks the batch to its live slots."""
    live_slots = np.flatnonzero(slots.live)  # (live,)
    if len(live_slots) == len(slots.live):
        return
    order = order_live_slots(live_slots)  # (live,)
    state.keep_slots(order)
    slots.keep_slots(order)
