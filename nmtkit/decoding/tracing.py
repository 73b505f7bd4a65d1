"""Traces the search on one sentence step by step, including the continuations that rules forbade.

Notation as in `nmtkit.decoding.beam_search`, with B = 1, so N = W.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.hypotheses import (
    Hypothesis,
    SentenceRecord,
    StepSpan,
    begin_records,
    read_hypotheses,
)
from nmtkit.decoding.rules import (
    INFINITY,
    ForbiddenTokens,
    ForcedPrefix,
    MinLength,
    Rule,
    allow_end_if_stuck,
)
from nmtkit.decoding.search_state import SearchState
from nmtkit.decoding.settings import SearchConfig

ALLOWED = -1
"""Index of the rule that forbids a continuation if no rule forbids it."""


@dataclass(frozen=True)
class TracedCandidate:
    """A continuation of a hypothesis that was a candidate in a step, or that a rule forbade."""

    token: int
    """The id of the token; an extended id if the model copies."""
    parent: int
    """Beam index of the hypothesis that the candidate continues; 0 in the first step."""
    token_log_prob: float
    """The log-probability with which the token counts, without penalties.

    It is the model's own, with three exceptions: an EOS forced at the length limit and the tokens of a certain prefix
    count as 0, and a required token whose probability is zero counts as in `nmtkit.decoding.rules.allow_if_possible`.
    """
    log_prob: float
    """Sum of these log-probabilities over all tokens of the hypothesis."""
    beam_index: int | None = None
    """Index of the candidate among the survivors of the step, which form the beam of the next step if there is one;
    None if it did not survive. When sampling, all candidates survive, even those that ended and are not continued.
    Meaningless in the last step with `at_limit: end`, in which all candidates end."""
    ended: bool = False
    """Whether the candidate became a finished hypothesis."""
    group: int = 0
    """Group of the candidate in diverse beam search; 0 if a rule forbade it."""
    ranking_score: float = -INFINITY
    """Ranking score of the hypothesis; minus infinity if a rule forbade it, or if it does not contain all required
    terms."""
    rule: str = ""
    """Name of the setting whose rule forbade the continuation, or "" if it was a candidate."""


@dataclass(frozen=True)
class SearchTrace:
    """All decisions made in the search on one sentence."""

    steps: list[list[TracedCandidate]]
    """The candidates of each step in the order of `Candidates`, followed by at most K of the continuations that rules
    forbade, the most likely ones first."""
    hypotheses: list[Hypothesis]
    """The hypotheses that the search found, best first, at most K: finished ones and those cut at the length limit.

    Only the first `BeamSearch.n_best` are certain to be the best ones, because `stop: exact` compares no more of them.
    """
    length_limit: int
    """Maximum number of tokens, including EOS."""


@torch.no_grad()
def trace_search(search: BeamSearch, batch: Batch, sentence_number: int = 0) -> SearchTrace:
    """Runs the search on the only sentence of a batch, and records the candidates of every step.

    The first `search.n_best` hypotheses are the same as those of `Engine.run` for a sentence with this number, which
    seeds random samples. The model must be in eval mode.
    """
    assert batch.size == 1, f"the batch must have exactly one sentence, but has {batch.size}"
    config = search.config
    vocabulary_size = search.model.sizes["tgt"]
    state = search.begin(batch)
    number = torch.full_like(state.sentences.number, sentence_number)  # (B,)
    state.sentences = replace(state.sentences, number=number)

    # 1. The search.
    parent_log_probs: list[Tensor] = []  # before each step, (W,)
    forbidden: list[list[TracedCandidate]] = []  # in each step
    results: list[StepResult] = []
    is_done = False
    while not is_done:
        parent_log_probs.append(state.sentences.scores[0])
        forbidden.append(_forbidden_continuations(search, state, max_count=config.n_hypotheses))
        results.append(search.step(state))
        is_done = bool(state.sentences.done[0])

    # 2. The hypotheses. The first step is not in a span, because its result is part of the sentence's record.
    (record,) = begin_records(
        search.model,
        batch,
        numbers=[sentence_number],
        limits=state.limits,
        first_result=results[0],
        start=0,
    )
    record.end = len(results) - 1  # the number of shared steps, as in `nmtkit.decoding.slots.Slots`
    (hypotheses,) = read_hypotheses(
        [record],
        [StepSpan(start=0, results=results[1:])],
        n_best=config.n_hypotheses,
        vocabulary_size=vocabulary_size,
        config=config,
    )

    # 3. The candidates of each step.
    steps = []
    for result, log_probs, forbidden_in_step in zip(
        results, parent_log_probs, forbidden, strict=True
    ):
        candidates = _traced_candidates(result, log_probs, config)
        # Only forbidden continuations that the step would probably have considered: those that are at least as likely
        # as its worst candidate. This does not take into account penalties, groups and the randomness of samples. With
        # fewer than C continuations, and in the last step with `at_limit: end`, the worst log-probability may be minus
        # infinity, and then all forbidden ones are recorded.
        worst_log_prob = float(result.candidates.scores[0].min())
        for candidate in forbidden_in_step:
            if candidate.log_prob >= worst_log_prob:
                candidates.append(candidate)
        steps.append(_with_extended_ids(candidates, record, vocabulary_size))
    return SearchTrace(steps=steps, hypotheses=hypotheses, length_limit=state.limits[0])


def _traced_candidates(
    result: StepResult, parent_log_probs: Tensor, config: SearchConfig
) -> list[TracedCandidate]:
    """Returns the candidates of a step, given the log-probabilities `(W,)` of the hypotheses before it."""
    candidates = result.candidates
    survivors = candidates.survivors[0].tolist()
    beam_indices = {survivor: beam_index for beam_index, survivor in enumerate(survivors)}
    candidates_per_group = candidates.columns.shape[1] // config.n_groups
    hypotheses_per_group = config.n_hypotheses // config.n_groups
    has_one_parent = len(parent_log_probs) == 1  # in the first step, and with a beam of size 1
    tokens = result.tokens[0].tolist()
    parents = candidates.parents[0].tolist()
    # May be NaN for candidates that are missing in a step with fewer than C continuations; the loop below skips them.
    token_log_probs = (candidates.scores - parent_log_probs[candidates.parents])[0].tolist()
    log_probs = candidates.scores[0].tolist()
    ended = candidates.ended[0].tolist()
    ranking_scores = result.ranking[0].tolist()
    traced = []
    for index, parent in enumerate(parents):
        if log_probs[index] == -INFINITY:  # missing
            continue
        # In the first step, all groups continue the same hypothesis, so it does not determine the group. In other steps
        # the index does not determine it: the last step with `at_limit: end` has one candidate for each hypothesis, in
        # the order of the hypotheses.
        group = index // candidates_per_group if has_one_parent else parent // hypotheses_per_group
        candidate = TracedCandidate(
            token=tokens[index],
            parent=parent,
            token_log_prob=token_log_probs[index],
            log_prob=log_probs[index],
            beam_index=beam_indices.get(index),
            ended=ended[index],
            group=group,
            ranking_score=ranking_scores[index],
        )
        traced.append(candidate)
    return traced


def _forbidden_continuations(
    search: BeamSearch, state: SearchState, max_count: int
) -> list[TracedCandidate]:
    """Returns the most likely continuations that rules forbid in the next step, at most `max_count`, best first.

    PAD and BOS, which are never allowed, are left out, and so are continuations that only terms forbid.
    """
    sentences = state.sentences
    memory = sentences.memory
    named_rules = _named_rules(sentences.rules, search.config)
    if not named_rules:
        return []
    # This writes the cache entries of the current position; the step computes and writes the same entries again.
    output, _ = search.advance_model(state)
    log_probs = search.model.predict(output, memory)  # (W,X): the model's own distribution
    rules = [rule for _, rule in named_rules]
    forbidden_by = _forbidding_rules(search, state, log_probs, rules)  # (W,X)
    forbidden_by[:, [PAD, BOS]] = ALLOWED

    total_log_probs = log_probs + sentences.scores[0, :, None]  # (W,X)
    total_log_probs = total_log_probs.masked_fill(forbidden_by == ALLOWED, -INFINITY)
    best_log_probs, flat_indices = total_log_probs.flatten().sort(descending=True, stable=True)
    n_forbidden = int((best_log_probs[:max_count] > -INFINITY).sum())
    flat_indices = flat_indices[:n_forbidden]
    n_columns = log_probs.shape[1]
    tokens = memory.ids_of(flat_indices % n_columns).tolist()
    parents = (flat_indices // n_columns).tolist()
    token_log_probs = log_probs.flatten()[flat_indices].tolist()
    rule_indices = forbidden_by.flatten()[flat_indices].tolist()
    traced = []
    for rank, log_prob in enumerate(best_log_probs[:n_forbidden].tolist()):
        name, _ = named_rules[rule_indices[rank]]
        candidate = TracedCandidate(
            token=tokens[rank],
            parent=parents[rank],
            token_log_prob=token_log_probs[rank],
            log_prob=log_prob,
            rule=name,
        )
        traced.append(candidate)
    return traced


def _forbidding_rules(
    search: BeamSearch, state: SearchState, log_probs: Tensor, rules: Sequence[Rule]
) -> Tensor:
    """Returns the index of the first rule that forbids each continuation, or `ALLOWED`, `(W,X)`.

    Each rule is applied on its own to the model's log-probabilities `log_probs` `(W,X)`. So a continuation counts as
    allowed if a registered rule forbids it only because of what earlier rules have changed.
    """
    live = search.live_hypotheses(state, log_probs)
    forbidden_by = torch.full(
        log_probs.shape, ALLOWED, dtype=torch.long, device=log_probs.device
    )  # (W,X)
    for index, rule in enumerate(rules):
        ruled = rule.apply(log_probs.clone(), live)  # (W,X)
        if rule.may_forbid_all:
            allow_end_if_stuck(ruled, log_probs[:, EOS])
        is_first = (ruled == -INFINITY) & (forbidden_by == ALLOWED)  # (W,X)
        forbidden_by.masked_fill_(is_first, index)
    # A later rule may allow a continuation that an earlier one forbids.
    is_allowed = search.apply_rules(state, log_probs.clone()) > -INFINITY  # (W,X)
    return forbidden_by.masked_fill(is_allowed, ALLOWED)


def _named_rules(rules: Sequence[Rule], config: SearchConfig) -> list[tuple[str, Rule]]:
    """Returns the rules that come from settings, each with the name of its setting.

    The forced prefix comes first, so that it is named if several rules forbid the same continuation.
    """
    named_rules = []
    for rule in sorted(rules, key=lambda rule: not isinstance(rule, ForcedPrefix)):
        name = _setting_name(rule, config)
        if name:
            named_rules.append((name, rule))
    return named_rules


def _setting_name(rule: Rule, config: SearchConfig) -> str:
    """Returns the name of the setting that adds a rule, or "" if every search has the rule.

    If both `min_length` and `min_length_ratio` are set, it is `min_length`.
    """
    if isinstance(rule, ForbiddenTokens) and not config.forbid_unknown:
        return ""
    if isinstance(rule, MinLength) and not config.min_length:
        return "min_length_ratio"
    if rule.name:
        return rule.name
    return config.rule or ""  # a registered rule without a name


def _with_extended_ids(
    candidates: Sequence[TracedCandidate], record: SentenceRecord, vocabulary_size: int
) -> list[TracedCandidate]:
    """Converts the ids of candidates, in which unknown words are numbered by source position, to extended ids."""
    extended = []
    for candidate in candidates:
        (token,) = record.extended_ids([candidate.token], vocabulary_size)
        extended.append(replace(candidate, token=token))
    return extended
