"""The engine: keeps the slots of a bank filled with sentences that wait, and gives results as they are done.

Sentences come from a feed, longest first. A bank holds sentences of nearly one length; as soon as enough of its slots
are free, the next ones take them, after a first step of their own. When no waiting sentence fits, the bank is given up
slot by slot, and another begins.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.errors import RecipeError
from nmtkit.data.batch import Batch
from nmtkit.data.shortlist import Shortlist
from nmtkit.layers.kv_cache import BufferPool
from nmtkit.models.base import Seq2Seq
from nmtkit.search import graphs
from nmtkit.search.beam import StepResult
from nmtkit.search.decoding_batch import DecodingBatch, Integers
from nmtkit.search.hypotheses import FinishedSentence, Hypothesis, StartedSentence, StepSpan, read_hypotheses
from nmtkit.search.rules import SearchConfig, max_lengths
from nmtkit.search.sentences import NO_TOKEN_INFO, TokenInfo

SHARE = 8
"""Slots are filled again once one in so many is free: each time costs a little, and each free slot a step."""
CPU_LOOKS_EVERY = 1
ACCELERATOR_LOOKS_EVERY = 8
"""Steps between two looks at which sentences are done; on an accelerator a look sees what was so one look before."""
FEW_SENTENCES = 3
"""Sentences in a bank up to which much of a step on a CPU is Python."""

BatchSource = Callable[[int | None, int | None], tuple[Sequence[int], Batch] | None]
"""Gives the numbers of some sentences that wait, and they as a batch on any device. `feed(None, None)` begins a
bank: as many as it should have slots; None where none waits. `feed(count, width)` is for free slots: at most so many,
with so many source columns and neither prefix nor terms; None where none waits that fits them."""
StepMode = Literal["auto", "eager", "graph"]
"""Whether steps are recorded: from when on that pays; never; on a CUDA device from the first on."""
SentenceResult = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses, best first."""


def require_graph_support(steps: StepMode, device: torch.device, with_shortlist: bool) -> None:
    """Refuses graphs where none can be.

    Raises:
        RecipeError: the device has none, or a shortlist gives the output layer another size whenever sentences come.
    """
    if steps == "graph" and with_shortlist:
        raise RecipeError("engine graph: steps with a shortlist are never recorded; leave one of the two out")
    if steps == "graph" and not graphs.supports_cuda_graphs(device):
        raise RecipeError(f"engine graph: CUDA graphs need a CUDA device, and this is {device}; leave it out")


