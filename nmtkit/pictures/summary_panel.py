"""The heat-map of a summary: a column for each of its words, a row for each word of the article.

The words of the article stand one below the other, with a bar for the coverage of each, so that a long article can be
read without turning its words on their sides. A strip under the heat-map shows p_gen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.pictures import drawing, fonts
from nmtkit.pictures.attended import AttentionPicture, condense
from nmtkit.pictures.drawing import COLOUR_BAR, ROTATION, draw_title, fit_title, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPIED = "#b45309"
COPYING = "#fbd9b0"
GENERATING = "#6ea3e0"
COVERAGE = "#1f5fbf"
STRETCH = "#6b7280"

MOST_ROWS = 60
LEAST_BOX = 0.8
STRIP = 0.5
GAP = 0.1
BELOW = GAP + STRIP + 0.1
NOTE_SIZE = 8.0
NOTE = 0.17


@dataclass(frozen=True)
class SummaryPanel:
    """A summary with its measures; all lengths in inches, fonts in points.

    Attributes:
        picture: What is drawn: no more than `MOST_ROWS` words and stretches of the article.
        sizes: How many words of the article each row stands for.
    """

    picture: AttentionPicture
    sizes: list[int]
    title: str
    notes: list[str]
    src_labels: list[str]
    tgt_labels: list[str]
    column: float
    row: float
    tgt_size: float
    src_size: float
    left: float
    top: float
    width: float
    height: float

    @classmethod
    def measure(cls, picture: AttentionPicture, families: list[str], alike: Sequence[AttentionPicture]) -> SummaryPanel:
        """Measures a picture; those `alike`, this one among them, are drawn in cells of one size."""
        longest = max(len(one.tgt_words) for one in alike)
        column, tgt_size = (0.34, 10.0) if longest <= 20 else (0.26, 9.0)
        longest = max(len(one.src_words) for one in alike)
        row, src_size = (0.24, 10.0) if longest <= 30 else (0.17, 8.5)
        picture, sizes = condense(picture, MOST_ROWS)
        columns, rows = picture.weights.shape
        src_labels = [shorten(word) for word in picture.src_words]
        tgt_labels = [shorten(word) for word in picture.tgt_words]
        left = max(width for width, _ in fonts.measure_labels(src_labels, families, src_size)) + 0.12
        left = max(left, 0.5)  # the scale of p_gen
        sine, cosine = math.sin(math.radians(ROTATION)), math.cos(math.radians(ROTATION))
        tgt_sizes = fonts.measure_labels(tgt_labels, families, tgt_size, bold=picture.copied)
        label_top = max(width * sine + height * cosine for width, height in tgt_sizes) + 0.12
        overhang = max(
            (j + 0.5) * column + width * cosine + height * sine for j, (width, height) in enumerate(tgt_sizes)
        )
        width = left + max(columns * column + GAP + STRIP + COLOUR_BAR, overhang)
        notes = _notes(picture, sizes)
        width = max([width, *(note_width for note_width, _ in fonts.measure_labels(notes, families, NOTE_SIZE))])
        title, width, title_height = fit_title(picture.heading, families, width)
        return cls(
            picture=picture,
            sizes=sizes,
            title=title,
            notes=notes,
            src_labels=src_labels,
            tgt_labels=tgt_labels,
            column=column,
            row=row,
            tgt_size=tgt_size,
            src_size=src_size,
            left=left,
            top=title_height + label_top,
            width=width,
            height=title_height + label_top + max(rows * row, LEAST_BOX) + BELOW + len(notes) * NOTE,
        )

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """See `Panel`."""
        picture = self.picture
        width, height = map(float, figure.get_size_inches())
        columns, rows = picture.weights.shape

        def place(right: float, down: float, wide: float, high: float) -> tuple[float, float, float, float]:
            """A box in fractions of the figure, from inches to the right of and below the panel's upper left corner."""
            return (x + right) / width, 1 - (y + down + high) / height, wide / width, high / height

        draw_title(figure, self.title, x / width, 1 - y / height)
        wide, high = columns * self.column, rows * self.row
        axes = figure.add_axes(place(self.left, self.top, wide, high))
        mesh = drawing.weights(axes, picture.weights.T, picture.top)
        self._label(axes)
        right = self.left + wide + GAP
        self._draw_coverage(figure.add_axes(place(right, self.top, STRIP, high)))
        bar = place(right + STRIP + 0.18, self.top, 0.12, min(max(high, LEAST_BOX), 2.5))
        drawing.colour_bar(figure, mesh, bar, "weight")
        if picture.p_gen is not None:
            self._draw_p_gen(figure.add_axes(place(self.left, self.top + high + GAP, wide, STRIP)), picture.p_gen)
        for number, note in enumerate(reversed(self.notes), start=1):
            spot = place(0.0, self.height - number * NOTE, 0.0, 0.0)
            figure.text(spot[0], spot[1], note, fontsize=NOTE_SIZE, color=drawing.FAINT, va="top")

    def _label(self, axes: Axes) -> None:
        for j, word in enumerate(self.tgt_labels):
            copied = j in self.picture.copied
            axes.text(
                j + 0.5,
                -0.07 / self.row,
                word,
                fontsize=self.tgt_size,
                color=COPIED if copied else drawing.INK,
                fontweight="bold" if copied else "normal",
                rotation=ROTATION,
                rotation_mode="anchor",
                ha="left",
                va="center",
            )
        for i, (word, size) in enumerate(zip(self.src_labels, self.sizes, strict=True)):
            axes.text(
                -0.07 / self.column,
                i + 0.5,
                word,
                fontsize=self.src_size if size == 1 else NOTE_SIZE,
                color=drawing.INK if size == 1 else STRETCH,
                ha="right",
                va="center_baseline",
            )

    def _draw_coverage(self, axes: Axes) -> None:
        coverage = self.picture.coverage
        most = float(coverage.max()) or 1.0
        colours = [COVERAGE if size == 1 else STRETCH for size in self.sizes]
        axes.barh(np.arange(len(coverage)) + 0.5, coverage, height=0.8, color=colours)
        axes.set_xlim(0, most)
        axes.set_ylim(len(coverage), 0)
        axes.set_xticks([0, most], ["0", f"{most:.1f}"])
        axes.set_yticks([])
        axes.set_xlabel("coverage", fontsize=NOTE_SIZE, color=drawing.FAINT, labelpad=1)
        _quiet(axes)
        axes.spines["left"].set_visible(True)

    def _draw_p_gen(self, axes: Axes, p_gen: NDArray[Any]) -> None:
        places = np.arange(len(p_gen)) + 0.5
        axes.bar(places, p_gen, width=0.84, color=GENERATING)
        axes.bar(places, 1 - p_gen, bottom=p_gen, width=0.84, color=COPYING)
        axes.set_xlim(0, len(p_gen))
        axes.set_ylim(0, 1)
        axes.set_xticks([])
        axes.set_yticks([0, 1])
        axes.set_ylabel("p_gen", fontsize=NOTE_SIZE, color=drawing.FAINT, labelpad=1)
        _quiet(axes)


def _notes(picture: AttentionPicture, sizes: list[int]) -> list[str]:
    """What stands below the picture, a line each."""
    notes = []
    if picture.p_gen is not None:
        notes.append("bold: copied from the article · p_gen: blue, share of generating; orange, of copying")
    if len(sizes) < sum(sizes):
        alone = sizes.count(1)
        notes.append(
            f"{alone} of {sum(sizes)} words of the article have rows of their own, those most looked at; "
            "a grey row adds up a stretch of others"
        )
    return notes


def _quiet(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
        spine.set_color(STRETCH)
    axes.tick_params(labelsize=NOTE_SIZE, length=2, pad=1, colors=drawing.FAINT)
