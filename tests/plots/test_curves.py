import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.plots import FigureStyle
from nmtkit.plots.curves import Training, line_style, round_ticks, save_by_length, save_training
from tests.support.markup import SVG, svg_texts


def texts(path: Path) -> list[str]:
    return [text for text, _ in svg_texts(path)]


def lines(path: Path, colour: str) -> list[list[tuple[float, float]]]:
    """The corners of every curve of one colour with more than one corner; what is higher up has a larger y."""
    tree = ET.parse(path)
    legend = {
        id(node)
        for group in tree.iter(f"{SVG}g")
        if group.get("id") == "legend_1"
        for node in group.iter()
    }
    found = []
    for node in tree.iter(f"{SVG}path"):
        style = node.get("style", "")
        if id(node) not in legend and f"stroke: {colour}" in style and "fill: none" in style:
            corners = node.get("d", "").replace("M", "L").split("L")[1:]
            points = [tuple(map(float, corner.split())) for corner in corners]
            if len(points) > 1:
                found.append([(x, -y) for x, y in points])
    return found


ONE = Training(
    "first",
    loss=[(10, 5.0), (20, 3.0), (30, 2.0)],
    perplexity=[(10, 148.4), (20, 20.1), (30, 7.4)],
    lr=[(10, 0.001), (20, 0.002), (30, 0.001)],
    valid_loss=[(15, 4.0), (30, 3.0)],
    valid_perplexity=[(15, 54.6), (30, 20.1)],
    valid_score=[(15, 10.0), (30, 20.0)],
)


