"""The heat-map of a translation: a row for each target word, a column for each source word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nmtkit.pictures import drawing, fonts
from nmtkit.pictures.attended import AttentionPicture
from nmtkit.pictures.drawing import COLOUR_BAR, ROTATION, draw_title, fit_title, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOLD = "#e8710a"
WINDOW = "#c2185b"
OUTSIDE = "#e5e7eb"


@dataclass(frozen=True)
class TranslationPanel:
    """A translation with its measures; all lengths in inches, fonts in points."""

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

    @classmethod
    def measure(cls, picture: AttentionPicture, families: list[str], longest: int) -> TranslationPanel:
        """Measures a picture; the longest side that is drawn in cells of its size has `longest` words."""
        rows, columns = picture.weights.shape
        cell, font_size = (0.42, 11.0) if longest <= 12 else (0.3, 10.0) if longest <= 30 else (0.24, 9.0)
        src_labels = [shorten(word) for word in picture.src_words]
        tgt_labels = [shorten(word) for word in picture.tgt_words]
        src_sizes = fonts.measure_labels(src_labels, families, font_size)
        label_height = max(height for _, height in src_sizes)
        rotation = 0.0 if max(width for width, _ in src_sizes) < cell * 0.9 else ROTATION
        sine, cosine = math.sin(math.radians(rotation)), math.cos(math.radians(rotation))
        left = max(width for width, _ in fonts.measure_labels(tgt_labels, families, font_size)) + 0.12
        label_top = max(width * sine + height * cosine for width, height in src_sizes) + 0.12
        overhang = max(
            (j + 0.5) * cell + width * cosine + label_height * sine for j, (width, _) in enumerate(src_sizes)
        )
        width = left + max(columns * cell + COLOUR_BAR, overhang)
        title, width, title_height = fit_title(picture.heading, families, width)
        return cls(
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

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """See `Panel`."""
        from matplotlib.patches import Rectangle

        width, height = map(float, figure.get_size_inches())
        x, y = x / width, 1 - y / height
        picture = self.picture
        rows, columns = picture.weights.shape
        box_x, box_y = x + self.left / width, y - self.top / height
        box_width, box_height = columns * self.cell / width, rows * self.cell / height
        axes = figure.add_axes((box_x, box_y - box_height, box_width, box_height))
        mesh = drawing.weights(axes, picture.weights, picture.top)
        for src, tgt in picture.gold:
            outline = Rectangle((src + 0.06, tgt + 0.06), 0.88, 0.88, fill=False, edgecolor=GOLD, linewidth=1.5)
            axes.add_patch(outline)
        if picture.windows:
            _draw_windows(axes, picture)
        self._label(axes)
        draw_title(figure, self.title, x, y)
        bar_height = min(max(rows * self.cell, 0.8), 2.5) / height
        place = (box_x + box_width + 0.18 / width, box_y - bar_height, 0.12 / width, bar_height)
        drawing.colour_bar(figure, mesh, place, "weight")

    def _label(self, axes: Axes) -> None:
        gap = 0.07 / self.cell
        for j, word in enumerate(self.src_labels):
            axes.text(
                j + 0.5,
                -gap,
                word,
                fontsize=self.font_size,
                color=drawing.INK,
                rotation=self.rotation,
                rotation_mode="anchor",
                ha="left" if self.rotation else "center",
                va="center" if self.rotation else "bottom",
            )
        for i, word in enumerate(self.tgt_labels):
            axes.text(-gap, i + 0.5, word, fontsize=self.font_size, color=drawing.INK, ha="right", va="center_baseline")


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
