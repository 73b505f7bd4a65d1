"""The tree of a beam search as a page: the tokens that every step kept, ended, pruned or blocked by a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

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
        return frozenset(
            step for result in self.results[:1] for step in self.path(result.step, result.number)
        )

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
    title = (
        f"Beam search: {trees[0].source}"
        if len(trees) == 1
        else f"Beam search: {len(trees)} sentences"
    )
    return render("plots/templates/search_trees.html", {"title": title, "trees": trees})
