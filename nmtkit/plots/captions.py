"""Where a captioner looks: the picture, and for each word the picture again, bright where the word's attention is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.plots import drawing, fonts
from nmtkit.plots.drawing import DEFAULT_STYLE, FigureStyle
from nmtkit.plots.pages import check_sentences

ACROSS, SIDE, GAP, LABEL, TITLE, SHADE = 6, 1.2, 0.14, 0.26, 0.38, 0.7
"""Panels in a row; in inches: least width of one, the space beside it and above for its word, that of the title; the
share of its light that a place without attention loses."""


def draw_caption(
    image: NDArray[Any] | None,
    words: Sequence[str],
    weights: NDArray[Any],
    grid: tuple[int, int],
    path: str | Path,
    style: FigureStyle = DEFAULT_STYLE,
) -> None:
    """Writes a figure as Xu et al. 2015, "Show, Attend and Tell", figures 2 and 3: a panel for each of T words.

    `image`: (H, W, 3), from 0 to 255 (uint8) or 0 to 1; None draws the weights alone.
    `weights`: (T, rows * columns of the `grid`), row by row from the upper left; a word's largest is brightest.
    """
    maps = weights.reshape(len(words), *grid)
    check_sentences([(words, words, [weights])], path)
    labels = [fonts.printable(word) for word in words]
    title = " ".join(labels) if style.title is None else fonts.printable(style.title)
    panels = [*([] if image is None else [("", np.ones(grid))]), *zip(labels, maps, strict=True)]
    with drawing.settings(title + "".join(labels), path, style.font) as families:
        wide = max(SIDE, fonts.widest(labels, families, 10.0))
        high, across = wide * np.divide(*(grid if image is None else image.shape[:2])), min(len(panels), ACROSS)
        width = GAP + max(across * (wide + GAP), GAP + fonts.widest([title], families, 12.0))
        height = TITLE + -(-len(panels) // ACROSS) * (LABEL + high) + GAP
        drawing.check_sheet(width, height, path)
        figure, by = drawing.new_figure(width, height, style, path)
        figure.text(GAP / width, 1 - GAP / height, title, fontsize=12 * by.text, color=drawing.INK, va="top")
        for number, (label, own) in enumerate(panels):
            left, bottom = GAP + number % ACROSS * (wide + GAP), TITLE + (number // ACROSS + 1) * (LABEL + high)
            axes = figure.add_axes((left / width, 1 - bottom / height, wide / width, high / height))
            axes.set_axis_off()
            axes.set_title(label, fontsize=10 * by.text, color=drawing.INK, pad=3 * by.text)
            share = own / (own.max() or 1.0)
            if image is None:
                axes.pcolormesh(share[::-1], cmap=style.shades(), vmin=0.0, vmax=1.0, edgecolors=drawing.LINE)
                continue
            shadow = np.stack([*np.zeros((3, *grid)), SHADE * (1 - share)], axis=-1)
            for layer, between in ((image, "nearest"), (shadow, "bilinear")):
                axes.imshow(layer, extent=(0, 1, 0, 1), aspect="auto", interpolation=between)
        drawing.save_figure(figure, path, title, style)
