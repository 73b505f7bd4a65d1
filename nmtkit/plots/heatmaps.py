"""Attention heat maps in the format given by the file name; loads matplotlib only when needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from nmtkit.plots import drawing
from nmtkit.plots.attention import AttentionPicture
from nmtkit.plots.drawing import DEFAULT_STYLE, FigureStyle, ScaleFactors
from nmtkit.plots.fonts import printable
from nmtkit.plots.pages import attention_page, check_sentences, picture_format, write_picture
from nmtkit.plots.panels import Panel, SummaryPanel, TranslationPanel

GAP = 0.3
SHEET_WIDTH = 16.0
GRID_SHAPE = 4 / 3
MIN_TEXT = 0.1
SIZE_TOLERANCE = 1.005


def save(
    pictures: Sequence[AttentionPicture],
    path: str | Path,
    grid: bool = False,
    style: FigureStyle = DEFAULT_STYLE,
) -> None:
    """Writes figures to one file; the suffix selects the format.

    A figure whose `is_summary` is True becomes a heat map with rows and columns swapped
    (`SummaryPanel`), or two coloured texts in .html.

    Several figures fill one sheet row by row in .png and .svg, get one page each in .pdf, and follow
    one another in .html. In a `grid`, all are on one sheet (one page of .pdf, side by side in .html)
    in aligned rows and columns with equal cells. The size in `style` applies to the whole sheet.

    Issues a PictureWarning if some characters of a .png or .pdf have no glyphs in any installed font.
    """
    suffix = picture_format(path)
    pictures = [picture.with_title(style.title) for picture in pictures]
    numbers = [
        (one.weights,) if one.p_gen is None else (one.weights, one.p_gen) for one in pictures
    ]
    check_sentences(
        [(one.src_words, one.tgt_words, own) for one, own in zip(pictures, numbers, strict=True)],
        path,
    )
    if suffix == ".html":
        write_picture(attention_page(pictures, grid, style.css()).encode(), path)
    else:
        write_picture(_sheet_image(pictures, suffix, path, grid, style), path)


class _Sheet(NamedTuple):
    """Panels with the positions of their upper left corners, in inches from that of the sheet."""

    places: list[tuple[Panel, float, float]]
    width: float
    height: float


def _sheet_image(
    pictures: Sequence[AttentionPicture],
    suffix: str,
    path: str | Path,
    grid: bool,
    style: FigureStyle,
) -> bytes:
    """Returns the content of a .png, .svg or .pdf file."""
    headings = [printable(picture.heading) for picture in pictures]
    words = (
        printable(word) for picture in pictures for word in (*picture.src_words, *picture.tgt_words)
    )
    with drawing.settings("".join((*headings, *words)), path, style.font) as families:
        longest = max(max(picture.weights.shape) for picture in pictures)

        def build(by: ScaleFactors) -> list[_Sheet]:
            panels = [
                SummaryPanel(picture, families, pictures if grid else [picture], by)
                if picture.is_summary
                else TranslationPanel(
                    picture, families, longest if grid else max(picture.weights.shape), by
                )
                for picture in pictures
            ]
            if grid:
                return [_grid(panels)]
            return (
                [_shelves([panel]) for panel in panels] if suffix == ".pdf" else [_shelves(panels)]
            )

        sheets = _fitted(build, style, path)
        for sheet in sheets:
            drawing.check_sheet(sheet.width, sheet.height, path)
        shades = style.shades()
        return drawing.content((_figure(sheet, shades) for sheet in sheets), suffix, style.dpi)


def _fitted(
    build: Callable[[ScaleFactors], list[_Sheet]], style: FigureStyle, path: str | Path
) -> list[_Sheet]:
    """Returns the sheets in the style's size and font size, all with the largest sheet's scale."""
    sheets = build(ScaleFactors())
    points = max(panel.font_sizes[0] for sheet in sheets for panel, _, _ in sheet.places)
    if style.size is None:
        return (
            sheets
            if style.font_size is None
            else build(ScaleFactors(*[style.font_size / points] * 2))
        )

    def scale(text: float) -> float:
        return min(
            style.scale(sheet.width, sheet.height) for sheet in build(ScaleFactors(1.0, text))
        )

    least, most = 1.0, 1.0
    # The larger the words are in relation to the cells, the less room is left.
    if style.font_size is not None:
        least, most = MIN_TEXT, drawing.MAX_TEXT
        if (largest := points * most * scale(most)) < style.font_size / SIZE_TOLERANCE:
            raise drawing.no_room(path, largest)
        while most / least > SIZE_TOLERANCE:
            middle = math.sqrt(least * most)
            least, most = (
                (middle, most)
                if points * middle * scale(middle) < style.font_size
                else (least, middle)
            )
    length = scale(least)
    # Letter widths are not exactly proportional to the font size, so the fit is repeated; the margins absorb the rest.
    length *= min(
        style.scale(sheet.width, sheet.height)
        for sheet in build(ScaleFactors(length, least * length))
    )
    sheets = build(ScaleFactors(length, least * length))
    return (
        [sheet._replace(width=style.size[0]) for sheet in sheets]
        if style.size[1] is None
        else sheets
    )


def _shelves(panels: Sequence[Panel]) -> _Sheet:
    """Lays panels out from left to right in shelves."""
    gap = GAP * panels[0].by.length
    widest = max(SHEET_WIDTH * panels[0].by.length, max(panel.width for panel in panels) + 2 * gap)
    places: list[tuple[Panel, float, float]] = []
    x, y, shelf, width = gap, gap, 0.0, 0.0
    for panel in panels:
        if x > gap and x + panel.width + gap > widest:
            x, y, shelf = gap, y + shelf + 2 * gap, 0.0
        places.append((panel, x, y))
        x += panel.width + 2 * gap
        width, shelf = max(width, x - gap), max(shelf, panel.height)
    return _Sheet(places, width, height=y + shelf + gap)


def _grid(panels: Sequence[Panel]) -> _Sheet:
    """Lays panels out in aligned rows and columns so that the sheet is full and its shape is close to 4:3."""
    gap = GAP * panels[0].by.length

    def edges(sizes: Sequence[float]) -> list[float]:
        return list(accumulate((size + 2 * gap for size in sizes), initial=gap))

    sheets = []
    for count in range(1, len(panels) + 1):
        columns = [panels[start::count] for start in range(count)]
        rows = [panels[start : start + count] for start in range(0, len(panels), count)]
        xs = edges([max(panel.width for panel in column) for column in columns])
        ys = edges([max(panel.height for panel in row) for row in rows])
        places = [(panel, xs[i % count], ys[i // count]) for i, panel in enumerate(panels)]
        sheet = _Sheet(places, xs[-1] - gap, ys[-1] - gap)
        empty = 1 - len(panels) / (count * len(rows))
        sheets.append((abs(math.log(sheet.width / sheet.height / GRID_SHAPE)) + empty, sheet))
    return min(sheets, key=lambda rated: rated[0])[1]


def _figure(sheet: _Sheet, shades: Any) -> drawing.Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, sheet.height), facecolor="white")
    for panel, x, y in sheet.places:
        panel.draw(figure, x, y, shades)
    return figure
