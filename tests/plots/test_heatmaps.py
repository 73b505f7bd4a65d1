import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from nmtkit.core.errors import NmtkitError
from nmtkit.plots import AttentionPicture, FigureStyle, SourceWindow, drawing
from nmtkit.plots.fonts import PictureWarning
from tests.plots.examples import long_summary, summary
from tests.support.cases import daily
from tests.support.markup import Page, svg_shapes, svg_texts


def picture(rows: int, columns: int, title: str = "rnnsearch") -> AttentionPicture:
    weights = np.random.default_rng(0).dirichlet(np.ones(columns) * 0.3, size=rows)
    src = [f"source{i}" for i in range(columns)]
    tgt = [f"target{i}" for i in range(rows)]
    return AttentionPicture(src, tgt, weights, title=title, score=-1.5)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def size_of(path: Path) -> tuple[int, ...]:
    return pixels(path).shape[1::-1]


def test_png_is_dark_where_the_weight_is(draw: Callable[..., Path]) -> None:
    def drawn(row: int, column: int) -> np.ndarray:
        weights = np.zeros((5, 5))
        weights[row, column] = 1.0
        return pixels(draw(AttentionPicture(list("abcde"), list("vwxyz"), weights), "a.png")).mean(
            axis=-1
        )

    difference = drawn(1, 3) - drawn(3, 0)
    first, second = np.argwhere(difference < -100), np.argwhere(difference > 100)
    # From row 1 and column 3 to row 3 and column 0, in cells of 0.42 inches at 150 dots an inch.
    np.testing.assert_allclose(
        second.mean(axis=0) - first.mean(axis=0), [2 * 63, -3 * 63], atol=1.0
    )
    assert len(first) == pytest.approx(63 * 63, rel=0.1)


@pytest.mark.slow
def test_several_pictures_share_a_sheet(draw: Callable[..., Path]) -> None:
    one, two, many = (size_of(draw([picture(6, 7)] * count, "a.png")) for count in (1, 2, 12))
    assert two[1] == one[1]
    assert one[0] < two[0] < many[0] <= 16 * 150
    assert many[1] > 2 * one[1]  # the sheet goes on below


def test_a_grid_lines_up_and_has_cells_of_one_size(draw: Callable[..., Path]) -> None:
    """Nine equal pictures make three full rows; in a grid a small one is drawn like a large one."""
    one = size_of(draw(picture(5, 5), "a.png"))
    nine = size_of(draw([picture(5, 5)] * 9, "a.png", grid=True))
    # each has its gaps on both sides, as the one has
    assert nine == pytest.approx((3 * one[0], 3 * one[1]), abs=2)
    assert cell_sizes(draw([picture(20, 20), picture(4, 4)], grid=True)) == {21.6}  # 0.3 inches
    assert cell_sizes(draw([picture(20, 20), picture(4, 4)])) == {21.6, 30.24}


@pytest.mark.parametrize(("grid", "pages"), [(False, 3), (True, 1)])
def test_pdf_has_a_page_for_each_picture_or_for_a_grid(
    draw: Callable[..., Path], grid: bool, pages: int
) -> None:
    content = draw([picture(5, 5), picture(3, 4), picture(30, 20)], "a.pdf", grid=grid).read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) == pages


def test_windows_grey_out_what_cannot_be_seen(draw: Callable[..., Path]) -> None:
    """A window of 0.5 to 2.5 over four columns: the second and the third have their middles in it."""
    words, weights = list("abcd"), np.array([[0.0, 0.5, 0.5, 0.0]])
    local = AttentionPicture(words, ["x"], weights, windows=[SourceWindow(1.5, 0.5, 2.5)])
    assert [local.is_outside_window(0, column) for column in range(4)] == [True, False, False, True]
    # After merging a window may end before the middle of a word of which it saw a piece.
    merged = AttentionPicture(
        ["a", "b"], ["x"], weights[:, 1:3], windows=[SourceWindow(0.0, -0.75, 0.75)]
    )
    assert not merged.is_outside_window(0, 1)
    before = pixels(draw(AttentionPicture(words, ["x"], weights), "a.png"))
    after = pixels(draw(local, "a.png"))
    changed = np.argwhere((before != after).any(axis=-1))
    grey = np.argwhere((after == [0xE5, 0xE7, 0xEB]).all(axis=-1))
    cell = 0.42 * 150
    left, right = changed[:, 1].min(), changed[:, 1].max()
    assert right - left == pytest.approx(4 * cell, abs=3)
    columns = np.unique(grey[:, 1]) - left
    assert columns[columns < 2 * cell].max() == pytest.approx(cell, abs=3)
    assert columns[columns > 2 * cell].min() == pytest.approx(3 * cell, abs=3)


