"""Learning-rate schedules: pure functions of how far training has come.

A schedule holds no state: what it depends on is in `Progress`, which the loop keeps and saves. To add one, write a
class with a `kind` and a `rate`, and name it in `Schedule`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from nmtkit.settings import Field, Settings


@dataclass(frozen=True)
class Progress:
    """How far training has come when an update is about to be made."""

    update: int
    """The number of the coming update, from 1."""
    epoch: int = 0
    """How many epochs are complete."""
    scores: Sequence[float] = ()
    """The validation scores so far, oldest first, turned so that higher is better."""


class Constant(Settings):
    """The same rate throughout, after an optional linear warm-up."""

    kind: Literal["constant"] = "constant"
    """Which schedule."""
    warmup: int = Field(default=0, ge=0)
    """Updates over which the rate climbs linearly from zero."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * min(1, update / warmup)."""
        return lr * _climb(progress.update, self.warmup)


class Noam(Settings):
    """Vaswani et al. 2017, equation 3; `lr` is a factor on it (1 in the paper)."""

    kind: Literal["noam"] = "noam"
    """Which schedule."""
    size: int = Field(ge=1)
    """d_model in the paper: the model's hidden_size."""
    warmup: int = Field(default=4000, ge=1)
    """Updates over which the rate climbs linearly from zero."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * size^-0.5 * min(update^-0.5, update * warmup^-1.5)."""
        update, warmup = float(progress.update), float(self.warmup)
        return lr / math.sqrt(self.size) * min(1 / math.sqrt(update), update / (warmup * math.sqrt(warmup)))


class InverseSqrt(Settings):
    """Climbs linearly to `lr`, then falls with the inverse square root of the update: `noam` with its peak at `lr`."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    """Which schedule."""
    warmup: int = Field(default=4000, ge=1)
    """Updates over which the rate climbs linearly from zero to `lr`."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * min(update / warmup, sqrt(warmup / update))."""
        return lr * min(progress.update / self.warmup, math.sqrt(self.warmup / progress.update))


class Linear(Settings):
    """Climbs linearly to `lr`, then falls linearly to zero at the last of a known number of updates."""

    kind: Literal["linear"] = "linear"
    """Which schedule."""
    updates: int = Field(ge=1)
    """The update at which the rate reaches zero."""
    warmup: int = Field(default=0, ge=0)
    """Updates over which the rate climbs linearly from zero to `lr`."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * min(1, update / warmup) * (1 - done), done being the part of the way from warm-up to end."""
        return lr * _climb(progress.update, self.warmup) * (1 - _done(progress.update, self.warmup, self.updates))


class Cosine(Settings):
    """Climbs linearly to `lr`, then falls to zero along half a cosine (Loshchilov and Hutter 2017, equation 5)."""

    kind: Literal["cosine"] = "cosine"
    """Which schedule."""
    updates: int = Field(ge=1)
    """The update at which the rate reaches zero."""
    warmup: int = Field(default=0, ge=0)
    """Updates over which the rate climbs linearly from zero to `lr`."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * min(1, update / warmup) * (1 + cos(pi * done)) / 2."""
        done = _done(progress.update, self.warmup, self.updates)
        return lr * _climb(progress.update, self.warmup) * (1 + math.cos(math.pi * done)) / 2


class Plateau(Settings):
    """Lowers the rate whenever the validation score has stopped improving."""

    kind: Literal["plateau"] = "plateau"
    """Which schedule."""
    factor: float = Field(default=0.5, gt=0, lt=1)
    """What the rate is multiplied with at each drop."""
    patience: int = Field(default=1, ge=1)
    """Validations in a row without a new best score that make a drop."""
    warmup: int = Field(default=0, ge=0)
    """Updates over which the rate climbs linearly from zero to `lr`."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * min(1, update / warmup) * factor^drops."""
        best, waited, drops = -math.inf, 0, 0
        for score in progress.scores:
            waited = 0 if score > best else waited + 1
            best = max(best, score)
            if waited == self.patience:
                waited, drops = 0, drops + 1
        return lr * _climb(progress.update, self.warmup) * self.factor**drops


class LuongHalving(Settings):
    """Luong et al. 2015, section 4.1: the rate stays for some epochs, then is halved at regular distances."""

    kind: Literal["luong_halving"] = "luong_halving"
    """Which schedule."""
    after: int = Field(default=5, ge=0)
    """How many epochs (or updates) keep the full rate; in the paper 5, with dropout 8."""
    every: int = Field(default=1, ge=1)
    """Distance between two halvings; the first comes right after `after`."""
    unit: Literal["epoch", "update"] = "epoch"
    """What `after` and `every` count."""

    def rate(self, lr: float, progress: Progress) -> float:
        """Gives lr * 0.5^h, with h = 0 up to `after`, else 1 + (complete - after) // every."""
        complete = progress.epoch if self.unit == "epoch" else progress.update - 1
        halvings = 0 if complete < self.after else 1 + (complete - self.after) // self.every
        return lr * 0.5**halvings


Schedule = Annotated[
    Constant | Noam | InverseSqrt | Linear | Cosine | Plateau | LuongHalving, Field(discriminator="kind")
]


def _climb(update: int, warmup: int) -> float:
    return min(1.0, update / warmup) if warmup else 1.0


def _done(update: int, warmup: int, updates: int) -> float:
    """The part of the way from the end of the warm-up to the end, in [0, 1]."""
    return min(1.0, max(0, update - warmup) / max(1, updates - warmup))
