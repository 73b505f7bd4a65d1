"""Every rule by hand-worked numbers, and the n-gram rule against a plain loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.vocabulary import EOS, PAD, UNK
from nmtkit.search.rules import (
    RuleSettings,
    SearchConfig,
    allow_eos_if_stuck,
    apply_rules,
    block_repeated_ngrams,
    force_tokens,
    max_lengths,
    min_lengths,
)


def uniform(rows: int, size: int = 8) -> torch.Tensor:
    return torch.full((rows, size), -math.log(size), dtype=torch.float64)


def allowed(log_probs: torch.Tensor) -> list[list[int]]:
    return [[token for token, value in enumerate(row) if value > -math.inf] for row in log_probs.tolist()]


def test_pad_and_bos_never_follow() -> None:
    assert (
        allowed(apply_rules(uniform(2), RuleSettings(), torch.tensor([0, 0]), None, None))
        == [[UNK, EOS, 4, 5, 6, 7]] * 2
    )


def test_what_is_allowed_keeps_its_log_probability() -> None:
    ruled = apply_rules(
        uniform(1), RuleSettings(forbid_unknown=True, min_length=1), torch.tensor([0]), None, None, torch.tensor([1])
    )
    assert ruled[0, 4:].tolist() == uniform(1)[0, 4:].tolist()


def test_unknown_is_forbidden_where_asked() -> None:
    assert allowed(apply_rules(uniform(1), RuleSettings(forbid_unknown=True), torch.tensor([0]), None, None)) == [
        [EOS, 4, 5, 6, 7]
    ]


@pytest.mark.parametrize(("step", "may_end"), [(0, False), (1, False), (2, True)])
def test_min_length_forbids_the_end_until_there_are_enough_tokens(step: int, may_end: bool) -> None:
    ruled = apply_rules(uniform(1), RuleSettings(min_length=2), torch.tensor([step]), None, None, torch.tensor([2]))
    assert (EOS in allowed(ruled)[0]) is may_end


def test_repeated_bigram() -> None:
    history = torch.tensor([[4, 5, 6, 4], [4, 4, 5, 4], [4, 5, 6, 7]])
    log_probs = uniform(3)
    block_repeated_ngrams(log_probs, history, torch.tensor([4, 4, 4]), 2)
    # After "4 5 6 4", 5 would repeat "4 5"; after "4 4 5 4" both 4 and 5 would; after "4 5 6 7" nothing would.
    assert allowed(log_probs) == [[0, 1, 2, 3, 4, 6, 7], [0, 1, 2, 3, 6, 7], list(range(8))]


def test_repeated_unigram_forbids_every_word_used() -> None:
    log_probs = uniform(1)
    block_repeated_ngrams(log_probs, torch.tensor([[4, 6]]), torch.tensor([2]), 1)
    assert allowed(log_probs) == [[0, 1, 2, 3, 5, 7]]


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


def test_the_lower_limit_holds() -> None:
    limits = RuleSettings(max_length=20, max_length_ratio=1.5, max_length_offset=4)
    assert max_lengths(limits, torch.tensor([1, 5, 10, 30]), None).tolist() == [5, 11, 19, 20]
    alone = RuleSettings(max_length=20, max_length_ratio=0.0, max_length_offset=4)
    assert max_lengths(alone, torch.tensor([1, 30]), None).tolist() == [20, 20]
    by_source = RuleSettings(max_length=20, max_length_ratio=1.5, max_length_offset=0)
    assert max_lengths(by_source, torch.tensor([1, 5]), None).tolist() == [1, 7]


def test_limits_leave_room_for_min_length_and_prefix() -> None:
    limits = RuleSettings(min_length=8, max_length=10, max_length_ratio=0.1, max_length_offset=2)
    prefix = torch.tensor([[4, 0, 0], [4] * 3])
    assert max_lengths(limits, torch.tensor([3, 3]), prefix).tolist() == [9, 9]
    long_prefix = torch.full((1, 12), 4)
    assert max_lengths(limits, torch.tensor([3]), long_prefix).tolist() == [13]


def test_least_lengths_by_the_source() -> None:
    """Of 0, 4, 9 and 29 source tokens without EOS."""
    lengths = torch.tensor([1, 5, 10, 30])
    settings = RuleSettings(min_length=2, min_length_ratio=0.5, max_length=12)
    assert min_lengths(settings, lengths).tolist() == [2, 2, 4, 11]
    assert min_lengths(RuleSettings(min_length=2), lengths).tolist() == [2] * 4


def test_limits_leave_room_for_least_lengths_by_the_source() -> None:
    settings = RuleSettings(min_length_ratio=0.5, max_length_ratio=0.25, max_length_offset=1, max_length=12)
    # Least 0, 2, 4, 11; by the source at most 1, 2, 3, 8.
    assert max_lengths(settings, torch.tensor([1, 5, 10, 30]), None).tolist() == [1, 3, 5, 12]


def test_each_hypothesis_has_its_own_least_length() -> None:
    ruled = apply_rules(uniform(3), RuleSettings(), torch.tensor([2, 2, 2]), None, None, torch.tensor([1, 2, 3]))
    assert [EOS in row for row in allowed(ruled)] == [True, True, False]


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
