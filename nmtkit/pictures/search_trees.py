"""The tree of a beam search, and its page: the tokens that every step kept, ended, pruned or blocked by a rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from nmtkit.core.errors import NmtkitError
from nmtkit.pictures.pages import picture_format, render, write_picture

Fate = Literal["kept", "ended", "pruned", "blocked"]
COLUMN, ROW, NODE_WIDTH, NODE_HEIGHT, TOP = 148, 58, 116, 46, 28
"""Pixels of the page: of a step, of a row, of a token, and above the first row."""


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
    """Of the model."""
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

    @cached_property
    def best(self) -> frozenset[tuple[int, int]]:
        """The step and number of each token of the best result."""
        return frozenset(step for result in self.results[:1] for step in self.path(result.step, result.number))


def save_search(trees: Sequence[SearchTree], path: str | Path) -> None:
    """Writes the searches of some sentences as one .html file."""
    require_html(path)
    title = f"Beam search: {trees[0].source}" if len(trees) == 1 else f"Beam search: {len(trees)} sentences"
    pages = [(tree, max(map(len, tree.steps), default=0) * ROW + TOP, _edges(tree)) for tree in trees]
    sizes = {"column": COLUMN, "row": ROW, "above": TOP, "node_width": NODE_WIDTH, "node_height": NODE_HEIGHT}
    facts = {"title": title, "trees": pages, "kind": _kind, "words": _words, **sizes}
    write_picture(render("pictures/search_trees.html", facts).encode(), path)


def require_html(path: str | Path) -> None:
    """Refuses a file whose name does not end in .html; called before the work is done."""
    if picture_format(path) != ".html":
        raise NmtkitError(f"{path}: a search is drawn as a page; let the name end in .html")


def _words(tree: SearchTree, step: int, number: int) -> str:
    return " ".join(tree.steps[at][which].token for at, which in tree.path(step, number))


def _edges(tree: SearchTree) -> list[dict[str, str]]:
    """The lines from every token to the one before it; those of the best result come last, and so lie above."""
    edges = []
    for step, continuations in enumerate(tree.steps[1:], start=1):
        right, left = step * COLUMN, (step - 1) * COLUMN + NODE_WIDTH
        middle = (left + right) // 2
        for number, one in enumerate(continuations):
            begin, end = (place * ROW + TOP + NODE_HEIGHT // 2 for place in (one.parent, number))
            line = f"M{left} {begin}C{middle} {begin} {middle} {end} {right} {end}"
            edges.append({"line": line, "kind": _kind(tree, step, number)})
    return sorted(edges, key=lambda edge: edge["kind"].endswith("best"))


def _kind(tree: SearchTree, step: int, number: int) -> str:
    return f"{tree.steps[step][number].fate}{' best' if (step, number) in tree.best else ''}"
