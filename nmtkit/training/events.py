"""Events of a training. Their `seconds` are all that the training has taken so far, their `epoch` the complete ones."""

from dataclasses import dataclass, fields
from typing import Literal

Reason = Literal["max_updates", "max_epochs", "max_minutes", "patience", "interrupted"]
"""Why training stopped: the setting whose limit was reached, or a request from outside."""


@dataclass(frozen=True)
class Resumed:
    """Training goes on from the state that was saved after an update."""

    update: int
    epoch: int
    seconds: float


@dataclass(frozen=True)
class Step:
    """Some updates were made; sums and means are over those since the last `Step`, leaving out skipped ones."""

    update: int
    """The number of the last one, from 1."""
    epoch: int
    loss: float
    """What is minimised: the weighted means of all objectives; of the likelihood in nats per target token."""
    terms: dict[str, float]
    """Metrics of the objectives by name: `nll` in nats per target token without smoothing, `ppl`, ..."""
    tokens: int
    """Target tokens, EOS included, padding not."""
    tokens_per_second: float
    """Target tokens a second of all processes, without the time of validations and saves."""
    lr: float
    """Of the last update."""
    grad_norm: float
    """Norm of the last finite gradient of the mean loss per token, before clipping."""
    seconds: float
    skipped: int = 0
    """Updates called off because the loss or its gradient was not finite."""
    halved: int = 0
    """Updates that did not fit into the memory of a process, and that it made with smaller batches; the most of any."""

    def figures(self) -> dict[str, float]:
        """All its numbers but the update's, by the names that they have in the log."""
        numbers: dict[str, float] = {}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            numbers |= value if field.name == "terms" else {field.name: value}
        return numbers


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated after an update."""

    update: int
    metrics: dict[str, float]
    best: bool
    """Whether this is the best so far."""
    seconds: float


@dataclass(frozen=True)
class Saved:
    """The full state after an update is on the disk, or being written there while training goes on.

    The first and the last one of a training are on the disk, and each before the next one is told but one.
    """

    path: str
    update: int


@dataclass(frozen=True)
class Stopped:
    """Training is over after an update; always the last event."""

    reason: Reason
    update: int
    lr: float
    """Of the last update."""
    peak_lr: float
    """The highest of any update."""
    seconds: float
    scheduled: float | None = None
    """The part of the learning rate's schedule that is done, from 0 to 1; None where it has no end."""


Event = Resumed | Step | Evaluated | Saved | Stopped
