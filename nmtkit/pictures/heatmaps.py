"""Heat-maps of attention in whatever format a file's name asks for; matplotlib is loaded on use only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nmtkit.errors import NmtkitError
from nmtkit.pictures import drawing
from nmtkit.pictures.attended import AttentionPicture
from nmtkit.pictures.fonts import printable
from nmtkit.pictures.pages import attention_page, picture_format, write_picture
from nmtkit.pictures.panels import Panel, SummaryPanel, TranslationPanel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.3
SHEET_WIDTH = 16.0
GRID_SHAPE = 4 / 3


def save(pictures: AttentionPicture | Sequence[AttentionPicture], path: str | Path, grid: bool = False) -> None:
    """Writes pictures to one file; its suffix chooses the format.

    A picture that `is_summary` has a heat-map of its own kind in .png, .svg and .pdf, with rows and columns changed
    over, and two coloured texts in .html. Of an article longer than 60 words the heat-map has a row for each of the
    words that were looked at most, and adds up the stretches between them.

    Several pictures fill one sheet line by line in .png and .svg, have a page each in .pdf and follow one another in
    .html. Words longer than 36 letters are shortened in the middle with "…" in .png, .svg and .pdf, never in .html.

    Args:
        pictures: One or more.
        path: The file.
        grid: Whether they all stand on one sheet (one page of .pdf, side by side in .html) in rows and columns that
            line up, with cells of one size.

    Raises:
        NmtkitError: The format is unknown, the file cannot be written, there is nothing to draw, a weight is not a
            finite number, a known alignment is outside the sentence, or the sheet is too large to be read.

    Warns:
        PictureWarning: No installed font can show some of the letters of a .png or .pdf.
    """
    suffix = picture_format(path)
    pictures = [pictures] if isinstance(pictures, AttentionPicture) else list(pictures)
    _check(pictures, path)
    if suffix == ".html":
        write_picture(attention_page(pictures, grid).encode(), path)
    else:
        write_picture(_sheet_image(pictures, suffix, path, grid), path)


def _check(pictures: Sequence[AttentionPicture], path: str | Path) -> None:
    if not pictures:
        raise NmtkitError(f"{path}: no sentences were given, so there is nothing to draw")
    for number, picture in enumerate(pictures, start=1):
        if picture.weights.size == 0:
            raise NmtkitError(f"{path}: sentence {number} has no words on one side; leave the empty line out")
        for values, fault in (
            (picture.weights, "attention weights that are not finite numbers"),
            (picture.p_gen, "a p_gen that is not a finite number"),
        ):
            if values is not None and not np.isfinite(values).all():
                raise NmtkitError(
                    f"{path}: sentence {number} has {fault}; the model is broken, use an earlier checkpoint"
                )
        rows, columns = picture.weights.shape
        for src, tgt in picture.gold:
            if not (0 <= src < columns and 0 <= tgt < rows):
                raise NmtkitError(
                    f"{path}: sentence {number} has a known alignment {src}-{tgt} outside its {columns} source and "
                    f"{rows} target words; indices count from 0 and the source comes first"
                )


class _Sheet(NamedTuple):
    """Panels with the places of their upper left corners, in inches from the sheet's own."""

    places: list[tuple[Panel, float, float]]
    width: float
    height: float


def _sheet_image(pictures: Sequence[AttentionPicture], suffix: str, path: str | Path, grid: bool) -> bytes:
    """The content of a .png, .svg or .pdf file; `path` is for messages."""
    headings = [printable(picture.heading) for picture in pictures]
    words = (printable(word) for picture in pictures for word in (*picture.src_words, *picture.tgt_words))
    with drawing.settings("".join((*headings, *words)), suffix) as families:
        longest = max(max(picture.weights.shape) for picture in pictures)
        panels = [
            SummaryPanel(picture, families, pictures if grid else [picture])
            if picture.is_summary
            else TranslationPanel(picture, families, longest if grid else max(picture.weights.shape))
            for picture in pictures
        ]
        if grid:
            sheets = [_grid(panels)]
        else:
            sheets = [_shelves(part) for part in ([[panel] for panel in panels] if suffix == ".pdf" else [panels])]
        for sheet in sheets:
            drawing.check_sheet(sheet.width, sheet.height, suffix, path)
        return drawing.content(map(_figure, sheets), suffix)


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
