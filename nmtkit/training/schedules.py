"""Learning-rate schedules: pure functions of training progress.

To add a schedule, write a class with a `kind` and a `rate`, and add it to `Schedule`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from nmtkit.core.settings import Field, Settings, model_validator


@dataclass(frozen=True)
class TrainingProgress:
    """Training progress before an update."""

    update: int
    """Number of the next update, counted from 1."""
    epoch: int = 0
    """Number of complete epochs."""
    improvements: Sequence[bool] = ()
    """For each validation so far, oldest first, whether it was better than all earlier ones."""
    share: float = 0.0
    """Share of the run that will be complete after the next update, from 0 to 1: the larger of update / max_updates and
    time / max_minutes, assuming that the update takes the average time."""


class _WarmUp(Settings):
    warmup: int = Field(default=0, ge=0)
    """Number of updates over which the rate rises linearly from zero to its peak; not allowed with `over: budget`."""


class Constant(_WarmUp):
    """Constant rate after an optional linear warm-up."""

    kind: Literal["constant"] = "constant"

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * min(1, update / warmup)."""
        return lr * _warmup_factor(progress.update, self.warmup)


class Noam(_WarmUp):
    """Schedule of Vaswani et al. 2017, equation 3, multiplied by `lr` (1 in the paper)."""

    kind: Literal["noam"] = "noam"
    warmup: int = Field(default=4000, ge=1)
    size: int = Field(ge=1)
    """d_model in the paper: the model's hidden_size."""

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * size^-0.5 * min(update^-0.5, update * warmup^-1.5)."""
        update = float(progress.update)
        warmup = float(self.warmup)
        decay = 1 / math.sqrt(update)
        rise = update / (warmup * math.sqrt(warmup))
        return lr / math.sqrt(self.size) * min(decay, rise)


class InverseSqrt(_WarmUp):
    """Rises linearly to `lr`, then falls with the inverse square root of the update: `noam` with a peak of `lr`."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup: int = Field(default=4000, ge=1)

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * min(update / warmup, sqrt(warmup / update))."""
        rise = progress.update / self.warmup
        decay = math.sqrt(self.warmup / progress.update)
        return lr * min(rise, decay)


class DecayToZero(_WarmUp):
    """Schedule that ends with a rate of zero: at a given update, or at the end of the training budget.

    `over: budget` uses `TrainingProgress.share`, so the rate falls to zero on slow and fast machines alike.
    """

    over: Literal["updates", "budget"] = "updates"
    """Length of the schedule. updates: the setting `updates`. budget: training.max_updates or training.max_minutes (for
    a stage, its share of them), whichever is used up first. If a run is resumed with higher limits, the new budget
    applies, and a rate that had fallen rises again."""
    updates: int | None = Field(default=None, ge=1)
    """Update at which the rate reaches zero, unless the warm-up ends later; not allowed with `over: budget`."""
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the budget over which the rate rises linearly from zero to `lr`, e.g. 0.1; only with `over: budget`."""

    @model_validator(mode="after")
    def _one_measure(self) -> "DecayToZero":
        if self.over == "updates" and (self.updates is None or self.warmup_share):
            raise ValueError(
                "set `updates` (the update at which the rate reaches zero) and remove `warmup_share`, or set "
                "`over: budget`"
            )
        if self.over == "budget" and (self.updates is not None or self.warmup):
            raise ValueError(
                "with `over: budget`, remove `updates` and `warmup`, and set `warmup_share`, e.g. to 0.1"
            )
        return self

    @property
    def end(self) -> int | None:
        """Update at which the rate reaches zero, always after the warm-up; None with `over: budget`."""
        if self.updates is None:
            return None
        return max(self.updates, self.warmup + 1)

    def warmup_and_decay(self, progress: TrainingProgress) -> tuple[float, float]:
        """Returns the completed shares of the warm-up and of the decay after it, each from 0 to 1.

        With `over: updates`, they are min(1, update / warmup) and (update - warmup) / (updates - warmup). With
        `over: budget`, the same formulas apply with `share` as the update, and 1 as the number of updates.
        """
        position: float
        warmup: float
        end: float
        if self.end is None:
            position = progress.share
            warmup = self.warmup_share
            end = 1.0
        else:
            position = progress.update
            warmup = self.warmup
            end = self.end
        decay = max(0.0, position - warmup) / (end - warmup)
        return _warmup_factor(position, warmup), min(1.0, decay)


class LinearDecay(DecayToZero):
    """Rises linearly to `lr`, then falls linearly to zero."""

    kind: Literal["linear"] = "linear"

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * warmup * (1 - decay); see `DecayToZero.warmup_and_decay`."""
        warmup, decay = self.warmup_and_decay(progress)
        return lr * warmup * (1 - decay)


class CosineDecay(DecayToZero):
    """Rises linearly to `lr`, then falls to zero along half a cosine (Loshchilov and Hutter 2017, equation 5)."""

    kind: Literal["cosine"] = "cosine"

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * warmup * (1 + cos(pi * decay)) / 2; see `DecayToZero.warmup_and_decay`."""
        warmup, decay = self.warmup_and_decay(progress)
        return lr * warmup * (1 + math.cos(math.pi * decay)) / 2


class Plateau(_WarmUp):
    """Halves the rate each time the validation score stops improving, as in Denkowski and Neubig 2017.

    `plateau` in Joey NMT (Kreutzer et al. 2019) is similar.
    """

    kind: Literal["plateau"] = "plateau"
    patience: int = Field(default=1, ge=1)
    """Number of consecutive validations without a new best score after which the rate is halved; the `patience` of Joey
    NMT (Kreutzer et al. 2019) is one less."""

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * min(1, update / warmup) * 0.5^drops."""
        waited = 0
        drops = 0
        for is_better in progress.improvements:
            waited = 0 if is_better else waited + 1
            if waited == self.patience:
                waited = 0
                drops += 1
        warmup = _warmup_factor(progress.update, self.warmup)
        return lr * warmup * 0.5**drops


class LuongHalving(Settings):
    """Constant rate for some epochs, then halved at regular intervals (Luong et al. 2015, section 4.1)."""

    kind: Literal["luong_halving"] = "luong_halving"
    """Kind of schedule."""
    after: int = Field(default=5, ge=0)
    """Number of epochs (or updates) at the full rate; 5 in the paper, 8 with dropout."""
    every: int = Field(default=1, ge=1)
    """Interval between halvings. The first one takes place when `after` epochs (or updates) are complete."""
    unit: Literal["epoch", "update"] = "epoch"
    """Unit of `after` and `every`."""

    def rate(self, lr: float, progress: TrainingProgress) -> float:
        """Returns lr * 0.5^h, with h = 0 before `after`, then 1 + (complete - after) // every."""
        complete = progress.epoch if self.unit == "epoch" else progress.update - 1
        if complete < self.after:
            return lr
        halvings = 1 + (complete - self.after) // self.every
        return lr * 0.5**halvings


Schedule = Annotated[
    Constant | Noam | InverseSqrt | LinearDecay | CosineDecay | Plateau | LuongHalving,
    Field(discriminator="kind"),
]


def _warmup_factor(position: float, warmup: float) -> float:
    return min(1.0, position / warmup) if warmup else 1.0
