"""Learning-rate schedules: pure functions of the progress of a training.

A schedule holds no state. To add one, write a class with a `kind` and a `rate`, and name it in `Schedule`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from nmtkit.core.settings import Field, Settings, model_validator


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training when an update is about to be made."""

    update: int
    """The number of the coming update, from 1."""
    epoch: int = 0
    """How many epochs are complete."""
    improvements: Sequence[bool] = ()
    """For each validation so far, oldest first, whether it was better than all before it."""
    share: float = 0.0
    """The part of the whole training that will be done after the coming update, from 0 to 1: the larger of
    update / max_updates and time / max_minutes, if the update takes as long as those before it did on average."""


class _WarmUp(Settings):
    warmup: int = Field(default=0, ge=0)
    """Updates over which the rate climbs linearly from zero to its highest; not with `over: budget`."""


class Constant(_WarmUp):
    """The same rate throughout, after an optional linear warm-up."""

    kind: Literal["constant"] = "constant"

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * min(1, update / warmup)."""
        return lr * _warmup_factor(progress.update, self.warmup)


class Noam(_WarmUp):
    """Vaswani et al. 2017, equation 3; `lr` is a factor on it (1 in the paper)."""

    kind: Literal["noam"] = "noam"
    warmup: int = Field(default=4000, ge=1)
    size: int = Field(ge=1)
    """d_model of the paper: the model's hidden_size."""

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * size^-0.5 * min(update^-0.5, update * warmup^-1.5)."""
        update, warmup = float(progress.update), float(self.warmup)
        return lr / math.sqrt(self.size) * min(1 / math.sqrt(update), update / (warmup * math.sqrt(warmup)))


class InverseSqrt(_WarmUp):
    """Climbs linearly to `lr`, then falls with the inverse square root of the update: `noam` with its peak at `lr`."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup: int = Field(default=4000, ge=1)

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * min(update / warmup, sqrt(warmup / update))."""
        return lr * min(progress.update / self.warmup, math.sqrt(self.warmup / progress.update))


class DecayToZero(_WarmUp):
    """A schedule that has an end, where the rate is zero: at a known update, or where the training's budget ends.

    `over: budget` goes by `TrainingProgress.share`, so that the rate comes down on a slow machine as on a fast one.
    """

    over: Literal["updates", "budget"] = "updates"
    """What it runs over: `updates`; or the budget, which is training.max_updates or training.max_minutes, of which a
    stage has its part, whichever is used up first. If a run is resumed with higher limits, the budget is the new one: a
    rate that had come down rises again."""
    updates: int | None = Field(default=None, ge=1)
    """The update at which the rate reaches zero, if the warm-up is over before; not with `over: budget`."""
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    """With `over: budget`: the part of it over which the rate climbs linearly from zero to `lr`, e.g. 0.1."""

    @model_validator(mode="after")
    def _one_measure(self) -> "DecayToZero":
        if self.over == "updates" and (self.updates is None or self.warmup_share):
            raise ValueError(
                "it needs `updates`, where the rate reaches zero, and no `warmup_share`; or `over: budget`"
            )
        if self.over == "budget" and (self.updates is not None or self.warmup):
            raise ValueError(
                "over a budget leave out `updates` (null) and `warmup` (0), and give `warmup_share`, e.g. 0.1"
            )
        return self

    @property
    def end(self) -> int | None:
        """The update at which the rate is zero: behind the warm-up in any case; None over the budget."""
        return None if self.updates is None else max(self.updates, self.warmup + 1)

    def warmup_and_decay(self, progress: TrainingProgress) -> tuple[float, float]:
        """The part of the warm-up that is done, and of the way from its end to the schedule's end; both in [0, 1].

        Over updates they are min(1, update / warmup) and (update - warmup) / (updates - warmup); over the budget the
        share stands for the update, and 1 for the updates.
        """
        if self.end is None:
            here, warmup, end = progress.share, self.warmup_share, 1.0
        else:
            here, warmup, end = progress.update, self.warmup, self.end
        return _warmup_factor(here, warmup), min(1.0, max(0.0, here - warmup) / (end - warmup))


class LinearDecay(DecayToZero):
    """Climbs linearly to `lr`, then falls linearly to zero."""

    kind: Literal["linear"] = "linear"

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * climb * (1 - done); see `DecayToZero.warmup_and_decay`."""
        climb, done = self.warmup_and_decay(progress)
        return lr * climb * (1 - done)


class CosineDecay(DecayToZero):
    """Climbs linearly to `lr`, then falls to zero along half a cosine (Loshchilov and Hutter 2017, equation 5)."""

    kind: Literal["cosine"] = "cosine"

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * climb * (1 + cos(pi * done)) / 2; see `DecayToZero.warmup_and_decay`."""
        climb, done = self.warmup_and_decay(progress)
        return lr * climb * (1 + math.cos(math.pi * done)) / 2


class Plateau(_WarmUp):
    """Halves the rate whenever the validation score has stopped improving."""

    kind: Literal["plateau"] = "plateau"
    patience: int = Field(default=1, ge=1)
    """Validations in a row without a new best score after which the rate is halved."""

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * min(1, update / warmup) * 0.5^drops."""
        waited = 0
        drops = 0
        for is_better in progress.improvements:
            waited = 0 if is_better else waited + 1
            if waited == self.patience:
                waited = 0
                drops += 1
        return lr * _warmup_factor(progress.update, self.warmup) * 0.5**drops


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

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Gives lr * 0.5^h, with h = 0 up to `after`, else 1 + (complete - after) // every."""
        complete = progress.epoch if self.unit == "epoch" else progress.update - 1
        halvings = 0 if complete < self.after else 1 + (complete - self.after) // self.every
        return lr * 0.5**halvings


Schedule = Annotated[
    Constant | Noam | InverseSqrt | LinearDecay | CosineDecay | Plateau | LuongHalving, Field(discriminator="kind")
]


def _warmup_factor(here: float, warmup: float) -> float:
    return min(1.0, here / warmup) if warmup else 1.0
