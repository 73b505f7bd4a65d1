"""Trees as pictures.

Of a beam search a page: the tokens that every step kept, ended, pruned or blocked by a rule. Of constituents a figure:
the root above, the words in a row below, one tree under the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from nmtkit.core.trees import Tree
from nmtkit.plots import drawing
from nmtkit.plots.drawing import DEFAULT_STYLE
from nmtkit.plots.fonts import printable
from nmtkit.plots.pages import framed, render, require_html, write_picture

Fate = Literal["kept", "ended", "pruned", "blocked"]


@dataclass(frozen=True)
class TreeNode:
    """One token that could follow a hypothesis."""

    token: str
    parent: int
    """The hypothesis that it continues, counted from 0 among those that the step before kept."""
    fate: Fate
    token_log_prob: float
    """In nats, like all here."""
    log_prob: float
    """From the start."""
    margin: float | None
    """`log_prob` minus that of the last kept, or for an end of the last that could end; None where there is none."""
    score: float | None = None
    """The log-probability after the penalties, if it ends here. None where it is blocked."""
    rule: str = ""
    """The key of the recipe's `search` group that blocked it."""

    def gap(self, digits: int) -> str:
        """How far `log_prob` is from the last hypothesis kept, such as "0.24 below"; empty if `margin` is None."""
        if self.margin is None:
            return ""
        side = "below" if self.margin < 0 else "above"
        return f"{abs(self.margin):.{digits}f} {side}"


@dataclass(frozen=True)
class RankedResult:
    """A result of the search, and the place of its last token."""

    text: str
    score: float
    log_prob: float
    finished: bool
    """False where it was cut at the length limit."""
    step: int
    """The step of its last token, from 0."""
    number: int
    """The number of that token in its step."""


@dataclass(frozen=True)
class SearchTree:
    """The search of one sentence."""

    source: str
    name: str
    """The name of the model."""
    settings: str
    """Of the search, in words."""
    beam_size: int
    steps: Sequence[Sequence[TreeNode]]
    """For each step the kept tokens in their order, then the ended, the pruned and the blocked ones."""
    results: Sequence[RankedResult]
    """Best first."""
    stopped: str
    """Why the search ended, in words."""

    def path(self, last: int, number: int) -> list[tuple[int, int]]:
        """The step and number of each token up to token `number` of the step `last`."""
        path = []
        for step in range(last, -1, -1):
            path.append((step, number))
            number = self.steps[step][number].parent  # kept tokens come first
        return path[::-1]

    def words(self, last: int, number: int) -> str:
        """All tokens up to token `number` of the step `last`."""
        return " ".join(self.steps[step][which].token for step, which in self.path(last, number))

    @cached_property
    def best(self) -> frozenset[tuple[int, int]]:
        """The step and number of each token of the best result."""
        return frozenset(step for result in self.results[:1] for step in self.path(result.step, result.number))

    def _repr_html_(self) -> str:
        """The tree in a notebook: the page that `save_search` writes, in a frame."""
        most = max(map(len, self.steps))
        return framed(search_page([self]), height=420 + 58 * most + 28 * len(self.results))


def save_search(trees: Sequence[SearchTree], path: str | Path) -> None:
    """Writes the searches of some sentences as one .html file."""
    require_html(path)
    write_picture(search_page(trees).encode(), path)


def search_page(trees: Sequence[SearchTree]) -> str:
    """The page of `save_search` as text."""
    title = f"Beam search: {trees[0].source}" if len(trees) == 1 else f"Beam search: {len(trees)} sentences"
    return render("plots/search_trees.html", {"title": title, "trees": trees})


LETTER, GAP, STEP, MARGIN = 0.1, 0.16, 0.42, 0.25
"""In inches: the width of a letter, the space between words, the height of a level, and that around a tree."""


def save_trees(trees: Sequence[Tree], path: str | Path) -> None:
    """Writes a picture of some trees; NmtkitError if it would be too large to be read."""
    sizes = [(sum(map(_width, tree.leaves())), STEP * (_height(tree) + 1)) for tree in trees]
    width, height = max(wide for wide, _ in sizes) + 2 * MARGIN, sum(high + MARGIN for _, high in sizes) + MARGIN
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


def _draw(axes: drawing.Axes, tree: Tree, left: float, top: float, bottom: float) -> tuple[float, float]:
    """Draws a part from `left` on, its words at the `bottom`; the middle of its root, and where it ends."""
    if tree.word is not None:
        middle, right = left + _width(tree) / 2, left + _width(tree)
        axes.text(middle, bottom, printable(tree.word), ha="center", va="center", fontsize=10, color=drawing.SERIES[0])
        if tree.has_tag:
            axes.text(middle, bottom - STEP, tree.label, ha="center", va="center", fontsize=8, color=drawing.FAINT)
        return middle, right
    places, right = [], left
    for child in tree.children:
        place, right = _draw(axes, child, right, top + STEP, bottom)
        below = bottom - STEP * child.has_tag if child.word is not None else top + STEP
        places.append((place, below - STEP / 4))
    middle = (places[0][0] + places[-1][0]) / 2
    for place, below in places:
        axes.plot([middle, place], [top + STEP / 4, below], color=drawing.FAINT, linewidth=0.8)
    axes.text(middle, top, printable(tree.label), ha="center", va="center", fontsize=10, color=drawing.INK)
    return middle, right


def _width(leaf: Tree) -> float:
    tag = len(leaf.label) if leaf.has_tag else 0
    return GAP + LETTER * max(len(leaf.word or ""), tag, 2)


def _height(tree: Tree) -> int:
    """The levels below its root."""
    return 1 + max(map(_height, tree.children)) if tree.children else int(tree.has_tag)
