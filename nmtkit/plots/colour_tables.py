"""Coloured tables: attention entropy by layer and head, position embeddings, and confusion matrices of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import NmtkitError
from nmtkit.plots import drawing, fonts
from nmtkit.plots.attention import AttentionPicture, HeadsPicture
from nmtkit.plots.drawing import DEFAULT_STYLE, FigureStyle
from nmtkit.plots.fonts import printable

CELL, NARROWEST, TITLE = 0.55, 2.1, 0.4
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 0.75, 0.95, 1.15, 0.6, 0.75
"""Cell width, minimum table width, title height, and margins, in inches."""


@dataclass(frozen=True, eq=False)
class Entropies:
    """Entropies of one kind of attention, in nats."""

    name: str
    values: NDArray[np.float64]
    """(L, A): the mean over all rows of all sentences."""
    uniform: float
    """Entropy of uniform attention, the maximum."""


def entropy(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the entropy in nats along the last axis, from 0 to the logarithm of the number of words."""
    weights = weights.astype(np.float64)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    # the sum is not positive; `abs` also turns -0.0 into 0.0
    entropies: NDArray[np.float64] = np.abs((weights * logs).sum(-1))
    return entropies


def word_entropies(pictures: Sequence[AttentionPicture]) -> list[Entropies]:
    """Returns the mean entropy of a model with a single attention mechanism, as a table with one value."""
    values = np.concatenate([entropy(picture.weights) for picture in pictures])
    uniform = np.concatenate(
        [np.full(len(p.tgt_words), np.log(len(p.src_words))) for p in pictures]
    )
    return [Entropies("attention over words", np.array([[values.mean()]]), float(uniform.mean()))]


def head_entropies(pictures: Sequence[HeadsPicture]) -> list[Entropies]:
    """Returns the entropies of a Transformer's three kinds of attention."""
    entropies = []
    kinds = {
        "encoder": "encoder self-attention",
        "decoder": "decoder self-attention",
        "cross": "cross-attention",
    }
    for kind, name in kinds.items():
        values = np.concatenate(
            [entropy(getattr(picture, kind)) for picture in pictures], axis=-1
        )  # (L, A, rows)
        words = [
            np.arange(1, len(picture.tgt_tokens) + 1)  # the decoder attends only to earlier outputs
            if kind == "decoder"
            else np.full(getattr(picture, kind).shape[2], len(picture.src_tokens))
            for picture in pictures
        ]
        entropies.append(
            Entropies(name, values.mean(-1), float(np.log(np.concatenate(words)).mean()))
        )
    return entropies


def save_entropies(
    parts: Sequence[Entropies], path: str | Path, title: str, style: FigureStyle = DEFAULT_STYLE
) -> None:
    """Writes a coloured table for each kind of attention, with layers as rows and heads as columns."""
    if not all(np.isfinite(part.values).all() for part in parts):
        raise NmtkitError(
            f"{path}: the attention has non-finite weights; use an earlier checkpoint"
        )
    shown = printable(title if style.title is None else style.title)
    with drawing.settings(shown, path, style.font) as families:
        widths = [max(part.values.shape[1] * CELL, NARROWEST) for part in parts]
        tallest = max(part.values.shape[0] for part in parts) * CELL
        width = LEFT + sum(widths) + BETWEEN * (len(parts) - 1) + RIGHT
        above = TOP if shown else TOP - TITLE
        height = above + tallest + BOTTOM
        figure, by, width = _titled_figure(shown, families, width, height, style, path)
        top = max(max(float(part.values.max()), part.uniform) for part in parts) or 1.0
        x = LEFT
        for part, wide in zip(parts, widths, strict=True):
            layers, heads = part.values.shape
            box = (
                x / width,
                1 - (above + layers * CELL) / height,
                heads * CELL / width,
                layers * CELL / height,
            )
            axes = figure.add_axes(box)
            mesh = _draw_table(axes, part, top, style.shades(), by.text)
            if part.values.size > 1 and part is parts[0]:
                axes.set_ylabel("layer", fontsize=9 * by.text, color=drawing.FAINT)
            x += wide + BETWEEN
        tall = max(tallest, 0.8)
        place = (
            (x - BETWEEN + 0.2) / width,
            1 - (above + tall) / height,
            0.12 / width,
            tall / height,
        )
        drawing.colour_bar(figure, mesh, place, "entropy (nats)", by.text)
        drawing.save_figure(figure, path, shown or printable(title), style)


def _titled_figure(
    title: str,
    families: list[str],
    width: float,
    height: float,
    style: FigureStyle,
    path: str | Path,
) -> tuple[drawing.Figure, drawing.ScaleFactors, float]:
    """Returns a figure wide enough for its title, its scale factors, and its width in inches."""
    width = max(width, fonts.widest([title], families, 12.0) + 0.5)
    figure, by = drawing.new_figure(width, height, style, path)
    figure.text(
        0.25 / width, 1 - 0.2 / height, title, fontsize=12 * by.text, color=drawing.INK, va="top"
    )
    return figure, by, width


