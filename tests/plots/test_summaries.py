"""Pictures of summaries: what is known of them, long articles on little room, and every format."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nmtkit.plots import AttentionPicture, SourceWindow, drawing, panels
from nmtkit.plots.attention import condense
from nmtkit.plots.panels import COPIED, COPYING, GENERATING, MAX_ROWS
from tests.plots.examples import ARTICLE, COVERAGE, P_GEN, SUMMARY, WEIGHTS, long_summary, summary
from tests.support.cases import daily
from tests.support.markup import Attributes, Page, svg_shapes, svg_texts

Draw = Callable[..., Path]


def test_coverage_is_the_sum_over_the_summary() -> None:
    np.testing.assert_allclose(summary().coverage, COVERAGE, rtol=0, atol=1e-12)


def test_which_pictures_are_summaries() -> None:
    assert summary().is_summary
    assert summary(article=False).is_summary  # a model that copies, whatever its task
    baseline = summary(p_gen=None, copied=frozenset())
    assert baseline.is_summary
    assert not replace(baseline, article=False).is_summary
    # which no summary shows
    assert not replace(baseline, windows=[SourceWindow(0, -1, 1)] * 5).is_summary


def test_the_heading_tells_what_was_not_read() -> None:
    assert summary().heading == "news  (score -1.50)"
    assert (
        summary(left_out=1234).heading
        == "news  (score -1.50)  (the last 1,234 source tokens were not read)"
    )
    assert (
        summary(title="", score=None, left_out=1).heading
        == "(the last 1 source tokens were not read)"
    )


def test_stretches_between_the_most_attended_words_are_added_up() -> None:
    """Five rows: the words with coverage 0.9, 0.8, 0.8 are places 1, 0, 5; what is between and behind are stretches."""
    short, sizes = condense(summary(), 5)
    assert short.src_words == ["Ravensmoor", "beat", "… 3 words", "Tavares", "… 3 words"]
    assert sizes == [1, 1, 3, 1, 3]
    expected = [
        [0.0, 0.0, 0.0, 0.8, 0.2],
        [0.0, 0.5, 0.1, 0.0, 0.4],
        [0.6, 0.1, 0.3, 0.0, 0.0],
        [0.2, 0.3, 0.4, 0.0, 0.1],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
    np.testing.assert_allclose(short.weights, expected, rtol=0, atol=1e-12)
    assert short.tgt_words == SUMMARY
    assert short.copied == {0, 2}


def test_what_fits_stays_as_it_is_and_a_single_word_between_two_keeps_its_name() -> None:
    for most in (9, 10, 1000):
        short, sizes = condense(summary(), most)
        assert (short.src_words, sizes) == (ARTICLE, [1] * 9)
        assert short.weights.tolist() == WEIGHTS
    weights = np.array([[0.3, 0.1, 0.4, 0.05, 0.05, 0.1]])
    short, sizes = condense(AttentionPicture(list("abcdef"), ["x"], weights, article=True), 4)
    assert (short.src_words, sizes) == (["a", "b", "c", "… 3 words"], [1, 1, 1, 3])


@pytest.mark.parametrize("most", [1, 2, 3, 7, 60, 119])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nothing_of_a_long_article_is_lost(most: int, seed: int) -> None:
    picture = long_summary(120, 10, seed)
    short, sizes = condense(picture, most)
    assert len(sizes) == len(short.src_words) <= most
    assert sum(sizes) == 120
    np.testing.assert_allclose(short.weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    starts = np.cumsum([0, *sizes[:-1]])
    for word, size, start in zip(short.src_words, sizes, starts, strict=True):
        assert word == (f"word{start}" if size == 1 else f"… {size} words")
    # No stretch is beside another, and every word within a stretch has less coverage than every word that was chosen.
    assert all(1 in pair for pair in pairwise(sizes))
    hidden = [
        i
        for start, size in zip(starts, sizes, strict=True)
        if size > 1
        for i in range(start, start + size)
    ]
    ranked = np.argsort(-picture.coverage, kind="stable")
    shown = [place for place in ranked if place not in set(hidden)]
    if shown and hidden:
        assert picture.coverage[shown[0]] >= picture.coverage[hidden].max()


def boxes(path: Path, colour: str) -> list[tuple[float, ...]]:
    """Left, top, width and height of the filled rectangles of one colour, in points."""
    shapes = [np.array(corners) for corners in svg_shapes(path, f"fill: {colour}")]
    return [(*corners.min(axis=0), *np.ptp(corners, axis=0)) for corners in shapes]


def test_svg_of_a_summary(draw: Draw) -> None:
    texts = svg_texts(draw(summary()))
    words = {word for word, _ in texts}
    assert {*ARTICLE, *SUMMARY, "coverage", "p_gen", "weight", "news  (score -1.50)"} <= words
    assert (
        "bold words are copied from the article · p_gen: blue for generating, orange for copying"
        in words
    )
    bold = [word for word, style in texts if "bold" in style or "700" in style]
    # they stand in both texts, and are bold where they are copied
    assert sorted(bold) == ["Ravensmoor", "Tavares"]
    assert sorted(word for word, style in texts if COPIED in style) == sorted(bold)


def test_the_strips_are_as_long_as_their_numbers(draw: Draw) -> None:
    path, strip = draw(summary()), 0.5 * 72
    generated, copied = (
        [height / strip for *_, height in boxes(path, colour)] for colour in (GENERATING, COPYING)
    )
    np.testing.assert_allclose(generated, P_GEN, atol=1e-4)
    np.testing.assert_allclose(np.add(generated, copied), 1.0, atol=1e-4)
    blue = boxes(path, panels.COVERAGE)  # cells may have that colour too, but bars are less high
    bars = [width / strip for *_, width, height in blue if height < 0.2 * 72]
    np.testing.assert_allclose(bars, np.array(COVERAGE) / 0.9, atol=1e-4)


def test_a_model_that_cannot_copy_has_no_p_gen(draw: Draw) -> None:
    svg, html = (
        draw(summary(p_gen=None, copied=frozenset()), name) for name in ("a.svg", "a.html")
    )
    texts = [text for text, _ in svg_texts(svg)]
    assert "coverage" in texts
    assert not any("p_gen" in text or "copied" in text for text in texts)
    assert not boxes(svg, GENERATING)
    page = Page(html)
    assert not any(
        "style" in found or "aria-label" in found for _, found in words_of(page)["summary-1"]
    )
    assert "p_gen," not in page.html.partition("<script>")[0]


def test_the_heat_map_has_columns_for_the_summary_and_rows_for_the_article(draw: Draw) -> None:
    """The one dark cell moves right with the word of the summary, and down with the word of the article."""
    corners = []
    for row, column in ((0, 0), (3, 5)):
        weights = np.zeros((5, 9))
        weights[row, column] = 1.0
        (cell,) = boxes(
            draw(AttentionPicture(ARTICLE, SUMMARY, weights, article=True)), drawing.BLUES[-1]
        )
        np.testing.assert_allclose(cell[2:], [0.34 * 72, 0.24 * 72], atol=1e-3)
        corners.append(cell[:2])
    np.testing.assert_allclose(
        np.subtract(*reversed(corners)), [3 * 0.34 * 72, 5 * 0.24 * 72], atol=1e-3
    )


@pytest.mark.parametrize(("length", "words"), daily([(12, 6), (120, 30), (400, 60), (2000, 8)]))
def test_a_sheet_stays_readable(draw: Draw, length: int, words: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png, svg = (draw(long_summary(length, words), name) for name in ("a.png", "a.svg"))
    with Image.open(png) as image:
        width, height = image.size
    assert height < 14 * 150
    assert width > words * 0.25 * 150
    texts = {text for text, _ in svg_texts(svg)}
    rows = [text for text in texts if re.fullmatch(r"word\d+|… \d+ words", text)]
    assert len(rows) <= min(length, MAX_ROWS)
    notes = [
        text
        for text in texts
        if f" of {length} article words with the most attention have their own rows" in text
    ]
    whole = [str(sum(text.startswith("word") for text in rows))] if length > MAX_ROWS else []
    assert [note.split()[1] for note in notes] == whole
    assert {f"out{i}" for i in range(words)} <= texts


@pytest.mark.slow
def test_a_grid_of_summaries_has_cells_of_one_size(draw: Draw) -> None:
    """A small summary beside a large one; each has one weight of the strongest colour."""
    small, large = np.eye(5, 9), np.zeros((40, 80))
    large[0, 0] = 1.0
    both = [
        AttentionPicture(
            [f"s{i}" for i in range(columns)], [f"t{i}" for i in range(rows)], weights, article=True
        )
        for weights in (small[:1], large)
        for rows, columns in [weights.shape]
    ]
    sizes = {}
    for grid in (True, False):
        strongest = boxes(draw(both, grid=grid), drawing.BLUES[-1])
        sizes[grid] = {(round(width, 2), round(height, 2)) for *_, width, height in strongest}
    assert sizes == {True: {(18.72, 12.24)}, False: {(24.48, 17.28), (18.72, 12.24)}}


@pytest.mark.parametrize("p_gen", [None, np.ones(1)], ids=["translation", "summary"])
def test_one_word_without_any_weight(draw: Draw, p_gen: np.ndarray | None) -> None:
    one = AttentionPicture(["</s>"], ["</s>"], np.zeros((1, 1)), p_gen=p_gen)
    for name in ("a.png", "a.svg", "a.pdf", "a.html"):
        assert draw(one, name).stat().st_size > 500


def words_of(page: Page) -> dict[str, list[tuple[str, Attributes]]]:
    """The words of the texts of a page, each with its attributes."""
    texts: dict[str, list[tuple[str, Attributes]]] = {}
    for _, attributes, text in page.elements:
        if attributes.get("role") == "listbox":
            here = texts.setdefault(str(attributes["aria-labelledby"]), [])
        if attributes.get("role") == "option":
            here.append((text, attributes))
    return texts


def test_html_shows_coverage_copies_and_p_gen_without_a_script(draw: Draw) -> None:
    page = Page(draw(summary(), "a.html"))
    words = words_of(page)
    assert [word for word, _ in words["article-1"]] == ARTICLE
    shades = [
        float((found["style"] or "0").removeprefix("--w:")) for _, found in words["article-1"]
    ]
    np.testing.assert_allclose(shades, np.array(COVERAGE) / 0.9, atol=0.0005)
    assert [found.get("class") for _, found in words["article-1"]] == [
        "strong" if value > 0.785 * 0.9 else "lit" if value > 0.1 * 0.9 else None
        for value in COVERAGE
    ]
    assert [word for word, _ in words["summary-1"]] == SUMMARY
    assert [found.get("class") for _, found in words["summary-1"]] == [
        "copied",
        None,
        "copied",
        None,
        None,
    ]
    assert [found["style"] for _, found in words["summary-1"]] == [
        f"--p:{value:.3f}" for value in P_GEN
    ]
    assert words["summary-1"][0][1]["aria-label"] == "Tavares, copied, p_gen 0.05"
    assert "coverage, 0 to 0.90" in page.html
    assert "copied from the article" in page.html
    # One stop for the Tab key; the arrow keys move on from it.
    assert [found["tabindex"] for _, found in words["summary-1"]] == ["0", "-1", "-1", "-1", "-1"]


def test_html_of_a_summary_and_a_translation(draw: Draw) -> None:
    translation = AttentionPicture(["a", "b"], ["x"], np.array([[0.25, 0.75]]))
    page = Page(draw([summary(), translation, summary()], "a.html", grid=True))
    assert [found.get("class") for found in page.attributes("section")] == [
        "summary",
        None,
        "summary",
    ]
    assert set(words_of(page)) == {"summary-1", "article-1", "summary-3", "article-3"}
    assert "Attention: 3 sentences" in page.html
    assert '<main class="grid">' in page.html
    assert "Attention: 2 articles" in Page(draw([summary(), summary()], "a.html")).html
