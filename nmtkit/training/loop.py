"""The training loop: an iterator of events. It prints nothing; whoever iterates shows and records what happens.

One update is: draw the batches, add up their gradients, clip, step. The loss is a mean over the target tokens of all
micro-batches of all processes, so how an update is cut into micro-batches and processes does not change it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.models.base import Model
from nmtkit.training import randomness
from nmtkit.training.checkpoints.background import BackgroundCheckpoints
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import get_weights
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Event
from nmtkit.training.optimizers import restore_state
from nmtkit.training.parallel import processes
from nmtkit.training.read_ahead import BatchIterator, ReadAhead
from nmtkit.training.sharding import require_equal_shares
from nmtkit.training.trainer import Trainer


def train(
    model: Model,
    stream: BatchIterator,
    config: TrainingConfig,
    evaluate: Callable[[Model], dict[str, float]],
    checkpoints: CheckpointManager,
    device: torch.device,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
    seed: int = 1,
    optimizer_state: Mapping[str, Tensor] | None = None,
    clock: Callable[[], float] = time.monotonic,
    begun_with: int | None = None,
) -> Iterator[Event]:
    """Fits the model in place until a limit of the config is reached.

    A state is saved before the first update, so that a run that is killed can always be resumed. Resumed with the same
    settings, data and number of processes, training goes on as if it had never stopped: bit for bit on a CPU, and on
    CUDA with `deterministic`, else up to rounding. With another number of processes the same batches make the same
    updates, up to rounding; but what is drawn at random while training, as for dropout, is another draw. With an EMA
    the model has averaged weights inside `evaluate` only.

    Args:
        model: is moved to `device`.
        stream: the training data of all processes.
        config: the settings.
        evaluate: scores the model in evaluation mode; it may draw random numbers of its own. All processes call it, so
            that they can share the work; the metrics of process 0 count.
        checkpoints: where to save; files are written in the background.
        device: where to train.
        resume: go on from `checkpoints.last` instead of from the model's weights.
        stop: called between updates; if it is true, the state is saved and training stops.
        seed: of all that is random while training.
        optimizer_state: tensors of an earlier training's optimizer to begin with, by their names in its checkpoint.
        clock: gives the seconds since any moment in the past.
        begun_with: the processes of which each has `config.accumulate` batches in an update; with `resume` as many as
            are in the state. Default: those that there are.

    Yields:
        `Resumed` where it is; `Step` after the first update, every `log_every` updates, and before every validation and
        save; `Evaluated`, `Saved`, and one `Stopped`.
    """
    begun_with = processes_at_begin(checkpoints) if resume else begun_with or processes.size()
    per_update = config.accumulate * begun_with
    require_equal_shares(config, per_update)
    with (
        randomness.deterministic(device, config.deterministic),
        ReadAhead(stream, device, per_update) as batches,
        BackgroundCheckpoints(checkpoints) as files,
    ):
        training = Trainer(model, batches, config, files, device, clock)
        training.begun_with = begun_with
        if resume:
            yield training.restore(seed)
        elif checkpoints.last.exists():
            raise CheckpointError(
                f"{checkpoints.last}: an earlier training is saved here; go on with --resume, or use another folder"
            )
        else:
            randomness.seed_all(seed + processes.rank())
            if optimizer_state is not None:
                restore_state(training.optimizer, training.parameters, training.own(optimizer_state))
        averages = training.ema.averages if training.ema else {}
        whole = [] if training.shards else [*get_weights(model).values(), *averages.values()]
        processes.broadcast_tensors(whole)
        if not resume:
            saved = training.save()
            _settle(files)
            yield saved

        while (reason := training.reason_to_stop(stop)) is None:
            training.make_update()
            due_validation = training.is_validation_due
            due_save = due_validation or training.update % config.save_every == 0
            if due_save or training.update % config.log_every == 0 or training.update == 1:
                yield training.report()
            if due_validation:
                _stop_threads(batches, files)
                yield training.validate(evaluate)
            if due_save:
                yield training.save()

        end = training.stopped(reason)
        if training.unreported:
            yield training.report()
        if reason != "interrupted" and not training.is_validated:
            _stop_threads(batches, files)
            yield training.validate(evaluate)
        last = [] if training.is_saved else [training.save()]
        _settle(files)
        yield from last
        yield replace(end, seconds=training.seconds)


def _stop_threads(batches: ReadAhead, files: BackgroundCheckpoints) -> None:
    """A process that forks, as a search may, should have no other thread at work."""
    batches.pause()
    files.wait()


def _settle(files: BackgroundCheckpoints) -> None:
    """No process goes on, or away to resume, before the files are there."""
    files.wait()
    processes.sum_over_ranks([0])


def processes_at_begin(checkpoints: CheckpointManager) -> int:
    """With how many processes the training began that is saved in a folder."""
    facts = checkpoints.read_metadata()
    return int(facts.get("processes", len(facts["random"])))
