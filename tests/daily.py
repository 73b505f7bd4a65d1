"""Which of several equal questions `make test` asks."""

from collections.abc import Iterable
from typing import Any

import pytest


def daily(things: Iterable[Any], count: int = 1) -> list[Any]:
    """For `parametrize`: the first ones are asked by `make test`, the others by `make test-all` alone."""
    things = list(things)
    return [*things[:count], *(pytest.param(thing, marks=pytest.mark.slow) for thing in things[count:])]
