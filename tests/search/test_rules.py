"""Rules and penalties by numbers worked out by hand, and the n-gram rule against a plain loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.vocabulary import EOS, PAD, UNK
from nmtkit.search.rules import (
    CoverageKind,
    LengthPenalty,
    RuleSettings,
    SearchConfig,
    allow_eos_if_stuck,
    apply_rules,
    block_repeated_ngrams,
    coverage_penalty,
    force_tokens,
    length_penalty,
    max_lengths,
    min_lengths,
    source_words,
)


def uniform(rows: int, size: int = 8) -> torch.Tensor:
    return torch.full((rows, size), -math.log(size), dtype=torch.float64)


def allowed(log_probs: torch.Tensor) -> list[list[int]]:
    return [[token for token, value in enumerate(row) if value > -math.inf] for row in log_probs.tolist()]


@pytest.mark.parametrize(
    ("rules", "least", "expected"),
    [
        ({}, None, [[UNK, EOS, 4, 5, 6, 7]] * 3),  # PAD and BOS never follow
        ({"forbid_unknown": True}, None, [[EOS, 4, 5, 6, 7]] * 3),
        ({}, [2, 3, 4], [[UNK, EOS, 4, 5, 6, 7], [UNK, 4, 5, 6, 7], [UNK, 4, 5, 6, 7]]),  # each has two tokens
    ],
)
def test_what_may_follow(rules: dict[str, object], least: list[int] | None, expected: list[list[int]]) -> None:
    fewest = None if least is None else torch.tensor(least)
    ruled = apply_rules(uniform(3), RuleSettings.model_validate(rules), torch.full((3,), 2), None, None, fewest)
    assert allowed(ruled) == expected
    assert torch.equal(ruled[ruled > -math.inf].unique(), uniform(1)[0, :1])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.lists(st.lists(st.integers(4, 6), max_size=9), min_size=1, max_size=3))
def test_repeats_against_a_plain_loop(size: int, rows: list[list[int]]) -> None:
    """Hypotheses of one step may be of different lengths."""
    log_probs = uniform(len(rows))
    longest = max(map(len, rows))
    history = torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.long).view(len(rows), -1)
    block_repeated_ngrams(log_probs, history, torch.tensor([len(row) for row in rows]), size)
    expected = []
    for row in rows:
        seen = {tuple(row[start : start + size]) for start in range(len(row) - size + 1)}
        before = row[len(row) - size + 1 :] if size > 1 else []
        expected.append([token for token in range(8) if (*before, token) not in seen])
    assert allowed(log_probs) == expected


def test_where_no_word_is_left_the_sentence_may_end() -> None:
    history = torch.tensor([[1, 4, 5, 6, 7], [1, 4, 5, 6, 6]])
    written, least = torch.tensor([5, 5]), torch.tensor([6, 6])
    ruled = apply_rules(uniform(2), RuleSettings(no_repeat_ngram=1), written, history, None, least)
    assert allowed(ruled) == [[EOS], [7]]
    assert ruled[0, EOS] == -math.log(8)


def test_an_end_of_probability_zero_is_still_possible_where_nothing_else_is() -> None:
    log_probs = torch.full((1, 8), -math.inf)
    allow_eos_if_stuck(log_probs, log_probs[:, EOS].clone())
    assert log_probs[0, EOS] == pytest.approx(math.log(torch.finfo(torch.float32).tiny))


def test_a_forced_token_is_the_only_one_and_overrides_the_other_rules() -> None:
    log_probs = uniform(4)
    log_probs[2, 5] = -math.inf
    history = torch.tensor([[4], [4], [4], [4]])
    wanted = torch.tensor([4, UNK, 5, PAD])
    everything = RuleSettings(no_repeat_ngram=1, forbid_unknown=True, min_length=3)
    ruled = apply_rules(log_probs, everything, torch.ones(4).long(), history, wanted, torch.full((4,), 3))
    assert allowed(ruled) == [[4], [UNK], [5], [5, 6, 7]]
    assert ruled[0, 4] == -math.log(8)
    assert ruled[2, 5] == pytest.approx(math.log(torch.finfo(torch.float64).tiny))


def test_a_forced_end() -> None:
    log_probs = uniform(1)
    force_tokens(log_probs, torch.tensor([EOS]), log_probs[:, EOS : EOS + 1].clone())
    assert allowed(log_probs) == [[EOS]]


@pytest.mark.parametrize(
    ("limits", "lengths", "most"),
    [
        ({"max_length_ratio": 1.5, "max_length_offset": 4}, [1, 5, 10, 30], [5, 11, 19, 20]),  # the lower limit holds
        ({"max_length_ratio": 0.0, "max_length_offset": 4}, [1, 30], [20, 20]),
        ({"max_length_ratio": 1.5, "max_length_offset": 0}, [1, 5], [1, 7]),
        # At least 0, 2, 4, 11 words; by the source at most 1, 2, 3, 8 tokens.
        (
            {"min_length_ratio": 0.5, "max_length_ratio": 0.25, "max_length_offset": 1, "max_length": 12},
            [1, 5, 10, 30],
            [1, 3, 5, 12],
        ),
    ],
)
def test_the_most_tokens_by_the_source(limits: dict[str, float], lengths: list[int], most: list[int]) -> None:
    assert (
        max_lengths(RuleSettings.model_validate({"max_length": 20, **limits}), torch.tensor(lengths), None).tolist()
        == most
    )


def test_limits_leave_room_for_min_length_and_prefix() -> None:
    limits = RuleSettings(min_length=8, max_length=10, max_length_ratio=0.1, max_length_offset=2)
    for prefix, most in (([[4, 0, 0], [4] * 3], [9, 9]), ([[4] * 12], [13])):
        assert max_lengths(limits, torch.full((len(prefix),), 3), torch.tensor(prefix)).tolist() == most


def test_the_fewest_tokens_by_the_source() -> None:
    lengths = torch.tensor([1, 5, 10, 30])
    by_source = RuleSettings(min_length=2, min_length_ratio=0.5, max_length=12)
    assert min_lengths(by_source, lengths).tolist() == [2, 2, 4, 11]
    assert min_lengths(RuleSettings(min_length=2), lengths).tolist() == [2] * 4


def test_lengths_that_leave_no_room_are_refused() -> None:
    with pytest.raises(RecipeError, match="min_length 10 leaves no room below max_length 10"):
        parse(RuleSettings, {"min_length": 10, "max_length": 10}, "recipe.yaml")


@pytest.mark.parametrize("ratio", [1e6, 1e9, 2.0**62, 2.0**63, 2.0**63 - 1, 1e30, 1e308])
def test_a_ratio_beyond_all_numbers_is_no_limit(ratio: float) -> None:
    lengths = torch.tensor([1, 2, 5, 400])
    assert max_lengths(RuleSettings(max_length=100, max_length_ratio=ratio), lengths, None).tolist() == [100] * 4
    assert min_lengths(RuleSettings(max_length=100, min_length_ratio=ratio), lengths).tolist() == [0, 99, 99, 99]


@pytest.mark.parametrize(
    ("asked", "needs"),
    [
        ({"no_repeat_except": "and"}, "no_repeat_ngram"),
        ({"coverage_kind": "summary"}, "coverage_penalty"),
        ({"temperature": 0.5}, "samples"),
        ({"diversity_strength": 0.7}, "diversity_groups"),
    ],
)
def test_what_would_do_nothing_is_refused_with_what_it_needs(asked: dict[str, object], needs: str) -> None:
    with pytest.raises(RecipeError, match=f"{next(iter(asked))} is for .*give {needs} too"):
        SearchConfig().changed(asked).reject_unused(asked)


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
def test_length_penalty(kind: LengthPenalty, alpha: float, expected: list[float]) -> None:
    torch.testing.assert_close(
        length_penalty(kind, torch.tensor([1, 4, 7]), alpha), torch.tensor(expected, dtype=torch.float64)
    )


def test_coverage_penalty_is_the_log_of_what_is_missing() -> None:
    coverage = torch.tensor([[0.5, 1.7, 0.25, 0.125], [1.0, 1.0, 3.0, 0.5]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    expected = torch.tensor([0.2 * math.log(0.5 * 1.0 * 0.25), 0.2 * math.log(0.5)], dtype=torch.float64)
    torch.testing.assert_close(coverage_penalty("gnmt", coverage, mask, 0.2), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_floor_of_attention_is_one_for_all_types(dtype: torch.dtype) -> None:
    seen = coverage_penalty("gnmt", torch.zeros(1, 3, dtype=dtype), torch.tensor([[True, True, False]]), 0.5)
    assert seen.tolist() == pytest.approx([24 * math.log(0.5)])


def test_the_end_of_a_source_is_not_to_be_covered() -> None:
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    assert source_words(mask).tolist() == [[True, True, False], [True, False, False], [False, False, False]]


def test_summary_coverage_is_what_was_looked_at_twice() -> None:
    coverage = torch.tensor([[0.5, 1.75, 0.25, 9.0], [1.0, 2.0, 3.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    # 0.2 * 0.75 and 0.2 * (1 + 2); Gehrmann et al.: 0.2 * (-3 + 1 + 1.75 + 1) and 0.2 * (-4 + 1 + 2 + 3 + 1)
    expected = torch.tensor([-0.15, -0.6], dtype=torch.float64)
    torch.testing.assert_close(coverage_penalty("summary", coverage, mask, 0.2), expected)
    assert coverage_penalty("summary", torch.zeros(3), torch.ones(3, dtype=torch.bool), 5.0) == 0


@pytest.mark.parametrize("kind", ["gnmt", "summary"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_greatest_coverage_penalty_is_a_number_in_every_precision(kind: CoverageKind, dtype: torch.dtype) -> None:
    coverage = torch.tensor([[1.0, 1.0], [0.0, 2.0], [0.0, 300.0]], dtype=dtype)
    cost = coverage_penalty(kind, coverage, torch.ones(3, 2, dtype=torch.bool), 1e6)
    assert cost.isfinite().all()
    assert cost[0] == 0
    assert cost[1] < 0
