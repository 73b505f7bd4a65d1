"""Traces the search for one sentence step by step, including the continuations that rules forbade.

Letters as in `nmtkit.decoding.beam_search`, with B = 1, so N = W.
"""

from collections.abc import Sequence
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
    """Beam index of the hypothesis that it continues; 0 in the first step."""
    token_log_prob: float
    log_prob: float
    """Cumulative log-probability of the hypothesis."""
    beam_index: int | None = None
    """Its index in the next beam; None if it did not survive."""
    ended: bool = False
    """Whether it became a finished hypothesis."""
    group: int = 0
    """Its group in diverse beam search; 0 if a rule forbade it."""
    score: float = -INFINITY
    """Ranking score of the hypothesis; minus infinity if a rule forbade it."""
    rule: str = ""
    """Name of the rule that forbade it; "" if none did."""


@dataclass(frozen=True)
class SearchTrace:
    """All decisions in the search for one sentence."""

    steps: list[list[TracedCandidate]]
    """The C candidates of each step, best first, followed by the continuations that rules forbade, best first."""
    hypotheses: list[Hypothesis]
    """The best K hypotheses: finished ones and those cut at the length limit, in the order of the search's results."""
    limit: int
    """Maximum number of tokens, including EOS."""


class SearchTracer:
    """Searches for one sentence at a time and records every decision."""

    def __init__(self, search: BeamSearch) -> None:
        self.search = search

    @torch.no_grad()
    def trace(self, batch: Batch, sentence_number: int = 0) -> SearchTrace:
        """Searches for the only sentence of a batch, as `Engine.run` would search for sentence `sentence_number`."""
        assert batch.size == 1, f"trace needs exactly one sentence, got {batch.size}"
        search = self.search
        state = search.begin(batch)
        # Sampling is seeded by the sentence number, which is 0 so far.
        number = state.sentences.number + sentence_number  # (B,)
        state.sentences = replace(state.sentences, number=number)

        forbidden: list[list[TracedCandidate]] = []
        # The log-probabilities of the hypotheses before each step, (W,).
        parent_scores: list[Tensor] = []
        results: list[StepResult] = []
        is_done = False
        while not is_done:
            parent_scores.append(state.sentences.scores[0])
            forbidden.append(self._forbidden(state, search.config.n_hypotheses))
            results.append(search.step(state))
            is_done = bool(state.sentences.done[0])

        sentence = self._record(batch, results, limit=state.limits[0])
        steps = []
        for result, scores, forbidden_in_step in zip(
            results, parent_scores, forbidden, strict=True
        ):
            candidates = self._candidates(result, scores)
            # Only those that the step would have considered.
            worst_score = float(result.candidates.scores[0].min())
            for candidate in forbidden_in_step:
                if candidate.log_prob >= worst_score:
                    candidates.append(candidate)
            steps.append(_with_extended_ids(candidates, sentence, search.model.sizes["tgt"]))
        return SearchTrace(
            steps=steps, hypotheses=self._read_hypotheses(sentence, results), limit=state.limits[0]
        )

    def _record(self, batch: Batch, results: Sequence[StepResult], limit: int) -> SentenceRecord:
        """Returns the record of the finished sentence, as `Engine` makes it for a batch of one sentence."""
        model = self.search.model
        return SentenceRecord(
            number=0,  # ignored by `read_hypotheses`
            memory_length=int(memory_lengths(model, batch)[0]),
            limit=limit,
            extended_source=batch.inputs.copy.extended[0] if model.config.copies else None,
            first_result=results[0],
            first_row=0,
            start=0,
            end=len(results) - 1,
        )

    def _read_hypotheses(
        self, sentence: SentenceRecord, results: Sequence[StepResult]
    ) -> list[Hypothesis]:
        """Returns the best K hypotheses from the results of all steps."""
        # The first result is in the record, since `Engine` makes the first step apart from the others.
        no_rows = np.zeros(0, dtype=np.int64)
        span = StepSpan(start=0, previous_rows=no_rows, results=list(results[1:]))
        config = self.search.config
        (hypotheses,) = read_hypotheses(
            [sentence],
            [span],
            n_best=config.n_hypotheses,
            vocabulary_size=self.search.model.sizes["tgt"],
            config=config,
        )
        return hypotheses

    def _candidates(self, result: StepResult, parent_scores: Tensor) -> list[TracedCandidate]:
        """Returns the candidates of a step, best first; `parent_scores` `(W,)` are the scores of its hypotheses."""
        config = self.search.config
        candidates = result.candidates
        survivors = candidates.survivors[0].tolist()
        beam_indices = {survivor: beam_index for beam_index, survivor in enumerate(survivors)}
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
        for candidate_index, parent in enumerate(parents):
            if log_probs[candidate_index] == -INFINITY:  # fewer than C continuations exist
                continue
            # In the first step all groups continue the same hypothesis.
            group = candidate_index // group_candidates if is_first_step else parent // group_size
            candidate = TracedCandidate(
                token=tokens[candidate_index],
                parent=parent,
                token_log_prob=token_log_probs[candidate_index],
                log_prob=log_probs[candidate_index],
                beam_index=beam_indices.get(candidate_index),
                ended=ended[candidate_index],
                group=group,
                score=ranking[candidate_index],
            )
            traced.append(candidate)
        return traced

    def _forbidden(self, state: SearchState, limit: int) -> list[TracedCandidate]:
        """Returns the most likely continuations that rules forbid in the next step, at most `limit`, best first.

        PAD and BOS, which can never follow, are left out, and so are continuations that only terms forbid. This writes
        the cache entries of the next position; the step overwrites them with the same values.
        """
        sentences = state.sentences
        rules: dict[str, Rule] = {}  # by setting; a search has at most one rule per setting
        # The forced prefix comes first, so that it is named if several rules forbid a continuation.
        for rule in sorted(sentences.rules, key=lambda rule: rule.name != ForcedPrefix.name):
            name = self._setting_name(rule)
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
            need_attention=True,  # models that copy predict from it
        )
        log_probs = model.predict(output, memory)  # (W,X): the model's own distribution
        n_columns = log_probs.shape[1]
        live = self.search.live_hypotheses(state, log_probs)

        # Index of the rule that forbids each continuation, -1 if it is allowed. Rules are applied in reverse, so that
        # the first one wins.
        forbidden_by = torch.full(
            log_probs.shape, -1, dtype=torch.long, device=log_probs.device
        )  # (W,X)
        for rule_index, rule in reversed(list(enumerate(rules.values()))):
            ruled = rule.apply(log_probs.clone(), live)  # (W,X)
            if rule.may_forbid_all:
                allow_end_if_stuck(ruled, log_probs[:, EOS])
            forbidden_by.masked_fill_(ruled == -INFINITY, rule_index)
        # A later rule may allow a continuation that an earlier one forbids.
        allowed = self.search.apply_rules(state, log_probs.clone()) > -INFINITY  # (W,X)
        forbidden_by.masked_fill_(allowed, -1)
        forbidden_by[:, [PAD, BOS]] = -1

        scores = log_probs + sentences.scores[0, :, None]  # (W,X)
        scores = scores.masked_fill(forbidden_by < 0, -INFINITY).flatten()  # (W*X,)
        best_scores, flat_indices = scores.sort(descending=True, stable=True)
        n_forbidden = int((best_scores[:limit] > -INFINITY).sum())
        flat_indices = flat_indices[:n_forbidden]
        tokens = memory.ids_of(flat_indices % n_columns).tolist()
        parents = (flat_indices // n_columns).tolist()
        token_log_probs = log_probs.flatten()[flat_indices].tolist()
        rule_indices = forbidden_by.flatten()[flat_indices].tolist()
        names = list(rules)
        traced = []
        for rank, score in enumerate(best_scores[:n_forbidden].tolist()):
            candidate = TracedCandidate(
                token=tokens[rank],
                parent=parents[rank],
                token_log_prob=token_log_probs[rank],
                log_prob=score,
                rule=names[rule_indices[rank]],
            )
            traced.append(candidate)
        return traced

    def _setting_name(self, rule: Rule) -> str:
        """Returns the name of the setting that a rule comes from; "" for a rule that every search has."""
        config = self.search.config
        if rule.name == ForbiddenTokens.name and not config.forbid_unknown:
            return ""
        if rule.name == MinLength.name and not config.min_length:
            return "min_length_ratio"  # either of the two settings adds this rule
        return rule.name or config.rule or ""


def _with_extended_ids(
    candidates: Sequence[TracedCandidate], sentence: SentenceRecord, vocabulary_size: int
) -> list[TracedCandidate]:
    """Replaces the ids of the search by extended ids."""
    extended = []
    for candidate in candidates:
        (token,) = sentence.extended_ids([candidate.token], vocabulary_size)
        extended.append(replace(candidate, token=token))
    return extended
