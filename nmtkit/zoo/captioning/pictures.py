"""Figures of a captioner's attention: the image, and for each word a copy that is bright where the word attends."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.features import Rows
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.inference.attention_views import EXAMPLE_PICTURES, ExamplePicture, merge_subwords
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.result import Translation
from nmtkit.plots import drawing, fonts
from nmtkit.plots.drawing import DEFAULT_STYLE, FigureStyle
from nmtkit.plots.pages import check_sentences

ACROSS, SIDE, GAP, LABEL, TITLE, SHADE = 6, 1.2, 0.14, 0.26, 0.38, 0.7
"""Number of panels in a row; in inches, a panel's minimum width, the space beside it, the space above it for the word,
and the height of the title; and the fraction of its brightness that a region without attention loses."""
MOST_HALVINGS = 8
"""Maximum number of convolutions (each halves height and width) for which regions are drawn."""


@EXAMPLE_PICTURES.register("features")
@dataclass(frozen=True)
class CaptionPicture(ExamplePicture):
    """A caption and the regions that its T words attend to."""

    image: NDArray[Any] | None
    """The image `(H,W,3)`, from 0 to 255; None if the model reads features instead of an image."""
    words: Sequence[str]
    weights: NDArray[Any]
    """Attention weights `(T,R)`; regions are in row order of the grid from the upper left."""
    grid: tuple[int, int]
    """Numbers of rows and columns of regions; if the model reads features, their regions must form a square."""

    @classmethod
    @override
    def from_answer(cls, reader: TextModel, rows: Rows, answer: Translation) -> Self:
        if answer.attention is None:
            raise NmtkitError(
                f"the model {reader.name!r} has no attention over a grid of regions; use "
                "show_attend_tell"
            )
        regions = answer.attention.shape[1]
        image = rows.reshape(len(rows), -1, 3) if rows.dtype == np.uint8 else None
        grid = _grid(regions, image)
        if grid is None:
            raise NmtkitError(
                f"the model {reader.name!r} attends to {regions} regions, which do not form a "
                "square and cannot be drawn"
            )
        weights = answer.attention[: len(answer.tokens)].astype(np.float64)  # (T,R), without EOS
        cells = [f"{WORD_START}-"] * regions  # each region counts as a word
        _, words, merged = merge_subwords(cells, answer.tokens, weights)
        return cls(image, words, merged, grid)

    @override
    def save(self, path: str | Path, style: FigureStyle) -> None:
        draw_caption(self.image, self.words, self.weights, self.grid, path, style)


def _grid(regions: int, image: NDArray[Any] | None) -> tuple[int, int] | None:
    """Returns the numbers of rows and columns; None if the regions neither result from halving nor form a square."""
    if image is None:
        side = round(regions**0.5)
        height, width = side, side
    else:
        height, width = image.shape[:2]
    for halved in range(MOST_HALVINGS + 1):
        rows, columns = -(-height // 2**halved), -(-width // 2**halved)
        if rows * columns == regions:
            return rows, columns
    return None


def draw_caption(
    image: NDArray[Any] | None,
    words: Sequence[str],
    weights: NDArray[Any],
    grid: tuple[int, int],
    path: str | Path,
    style: FigureStyle = DEFAULT_STYLE,
) -> None:
    """Writes a figure like figures 2 and 3 of Xu et al. 2015, "Show, Attend and Tell", with one panel per word.

    `image` (H, W, 3) has values from 0 to 255 (uint8) or from 0 to 1; if it is None, only the weights are drawn.
    `weights` (T, rows * columns of the `grid`) are in row order from the upper left; each word's maximum is brightest.
    """
    maps = weights.reshape(len(words), *grid)
    check_sentences([(words, words, [weights])], path)
    labels = [fonts.printable(word) for word in words]
    title = " ".join(labels) if style.title is None else fonts.printable(style.title)
    panels = [*([] if image is None else [("", np.ones(grid))]), *zip(labels, maps, strict=True)]
    with drawing.settings(title + "".join(labels), path, style.font) as families:
        wide = max(SIDE, fonts.widest(labels, families, 10.0))
        high, across = (
            wide * np.divide(*(grid if image is None else image.shape[:2])),
            min(len(panels), ACROSS),
        )
        width = GAP + max(across * (wide + GAP), GAP + fonts.widest([title], families, 12.0))
        height = TITLE + -(-len(panels) // ACROSS) * (LABEL + high) + GAP
        drawing.check_sheet(width, height, path)
        figure, by = drawing.new_figure(width, height, style, path)
        figure.text(
            GAP / width, 1 - GAP / height, title, fontsize=12 * by.text, color=drawing.INK, va="top"
        )
        for number, (label, own) in enumerate(panels):
            left, bottom = (
                GAP + number % ACROSS * (wide + GAP),
                TITLE + (number // ACROSS + 1) * (LABEL + high),
            )
            axes = figure.add_axes((left / width, 1 - bottom / height, wide / width, high / height))
            axes.set_axis_off()
            axes.set_title(label, fontsize=10 * by.text, color=drawing.INK, pad=3 * by.text)
            share = own / (own.max() or 1.0)
            if image is None:
                axes.pcolormesh(
                    share[::-1], cmap=style.shades(), vmin=0.0, vmax=1.0, edgecolors=drawing.LINE
                )
                continue
            shadow = np.stack([*np.zeros((3, *grid)), SHADE * (1 - share)], axis=-1)
            for layer, between in ((image, "nearest"), (shadow, "bilinear")):
                axes.imshow(layer, extent=(0, 1, 0, 1), aspect="auto", interpolation=between)
        drawing.save_figure(figure, path, title, style)
