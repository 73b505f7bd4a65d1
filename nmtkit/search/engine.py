"""The engine: keeps the slots of a bank filled with sentences that wait, and gives results as they are done.

Sentences come from a feed, longest first. A bank holds sentences of nearly one length; as soon as enough of its slots
are free, the next ones take them, after a first step of their own. When no waiting sentence fits, the bank is given up
slot by slot, and another begins.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.errors import RecipeError
from nmtkit.models.base import Seq2Seq
from nmtkit.search.bank import Bank, Record
from nmtkit.search.choose import Choose, choose_best
from nmtkit.search.rules import SearchConfig
from nmtkit.search.trace import Begun, Finished, Hypothesis, Stretch, read

SHARE = 8
"""Slots are filled, or given up, once one in so many is free; each time costs a little, and each free slot a step."""
CPU_LOOKS_EVERY = 1
ACCELERATOR_LOOKS_EVERY = 8
"""Steps between two looks at which sentences are done; on an accelerator a look waits for the device."""

Feed = Callable[[int | None, int | None], tuple[Sequence[int], Batch] | None]
"""Gives the numbers of some sentences that wait, and they as a batch on the model's device. `feed(None, None)` begins a
bank: as many as it should have slots; None where none waits. `feed(count, width)` is for free slots: at most so many,
with so many source columns; None where none waits that fits them."""
Found = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses, best first."""


class Engine:
    """Searches for the translations of many sentences.

    Args:
        model: any model, in eval mode; it is not changed.
        config: how to search.
        n_best: hypotheses to return for each sentence, at most `beam_size`.
        need_attention: whether to return attention, and p_gen, as well.
        choose: another way to choose the hypotheses to go on with.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, or a coverage penalty is asked of a model without attention.
    """

    def __init__(
        self,
        model: Seq2Seq,
        config: SearchConfig,
        n_best: int = 1,
        need_attention: bool = False,
        choose: Choose = choose_best,
    ) -> None:
        assert not model.training, "the model is in training mode: call model.eval() first"
        if n_best > config.beam_size:
            raise RecipeError(
                f"n_best {n_best} is more than beam_size {config.beam_size}: raise beam_size, or lower n_best"
            )
        if config.coverage_penalty and not model.has_attention:
            raise RecipeError("coverage_penalty: this model has no attention to measure coverage by; set it to 0")
        self.model, self.config, self.n_best = model, config, n_best
        self.need_attention, self.choose = need_attention, choose

    @torch.no_grad()  # not inference_mode: what a model keeps from a search (a table of positions) must still train
    def run(self, feed: Feed, prefix: Tensor | None = None) -> Iterator[Found]:
        """Searches for all sentences of a feed; they come out as they are done.

        Args:
            feed: see `Feed`.
            prefix: forced tokens of the first batch `(B,P)`, padded with PAD; no others take its slots then.

        Raises:
            CheckpointError: the model gives log-probabilities that are not numbers.
        """
        while (given := feed(None, None)) is not None:
            yield from self._of_one_bank(given, feed, prefix)
            prefix = None

    def _begun(self, batch: Batch, prefix: Tensor | None = None) -> tuple[Bank, Record]:
        bank = Bank.begin(self.model, batch, self.config, self.n_best, prefix)
        return bank, bank.step(self.choose, self.need_attention)

    def _of_one_bank(self, given: tuple[Sequence[int], Batch], feed: Feed, prefix: Tensor | None) -> Iterator[Found]:
        bank, record = self._begun(given[1], prefix)
        device, width = bank.scores.device, given[1].src.shape[1]
        table = _Table()
        table.put(np.arange(given[1].size), *given, bank.limits, record)
        every = CPU_LOOKS_EVERY if device.type == "cpu" else ACCELERATOR_LOOKS_EVERY
        waits, steps = prefix is None, 1
        while True:
            if steps % every == 0 or table.is_due():
                table.look(bank)
                free, live = np.flatnonzero(~table.live), np.flatnonzero(table.live)
                if len(live) == 0 or len(table.done) >= given[1].size:
                    yield from table.read(self.n_best)
                if len(live) == 0:
                    return
                if len(free) * SHARE >= len(table.live):
                    more = feed(len(free), width) if waits else None
                    if more is not None:
                        slots = free[: more[1].size]
                        fresh, record = self._begun(more[1])
                        bank.put(torch.from_numpy(slots).to(device), fresh)
                        table.put(slots, *more, fresh.limits, record)
                    else:
                        waits = False
                        kept = torch.from_numpy(live).to(device)
                        bank.select(kept)
                        table.select(live)
            bank.past.shorten(table.places())
            table.add(bank.step(self.choose, self.need_attention))
            steps += 1


