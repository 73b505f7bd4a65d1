"""Events that the training loop yields.

`seconds` is the training time so far, including earlier sessions; `epoch` is the number of complete epochs.
"""

from dataclasses import dataclass, fields
from typing import Literal

Reason = Literal["max_updates", "max_epochs", "max_minutes", "patience", "interrupted"]
"""The reason why training stopped: the setting whose limit was reached, or an interruption by the user."""


LOG_KEYS = {"oom_splits": "halved"}
"""Keys in logs of the fields of `Step` whose key differs from the field name, as in logs of earlier versions."""


@dataclass(frozen=True)
class Resumed:
    """Training continues from the state saved after an update."""

    update: int
    epoch: int
    seconds: float


@dataclass(frozen=True)
class Step:
    """Report on the updates since the last `Step`. Skipped updates are not included in the losses.

    The field names are keys in logs, so they must not change; see also `LOG_KEYS`.
    """

    update: int
    """Number of the last update, counted from 1."""
    epoch: int
    loss: float
    """The loss that is minimized: the weighted sum of the objectives' mean losses. The likelihood is in nats per target
    token."""
    terms: dict[str, float]
    """Metrics of the objectives by name, such as `nll` (in nats per target token, without smoothing) and `ppl`."""
    tokens: int
    """Number of target tokens, including EOS and excluding padding."""
    tokens_per_second: float
    """Target tokens per second, summed over all processes and excluding the time of validations and saves."""
    lr: float
    """Learning rate of the last update."""
    grad_norm: float
    """Norm of the last finite gradient of the mean loss per token, before clipping."""
    seconds: float
    skipped: int = 0
    """Number of updates that were skipped because the loss or its gradient was not finite."""
    oom_splits: int = 0
    """Number of updates that were repeated with halved batches because a process ran out of memory; the maximum over
    all processes."""

    def figures(self) -> dict[str, float]:
        """Returns all values except the update's number, by their keys in the log."""
        figures: dict[str, float] = {}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name == "terms":
                figures |= value
            else:
                key = LOG_KEYS.get(field.name, field.name)
                figures[key] = value
        return figures


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated after an update."""

    update: int
    metrics: dict[str, float]
    best: bool
    """Whether this is the best validation so far."""
    seconds: float


@dataclass(frozen=True)
class Saved:
    """The full state was saved after an update.

    States are written in the background. The first and the last are guaranteed to be on disk when the event is yielded;
    any other state is on disk by the time the second `Saved` after it is yielded.
    """

    path: str
    update: int


@dataclass(frozen=True)
class Stopped:
    """Training has ended. This is always the last event."""

    reason: Reason
    update: int
    lr: float
    """Learning rate of the last update."""
    peak_lr: float
    """Highest learning rate so far."""
    seconds: float
    scheduled: float | None = None
    """Share of the learning-rate schedule that is complete, from 0 to 1; None if the schedule has no end."""


Event = Resumed | Step | Evaluated | Saved | Stopped
