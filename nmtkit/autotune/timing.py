"""Interleaved timing of several configurations, so that noise of the machine falls on all of them."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

from torch import nn

AnyConfig = TypeVar("AnyConfig", bound=Hashable)

MOST_SECONDS = 30.0
"""Measuring takes no longer than this ..."""
MOST_SHARE = 0.05
"""... and no more than this share of the time that is planned for the work."""

ROUNDS = 6
"""Rounds at most; ways that are still equal after so many are equal."""

_OUT_OF_QUESTION = (1.5, 1.3, 1.15, 1.1, 1.07)
"""After the first, second, ... round a way goes on only if it is at most so many times slower than the best one."""

GIVEN_UP = 2.0
"""A turn is given up once it has taken so many times as long as the round's best one: it is out of the question."""

NEARLY = 1.03
"""Of ways that differ by no more than this the one that was named first is taken."""

DISAGREE = 1.3
"""Turns of one configuration, relative to the best one of their round, that differ by more than this are noisy."""


@dataclass(frozen=True)
class InterleavedTimings(Generic[AnyConfig]):
    """The seconds of several configurations in the same rounds, and the fastest configuration."""

    best: AnyConfig
    """The first of the ways that are nearly as quick as the quickest."""
    slower: dict[AnyConfig, float]
    """For every way how many times the quickest one's time it took, the median over its rounds; infinite where it
    failed in one of them, and `GIVEN_UP`, at least, where it was given up."""
    turns: dict[AnyConfig, list[float]]
    """The seconds of every way's turns, one a round until it was out of the question."""
    spread: float
    """How far the turns of one way differ, at most: its largest over its smallest share of a round's best time."""

    @property
    def is_noisy(self) -> bool:
        """Whether something else seems to have kept the machine busy in some of the turns."""
        return self.spread > DISAGREE


class TooSlowError(Exception):
    """A time limit has passed."""


@contextmanager
def time_limit(seconds: float, model: nn.Module) -> Iterator[None]:
    """A time limit for everything that a model computes inside, even in the middle of a step or an update.

    Every layer looks at the clock before it computes; steps that are played from a tape call none.

    Raises:
        TooSlowError: it took longer.
    """
    end = time.monotonic() + seconds

    def look(*_: object) -> None:
        if time.monotonic() > end:
            raise TooSlowError

    hooks = [layer.register_forward_pre_hook(look) for layer in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def time_interleaved(
    ways: Sequence[AnyConfig], seconds_of: Callable[[AnyConfig, int, float], float], limit: float
) -> InterleavedTimings[AnyConfig]:
    """Measures ways in rounds: in each all that are still in question do the same piece of work, one after the other.

    Where every way fails the first of them is the best, with `slower` infinite.

    Args:
        ways: the ones that one would rather take first.
        seconds_of: does the piece of work of this number, from 0, in this way, and gives the seconds that it took;
            infinitely many if it cannot be done so, which puts the way out of the question. It may raise TooSlowError
            after the seconds that it is given, by which the way cannot win: this puts it out of the question, too.
        limit: seconds; a round that would probably go over it is not begun. The first is always made.
    """
    assert ways, "there is something to measure"
    taken: dict[AnyConfig, list[float]] = {way: [] for way in ways}
    left, spent, begun, given_up = list(ways), 0.0, time.monotonic(), set[AnyConfig]()
    for number in range(ROUNDS):
        for way in left:
            # A way that was once quick enough may be held up, so that one turn does not put it out.
            least = min((taken[other][-1] for other in left if taken[other]), default=math.inf)
            most = limit if number else max(0.0, min(GIVEN_UP * least, limit - (time.monotonic() - begun)))
            try:
                seconds = seconds_of(way, number, most)
            except TooSlowError:
                seconds = math.inf
                given_up.add(way)
            taken[way].append(seconds)
            spent += seconds if seconds < math.inf else 0.0
        slower = {way: math.inf if math.inf in taken[way] else median(_shares(taken, way)) for way in ways}
        fewest = min(slower[way] for way in left)
        if number + 1 < ROUNDS:
            left = [way for way in left if slower[way] <= _OUT_OF_QUESTION[number] * fewest]
        if len(left) == 1 or fewest == math.inf or spent + sum(taken[way][-1] for way in left) > limit:
            break
    if fewest == math.inf:  # whatever was left has failed: one that was out for being slow may not have
        left, fewest = list(ways), min(slower.values())
    shares = [[share for share in _shares(taken, way) if share < math.inf] for way in ways]
    spread = max((max(some) / max(min(some), 1e-9) for some in shares if some), default=1.0)
    best = next(way for way in left if slower[way] <= NEARLY * fewest)
    compared = {way: value / fewest if value < math.inf else value for way, value in slower.items()}
    if fewest < math.inf:
        compared |= dict.fromkeys(given_up, GIVEN_UP)
    return InterleavedTimings(best, compared, taken, spread)


def _shares(taken: dict[AnyConfig, list[float]], way: AnyConfig) -> list[float]:
    """In each of its rounds, how many times the quickest way's time this one took; infinitely many where it failed."""
    return [
        seconds / max(min(times[number] for times in taken.values() if len(times) > number), 1e-9)
        if seconds < math.inf
        else seconds
        for number, seconds in enumerate(taken[way])
    ]
