"""The search engine: keeps the slots of a decoding batch filled, and returns sentences as they are finished.

Sentences come from a source, longest first. A decoding batch holds sentences of nearly one length; as soon as enough of
its slots are free, waiting sentences take them, after a first step of their own. When none fits, the batch shrinks slot
by slot, and the next one begins.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send, trim_malloc
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.decoding import graphs
from nmtkit.decoding.beam import LoggedStep
from nmtkit.decoding.brackets import OUTER_BRACKETS
from nmtkit.decoding.decoding_batch import DecodingBatch, Integers
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.rules import SearchConfig, max_lengths
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.decoding.state import NO_TOKEN_CLASSES, TokenClasses
from nmtkit.decoding.step_log import ResultReader, SentenceResult, StepLog
from nmtkit.layers import tapes
from nmtkit.models.base import Decoder

REFILL_SHARE = 8
"""Slots are refilled once one in REFILL_SHARE is free: a refill costs a little, and a free slot costs a step."""
CPU_POLLS_EVERY = 1
ACCELERATOR_POLLS_EVERY = 8
"""Steps between two polls for finished sentences; on an accelerator a poll reads the flags of the poll before."""
FEW_SENTENCES = 3
"""Sentences in a batch up to which Python takes much of a step on a CPU."""
MANY_SENTENCES = 16
"""Sentences in a batch above which a CPU gives freed memory back after it: what batches of other sizes leave piles up,
and this takes a hundredth of such a batch's time."""

STARTS_ROOM, MOST_STARTS = 24 << 20, 256
"""Memory of the tapes of first steps, which stay: tapes that give way to each other cost more than they gain. And
lengths of sentences that are remembered."""

BatchSource = Callable[[int | None, int | None], tuple[Sequence[int], Batch] | None]
"""Gives the numbers of some waiting sentences, and the sentences as a batch on any device. `source(None, None)` begins
a decoding batch, with as many sentences as it should have slots; None where none waits. `source(count, width)` refills
free slots: at most `count` sentences, in `width` source columns, without prompt, prefix and terms; None where none
fits."""
StepMode = Literal["auto", "eager", "graph"]
"""How steps run: captured as soon as that pays; never captured; as CUDA graphs from the first step on."""