def cell_sizes(path: Path) -> set[float]:
    """The widths of the squares of heat-maps."""
    squares = svg_shapes(path, f"stroke: {drawing.LINE}")
    return {round(float(np.ptp([x for x, _ in corners])), 2) for corners in squares}


def test_svg_holds_the_words_as_text(draw: Callable[..., Path]) -> None:
    words = ["<script>", "a&b", "$x_1$", "chat"]
    path = draw(
        AttentionPicture(words, ["le", "la"], np.full((2, 4), 0.25), title="demo", score=-0.5)
    )
    texts = [text for text, _ in svg_texts(path)]
    assert {*words, "le", "la"} <= set(texts)
    assert any("demo" in text and "-0.50" in text for text in texts)
    assert "<script>" not in path.read_text(encoding="utf-8")


def test_long_words_are_shortened_in_the_middle(draw: Callable[..., Path]) -> None:
    path = draw(AttentionPicture(["Donau" + "dampf" * 10 + "schiff"], ["x"], np.ones((1, 1))))
    (label,) = [text for text, _ in svg_texts(path) if "…" in text]
    assert len(label) == 36
    assert (label[:10], label[-6:]) == ("Donaudampf", "schiff")


def test_control_characters_become_visible(draw: Callable[..., Path]) -> None:
    odd = AttentionPicture(["a\x07b", "c\nd", "\ud800"], ["x"], np.ones((1, 3)))
    svg, html, *_ = (draw(odd, name) for name in ("a.svg", "a.html", "a.png", "a.pdf"))
    assert {"a�b", "c�d", "�"} <= {text for text, _ in svg_texts(svg)}
    assert {"a�b", "c�d", "�"} <= set(Page(html).texts())


@pytest.mark.parametrize("name", ["a.PNG", "a.svg", "a.pdf", "a.html"])
def test_the_same_pictures_give_the_same_file(draw: Callable[..., Path], name: str) -> None:
    first, second = (
        draw([picture(4, 5), long_summary(20, 6)], name).read_bytes() for _ in range(2)
    )
    assert first == second


def test_the_settings_of_matplotlib_stay_as_they_were(draw: Callable[..., Path]) -> None:
    with matplotlib.rc_context(
        {"svg.fonttype": "path", "savefig.bbox": "tight", "text.usetex": True}
    ):
        before = dict(matplotlib.rcParams)
        draw(picture(4, 5))
        assert dict(matplotlib.rcParams) == before


PROBE = """
import sys, numpy, nmtkit.plots
early = "matplotlib" in sys.modules
nmtkit.plots.save([nmtkit.plots.AttentionPicture(["a"], ["b"], numpy.ones((1, 1)))], sys.argv[1])
print(early, "matplotlib.pyplot" in sys.modules)
"""


def test_matplotlib_is_loaded_on_use_only_and_pyplot_never(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROBE, str(tmp_path / "b.png")]
    assert subprocess.check_output(words, text=True) == "False False\n"


