"""Curves of braille dots: where each point stands."""

import math
from collections.abc import Iterable

import pytest
from rich.text import Text

from nmtkit.cli.terminal.charts import line_chart
from tests.cli.terminal.terminal import in_terminal


def plain(lines: Iterable[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_labels_say_the_ends_of_both_axes() -> None:
    top, bottom, axis = plain(line_chart([([(0, 8.0), (10, 1.0)], "red")], 6, 3))
    assert (top[:2], bottom[:2], axis) == ("8 ", "1 ", "  0 10")
    assert [character != "\u2800" for character in (top[2], top[5], bottom[2], bottom[5])] == [
        True,
        False,
        False,
        True,
    ]


def test_every_dot_of_a_small_chart() -> None:
    """Two columns and two rows of cells hold 4 x 8 dots: the points stand in the corners, and a line joins them."""
    upper, lower, _ = plain(line_chart([([(1, 1.0), (2, 0.0)], "red")], 4, 3))
    dots = {(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5), (3, 6), (3, 7)}
    bits = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
    for row, line in enumerate((upper, lower)):
        for column, character in enumerate(line[2:]):
            wanted = sum(
                bits[y][x]
                for x in (0, 1)
                for y in range(4)
                if (2 * column + x, 4 * row + y) in dots
            )
            assert ord(character) - 0x2800 == wanted, (row, column)


def test_what_is_no_number_is_left_out_and_nothing_is_said() -> None:
    assert plain(line_chart([([(0, math.nan)], "red"), ([], "blue")], 20, 5)) == ["nothing yet"]
    flat = plain(line_chart([([(5, 2.0)], "red"), ([(5, math.nan)], "blue")], 20, 4))
    assert len(flat) == 4
    assert sum(ord(one) > 0x2800 for line in flat for one in line) == 1


def test_a_later_curve_colours_the_cells_that_both_pass() -> None:
    lines = line_chart([([(0, 0.0), (9, 0.0)], "red"), ([(0, 0.0), (9, 9.0)], "blue")], 30, 6)
    colours = {span.style for line in lines for span in line.spans}
    assert {"red", "blue"} <= colours


LIVE = """
from nmtkit.cli.terminal.charts import show_charts
looks = iter(range(9))
def look():
    points = [(x, x * x) for x in range(1 + next(looks))]
    return f"seen {len(points)}", [("loss", {"training": (points, "red")})]
left = iter([True, True, False])
show_charts(look, lambda: next(left), 0.01)
"""


def test_a_terminal_sees_every_look_until_the_training_ends() -> None:
    got = in_terminal(LIVE)
    assert [f"seen {number}" in got for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert "training 4" in got


def test_elsewhere_the_charts_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    exec(LIVE, {})
    shown = capsys.readouterr().out
    assert "seen 1" in shown
    assert "seen 2" not in shown
