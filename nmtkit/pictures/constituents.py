"""Constituency trees as a figure: the root above, the words in a row below, one tree under the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmtkit.core.trees import PLACEHOLDER, Tree
from nmtkit.pictures import drawing
from nmtkit.pictures.drawing import DEFAULT_STYLE
from nmtkit.pictures.fonts import printable
from nmtkit.pictures.pages import picture_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER, GAP, STEP, MARGIN = 0.1, 0.16, 0.42, 0.25
"""In inches: the width of a letter, the space between words, the height of a level, and that around a tree."""


def save_trees(trees: Sequence[Tree], path: str | Path) -> None:
    """Writes a picture of some trees; NmtkitError if it would be too large to be read."""
    sizes = [(sum(map(_width, tree.leaves())), STEP * (_height(tree) + 1)) for tree in trees]
    width, height = max(wide for wide, _ in sizes) + 2 * MARGIN, sum(high + MARGIN for _, high in sizes) + MARGIN
    suffix = picture_format(path)
    drawing.check_sheet(width, height, suffix, path)
    title = printable(" ".join(trees[0].words()))
    with drawing.settings("".join(printable(tree.penn()) for tree in trees), suffix):
        figure, _ = drawing.new_figure(width, height, DEFAULT_STYLE)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        top = MARGIN
        for tree, (_, high) in zip(trees, sizes, strict=True):
            _draw(axes, tree, MARGIN, top + STEP / 2, top + high - STEP / 2)
            top += high + MARGIN
        drawing.save_figure(figure, path, title if len(trees) == 1 else f"{len(trees)} trees")


def _draw(axes: Axes, tree: Tree, left: float, top: float, bottom: float) -> tuple[float, float]:
    """Draws a part from `left` on, its words at the `bottom`; the middle of its root, and where it ends."""
    if tree.word is not None:
        middle, right = left + _width(tree) / 2, left + _width(tree)
        axes.text(middle, bottom, printable(tree.word), ha="center", va="center", fontsize=10, color=drawing.SERIES[0])
        if _has_tag(tree):
            axes.text(middle, bottom - STEP, tree.label, ha="center", va="center", fontsize=8, color=drawing.FAINT)
        return middle, right
    places, right = [], left
    for child in tree.children:
        place, right = _draw(axes, child, right, top + STEP, bottom)
        below = bottom - STEP * _has_tag(child) if child.word is not None else top + STEP
        places.append((place, below - STEP / 4))
    middle = (places[0][0] + places[-1][0]) / 2
    for place, below in places:
        axes.plot([middle, place], [top + STEP / 4, below], color=drawing.FAINT, linewidth=0.8)
    axes.text(middle, top, printable(tree.label), ha="center", va="center", fontsize=10, color=drawing.INK)
    return middle, right


def _has_tag(leaf: Tree) -> bool:
    return leaf.label not in (PLACEHOLDER, leaf.word)


def _width(leaf: Tree) -> float:
    tag = len(leaf.label) if _has_tag(leaf) else 0
    return GAP + LETTER * max(len(leaf.word or ""), tag, 2)


def _height(tree: Tree) -> int:
    """The levels below its root."""
    return 1 + max(map(_height, tree.children)) if tree.children else int(_has_tag(tree))