def beam_search(
    model: Seq2Seq,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    choose: Choose = choose_best,
) -> list[list[Hypothesis]]:
    """Translates every sentence of the batch.

    Each step looks at the 2K best continuations of a sentence's K hypotheses. Those among the first K that end in EOS
    are finished; the K best of the others go on. With `first_k` a sentence is done when K hypotheses are finished: to
    stop with the first one costs BLEU, because short hypotheses finish first. With `exact` it is done when `n_best`
    are finished and no unfinished one could still overtake the last of them, even if it cost nothing from here to the
    length limit. Hypotheses that reach the limit are returned as not finished, behind all finished ones.

    Of equal scores the better parent's comes first, then the smaller id's. So the sentences of a batch do not influence
    each other: not even by the number of their unknown words, which makes the distributions of all of them wider.

    Args:
        model: any model, in eval mode; it is not changed.
        batch: B sentences, on the model's device; targets are not read.
        config: how to search.
        n_best: hypotheses to return for each sentence, at most `beam_size`.
        need_attention: whether to return attention, and p_gen, as well.
        prefix: ids that the translations must begin with `(B,P)`, padded on the right with PAD; its own log-probability
            counts. It may end in EOS: then the translation is given, and only scored.
        choose: another way to choose the hypotheses to go on with.

    Returns:
        For each sentence its hypotheses, best first. At least one; fewer than `n_best` only where no more exist.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, or a coverage penalty is asked of a model without attention.
        CheckpointError: the model gives log-probabilities that are not numbers.
    """
    waiting = [(range(batch.size), batch)]
    engine = Engine(model, config, n_best, need_attention, choose)
    found = dict(engine.run(lambda *_: waiting.pop() if waiting else None, prefix))
    return [found[number] for number in range(batch.size)]


class _Table:
    """Which sentence has which slot since when, on the host, and what all steps decided that have not been read."""

    def __init__(self) -> None:
        self.live = np.zeros(0, dtype=bool)
        """Which slots have a sentence that is not done."""
        self.done: list[Finished] = []
        """Sentences that are done and have not been read."""
        self._begun: list[Begun] = []  # of each slot
        self._since = self._due = np.zeros(0, dtype=np.int64)  # when each slot's began, and when it reaches its limit
        self._stretches = [Stretch(0, np.zeros(0, dtype=np.int64), [])]
        self._clock = 0

    def put(
        self, slots: npt.NDArray[np.int64], numbers: Sequence[int], batch: Batch, limits: list[int], record: Record
    ) -> None:
        """Gives slots to the sentences of a batch, which have made their first step."""
        facts = zip(numbers, batch.src_lengths.tolist(), limits, strict=True)
        begun = [Begun(*fact, record, row, self._clock) for row, fact in enumerate(facts)]
        if not self._begun:
            self.live, self._begun = np.ones(len(slots), dtype=bool), begun
            self._since, self._due = np.zeros(len(slots), dtype=np.int64), np.zeros(len(slots), dtype=np.int64)
        self.live[slots] = True
        self._since[slots], self._due[slots] = self._clock, self._clock + np.array(limits) - 1
        for slot, one in zip(slots, begun, strict=True):
            self._begun[slot] = one

    def add(self, record: Record) -> None:
        """Adds what the next step decided."""
        self._stretches[-1].records.append(record)
        self._clock += 1

    def is_due(self) -> bool:
        """Whether a sentence has come to its limit: it must not go on."""
        return bool((self._due[self.live] <= self._clock).any())

    def look(self, bank: Bank) -> None:
        """Notes which sentences are done."""
        done = bank.sentences.done.cpu().numpy()
        for slot in np.flatnonzero(done & self.live).tolist():
            self.done.append(Finished(self._begun[slot], slot, self._clock))
            self.live[slot] = False

    def places(self) -> int:
        """The position of the next step, counted from 1, of the sentence that has come farthest."""
        return self._clock - self._earliest() + 2

    def _earliest(self) -> int:
        return int(self._since[self.live].min(initial=self._clock))

    def select(self, live: npt.NDArray[np.int64]) -> None:
        """Keeps some slots."""
        self._stretches.append(Stretch(self._clock, live, []))
        self.live, self._begun = self.live[live], [self._begun[slot] for slot in live]
        self._since, self._due = self._since[live], self._due[live]

    def read(self, n_best: int) -> list[Found]:
        """The hypotheses of all sentences that are done."""
        found = read(self.done, self._stretches, n_best) if self.done else []
        numbers = [one.begun.number for one in self.done]
        self.done = []
        self._forget(self._earliest())
        return list(zip(numbers, found, strict=True))

    def _forget(self, clock: int) -> None:
        """Forgets the steps before."""
        while len(self._stretches) > 1 and self._stretches[1].clock <= clock:
            del self._stretches[0]
        first = self._stretches[0]
        past = min(max(0, clock - first.clock), len(first.records))
        first.clock, first.records = first.clock + past, first.records[past:]
