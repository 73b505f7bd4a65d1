"""Numbers that options take, each with its bounds: one that is out of them is told which they are."""

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
        self._least = least
        self._most = most if most is not None else LARGEST if whole else sys.float_info.max
        self._whole = whole
        self._above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that was given."""
        number: float = (click.INT if self._whole else click.FLOAT).convert(value, param, ctx)
        least, most = self._least, self._most
        if not least <= number <= most or (self._above and number == least):  # what is not a number is in no bounds
            ends = f"{least:,} to {most:,}" if self._whole else f"{least:g} to {most:g}"
            self.fail(f"{value} is not in the range {'above' if self._above else 'from'} {ends}", param, ctx)
        return number
