"""Attention in the terminal: heat-maps of translations, and articles shaded by their summaries."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

from nmtkit.cli.terminal.heatmaps import BLOCKS, COLOURS, show_attention
from nmtkit.plots import AttentionPicture, SourceWindow
from tests.cli.terminal.terminal import in_terminal

SHARP = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3]])


def printed(
    capsys: pytest.CaptureFixture[str],
    src: list[str],
    tgt: list[str],
    weights: Sequence[Sequence[float]] | np.ndarray,
    width: int = 80,
    **facts: Any,
) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        show_attention(AttentionPicture(src, tgt, np.asarray(weights), **facts))
    return capsys.readouterr().out.splitlines()


def test_heatmap_in_plain_characters(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ["the", "cat", "</s>"], ["le", "chat"], SHARP, title="demo")
    assert lines == [
        "demo",
        "         <",
        "     t c /",
        "     h a s",
        "     e t >",
        "  le   ██  ",
        "chat ▒▒░░░░",
        "░▒▓█ to 0.90",
    ]


def test_darkest_block_is_at_the_largest_weight(capsys: pytest.CaptureFixture[str]) -> None:
    weights = np.random.default_rng(3).dirichlet(np.ones(7), size=6)
    lines = printed(capsys, list("abcdefg"), list("uvwxyz"), weights)
    shades = np.array([[BLOCKS.index(line[2 + 2 * s]) for s in range(7)] for line in lines[1:7]])
    np.testing.assert_array_equal(shades, np.round(weights / weights.max() * 4))
    assert shades[np.unravel_index(weights.argmax(), weights.shape)] == 4
    assert shades.min() == 0


def test_heatmap_with_windows(capsys: pytest.CaptureFixture[str]) -> None:
    """Row x may look at the first two words, y at the last two; a weight of nothing inside a window is a space."""
    weights = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    windows = [SourceWindow(0.2, -0.8, 1.2), SourceWindow(2.75, 1.75, 3.75)]
    assert printed(capsys, list("abcd"), ["x", "y"], weights, windows=windows) == [
        "   a  b  c  d",
        "x ▒▒+▒▒▒·  ·  ",
        "y ·  ·     ██+",
        "░▒▓█ to 1.00",
        "+ centre of the window, · outside the window",
    ]


@pytest.mark.parametrize("width", [20, 33, 80])
@pytest.mark.parametrize("longest", [3, 30])
def test_heatmap_fits_the_width(
    capsys: pytest.CaptureFixture[str], width: int, longest: int
) -> None:
    src = [f"{'w' * (longest - 2)}{i:02}" for i in range(45)]
    tgt = [f"{'z' * longest}{i}" for i in range(5)]
    weights = np.eye(5, 45) + np.eye(5, 45, k=40)
    lines = printed(
        capsys, src, tgt, weights, width, title="a title that is longer than the narrow terminal"
    )
    assert max(map(cell_len, lines)) <= width
    # Every cell is there, over all panels: two columns for each of the ten weights, in blocks of the darkest kind.
    cells = [line for line in lines if "to 1.00" not in line]
    per_cell = 2 if longest == 3 else 3
    assert sum(line.count("█") for line in cells) == 10 * per_cell
    # too long to stand upright: the columns are numbered, and a legend tells the words
    if longest == 30:
        assert all(word in "".join(lines) for word in src)


def test_columns_of_joining_scripts_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ["أحب", "القطط"], ["I", "cats"], [[0.0, 1.0], [0.5, 0.5]])
    assert lines[:3] == ["     1 2", "   I   ██", "cats ▒▒▒▒"]
    assert all(any(word in line for line in lines[3:]) for word in ("أحب", "القطط"))


def test_wide_letters_keep_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ["黑", "猫", "x"], ["喜欢", "a"], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert lines == ["     黑猫x", "喜欢 ██  ██", "   a   ██  ", "░▒▓█ to 1.00"]


@pytest.mark.parametrize("article", [False, True])
def test_control_characters_are_replaced_and_no_words_are_no_error(
    capsys: pytest.CaptureFixture[str], article: bool
) -> None:
    out = "\n".join(printed(capsys, ["\x1b[2J"], ["a\rb"], [[1.0]], title="\x07", article=article))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", out)
    assert "a�b" in out
    assert printed(capsys, ["a"], [], np.zeros((0, 1)), article=article) == ["(no words)"]


COLOUR_PROGRAM = """
import numpy as np
from nmtkit.cli.terminal.heatmaps import show_attention
from nmtkit.plots import AttentionPicture
show_attention(AttentionPicture(["the", "cat", "sat"], ["le", "chat"], np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3]])))
facts = {"p_gen": np.array([0.1, 1]), "copied": frozenset({0})}
weights = np.array([[0.0, 0.9, 0.0], [0.0, 0.0, 0.5]])
show_attention(AttentionPicture(["the", "cat", "sat"], ["cat", "."], weights, **facts))
"""


def test_weights_are_colours_in_a_terminal() -> None:
    lines = in_terminal(COLOUR_PROGRAM).splitlines()
    plain = [Text.from_ansi(line).plain.rstrip() for line in lines]
    backgrounds = [[int(colour) for colour in re.findall(r"48;5;(\d+)m", line)] for line in lines]
    assert plain[3] == "  le 10 90"
    assert backgrounds[3] == [COLOURS[1], COLOURS[-1], COLOURS[0]]
    article = plain.index("the cat sat")
    assert backgrounds[article] == [COLOURS[-1], COLOURS[round(0.5 / 0.9 * (len(COLOURS) - 1))]]
    assert "\x1b[1mcat" in lines[article + 3]  # copied words are bold
    assert plain[article + 3] == "0.10 cat*  cat 0.90"
    assert not set(BLOCKS[1:]) & set("".join(lines))


def test_no_color_is_respected() -> None:
    out = in_terminal(COLOUR_PROGRAM, NO_COLOR="1")
    assert "48;5;" not in out
    assert {"  le   ██  ", "    ███ ▒▒▒"} <= {
        Text.from_ansi(line).plain for line in out.splitlines()
    }


ARTICLE = ["Ravensmoor", "beat", "Westbrook", "4-2."]
WORDS = ["Ravensmoor", "won.", "</s>"]
WEIGHTS = np.array([[0.9, 0.0, 0.1, 0.0], [0.1, 0.6, 0.1, 0.2], [0.0, 0.004, 0.0, 0.996]])


def test_summary_in_plain_characters(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "p_gen": np.array([0.05, 0.8, 1.0]),
        "copied": frozenset({0}),
        "title": "news",
        "score": -1.5,
    }
    title, article, shades, scale, _, *rows = printed(capsys, ARTICLE, WORDS, WEIGHTS, **facts)
    assert title.split() == ["news", "(score", "-1.50)"]
    assert article.split() == ARTICLE
    # The sums of the weights are 1.0, 0.604, 0.2 and 1.196: each word is shaded in its whole length.
    assert shades.split() == ["▓" * 10, "▒" * 4, "░" * 9, "█" * 4]
    assert scale.endswith("to 1.20")
    assert rows[0].split() == ["0.05", "Ravensmoor*", "Ravensmoor", "0.90", "Westbrook", "0.10"]
    assert rows[1].split() == [
        "0.80",
        "won.",
        "beat",
        "0.60",
        "4-2.",
        "0.20",
        "Ravensmoor",
        "0.10",
        "Westbrook",
        "0.10",
    ]
    assert rows[2].split() == ["1.00", "</s>", "4-2.", "1.00"]
    assert (
        "p_gen, the probability of generating the word; word of the summary, * if copied;"
        in " ".join(rows[3:])
    )


def test_summary_of_a_model_that_cannot_copy_has_no_p_gen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, ARTICLE, WORDS, WEIGHTS, article=True)
    assert lines[4].split() == ["Ravensmoor", "Ravensmoor", "0.90", "Westbrook", "0.10"]
    assert "Columns: word of the summary; words of the article" in lines[7]


@pytest.mark.parametrize("width", [24, 50, 80, 200])
def test_a_long_article_is_wrapped_completely(
    capsys: pytest.CaptureFixture[str], width: int
) -> None:
    draw = np.random.default_rng(5)
    article = [f"word{i}" + "y" * int(draw.integers(0, 30)) for i in range(400)]
    words = [f"out{i}" for i in range(60)]
    weights = draw.dirichlet(np.full(400, 0.05), size=60)
    lines = printed(
        capsys, article, words, weights, width, p_gen=draw.random(60), copied=frozenset({3, 7})
    )
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


def test_shades_are_below_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ["黑猫", "b", "cc"], ["x"], [[1.0, 0.0, 0.5]], width=30, article=True)
    assert lines[:2] == ["黑猫 b cc", "████   ▒▒"]
    assert printed(capsys, ["a"], ["b"], np.zeros((1, 1)), article=True)[:2] == [
        "a",
        "coverage ░▒▓█ to 0.00",
    ]
