"""Heat maps of sentences as panels, which are measured first and then drawn on a sheet."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.plots import drawing, fonts
from nmtkit.plots.attention import AttentionPicture, condense
from nmtkit.plots.drawing import ScaleFactors
from nmtkit.plots.fonts import printable

WINDOW, OUTSIDE = "#c2185b", "#e5e7eb"
COPIED, COPYING, GENERATING, COVERAGE, STRETCH = (
    "#b45309",
    "#fbd9b0",
    "#6ea3e0",
    "#1f5fbf",
    "#6b7280",
)
MAX_LABEL, MAX_ROWS = 36, 60
"""Maximum number of characters in a label, and of rows in an article."""
ROTATION = 50.0
"""Rotation of column labels, in degrees."""
TITLE_SIZE, NOTE_SIZE = 12.0, 8.0
"""Font sizes, in points."""
COLOUR_BAR, LEAST_BOX, TITLE_WIDTH = 0.9, 0.8, 4.5
"""Width of the colour bar with labels, minimum height of the cells, and minimum width for the title, in inches."""
STRIP, GAP, NOTE = 0.5, 0.1, 0.17
"""Sizes of the coverage and p_gen strips, their distance from the cells, and the height of a note, in inches."""

Place = Callable[[float, float, float, float], tuple[float, float, float, float]]
"""Converts a box (right, down, width, height) in inches from the panel's corner to figure fractions."""


class Panel(ABC):
    """A figure with its measurements: lengths in inches, and font sizes in points, both scaled.

    The width includes the labels on the left and the colour bar on the right; the height includes
    title and notes.
    """

    picture: AttentionPicture
    matrix: NDArray[Any]  # weights as drawn, (rows, columns)
    columns: list[str]  # labels above the cells
    rows: list[str]  # labels to the left of the cells
    cell: tuple[float, float]  # width and height
    font_sizes: tuple[float, float]  # of the column labels and the row labels
    rotation = ROTATION
    beside = 0.0  # distance between the cells and the colour bar
    below = 0.0  # distance between the cells and the notes
    notes: Sequence[str] = ()  # lines below the figure
    by: ScaleFactors

    def _measure(self, families: list[str], least_left: float = 0.0) -> None:
        """Measures the title and the subclass's labels, and determines where the cells begin."""
        rows, columns = self.matrix.shape
        sine, cosine = math.sin(math.radians(self.rotation)), math.cos(math.radians(self.rotation))
        above = fonts.measure_labels(
            self.columns, families, self.font_sizes[0], bold=self.picture.copied
        )
        label_top = (
            max(width * sine + height * cosine for width, height in above) + 0.12 * self.by.text
        )
        overhang = max(
            (j + 0.5) * self.cell[0] + w * cosine + h * sine for j, (w, h) in enumerate(above)
        )
        self.left = max(
            fonts.widest(self.rows, families, self.font_sizes[1]) + 0.12 * self.by.text, least_left
        )
        width = self.left + max(
            columns * self.cell[0] + self.beside + COLOUR_BAR * self.by.text, overhang
        )
        width = max(width, fonts.widest(self.notes, families, NOTE_SIZE * self.by.text))
        self.title, self.width, title_height = _fit_title(
            self.picture.heading, families, width, self.by
        )
        self.top = title_height + label_top
        box = max(rows * self.cell[1], LEAST_BOX * self.by.length)
        self.height = self.top + box + self.below + len(self.notes) * NOTE * self.by.text

    def draw(self, figure: drawing.Figure, x: float, y: float, shades: Any) -> None:
        """Draws the panel at (x, y) from the figure's upper left corner; `shades` is a colour map."""
        width, height = map(float, figure.get_size_inches())

        def place(
            right: float, down: float, wide: float, high: float
        ) -> tuple[float, float, float, float]:
            return (x + right) / width, 1 - (y + down + high) / height, wide / width, high / height

        if self.title:
            size = TITLE_SIZE * self.by.text
            figure.text(
                x / width, 1 - y / height, self.title, fontsize=size, color=drawing.INK, va="top"
            )
        rows, columns = self.matrix.shape
        wide, high = columns * self.cell[0], rows * self.cell[1]
        axes = figure.add_axes(place(self.left, self.top, wide, high))
        axes.set_axis_off()
        top, line = self.picture.max_weight, 0.4 * self.by.length
        mesh = axes.pcolormesh(
            self.matrix, cmap=shades, vmin=0.0, vmax=top, edgecolors=drawing.LINE, linewidth=line
        )
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        self._label(axes)
        text, tall = self.by.text, min(max(high, LEAST_BOX * self.by.length), 2.5 * self.by.length)
        bar = place(self.left + wide + self.beside + 0.18 * text, self.top, 0.12 * text, tall)
        drawing.colour_bar(figure, mesh, bar, "weight", text)
        self._add(axes, place)

    def _label(self, axes: drawing.Axes) -> None:
        for j, word in enumerate(self.columns):
            copied = j in self.picture.copied
            axes.text(
                j + 0.5,
                -0.07 * self.by.text / self.cell[1],
                word,
                fontsize=self.font_sizes[0],
                color=COPIED if copied else drawing.INK,
                fontweight="bold" if copied else "normal",
                rotation=self.rotation,
                rotation_mode="anchor",
                ha="left" if self.rotation else "center",
                va="center" if self.rotation else "bottom",
            )
        for i, word in enumerate(self.rows):
            size, colour = self._row_style(i)
            x = -0.07 * self.by.text / self.cell[0]
            axes.text(
                x, i + 0.5, word, fontsize=size, color=colour, ha="right", va="center_baseline"
            )

    def _row_style(self, row: int) -> tuple[float, str]:
        """Returns the font size and colour of a row's label."""
        return self.font_sizes[1], drawing.INK

    @abstractmethod
    def _add(self, axes: drawing.Axes, place: Place) -> None:
        """Draws the elements specific to this kind of panel, on and around the `axes` of the cells."""