class Engine:
    """Searches for the translations of many sentences.

    Args:
        model: any model, in eval mode; it is not changed.
        config: how to search.
        n_best: hypotheses to return for each sentence, at most `beam_size`, or `samples`.
        need_attention: whether to return attention, and p_gen, as well.
        steps: whether steps are recorded.
        token_info: what is known of the tokens of the vocabulary.
        shortlist: candidates for the words of the sources, on the model's device; each sentence is continued by its
            own only, and log-probabilities are of them. Its steps are never recorded. None: by all words.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, a coverage penalty is asked of a model without attention, or
            graphs of a device that has none, or with a shortlist.
    """

    def __init__(
        self,
        model: Seq2Seq,
        config: SearchConfig,
        n_best: int = 1,
        need_attention: bool = False,
        steps: StepMode = "auto",
        shortlist: Shortlist | None = None,
        token_info: TokenInfo = NO_TOKEN_INFO,
    ) -> None:
        if n_best > config.hypotheses:
            size = "samples" if config.samples else "beam_size"
            raise RecipeError(f"n_best {n_best} is more than {size} {config.hypotheses}: raise {size}, or lower n_best")
        if config.coverage_penalty and not model.has_attention:
            raise RecipeError("coverage_penalty: this model has no attention to measure coverage by; set it to 0")
        self.device = next(model.parameters(), torch.empty(0)).device
        require_graph_support(steps, self.device, shortlist is not None)
        if config.samples:  # they take the places of a beam, and none of them is waited for longer than for others
            config = config.for_sampling()
        self.model, self.config, self.n_best = model, config, n_best
        self.need_attention, self.steps, self.shortlist = need_attention, steps, shortlist
        may_repeat = token_info.may_repeat
        self._token_info = replace(token_info, may_repeat=None if may_repeat is None else pad(may_repeat, (0, 1)))
        self._graphs = graphs.GraphCache()

    @property
    def replayed_steps(self) -> int:
        """Steps that were made by recordings that still are there."""
        return self._graphs.replayed

    @torch.no_grad()  # not inference_mode: what a model keeps from a search (a table of positions) must still train
    def run(self, feed: BatchSource, refills: bool = True) -> Iterator[SentenceResult]:
        """Searches for all sentences of a feed; they come out as they are done.

        Args:
            feed: see `BatchSource`. No others take the slots of sentences with a prefix or terms.
            refills: whether it is asked for sentences that take free slots; on a CPU a cache that is all of sentences
                which began together can be kept smaller.

        Raises:
            CheckpointError: the model gives log-probabilities that are not numbers.
        """
        assert not self.model.training, "the model is in training mode: call model.eval() first"
        keeps_places = refills or self.device.type != "cpu" or graphs.supports_cuda_graphs(self.device)
        blocks = None if keeps_places else BufferPool()
        with _AsyncReader(self.device) as reading:
            while (given := feed(None, None)) is not None:
                yield from self._decode_batch(given, feed if refills else None, reading, blocks)
            yield from reading.rest()

    def _begun(
        self, numbers: Sequence[int], batch: Batch, blocks: BufferPool | None = None
    ) -> tuple[DecodingBatch, StepResult]:
        batch = batch.to(self.device, non_blocking=True)
        if batch.terms is not None:
            self.config.reject_constraints()
        bank = DecodingBatch.begin(self.model, batch, self.config, self.n_best, self._token_info, self.shortlist)
        bank.cache.buffers = blocks
        bank.number(torch.tensor(numbers).to(self.device, non_blocking=True))
        return bank, bank.step(self.need_attention)

    def _decode_batch(
        self,
        given: tuple[Sequence[int], Batch],
        feed: BatchSource | None,
        reading: "_AsyncReader",
        blocks: BufferPool | None,
    ) -> Iterator[SentenceResult]:
        blocks = None if self._may_tape(given[1].size) else blocks
        fresh, record = self._begun(*given, blocks)
        width, free_to_begin = given[1].src.shape[1], given[1].prefix is None and given[1].terms is None
        replay = self._recorder(fresh, width) if blocks is None and free_to_begin else None
        bank = fresh if replay is None else replay.bank
        table = _SlotTable(len(bank.scores), self.device)
        table.put(np.arange(given[1].size), *given, fresh.limits, record, self.model.config.copies)
        every = CPU_LOOKS_EVERY if self.device.type == "cpu" else ACCELERATOR_LOOKS_EVERY
        waits, steps = free_to_begin and feed is not None, 1
        while True:
            if steps % every == 0 or table.is_due():
                table.poll_finished(bank)
                free, live = np.flatnonzero(~table.live), np.flatnonzero(table.live)
                if len(live) == 0 or len(table.done) >= given[1].size:
                    yield from reading.of(table.taken(self.n_best, self.model.sizes.tgt, self.config))
                if len(live) == 0:
                    bank.cache.release()
                    self._graphs.keep(replay, width)
                    return
                more = None
                if feed is not None and waits and len(free) * SHARE >= len(table.live):
                    more = feed(len(free), width)
                    waits = more is not None
                if more is not None:
                    assert (more[1].prefix, more[1].terms) == (None, None), "prefixes and terms need another bank"
                    slots = free[: more[1].size]
                    fresh, record = self._begun(*more)
                    bank.put(torch.from_numpy(slots).to(self.device), fresh)
                    table.put(slots, *more, fresh.limits, record, self.model.config.copies)
                elif len(free) and replay is None and not waits:
                    order = compaction_order(live)
                    bank.close_up(order)
                    table.select(order)
            places = table.places()
            if replay is None:
                bank.cache.truncate(places)
                if blocks is not None:
                    bank.cache.compact()
                table.add(bank.step(self.need_attention))
            else:
                table.add(replay.step(self.need_attention, places))
            steps += 1

    def _recorder(self, fresh: DecodingBatch, width: int) -> graphs.CapturedBatch | None:
        """Fixed slots that begin with these sentences, of so many columns; None where steps are not recorded."""
        is_taped = self._may_tape(len(fresh.scores))
        may_record = self.steps != "eager" and (graphs.supports_cuda_graphs(self.device) or is_taped)
        if not may_record or self.shortlist is not None:  # its output layer has another size whenever sentences come
            return None
        slots = 1 << (len(fresh.scores) - 1).bit_length()
        if (replay := self._graphs.take(slots, width)) is not None:
            replay.fill(fresh)
            return replay
        places = int(max_lengths(self.config, torch.tensor([width]), None))
        if not self.model.reserve_positions(graphs.CapturedBatch.room(places)):
            return None
        return graphs.CapturedBatch(fresh, slots, places, at_once=is_taped or self.steps == "graph")

    def _may_tape(self, sentences: int) -> bool:
        """Whether the steps of so many sentences may be a tape; one that draws looks at numbers on the way."""
        on_cpu = self.device.type == "cpu" and self.steps == "auto"
        return on_cpu and sentences <= FEW_SENTENCES and not self.config.samples


