"""What a trace of a search records about its candidates."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from typing_extensions import override

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.constraints import Constraints
from nmtkit.decoding.rules import RULES, ForbiddenTokens, Rule, TargetTokens
from nmtkit.decoding.settings import SearchConfig
from nmtkit.decoding.tracing import SearchTrace, trace_search
from tests.decoding.table_model import (
    A,
    B,
    C,
    TableModel,
    by_hand,
    random_tables,
    sources,
    unlimited,
)

SIZE = 12
"""Size of the vocabulary."""


def traced(seed: int = 0, **settings: object) -> SearchTrace:
    model = TableModel(random_tables(1, 6, SIZE, seed))
    return trace_search(BeamSearch(model, unlimited(max_length=7, **settings)), sources(4))


@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 4},
        {"beam_size": 4, "diversity_groups": 2},
        {"beam_size": 3, "at_limit": "end"},
        {"samples": 4},
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_only_survivors_have_a_beam_index(seed: int, settings: dict[str, object]) -> None:
    trace = traced(seed, **settings)
    beam: set[int | None] = {0}
    for step in trace.steps:
        assert {candidate.parent for candidate in step} <= beam
        survivors = [candidate for candidate in step if candidate.beam_index is not None]
        assert not any(candidate.ended or candidate.is_forbidden for candidate in survivors)
        beam = {candidate.beam_index for candidate in survivors}
        assert len(beam) == len(survivors)


def test_nothing_survives_a_forced_end() -> None:
    trace = traced(beam_size=3, at_limit="end", min_length=6)
    last_step = trace.steps[-1]
    assert len(trace.steps) == trace.length_limit
    assert [candidate.ended for candidate in last_step if not candidate.is_forbidden] == [True] * 3
    assert [candidate.beam_index for candidate in last_step] == [None] * len(last_step)


def test_a_search_with_terms_records_each_candidate_once() -> None:
    terms = Constraints(
        positive=torch.tensor([[[6, 0], [9, 8]]]),
        in_order=torch.tensor([False]),
        negative=torch.tensor([[[7]]]),
    )
    words = TargetTokens(word_starts=lambda: torch.ones(SIZE, dtype=torch.bool))
    search = BeamSearch(
        TableModel(random_tables(1, 6, SIZE)), unlimited(beam_size=3, max_length=8), tokens=words
    )
    trace = trace_search(search, replace(sources(3), terms=terms))
    for step in trace.steps:
        counts = Counter((candidate.parent, candidate.token) for candidate in step)
        assert set(counts.values()) == {1}
        indices = [candidate.beam_index for candidate in step if candidate.beam_index is not None]
        assert indices == [0, 1, 2]
    ended = [candidate for step in trace.steps for candidate in step if candidate.ended]
    assert ended
    assert {candidate.token for candidate in ended} == {EOS}


def test_a_continuation_that_the_prefix_forbids_has_its_name() -> None:
    tables = random_tables(1, 6, SIZE)
    search = BeamSearch(TableModel(tables), unlimited(beam_size=3, max_length=7))
    batch = replace(sources(4), prefix=torch.tensor([[6, 9]]))
    first_step, second_step, *others = trace_search(search, batch).steps
    # The prefix leaves one candidate, so other places are empty and the three most likely tokens are recorded.
    log_probs = tables[0, 0, BOS].clone()
    log_probs[[PAD, BOS, 6]] = -torch.inf
    expected = [(6, None), *((token, "prefix") for token in log_probs.topk(3).indices.tolist())]
    assert [(candidate.token, candidate.forbidden_by) for candidate in first_step] == expected
    assert [candidate.forbidden_by for candidate in second_step] == [
        None,
        "prefix",
        "prefix",
        "prefix",
    ]
    assert not any(candidate.is_forbidden for step in others for candidate in step)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"min_length_ratio": 1.0}, "min_length_ratio"),
        ({"min_length": 3}, "min_length"),
        ({"min_length": 1, "min_length_ratio": 1.0}, "min_length or min_length_ratio"),
    ],
)
def test_an_end_before_the_minimum_length_is_named_after_the_setting(
    settings: dict[str, object], name: str
) -> None:
    tables = random_tables(1, 6, SIZE)
    tables[..., EOS] += 3
    search = BeamSearch(TableModel(tables.log_softmax(-1)), unlimited(beam_size=3, **settings))
    trace = trace_search(search, sources(4))  # three tokens and EOS
    for number, step in enumerate(trace.steps):
        forbidden = {
            (candidate.token, candidate.forbidden_by)
            for candidate in step
            if candidate.is_forbidden
        }
        assert forbidden == ({(EOS, name)} if number < 3 else set())


class NoEnd(ForbiddenTokens):
    @classmethod
    @override
    def begin(cls, batch: Batch, config: SearchConfig, tokens: TargetTokens) -> Rule | None:
        return cls([EOS])


class NamedNoEnd(NoEnd):
    name = "own name"


@pytest.mark.parametrize(("rule", "name"), [(NoEnd, "no-end"), (NamedNoEnd, "own name")])
def test_a_listed_rule_has_its_own_name_or_the_one_that_it_is_registered_under(
    rule: type[Rule], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RULES, "_members", dict(RULES._members))
    RULES.register("no-end")(rule)
    tables = random_tables(1, 6, SIZE)
    tables[..., [EOS, UNK]] += 3
    search = BeamSearch(
        TableModel(tables.log_softmax(-1)),
        unlimited(beam_size=3, max_length=4, rules=["no-end"], forbid_unknown=True),
    )
    for step in trace_search(search, sources(4)).steps:
        forbidden = {
            (candidate.token, candidate.forbidden_by)
            for candidate in step
            if candidate.is_forbidden
        }
        assert forbidden == {(EOS, name), (UNK, "forbid_unknown")}


@pytest.mark.parametrize(
    ("probabilities", "is_recorded"),
    [
        ({A: 0.4, B: 0.2, C: 0.1, EOS: 0.3}, True),
        ({A: 0.4, B: 0.3, C: 0.1, EOS: 0.2}, False),  # less likely than both candidates
        ({A: 0.9, EOS: 0.1}, True),  # the second place is empty
        ({A: 1.0}, False),
    ],
)
def test_only_likely_forbidden_continuations_are_recorded(
    probabilities: dict[int, float], is_recorded: bool
) -> None:
    search = BeamSearch(
        by_hand({BOS: probabilities}, end_at=1), unlimited(beam_size=1, max_length=4, min_length=1)
    )
    first_step = trace_search(search, sources(3)).steps[0]
    forbidden = [candidate.token for candidate in first_step if candidate.is_forbidden]
    assert forbidden == ([EOS] if is_recorded else [])


def test_a_forbidden_continuation_is_in_the_group_of_its_parent() -> None:
    rows = {
        BOS: {A: 0.3, B: 0.25, EOS: 0.45},
        A: {A: 0.6, C: 0.3, EOS: 0.1},
        B: {B: 0.6, C: 0.3, EOS: 0.1},
    }
    settings = {"beam_size": 2, "diversity_groups": 2, "min_length": 1, "no_repeat_ngram": 1}
    search = BeamSearch(by_hand(rows, end_at=2), unlimited(max_length=4, **settings))
    first_step, second_step = trace_search(search, sources(3)).steps[:2]
    # In the first step, both groups continue the same hypothesis. Then the first group has A and the second one B.
    forbidden = [candidate for candidate in first_step if candidate.is_forbidden]
    assert [(candidate.token, candidate.group) for candidate in forbidden] == [(EOS, None)]
    assert {candidate.group for candidate in first_step if not candidate.is_forbidden} == {0, 1}
    forbidden = [candidate for candidate in second_step if candidate.is_forbidden]
    assert [(candidate.token, candidate.group) for candidate in forbidden] == [(A, 0), (B, 1)]
    assert [candidate.ranking_score for candidate in forbidden] == [None, None]


def test_a_model_in_training_mode_is_rejected() -> None:
    model = TableModel(random_tables(1, 2, SIZE)).train()
    with pytest.raises(AssertionError, match="in training mode"):
        trace_search(BeamSearch(model, unlimited()), sources(3))
