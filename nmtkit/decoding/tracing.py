"""The search of one sentence, step by step, and what rules forbade; letters as in `nmtkit.decoding.beam_search`."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.batching import Engine
from nmtkit.decoding.beam_search import StepResult
from nmtkit.decoding.hypotheses import CompactionSpan, Hypothesis, SentenceRecord, read_hypotheses
from nmtkit.decoding.rules import INFINITY, ForbiddenTokens, ForcedPrefix, MinLength, Rule, allow_end_if_stuck
from nmtkit.decoding.search_state import SearchState
from nmtkit.models.abilities import memory_lengths


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
        """Searches for the one sentence of a batch, with the same hypotheses as `run`, where it has this number."""
        assert batch.size == 1, f"{batch.size} sentences where one is traced"
        search = self.search
        config = search.config
        state = search.begin(batch)
        state.sentences = replace(state.sentences, number=state.sentences.number + number)
        forbidden: list[list[TracedCandidate]] = []
        scores_before: list[Tensor] = []  # of each step: the log-probabilities of its hypotheses (W,)
        results: list[StepResult] = []
        while not results or not bool(state.sentences.done[0]):
            scores_before.append(state.sentences.scores[0])
            forbidden.append(self._forbidden(state, config.hypotheses))
            results.append(search.step(state))
        limit = state.limits[0]
        sentence = SentenceRecord(
            number=0,
            length=int(memory_lengths(search.model, batch)[0]),
            limit=limit,
            extended=batch.inputs.copy.extended[0] if search.model.config.copies else None,
            first=results[0],
            row=0,
            start=0,
            end=len(results) - 1,
        )
        size = search.model.sizes["tgt"]
        span = CompactionSpan(0, np.zeros(0, dtype=np.int64), results[1:])
        (hypotheses,) = read_hypotheses([sentence], [span], config.hypotheses, size, config)
        steps = []
        for result, scores, blocked in zip(results, scores_before, forbidden, strict=True):
            least = float(result.candidates.scores[0].min())  # of what the step considered
            candidates = self._candidates(result, scores)
            candidates += [candidate for candidate in blocked if candidate.log_prob >= least]
            steps.append([_with_extended_id(candidate, sentence, size) for candidate in candidates])
        return SearchTrace(steps, hypotheses, limit)

    def _candidates(self, result: StepResult, scores: Tensor) -> list[TracedCandidate]:
        """The candidates of a step, best first; `scores` are the log-probabilities of its hypotheses `(W,)`."""
        candidates = result.candidates
        slots = {number: slot for slot, number in enumerate(candidates.survivors[0].tolist())}
        config = self.search.config
        width = len(scores)
        group_size = candidates.columns.shape[1] // config.groups
        group_width = config.hypotheses // config.groups
        token_log_probs = candidates.scores - scores[candidates.parents]
        columns = {
            "token": result.tokens,
            "parent": candidates.parents,
            "token_log_prob": token_log_probs,
            "log_prob": candidates.scores,
            "ended": candidates.ended,
            "score": result.ranking,
        }
        rows = zip(*(column[0].tolist() for column in columns.values()), strict=True)
        traced = []
        for number, row in enumerate(rows):
            facts = dict(zip(columns, row, strict=True))
            if facts["log_prob"] > -INFINITY:  # fewer continuations exist than a step considers
                # In the first step all groups continue the same hypothesis.
                group = number // group_size if width == 1 else facts["parent"] // group_width
                traced.append(TracedCandidate(**facts, slot=slots.get(number), group=group))
        return traced

    def _forbidden(self, state: SearchState, count: int) -> list[TracedCandidate]:
        """The likeliest continuations that some rule forbids in the next step, at most `count`, best first.

        PAD and BOS, which never follow, are left out. The cache entries of the next position are written, as the step
        itself will do again.
        """
        sentences = state.sentences
        rules: dict[str, Rule] = {}
        # A forced prefix goes before all others, and so names what several rules forbid.
        for rule in sorted(sentences.rules, key=lambda rule: rule.name != ForcedPrefix.name):
            name = self._name(rule)
            if name:
                rules[name] = rule
        if not rules:
            return []
        model = self.search.model
        memory = sentences.memory
        output, _ = model.advance(
            sentences.tokens.flatten(), state.hypotheses.model, memory, state.cache, need_attention=True
        )
        log_probs = model.predict(output, memory)  # (W,X): the model's own distribution
        sums = log_probs + sentences.scores[0, :, None]
        live = self.search.live_hypotheses(state, log_probs)
        forbidden_by = torch.full(log_probs.shape, -1, dtype=torch.long, device=log_probs.device)  # (W,X)
        for number, rule in reversed([*enumerate(rules.values())]):  # the first rule names what several forbid
            alone = rule.apply(log_probs.clone(), live)
            if rule.may_forbid_all:
                allow_end_if_stuck(alone, log_probs[:, EOS])
            forbidden_by.masked_fill_(alone == -INFINITY, number)
        # A later rule may allow again what an earlier one forbids.
        allowed = self.search.apply_rules(state, log_probs.clone()) > -INFINITY
        forbidden_by.masked_fill_(allowed, -1)
        forbidden_by[:, [PAD, BOS]] = -1
        sums = sums.masked_fill(forbidden_by < 0, -INFINITY).flatten()
        best, places = sums.sort(descending=True, stable=True)
        places = places[:count][best[:count] > -INFINITY]
        best = best[: len(places)]
        names = list(rules)
        columns = (
            memory.ids_of(places % log_probs.shape[1]),
            places // log_probs.shape[1],
            log_probs.flatten()[places],
            best,
            forbidden_by.flatten()[places],
        )
        traced = []
        for token, parent, log_prob, total, rule_number in zip(*(column.tolist() for column in columns), strict=True):
            traced.append(
                TracedCandidate(
                    token=token, parent=parent, token_log_prob=log_prob, log_prob=total, rule=names[rule_number]
                )
            )
        return traced

    def _name(self, rule: Rule) -> str:
        """The setting that a rule comes from; empty for what always holds."""
        config = self.search.config
        if rule.name == ForbiddenTokens.name and not config.forbid_unknown:
            return ""
        if rule.name == MinLength.name and not config.min_length:
            return "min_length_ratio"
        return rule.name or config.rule or ""


def _with_extended_id(candidate: TracedCandidate, sentence: SentenceRecord, size: int) -> TracedCandidate:
    (token,) = sentence.extended_ids([candidate.token], size)
    return replace(candidate, token=token)