class TranslationPanel(Panel):
    """A translation; `longest` is the number of words that determines the size of its cells."""

    def __init__(
        self, picture: AttentionPicture, families: list[str], longest: int, by: ScaleFactors
    ) -> None:
        self.by = by
        cell, size = (
            (0.42, 11.0) if longest <= 12 else (0.3, 10.0) if longest <= 30 else (0.24, 9.0)
        )
        self.picture, self.matrix = picture, picture.weights
        self.columns, self.rows = _shortened(picture.src_words), _shortened(picture.tgt_words)
        cell, size = cell * by.length, size * by.text
        self.cell, self.font_sizes = (cell, cell), (size, size)
        if fonts.widest(self.columns, families, size) < cell * 0.9:
            self.rotation = 0.0
        self._measure(families)

    def _add(self, axes: drawing.Axes, place: Place) -> None:
        if self.picture.windows:
            _draw_windows(axes, self.picture, self.by.length)


def _draw_windows(axes: drawing.Axes, picture: AttentionPicture, length: float) -> None:
    """Greys out cells outside the local attention windows, outlines the others, and marks each centre."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    rows, columns = picture.weights.shape
    inside = np.ones((rows, columns), dtype=bool)
    for row, column in np.ndindex(rows, columns):
        if picture.is_outside_window(row, column):
            inside[row, column] = False
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=OUTSIDE, edgecolor="none"))
    upright = [
        [(x + 1, y), (x + 1, y + 1)] for y, x in np.argwhere(inside[:, 1:] != inside[:, :-1])
    ]
    level = [[(x, y + 1), (x + 1, y + 1)] for y, x in np.argwhere(inside[1:] != inside[:-1])]
    axes.add_collection(
        LineCollection(
            upright + level, colors=WINDOW, linewidths=1.2 * length, capstyle="projecting"
        )
    )
    axes.plot(
        [window.centre + 0.5 for window in picture.windows],
        [row + 0.5 for row in range(rows)],
        linestyle="none",
        marker="o",
        markersize=5 * length,
        markerfacecolor="white",
        markeredgecolor=WINDOW,
        markeredgewidth=1.4 * length,
    )


class SummaryPanel(Panel):
    """A summary with one column for each of its words; all figures in `alike` have the same cell size.

    The article runs from top to bottom in at most `MAX_ROWS` rows of words and spans; `sizes` has
    the number of words per row. Bars next to the rows show coverage, and a strip below shows p_gen.
    """

    def __init__(
        self,
        picture: AttentionPicture,
        families: list[str],
        alike: Sequence[AttentionPicture],
        by: ScaleFactors,
    ) -> None:
        self.by = by
        self.beside, self.below = (GAP + STRIP) * by.text, (GAP + STRIP + 0.1) * by.text
        column, tgt_size = (
            (0.34, 10.0) if max(len(one.tgt_words) for one in alike) <= 20 else (0.26, 9.0)
        )
        row, src_size = (
            (0.24, 10.0) if max(len(one.src_words) for one in alike) <= 30 else (0.17, 8.5)
        )
        self.picture, self.sizes = condense(picture, MAX_ROWS)
        self.matrix = self.picture.weights.T
        self.columns, self.rows = (
            _shortened(self.picture.tgt_words),
            _shortened(self.picture.src_words),
        )
        self.cell = column * by.length, row * by.length
        self.font_sizes = tgt_size * by.text, src_size * by.text
        self.notes = []
        if picture.p_gen is not None:
            self.notes.append(
                "bold words are copied from the article · p_gen: blue for generating, orange for "
                "copying"
            )
        if len(self.sizes) < sum(self.sizes):
            self.notes.append(
                f"the {self.sizes.count(1)} of {sum(self.sizes)} article words with the most "
                "attention have their own rows; each grey row is the sum over a span of other words"
            )
        self._measure(families, least_left=0.5 * by.text)  # room for the scale of p_gen

    def _row_style(self, row: int) -> tuple[float, str]:
        return (
            super()._row_style(row) if self.sizes[row] == 1 else (NOTE_SIZE * self.by.text, STRETCH)
        )

    def _add(self, axes: drawing.Axes, place: Place) -> None:
        figure = axes.figure
        rows, columns = self.matrix.shape
        wide, high = columns * self.cell[0], rows * self.cell[1]
        text = self.by.text
        gap, strip = GAP * text, STRIP * text
        self._draw_coverage(figure.add_axes(place(self.left + wide + gap, self.top, strip, high)))
        if self.picture.p_gen is not None:
            below = figure.add_axes(place(self.left, self.top + high + gap, wide, strip))
            _draw_p_gen(below, self.picture.p_gen, text)
        for number, note in enumerate(reversed(self.notes), start=1):
            x, y, _, _ = place(0.0, self.height - number * NOTE * text, 0.0, 0.0)
            figure.text(x, y, note, fontsize=NOTE_SIZE * text, color=drawing.FAINT, va="top")

    def _draw_coverage(self, axes: drawing.Axes) -> None:
        coverage = self.picture.coverage
        most = float(coverage.max()) or 1.0
        colours = [COVERAGE if size == 1 else STRETCH for size in self.sizes]
        axes.barh(np.arange(len(coverage)) + 0.5, coverage, height=0.8, color=colours)
        axes.set(xlim=(0, most), ylim=(len(coverage), 0), yticks=[])
        axes.set_xticks([0, most], ["0", f"{most:.1f}"])
        axes.set_xlabel(
            "coverage", fontsize=NOTE_SIZE * self.by.text, color=drawing.FAINT, labelpad=1
        )
        _style_strip(axes, self.by.text)
        axes.spines["left"].set_visible(True)


def _draw_p_gen(axes: drawing.Axes, p_gen: NDArray[Any], text: float) -> None:
    places = np.arange(len(p_gen)) + 0.5
    axes.bar(places, p_gen, width=0.84, color=GENERATING)
    axes.bar(places, 1 - p_gen, bottom=p_gen, width=0.84, color=COPYING)
    axes.set(xlim=(0, len(p_gen)), ylim=(0, 1), xticks=[], yticks=[0, 1])
    axes.set_ylabel("p_gen", fontsize=NOTE_SIZE * text, color=drawing.FAINT, labelpad=1)
    _style_strip(axes, text)


def _style_strip(axes: drawing.Axes, text: float) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
        spine.set_color(STRETCH)
    axes.tick_params(labelsize=NOTE_SIZE * text, length=2 * text, pad=1, colors=drawing.FAINT)


def _fit_title(
    heading: str, families: list[str], width: float, by: ScaleFactors
) -> tuple[str, float, float]:
    """Wraps a heading; returns its lines, the resulting panel width, and their height in inches."""
    heading = printable(heading)
    if not heading:
        return "", width, 0.0
    ((title_width, line_height),) = fonts.measure_labels([heading], families, TITLE_SIZE * by.text)
    width = max(width, min(title_width, TITLE_WIDTH * by.length))
    letters = max(1, int(len(heading) * width / title_width))
    lines = textwrap.wrap(heading, letters) if title_width > width else [heading]
    return "\n".join(lines), width, len(lines) * line_height * 1.35 + 0.15 * by.text


def _shortened(words: Sequence[str]) -> list[str]:
    """Shortens labels to `MAX_LABEL` characters with "…" in the middle."""
    labels, half = [printable(word) for word in words], MAX_LABEL // 2
    return [
        word if len(word) <= MAX_LABEL else f"{word[:half]}…{word[-half + 1 :]}" for word in labels
    ]
