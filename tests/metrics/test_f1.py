"""Macro F1 as scikit-learn defines it, worked by hand, and the table of which label is taken for which."""

import numpy as np
import pytest

from nmtkit.core.errors import DataError
from nmtkit.metrics import METRICS, Resampling, Texts, score_all
from nmtkit.metrics.labels import Confusion
from nmtkit.metrics.metric import score_texts

WANTED = ["a", "a", "a", "b", "b", "c"]
GIVEN = ["a", "a", "b", "b", "d", "a"]


def test_it_is_the_mean_over_the_labels() -> None:
    """a: 2 right of 3 given, 3 wanted: 4/6. b: 1 of 2, 2: 2/4. c: 0 of 0, 1: 0. d: 0 of 1, 0: 0. So 7/6 over 4."""
    (score,) = score_all(GIVEN, [WANTED], ["f1"])
    assert (score.name, score.value) == ("F1", pytest.approx(100 * (4 / 6 + 2 / 4) / 4))
    assert score_all(WANTED, [WANTED], ["f1"])[0].value == pytest.approx(100)
    # a 1, b 1, x 0, y 0
    assert score_all(["a x", "b"], [["a y", "b"]], ["f1"])[0].value == pytest.approx(50)


def test_of_several_references_one_with_the_label_counts() -> None:
    (score,) = score_all(["a", "b"], [["c", "b"], ["a", "a"]], ["f1"])
    assert score.value == pytest.approx(100)


def test_two_systems_are_compared_on_the_same_labels() -> None:
    """Only one of them gives `d`; resampling does not change what a whole test set scores."""
    systems = [Texts(GIVEN * 20, [WANTED * 20]), Texts(WANTED * 20, [WANTED * 20])]
    for kind in ("bs", "ar"):
        (one,), (other,) = score_texts(systems, ["f1"], resampling=Resampling(kind, 200))  # type: ignore[arg-type]  # kind is a str here
        assert one.score.value == pytest.approx(100 * (4 / 6 + 2 / 4) / 4)
        assert other.score.value == pytest.approx(100)
        assert other.p_value is not None
        assert other.p_value < 0.05


def test_the_table_has_a_row_for_what_was_wanted() -> None:
    table = Confusion.of(GIVEN, [WANTED])
    assert table.labels == ["a", "b", "c", "d"]
    assert table.counts.tolist() == [[2, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert table.rows[1] == ["b", 0, 1, 0, 1]
    assert np.array(table.counts).sum() == len(WANTED)


def test_lines_need_as_many_labels_and_one_at_least() -> None:
    with pytest.raises(
        DataError, match="line 2: the hypothesis has 2 labels, but the reference has 1"
    ):
        score_all(["a", "b c"], [["a", "b"]], ["f1"])
    with pytest.raises(DataError, match="no line has a label"):
        score_all(["", ""], [["", ""]], ["f1"])
    assert not METRICS.get("f1").package
