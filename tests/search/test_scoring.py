"""Length and coverage penalties against numbers worked out by hand."""

import math

import pytest
import torch

from nmtkit.search.rules import CoverageKind, LengthPenalty, coverage_penalty, length_penalty, source_words


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


def test_a_word_never_looked_at_costs_much_but_not_everything() -> None:
    one, two = coverage_penalty("gnmt", torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool), 1.0)
    assert one == pytest.approx(24 * math.log(0.5))
    assert two == 2 * one


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
