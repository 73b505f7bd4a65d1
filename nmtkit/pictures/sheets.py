"""Heat-maps as PNG, SVG and PDF, drawn by matplotlib, which is loaded on use only."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nmtkit.pictures import drawing, fonts
from nmtkit.pictures.attention import AttentionPicture
from nmtkit.pictures.files import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_LABEL = 36
ROTATION = 50.0
GAP = 0.3
COLOUR_BAR = 0.9
SHEET_WIDTH = 16.0
GRID_SHAPE = 4 / 3
WIDE_ENOUGH_FOR_A_TITLE = 4.5
GOLD = "#e8710a"
WINDOW = "#c2185b"
OUTSIDE = "#e5e7eb"


@dataclass(frozen=True)
class _Panel:
    """A picture with its measures; all lengths in inches, fonts in points."""

    picture: AttentionPicture
    title: str
    src_labels: list[str]
    tgt_labels: list[str]
    cell: float
    font_size: float
    rotation: float
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class _Sheet:
    """Panels with the places of their upper left corners, in inches from the sheet's own."""

    places: list[tuple[_Panel, float, float]]
    width: float
    height: float


def image(pictures: Sequence[AttentionPicture], suffix: str, path: str | Path, grid: bool) -> bytes:
    """The content of a .png, .svg or .pdf file.

    Args:
        pictures: What to draw.
        suffix: The format.
        path: The file, for messages.
        grid: Whether all share one sheet, in even columns and with cells of one size.

    Raises:
        NmtkitError: The sheet is too large to be read.

    Warns:
        PictureWarning: No installed font can show some of the letters.
    """
    headings = [printable(picture.heading) for picture in pictures]
    words = (printable(word) for picture in pictures for word in (*picture.src_words, *picture.tgt_words))
    with drawing.settings("".join((*headings, *words)), suffix) as families:
        longest = max(max(picture.weights.shape) for picture in pictures)
        panels = [_panel(picture, families, longest if grid else max(picture.weights.shape)) for picture in pictures]
        if grid:
            sheets = [_grid(panels)]
        elif suffix == ".pdf":
            sheets = [_shelves([panel]) for panel in panels]
        else:
            sheets = [_shelves(panels)]
        for sheet in sheets:
            drawing.check_size(sheet.width, sheet.height, suffix, path)
        return drawing.content(map(_figure, sheets), suffix)


def _panel(picture: AttentionPicture, families: list[str], longest: int) -> _Panel:
    """Measures a picture; `longest` is how many words the longest side has that is drawn in cells of this size."""
    rows, columns = picture.weights.shape
    cell, font_size = (0.42, 11.0) if longest <= 12 else (0.3, 10.0) if longest <= 30 else (0.24, 9.0)
    src_labels = [_shorten(printable(word)) for word in picture.src_words]
    tgt_labels = [_shorten(printable(word)) for word in picture.tgt_words]
    heading = printable(picture.heading)
    src_sizes = fonts.measure(src_labels, families, font_size)
    label_height = max(height for _, height in src_sizes)
    rotation = 0.0 if max(width for width, _ in src_sizes) < cell * 0.9 else ROTATION
    sine, cosine = math.sin(math.radians(rotation)), math.cos(math.radians(rotation))
    left = max(width for width, _ in fonts.measure(tgt_labels, families, font_size)) + 0.12
    label_top = max(width * sine + height * cosine for width, height in src_sizes) + 0.12
    overhang = max((j + 0.5) * cell + width * cosine + label_height * sine for j, (width, _) in enumerate(src_sizes))
    width = left + max(columns * cell + COLOUR_BAR, overhang)
    title = ""
    title_height = 0.0
    if heading:
        ((title_width, line_height),) = fonts.measure([heading], families, 12.0)
        width = max(width, min(title_width, WIDE_ENOUGH_FOR_A_TITLE))
        letters = max(1, int(len(heading) * width / title_width))
        lines = textwrap.wrap(heading, letters) if title_width > width else [heading]
        title = "\n".join(lines)
        title_height = len(lines) * line_height * 1.35 + 0.15
    return _Panel(
        picture=picture,
        title=title,
        src_labels=src_labels,
        tgt_labels=tgt_labels,
        cell=cell,
        font_size=font_size,
        rotation=rotation,
        left=left,
        top=title_height + label_top,
        width=width,
        height=title_height + label_top + max(rows * cell, 0.8),
    )


def _shelves(panels: Sequence[_Panel]) -> _Sheet:
    """Lays panels out from left to right in shelves."""
    widest = max(SHEET_WIDTH, max(panel.width for panel in panels) + 2 * GAP)
    places: list[tuple[_Panel, float, float]] = []
    x, y, shelf, width = GAP, GAP, 0.0, 0.0
    for panel in panels:
        if x > GAP and x + panel.width + GAP > widest:
            x, y, shelf = GAP, y + shelf + 2 * GAP, 0.0
        places.append((panel, x, y))
        x += panel.width + 2 * GAP
        width, shelf = max(width, x - GAP), max(shelf, panel.height)
    return _Sheet(places, width, height=y + shelf + GAP)


