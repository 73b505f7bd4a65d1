"""How fast a recipe trains: real updates of its model, beside the matrix products of the same updates alone."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from nmtkit.autotune.training import (
    Repeated,
    TrainingWay,
    Trial,
    made_up_trial,
    quickest_training,
    trial_of,
)
from nmtkit.core import device as devices
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.experiment import checks
from nmtkit.experiment.bench import machine
from nmtkit.experiment.bench.products import Products
from nmtkit.experiment.run import Run
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.training.checkpoint import CheckpointManager
from nmtkit.training.trainer import Trainer

LENGTHS = (25, 25)
"""Tokens of a random source and target; where a recipe cuts its text it is as long as that allows."""


@dataclass
class TrainingResult:
    """What was measured."""

    facts: dict[str, object]
    data: str
    """What the batches are of, in words."""
    way: TrainingWay
    updates: int
    """In a round."""
    tokens: int
    """Target tokens of a round, EOS counted, padding not."""
    gflop: float
    """Of the matrix products of a round, forward and backward."""
    gigabytes: float
    """That they read and write."""
    seconds: list[float] = field(default_factory=list)
    """Of a round."""
    bare: list[float] = field(default_factory=list)
    """Of its matrix products alone."""
    peak_mib: float = 0.0
    """The most memory in an update; on a CPU that of the whole process."""
    pressure: dict[str, float | None] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> list[float]:
        """In each round."""
        return [self.tokens / seconds for seconds in self.seconds]

    @property
    def share(self) -> list[float]:
        """The floor's part of the time, in each round."""
        return [bare / seconds for bare, seconds in zip(self.bare, self.seconds, strict=True)]

    def figures(self) -> dict[str, object]:
        """All of it under plain names."""
        per_update = [1e3 * seconds / self.updates for seconds in self.seconds]
        more = {"tokens_per_second": self.tokens_per_second, "ms_per_update": per_update, "share_of_floor": self.share}
        return {**asdict(self), **more}


def a_trial(
    recipe: Recipe, run_path: str | None, device: torch.device, stack: ExitStack, notify: Notify
) -> tuple[Trial, str]:
    """A training of the recipe, and what it is of: its run's data, its text, or random words.

    Args:
        recipe: which is not changed, nor is a run of it.
        run_path: the run's folder; None is `runs/` and the recipe's name.
        device: where to train.
        stack: keeps what is needed only while the trial is.
        notify: told what is done for it.

    Raises:
        NmtkitError: a run was named, and it is not of this recipe.
    """
    folder = RunFolder.at(run_path, recipe.name)
    if folder.has_training():
        try:
            run = Run.open(str(folder.path), same_as=recipe)
            return trial_of(run, device), f"the data of {folder.path}"
        except NmtkitError as fault:
            if run_path is not None:
                raise
            notify(f"the data of {folder.path} are not taken: {fault}")
    try:
        checks.require_data(recipe)
    except DataError as fault:
        notify(str(fault))
        src, tgt = recipe.data.truncation or LENGTHS
        said = f"random words, {src} and {tgt} a line, for its text is not here"
        return made_up_trial(recipe, (src, tgt), device), said
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nmtkit-bench-"))) / recipe.name
    run = Run.create(recipe, str(scratch))
    run.preprocess(notify, ignore)
    return trial_of(run, device), "its text"


def measure_training(
    given: tuple[Trial, str], rounds: int, updates: int, notify: Callable[[str], None]
) -> TrainingResult:
    """Makes the same updates and their products alone, in turns, in the way that the recipe says or this machine likes.

    Args:
        given: see `a_trial`.
        rounds: how often each is measured; what comes before is not.
        updates: in a round.
        notify: told the way, and whether the machine is quiet.
    """
    trial, data = given
    watch = machine.Watch(notify)
    watch.look("before")
    chosen = quickest_training(trial)
    for sentence in chosen.sentences():
        notify(sentence)
    way, device, accumulate = chosen.way, trial.device, trial.config.accumulate
    devices.prepare(device, way.matmul_precision, way.threads)
    batches = trial.first_batches(updates * accumulate)
    stream = Repeated(batches)
    trainer = Trainer(trial.build(), stream, trial.config, CheckpointManager(Path()), device)
    trainer.in_bf16 = way.precision == "bf16"

    def work() -> None:
        stream.next = 0
        for _ in range(updates):
            trainer.make_update()

    products = Products()
    work()  # the first updates make room in memory
    products.record(work)
    tokens = sum(batches[number % len(batches)].n_tokens for number in range(updates * accumulate))
    facts = machine.facts(way.threads, device)
    result = TrainingResult(facts, data, way, updates, tokens, products.gflop, products.gigabytes)
    for number in range(rounds):
        watch.look(f"before round {number + 1}")
        machine.forget_peak(device)
        begun = machine.now(device)
        work()
        result.seconds.append(machine.now(device) - begun)
        result.peak_mib = max(result.peak_mib, machine.peak_mib(device))
        result.bare.append(products.seconds(device))
    result.pressure = watch.seen
    return result
