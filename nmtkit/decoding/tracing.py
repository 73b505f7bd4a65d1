"""Traces the search on one sentence step by step, including the continuations that rules forbade.

Notation as in `nmtkit.decoding.beam_search`. Since there is only one sentence, B = 1 and N = W.

    K  hypotheses in the beam, or samples: `SearchConfig.n_hypotheses`
    W  hypotheses that a step continues: 1 in the first step, K in all others
    C  places for candidates in a step: 2K, or K when sampling
    X  columns of the scores in a step: the target vocabulary or the words of a shortlist, and the words that can be
       copied
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.hypotheses import Hypothesis, StepSpan, begin_records, read_hypotheses
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

NO_RULE = -1
"""Represents "no rule" among the indices of rules."""


@dataclass(frozen=True)
class TracedCandidate:
    """A continuation of a hypothesis in one step: either a candidate, or a continuation that a rule forbade."""

    token: int
    """The id of the token; an extended id if the model copies."""
    parent: int
    """Beam index of the hypothesis that the candidate continues; 0 in the first step."""
    token_log_prob: float
    """The log-probability with which the token counts in the search, without penalties.

    It is the model's own log-probability, with four exceptions:

    - An EOS that is forced at the length limit, by `at_limit: end`, counts as 0.
    - The tokens of a prefix count as 0 with the setting `certain_prefix`.
    - If the model gives a probability of zero to a token of a prefix, or to EOS when all other tokens are forbidden,
      the token counts as in `nmtkit.decoding.rules.allow_if_possible`.
    - A registered rule, which `search.rule` selects, may set the log-probability of any token to a new finite value;
      see `Rule.needs_log_probs`.

    A forbidden continuation always has the model's own log-probability.
    """
    log_prob: float
    """Sum of `token_log_prob` over all tokens of the hypothesis."""
    beam_index: int | None = None
    """Index of the candidate in the beam after the step; None if it did not survive.

    Finished hypotheses do not survive. The survivors are the hypotheses that the next step continues, with two
    exceptions: a group of diverse beam search is not continued once it has enough finished hypotheses, and after the
    last step nothing is continued.
    """
    ended: bool = False
    """Whether the candidate became a finished hypothesis."""
    group: int = 0
    """Group of the candidate in diverse beam search; 0 if a rule forbade it."""
    ranking_score: float = -INFINITY
    """Ranking score of the hypothesis. It is minus infinity if a rule forbade the continuation. With required terms, it
    is also minus infinity if the hypothesis lacks one of them and another candidate of the step has them all."""
    rule: str = ""
    """Name of the setting whose rule forbade the continuation, "prefix" if the sentence's prefix forbade it, or "" if
    it was a candidate."""


@dataclass(frozen=True)
class SearchTrace:
    """The decisions made in the search on one sentence."""

    steps: list[list[TracedCandidate]]
    """The candidates of each step in the order of `Candidates`, followed by forbidden continuations, the most likely
    ones first.

    Of the K most likely forbidden continuations, those that are at least as likely as the worst candidate of the step
    are recorded, because the step would probably have considered them. This does not take into account penalties,
    groups and the randomness of samples. If one of the C places for candidates is empty, all K of them are recorded. A
    place is empty if

    - there are fewer than C continuations,
    - a sample has ended in an earlier step,
    - a group of diverse beam search has enough finished hypotheses from earlier steps, or
    - this is the last step with `at_limit: end`, which has one candidate for each hypothesis.

    The following are never recorded, although they are forbidden:

    - PAD and BOS;
    - tokens to which the model gives a probability of zero;
    - continuations that only terms forbid;
    - continuations that a registered rule forbids only because of what earlier rules have changed.
    """
    hypotheses: list[Hypothesis]
    """The hypotheses that the search found, best first, at most K: finished ones and those cut at the length limit.

    Only the first `BeamSearch.n_best` are certain to be the best ones, because `stop: exact` compares no more of them.
    """
    length_limit: int
    """Maximum number of tokens, including EOS."""


@torch.no_grad()
def trace_search(search: BeamSearch, batch: Batch, sentence_number: int = 0) -> SearchTrace:
    """Runs the search on the only sentence of a batch, and records the candidates of every step.

    The first `search.n_best` hypotheses are the same as those of `Engine.run`, except that sums are rounded differently
    in batches of different sizes. Random samples depend on `sentence_number`, the sentence's number in `Engine.run`.
    """
    assert batch.size == 1, f"the batch must have exactly one sentence, but has {batch.size}"
    assert not search.model.training, "the model is in training mode: call model.eval() first"
    config = search.config
    state = search.begin(batch)
    number = torch.full_like(state.sentences.number, sentence_number)  # (B,)
    state.sentences = replace(state.sentences, number=number)

    # 1. The search.
    parent_log_probs_by_step: list[Tensor] = []  # (W,) in each step
    forbidden_by_step: list[list[TracedCandidate]] = []
    results: list[StepResult] = []
    is_done = False
    while not is_done:
        parent_log_probs_by_step.append(state.sentences.scores[0])
        forbidden_by_step.append(_forbidden_continuations(search, batch, state))
        results.append(search.step(state))
        is_done = bool(state.sentences.done[0])

    # 2. The hypotheses. `Engine.run` takes the first step of new sentences before they share steps with others, so
    # `read_hypotheses` expects the result of the first step in the sentence's record. The results of all other steps
    # form a single span.
    first_result = results[0]
    span = StepSpan(start=0, results=results[1:])
    (record,) = begin_records(
        search.model,
        batch,
        numbers=[sentence_number],
        limits=state.limits,
        first_result=first_result,
        start=0,
    )
    record.end = len(span.results)
    (hypotheses,) = read_hypotheses(
        [record],
        [span],
        n_best=config.n_hypotheses,
        vocabulary_size=search.model.sizes["tgt"],
        config=config,
    )

    # 3. The candidates of each step.
    steps = []
    for result, parent_log_probs, forbidden in zip(
        results, parent_log_probs_by_step, forbidden_by_step, strict=True
    ):
        candidates = _traced_candidates(search, batch, result, parent_log_probs)
        if batch.terms is not None:
            candidates = _without_repetitions(candidates)
        # An empty place has a log-probability of minus infinity, so all forbidden continuations are recorded; see
        # `SearchTrace.steps`.
        worst_log_prob = float(result.candidates.scores[0].min())
        for candidate in forbidden:
            if candidate.log_prob >= worst_log_prob:
                candidates.append(candidate)
        steps.append(candidates)
    return SearchTrace(steps=steps, hypotheses=hypotheses, length_limit=state.limits[0])


def _traced_candidates(
    search: BeamSearch, batch: Batch, result: StepResult, parent_log_probs: Tensor
) -> list[TracedCandidate]:
    """Returns the candidates of a step, given the log-probabilities `(W,)` of the hypotheses before it."""
    config = search.config
    candidates = result.candidates
    # If there are fewer than K survivors, other candidates fill their places. The scores of such places are minus
    # infinity.
    beam_indices: dict[int, int] = {}  # by the index of the candidate
    survivors = candidates.survivors[0].tolist()
    survivor_log_probs = candidates.survivor_scores[0].tolist()
    for beam_index, log_prob in enumerate(survivor_log_probs):
        if log_prob > -INFINITY:
            beam_indices[survivors[beam_index]] = beam_index

    candidates_per_group = candidates.columns.shape[1] // config.n_groups
    hypotheses_per_group = config.n_hypotheses // config.n_groups
    has_one_parent = len(parent_log_probs) == 1  # in the first step, and with a beam of size 1
    tokens = result.tokens[0].tolist()
    parents = candidates.parents[0].tolist()
    # NaN for the empty places of hypotheses that are not continued; the loop below skips all empty places.
    token_log_probs = (candidates.scores - parent_log_probs[candidates.parents])[0].tolist()
    total_log_probs = candidates.scores[0].tolist()
    ended = candidates.ended[0].tolist()
    ranking_scores = result.ranking[0].tolist()
    traced = []
    for index, parent in enumerate(parents):
        if total_log_probs[index] == -INFINITY:  # an empty place
            continue
        # In the first step, all groups continue the same hypothesis, so it does not determine the group. In other steps
        # the index does not determine it: the last step with `at_limit: end` has one candidate for each hypothesis, in
        # the order of the hypotheses.
        group = index // candidates_per_group if has_one_parent else parent // hypotheses_per_group
        candidate = TracedCandidate(
            token=_extended_id(search, batch, tokens[index]),
            parent=parent,
            token_log_prob=token_log_probs[index],
            log_prob=total_log_probs[index],
            beam_index=beam_indices.get(index),
            ended=ended[index],
            group=group,
            ranking_score=ranking_scores[index],
        )
        traced.append(candidate)
    return traced


def _without_repetitions(candidates: Sequence[TracedCandidate]) -> list[TracedCandidate]:
    """Removes duplicate candidates.

    A search with terms pads the survivors and the finished candidates to K with other candidates, so a candidate can be
    listed twice. The entry in which it survived or ended is kept, if there is one.
    """
    chosen_first = sorted(
        candidates, key=lambda candidate: candidate.beam_index is None and not candidate.ended
    )
    by_continuation: dict[tuple[int, int], TracedCandidate] = {}
    for candidate in chosen_first:
        by_continuation.setdefault((candidate.parent, candidate.token), candidate)
    distinct = []
    for candidate in candidates:
        if candidate is by_continuation[candidate.parent, candidate.token]:
            distinct.append(candidate)
    return distinct


def _extended_id(search: BeamSearch, batch: Batch, token: int) -> int:
    """Converts an id of the search, which numbers unknown words by source position, to an extended id."""
    source_position = token - search.model.sizes["tgt"]
    if source_position < 0:
        return token
    return int(batch.inputs.copy.extended[0, source_position])


def _forbidden_continuations(
    search: BeamSearch, batch: Batch, state: SearchState
) -> list[TracedCandidate]:
    """Returns the most likely continuations that rules forbid in the next step, at most K, best first.

    See `SearchTrace.steps` for those that are left out.
    """
    sentences = state.sentences
    memory = sentences.memory
    named_rules = _named_rules(sentences.rules, search.config)
    if not named_rules:
        return []
    # This writes the cache entries of the current position; the step computes and writes the same entries again.
    output, _ = search.advance_model(state)
    token_log_probs = search.model.predict(output, memory)  # (W,X): the model's own distribution
    rules = [rule for _, rule in named_rules]
    forbidden_by = _forbidding_rules(search, state, token_log_probs, rules)  # (W,X)
    forbidden_by[:, [PAD, BOS]] = NO_RULE

    total_log_probs = token_log_probs + sentences.scores[0, :, None]  # (W,X)
    total_log_probs = total_log_probs.masked_fill(forbidden_by == NO_RULE, -INFINITY)
    best_totals, flat_indices = total_log_probs.flatten().sort(descending=True, stable=True)
    n_hypotheses = search.config.n_hypotheses
    n_returned = int((best_totals[:n_hypotheses] > -INFINITY).sum())
    flat_indices = flat_indices[:n_returned]
    best_totals = best_totals[:n_returned]
    n_columns = token_log_probs.shape[1]
    tokens = memory.ids_of(flat_indices % n_columns).tolist()
    parents = (flat_indices // n_columns).tolist()
    best_token_log_probs = token_log_probs.flatten()[flat_indices].tolist()
    rule_indices = forbidden_by.flatten()[flat_indices].tolist()
    traced = []
    for rank, total_log_prob in enumerate(best_totals.tolist()):
        name, _ = named_rules[rule_indices[rank]]
        candidate = TracedCandidate(
            token=_extended_id(search, batch, tokens[rank]),
            parent=parents[rank],
            token_log_prob=best_token_log_probs[rank],
            log_prob=total_log_prob,
            rule=name,
        )
        traced.append(candidate)
    return traced


def _forbidding_rules(
    search: BeamSearch, state: SearchState, token_log_probs: Tensor, rules: Sequence[Rule]
) -> Tensor:
    """Returns the index in `rules` of the first rule that forbids each continuation, or `NO_RULE`, `(W,X)`.

    Each rule is applied to a copy of the model's log-probabilities `token_log_probs` `(W,X)`, not to the result of the
    rules that the search applies before it. So if a registered rule forbids a continuation only because of what earlier
    rules have changed, the result is `NO_RULE`, although the search forbids the continuation. The result is also
    `NO_RULE` for tokens to which the model gives a probability of zero.
    """
    live = search.live_hypotheses(state, token_log_probs)
    is_possible = token_log_probs > -INFINITY  # (W,X)
    forbidden_by = torch.full(
        token_log_probs.shape, NO_RULE, dtype=torch.long, device=token_log_probs.device
    )  # (W,X)
    for index, rule in enumerate(rules):
        ruled = rule.apply(token_log_probs.clone(), live)  # (W,X)
        if rule.may_forbid_all:
            allow_end_if_stuck(ruled, token_log_probs[:, EOS])
        is_forbidden = is_possible & (ruled == -INFINITY)  # (W,X)
        is_first = is_forbidden & (forbidden_by == NO_RULE)  # (W,X)
        forbidden_by.masked_fill_(is_first, index)
    # A later rule may allow a continuation that an earlier one forbids.
    is_allowed = search.apply_rules(state, token_log_probs.clone()) > -INFINITY  # (W,X)
    return forbidden_by.masked_fill(is_allowed, NO_RULE)


def _named_rules(rules: Sequence[Rule], config: SearchConfig) -> list[tuple[str, Rule]]:
    """Returns the rules that come from settings or from the sentence's prefix, each with its name in the trace.

    They are in the order in which the search applies them, except that the forced prefix comes first. So the prefix is
    named if several rules forbid the same continuation.
    """
    named_rules = []
    for rule in sorted(rules, key=lambda rule: not isinstance(rule, ForcedPrefix)):
        name = _rule_name(rule, config)
        if name:
            named_rules.append((name, rule))
    return named_rules


def _rule_name(rule: Rule, config: SearchConfig) -> str:
    """Returns the name of the setting that adds a rule, "prefix" for a prefix, or "" if every search has the rule.

    If both `min_length` and `min_length_ratio` are set, the name is `min_length`.
    """
    if isinstance(rule, ForbiddenTokens) and not config.forbid_unknown:
        return ""
    if isinstance(rule, MinLength) and not config.min_length:
        return "min_length_ratio"
    if rule.name:
        return rule.name
    assert config.rule is not None, "only a registered rule may have no name"
    return config.rule
