import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from daily import daily
from PIL import Image
from summary_example import long_summary
from written import Page, svg_texts

from nmtkit.core.errors import NmtkitError
from nmtkit.pictures import AttentionPicture, FigureStyle, PictureWarning, SourceWindow, picture_format, save


def picture(rows: int, columns: int, title: str = "rnnsearch") -> AttentionPicture:
    weights = np.random.default_rng(0).dirichlet(np.ones(columns) * 0.3, size=rows)
    src = [f"source{i}" for i in range(columns)]
    tgt = [f"target{i}" for i in range(rows)]
    return AttentionPicture(src, tgt, weights, title=title, score=-1.5)


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        image.load()  # decodes every pixel, so a damaged file fails here
        return image.size


def grey(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("L"), dtype=float)


def test_png_is_dark_where_the_weight_is(tmp_path):
    places = [(1, 3), (3, 0)]
    for number, place in enumerate(places):
        weights = np.zeros((5, 5))
        weights[place] = 1.0
        save(AttentionPicture(list("abcde"), list("vwxyz"), weights), tmp_path / f"{number}.png")
    difference = grey(tmp_path / "0.png") - grey(tmp_path / "1.png")
    first, second = np.argwhere(difference < -100), np.argwhere(difference > 100)
    # From row 1 and column 3 to row 3 and column 0, in cells of 0.42 inches at 150 dots an inch.
    np.testing.assert_allclose(second.mean(axis=0) - first.mean(axis=0), [2 * 63, -3 * 63], atol=1.0)
    assert len(first) == pytest.approx(63 * 63, rel=0.1)


@pytest.mark.slow
def test_several_pictures_share_a_sheet(tmp_path):
    save(picture(6, 7), tmp_path / "one.png")
    save([picture(6, 7)] * 2, tmp_path / "two.png")
    save([picture(6, 7)] * 12, tmp_path / "many.png")
    one, two, many = (size_of(tmp_path / f"{name}.png") for name in ("one", "two", "many"))
    assert two[1] == one[1]
    assert one[0] < two[0] < many[0] <= 16 * 150
    assert many[1] > 2 * one[1]  # the sheet goes on below


def test_a_grid_lines_up_and_has_cells_of_one_size(tmp_path):
    """Nine equal pictures make three full rows; in a grid a small one is drawn like a large one."""
    save(picture(10, 10), tmp_path / "one.png")
    save([picture(10, 10)] * 9, tmp_path / "nine.png", grid=True)
    one, nine = size_of(tmp_path / "one.png"), size_of(tmp_path / "nine.png")
    assert nine[0] == pytest.approx(3 * one[0], abs=2)  # each of the three has its gaps on both sides, as the one has
    assert nine[1] == pytest.approx(3 * one[1], abs=2)
    save([picture(20, 20), picture(4, 4)], tmp_path / "two.svg", grid=True)
    save([picture(20, 20), picture(4, 4)], tmp_path / "shelf.svg")
    assert cell_sizes(tmp_path / "two.svg") == {21.6}  # 0.3 inches
    assert cell_sizes(tmp_path / "shelf.svg") == {21.6, 30.24}


def test_pdf_has_a_page_for_each_picture_or_for_a_grid(tmp_path):
    for grid, pages in ((False, 3), (True, 1)):
        save([picture(5, 5), picture(3, 4), picture(30, 20)], tmp_path / "a.pdf", grid=grid)
        content = (tmp_path / "a.pdf").read_bytes()
        assert content.startswith(b"%PDF-")
        assert len(re.findall(rb"/Type /Page\b", content)) == pages


