"""Traces the search on one sentence: the candidates of each step, and likely continuations that rules forbade.

`trace_search` decodes with `Engine` as usual, and observes the steps: see `BeamSearch.observed_by`. An observer also
sees the model's log-probabilities before the rules, and applies each rule to them on its own. A continuation that the
search forbids is attributed to the first rule that forbids it on its own, or to the prefix if that does.

    K   beam size, or number of samples
    W   hypotheses that a step continues: 1 in the first step, otherwise K
    V   size of the target vocabulary
    X   columns of scores: the target vocabulary, or the words of a shortlist, and source positions to copy
    C   candidates of a step

There is one sentence (B = 1), so the search has N = W hypotheses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, PAD
from nmtkit.decoding.beam_search import BeamSearch, ObservedStep, StepResult
from nmtkit.decoding.candidates import stable_topk
from nmtkit.decoding.engine import Engine, OneBatch
from nmtkit.decoding.hypotheses import (
    Hypothesis,
    SentenceRecord,
    StepSpan,
    begin_records,
    read_hypotheses,
)
from nmtkit.decoding.rules import INFINITY, Rule, apply_rules
from nmtkit.decoding.settings import SearchConfig

_NO_RULE = -1
"""Represents "no rule" among the indices of rules."""
_UNRECORDED_RULES = ("unused_tokens", "terms")
"""Rules whose forbidden continuations are not recorded: PAD and BOS are of no interest, and terms forbid too much."""


@dataclass(frozen=True)
class TracedContinuation:
    """A continuation of a hypothesis in one step: either a candidate, or a continuation that a rule forbade."""

    token: int
    """The id of the token; an extended id if the model copies."""
    parent: int
    """Beam index of the hypothesis that is continued; 0 in the first step."""
    group: int | None
    """Group of the continued hypothesis in diverse beam search; 0 if there is only one group.

    In the first step, all groups continue the same hypothesis. There, the group is the one that considered the
    candidate, and None for a forbidden continuation if there are several groups.
    """
    token_log_prob: float
    """The log-probability with which the token counts in the search, without penalties.

    It is the model's own log-probability, except that the search counts an EOS forced by `at_limit: end` and, with
    `certain_prefix`, the tokens of a prefix as 0. Required tokens of probability zero count as in
    `nmtkit.decoding.rules.allow_if_possible`, and a registered rule may set new values. A forbidden continuation always
    has the model's own log-probability.

    For a candidate, it is the difference between two values of `log_prob`, so it has their rounding error.
    """
    log_prob: float
    """Log-probability of the hypothesis: the sum over its tokens, rounded to float32 unless the model is in float64.

    If a `Hypothesis` ends with this candidate, the value is bit-identical to `Hypothesis.log_prob`.
    """
    beam_index: int | None = None
    """Index of the candidate in the beam after the step; None if it did not survive.

    Finished hypotheses do not survive. The survivors are the hypotheses that the next step continues, with two
    exceptions: a group of diverse beam search is not continued once it has enough finished hypotheses, and after the
    last step nothing is continued.
    """
    ended: bool = False
    """Whether the candidate became a finished hypothesis."""
    ranking_score: float | None = None
    """Ranking score of the hypothesis; None if a rule forbade the continuation.

    With required terms, it is minus infinity if the hypothesis lacks one of them and another candidate of the step
    lacks none. A candidate that ends in EOS counts as lacking none.
    """
    forbidden_by: str | None = None
    """What forbade the continuation: the name of a setting (or of two), "prefix", or the name of a registered rule;
    None for a candidate."""

    @property
    def is_forbidden(self) -> bool:
        """Whether a rule forbade the continuation."""
        return self.forbidden_by is not None


@dataclass(frozen=True)
class SearchTrace:
    """The decisions made in the search on one sentence."""

    steps: list[list[TracedContinuation]]
    """The candidates of each step in the order of `nmtkit.decoding.candidates.Candidates`, without empty places and
    duplicates, followed by forbidden continuations, the most likely ones first.

    A forbidden continuation is recorded if it is among the K most likely forbidden ones and at least as likely as the
    worst candidate of the step.

    - If the step has an empty place (see `Candidates.scores`), for example after a sample has ended, or in the last
      step with `at_limit: end`, the K most likely ones are all recorded, even if the step could not have considered
      them.
    - Penalties, groups and the randomness of samples are not taken into account.
    - PAD, BOS, words outside a shortlist, tokens to which the model gives a probability of zero, continuations that
      only terms forbid, and those that a registered rule forbids only because of what earlier rules have changed are
      never recorded.
    """
    hypotheses: list[Hypothesis]
    """The hypotheses that the search found, best first, at most K: finished ones and those cut at the length limit.

    Only the first `BeamSearch.n_best` are certain to be the best ones, because `stop: exact` compares no more of them.
    """
    length_limit: int
    """Maximum number of tokens, including EOS."""


@dataclass(frozen=True)
class _RecordedStep:
    """What is kept of a step."""

    parent_log_probs: Tensor
    """Log-probabilities of the hypotheses that the step continued, `(W,)`."""
    forbidden: list[TracedContinuation]
    """The K most likely continuations that rules forbade."""
    result: StepResult
    is_done: Tensor
    """Whether the search of the sentence ended with this step, `()`, bool."""
    limit: int
    """Maximum number of tokens of the sentence, including EOS."""


def trace_search(search: BeamSearch, batch: Batch, sentence_number: int = 0) -> SearchTrace:
    """Runs the search on the only sentence of a batch, and records the candidates of every step.

    The first `search.n_best` hypotheses are the same as those of `Engine.run`, except that sums are rounded differently
    in batches of different sizes. Random samples depend on `sentence_number`, the sentence's number in `Engine.run`.

    Raises:
        RecipeError: the batch has terms that this search does not support; a rule rejects the batch; or a shortlist is
            used without source text or with a model that has no output matrix.
        CheckpointError: the model's log-probabilities are NaN.
    """
    assert batch.size == 1, f"the batch must have exactly one sentence, but has {batch.size}"
    config = search.config
    recorded_steps: list[_RecordedStep] = []

    def record_step(step: ObservedStep) -> None:
        recorded_step = _RecordedStep(
            parent_log_probs=step.scores[0],
            forbidden=_forbidden_continuations(config, step),
            result=step.result,
            is_done=step.done[0],
            limit=step.limits[0],
        )
        recorded_steps.append(recorded_step)

    engine = Engine(search.observed_by(record_step), steps="eager")
    for _ in engine.run(OneBatch(batch, [sentence_number]), refill=False):
        pass  # the hypotheses are read below: all K of them, not only the `search.n_best` best ones
    # The engine may take further steps before it notices that the sentence is done.
    n_steps = 1 + [bool(recorded.is_done) for recorded in recorded_steps].index(True)
    recorded_steps = recorded_steps[:n_steps]

    record, hypotheses = _read_hypotheses(search, batch, sentence_number, recorded_steps)
    vocabulary_size = search.model.sizes["tgt"]
    steps = []
    for recorded in recorded_steps:
        continuations = _traced_candidates(config, recorded.result, recorded.parent_log_probs)
        if batch.terms is not None:
            continuations = _without_duplicates(continuations)
        # Forbidden continuations that are at least as likely as the worst candidate.
        worst_log_prob = float(recorded.result.candidates.scores[0].min())
        for continuation in recorded.forbidden:
            if continuation.log_prob >= worst_log_prob:
                continuations.append(continuation)
        steps.append(
            [
                _with_extended_id(continuation, record, vocabulary_size)
                for continuation in continuations
            ]
        )
    return SearchTrace(steps=steps, hypotheses=hypotheses, length_limit=record.limit)


def _read_hypotheses(
    search: BeamSearch, batch: Batch, number: int, recorded_steps: Sequence[_RecordedStep]
) -> tuple[SentenceRecord, list[Hypothesis]]:
    """Returns the record of the sentence, and all hypotheses that the search found, best first, at most K."""
    # `Engine.run` takes the first step of new sentences before they share steps with others, so `read_hypotheses`
    # expects the result of the first step in the sentence's record. The results of all other steps form a single span.
    first_result, *further_results = [recorded.result for recorded in recorded_steps]
    span = StepSpan(start=0, results=further_results)
    (record,) = begin_records(
        search.model,
        batch,
        numbers=[number],
        limits=[recorded_steps[0].limit],
        first_result=first_result,
        start=0,
    )
    record.end = len(span.results)
    (hypotheses,) = read_hypotheses(
        [record],
        [span],
        n_best=search.config.n_hypotheses,
        vocabulary_size=search.model.sizes["tgt"],
        config=search.config,
    )
    return record, hypotheses


def _with_extended_id(
    continuation: TracedContinuation, record: SentenceRecord, vocabulary_size: int
) -> TracedContinuation:
    """Converts the token's id to an extended id; in the search, unknown words are numbered by source position."""
    (extended_id,) = record.extended_ids([continuation.token], vocabulary_size)
    return replace(continuation, token=extended_id)