def require_graph_support(steps: StepMode, device: torch.device, with_shortlist: bool) -> None:
    """Raises a RecipeError for graphs on a device without them, or with a shortlist, which resizes the output layer."""
    if steps == "graph" and with_shortlist:
        raise RecipeError("engine graph: steps with a shortlist cannot be captured; leave one of the two out")
    if steps == "graph" and not graphs.supports_cuda_graphs(device):
        raise RecipeError(f"engine graph: CUDA graphs need a CUDA device, and this is {device}; leave it out")


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
        token_classes: masks over the target vocabulary.
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
            size = "samples" if config.samples else "beam_size"
            raise RecipeError(f"n_best {n_best} is more than {size} {config.hypotheses}: raise {size}, or lower n_best")
        if config.coverage_penalty and not model.has_attention:
            raise RecipeError("coverage_penalty: this model has no attention to measure coverage by; set it to 0")
        self.device = next(model.parameters(), torch.empty(0)).device
        require_graph_support(steps, self.device, shortlist is not None)
        if config.samples:  # samples take the places of a beam, and all of them are waited for
            plain = {"beam_size": config.samples, "stop": "first_k", "at_limit": "behind", "patience": 1.0}
            config = config.model_copy(update=plain)
        self.model, self.config, self.n_best = model, config, n_best
        self.need_attention, self.steps, self.shortlist = need_attention, steps, shortlist
        may_repeat = token_classes.may_repeat
        self._token_classes = replace(token_classes, may_repeat=None if may_repeat is None else pad(may_repeat, (0, 1)))
        self._captured: dict[tuple[int, int], graphs.CapturedBatch] = {}
        """Captured batches that no search uses now, by slots and source columns; those unused for longest go."""
        self._starts: dict[tuple[object, ...], Any] = {}  # tapes by lengths; None where there is none
        self._starts_room = STARTS_ROOM
        self._tapes_starts = True

    @property
    def replayed_steps(self) -> int:
        """Steps that replayed a capture that is still kept."""
        return sum(one.replayed for one in self._captured.values())

    @torch.no_grad()  # not inference_mode: what a model keeps from a search (a table of positions) must still train
    def run(self, source: BatchSource, refill: bool = True) -> Iterator[SentenceResult]:
        """Searches for all sentences of a source; each comes out as soon as it is finished.

        With `refill` other sentences take free slots, but none of sentences with a prompt, a prefix or constraints.
        Without, a CPU compacts its cache.
        """
        assert not self.model.training, "the model is in training mode: call model.eval() first"
        with ResultReader(self.device) as reader:
            while (given := source(None, None)) is not None:
                yield from self._decode_batch(given, source if refill else None, reader)
                if self.device.type == "cpu" and len(given[0]) > MANY_SENTENCES:
                    trim_malloc()
            yield from reader.rest()

    def _start(self, numbers: Sequence[int], batch: Batch, compacts: bool = False) -> tuple[DecodingBatch, LoggedStep]:
        """New sentences after their first step."""
        if batch.terms is not None:
            self.config.reject_constraints()
        decoding = DecodingBatch.begin(self.model, batch, self.config, self.n_best, self._token_classes, self.shortlist)
        decoding.cache.compacts = compacts
        number = send(torch.tensor(numbers), self.device)
        decoding.sentences = replace(decoding.sentences, number=number)
        return decoding, decoding.step(self.need_attention)

    def _start_again(self, numbers: Sequence[int], batch: Batch) -> tuple[DecodingBatch, LoggedStep, Callable[[], Any]]:
        """`_start`, on a tape from the second time on that sentences of these lengths come, while there is room.

        The last value is to be called when the batch has been copied: then another search may overwrite it.
        """
        key = (*batch.lengths.tolist(), *(one.shape for one in batch.tensors()), batch.n_oov)
        came, taped = key in self._starts, self._starts.pop(key, None)
        if taped is not None:
            for place, new in zip(taped[0].tensors(), batch.tensors(), strict=True):
                place.copy_(new)
            tapes.play(taped[2])
        elif came and self._starts_room > 0:
            kept, read = batch.mapped(torch.clone), lambda begun: [*begun[0].changing(), *begun[1].tensors()]
            taped = kept, *tapes.record(partial(self._start, numbers, kept), read)
            self._tapes_starts = taped[2] is not None
            self._starts_room -= taped[2].nbytes if taped[2] else 0
        if len(self._starts) > MOST_STARTS:  # other threads add and take some meanwhile
            for other in [one for one, its in [*self._starts.items()] if its is None]:
                self._starts.pop(other, None)
        if taped is None or not taped[2]:
            begun = self._start(numbers, batch) if taped is None else taped[1]
            return *begun, partial(self._starts.setdefault, key, None)
        return taped[1][0], taped[1][1].mapped(torch.clone), partial(self._starts.__setitem__, key, taped)

    def _decode_batch(
        self, given: tuple[Sequence[int], Batch], source: BatchSource | None, reader: ResultReader
    ) -> Iterator[SentenceResult]:
        """Decodes a batch, and the sentences that take its slots."""
        size, width = len(given[0]), 0 if given[1].inputs is ABSENT else given[1].inputs.mask.shape[1]
        compacts = source is None and self.device.type == "cpu" and not self._may_capture(size)
        is_plain = _is_plain(given[1])
        is_again = is_plain and given[1].reads_text and self._traces(size) and not self.config.brackets
        is_again &= self._tapes_starts and (1 << (size - 1).bit_length(), width) in self._captured
        begun = self._start_again(*given) if is_again else (*self._start(*given, compacts), lambda: None)
        fresh, result, release = begun
        captured = self._capture(fresh, width) if is_plain else None
        release()
        decoding = fresh if captured is None else captured.decoding
        log = StepLog(len(decoding.sentences.done), self.device)
        log.start(np.arange(size), *given, fresh, result)
        every = CPU_POLLS_EVERY if self.device.type == "cpu" else ACCELERATOR_POLLS_EVERY
        may_refill, steps = is_plain and source is not None, 1
        while True:
            polls = steps % every == 0 or log.is_due()
            if polls and (log.poll_finished(decoding.sentences.done) or source is not None):
                free, live = np.flatnonzero(~log.live), np.flatnonzero(log.live)
                if len(live) == 0 or len(log.finished) >= size:
                    yield from reader.submit(log.take_finished(decoding, self.n_best))
                if len(live) == 0:
                    if captured is not None:
                        self._keep(captured, len(free), width)
                    return
                more = None
                if source is not None and may_refill and len(free) * REFILL_SHARE >= len(log.live):
                    more = source(len(free), width)
                    may_refill = more is not None
                if more is not None:
                    assert _is_plain(more[1]), "prompts, prefixes and terms need another batch"
                    slots = free[: more[1].size]
                    fresh, result = self._start(*more)
                    decoding.insert(send(torch.from_numpy(slots), self.device), fresh)
                    log.start(slots, *more, fresh, result)
                elif len(free) and captured is None and not may_refill:
                    order = compaction_order(live)
                    decoding.compact(order)
                    log.compact(order)
            if captured is not None:
                log.add(captured.step(self.need_attention, log.length()))
            else:
                decoding.cache.truncate(log.length())
                decoding.cache.compact()
                log.add(decoding.step(self.need_attention))
            steps += 1

    def _capture(self, fresh: DecodingBatch, width: int) -> graphs.CapturedBatch | None:
        """Fixed slots that begin with these sentences, of so many columns; None where steps are not captured."""
        # A shortlist changes the size of the output layer.
        if not self._may_capture(len(fresh.limits)) or self.shortlist is not None:
            return None
        slots = 1 << (len(fresh.limits) - 1).bit_length()
        if (captured := self._captured.pop((slots, width), None)) is not None:
            captured.fill(fresh)
            return captured
        room = torch.tensor([width + OUTER_BRACKETS]) if self.config.brackets else None
        length = int(max_lengths(fresh.config, torch.tensor([width]), None, room)) + 1  # one more than a step must read
        if not self.model.reserve_positions(length):
            return None
        at_once = self.steps == "graph" or self._traces(len(fresh.limits))
        return graphs.CapturedBatch(fresh, slots, length, at_once)

    def _keep(self, captured: graphs.CapturedBatch, slots: int, width: int) -> None:
        self._captured[slots, width] = captured
        for oldest in [*self._captured][: -graphs.MAX_SHAPES[self.device.type]]:
            self._captured.pop(oldest, None)  # searches in several threads keep theirs here

    def _may_capture(self, sentences: int) -> bool:
        return self._traces(sentences) or (self.steps != "eager" and graphs.supports_cuda_graphs(self.device))

    def _traces(self, sentences: int) -> bool:
        """Whether steps of so many sentences are traced on a CPU; sampling reads numbers on the way and cannot be."""
        on_cpu = self.device.type == "cpu" and self.steps == "auto"
        return on_cpu and sentences <= FEW_SENTENCES and not self.config.samples


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

    Each step looks at the 2K best continuations of a sentence's K hypotheses. Those among the first K that end in EOS
    are finished; the K best of the others go on. With `first_k` a sentence is done when K hypotheses are finished; with
    `exact` when `n_best` are finished and no unfinished one could still overtake the last of them, even if it cost
    nothing from here to the length limit. Hypotheses that reach the limit are returned as not finished, behind all
    finished ones.

    With `diversity_groups` each group is such a beam, done by itself. With `samples` hypotheses are drawn: those that
    ended come first, then those cut at the limit, each kind ordered by score, which is the model's own probability.

    Of equal scores the better parent's comes first, then the smaller id's. So the sentences of a batch do not influence
    each other.

    Where the batch has a `prompt`, hypotheses go on behind it. It is read in one pass if the model can, is not scored,
    and counts neither for lengths nor for limits; but no n-gram of it is repeated, nor a token of it without penalty.

    The batch is on the model's device; targets are not read. A `prefix` has the ids that the translations begin with
    `(B,P)`, padded on the right with PAD; its own log-probability counts. It may end in EOS: then the translation is
    given, and only scored. The other arguments are those of `Engine`.

    Returns for each sentence its hypotheses, best first: at least one; fewer than `n_best` only where no more exist.
    """
    waiting = [(range(batch.size), replace(batch, prefix=prefix))]
    engine = Engine(model, config, n_best, need_attention, steps="eager", token_classes=token_classes)
    hypotheses = dict(engine.run(lambda *_: waiting.pop() if waiting else None, refill=False))
    return [hypotheses[number] for number in range(batch.size)]


def _is_plain(batch: Batch) -> bool:
    """Whether nothing says how its sentences begin or what they contain."""
    return batch.prefix is None and batch.terms is None and (batch.prompt is None or not batch.prompt.shape[1])


def compaction_order(live: Integers) -> Integers:
    """The live slots, in an order in which as many as possible stay where they are."""
    order = np.arange(len(live))
    holes = np.setdiff1d(order, live, assume_unique=True)
    order[holes] = live[live >= len(live)]
    return order