def test_windows_grey_out_what_cannot_be_seen(tmp_path):
    """SourceWindow 0.5 to 2.5 over four columns: the second and the third have their middles in it."""
    words, weights = list("abcd"), np.array([[0.0, 0.5, 0.5, 0.0]])
    local = AttentionPicture(words, ["x"], weights, windows=[SourceWindow(1.5, 1.0)])
    assert [local.is_outside_window(0, column) for column in range(4)] == [True, False, False, True]
    # After merging a window may end before the middle of a word of which it saw a piece.
    assert not AttentionPicture(
        ["a", "b"], ["x"], weights[:, 1:3], windows=[SourceWindow(0.0, 0.75)]
    ).is_outside_window(0, 1)
    save(AttentionPicture(words, ["x"], weights), tmp_path / "global.png")
    save(local, tmp_path / "local.png")
    with Image.open(tmp_path / "global.png") as before, Image.open(tmp_path / "local.png") as after:
        changed = np.argwhere((np.asarray(before) != np.asarray(after)).any(axis=-1))
        grey = np.argwhere((np.asarray(after)[..., :3] == [0xE5, 0xE7, 0xEB]).all(axis=-1))
    cell = 0.42 * 150
    left, right = changed[:, 1].min(), changed[:, 1].max()
    assert right - left == pytest.approx(4 * cell, abs=3)
    columns = np.unique(grey[:, 1]) - left
    assert columns[columns < 2 * cell].max() == pytest.approx(cell, abs=3)
    assert columns[columns > 2 * cell].min() == pytest.approx(3 * cell, abs=3)