def beam_search(
    model: Seq2Seq,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    token_info: TokenInfo = NO_TOKEN_INFO,
) -> list[list[Hypothesis]]:
    """Translates every sentence of the batch.

    Each step looks at the 2K best continuations of a sentence's K hypotheses. Those among the first K that end in EOS
    are finished; the K best of the others go on. With `first_k` a sentence is done when K hypotheses are finished: to
    stop with the first one costs BLEU, because short hypotheses finish first. With `exact` it is done when `n_best`
    are finished and no unfinished one could still overtake the last of them, even if it cost nothing from here to the
    length limit. Hypotheses that reach the limit are returned as not finished, behind all finished ones.

    With `diversity_groups` each group is such a beam, done by itself. With `samples` hypotheses are drawn: those that
    ended come first, then those cut at the limit, each kind ordered by score, which is of the model's own probability.

    Of equal scores the better parent's comes first, then the smaller id's. So the sentences of a batch do not influence
    each other: not even by the number of their unknown words, which makes the distributions of all of them wider.

    Args:
        model: any model, in eval mode; it is not changed.
        batch: B sentences, on the model's device, with their terms if they have any; targets are not read.
        config: how to search.
        n_best: hypotheses to return for each sentence, at most `beam_size`.
        need_attention: whether to return attention, and p_gen, as well.
        prefix: ids that the translations must begin with `(B,P)`, padded on the right with PAD; its own log-probability
            counts. It may end in EOS: then the translation is given, and only scored.
        token_info: what is known of the tokens of the vocabulary.

    Returns:
        For each sentence its hypotheses, best first. At least one; fewer than `n_best` only where no more exist.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, or a coverage penalty is asked of a model without attention.
        CheckpointError: the model gives log-probabilities that are not numbers.
    """
    waiting = [(range(batch.size), replace(batch, prefix=prefix))]
    engine = Engine(model, config, n_best, need_attention, steps="eager", token_info=token_info)
    found = dict(engine.run(lambda *_: waiting.pop() if waiting else None, refills=False))
    return [found[number] for number in range(batch.size)]


def compaction_order(live: Integers) -> Integers:
    """The sentences that are left, by number, in an order in which as many as can be stay where they are."""
    count = len(live)
    order = np.arange(count)
    holes = np.setdiff1d(order, live, assume_unique=True)
    order[holes] = live[live >= count]
    return order


