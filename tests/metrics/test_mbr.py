"""Minimum Bayes risk, against sacrebleu's own scores of sentences."""

import random

import pytest
import sacrebleu

from nmtkit.decoding.settings import BeamConfig, MbrConfig
from nmtkit.inference.result import Translation, merge_and_rerank
from nmtkit.metrics.mbr import Utility, expected_utilities, sentence_scores

WORDS = [
    "the",
    "old",
    "man",
    "sees",
    "a",
    "dog,",
    "who",
    "sleeps",
    "in",
    "his",
    "house.",
    "Über",
    "3.5",
    "don't",
]


def texts(count: int) -> list[str]:
    """Some of them alike, some of one word, one empty."""
    draw = random.Random(3)
    found = [" ".join(draw.choices(WORDS, k=draw.randint(0, 12))) for _ in range(count)]
    return [
        "",
        "a",
        "a a a",
        "the the old the",
        *found,
        found[0] + " the",
        found[1].replace("a", "e"),
    ]


@pytest.mark.parametrize("kind", ["chrf", "bleu"])
def test_scores_are_those_of_sacrebleu(kind: Utility) -> None:
    metric = sacrebleu.CHRF() if kind == "chrf" else sacrebleu.BLEU(effective_order=True)
    given = texts(20)
    found = sentence_scores(given, kind)
    for i, one in enumerate(given):
        for j, other in enumerate(given):
            assert found[i, j] == pytest.approx(
                metric.sentence_score(one, [other]).score, abs=1e-6
            ), (one, other)
    weights = [float(number % 4) for number in range(len(given))]
    mean = (found * weights).sum(1) / sum(weights)
    assert expected_utilities(given, weights, kind) == pytest.approx(mean.tolist())


def translation(text: str, log_prob: float = -1.0) -> Translation:
    return Translation(text, log_prob, log_prob, text.split(), [log_prob], [])


@pytest.mark.parametrize("kind", ["chrf", "bleu"])
def test_what_equal_texts_say_is_what_they_are(kind: Utility) -> None:
    (best,) = merge_and_rerank([translation("a dog sleeps")] * 7, MbrConfig(samples=7, metric=kind))
    assert (best.text, best.score) == ("a dog sleeps", pytest.approx(100.0))


def test_samples_count_as_often_as_they_were_drawn() -> None:
    found = [
        translation("a dog sleeps", -0.1),
        *[translation("the man sees", -3.0)] * 2,
        translation("the man", -3.0),
    ]
    by_count = merge_and_rerank(found, MbrConfig(samples=4))
    assert [one.text for one in by_count] == ["the man sees", "the man", "a dog sleeps"]
    utilities = sentence_scores(["the man sees", "the man", "a dog sleeps"], "chrf") @ [2, 1, 1] / 4
    assert [one.score for one in by_count] == pytest.approx(utilities.tolist())
    by_score = merge_and_rerank(found, BeamConfig(beam_size=4, diversity_groups=2))
    assert [one.text for one in by_score] == ["a dog sleeps", "the man sees", "the man"]
