"""Executes a plan in a run: preprocessing, training stage by stage, validation, test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from nmtkit.config import Recipe
from nmtkit.core import device as devices
from nmtkit.core.user_module import module_to_keep
from nmtkit.data.text.checking import DataReport
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.largest_batch import find_batch_tokens
from nmtkit.experiment.plan import Plan, plan
from nmtkit.experiment.preprocessing import preprocess
from nmtkit.experiment.presets.fine_tuning import TestChange, score_after, score_before
from nmtkit.experiment.stages import StageStarted, prepare_device, train_stages
from nmtkit.experiment.tuning import tune_training
from nmtkit.experiment.workloads import AUTO_KEYS, workload_of_run
from nmtkit.inference.answering import ScoredAnswers
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.origin import record_origin
from nmtkit.runs.run import Run
from nmtkit.training import randomness
from nmtkit.training.events import Event, Stopped
from nmtkit.training.parallel import processes


@dataclass(frozen=True)
class Prepared:
    """Preprocessing has finished, and training starts or resumes."""


@dataclass(frozen=True)
class Trained:
    """Training has finished; the test set is next."""

    stopped: Stopped
    """The end of the last stage."""


@dataclass(frozen=True)
class FineTuned:
    """The test sets that were scored before fine-tuning have been scored again."""

    changes: list[TestChange]


Executed: TypeAlias = (
    Diagnosis | DataReport | Prepared | StageStarted | Event | Trained | ScoredAnswers | FineTuned
)
"""The events that `execute` yields."""


def begin(
    recipe: Recipe,
    device: torch.device,
    path: str | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    notify: Notify = ignore,
) -> tuple[Plan, Run]:
    """Plans a run and opens it for writing in process 0.

    The other processes wait for process 0, and get a plan without checks or notes and a run that they
    cannot write. With `resume`, the run in the folder is resumed; it is locked before it is read, so that
    no other process can change it in the meantime. The other arguments are as in `Run.create`. The caller
    closes the run.
    """
    folder = RunFolder.at(path, recipe.name)
    begun: list[tuple[Plan, Run]] = []

    def open_run() -> None:
        with ExitStack() as undo:
            run = None
            if resume:
                run = Run.open_to_write(folder.path, notify)
                undo.callback(run.close)
            planned = plan(recipe, device, folder, resume)
            for note in planned.notes:
                notify(note)
            if run is None:
                run = Run.create(planned.recipe, str(folder.path), overwrite, notify)
            begun.append((planned, run))
            undo.pop_all()

    processes.run_on_rank_zero(open_run)
    return begun[0] if begun else (Plan(recipe, device, resume), Run(folder))


def execute(
    plan: Plan,
    run: Run,
    *,
    notify: Notify = ignore,
    stop: Callable[[], bool] | None = None,
    workers: int | None = None,
    allow_new_data: bool = False,
    threads: int | None = None,
    test: bool = True,
) -> Iterator[Executed]:
    """Executes a plan in a run that is open for writing (see `begin`). All training processes call it.

    Process 0 preprocesses the text and tests. All processes train and yield the events of
    `train_stages`.

    Args:
        plan: from `plan` or `begin`.
        run: the run to execute it in.
        notify: receives messages.
        stop: called between updates; if it returns true, the state is saved, and `Stopped` is the last event.
        workers: number of processes that tokenize a large corpus; None means one per core.
        allow_new_data: whether a resumed run accepts changed text.
        threads: number of threads that decode the test set; None means one per core.
        test: whether to decode and score the test set.
    """
    preparing = prepare(plan, run, notify, workers, allow_new_data)
    yield from processes.events_of_rank_zero(preparing, run.folder.path.absolute())
    run.recipe = Run(run.folder).recipe  # process 0 has written it
    processes.run_on_rank_zero(partial(score_before, run, plan.device, threads, notify))
    yield Prepared()
    resolve_auto(run, plan.device, notify)
    notify(f"training {run.recipe.name} in {run.folder.path}, on {devices.describe(plan.device)}")
    stopped: Stopped | None = None
    for event in train_stages(run, plan.device, notify, plan.resume, stop):
        yield event
        if isinstance(event, Stopped):
            stopped = event
    assert stopped is not None
    if stopped.reason == "interrupted":
        return
    yield Trained(stopped)
    if test and processes.rank() == 0:
        result = evaluate_test_set(run, plan.device, notify, threads)
        if result is not None:
            yield result
        score = result.scores[0] if result is not None and result.scores else None
        changes = score_after(run, plan.device, score, threads)
        if changes:
            yield FineTuned(changes)


def prepare(
    plan: Plan,
    run: Run,
    notify: Notify = ignore,
    workers: int | None = None,
    allow_new_data: bool = False,
) -> Iterator[Diagnosis | DataReport]:
    """Records the plan in the run and preprocesses the text."""
    run.require_write()
    if plan.resume:
        run.recipe = plan.recipe
        module = module_to_keep()
        if module is not None and run.keep_module(module):
            notify(f"{module.path} differs from {run.folder.user_module} and replaces it")
    elif plan.origin is not None:
        record_origin(plan.origin, run.folder)
    yield from preprocess(run, notify, plan.resume, workers, allow_new_data)
    if plan.resume:
        for stage in run.stages():
            stage.checkpoints.verify_kept()
    run.save_recipe(run.recipe)


def resolve_auto(run: Run, device: torch.device, notify: Notify = ignore) -> None:
    """Determines the largest batch and the fastest values for `auto`, and prepares the process for them.

    Writes them into the run's recipe, so that a resumed run uses the same values.
    """
    if run.recipe.batch.is_auto:
        resolve_batch(run, device, notify)
        _keep(run, {})
    training = run.recipe.training
    left = [key for key in AUTO_KEYS if getattr(training, key) == "auto"]
    if left:
        workload, asked = workload_of_run(run, device), dict.fromkeys(left, "auto")
        # The result applies to all stages, so the first stage's own settings are replaced by `auto`.
        key = {**workload.key, "training": {**workload.key["training"], **asked}}
        result = tune_training(replace(workload, config=workload.config.changed(asked), key=key))
        if result.speeds:
            notify(str(result))
        chosen = {key: getattr(result.config, key) for key in left}
        _keep(run, {"training": training.model_copy(update=chosen)})
    prepare_device(device, run.recipe)


def resolve_batch(run: Run, device: torch.device, notify: Notify = ignore) -> None:
    """Determines the largest batch for `auto` without saving it."""
    if run.recipe.batch.is_auto:
        tokens, sentence = find_batch_tokens(run, device)
        notify(sentence)
        batch = run.recipe.batch.model_copy(update={"batch_tokens": tokens})
        run.recipe = run.recipe.model_copy(update={"batch": batch})


def _keep(run: Run, found: dict[str, Any]) -> None:
    recipe = run.recipe.model_copy(update=found)
    if processes.rank() == 0:
        run.save_recipe(recipe)
    else:
        run.recipe = recipe


def choose_device(name: str, recipe: Recipe) -> torch.device:
    """Returns the device, prepared for the recipe. Under torchrun, joins the other processes."""
    device = devices.choose(name)
    if device.type == "cuda" and any(
        one.training.deterministic for one in recipe.by_stage().values()
    ):
        randomness.require_cublas_workspace()
    device = processes.join(device)
    prepare_device(device, recipe)
    return device
