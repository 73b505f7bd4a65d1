"""GLEU by hand: the larger text has the n-grams that matches are divided by."""

import pytest

from nmtkit.metrics import Options, score_all


def gleu(hyps: list[str], *refs: list[str]) -> float:
    (score,) = score_all(hyps, refs, ["gleu"])
    assert score.name == "GLEU"
    return score.value


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a b c d", "a b c", 6 / 10),  # 3 + 2 + 1 of 4 + 3 + 2 + 1
        ("a a a", "a", 1 / 6),
        ("a b c d e f", "c d e f a b", (6 + 4 + 2 + 1) / (6 + 5 + 4 + 3)),
        ("a, b.", "a, b.", 1),  # punctuation is cut off
        ("a", "b", 0),
        ("", "a", 0),
        ("", "", 0),
    ],
)
def test_gleu_of_a_sentence_is_symmetric(one: str, other: str, expected: float) -> None:
    assert gleu([one], [other]) == gleu([other], [one]) == pytest.approx(100 * expected)


def test_the_tokenizer_is_that_which_is_named() -> None:
    (score,) = score_all(["a, b"], [["a , b"]], ["gleu"], Options(tokenize="none"))
    assert score.value == pytest.approx(100 * 1 / 6)  # b alone, of 3 + 2 + 1
    assert "tok:none|" in score.signature


def test_it_is_the_mean_over_the_sentences_of_the_best_reference() -> None:
    assert gleu(["a b c d", "x"], ["a b c", "y"]) == pytest.approx(100 * (6 / 10 + 0) / 2)
    assert gleu(["a b c d", "x"], ["a b c", "y"], ["a", "x"]) == pytest.approx(
        100 * (6 / 10 + 1) / 2
    )