# ----------------------------------------------------------------------------------------------------------- candidates


def _traced_candidates(
    config: SearchConfig, result: StepResult, parent_log_probs: Tensor
) -> list[TracedContinuation]:
    """Returns the candidates of a step, given the log-probabilities `(W,)` of the hypotheses before it."""
    candidates = result.candidates
    # If there are fewer than K survivors, other candidates fill their places. The scores of such places are minus
    # infinity.
    beam_indices: dict[int, int] = {}  # by the index of the candidate
    survivors = candidates.survivors[0].tolist()
    survivor_log_probs = candidates.survivor_scores[0].tolist()
    for beam_index, log_prob in enumerate(survivor_log_probs):
        if log_prob > -INFINITY:
            beam_indices[survivors[beam_index]] = beam_index

    width = len(parent_log_probs)
    candidates_per_group = candidates.columns.shape[1] // config.n_groups
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
        group = _group_of_parent(config, parent, width)
        if group is None:
            # The candidates are in the order of their groups. (With a length limit of 1 and `at_limit: end`, the only
            # candidate is the first one, which counts as a candidate of group 0.)
            group = index // candidates_per_group
        candidate = TracedContinuation(
            token=tokens[index],
            parent=parent,
            group=group,
            token_log_prob=token_log_probs[index],
            log_prob=total_log_probs[index],
            beam_index=beam_indices.get(index),
            ended=ended[index],
            ranking_score=ranking_scores[index],
        )
        traced.append(candidate)
    return traced


