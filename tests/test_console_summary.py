"""Summaries in the terminal: the article shaded by coverage, and a line for each word of the summary."""

import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text
from test_console import in_terminal

from nmtkit.console import BLOCKS, COLOURS, summary

ARTICLE = ["Ravensmoor", "beat", "Westbrook", "4-2."]
WORDS = ["Ravensmoor", "won.", "</s>"]
WEIGHTS = np.array([[0.9, 0.0, 0.1, 0.0], [0.1, 0.6, 0.1, 0.2], [0.0, 0.004, 0.0, 0.996]])


def plain(capsys: pytest.CaptureFixture[str], *words: object, **more: object) -> list[str]:
    summary(*words, **more)  # type: ignore[arg-type]  # tests pass what a test case holds
    return capsys.readouterr().out.splitlines()


def test_plain_characters(capsys: pytest.CaptureFixture[str]):
    lines = plain(capsys, ARTICLE, WORDS, WEIGHTS, np.array([0.05, 0.8, 1.0]), frozenset({0}), "news  (score -1.50)")
    assert lines == [
        "news  (score -1.50)",
        "Ravensmoor beat Westbrook 4-2.",
        "▓▓▓▓▓▓▓▓▓▓ ▒▒▒▒ ░░░░░░░░░ ████",
        "coverage ░▒▓█ to 1.20",
        "",
        "0.05 Ravensmoor*  Ravensmoor 0.90  Westbrook 0.10",
        "0.80       won.   beat 0.60  4-2. 0.20  Ravensmoor 0.10  Westbrook 0.10",
        "1.00       </s>   4-2. 1.00",
        "Columns: p_gen, the probability of generating; word of the summary, * if copied;",
        "words of the article with the largest weights",
    ]


def test_a_model_that_cannot_copy(capsys: pytest.CaptureFixture[str]):
    lines = plain(capsys, ARTICLE, WORDS, WEIGHTS)
    assert lines[0] == " ".join(ARTICLE)
    assert lines[4:] == [
        "Ravensmoor   Ravensmoor 0.90  Westbrook 0.10",
        "      won.   beat 0.60  4-2. 0.20  Ravensmoor 0.10  Westbrook 0.10",
        "      </s>   4-2. 1.00",
        "Columns: word of the summary; words of the article with the largest weights",
    ]


@pytest.mark.parametrize("width", [24, 50, 80, 200])
def test_a_long_article_fits_the_width_and_nothing_of_it_is_lost(capsys: pytest.CaptureFixture[str], width: int):
    draw = np.random.default_rng(5)
    article = [f"word{i}" + "y" * int(draw.integers(0, 30)) for i in range(400)]
    words = [f"out{i}" for i in range(60)]
    weights = draw.dirichlet(np.full(400, 0.05), size=60)
    lines = plain(capsys, article, words, weights, draw.random(60), frozenset({3, 7}), width=width)
    assert max(map(cell_len, lines)) <= width
    text, (_, *rows) = lines[: lines.index("")], lines[lines.index("") :]
    letters = "".join(line.replace(" ", "") for line in text if not set(line) <= set(" " + BLOCKS))
    assert letters.startswith("".join(article))
    marks = [row for row in rows if re.match(r"[01]\.\d\d +out\d+\* ", row + " ")]
    assert len(marks) == 2
    assert sum(bool(re.match(r"[01]\.\d\d +out\d+[ *]?", row)) for row in rows) == 60
    for row, values in zip(rows, weights, strict=False):
        best, weight = re.split(r"[ *]  ", row, maxsplit=1)[1].split()[:2]
        assert weight == f"{values.max():.2f}"
        assert article[values.argmax()].startswith(best.removesuffix("…"))


def test_shades_stand_below_their_words(capsys: pytest.CaptureFixture[str]):
    lines = plain(capsys, ["黑猫", "b", "cc"], ["x"], np.array([[1.0, 0.0, 0.5]]), width=30)
    assert lines[:2] == ["黑猫 b cc", "████   ▒▒"]


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]):
    out = "\n".join(plain(capsys, ["\x1b[2J"], ["a\rb"], np.ones((1, 1)), title="\x07"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", out)
    assert "a�b" in out


def test_no_words(capsys: pytest.CaptureFixture[str]):
    assert plain(capsys, ["a"], [], np.zeros((0, 1))) == ["(no words)"]


def test_no_weight_at_all(capsys: pytest.CaptureFixture[str]):
    assert plain(capsys, ["a"], ["b"], np.zeros((1, 1)))[:2] == ["a", "coverage ░▒▓█ to 0.00"]


PROGRAM = """
import numpy as np
from nmtkit.console import summary
summary(["the", "cat", "sat"], ["cat", "."], np.array([[0.0, 0.9, 0.0], [0.0, 0.0, 0.5]]), np.array([0.1, 1]), {0})
"""


def test_colours():
    lines = in_terminal(PROGRAM).splitlines()
    assert Text.from_ansi(lines[0]).plain == "the cat sat"
    half = round(0.5 / 0.9 * (len(COLOURS) - 1))
    assert [int(colour) for colour in re.findall(r"48;5;(\d+)m", lines[0])] == [COLOURS[-1], COLOURS[half]]
    assert "\x1b[1mcat" in lines[3]  # copied words are bold
    assert Text.from_ansi(lines[3]).plain.rstrip() == "0.10 cat*  cat 0.90"
    assert not set(BLOCKS[1:]) & set("".join(lines))


def test_no_color_is_respected():
    out = in_terminal(PROGRAM, NO_COLOR="1")
    assert "48;5;" not in out
    assert "    ███ ▒▒▒" in [Text.from_ansi(line).plain for line in out.splitlines()]
