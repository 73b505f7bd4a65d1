"""Constituency trees as figures (root at the top, words in a row at the bottom) and as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len

from nmtkit.plots import drawing
from nmtkit.plots.drawing import DEFAULT_STYLE
from nmtkit.plots.fonts import printable
from nmtkit.zoo.parsing.trees import Tree

LETTER, GAP, STEP, MARGIN = 0.1, 0.16, 0.42, 0.25
"""Inches: letter width, space between words, level height, and margin around a tree."""


def save_trees(trees: Sequence[Tree], path: str | Path) -> None:
    """Writes a figure of trees; NmtkitError if it would be too large to read."""
    sizes = [(sum(map(_width, tree.leaves())), STEP * (_height(tree) + 1)) for tree in trees]
    width, height = (
        max(wide for wide, _ in sizes) + 2 * MARGIN,
        sum(high + MARGIN for _, high in sizes) + MARGIN,
    )
    drawing.check_sheet(width, height, path)
    title = printable(" ".join(trees[0].words()))
    with drawing.settings("".join(printable(tree.penn()) for tree in trees), path):
        figure, _ = drawing.new_figure(width, height, DEFAULT_STYLE)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, width), ylim=(height, 0))
        top = MARGIN
        for tree, (_, high) in zip(trees, sizes, strict=True):
            _draw(axes, tree, MARGIN, top + STEP / 2, top + high - STEP / 2)
            top += high + MARGIN
        drawing.save_figure(figure, path, title if len(trees) == 1 else f"{len(trees)} trees")


def _draw(
    axes: drawing.Axes, tree: Tree, left: float, top: float, bottom: float
) -> tuple[float, float]:
    """Draws a subtree from `left`, with words at the `bottom`; returns the middle of its root and its right end."""
    if tree.word is not None:
        middle, right = left + _width(tree) / 2, left + _width(tree)
        axes.text(
            middle,
            bottom,
            printable(tree.word),
            ha="center",
            va="center",
            fontsize=10,
            color=drawing.SERIES[0],
        )
        if tree.has_tag:
            axes.text(
                middle,
                bottom - STEP,
                tree.label,
                ha="center",
                va="center",
                fontsize=8,
                color=drawing.FAINT,
            )
        return middle, right
    places, right = [], left
    for child in tree.children:
        place, right = _draw(axes, child, right, top + STEP, bottom)
        below = bottom - STEP * child.has_tag if child.word is not None else top + STEP
        places.append((place, below - STEP / 4))
    middle = (places[0][0] + places[-1][0]) / 2
    for place, below in places:
        axes.plot([middle, place], [top + STEP / 4, below], color=drawing.FAINT, linewidth=0.8)
    axes.text(
        middle, top, printable(tree.label), ha="center", va="center", fontsize=10, color=drawing.INK
    )
    return middle, right


def _width(leaf: Tree) -> float:
    tag = len(leaf.label) if leaf.has_tag else 0
    return GAP + LETTER * max(len(leaf.word or ""), tag, 2)


def _height(tree: Tree) -> int:
    """Returns the number of levels below the root."""
    return 1 + max(map(_height, tree.children)) if tree.children else int(tree.has_tag)


def tree_lines(tree: Tree) -> list[str]:
    """Returns a drawing of a tree as lines of text, without part-of-speech placeholders."""
    if tree.word is not None:
        return [f"{tree.label} {tree.word}" if tree.has_tag else tree.word]
    lines: list[str] = []
    indent, last = " " * cell_len(tree.label), len(tree.children) - 1
    for number, child in enumerate(tree.children):
        first, *others = tree_lines(child)
        joint = "─" if not last else "┬" if not number else "├" if number < last else "└"
        lines.append(f"{indent if number else tree.label} {joint} {first}")
        lines += [f"{indent} {'│' if number < last else ' '} {line}" for line in others]
    return lines
