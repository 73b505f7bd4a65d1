"""A page with the tree of a beam search: tokens kept, ended, pruned or blocked at every step."""

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
    """A candidate token for extending a hypothesis."""

    token: str
    parent: int
    """Index of the extended hypothesis among those kept by the previous step, counted from 0."""
    fate: Fate
    token_log_prob: float
    """Log-probability of the token; all values of a node are in nats."""
    log_prob: float
    """Log-probability of the whole hypothesis."""
    margin: float | None
    """`log_prob` minus that of the last hypothesis that was kept or, for EOS, that could end; None if there is none."""
    score: float | None = None
    """Log-probability with penalties if the hypothesis ends here; None if blocked."""
    rule: str = ""
    """Name of what blocked the token: a key of the recipe's `search` group, several keys joined by "or", or "prefix".
    Empty if nothing did."""

    def gap(self, digits: int) -> str:
        """Describes `margin` with the given number of decimals, e.g. "0.24 below"; empty if it is None."""
        if self.margin is None:
            return ""
        side = "below" if self.margin < 0 else "above"
        return f"{abs(self.margin):.{digits}f} {side}"


@dataclass(frozen=True)
class RankedResult:
    """A search result, and the position of its last token."""

    text: str
    score: float
    log_prob: float
    finished: bool
    """Whether the result ended with EOS; False if it was truncated at the length limit."""
    step: int
    """Step of the last token, counted from 0."""
    number: int
    """Number of the last token in its step."""


@dataclass(frozen=True)
class SearchTree:
    """The tree of the search for one sentence's translation."""

    source: str
    name: str
    """Name of the model."""
    settings: str
    """Description of the search settings."""
    beam_size: int
    steps: Sequence[Sequence[TreeNode]]
    """Tokens of each step: kept ones in order, then ended, pruned and blocked ones."""
    results: Sequence[RankedResult]
    """Results, best first."""
    stopped: str
    """The reason why the search ended, as a sentence without a full stop."""

    def path(self, last: int, number: int) -> list[tuple[int, int]]:
        """Returns the step and number of each token on the path to token `number` of step `last`."""
        path = []
        for step in range(last, -1, -1):
            path.append((step, number))
            number = self.steps[step][number].parent  # kept tokens come first
        return path[::-1]

    def words(self, last: int, number: int) -> str:
        """Returns the tokens on the path to token `number` of step `last`."""
        return " ".join(self.steps[step][which].token for step, which in self.path(last, number))

    @cached_property
    def best(self) -> frozenset[tuple[int, int]]:
        """The step and number of each token of the best result."""
        return frozenset(
            step for result in self.results[:1] for step in self.path(result.step, result.number)
        )

    def _repr_html_(self) -> str:
        """Returns the page that `save_search` writes, embedded in a frame for notebooks."""
        most = max(map(len, self.steps))
        return framed(search_page([self]), height=420 + 58 * most + 28 * len(self.results))


def save_search(trees: Sequence[SearchTree], path: str | Path) -> None:
    """Writes search trees as one .html file."""
    require_html(path)
    write_picture(search_page(trees).encode(), path)


def search_page(trees: Sequence[SearchTree]) -> str:
    """Returns the page of `save_search` as text."""
    title = (
        f"Beam search: {trees[0].source}"
        if len(trees) == 1
        else f"Beam search: {len(trees)} sentences"
    )
    return render("plots/templates/search_trees.html", {"title": title, "trees": trees})
