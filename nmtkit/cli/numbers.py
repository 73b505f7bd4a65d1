"""Numbers that options take, each with its bounds: one that is out of them is told which they are."""

import importlib
import sys
from typing import Any

import click

from nmtkit.settings import LARGEST


class Number(click.ParamType):  # type: ignore[type-arg]  # newer versions of click have one
    """A number within bounds.

    Args:
        least: the smallest.
        most: the largest; None: what every setting may be at most.
        whole: whether it has no fraction.
        above: whether it is larger than `least`.
    """

    def __init__(self, least: float, most: float | None = None, whole: bool = True, above: bool = False) -> None:
        self.name = "integer" if whole else "float"
        self._bounds = (least, most)
        self._whole = whole
        self._above = above

    def bounds(self) -> tuple[float, float | None]:
        """The smallest and the largest."""
        return self._bounds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that was given."""
        number: float = (click.INT if self._whole else click.FLOAT).convert(value, param, ctx)
        least, most = self.bounds()
        most = most if most is not None else LARGEST if self._whole else sys.float_info.max
        if not least <= number <= most or (self._above and number == least):  # what is not a number is in no bounds
            ends = f"{least:,} to {most:,}" if self._whole else f"{least:g} to {most:g}"
            self.fail(f"{value} is not in the range {'above' if self._above else 'from'} {ends}", param, ctx)
        return number


class SearchNumber(Number):
    """A number of the recipe's `search` group, whose bounds are those of that key.

    Args:
        key: of the group.
        whole: whether it has no fraction.
    """

    def __init__(self, key: str, whole: bool = True) -> None:
        super().__init__(0, whole=whole)
        self._key = key

    def bounds(self) -> tuple[float, float | None]:
        """The smallest and the largest; known when a value is given, for the search is loaded with torch."""
        field = importlib.import_module("nmtkit.search.beam").SearchConfig.model_fields[self._key]
        found = {end: getattr(one, end) for one in field.metadata for end in ("ge", "le") if hasattr(one, end)}
        return found["ge"], found.get("le")
