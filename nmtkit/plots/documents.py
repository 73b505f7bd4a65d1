"""Texts with a classifier's attention, as in Yang et al. 2016, figure 5: sentences red, words blue.

Next to each sentence is its weight p_s on a red background. The shade of blue of a word is
sqrt(p_s) p_w, where p_w is its weight within the sentence, so words in a sentence with a small
weight are pale but visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import NmtkitError
from nmtkit.plots import drawing, fonts
from nmtkit.plots.attention import SentencePicture
from nmtkit.plots.drawing import DEFAULT_STYLE, FigureStyle
from nmtkit.plots.fonts import printable

REDS = ("#ffffff", "#f6b8ae", "#d23b2f")
WIDTH, MARGIN, WEIGHT, LINE, SPACE, POINTS = 7.0, 0.25, 0.5, 0.27, 0.07, 10.0
"""Sizes of the sheet, margins, weight column, line and space in inches; font size of words in points."""


@dataclass(frozen=True, eq=False)
class DocumentPicture(SentencePicture):
    """A text with the attention of its words."""

    sentences: Sequence[Sequence[str]]
    """The words of each sentence."""
    weights: Sequence[NDArray[np.float64]]
    """Word weights of each sentence `(W,)`; over the whole text they sum to one."""

    @property
    def of_sentences(self) -> NDArray[np.float64]:
        """The weight p_s of each sentence, `(N,)`."""
        return np.array([own.sum() for own in self.weights])

    @property
    def shades(self) -> list[NDArray[np.float64]]:
        """sqrt(p_s) p_w for each word, relative to the maximum."""
        shades = [
            own / np.sqrt(max(share, 1e-12))
            for own, share in zip(self.weights, self.of_sentences, strict=True)
        ]
        largest = max([1e-12, *(float(own.max()) for own in shades if len(own))])
        return [own / largest for own in shades]


def save_documents(
    pictures: Sequence[DocumentPicture], path: str | Path, style: FigureStyle = DEFAULT_STYLE
) -> None:
    """Draws texts one below the other."""
    pictures = [picture.with_title(style.title) for picture in pictures]
    if not pictures or not all(np.isfinite(picture.of_sentences).all() for picture in pictures):
        raise NmtkitError(
            f"{path}: there is no text, or the attention has non-finite weights; add text, or use "
            "an earlier checkpoint"
        )
    headings = [printable(picture.heading) for picture in pictures]
    words = [
        printable(word)
        for picture in pictures
        for sentence in picture.sentences
        for word in sentence
    ]
    scale = 1.0 if style.size is None else style.size[0] / WIDTH
    # text size relative to the default for a sheet of this width
    larger = 1.0 if style.font_size is None else style.font_size / (POINTS * scale)
    with drawing.settings("".join((*headings, *words)), path, style.font) as families:
        measures = fonts.measure_labels(words, families, POINTS * larger)
        widths = {word: width for word, (width, _) in zip(words, measures, strict=True)}
        places, y = [], MARGIN
        for picture, heading in zip(pictures, headings, strict=True):
            y += 1.4 * LINE * larger * bool(heading)
            rows, below = _laid_out(picture, widths, y, larger)
            places.append((picture, heading, rows))
            y = below + LINE * larger
        drawing.check_sheet(WIDTH * scale, y * scale, path)
        if style.font_size is not None and style.scale(WIDTH, y) < scale:
            need = (
                f"the text needs a height of {y * scale:.1f} inches at {style.font_size:g} points"
            )
            raise NmtkitError(f"{path}: {need}; use a smaller font or a larger figure")
        figure, by = drawing.new_figure(WIDTH, y, style)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(y, 0))
        axes.set_axis_off()
        for picture, heading, rows in places:
            top = rows[0][0][1] - LINE * larger
            axes.text(MARGIN, top, heading, fontsize=12 * by.text, color=drawing.INK, va="center")
            _draw(axes, picture, rows, style.shades(), LINE * larger, POINTS * by.text)
        drawing.save_figure(figure, path, headings[0] or "Attention", style)


Places = list[list[tuple[float, float, float]]]
"""Left edge, middle of the line and width of each sentence's weight and words."""


def _laid_out(
    picture: DocumentPicture, widths: dict[str, float], y: float, larger: float
) -> tuple[Places, float]:
    """Returns the positions of a text's words, with the first line at `y`, and the position below the text."""
    places, left = [], MARGIN + WEIGHT * larger + 0.12
    for sentence in picture.sentences:
        row, x = [(MARGIN, y, WEIGHT * larger)], left
        for width in (widths[printable(word)] + SPACE * larger for word in sentence):
            if x + width > WIDTH - MARGIN and x > left:
                x, y = left, y + LINE * larger
            row.append((x, y, width))
            x += width
        places.append(row)
        y += 1.2 * LINE * larger
    return places, y


def _draw(
    axes: drawing.Axes,
    picture: DocumentPicture,
    places: Places,
    blues: Any,
    line: float,
    points: float,
) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    reds = LinearSegmentedColormap.from_list("sentences", REDS)
    shares = picture.of_sentences
    largest = max(float(shares.max()), 1e-12)
    for words, share, shades, row in zip(
        picture.sentences, shares, picture.shades, places, strict=True
    ):
        texts = [f"{share:.2f}", *map(printable, words)]
        colours = [reds(share / largest), *map(blues, shades)]
        for text, colour, (x, y, width) in zip(texts, colours, row, strict=True):
            axes.add_patch(
                Rectangle(
                    (x, y - 0.44 * line), width, 0.88 * line, facecolor=colour, edgecolor="none"
                )
            )
            ink = "white" if drawing.is_dark(colour) else drawing.INK
            axes.text(
                x + width / 2,
                y,
                text,
                fontsize=points,
                color=ink,
                ha="center",
                va="center_baseline",
            )
