"""CIDEr-D against numbers that are worked out by hand."""

import math
from typing import Any

import pytest

from nmtkit.metrics import Options, score_all
from nmtkit.metrics.metric import text_metrics


def cider(hyps: list[str], *refs: list[str], **options: Any) -> float:
    return score_all(hyps, list(refs), ["cider"], Options(**options))[0].value


def test_cider_of_equal_texts() -> None:
    # All orders up to four match. With two words only the first two orders do.
    assert cider(["a b c d e", "f"], ["a b c d e", "g"]) == pytest.approx(10 / 2)
    assert cider(["a b", "f"], ["a b", "g"]) == pytest.approx(10 * (1 + 1 + 0 + 0) / 4 / 2)
    # A word of all references has the weight log(2 / 2) = 0, so that the first order of the second is 0.
    assert cider(["x", "x"], ["x a", "x b"]) == 0


def test_cider_clips_counts_and_penalizes_lengths() -> None:
    # All weights are log 2. Order 1: counts 3 and 1 against 1 and 1, clipped product 2, norms sqrt(10) and sqrt(2).
    # Order 2: "b b" twice and "b c" against "b c", product 1, norms sqrt(5) and 1. Both are 1 / sqrt(5); 2 words more.
    expected = 10 * math.exp(-(2**2) / (2 * 6**2)) * (2 / math.sqrt(5)) / 4
    assert cider(["b b b c", "e"], ["b c", "d"]) == pytest.approx(expected / 2)
    assert cider(["B b b C", "e"], ["b c", "d"], lowercase=True) == pytest.approx(expected / 2)
    assert cider(["B b b C", "e"], ["b c", "d"]) < expected / 2


def test_cider_weighs_words_by_how_few_examples_have_them() -> None:
    # b: log(4 / 2) = log 2. c: log 4, twice as much. Order 1: product 1, norms 1 and sqrt(1 + 4), in units of log 2.
    expected = 10 * math.exp(-1 / 72) / math.sqrt(5) / 4
    assert cider(["b", "x", "x", "x"], ["b c", "b d", "e", "f"]) == pytest.approx(expected / 4)


def test_cider_is_the_mean_over_references() -> None:
    # b is in two references of one example: log(2 / 1), as c. The first reference is equal, with two orders.
    # Against the second the product is 1, the norms are sqrt(2) and 1.
    expected = (10 * 2 / 4 + 10 * math.exp(-1 / 72) / math.sqrt(2) / 4) / 2
    assert cider(["b c", "e"], ["b c", "d"], ["b", "d"]) == pytest.approx(expected / 2)
    assert "always 0" in text_metrics(["cider"])[0].note([["a"]], Options())
