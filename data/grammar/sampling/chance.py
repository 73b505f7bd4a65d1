"""Random choice with numbers that are the same in every version of Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

from grammar.text import Pair, phrase

T = TypeVar("T")


class Chance:
    """A source of random choices.

    Args:
        rng: where all randomness comes from; only its method `random` is used.
    """

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self._random() * n)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, all equally likely."""
        return items[self.below(len(items))]

    def common(self, items: Sequence[T]) -> T:
        """One of the items, the first ones more often."""
        x = self._random()
        return items[int(x * x * len(items))]

    def weighted(self, **weights: float) -> str:
        """One of the names, as often as its weight says."""
        x = self._random() * sum(weights.values())
        for name, weight in weights.items():
            x -= weight
            if x < 0:
                return name
        return next(iter(weights))

    def expression(self, choices: Sequence[tuple[str, str]]) -> Pair:
        """One of some fixed expressions."""
        return phrase(*self.pick(choices))
