"""The training loop, an iterator of events. It prints nothing; the caller shows and records the events.

An update draws batches, adds up their gradients, clips them and runs an optimizer step. The loss is a mean over the
target tokens of all batches in all processes, so it does not depend on how an update is divided into batches and
processes.
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
    world_size_at_start: int | None = None,
) -> Iterator[Event]:
    """Trains the model in place until a limit of the config is reached.

    The state is saved before the first update, so that a run that is killed can always be resumed. If a run is resumed
    with the same settings, data and number of processes, training continues as if it had never stopped: bit for bit on
    a CPU, and on CUDA with `deterministic`; otherwise up to rounding. With a different number of processes, the same
    batches give the same updates, up to rounding, but random draws during training, such as dropout, differ. With an
    EMA, the model has the averaged weights only inside `evaluate`.

    Args:
        model: the model; it is moved to `device`.
        stream: the training batches of all processes.
        config: training settings.
        evaluate: scores the model in evaluation mode; it may draw random numbers. All processes call it, so that they
            can share the work; the metrics of process 0 are used.
        checkpoints: folder for checkpoints; files are written in the background.
        device: device for training.
        resume: whether to continue from `checkpoints.last` instead of starting with the model's weights.
        stop: called between updates; if it returns true, the state is saved and training stops.
        seed: seed for all random draws during training.
        optimizer_state: initial optimizer tensors from an earlier run, by their names in its checkpoint.
        clock: returns the seconds since some fixed moment.
        world_size_at_start: number of processes that determines the size of an update, which has `config.accumulate`
            batches for each of them. With `resume`, it is read from the state. Default: the current number of
            processes.

    Yields:
        `Resumed` if training is resumed; `Step` after the first update, every `log_every` updates, and before every
        validation and save; `Evaluated`, `Saved`, and finally one `Stopped`.
    """
    if resume:
        world_size_at_start = saved_world_size(checkpoints)
    elif not world_size_at_start:
        world_size_at_start = processes.size()
    per_update = config.accumulate * world_size_at_start
    require_equal_shares(config, per_update)
    with (
        randomness.deterministic(device, config.deterministic),
        ReadAhead(stream, device, per_update) as batches,
        BackgroundCheckpoints(checkpoints) as files,
    ):
        training = Trainer(
            model=model,
            stream=batches,
            config=config,
            checkpoints=files,
            device=device,
            clock=clock,
        )
        training.world_size_at_start = world_size_at_start
        if resume:
            yield training.restore(seed)
        elif checkpoints.last.exists():
            raise CheckpointError(
                f"{checkpoints.last}: contains an earlier training run; continue it with --resume, or use another "
                "folder"
            )
        else:
            randomness.seed_all(seed + processes.rank())
            if optimizer_state is not None:
                restore_state(
                    training.optimizer, training.parameters, training.local_parts(optimizer_state)
                )
        if not training.shards:
            processes.broadcast_tensors(list(get_weights(model).values()))
            if training.ema:
                processes.broadcast_tensors(list(training.ema.averages.values()))
        if not resume:
            saved = training.save()
            _settle(files)
            yield saved

        while (reason := training.reason_to_stop(stop)) is None:
            training.make_update()
            validates = training.is_validation_due
            saves = validates or training.update % config.save_every == 0
            reports = saves or training.update % config.log_every == 0 or training.update == 1
            if reports:
                yield training.report()
            if validates:
                _stop_threads(batches, files)
                yield training.validate(evaluate)
            if saves:
                yield training.save()

        end = training.stop_event(reason)
        if training.unreported:
            yield training.report()
        if reason != "interrupted" and not training.is_validated:
            _stop_threads(batches, files)
            yield training.validate(evaluate)
        last_save = None if training.is_saved else training.save()
        _settle(files)
        if last_save is not None:
            yield last_save
        yield replace(end, seconds=training.seconds)


def _stop_threads(batches: ReadAhead, files: BackgroundCheckpoints) -> None:
    """Stops all threads before a validation, which may fork; a process that forks should have no other threads."""
    batches.pause()
    files.wait()


def _settle(files: BackgroundCheckpoints) -> None:
    """Waits in all processes until the files are on disk, so that any process can resume from them."""
    files.wait()
    processes.sum_over_ranks([0])  # a barrier


def saved_world_size(checkpoints: CheckpointManager) -> int:
    """Returns the number of processes with which the saved run was started."""
    facts = checkpoints.read_metadata()
    # Earlier versions did not save this number, but they saved one random state per process.
    return int(facts.get("processes", len(facts["random"])))