def test_the_sheet_too_large_for_png_is_refused(tmp_path):
    with pytest.raises(NmtkitError, match=r"cannot be read as PNG; draw fewer sentences, or write \.pdf"):
        save([picture(50, 50)] * 200, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def cell_sizes(path: Path) -> set[float]:
    """The widths of the squares of heat-maps: what stands between the first two corners of their outlines."""
    sizes = set()
    for group in ET.parse(path).iter("{http://www.w3.org/2000/svg}g"):
        if not group.get("id", "").startswith("QuadMesh"):
            continue
        for shape in group.iter("{http://www.w3.org/2000/svg}path"):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", shape.get("d", ""))]
            if len(numbers) >= 4 and numbers[1] == numbers[3]:
                sizes.add(round(abs(numbers[2] - numbers[0]), 2))
    return sizes


def test_svg_holds_the_words_as_text(tmp_path):
    words = ["<script>", "a&b", "$x_1$", "chat"]
    save(AttentionPicture(words, ["le", "la"], np.full((2, 4), 0.25), title="demo", score=-0.5), tmp_path / "a.svg")
    texts = [text for text, _ in svg_texts(tmp_path / "a.svg")]
    assert {*words, "le", "la"} <= set(texts)
    assert any("demo" in text and "-0.50" in text for text in texts)
    assert "<script>" not in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_long_words_are_shortened_in_the_middle(tmp_path):
    word = "Donau" + "dampf" * 10 + "schiff"
    save(AttentionPicture([word], ["x"], np.ones((1, 1))), tmp_path / "a.svg")
    (label,) = [text for text, _ in svg_texts(tmp_path / "a.svg") if "…" in text]
    assert len(label) == 36
    assert label.startswith("Donaudampf")
    assert label.endswith("schiff")


def test_control_characters_become_visible(tmp_path):
    words = ["a\x07b", "c\nd", "\ud800"]
    for name in ("a.svg", "a.html", "a.png", "a.pdf"):
        save(AttentionPicture(words, ["x"], np.ones((1, 3))), tmp_path / name)
    assert {"a�b", "c�d", "�"} <= {text for text, _ in svg_texts(tmp_path / "a.svg")}
    assert "a�b" in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a.PNG", "a.svg", "a.pdf", "a.html"])
def test_the_same_pictures_give_the_same_file(tmp_path, name):
    contents = []
    for _ in range(2):
        save([picture(4, 5), long_summary(80, 10)], tmp_path / name)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


def test_the_settings_of_matplotlib_stay_as_they_were(tmp_path):
    with matplotlib.rc_context({"svg.fonttype": "path", "savefig.bbox": "tight", "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        save(picture(4, 5), tmp_path / "a.svg")
        assert dict(matplotlib.rcParams) == before


PROBE = """
import sys
import numpy as np
import nmtkit.pictures
print("early", *[name for name in sys.modules if name.startswith("matplotlib")])
nmtkit.pictures.save(nmtkit.pictures.AttentionPicture(["a"], ["b"], np.ones((1, 1))), sys.argv[1])
print(*sys.modules)
"""


def test_matplotlib_is_loaded_on_use_only_and_pyplot_never(tmp_path):
    early, late = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "b.png")], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert early == "early"
    assert "matplotlib" in late.split()
    assert "matplotlib.pyplot" not in late.split()


UNASSIGNED = chr(0x0378)  # no script has it, so no font does


def test_letters_without_a_glyph_are_named(tmp_path):
    odd = AttentionPicture([f"a{UNASSIGNED}"], ["b"], np.ones((1, 1)))
    for name in ("a.png", "a.pdf"):
        with pytest.warns(PictureWarning, match=r"no installed font has a glyph for: . \(U\+0378\)"):
            save(odd, tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(odd, tmp_path / "a.svg")  # set with the viewer's fonts
        save(odd, tmp_path / "a.html")
        save(picture(3, 3), tmp_path / "a.png")


def page(tmp_path: Path, *pictures: AttentionPicture) -> Page:
    save(pictures, tmp_path / "a.html")
    return Page(tmp_path / "a.html")


def test_html_escapes_everything_and_stands_alone(tmp_path):
    evil = '"><script>alert(1)</script>{{ 7 * 7 }}{% raw %}{#'
    parsed = page(tmp_path, AttentionPicture([evil, "&amp;"], ["</td>", "'"], np.full((2, 2), 0.5), title=evil))
    assert "<script>alert" not in parsed.html
    assert len(parsed.attributes("script")) == 1
    assert parsed.texts().count(evil) == 3  # heading, line of words, column
    assert {"&amp;", "</td>", "'"} <= set(parsed.texts())
    parsed.check_stands_alone()


def test_html_shows_every_sentence(tmp_path):
    first = picture(2, 3, "first")
    second = AttentionPicture(["c", "d"], ["y"], np.array([[0.25, 0.75]]), title="second", gold=[(1, 0)])
    parsed = page(tmp_path, first, second)
    cells = parsed.attributes("td")
    assert len(parsed.attributes("section")) == 2
    assert len(parsed.attributes("tr")) == (1 + 2) + (1 + 1)
    assert len(cells) == (1 + 2 * 3) + (1 + 2)  # the corner and the cells
    assert cells[-2] == {"style": "--w:0.333"}  # a third of the largest weight
    assert cells[-1] == {"class": "strong gold", "style": "--w:1.000"}
    assert {"0.25", "0.75", "first  (score -1.50)"} <= set(parsed.texts())
    assert "known alignment" in parsed.html
    assert sum(attributes.get("tabindex") == "0" for _, attributes, _ in parsed.elements) == 3 + 2 + 2 + 1


def test_html_marks_windows(tmp_path):
    """Row x: window 0.25 to 2.75 around 1.5; row y: all of the sentence, centre in the first column."""
    windows = [SourceWindow(1.5, 1.25), SourceWindow(0.0, 9.0)]
    weights = np.array([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    parsed = page(tmp_path, AttentionPicture(list("abcd"), ["x", "y"], weights, windows=windows))
    cells = parsed.attributes("td")[1:]
    assert cells[0] == cells[3] == {"class": "outside"}
    assert cells[1] == {"style": "--w:0.500"}
    assert cells[2] == {"class": "centre", "style": "--w:0.500;--centre:0.000"}
    assert cells[4] == {"class": "strong centre", "style": "--w:1.000;--centre:0.500"}
    assert cells[5:] == [{}, {}, {}]
    assert "centre of the window" in parsed.html
    assert "centre of the window" not in page(tmp_path, picture(2, 2)).html


def test_html_lines_run_in_the_direction_of_their_script(tmp_path):
    parsed = page(tmp_path, AttentionPicture(["أحب", "</s>"], [".", "cats"], np.full((2, 2), 0.5)))
    assert [attributes["dir"] for attributes in parsed.attributes("bdi")] == ["rtl", "ltr"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.gif", r"'\.gif' is not a picture format; let the name end in \.png, \.svg, \.pdf, \.html"),
        ("a", "no suffix"),
        ("missing/a.png", "folder .*missing does not exist"),
    ],
)
def test_bad_paths_are_refused_before_the_work(tmp_path, name, message):
    for refuse in (picture_format, lambda path: save(picture(2, 2), path)):
        with pytest.raises(NmtkitError, match=message):
            refuse(tmp_path / name)


def test_an_unwritable_path_is_told(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(NmtkitError, match=r"a\.png: cannot be written \(.*\); choose a place you may write to"):
        save(picture(2, 2), tmp_path / "a.png")


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        ([], "no sentences"),
        ([picture(2, 2), AttentionPicture(["a"], [], np.ones((0, 1)))], "sentence 2 has no words"),
        (AttentionPicture(["a"], ["b"], np.array([[np.nan]])), "not finite"),
        (AttentionPicture(["a"], ["b"], np.ones((1, 1)), gold=[(0, 1)]), "alignment 0-1 outside its 1 source and 1"),
    ],
)
@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_pictures_that_cannot_be_drawn(tmp_path, pictures, message, name):
    with pytest.raises(NmtkitError, match=message):
        save(pictures, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_attention_without_any_weight(tmp_path):
    save(AttentionPicture(["a"], ["b"], np.zeros((1, 1))), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def size_and_points(path):
    """Width and height of an SVG in inches, and the sizes of its letters in points."""
    root = ET.parse(path).getroot()
    sizes = {
        float(found) for found in re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", path.read_text(encoding="utf-8"))
    }
    return [float(root.get(side)[:-2]) / 72 for side in ("width", "height")], sizes


@pytest.mark.parametrize("grid", daily([True, False]))
def test_a_size_and_a_font_size(tmp_path, grid):
    path = tmp_path / "a.svg"
    save([picture(4, 5), picture(4, 5)], path, grid, FigureStyle(size=(4.0, None)))
    (width, height), _ = size_and_points(path)
    assert width == pytest.approx(4.0)
    save([picture(4, 5), picture(4, 5)], path, grid, FigureStyle(size=(4.0, None), font_size=6.0))
    (same, _), sizes = size_and_points(path)
    assert same == pytest.approx(4.0)
    assert any(abs(size - 6.0) < 0.06 for size in sizes)
    save([picture(4, 5), picture(4, 5)], path, grid, FigureStyle(size=(9.0, 2 * height)))
    assert size_and_points(path)[0][1] == pytest.approx(2 * height, rel=0.02)
    with pytest.raises(NmtkitError, match=r"the words have room at \d+\.\d points at most"):
        save(picture(4, 5), path, grid, FigureStyle(size=(2.0, None), font_size=30.0))


def test_a_font_size_alone_scales_the_picture(tmp_path):
    save(picture(4, 5), tmp_path / "a.svg")
    save(picture(4, 5), tmp_path / "b.svg", style=FigureStyle(font_size=22.0))
    (one, _), (two, sizes) = size_and_points(tmp_path / "a.svg"), size_and_points(tmp_path / "b.svg")
    assert two[0] == pytest.approx(2 * one[0], rel=0.03)
    assert 22.0 in sizes


def test_another_title_or_none(tmp_path):
    drawn = replace(picture(4, 5), title="demo", score=-0.37)
    save(drawn, tmp_path / "a.svg", style=FigureStyle(title="Figure 2"))
    assert "Figure 2" in (content := (tmp_path / "a.svg").read_text())
    assert "demo" not in content
    assert "-0.37" not in content
    save(drawn, tmp_path / "b.svg", style=FigureStyle(title=""))
    assert "demo" not in (tmp_path / "b.svg").read_text()
    assert size_and_points(tmp_path / "b.svg")[0][1] < size_and_points(tmp_path / "a.svg")[0][1]


def test_colours_and_fonts_in_a_page(tmp_path):
    style = FigureStyle(colours=("white", "#ff8000"), font="serif", font_size=14.0)
    save(picture(4, 5), tmp_path / "a.html", style=style)
    page = (tmp_path / "a.html").read_text()
    assert ":root { --hue: 255 128 0; --strong: #000000; }" in page
    assert 'body { font-family: "serif"; }' in page
    assert "font-size: 14pt" in page


def test_fonts_and_colours_that_are_none():
    FigureStyle(colours=("Grey",)).check()
    for style, message in (
        (FigureStyle(font="DejaVu San"), "font 'DejaVu San' is not installed: did you mean 'DejaVu Sans'"),
        (FigureStyle(colours=("viridiss",)), "'viridiss' is no colour and no map: did you mean 'viridis'"),
        (FigureStyle(colours=("white", "viridis")), "'viridis' is no colour; give names"),
    ):
        with pytest.raises(NmtkitError, match=message):
            style.check()