def test_training_has_a_panel_for_each_kind_and_a_colour_for_each_run(tmp_path: Path) -> None:
    save_training([ONE, Training("second $x_1$", loss=[(10, 6.0), (40, 1.0)])], tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert {
        "loss (nats per token)",
        "perplexity",
        "BLEU",
        "learning rate",
        "updates",
        "first",
    } <= set(found)
    assert "second $x_1$" in found
    first = lines(tmp_path / "a.svg", "#1f5fbf")
    # both losses, both perplexities, BLEU, rate
    assert [len(points) for points in first] == [3, 2, 3, 2, 2, 3]
    assert len(lines(tmp_path / "a.svg", "#d1580b")) == 1


def test_curves_go_where_the_numbers_say(tmp_path: Path) -> None:
    save_training([Training("a", loss=[(0, 5.0), (10, 3.0), (30, 1.0)])], tmp_path / "a.svg")
    (points,) = [points for points in lines(tmp_path / "a.svg", "#1f5fbf") if len(points) == 3]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert (x1 - x0) * 2 == pytest.approx(x2 - x1, rel=1e-3)
    assert y0 - y1 == pytest.approx(y1 - y2, rel=1e-3)
    assert y0 > y1
    assert texts(tmp_path / "a.svg").count("nothing logged") == 3


def test_a_gap_is_left_where_the_loss_was_not_finite(tmp_path: Path) -> None:
    save_training(
        [Training("a", loss=[(0, 5.0), (10, 4.0), (20, math.nan), (30, 2.0), (40, 1.0)])],
        tmp_path / "a.svg",
    )
    content = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "nan" not in content.lower()
    assert max(len(points) for points in lines(tmp_path / "a.svg", "#1f5fbf")) == 4


def test_nothing_to_draw_is_told(tmp_path: Path) -> None:
    with pytest.raises(NmtkitError, match="have not logged anything yet"):
        save_training([Training("a")], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("name", "head"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.html", b"<!")]
)
def test_formats(tmp_path: Path, name: str, head: bytes) -> None:
    save_training([ONE], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(head)


def test_by_length_names_every_system(tmp_path: Path) -> None:
    save_by_length(
        ["1-10", "11+"],
        ["9", "2"],
        [("_old", [20.0, 15.5]), ("new", [9.0, 8.0])],
        tmp_path / "a.svg",
    )
    assert all(f">{name}<" in (tmp_path / "a.svg").read_text() for name in ("_old", "new"))


def test_by_length(tmp_path: Path) -> None:
    systems = [("with attention", [30.0, 29.0, 28.0]), ("without", [30.0, 10.0, 10.0])]
    save_by_length(["1-10", "11-20", "21+"], ["1,000", "20", "3"], systems, tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert {
        "with attention",
        "without",
        "BLEU",
        "1-10",
        "11-20",
        "21+",
        "n = 1,000",
        "n = 3",
    } <= set(found)
    (first,), (second,) = (lines(tmp_path / "a.svg", colour) for colour in ("#1f5fbf", "#d1580b"))
    (y0, y1, y2) = (y for _, y in first)
    assert y0 - y1 == pytest.approx(y1 - y2, rel=1e-3)
    assert (second[0][1] - second[1][1]) / (y0 - y1) == pytest.approx(20.0, rel=1e-3)


def test_stages_are_named_and_their_borders_drawn(tmp_path: Path) -> None:
    staged = replace(ONE, metric="ROUGE-L", stages=[("pointer", 20), ("coverage", 30)])
    save_training([staged], tmp_path / "staged.svg")
    save_training([replace(staged, stages=())], tmp_path / "plain.svg")
    found = texts(tmp_path / "staged.svg")
    assert {"pointer", "coverage", "ROUGE-L"} <= set(found)
    assert "BLEU" not in found
    dotted = [
        (tmp_path / f"{name}.svg").read_text().count("stroke-dasharray: 1.4")
        for name in ("staged", "plain")
    ]
    assert dotted == [4, 0]  # one border in each panel


def test_a_look(tmp_path: Path) -> None:
    style = FigureStyle(
        title="Both runs",
        size=(5.0, None),
        font="DejaVu Serif",
        font_size=9.0,
        colours=("navy", "#00ff00"),
    )
    save_training([ONE, replace(ONE, name="second")], tmp_path / "a.svg", style)
    root = ET.parse(tmp_path / "a.svg").getroot()
    assert root.get("width") == "360pt"
    content = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "Both runs" in content
    assert "DejaVu Serif" in content
    assert lines(tmp_path / "a.svg", "#000080")
    assert lines(tmp_path / "a.svg", "#00ff00")
    assert not lines(tmp_path / "a.svg", "#1f5fbf")
    assert "10,000" not in content


def test_a_map_gives_curves_their_colours() -> None:
    assert FigureStyle(colours=("tab10",)).series(2) == ["#1f77b4", "#ff7f0e"]
    assert len(set(FigureStyle(colours=("viridis",)).series(4))) == 4


def test_the_norm_of_the_gradient_takes_the_place_of_a_score(tmp_path: Path) -> None:
    """As in a pretraining, which is validated by its loss alone."""
    pretraining = Training("a", loss=[(0, 5.0), (9, 3.0)], grad_norm=[(0, 2.0), (9, 1.0)])
    save_training([pretraining], tmp_path / "a.svg")
    assert "gradient norm" in texts(tmp_path / "a.svg")
    assert "score" not in texts(tmp_path / "a.svg")
    save_training(
        [pretraining, Training("b", loss=[(0, 5.0)], valid_score=[(9, 1.0)])], tmp_path / "a.svg"
    )
    assert "BLEU" in texts(tmp_path / "a.svg")


def test_styles_of_many_curves_differ() -> None:
    styles = [tuple(line_style(number).items()) for number in range(40)]
    assert len(set(styles)) == 40
    colours_of_nine = [line_style(number)["color"] for number in range(9)]
    assert colours_of_nine[0] == colours_of_nine[8]
    assert line_style(0)["linestyle"] != line_style(8)["linestyle"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 2332, [0, 500, 1000, 1500, 2000, 2500]),
        (0.00957, 8.02, [0, 2, 4, 6, 8, 10]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 0.006, [0, 0.002, 0.004, 0.006]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(expected)


def test_ranges_with_few_sentences_have_hollow_points(tmp_path: Path) -> None:
    systems = [("a", [20.0, 15.5]), ("b", [9.0, 8.0])]
    save_by_length(["1-10", "11+"], ["90", "2"], systems, tmp_path / "a.svg", few=[False, True])
    assert any("Hollow" in text for text in texts(tmp_path / "a.svg"))
    save_by_length(["1-10", "11+"], ["90", "20"], systems, tmp_path / "b.svg")
    assert not any("Hollow" in text for text in texts(tmp_path / "b.svg"))
