"""The search of one sentence, step by step, and what rules forbade; letters as in `nmtkit.decoding.beam`."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, PAD
from nmtkit.decoding.beam import LoggedStep
from nmtkit.decoding.decoding_batch import DecodingBatch
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.hypotheses import CompactionSpan, Hypothesis, SentenceRecord, read_hypotheses
from nmtkit.decoding.rules import INFINITY


@dataclass(frozen=True)
class TracedCandidate:
    """A continuation of a hypothesis that a step considered, or that a rule forbade."""

    token: int
    """A model that copies also gives extended ids."""
    parent: int
    """The number of the hypothesis that it continues, among those that the step before kept; 0 in the first step."""
    token_log_prob: float
    log_prob: float
    """From the start."""
    slot: int | None = None
    """Its number among those that the step kept; None: it was not kept."""
    ended: bool = False
    """Whether it became a finished hypothesis."""
    group: int = 0
    """Its diverse group; 0 where it is forbidden."""
    score: float = -INFINITY
    """Its ranking score as a hypothesis."""
    rule: str = ""
    """The rule that forbade it; empty for the candidates of the step."""


@dataclass(frozen=True)
class SearchTrace:
    """All that the search of one sentence did."""

    steps: list[list[TracedCandidate]]
    """The C candidates of each step, best first, and behind them what the rules forbade, best first."""
    hypotheses: list[Hypothesis]
    """All that ended, or were cut at the length limit; best first."""
    limit: int
    """The most tokens that the sentence may have, EOS included."""


class SearchTracer(Engine):
    """An engine that searches for one sentence and keeps every decision; arguments as of `Engine`."""

    @torch.no_grad()
    def trace(self, batch: Batch, number: int = 0) -> SearchTrace:
        """The search of the one sentence of a batch, with the same hypotheses as `run`, where it has this number."""
        assert batch.size == 1, f"{batch.size} sentences where one is traced"
        decoding = DecodingBatch.begin(self.model, batch, self.config, self.n_best, self._token_classes, self.shortlist)
        decoding.sentences = replace(decoding.sentences, number=decoding.sentences.number + number)
        forbidden: list[list[TracedCandidate]] = []
        before: list[Tensor] = []
        results: list[LoggedStep] = []
        while not results or not bool(decoding.sentences.done[0]):
            before.append(decoding.sentences.scores[0])
            forbidden.append(_forbidden(decoding, self.config.beam_size))
            results.append(decoding.step(self.need_attention))
        length, limit, last = int(self.model.memory_lengths(batch)[0]), decoding.limits[0], len(results) - 1
        extended = batch.inputs.copy.extended[0] if self.model.config.copies else None
        sentence = SentenceRecord(0, length, limit, extended, results[0], row=0, start=0, end=last)
        size, span = self.model.sizes["tgt"], CompactionSpan(0, np.zeros(0, dtype=np.int64), results[1:])
        (hypotheses,) = read_hypotheses([sentence], [span], self.config.beam_size, size, self.config)
        steps = []
        for result, sums, blocked in zip(results, before, forbidden, strict=True):
            least = float(result.step.scores[0].min())  # of what the step considered
            both = self._candidates(result, sums) + [one for one in blocked if one.log_prob >= least]
            steps.append([replace(one, token=sentence.extended_ids([one.token], size)[0]) for one in both])
        return SearchTrace(steps, hypotheses, limit)

    def _candidates(self, result: LoggedStep, before: Tensor) -> list[TracedCandidate]:
        """The candidates of a step, best first; `before` are the log-probabilities of its hypotheses `(W,)`."""
        step = result.step
        slots = {number: slot for slot, number in enumerate(step.kept[0].tolist())}
        in_group = step.tokens.shape[1] // self.config.diversity_groups
        own = step.scores - before[step.parents]
        columns = (step.tokens, step.parents, own, step.scores, step.ended, result.final)
        rows = zip(*(column[0].tolist() for column in columns), strict=True)
        return [
            TracedCandidate(token, parent, log_prob, total, slots.get(number), ended, number // in_group, score)
            for number, (token, parent, log_prob, total, ended, score) in enumerate(rows)
            if total > -INFINITY  # fewer continuations exist than a step considers
        ]


def _forbidden(decoding: DecodingBatch, count: int) -> list[TracedCandidate]:
    """The likeliest continuations that some rule forbids in the next step, at most `count`, best first.

    PAD and BOS, which never follow, are left out. The cache entries of the next position are written, as the step
    itself will do again.
    """
    alone = _each_rule_alone(decoding)
    if not alone:
        return []
    sentences, model = decoding.sentences, decoding.model
    readout, _ = model.advance(
        sentences.tokens.flatten(), decoding.beam.state, decoding.memory, decoding.cache, need_attention=True
    )
    own = model.predict(readout, decoding.memory)  # (W,X): the model's own distribution
    sums = own + sentences.scores[0, :, None]
    named = torch.full(own.shape, -1, dtype=torch.long, device=own.device)
    for number, other in reversed([*enumerate(alone.values())]):  # the first rule names what several forbid
        named.masked_fill_(other.under_rules(own.clone()) == -INFINITY, number)
    named.masked_fill_(decoding.under_rules(own.clone()) > -INFINITY, -1)  # allowed again by a later rule
    named[:, [PAD, BOS]] = -1
    sums = sums.masked_fill(named < 0, -INFINITY).flatten()
    best, places = sums.sort(descending=True, stable=True)
    places = places[:count][best[:count] > -INFINITY]
    best = best[: len(places)]
    ids = decoding.memory.ids_of(places % own.shape[1])
    rules, columns = list(alone), (ids, places // own.shape[1], own.flatten()[places], best, named.flatten()[places])
    return [
        TracedCandidate(token, parent, log_prob, total, rule=rules[rule])
        for token, parent, log_prob, total, rule in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _each_rule_alone(decoding: DecodingBatch) -> dict[str, DecodingBatch]:
    """By the name of every rule that holds, the batch with this rule only."""
    config, sentences = decoding.config, decoding.sentences
    off: dict[str, object] = {"no_repeat_ngram": 0, "forbid_unknown": False}
    bare = replace(sentences, min_lengths=None, prefix=None)
    minimum = "min_length" if config.min_length else "min_length_ratio"
    rules = {
        "prefix": (sentences.prefix is not None, off, replace(bare, prefix=sentences.prefix)),
        "forbid_unknown": (config.forbid_unknown, off | {"forbid_unknown": True}, bare),
        minimum: (sentences.min_lengths is not None, off, replace(bare, min_lengths=sentences.min_lengths)),
        "brackets": (decoding.beam.tree is not None, off, bare),
        "no_repeat_ngram": (config.no_repeat_ngram > 0, off | {"no_repeat_ngram": config.no_repeat_ngram}, bare),
    }
    beam = decoding.beam
    return {
        name: replace(
            decoding,
            config=config.model_copy(update=settings),
            sentences=rows,
            beam=beam if name == "brackets" else replace(beam, tree=None),
        )
        for name, (holds, settings, rows) in rules.items()
        if holds
    }
