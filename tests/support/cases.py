"""Which of several equal questions `make test` asks."""

from collections.abc import Iterable
from typing import Any

import pytest


def daily(things: Iterable[Any], count: int = 1) -> list[Any]:
    """For `parametrize`: the first ones are asked by `make test`, the others by `make test-all` alone.

    Args:
        things: values of one argument, or a tuple for each set of several arguments.
        count: how many are the first ones.
    """
    several = [thing if isinstance(thing, tuple) else (thing,) for thing in things]
    return [
        pytest.param(*one, marks=[pytest.mark.slow] * (n >= count)) for n, one in enumerate(several)
    ]