def _grid(panels: Sequence[_Panel]) -> _Sheet:
    """Lays panels out in rows and columns that line up, with as many columns as make a full sheet of about 4:3."""

    def edges(sizes: Sequence[float]) -> list[float]:
        return list(accumulate((size + 2 * GAP for size in sizes), initial=GAP))

    sheets = []
    for count in range(1, len(panels) + 1):
        columns = [panels[start::count] for start in range(count)]
        rows = [panels[start : start + count] for start in range(0, len(panels), count)]
        xs = edges([max(panel.width for panel in column) for column in columns])
        ys = edges([max(panel.height for panel in row) for row in rows])
        places = [(panel, xs[i % count], ys[i // count]) for i, panel in enumerate(panels)]
        sheet = _Sheet(places, xs[-1] - GAP, ys[-1] - GAP)
        empty = 1 - len(panels) / (count * len(rows))
        sheets.append((abs(math.log(sheet.width / sheet.height / GRID_SHAPE)) + empty, sheet))
    return min(sheets, key=lambda found: found[0])[1]


def _figure(sheet: _Sheet) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, sheet.height), facecolor="white")
    for panel, x, y in sheet.places:
        _draw(figure, panel, x / sheet.width, 1 - y / sheet.height, sheet.width, sheet.height)
    return figure


def _draw(figure: Figure, panel: _Panel, x: float, y: float, width: float, height: float) -> None:
    """Draws a panel with its upper left corner at (x, y), in fractions of a figure of width x height inches."""
    from matplotlib.patches import Rectangle

    picture = panel.picture
    rows, columns = picture.weights.shape
    box_x, box_y = x + panel.left / width, y - panel.top / height
    box_width, box_height = columns * panel.cell / width, rows * panel.cell / height
    axes = figure.add_axes((box_x, box_y - box_height, box_width, box_height))
    axes.set_axis_off()
    mesh = axes.pcolormesh(
        picture.weights, cmap=drawing.colour_map(), vmin=0.0, vmax=picture.top, edgecolors=drawing.LINE, linewidth=0.4
    )
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    for src, tgt in picture.gold:
        outline = Rectangle((src + 0.06, tgt + 0.06), 0.88, 0.88, fill=False, edgecolor=GOLD, linewidth=1.5)
        axes.add_patch(outline)
    if picture.windows:
        _draw_windows(axes, picture)
    _label(axes, panel)
    if panel.title:
        figure.text(x, y, panel.title, fontsize=12.0, color=drawing.INK, va="top")
    bar_height = min(max(rows * panel.cell, 0.8), 2.5) / height
    place = (box_x + box_width + 0.18 / width, box_y - bar_height, 0.12 / width, bar_height)
    drawing.colour_bar(figure, mesh, place, "weight")


def _draw_windows(axes: Axes, picture: AttentionPicture) -> None:
    """Greys out what local attention could not see, outlines the rest, and marks the centre of each row's window."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    rows, columns = picture.weights.shape
    seen = np.ones((rows, columns), dtype=bool)
    for row, column in np.ndindex(rows, columns):
        if picture.outside(row, column):
            seen[row, column] = False
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=OUTSIDE, edgecolor="none"))
    upright = [[(x + 1, y), (x + 1, y + 1)] for y, x in np.argwhere(seen[:, 1:] != seen[:, :-1])]
    level = [[(x, y + 1), (x + 1, y + 1)] for y, x in np.argwhere(seen[1:] != seen[:-1])]
    axes.add_collection(LineCollection(upright + level, colors=WINDOW, linewidths=1.2, capstyle="projecting"))
    axes.plot(
        [window.centre + 0.5 for window in picture.windows],
        [row + 0.5 for row in range(len(picture.windows))],
        linestyle="none",
        marker="o",
        markersize=5,
        markerfacecolor="white",
        markeredgecolor=WINDOW,
        markeredgewidth=1.4,
    )


def _label(axes: Axes, panel: _Panel) -> None:
    gap = 0.07 / panel.cell
    for j, word in enumerate(panel.src_labels):
        axes.text(
            j + 0.5,
            -gap,
            word,
            fontsize=panel.font_size,
            color=drawing.INK,
            rotation=panel.rotation,
            rotation_mode="anchor",
            ha="left" if panel.rotation else "center",
            va="bottom" if not panel.rotation else "center",
        )
    for i, word in enumerate(panel.tgt_labels):
        axes.text(
            -gap,
            i + 0.5,
            word,
            fontsize=panel.font_size,
            color=drawing.INK,
            ha="right",
            va="center_baseline",
        )


def _shorten(word: str) -> str:
    if len(word) <= LONGEST_LABEL:
        return word
    half = LONGEST_LABEL // 2
    return f"{word[:half]}…{word[-half + 1 :]}"
