"""Traces the search of one sentence step by step, with the continuations that rules forbade.

Letters as in `nmtkit.decoding.beam_search`; B is 1, so that N is W.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.hypotheses import Hypothesis, SentenceRecord, StepSpan, read_hypotheses
from nmtkit.decoding.rules import (
    INFINITY,
    ForbiddenTokens,
    ForcedPrefix,
    MinLength,
    Rule,
    allow_end_if_stuck,
)
from nmtkit.decoding.search_state import SearchState
from nmtkit.models.abilities import memory_lengths


@dataclass(frozen=True)
class TracedCandidate:
    """A continuation of a hypothesis that a step considered, or that a rule forbade."""

    token: int
    """The id of the token; an extended id if the model copies."""
    parent: int
    """The number of the hypothesis that it continues, among the survivors of the previous step; 0 in the first step."""
    token_log_prob: float
    log_prob: float
    """Log-probability from the start."""
    slot: int | None = None
    """Its number among the survivors of the step; None if it did not survive."""
    ended: bool = False
    """Whether it became a finished hypothesis."""
    group: int = 0
    """Its group of diverse beam search; 0 if it is forbidden."""
    score: float = -INFINITY
    """Its ranking score as a hypothesis."""
    rule: str = ""
    """The rule that forbade it; empty for the candidates of the step."""


@dataclass(frozen=True)
class SearchTrace:
    """All decisions in the search of one sentence."""

    steps: list[list[TracedCandidate]]
    """The C candidates of each step, best first, followed by the continuations that rules forbade, best first."""
    hypotheses: list[Hypothesis]
    """All hypotheses that ended, or were cut at the length limit; best first."""
    limit: int
    """The maximum number of tokens of the sentence, EOS included."""


class SearchTracer:
    """Searches for one sentence at a time and keeps every decision."""

    def __init__(self, search: BeamSearch) -> None:
        self.search = search

    @torch.no_grad()
    def trace(self, batch: Batch, number: int = 0) -> SearchTrace:
        """Searches for the only sentence of a batch, as `Engine.run` would search for sentence `number`."""
        assert batch.size == 1, f"{batch.size} sentences where one is traced"
        search = self.search
        config = search.config
        state = search.begin(batch)
        state.sentences = replace(state.sentences, number=state.sentences.number + number)

        forbidden: list[list[TracedCandidate]] = []
        # for each step the log-probabilities of its hypotheses (W,)
        parent_scores: list[Tensor] = []
        results: list[StepResult] = []
        while not results or not bool(state.sentences.done[0]):
            parent_scores.append(state.sentences.scores[0])
            forbidden.append(self._forbidden(state, config.n_hypotheses))
            results.append(search.step(state))

        sentence = SentenceRecord(
            number=0,
            memory_length=int(memory_lengths(search.model, batch)[0]),
            limit=state.limits[0],
            extended_source=batch.inputs.copy.extended[0] if search.model.config.copies else None,
            first_result=results[0],
            first_row=0,
            start=0,
            end=len(results) - 1,
        )
        vocabulary_size = search.model.sizes["tgt"]
        span = StepSpan(start=0, previous_rows=np.zeros(0, dtype=np.int64), results=results[1:])
        (hypotheses,) = read_hypotheses(
            [sentence],
            [span],
            n_best=config.n_hypotheses,
            vocabulary_size=vocabulary_size,
            config=config,
        )

        steps = []
        for result, scores, forbidden_in_step in zip(
            results, parent_scores, forbidden, strict=True
        ):
            least = float(result.candidates.scores[0].min())  # of all candidates of the step
            candidates = self._candidates(result, scores)
            candidates += [
                candidate for candidate in forbidden_in_step if candidate.log_prob >= least
            ]
            steps.append(
                [
                    _with_extended_id(candidate, sentence, vocabulary_size)
                    for candidate in candidates
                ]
            )
        return SearchTrace(steps, hypotheses, limit=state.limits[0])

    def _candidates(self, result: StepResult, parent_scores: Tensor) -> list[TracedCandidate]:
        """The candidates of a step, best first, from the log-probabilities of its hypotheses `(W,)`."""
        config = self.search.config
        candidates = result.candidates
        slots = {number: slot for slot, number in enumerate(candidates.survivors[0].tolist())}
        is_first_step = len(parent_scores) == 1
        group_candidates = candidates.columns.shape[1] // config.n_groups
        group_size = config.n_hypotheses // config.n_groups
        tokens = result.tokens[0].tolist()
        parents = candidates.parents[0].tolist()
        token_log_probs = (candidates.scores - parent_scores[candidates.parents])[0].tolist()
        log_probs = candidates.scores[0].tolist()
        ended = candidates.ended[0].tolist()
        ranking = result.ranking[0].tolist()
        traced = []
        for number, parent in enumerate(parents):
            if log_probs[number] == -INFINITY:  # fewer continuations exist than a step considers
                continue
            # In the first step all groups continue the same hypothesis.
            group = number // group_candidates if is_first_step else parent // group_size
            candidate = TracedCandidate(
                token=tokens[number],
                parent=parent,
                token_log_prob=token_log_probs[number],
                log_prob=log_probs[number],
                slot=slots.get(number),
                ended=ended[number],
                group=group,
                score=ranking[number],
            )
            traced.append(candidate)
        return traced

    def _forbidden(self, state: SearchState, count: int) -> list[TracedCandidate]:
        """The most likely continuations that some rule forbids in the next step, at most `count`, best first.

        PAD and BOS, which never follow, are left out. The cache entries of the next position are written here, and
        again by the step itself.
        """
        sentences = state.sentences
        rules: dict[str, Rule] = {}
        # A forced prefix comes first, so that it is named where several rules forbid a continuation.
        for rule in sorted(sentences.rules, key=lambda rule: rule.name != ForcedPrefix.name):
            name = self._name(rule)
            if name:
                rules[name] = rule
        if not rules:
            return []
        model = self.search.model
        memory = sentences.memory
        output, _ = model.advance(
            sentences.tokens.flatten(),
            state.hypotheses.model,
            memory,
            state.cache,
            need_attention=True,
        )
        log_probs = model.predict(output, memory)  # (W,X): the model's own distribution
        n_columns = log_probs.shape[1]
        live = self.search.live_hypotheses(state, log_probs)

        # The number of the rule that forbids each continuation, -1 if it is allowed. The last rule comes first, so that
        # the first one overwrites the others.
        forbidden_by = torch.full(
            log_probs.shape, -1, dtype=torch.long, device=log_probs.device
        )  # (W,X)
        for number, rule in reversed(list(enumerate(rules.values()))):
            ruled = rule.apply(log_probs.clone(), live)  # (W,X)
            if rule.may_forbid_all:
                allow_end_if_stuck(ruled, log_probs[:, EOS])
            forbidden_by.masked_fill_(ruled == -INFINITY, number)
        # A later rule may allow a continuation that an earlier one forbids.
        allowed = self.search.apply_rules(state, log_probs.clone()) > -INFINITY  # (W,X)
        forbidden_by.masked_fill_(allowed, -1)
        forbidden_by[:, [PAD, BOS]] = -1

        scores = log_probs + sentences.scores[0, :, None]  # (W,X)
        scores = scores.masked_fill(forbidden_by < 0, -INFINITY).flatten()  # (W*X,)
        best_scores, flat_indices = scores.sort(descending=True, stable=True)
        n_forbidden = int((best_scores[:count] > -INFINITY).sum())
        flat_indices = flat_indices[:n_forbidden]
        tokens = memory.ids_of(flat_indices % n_columns).tolist()
        parents = (flat_indices // n_columns).tolist()
        token_log_probs = log_probs.flatten()[flat_indices].tolist()
        rule_numbers = forbidden_by.flatten()[flat_indices].tolist()
        names = list(rules)
        traced = []
        for rank, score in enumerate(best_scores[:n_forbidden].tolist()):
            candidate = TracedCandidate(
                token=tokens[rank],
                parent=parents[rank],
                token_log_prob=token_log_probs[rank],
                log_prob=score,
                rule=names[rule_numbers[rank]],
            )
            traced.append(candidate)
        return traced

    def _name(self, rule: Rule) -> str:
        """The setting that a rule comes from; empty for a rule that every search has."""
        config = self.search.config
        if rule.name == ForbiddenTokens.name and not config.forbid_unknown:
            return ""
        if rule.name == MinLength.name and not config.min_length:
            return "min_length_ratio"
        return rule.name or config.rule or ""


def _with_extended_id(
    candidate: TracedCandidate, sentence: SentenceRecord, vocabulary_size: int
) -> TracedCandidate:
    (token,) = sentence.extended_ids([candidate.token], vocabulary_size)
    return replace(candidate, token=token)