def _group_of_parent(config: SearchConfig, parent: int, width: int) -> int | None:
    """Returns the group of a hypothesis, one of W hypotheses that a step continues.

    In the first step of a search with several groups, the result is None: all groups continue the same hypothesis.
    """
    is_first_step = width == 1  # several groups have several hypotheses
    if is_first_step and config.n_groups > 1:
        return None
    group_size = config.n_hypotheses // config.n_groups
    return parent // group_size


def _without_duplicates(candidates: Sequence[TracedContinuation]) -> list[TracedContinuation]:
    """Removes duplicate candidates; their ids are those of the search, not yet extended ids.

    A search with terms pads the survivors and the finished candidates to K with other candidates, so a candidate can be
    listed twice. The entry in which it survived or ended is kept, if there is one. Such a search has a single group.
    """
    first_entry_of: dict[tuple[int, int], TracedContinuation] = {}
    for candidate in sorted(candidates, key=_is_chosen, reverse=True):
        first_entry_of.setdefault((candidate.parent, candidate.token), candidate)
    return [
        candidate
        for candidate in candidates
        if candidate is first_entry_of[candidate.parent, candidate.token]
    ]


def _is_chosen(candidate: TracedContinuation) -> bool:
    return candidate.ended or candidate.beam_index is not None


# ---------------------------------------------------------------------------------------------- forbidden continuations


