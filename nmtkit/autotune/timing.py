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

MAX_SECONDS = 30.0
"""Measuring takes no longer than this ..."""
MAX_SHARE = 0.05
"""... and no more than this share of the time that is planned for the work."""
MAX_ROUNDS = 6
"""Rounds at most; configurations that are still equal after so many are equal."""
_OUT_OF_QUESTION = (1.5, 1.3, 1.15, 1.1, 1.07)
"""After the first, second, ... round a configuration goes on if it is at most so many times slower than the best."""
GIVE_UP_RATIO = 2.0
"""A turn is given up once it has taken so many times as long as the round's best one."""
TIE_RATIO = 1.03
"""Configurations that differ by no more than this factor are equal: the one named first is taken."""


@dataclass(frozen=True)
class InterleavedTimings(Generic[AnyConfig]):
    """The seconds of several configurations in the same rounds, and the fastest configuration."""

    best: AnyConfig
    """The first of those that are nearly as fast as the fastest."""
    slower: dict[AnyConfig, float]
    """How many times as long as the fastest each took, the median over its rounds; infinite if it failed in one,
    and `GIVE_UP_RATIO`, at least, where it was given up."""
    turns: dict[AnyConfig, list[float]]
    """The seconds of each one's turns, one a round until it was out of the question."""


class TimeLimitError(Exception):
    """A time limit has passed."""


@contextmanager
def time_limit(seconds: float, model: nn.Module) -> Iterator[None]:
    """Raises TimeLimitError where a model computes for longer, even in the middle of a step or an update.

    Every layer looks at the clock before it computes, and every parameter when its gradient is there; captured steps
    call none.
    """
    end = time.monotonic() + seconds

    def look(*_: object) -> None:
        if time.monotonic() > end:
            raise TimeLimitError

    hooks = [layer.register_forward_pre_hook(look) for layer in model.modules()]
    for one in model.parameters():
        if one.requires_grad:
            hooks.append(one.register_post_accumulate_grad_hook(look))  # type: ignore[no-untyped-call]  # as torch has it
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def time_interleaved(
    configs: Sequence[AnyConfig], seconds_of: Callable[[AnyConfig, int, float], float], limit: float
) -> InterleavedTimings[AnyConfig]:
    """Measures configurations in rounds: all that are still in question do the same piece of work one after the other.

    Where every one fails the first is the best, with `slower` infinite.

    Args:
        configs: the preferred ones first.
        seconds_of: does the piece of work of this number, from 0, and gives its seconds; infinitely many if it cannot
            be done. It may raise TimeLimitError after the seconds that it is given. Both end the configuration's turns.
        limit: seconds; a round that would probably go over it is not begun. The first is always made.
    """
    assert configs, "there is something to measure"
    taken: dict[AnyConfig, list[float]] = {config: [] for config in configs}
    left, spent, begun, given_up = list(configs), 0.0, time.monotonic(), set[AnyConfig]()
    for number in range(MAX_ROUNDS):
        for config in left:
            least = min((taken[other][-1] for other in left if taken[other]), default=math.inf)
            most, now = min(GIVE_UP_RATIO * least, limit), max(0.0, limit - (time.monotonic() - begun))
            if number:  # what was once fast enough may be held up, so that one turn does not put it out
                most = now = max(limit - spent, GIVE_UP_RATIO * taken[config][-1])
            try:
                seconds = seconds_of(config, number, min(most, now))
            except TimeLimitError:
                seconds = math.inf
                given_up.add(config)
                spent += most  # in all processes the same, as the clock is not
            taken[config].append(seconds)
            spent += seconds if seconds < math.inf else 0.0
        slower = {one: math.inf if math.inf in taken[one] else median(_shares(taken, one)) for one in configs}
        fewest = min(slower[config] for config in left)
        if number + 1 < MAX_ROUNDS:
            left = [config for config in left if slower[config] <= _OUT_OF_QUESTION[number] * fewest]
        if len(left) == 1 or fewest == math.inf or spent + sum(taken[config][-1] for config in left) > limit:
            break
    if fewest == math.inf:  # whatever was left has failed: one that was out for being slow may not have
        left, fewest = list(configs), min(slower.values())
    best = next(config for config in left if slower[config] <= TIE_RATIO * fewest)
    if fewest < math.inf:
        slower = {config: value / fewest for config, value in slower.items()}
        slower |= dict.fromkeys(given_up, GIVE_UP_RATIO)
    return InterleavedTimings(best, slower, taken)


def _shares(taken: dict[AnyConfig, list[float]], config: AnyConfig) -> list[float]:
    """In each of its rounds, how many times the fastest one's time a configuration took; infinity where it failed."""
    shares = []
    for number, seconds in enumerate(taken[config]):
        fastest = min(times[number] for times in taken.values() if len(times) > number)
        shares.append(seconds / max(fastest, 1e-9) if seconds < math.inf else math.inf)
    return shares
