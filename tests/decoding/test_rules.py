"""Every rule and penalty by hand-worked numbers, and the n-gram rule against a plain loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import ABSENT
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.limits import max_lengths, min_lengths
from nmtkit.decoding.rules import (
    CertainPrefix,
    ForbiddenTokens,
    ForcedPrefix,
    LiveHypotheses,
    MinLength,
    NoRepeatedNgrams,
    Rule,
    apply_rules,
)
from nmtkit.decoding.scorers import (
    COVERAGE_PENALTIES,
    LENGTH_PENALTIES,
    coverage_score,
    source_words,
)
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.models.base import Memory


def uniform(rows: int, size: int = 8) -> torch.Tensor:
    return torch.full((rows, size), -math.log(size), dtype=torch.float64)


def allowed(log_probs: torch.Tensor) -> list[list[int]]:
    return [
        [token for token, value in enumerate(row) if value > -math.inf]
        for row in log_probs.tolist()
    ]


def live(
    lengths: list[int],
    history: list[list[int]] | None = None,
    forced: list[int] | None = None,
    log_probs: torch.Tensor | None = None,
) -> LiveHypotheses:
    """One hypothesis for each sentence, with so many tokens."""
    forced_log_probs = None
    if forced is not None and log_probs is not None:
        forced_log_probs = log_probs.gather(1, torch.tensor(forced)[:, None])
    return LiveHypotheses(
        position=torch.tensor(lengths),
        last_position=torch.full((len(lengths),), 99),
        width=1,
        memory=Memory(torch.zeros(len(lengths), 0, dtype=torch.bool), ABSENT),
        history=None
        if history is None
        else torch.tensor(history, dtype=torch.long).view(len(lengths), -1),
        forced=None if forced is None else torch.tensor(forced),
        forced_log_probs=forced_log_probs,
    )


def under(rules: list[Rule], log_probs: torch.Tensor, hypotheses: LiveHypotheses) -> torch.Tensor:
    return apply_rules(rules, log_probs, hypotheses)


SPECIAL = ForbiddenTokens([PAD, BOS])
NO_UNKNOWN = ForbiddenTokens([PAD, BOS, UNK])


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([SPECIAL], [[UNK, EOS, 4, 5, 6, 7]] * 3),
        ([NO_UNKNOWN], [[EOS, 4, 5, 6, 7]] * 3),
        # Each has two tokens.
        (
            [SPECIAL, MinLength(torch.tensor([2, 3, 4]))],
            [[UNK, EOS, 4, 5, 6, 7], [UNK, 4, 5, 6, 7], [UNK, 4, 5, 6, 7]],
        ),
    ],
    ids=["special tokens", "unknown word", "minimum length"],
)
def test_what_may_follow(rules: list[Rule], expected: list[list[int]]) -> None:
    ruled = under(rules, uniform(3), live([2, 2, 2]))
    assert allowed(ruled) == expected
    assert torch.equal(ruled[ruled > -math.inf].unique(), uniform(1)[0, :1])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.lists(st.lists(st.integers(4, 6), max_size=9), min_size=1, max_size=3))
def test_repeats_against_a_plain_loop(size: int, rows: list[list[int]]) -> None:
    """Hypotheses of one step may be of different lengths."""
    longest = max(map(len, rows))
    history = [row + [-1] * (longest - len(row)) for row in rows]
    log_probs = NoRepeatedNgrams(size).apply(
        uniform(len(rows)), live([len(row) for row in rows], history)
    )
    expected = []
    for row in rows:
        ngrams = {tuple(row[start : start + size]) for start in range(len(row) - size + 1)}
        before = row[len(row) - size + 1 :] if size > 1 else []
        expected.append([token for token in range(8) if (*before, token) not in ngrams])
    assert allowed(log_probs) == expected


def test_where_no_word_is_left_the_sentence_may_end() -> None:
    history = [[1, 4, 5, 6, 7], [1, 4, 5, 6, 6]]
    rules: list[Rule] = [SPECIAL, MinLength(torch.tensor([6, 6])), NoRepeatedNgrams(1)]
    ruled = under(rules, uniform(2), live([5, 5], history))
    assert allowed(ruled) == [[EOS], [7]]
    assert ruled[0, EOS] == -math.log(8)


def test_an_end_of_probability_zero_is_still_possible_where_nothing_else_is() -> None:
    log_probs = under([NoRepeatedNgrams(1)], torch.full((1, 8), -math.inf), live([0], [[]]))
    assert log_probs[0, EOS] == pytest.approx(math.log(torch.finfo(torch.float32).tiny))


def test_a_forced_token_is_the_only_one_and_overrides_the_other_rules() -> None:
    log_probs = uniform(5)
    log_probs[2, 5] = -math.inf
    hypotheses = live([1] * 5, [[4]] * 5, [4, UNK, 5, EOS, PAD], log_probs)
    rules: list[Rule] = [NO_UNKNOWN, MinLength(torch.full((5,), 3)), NoRepeatedNgrams(1)]
    ruled = under([*rules, ForcedPrefix(torch.full((5,), 2))], log_probs, hypotheses)
    assert allowed(ruled) == [[4], [UNK], [5], [EOS], [5, 6, 7]]
    assert ruled[0, 4] == -math.log(8)
    assert ruled[2, 5] == pytest.approx(math.log(torch.finfo(torch.float64).tiny))


LENGTHS = torch.tensor([1, 5, 10, 30])
"""Of sources, EOS counted."""


@pytest.mark.parametrize(
    ("limits", "least", "most"),
    [
        # the lower limit holds
        ({"max_length_ratio": 1.5, "max_length_offset": 4}, [0, 0, 0, 0], [5, 11, 19, 20]),
        ({"max_length_ratio": 0.0, "max_length_offset": 4}, [0, 0, 0, 0], [20, 20, 20, 20]),
        ({"max_length_ratio": 1.5, "max_length_offset": 0}, [0, 0, 0, 0], [1, 7, 15, 20]),
        ({"max_length_ratio": 0.0, "min_length": 2}, [2, 2, 2, 2], [20, 20, 20, 20]),
        (
            {"max_length_ratio": 0.0, "min_length": 2, "min_length_ratio": 0.5},
            [2, 2, 4, 14],
            [20, 20, 20, 20],
        ),
        # By the source at most 1, 2, 3, 8: the least lengths and EOS have room.
        (
            {"max_length_ratio": 0.25, "max_length_offset": 1, "min_length_ratio": 0.5},
            [0, 2, 4, 14],
            [1, 3, 5, 15],
        ),
        (
            {"max_length": 12, "max_length_ratio": 0.0, "min_length_ratio": 0.5},
            [0, 2, 4, 11],
            [12, 12, 12, 12],
        ),
    ],
    ids=str,
)
def test_limits_of_length(limits: dict[str, float], least: list[int], most: list[int]) -> None:
    settings = change_search(BeamConfig(), {"max_length": 20, **limits})
    assert min_lengths(settings, LENGTHS).tolist() == least
    assert max_lengths(settings, LENGTHS).tolist() == most


def test_limits_leave_room_for_min_length_and_prefix() -> None:
    limits = BeamConfig(min_length=8, max_length=10, max_length_ratio=0.1, max_length_offset=2)
    for prefix, most in (([[4, 0, 0], [4] * 3], [9, 9]), ([[4] * 12], [13])):
        assert (
            max_lengths(
                limits, torch.full((len(prefix),), 3), torch.tensor(prefix).sign().sum(1)
            ).tolist()
            == most
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"min_length": 10, "max_length": 10},
            r"min_length \(10\) must be less than max_length \(10\)",
        ),
        ({"coverage_penalty": 1e308}, "coverage_penalty"),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(BeamConfig, settings, "recipe.yaml")


@pytest.mark.parametrize("ratio", [1e6, 1e9, 2.0**62, 2.0**63, 2.0**63 - 1, 1e30, 1e308])
def test_a_ratio_beyond_all_numbers_is_no_limit(ratio: float) -> None:
    lengths = torch.tensor([1, 2, 5, 400])
    assert (
        max_lengths(BeamConfig(max_length=100, max_length_ratio=ratio), lengths).tolist()
        == [100] * 4
    )
    assert min_lengths(BeamConfig(max_length=100, min_length_ratio=ratio), lengths).tolist() == [
        0,
        99,
        99,
        99,
    ]


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"coverage_kind": "summary"}, "coverage_penalty"),
        ({"temperature": 0.5}, "samples"),
        ({"alpha": 0.6, "length_penalty": "none"}, "length_penalty"),
        ({"max_length_offset": 9, "max_length_ratio": 0.0}, "max_length_ratio"),
    ],
)
def test_what_would_do_nothing_is_refused_with_what_it_needs(
    settings: dict[str, object], needs: str
) -> None:
    with pytest.raises(
        RecipeError, match=f"{next(iter(settings))} has no effect .*set {needs} too"
    ):
        change_search(BeamConfig(), settings).reject_unused(settings)


@pytest.mark.parametrize("key", ["min_length_ratio", "max_length_ratio", "max_length_offset"])
def test_a_limit_by_the_source_is_refused_where_no_text_is_read(key: str) -> None:
    BeamConfig().changed({key: 3}).reject_unused({key: 3})
    with pytest.raises(
        RecipeError, match=f"{key} has no effect for a model that does not read text"
    ):
        BeamConfig().changed({key: 3}).reject_unused({key: 3}, reads_text=False)


# Penalties.


@pytest.mark.parametrize(
    ("kind", "alpha", "expected"),
    [
        ("none", 1.0, [1.0, 1.0, 1.0]),
        ("average", 1.0, [1.0, 4.0, 7.0]),
        ("average", 0.5, [1.0, 2.0, math.sqrt(7.0)]),
        ("average", 0.0, [1.0, 1.0, 1.0]),
        ("gnmt", 1.0, [1.0, 1.5, 2.0]),
        ("gnmt", 2.0, [1.0, 2.25, 4.0]),
        ("gnmt", 0.0, [1.0, 1.0, 1.0]),
    ],
)
def test_length_penalty(kind: str, alpha: float, expected: list[float]) -> None:
    penalty = LENGTH_PENALTIES.get(kind)(alpha)
    assert penalty.divisors(torch.tensor([1, 4, 7])).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # the log of what is missing
        ("gnmt", [0.2 * math.log(0.5 * 1.0 * 0.25), 0.2 * math.log(0.5)]),
        ("summary", [-0.2 * 0.75, -0.2 * (1 + 2)]),  # what was looked at twice
    ],
)
def test_coverage_penalty(kind: str, expected: list[float]) -> None:
    coverage = torch.tensor([[0.5, 1.75, 0.25, 9.0], [1.0, 2.0, 3.0, 0.5]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert coverage_score(
        COVERAGE_PENALTIES.get(kind)(0.2), coverage, mask
    ).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_word_never_looked_at_costs_much_but_not_everything(dtype: torch.dtype) -> None:
    coverage = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=dtype)
    cost = coverage_score(
        COVERAGE_PENALTIES.get("gnmt")(0.5), coverage, torch.tensor([True, True, False])
    )
    assert cost.tolist() == pytest.approx([12 * math.log(0.5), 24 * math.log(0.5)])


def test_the_end_of_a_source_is_not_to_be_covered() -> None:
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    assert source_words(mask).tolist() == [
        [True, True, False],
        [True, False, False],
        [False, False, False],
    ]


@pytest.mark.parametrize("kind", ["gnmt", "summary"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_greatest_coverage_penalty_is_a_number_in_every_precision(
    kind: str, dtype: torch.dtype
) -> None:
    coverage = torch.tensor([[1.0, 1.0], [0.0, 2.0], [0.0, 300.0]], dtype=dtype)
    cost = coverage_score(
        COVERAGE_PENALTIES.get(kind)(1e6), coverage, torch.ones(3, 2, dtype=torch.bool)
    )
    assert cost.isfinite().all()
    assert cost[0] == 0
    assert cost[1] < 0


def test_a_certain_prefix_costs_nothing() -> None:
    given = uniform(2)
    for certain in (False, True):
        log_probs = uniform(2)
        hypotheses = live([0, 0], None, [7, PAD], log_probs)
        ruled = under(
            [SPECIAL, (CertainPrefix if certain else ForcedPrefix)(torch.tensor([1, 0]))],
            log_probs,
            hypotheses,
        )
        assert ruled[0, 7] == (0.0 if certain else given[0, 7])
        assert ruled[0].isfinite().sum() == 1
        assert torch.equal(ruled[1, 4:], given[1, 4:])