def test_letters_without_a_glyph_are_named(draw: Callable[..., Path]) -> None:
    # no script has it, so no font does
    odd = AttentionPicture([f"a{chr(0x0378)}"], ["b"], np.ones((1, 1)))
    for name in ("a.png", "a.pdf"):
        with pytest.warns(PictureWarning, match=r"no installed font has glyphs for . \(U\+0378\)"):
            draw(odd, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("a.svg", "a.html"):  # set with the viewer's fonts
            draw(odd, name)
        draw(picture(3, 3), "a.png")


@pytest.mark.parametrize(
    ("facts", "count"), [({}, 3), ({"p_gen": np.ones(2)}, 2)], ids=["translation", "summary"]
)
def test_html_escapes_everything_and_stands_alone(
    draw: Callable[..., Path], facts: dict[str, Any], count: int
) -> None:
    evil = '"><script>alert(1)</script>{{ 7 * 7 }}{% raw %}{#'
    odd = AttentionPicture(
        [evil, "&amp;"], ["</td>", "'"], np.full((2, 2), 0.5), title=evil, **facts
    )
    page = Page(draw(odd, "a.html"))
    assert "<script>alert" not in page.html
    assert len(page.attributes("script")) == 1
    assert page.texts().count(evil) == count  # heading, line of words, column of a translation
    assert {"&amp;", "</td>", "'"} <= set(page.texts())
    page.check_stands_alone()


def test_html_shows_every_sentence(draw: Callable[..., Path]) -> None:
    second = AttentionPicture(["أحب", "</s>"], ["y"], np.array([[0.25, 0.75]]), title="second")
    page = Page(draw([picture(2, 3, "first"), second], "a.html"))
    cells = page.attributes("td")
    assert len(page.attributes("section")) == 2
    assert [attributes["dir"] for attributes in page.attributes("bdi")] == [
        "ltr",
        "ltr",
        "rtl",
        "ltr",
    ]
    assert len(page.attributes("tr")) == (1 + 2) + (1 + 1)
    assert len(cells) == (1 + 2 * 3) + (1 + 2)  # the corner and the cells
    assert cells[-2] == {"style": "--w:0.333"}  # a third of the largest weight
    assert cells[-1] == {"class": "strong", "style": "--w:1.000"}
    assert {"0.25", "0.75", "first  (score -1.50)"} <= set(page.texts())
    assert (
        sum(attributes.get("tabindex") == "0" for _, attributes, _ in page.elements)
        == 3 + 2 + 2 + 1
    )


def test_html_marks_windows(draw: Callable[..., Path]) -> None:
    """Row x: window 0.25 to 2.75 around 1.5; row y: all of the sentence, centre in the first column."""
    windows = [SourceWindow(1.5, 0.25, 2.75), SourceWindow(0.0, -9.0, 9.0)]
    weights = np.array([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    page = Page(
        draw(AttentionPicture(list("abcd"), ["x", "y"], weights, windows=windows), "a.html")
    )
    assert page.attributes("td")[1:] == [
        {"class": "outside"},
        {"style": "--w:0.500"},
        {"class": "centre", "style": "--w:0.500;--centre:0.000"},
        {"class": "outside"},
        {"class": "strong centre", "style": "--w:1.000;--centre:0.500"},
        *[{}, {}, {}],
    ]
    assert "centre of the local attention window" in page.html
    assert "centre of the local attention window" not in Page(draw(picture(2, 2), "a.html")).html


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a.gif",
            r"the suffix '\.gif' does not select a supported image format; use one of \.png, \.svg, \.pdf, \.html",
        ),
        ("a", "a name without a suffix"),
        ("missing/a.png", "folder .*missing does not exist"),
        (
            "folder.png",
            r"folder\.png: cannot be written \(.*\); choose a folder with write permission",
        ),
    ],
)
def test_bad_paths_are_refused(
    tmp_path: Path, draw: Callable[..., Path], name: str, message: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(NmtkitError, match=message):
        draw(picture(2, 2), name)


@pytest.mark.parametrize(
    ("pictures", "message", "names"),
    [
        ([], "no sentences", "a.png a.html"),
        (
            [picture(2, 2), AttentionPicture(["a"], [], np.ones((0, 1)))],
            "sentence 2 has no words",
            "a.png a.html",
        ),
        (
            AttentionPicture(["a"], ["b"], np.array([[np.nan]])),
            "non-finite attention weights",
            "a.png a.html",
        ),
        (
            summary(p_gen=np.array([0, 1, np.nan, 1, 1])),
            "sentence 1 has non-finite attention weights",
            "a.png a.html",
        ),
        (
            [picture(50, 50)] * 200,
            r"would be unreadable as PNG; draw fewer sentences, or write \.pdf",
            "a.png",
        ),
    ],
    ids=["none", "no words", "weights", "p_gen", "too large"],
)
def test_pictures_that_cannot_be_drawn(
    tmp_path: Path, draw: Callable[..., Path], pictures: Any, message: str, names: str
) -> None:
    for name in names.split():
        with pytest.raises(NmtkitError, match=message):
            draw(pictures, name)
        assert not (tmp_path / name).exists()


def size_and_points(path: Path) -> tuple[list[float], set[float]]:
    """Width and height of an SVG in inches, and the sizes of its letters in points."""
    root = ET.parse(path).getroot()
    sizes = re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", path.read_text(encoding="utf-8"))
    return [float(root.get(side)[:-2]) / 72 for side in ("width", "height")], set(map(float, sizes))


@pytest.mark.parametrize("grid", daily([True, False]))
def test_a_size_and_a_font_size(draw: Callable[..., Path], grid: bool) -> None:
    def drawn(*size: Any, **style: Any) -> tuple[list[float], set[float]]:
        return size_and_points(
            draw([picture(4, 5)] * 2, grid=grid, style=FigureStyle(size=size, **style))
        )

    (width, height), _ = drawn(4.0, None)
    assert width == pytest.approx(4.0)
    (same, _), sizes = drawn(4.0, None, font_size=6.0)
    assert same == pytest.approx(4.0)
    assert any(abs(size - 6.0) < 0.06 for size in sizes)
    assert drawn(9.0, 2 * height)[0][1] == pytest.approx(2 * height, rel=0.02)
    with pytest.raises(NmtkitError, match=r"the font size can be at most \d+\.\d points"):
        drawn(2.0, None, font_size=30.0)


def test_a_font_size_alone_scales_the_picture(draw: Callable[..., Path]) -> None:
    (one, _), _ = size_and_points(draw(picture(4, 5)))
    (two, _), sizes = size_and_points(draw(picture(4, 5), style=FigureStyle(font_size=22.0)))
    assert two == pytest.approx(2 * one, rel=0.03)
    assert 22.0 in sizes


def test_another_title_or_none(draw: Callable[..., Path]) -> None:
    titled = draw(picture(4, 5), style=FigureStyle(title="Figure 2"))
    texts, size = [text for text, _ in svg_texts(titled)], size_and_points(titled)[0]
    assert "Figure 2" in texts
    assert not any("rnnsearch" in text or "-1.50" in text for text in texts)
    untitled = draw(picture(4, 5), style=FigureStyle(title=""))
    assert not any("rnnsearch" in text for text, _ in svg_texts(untitled))
    assert size_and_points(untitled)[0][1] < size[1]


def test_colours_and_fonts_in_a_page(draw: Callable[..., Path]) -> None:
    style = FigureStyle(colours=("white", "#ff8000"), font="serif", font_size=14.0)
    html = Page(draw(picture(4, 5), "a.html", style=style)).html
    rules = (
        ":root { --hue: 255 128 0; --strong: #000000; }",
        'body { font-family: "serif"; }',
        "font-size: 14pt",
    )
    assert all(rule in html for rule in rules)


def test_fonts_and_colours_that_are_none() -> None:
    FigureStyle(colours=("Grey",))
    for style, message in (
        ({"font": "DejaVu San"}, "font 'DejaVu San' is not installed: did you mean 'DejaVu Sans'"),
        (
            {"colours": ("viridiss",)},
            "'viridiss' is neither a colour nor a colour map: did you mean 'viridis'",
        ),
        ({"colours": ("white", "viridis")}, "'viridis' is not a colour; use a name"),
    ):
        with pytest.raises(NmtkitError, match=message):
            FigureStyle(**style)
