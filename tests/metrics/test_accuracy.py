"""Accuracy by hand, and in the command that scores."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nmtkit import metrics
from nmtkit.cli import cli
from nmtkit.core.errors import DataError
from tests.support.commands import write_lines


def accuracy(hyps: list[str], *refs: list[str]) -> float:
    (score,) = metrics.score_all(hyps, refs, ["accuracy"])
    assert score.name == "Accuracy"
    return score.value


def test_labels_count_over_the_whole_corpus() -> None:
    assert accuracy(["a", "b", "c"], ["a", "b", "b"]) == pytest.approx(100 * 2 / 3)
    # Two of three labels and one of one: not the mean of the shares of lines, 5/6.
    assert accuracy(["DET NOUN VERB", "NOUN", ""], ["DET NOUN NOUN", "NOUN", ""]) == pytest.approx(
        75
    )


def test_a_label_of_any_reference_is_right() -> None:
    assert accuracy(["a b", "c d"], ["a x", "x x"], ["x b", "x d"]) == pytest.approx(75)


@pytest.mark.parametrize("refs", [["a b", "c"], ["a", "c d"]])
def test_a_line_has_as_many_labels_as_its_reference(refs: list[str]) -> None:
    with pytest.raises(
        DataError, match=r"line [12]: the hypothesis has [12] labels, but the reference has [12]"
    ):
        accuracy(["a", "c"], refs)


def test_nothing_is_no_accuracy() -> None:
    with pytest.raises(DataError, match="no line has a label"):
        accuracy(["", " "], ["", ""])


def test_two_taggers_are_compared_with_a_test_of_significance(tmp_path: Path) -> None:
    lines = ["a b", "b a", "a a", "b b"] * 20
    for name, text in {
        "ref": lines,
        "good": lines,
        "bad": ["b a", *lines[1:-10], *["a a"] * 10],
    }.items():
        write_lines(tmp_path / name, text)
    words = [
        "score",
        "good",
        "bad",
        "--ref",
        "ref",
        "--metrics",
        "accuracy",
        "--paired-bs",
        "--json",
    ]
    words = [str(tmp_path / word) if word in ("good", "bad", "ref") else word for word in words]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    good, bad = (system["scores"][0] for system in json.loads(done.stdout)["systems"])
    assert good["value"] == 100
    wrong = 2 + sum(
        one != other for line in lines[-10:] for one, other in zip(line.split(), "aa", strict=True)
    )
    assert bad["value"] == pytest.approx(100 * (1 - wrong / 160))
    assert bad["p_value"] < 0.05
