"""The log of a training: every event that has numbers, counted through all its stages."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nmtkit.experiment import folder as folders
from nmtkit.experiment.folder import RunFolder, StageFolder
from nmtkit.training.events import Evaluated, Event, Saved, Step


@dataclass(frozen=True)
class Done:
    """What the stages before the present one have taken."""

    updates: int = 0
    """Updates made."""
    seconds: float = 0.0
    """And the time they took."""
    by_stage: tuple[float, ...] = ()
    """The same of each of them."""

    def and_then(self, stage: StageFolder) -> "Done":
        """With a stage that is over."""
        facts = stage.checkpoints.read_facts()
        seconds = facts["seconds"]
        return Done(self.updates + facts["update"], self.seconds + seconds, (*self.by_stage, seconds))

    def shift(self, event: Event) -> Event:
        """The event of the present stage, counted from the beginning of the first."""
        if isinstance(event, Saved):
            return replace(event, update=event.update + self.updates)
        return replace(event, update=event.update + self.updates, seconds=event.seconds + self.seconds)


class Log:
    """Writes events to `metrics.jsonl`, one a line, and to TensorBoard where it is installed.

    Args:
        folder: of the run.
        stage: the one that training begins with, or goes on with.
        done: what the stages before it have taken.
        resume: take back what was logged after the state that training goes on from.

    Raises:
        CheckpointError: training is to go on, and there is no state.
    """

    def __init__(self, folder: RunFolder, stage: StageFolder, done: Done, resume: bool) -> None:
        self.path = folder.metrics
        self.stage = stage.name
        """What every line is marked with; whoever trains sets it to the name of the next stage."""
        self.writer: Any = None
        purge_step = None
        if resume:
            update = done.updates + int(stage.checkpoints.read_facts()["update"])
            purge_step = update + 1
            if os.path.lexists(self.path):
                folders.cut_json_lines(self.path, after_update=update)
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder.tensorboard), purge_step=purge_step)

    def add(self, event: Event) -> None:
        """Writes a `Step` or an `Evaluated`, counted from the beginning of the first stage; nothing of others."""
        if isinstance(event, Step):
            values = event.figures()
        elif isinstance(event, Evaluated):
            values = {**{f"valid_{key}": value for key, value in event.metrics.items()}, "best": event.best}
        else:
            return
        stage = {"stage": self.stage} if self.stage else {}
        kind = type(event).__name__.lower()
        folders.append_json_line(self.path, {"update": event.update, "event": kind, **stage, **values})
        if self.writer is not None:
            room = "train" if isinstance(event, Step) else "valid"
            for key, value in values.items():
                self.writer.add_scalar(f"{room}/{key.removeprefix('valid_')}", float(value), event.update)

    def close(self) -> None:
        """Ends TensorBoard's file."""
        if self.writer is not None:
            self.writer.close()