def _draw_cells(
    axes: drawing.Axes,
    values: NDArray[Any],
    texts: Sequence[Sequence[str]],
    top: float,
    shades: Any,
    size: float,
) -> Any:
    """Draws texts on cells shaded by value (`top` is darkest); returns the mesh."""
    mesh = axes.pcolormesh(values, cmap=shades, vmin=0.0, vmax=top, edgecolors="white")
    axes.set_ylim(len(values), 0)
    for row, column in np.ndindex(values.shape):
        ink = "white" if drawing.is_dark(shades(values[row, column] / top)) else drawing.INK
        text = texts[row][column]
        axes.text(
            column + 0.5, row + 0.5, text, fontsize=9 * size, color=ink, ha="center", va="center"
        )
    axes.tick_params(labelsize=9 * size, length=0, colors=drawing.FAINT)
    axes.set_frame_on(False)
    return mesh


def _draw_table(axes: drawing.Axes, part: Entropies, top: float, shades: Any, text: float) -> Any:
    """Draws the table of one kind of attention (`top` is darkest); returns the mesh."""
    layers, heads = part.values.shape
    texts = [[f"{value:.2f}" for value in row] for row in part.values]
    mesh = _draw_cells(axes, part.values, texts, top, shades, text)
    named = part.values.size > 1  # a single attention mechanism has no layers or heads to name
    axes.set_xticks(
        np.arange(heads) + 0.5, [str(head + 1) if named else "" for head in range(heads)]
    )
    axes.set_yticks(
        np.arange(layers) + 0.5, [str(layer + 1) if named else "" for layer in range(layers)]
    )
    if named:
        axes.set_xlabel("head", fontsize=9 * text, color=drawing.FAINT)
    heading = f"{part.name}\nuniform: {part.uniform:.2f}"
    axes.set_title(
        heading, fontsize=10 * text, color=drawing.INK, loc="left", pad=6 * text, linespacing=1.3
    )
    return mesh


def save_confusion(
    labels: Sequence[str], counts: NDArray[Any], path: str | Path, title: str
) -> None:
    """Writes the confusion matrix of true (rows) and predicted (columns) labels, coloured by row share."""
    names = [printable(label) for label in labels]
    shown = printable(title)
    with drawing.settings("".join((*names, shown)), path) as families:
        margin = fonts.widest(names, families, 9.0) + 0.45
        size = max(len(names) * CELL, NARROWEST)
        height = TITLE + margin + size + 0.25
        figure, _, width = _titled_figure(
            shown, families, margin + size + RIGHT, height, DEFAULT_STYLE, path
        )
        axes = figure.add_axes((margin / width, 0.25 / height, size / width, size / height))
        texts = [[str(count or "") for count in row] for row in counts.tolist()]
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        mesh = _draw_cells(axes, shares, texts, 1.0, DEFAULT_STYLE.shades(), 1.0)
        axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=90)
        axes.set_yticks(np.arange(len(names)) + 0.5, names)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel("predicted label", fontsize=9, color=drawing.FAINT)
        axes.set_ylabel("true label", fontsize=9, color=drawing.FAINT)
        place = ((margin + size + 0.2) / width, 0.25 / height, 0.12 / width, size / height)
        drawing.colour_bar(figure, mesh, place, "share of the row")
        drawing.save_figure(figure, path, shown)


def save_positions(
    table: NDArray[Any], path: str | Path, title: str, style: FigureStyle = DEFAULT_STYLE
) -> None:
    """Draws position embeddings (Vaswani et al. 2017, section 3.5), (positions, model width), as colours."""
    shown = printable(title if style.title is None else style.title)
    from matplotlib.colors import LinearSegmentedColormap

    with drawing.settings(shown, path, style.font):
        figure, by = drawing.new_figure(9.0, 5.0, style)
        wider = by.text / by.length  # growth of text relative to lengths
        left, low, bar = 0.09 * wider, 0.12 * wider, 0.12 * wider
        axes = figure.add_axes((left, low, 1 - left - bar, (0.88 if shown else 0.97) - low))
        signed = LinearSegmentedColormap.from_list(
            "signed", ["#a13b00", "#f0a46b", "#ffffff", *drawing.BLUES[2:4]]
        )
        colours = style.shades() if style.colours else signed
        most = float(abs(table).max()) or 1.0
        image = axes.imshow(
            table, colours, vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
        )
        axes.set_frame_on(False)
        axes.set_xlabel("dimension", fontsize=10 * by.text, color=drawing.FAINT)
        axes.set_ylabel("position", fontsize=10 * by.text, color=drawing.FAINT)
        axes.tick_params(labelsize=9 * by.text, length=3 * by.text, colors=drawing.FAINT)
        figure.text(left, 0.93, shown, fontsize=12 * by.text, color=drawing.INK, va="bottom")
        place = (1 - bar + 0.025 * wider, low, 0.016 * wider, axes.get_position().height)
        drawing.colour_bar(figure, image, place, "value", by.text)
        drawing.save_figure(figure, path, shown or printable(title), style)
