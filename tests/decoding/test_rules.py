"""Every rule and penalty by hand-worked numbers, and the n-gram rule against a plain loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.tokenizers.vocabulary import EOS, PAD, UNK
from nmtkit.decoding.rules import (
    CoverageKind,
    LengthPenalty,
    SearchConfig,
    allow_eos_if_stuck,
    apply_rules,
    block_repeated_ngrams,
    coverage_penalty,
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
    ruled = apply_rules(uniform(3), SearchConfig.model_validate(rules), torch.full((3,), 2), None, None, fewest)
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
        grams = {tuple(row[start : start + size]) for start in range(len(row) - size + 1)}
        before = row[len(row) - size + 1 :] if size > 1 else []
        expected.append([token for token in range(8) if (*before, token) not in grams])
    assert allowed(log_probs) == expected


def test_where_no_word_is_left_the_sentence_may_end() -> None:
    history = torch.tensor([[1, 4, 5, 6, 7], [1, 4, 5, 6, 6]])
    written, least = torch.tensor([5, 5]), torch.tensor([6, 6])
    ruled = apply_rules(uniform(2), SearchConfig(no_repeat_ngram=1), written, history, None, least)
    assert allowed(ruled) == [[EOS], [7]]
    assert ruled[0, EOS] == -math.log(8)


def test_an_end_of_probability_zero_is_still_possible_where_nothing_else_is() -> None:
    log_probs = torch.full((1, 8), -math.inf)
    allow_eos_if_stuck(log_probs, log_probs[:, EOS].clone())
    assert log_probs[0, EOS] == pytest.approx(math.log(torch.finfo(torch.float32).tiny))


def test_a_forced_token_is_the_only_one_and_overrides_the_other_rules() -> None:
    log_probs = uniform(5)
    log_probs[2, 5] = -math.inf
    wanted = torch.tensor([4, UNK, 5, EOS, PAD])
    everything = SearchConfig(no_repeat_ngram=1, forbid_unknown=True, min_length=3)
    written, history, least = torch.ones(5).long(), torch.full((5, 1), 4), torch.full((5,), 3)
    ruled = apply_rules(log_probs, everything, written, history, wanted, least)
    assert allowed(ruled) == [[4], [UNK], [5], [EOS], [5, 6, 7]]
    assert ruled[0, 4] == -math.log(8)
    assert ruled[2, 5] == pytest.approx(math.log(torch.finfo(torch.float64).tiny))


LENGTHS = torch.tensor([1, 5, 10, 30])
"""Of sources, EOS counted."""


@pytest.mark.parametrize(
    ("limits", "least", "most"),
    [
        ({"max_length_ratio": 1.5, "max_length_offset": 4}, [0, 0, 0, 0], [5, 11, 19, 20]),  # the lower limit holds
        ({"max_length_ratio": 0.0, "max_length_offset": 4}, [0, 0, 0, 0], [20, 20, 20, 20]),
        ({"max_length_ratio": 1.5, "max_length_offset": 0}, [0, 0, 0, 0], [1, 7, 15, 20]),
        ({"max_length_ratio": 0.0, "min_length": 2}, [2, 2, 2, 2], [20, 20, 20, 20]),
        ({"max_length_ratio": 0.0, "min_length": 2, "min_length_ratio": 0.5}, [2, 2, 4, 14], [20, 20, 20, 20]),
        # By the source at most 1, 2, 3, 8: the least lengths and EOS have room.
        ({"max_length_ratio": 0.25, "max_length_offset": 1, "min_length_ratio": 0.5}, [0, 2, 4, 14], [1, 3, 5, 15]),
        ({"max_length": 12, "max_length_ratio": 0.0, "min_length_ratio": 0.5}, [0, 2, 4, 11], [12, 12, 12, 12]),
    ],
    ids=str,
)
def test_limits_of_length(limits: dict[str, float], least: list[int], most: list[int]) -> None:
    settings = SearchConfig.model_validate({"max_length": 20, **limits})
    assert min_lengths(settings, LENGTHS).tolist() == least
    assert max_lengths(settings, LENGTHS, None).tolist() == most


def test_limits_leave_room_for_min_length_and_prefix() -> None:
    limits = SearchConfig(min_length=8, max_length=10, max_length_ratio=0.1, max_length_offset=2)
    for prefix, most in (([[4, 0, 0], [4] * 3], [9, 9]), ([[4] * 12], [13])):
        assert max_lengths(limits, torch.full((len(prefix),), 3), torch.tensor(prefix)).tolist() == most


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_length": 10, "max_length": 10}, "min_length 10 leaves no room below max_length 10"),
        ({"coverage_penalty": 1e308}, "coverage_penalty"),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(SearchConfig, settings, "recipe.yaml")


@pytest.mark.parametrize("ratio", [1e6, 1e9, 2.0**62, 2.0**63, 2.0**63 - 1, 1e30, 1e308])
def test_a_ratio_beyond_all_numbers_is_no_limit(ratio: float) -> None:
    lengths = torch.tensor([1, 2, 5, 400])
    assert max_lengths(SearchConfig(max_length=100, max_length_ratio=ratio), lengths, None).tolist() == [100] * 4
    assert min_lengths(SearchConfig(max_length=100, min_length_ratio=ratio), lengths).tolist() == [0, 99, 99, 99]


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"no_repeat_except": "and"}, "no_repeat_ngram"),
        ({"coverage_kind": "summary"}, "coverage_penalty"),
        ({"temperature": 0.5}, "samples"),
        ({"alpha": 0.6, "length_penalty": "none"}, "length_penalty"),
        ({"max_length_offset": 9, "max_length_ratio": 0.0}, "max_length_ratio"),
        ({"diversity_strength": 0.7}, "diversity_groups"),
    ],
)
def test_what_would_do_nothing_is_refused_with_what_it_needs(settings: dict[str, object], needs: str) -> None:
    with pytest.raises(RecipeError, match=f"{next(iter(settings))} is for .*give {needs} too"):
        SearchConfig().changed(settings).reject_unused(settings)


@pytest.mark.parametrize("key", ["min_length_ratio", "max_length_ratio", "max_length_offset"])
def test_a_limit_by_the_source_is_refused_where_no_text_is_read(key: str) -> None:
    SearchConfig().changed({key: 3}).reject_unused({key: 3})
    with pytest.raises(RecipeError, match=f"{key} is for models that read a text, and this one reads none"):
        SearchConfig().changed({key: 3}).reject_unused({key: 3}, reads_text=False)


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
def test_length_penalty(kind: LengthPenalty, alpha: float, expected: list[float]) -> None:
    assert length_penalty(kind, torch.tensor([1, 4, 7]), alpha).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gnmt", [0.2 * math.log(0.5 * 1.0 * 0.25), 0.2 * math.log(0.5)]),  # the log of what is missing
        ("summary", [-0.2 * 0.75, -0.2 * (1 + 2)]),  # what was looked at twice
    ],
)
def test_coverage_penalty(kind: CoverageKind, expected: list[float]) -> None:
    coverage = torch.tensor([[0.5, 1.75, 0.25, 9.0], [1.0, 2.0, 3.0, 0.5]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert coverage_penalty(kind, coverage, mask, 0.2).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_word_never_looked_at_costs_much_but_not_everything(dtype: torch.dtype) -> None:
    coverage = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=dtype)
    cost = coverage_penalty("gnmt", coverage, torch.tensor([True, True, False]), 0.5)
    assert cost.tolist() == pytest.approx([12 * math.log(0.5), 24 * math.log(0.5)])


def test_the_end_of_a_source_is_not_to_be_covered() -> None:
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    assert source_words(mask).tolist() == [[True, True, False], [True, False, False], [False, False, False]]


@pytest.mark.parametrize("kind", ["gnmt", "summary"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_greatest_coverage_penalty_is_a_number_in_every_precision(kind: CoverageKind, dtype: torch.dtype) -> None:
    coverage = torch.tensor([[1.0, 1.0], [0.0, 2.0], [0.0, 300.0]], dtype=dtype)
    cost = coverage_penalty(kind, coverage, torch.ones(3, 2, dtype=torch.bool), 1e6)
    assert cost.isfinite().all()
    assert cost[0] == 0
    assert cost[1] < 0


def test_a_certain_prefix_costs_nothing() -> None:
    wanted = torch.tensor([7, PAD])
    given = uniform(2)
    for certain in (False, True):
        ruled = apply_rules(uniform(2), SearchConfig(certain_prefix=certain), None, None, wanted)
        assert ruled[0, 7] == (0.0 if certain else given[0, 7])
        assert ruled[0].isfinite().sum() == 1
        assert torch.equal(ruled[1, 4:], given[1, 4:])
