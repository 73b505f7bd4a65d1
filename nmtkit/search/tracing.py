"""The search of one sentence, step by step: what every step decided, and what the rules forbade.

Letters as in `nmtkit.search.beam`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, PAD
from nmtkit.search.beam import StepResult
from nmtkit.search.decoding_batch import DecodingBatch
from nmtkit.search.engine import Engine
from nmtkit.search.hypotheses import FinishedSentence, Hypothesis, StartedSentence, StepSpan, read_hypotheses
from nmtkit.search.rules import INFINITY


@dataclass(frozen=True)
class TracedCandidate:
    """A continuation of a hypothesis that a step looked at, or that a rule kept from being looked at."""

    token: int
    """A model that copies also gives extended ids."""
    parent: int
    """Which of the hypotheses that the step before kept it continues, by number; 0 in the first step."""
    token_log_prob: float
    log_prob: float
    """From the start."""
    slot: int | None = None
    """Its number among those that the step kept; None: it was not kept."""
    ended: bool = False
    """Whether it became a finished hypothesis."""
    group: int = 0
    """Of the diverse groups; 0 where it is forbidden."""
    score: float = -INFINITY
    """What hypotheses are ranked by, if it were one."""
    rule: str = ""
    """What forbade it; nothing for those that the step chose from."""


@dataclass(frozen=True)
class SearchTrace:
    """All that the search of one sentence did."""

    steps: list[list[TracedCandidate]]
    """Of each step the C candidates, best first as it ranked them, and then what the rules forbade, best first."""
    hypotheses: list[Hypothesis]
    """All that ended, or were cut at the length limit; best first."""
    limit: int
    """The most tokens that the sentence may have, EOS counted."""


class TracedBatch(DecodingBatch):
    """A batch of one sentence that tells what its next step may not choose."""

    @torch.no_grad()
    def forbidden(self, count: int) -> list[TracedCandidate]:
        """The likeliest continuations that some rule forbids in the next step, so many at most, best first.

        PAD and BOS, which never follow, are none. It reads the next position's entries of the past into place, as the
        step itself will once more.
        """
        alone = self._rules_alone()
        if not alone:
            return []
        readout, _ = self.model.advance(self.tokens, self.state, self.memory, self.cache, True)
        own = self.model.predict(readout, self.memory)  # (W,X): the model's own distribution
        sums = own + self.scores[0, :, None]
        named = torch.full(own.shape, -1, dtype=torch.long, device=own.device)
        for number, batch in reversed([*enumerate(alone.values())]):  # the first rule names what several forbid
            named.masked_fill_(batch._ruled(own.clone()) == -INFINITY, number)
        named.masked_fill_(self._ruled(own.clone()) > -INFINITY, -1)  # freed again by a later rule
        named[:, [PAD, BOS]] = -1
        sums = sums.masked_fill(named < 0, -INFINITY).flatten()
        best, places = sums.sort(descending=True, stable=True)
        best, places = best[:count], places[:count][best[:count] > -INFINITY]
        columns = places % own.shape[1]
        ids = columns if self.memory.shortlist is None else self.memory.shortlist.index.ids_of(columns)
        rules, values = list(alone), (own.flatten()[places], sums[places], named.flatten()[places])
        facts = (ids.tolist(), (places // own.shape[1]).tolist(), *(value.tolist() for value in values))
        return [
            TracedCandidate(token, parent, log_prob, total, rule=rules[rule])
            for token, parent, log_prob, total, rule in zip(*facts, strict=True)
        ]

    def _rules_alone(self) -> dict[str, DecodingBatch]:
        """By the name of every rule that holds, this batch with no other one."""
        config, sentences = self.config, self.sentences
        off = config.model_copy(update={"no_repeat_ngram": 0, "forbid_unknown": False})
        free = replace(sentences, least=None, prefix=None)
        found: dict[str, DecodingBatch] = {}
        if sentences.prefix is not None:
            found["prefix"] = replace(self, config=off, sentences=replace(free, prefix=sentences.prefix))
        if config.forbid_unknown:
            only = off.model_copy(update={"forbid_unknown": True})
            found["forbid_unknown"] = replace(self, config=only, sentences=free)
        if sentences.least is not None:
            name = "min_length" if config.min_length else "min_length_ratio"
            found[name] = replace(self, config=off, sentences=replace(free, least=sentences.least))
        if config.no_repeat_ngram:
            only = off.model_copy(update={"no_repeat_ngram": config.no_repeat_ngram})
            found["no_repeat_ngram"] = replace(self, config=only, sentences=free)
        return found


class SearchTracer(Engine):
    """An engine that searches for one sentence and keeps what every step decided; arguments as of `Engine`."""

    @torch.no_grad()
    def trace(self, batch: Batch) -> SearchTrace:
        """The search of the one sentence of a batch, which finds what `run` finds.

        Raises:
            CheckpointError: the model gives log-probabilities that are not numbers.
        """
        assert batch.size == 1, f"{batch.size} sentences where one is watched"
        batch = batch.to(self.device)
        decoding = TracedBatch.begin(self.model, batch, self.config, self.n_best, self._token_info, self.shortlist)
        assert isinstance(decoding, TracedBatch)
        forbidden: list[list[TracedCandidate]] = []
        before: list[Tensor] = []
        records: list[StepResult] = []
        while not records or not bool(decoding.sentences.done[0]):
            decoding.cache.truncate(len(records) + 1)
            before.append(decoding.scores[0])
            forbidden.append(decoding.forbidden(self.config.beam_size))
            records.append(decoding.step(self.need_attention))
        extended = batch.src_extended[0] if self.model.config.copies else None
        begun = StartedSentence(0, int(batch.src_lengths[0]), decoding.limits[0], extended, records[0], 0, 0)
        stretch = StepSpan(0, np.zeros(0, dtype=np.int64), records[1:])
        known = self.model.sizes.tgt
        (hypotheses,) = read_hypotheses(
            [FinishedSentence(begun, 0, len(records) - 1)], [stretch], self.config.beam_size, known, self.config
        )
        steps = [
            self._candidates(record, sums, begun) + _that_mattered(record, ruled_out, begun, known)
            for record, sums, ruled_out in zip(records, before, forbidden, strict=True)
        ]
        return SearchTrace(steps, hypotheses, begun.limit)

    def _candidates(self, record: StepResult, before: Tensor, begun: StartedSentence) -> list[TracedCandidate]:
        """What a step chose from, best first; `before` are the log-probabilities of what it continued `(W,)`."""
        choice = record.choice
        slots = {number: slot for slot, number in enumerate(choice.kept[0].tolist())}
        parents, in_group = choice.parents[0].tolist(), choice.tokens.shape[1] // self.config.diversity_groups
        sums, scores = choice.scores[0].tolist(), record.final[0].tolist()
        own = (choice.scores[0] - before[choice.parents[0]]).tolist()
        return [
            TracedCandidate(
                token=begun.extended_ids([token], self.model.sizes.tgt)[0],
                parent=parents[number],
                token_log_prob=own[number],
                log_prob=sums[number],
                slot=slots.get(number),
                ended=bool(choice.ended[0, number]),
                group=number // in_group,
                score=scores[number],
            )
            for number, token in enumerate(choice.tokens[0].tolist())
            if sums[number] > -INFINITY  # fewer continuations exist than a step looks at
        ]


def _that_mattered(
    record: StepResult, forbidden: Sequence[TracedCandidate], begun: StartedSentence, known: int
) -> list[TracedCandidate]:
    """The forbidden continuations that the step would have looked at, were they allowed."""
    least = float(record.choice.scores[0].min())
    return [replace(one, token=begun.extended_ids([one.token], known)[0]) for one in forbidden if one.log_prob >= least]