def _forbidden_continuations(config: SearchConfig, step: ObservedStep) -> list[TracedContinuation]:
    """Returns the most likely continuations that rules forbade in a step, at most K, best first.

    The caller drops those less likely than the worst candidate. See `SearchTrace.steps` for those that are left out
    here.
    """
    named_rules = _named_rules(step)
    if not named_rules:
        return []
    token_log_probs = step.own_log_probs  # (W,X)
    rule_indices = _first_forbidding_rule(step, [rule for _, rule in named_rules])  # (W,X)
    rule_indices[:, [PAD, BOS]] = _NO_RULE

    total_log_probs = token_log_probs + step.scores[0, :, None]  # (W,X)
    total_log_probs = total_log_probs.masked_fill(rule_indices == _NO_RULE, -INFINITY)  # (W,X)
    flat_totals = total_log_probs.reshape(1, -1)  # (1,W*X)
    n_chosen = min(config.n_hypotheses, flat_totals.shape[1])
    best_totals, flat_indices = stable_topk(flat_totals, n_chosen)  # (1,chosen)
    is_forbidden = best_totals > -INFINITY  # (1,chosen)
    best_totals = best_totals[is_forbidden]  # (M,)
    flat_indices = flat_indices[is_forbidden]  # (M,)
    width, n_columns = token_log_probs.shape
    tokens = step.live.memory.ids_of(flat_indices % n_columns).tolist()
    parents = (flat_indices // n_columns).tolist()
    best_token_log_probs = token_log_probs.flatten()[flat_indices].tolist()
    chosen_rule_indices = rule_indices.flatten()[flat_indices].tolist()
    traced = []
    for rank, total_log_prob in enumerate(best_totals.tolist()):
        rule_index = chosen_rule_indices[rank]
        assert rule_index != _NO_RULE
        name, _ = named_rules[rule_index]
        continuation = TracedContinuation(
            token=tokens[rank],
            parent=parents[rank],
            group=_group_of_parent(config, parents[rank], width),
            token_log_prob=best_token_log_probs[rank],
            log_prob=total_log_prob,
            forbidden_by=name,
        )
        traced.append(continuation)
    return traced


def _first_forbidding_rule(step: ObservedStep, rules: Sequence[Rule]) -> Tensor:
    """Returns the index in `rules` of the first rule that forbids each continuation, or `_NO_RULE`, `(W,X)`.

    Each rule is applied to a copy of the model's own log-probabilities, not to the result of the rules that the search
    applies before it. The entry is `_NO_RULE` in three cases even if a rule sets the token to minus infinity:

    - the search allows it after all, because a later rule overrides the rule or because all other tokens are forbidden,
    - the model gives the token a probability of zero, or
    - a registered rule forbids it only because of what earlier rules have changed.
    """
    token_log_probs = step.own_log_probs  # (W,X)
    is_possible = token_log_probs > -INFINITY  # (W,X)
    rule_indices = torch.full(
        token_log_probs.shape, _NO_RULE, dtype=torch.long, device=token_log_probs.device
    )  # (W,X)
    for index, rule in enumerate(rules):
        allowed_log_probs = apply_rules([rule], token_log_probs.clone(), step.live)  # (W,X)
        is_forbidden = is_possible & (allowed_log_probs == -INFINITY)  # (W,X)
        is_first = is_forbidden & (rule_indices == _NO_RULE)  # (W,X)
        rule_indices.masked_fill_(is_first, index)
    is_allowed = step.values > -INFINITY  # (W,X)
    return rule_indices.masked_fill(is_allowed, _NO_RULE)


def _named_rules(step: ObservedStep) -> list[tuple[str, Rule]]:
    """Returns the rules whose forbidden continuations are recorded, each with its name.

    They are in the order in which the search applies them, except that the forced prefix comes first. The prefix
    overrides earlier rules, so it is the one to name if several rules forbid the same continuation.
    """
    named_rules: list[tuple[str, Rule]] = []
    for name, rule in zip(step.rule_names, step.rules, strict=True):
        if name == "prefix":
            named_rules.insert(0, (name, rule))
        elif name not in _UNRECORDED_RULES:
            named_rules.append((name, rule))
    return named_rules
