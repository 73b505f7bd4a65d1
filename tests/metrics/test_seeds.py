"""BLEU over seeds, and the test between systems that have several trainings."""

import random

import pytest
import sacrebleu

from nmtkit.metrics.bleu import bleu_from_statistics, sentence_statistics
from nmtkit.metrics.metric import Options
from nmtkit.metrics.seeds import summarize_seeds

REFERENCES = [
    f"the {number} old men saw {number % 7} red birds in the house of stone" for number in range(60)
]


def noisy(share: float, seed: int) -> list[str]:
    """The references with this share of their words replaced."""
    draw = random.Random(seed)
    lines = []
    for line in REFERENCES:
        lines.append(" ".join("wrong" if draw.random() < share else word for word in line.split()))
    return lines


def test_sums_of_sentence_statistics_give_the_corpus_bleu_of_sacrebleu() -> None:
    for share in (0.0, 0.2, 0.9):
        lines = noisy(share, seed=1)
        expected = sacrebleu.corpus_bleu(lines, [REFERENCES]).score
        assert (
            bleu_from_statistics(sentence_statistics(lines, REFERENCES, Options()).sum(axis=0))
            == expected
        )


def test_mean_and_deviation_are_those_of_the_scores() -> None:
    trainings = [noisy(0.2, seed) for seed in (1, 2, 3)]
    (summary,) = summarize_seeds([("one", trainings)], REFERENCES, Options(), draws=10)
    scores = [sacrebleu.corpus_bleu(lines, [REFERENCES]).score for lines in trainings]
    assert summary.scores == scores
    mean = sum(scores) / 3
    assert summary.mean == pytest.approx(mean)
    assert summary.deviation == pytest.approx(
        (sum((score - mean) ** 2 for score in scores) / 2) ** 0.5
    )
    assert summary.p_value is None


def test_systems_of_equal_quality_do_not_differ_and_others_do() -> None:
    first = [noisy(0.2, seed) for seed in (1, 2, 3)]
    equal = [noisy(0.2, seed) for seed in (10, 11, 12)]
    better = [noisy(0.1, seed) for seed in (7, 8, 9)]
    _, same, other = summarize_seeds(
        [("first", first), ("equal", equal), ("better", better)], REFERENCES, Options(), draws=200
    )
    assert same.p_value is not None
    assert other.p_value is not None
    assert same.p_value > 0.05
    assert other.p_value == pytest.approx(1 / 201), "no draw reaches the difference"


def test_a_system_equals_itself_in_every_draw() -> None:
    trainings = [noisy(0.2, 1), noisy(0.2, 1)]
    _, again = summarize_seeds(
        [("a", trainings), ("b", trainings)], REFERENCES, Options(), draws=20
    )
    assert again.p_value == 1.0