class _SlotTable:
    """Which sentence has which slot since when, on the host, and what all steps decided that have not been read."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.live = np.zeros(slots, dtype=bool)
        """Which slots have a sentence that is not done."""
        self.done: list[FinishedSentence] = []
        """Sentences that are done and have not been read."""
        self._begun: list[StartedSentence | None] = [None] * slots
        self._since = np.zeros(slots, dtype=np.int64)  # when each slot's began
        self._due = np.zeros(slots, dtype=np.int64)  # when it reaches its limit
        self._stretches = [StepSpan(0, np.zeros(0, dtype=np.int64), [])]
        self._clock = 0
        self._device = device
        self._seen: tuple[Tensor, torch.cuda.Event, int] | None = None  # what the last look asked the device, and when

    def put(
        self,
        slots: npt.NDArray[np.int64],
        numbers: Sequence[int],
        batch: Batch,
        limits: list[int],
        record: StepResult,
        copies: bool,
    ) -> None:
        """Gives slots to the sentences of a batch, which have made their first step."""
        extended = list(batch.src_extended) if copies else [None] * batch.size
        facts = zip(slots.tolist(), numbers, batch.src_lengths.tolist(), limits, extended, strict=True)
        for row, (slot, number, length, limit, ids) in enumerate(facts):
            self._begun[slot] = StartedSentence(number, length, limit, ids, record, row, self._clock)
        self.live[slots] = True
        self._since[slots], self._due[slots] = self._clock, self._clock + np.array(limits) - 1

    def add(self, record: StepResult) -> None:
        """Adds what the next step decided."""
        self._stretches[-1].records.append(record)
        self._clock += 1

    def is_due(self) -> bool:
        """Whether a sentence has come to its limit: it must not go on."""
        return bool((self._due[self.live] <= self._clock).any())

    def poll_finished(self, bank: DecodingBatch) -> None:
        """Notes which sentences are done. Nobody waits for a GPU: it says at one look what was so at the one before."""
        done, clock = bank.sentences.done, self._clock
        if _works_beside(self._device):
            before, copied = self._seen, torch.empty(done.shape, dtype=torch.bool, pin_memory=True)
            self._seen = copied.copy_(done, non_blocking=True), _event(), clock
            if before is None:
                done, clock = torch.zeros_like(copied), 0
            else:
                before[1].synchronize()
                done, _, clock = before
        found = done.cpu().numpy() & (self._since < clock)  # another may have taken the slot since
        found |= self._due <= self._clock
        for slot in np.flatnonzero(found & self.live).tolist():
            begun = self._begun[slot]
            assert begun is not None
            self.done.append(FinishedSentence(begun, slot, min(self._clock, int(self._due[slot]))))
            self.live[slot] = False

    def places(self) -> int:
        """The position of the next step, counted from 1, of the sentence that has come farthest."""
        farthest = np.minimum(self._clock + 1, self._due) - self._since
        return int(farthest[self.live].max(initial=0)) + 1

    def select(self, live: npt.NDArray[np.int64]) -> None:
        """Keeps some slots."""
        self._stretches.append(StepSpan(self._clock, live, []))
        self.live, self._begun = self.live[live], [self._begun[slot] for slot in live]
        self._since, self._due = self._since[live], self._due[live]
        self._seen = None

    def taken(self, n_best: int, size: int, config: SearchConfig) -> Callable[[], list[SentenceResult]]:
        """Takes out all sentences that are done: how to read their hypotheses, at any time."""
        done, numbers = self.done, [one.begun.number for one in self.done]
        stretches = [replace(stretch, records=list(stretch.records)) for stretch in self._stretches]
        self.done = []
        self._forget(int(self._since[self.live].min(initial=self._clock)))
        return lambda: (
            list(zip(numbers, read_hypotheses(done, stretches, n_best, size, config), strict=True)) if done else []
        )

    def _forget(self, clock: int) -> None:
        """Forgets the steps before."""
        while len(self._stretches) > 1 and self._stretches[1].clock <= clock:
            del self._stretches[0]
        first = self._stretches[0]
        past = min(max(0, clock - first.clock), len(first.records))
        first.clock, first.records = first.clock + past, first.records[past:]


class _AsyncReader:
    """Reads what steps decided: on a CPU at once, else in a thread and stream of its own, beside the steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = _works_beside(device)
        self._waiting: deque[Future[list[SentenceResult]]] = deque()

    def __enter__(self) -> "_AsyncReader":
        if self._beside:
            self._thread = ThreadPoolExecutor(1)
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch does not type it
        return self

    def __exit__(self, *_: object) -> None:
        if self._beside:
            self._thread.shutdown(cancel_futures=True)

    def of(self, job: Callable[[], list[SentenceResult]]) -> list[SentenceResult]:
        """What has been read by now."""
        if not self._beside:
            return job()
        made = _event()

        def there() -> list[SentenceResult]:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(made)
                return job()

        self._waiting.append(self._thread.submit(there))
        found = []
        while self._waiting and self._waiting[0].done():
            found += self._waiting.popleft().result()
        return found

    def rest(self) -> list[SentenceResult]:
        """What is still being read."""
        return [one for waiting in self._waiting for one in waiting.result()]


def _works_beside(device: torch.device) -> bool:
    """Whether a device goes on with what it was told while the program does something else."""
    return device.type == "cuda" and torch.cuda.is_available()


def _event() -> torch.cuda.Event:
    """Is over once the device has done what it was told before."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not type it
    event.record()
    return event
