"""Heat-maps as PNG, SVG and PDF, drawn by matplotlib, which is loaded on use only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from nmtkit.pictures import drawing
from nmtkit.pictures.attention import AttentionPicture
from nmtkit.pictures.files import printable
from nmtkit.pictures.panel import Panel
from nmtkit.pictures.summary_panel import SummaryPanel
from nmtkit.pictures.translation_panel import TranslationPanel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.3
SHEET_WIDTH = 16.0
GRID_SHAPE = 4 / 3


@dataclass(frozen=True)
class _Sheet:
    """Panels with the places of their upper left corners, in inches from the sheet's own."""

    places: list[tuple[Panel, float, float]]
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
        panels = _panels(pictures, families, grid)
        if grid:
            sheets = [_grid(panels)]
        elif suffix == ".pdf":
            sheets = [_shelves([panel]) for panel in panels]
        else:
            sheets = [_shelves(panels)]
        for sheet in sheets:
            drawing.check_size(sheet.width, sheet.height, suffix, path)
        return drawing.content(map(_figure, sheets), suffix)


def _panels(pictures: Sequence[AttentionPicture], families: list[str], grid: bool) -> list[Panel]:
    longest = max(max(picture.weights.shape) for picture in pictures)
    panels: list[Panel] = []
    for picture in pictures:
        if picture.is_summary:
            panels.append(SummaryPanel.measure(picture, families, pictures if grid else [picture]))
        else:
            size = longest if grid else max(picture.weights.shape)
            panels.append(TranslationPanel.measure(picture, families, size))
    return panels


def _shelves(panels: Sequence[Panel]) -> _Sheet:
    """Lays panels out from left to right in shelves."""
    widest = max(SHEET_WIDTH, max(panel.width for panel in panels) + 2 * GAP)
    places: list[tuple[Panel, float, float]] = []
    x, y, shelf, width = GAP, GAP, 0.0, 0.0
    for panel in panels:
        if x > GAP and x + panel.width + GAP > widest:
            x, y, shelf = GAP, y + shelf + 2 * GAP, 0.0
        places.append((panel, x, y))
        x += panel.width + 2 * GAP
        width, shelf = max(width, x - GAP), max(shelf, panel.height)
    return _Sheet(places, width, height=y + shelf + GAP)


def _grid(panels: Sequence[Panel]) -> _Sheet:
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
        panel.draw(figure, x, y)
    return figure
