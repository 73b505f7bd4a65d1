"""Trains a run stage by stage; each stage starts from the best weights of the previous one."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from nmtkit.config import Recipe
from nmtkit.config.tasks.task import TASKS
from nmtkit.core import device as devices
from nmtkit.core.files import write_json
from nmtkit.core.machine import machine_facts
from nmtkit.data.batches.batch_stream import BatchStream
from nmtkit.data.batches.store import Store
from nmtkit.data.embeddings import PretrainedEmbeddingsConfig, read_vectors
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.experiment.batches import training_batches
from nmtkit.experiment.checks import embedding_size_key
from nmtkit.experiment.evaluation import Validation
from nmtkit.layers.elementary import set_rows
from nmtkit.models.base import Model
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.metrics_log import MetricsLog, code_state
from nmtkit.runs.origin import keep_public_form, load_origin_weights
from nmtkit.runs.run import Run, SavedStage, build_model
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import (
    OPTIMIZER,
    assign_matching_weights,
    read_weights,
    strip_prefix,
)
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Event, Saved, Stopped
from nmtkit.training.loop import saved_world_size, train
from nmtkit.training.optimizers import freeze
from nmtkit.training.parallel import processes
from nmtkit.training.schedules import DecayToZero


@dataclass(frozen=True)
class StageStarted:
    """A stage of the recipe starts or resumes; the following events belong to it."""

    name: str
    updates_before: int
    seconds_before: float
    training: TrainingConfig
    """Settings of the stage; limits count from its start."""


@dataclass(frozen=True)
class _EarlierStages:
    """Updates and seconds of all previous stages."""

    updates: int = 0
    seconds: float = 0.0
    seconds_by_stage: tuple[float, ...] = ()

    def plus(self, stage: SavedStage) -> "_EarlierStages":
        """Returns the totals including a finished stage."""
        facts = stage.checkpoints.read_metadata()
        update, seconds = facts["update"], facts["seconds"]
        return _EarlierStages(
            self.updates + update, self.seconds + seconds, (*self.seconds_by_stage, seconds)
        )

    def shift(self, event: Event) -> Event:
        """Returns the event with updates and seconds counted from the start of the first stage."""
        if isinstance(event, Saved):
            return replace(event, update=event.update + self.updates)
        return replace(
            event, update=event.update + self.updates, seconds=event.seconds + self.seconds
        )


def train_stages(
    run: Run,
    device: torch.device,
    notify: Notify = ignore,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Event | StageStarted]:
    """Trains a preprocessed run; logs and yields the events of `nmtkit.training.loop.train`.

    Each stage begins with a `StageStarted` and ends with a `Stopped`. Updates and seconds are
    counted from the start of the first stage. With `resume`, training continues from the last saved
    state as if it had never stopped. `stop` is called between updates; if it returns true, the
    state is saved and training stops.
    """
    return _StagedTraining(run, device, notify, resume, stop).events()


@dataclass(eq=False)
class _StagedTraining:
    """A training run with all its stages (or one unnamed stage) and the arguments of `train_stages`."""

    run: Run
    device: torch.device
    notify: Notify
    resume: bool
    stop: Callable[[], bool] | None

    def __post_init__(self) -> None:
        self.tokenizers = self.run.load_tokenizers()
        self._log: MetricsLog | None = None

    def events(self) -> Iterator[Event | StageStarted]:
        done = _EarlierStages()
        stages = self._stages(done)
        started = [number for number, stage in enumerate(stages) if stage.checkpoints.last.exists()]
        first = started[-1] if self.resume and started else 0
        for stage in stages[:first]:
            done = done.plus(stage)
        try:
            for number in range(first, len(stages)):
                stages = self._stages(done)
                stage = stages[number]
                if stage.name:
                    yield StageStarted(
                        stage.name, done.updates, done.seconds, stage.recipe.training
                    )
                for event in self._train_stage(
                    stages, number, going_on=self.resume and number == first
                ):
                    shown = done.shift(event)
                    if processes.rank() == 0:
                        self._add_to_log(shown, stage, done)
                    if isinstance(event, Saved):
                        self.run.commit()
                    yield shown
                    if isinstance(event, Stopped) and event.reason == "interrupted":
                        return
                done = done.plus(stage)
            if processes.rank() == 0:
                _write_result(self.run.folder, stages, shown, self.device)
        finally:
            if self._log is not None:
                self._log.close()

    def _stages(self, done: _EarlierStages) -> list[SavedStage]:
        return self.run.stages(done.seconds_by_stage, self.tokenizers.checksum)

    def _add_to_log(self, event: Event, stage: SavedStage, done: _EarlierStages) -> None:
        if self._log is None:
            # Nothing is removed until the state from which training resumes has been loaded.
            after = unvalidated = None
            if self.resume:
                self.run.folder.result.unlink(missing_ok=True)
                self.run.folder.inference.unlink(missing_ok=True)
                self._forget_average()
                facts = stage.checkpoints.read_metadata()
                after = done.updates + int(facts["update"])
                unvalidated = None if facts["update"] in dict(facts["validations"]) else stage.name
            self._log = MetricsLog(self.run.folder)
            self._log.begin(after, unvalidated)
        self._log.add(event, stage.name, self._validation.samples)

    def _forget_average(self) -> None:
        average = self.run.folder.average
        if average.exists():
            average.unlink()
            self.notify(
                f"{average} was removed, because training resumes; average again after training"
            )

    def _train_stage(
        self, stages: list[SavedStage], number: int, going_on: bool
    ) -> Iterator[Event]:
        if processes.rank() == 0 and not going_on:
            self._forget_average()
        stage, recipe = stages[number], stages[number].recipe
        recipes = [self.run.recipe, *(one.recipe for one in stages)]
        if len({(one.training.matmul_precision, one.training.threads) for one in recipes}) > 1:
            prepare_device(self.device, recipe)
        torch.manual_seed(recipe.seed)
        model = build_model(recipe, self.tokenizers)
        freeze(model, recipe.training.freeze)
        optimizer_state = self._initialize(model, stages, number, going_on)
        if self.run.folder.public.is_dir():
            keep_public_form(model, self.tokenizers)
        every = sum(one.numel() for one in model.parameters())
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        if trained < every:
            self.notify(f"{trained:,} of {every:,} weights are trained; the others are frozen")
        if recipe.training.shard and processes.size() == 1:
            self.notify("training.shard has no effect with a single process")
        self._validation = Validation(stage.data, recipe, self.tokenizers)
        return train(
            model=model,
            stream=self._stream(stage, recipe.seed + number, going_on),
            config=recipe.training,
            evaluate=self._validation,
            checkpoints=stage.checkpoints,
            device=self.device,
            resume=going_on,
            stop=self.stop,
            seed=recipe.seed + number,
            optimizer_state=optimizer_state,
            world_size_at_start=saved_world_size(stages[number - 1].checkpoints)
            if number
            else None,
        )

    def _initialize(
        self, model: Model, stages: list[SavedStage], number: int, going_on: bool
    ) -> dict[str, torch.Tensor] | None:
        """Initializes the model's weights; returns the initial state of the optimizer, if any."""
        stage, recipe = stages[number], stages[number].recipe
        optimizer_state = None
        if recipe.training.max_minutes == 0:
            self.notify(
                f"earlier stages have used up training.max_minutes, so stage {stage.name} is "
                "only validated"
            )
        if going_on:
            self._tell_processes(stage)
            if stage.name:
                self.notify(f"stage {stage.name} resumes ({number + 1} of {len(stages)})")
        elif number:
            optimizer_state = _load_previous_stage(model, stages, number, self.notify)
        else:
            if stage.name:
                self.notify(f"stage {stage.name} starts (1 of {len(stages)})")
            load_origin_weights(model, self.tokenizers, self.run.folder, self.notify)
            if recipe.pretrained_embeddings is not None:
                _load_embeddings(
                    model, self.tokenizers, recipe, recipe.pretrained_embeddings, self.notify
                )
        return optimizer_state

    def _tell_processes(self, stage: SavedStage) -> None:
        """Reports the composition of an update if the number of processes has changed."""
        before, now = saved_world_size(stage.checkpoints), processes.size()
        if before != now:
            batches = before * stage.recipe.training.accumulate
            share = (
                f"{batches // now}"
                if batches % now == 0
                else f"{batches // now} or {batches // now + 1}"
            )
            idle = (
                f"; some processes ({now - batches}) would be idle, so use only {batches}"
                if batches < now
                else ""
            )
            begun = (
                f"the run was started with {before} process{'es' if before > 1 else ''} and "
                f"resumes with {now}"
            )
            self.notify(
                f"{begun}; an update still has {batches} batches, {share} per process{idle}"
            )

    def _stream(self, stage: SavedStage, seed: int, going_on: bool) -> BatchStream:
        recipe = stage.recipe
        store = Store.open(stage.data, "train")
        store.require_vocabulary(self.tokenizers.checksum)
        for text in (
            *_truncation_notes(store, recipe),
            *_truncation_notes(Store.open(stage.data, "valid"), recipe),
        ):
            self.notify(text)
        stream = training_batches(recipe, store, self.tokenizers, seed)
        if (
            going_on
            and stage.checkpoints.read_metadata()["stream"].get("data", stream.identity)
            != stream.identity
        ):
            self.notify(
                "the text or its tokenization has changed since the last save, so the epoch "
                "restarts"
            )
        return stream


def prepare_device(device: torch.device, recipe: Recipe) -> None:
    """Sets the matrix precision and the number of threads for a recipe or a stage's recipe."""
    config = recipe.training
    threads = devices.cpu_threads() if config.threads == "auto" else config.threads
    devices.prepare(device, config.matmul_precision, threads)


def _write_result(
    folder: RunFolder, stages: list[SavedStage], event: Event, device: torch.device
) -> None:
    assert isinstance(event, Stopped)
    ended = {
        "reason": event.reason,
        "scheduled": event.scheduled,
        "updates": event.update,
        "seconds": event.seconds,
    }
    machine = {
        **machine_facts(torch.get_num_threads(), device),
        "processes": processes.size(),
        "code": code_state(),
    }
    result = {**ended, **_best_and_kept(stages[-1].checkpoints), "machine": machine}
    if stages[-1].name:
        result["stages"] = [
            {
                "name": one.name,
                "updates": one.checkpoints.read_metadata()["update"],
                **_best_and_kept(one.checkpoints),
            }
            for one in stages
        ]
    write_json(folder.result, result)
    Run(folder).save_inference()


def _best_and_kept(checkpoints: CheckpointManager) -> dict[str, Any]:
    best = next((path.name for path in checkpoints.best()), None)
    return {"best": best, "kept": [asdict(entry) for entry in checkpoints.entries()]}


def _truncation_notes(store: Store, recipe: Recipe) -> Iterator[str]:
    """Reports how many examples exceed the recipe's length limit on each side."""
    limits = dict(zip(("src", "tgt"), recipe.data.truncation or (), strict=False))
    for column in TASKS.get(recipe.task).columns:
        limit = limits.get(column.name)
        if limit and (longer := store.count_longer(column.name, limit)):
            of = f"{longer:,} of {len(store):,} {column.plural or column.name}"
            yield f"{store.name}: {of} are longer than {limit} tokens and are truncated to {limit}"


def _load_previous_stage(
    model: Model, stages: list[SavedStage], number: int, notify: Notify
) -> dict[str, torch.Tensor] | None:
    """Loads the previous stage's best weights; returns the state of the optimizer if both stages use the same one."""
    before, stage = stages[number - 1], stages[number]
    path = before.checkpoints.best()[0]
    new, gone = assign_matching_weights(
        model, read_weights(path, before.checkpoints.vocabulary), path
    )
    kind, other = (one.recipe.training.optimizer for one in (before, stage))
    message = (
        f"stage {stage.name} starts ({number + 1} of {len(stages)}) from the best checkpoint of "
        "stage "
    )
    message += f"{before.name} (update {int(path.stem.removeprefix('weights-'))} of that stage)"
    message += f"; newly initialized weights: {', '.join(new)}" if new else ""
    message += f"; unused weights: {', '.join(gone)}" if gone else ""
    kept = (
        f"the optimizer {kind} keeps its state"
        if kind == other
        else f"the optimizer {other} starts without the state of {kind}"
    )
    notify(f"{message}; {kept}")
    if kind != other:
        return None
    state = strip_prefix(OPTIMIZER, before.checkpoints.load_last()[0])
    own = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name.partition("/")[2] in own}


def _load_embeddings(
    model: Model,
    tokenizers: Tokenizers,
    recipe: Recipe,
    config: PretrainedEmbeddingsConfig,
    notify: Notify,
) -> None:
    for side, path in config.files().items():
        vocabulary = (tokenizers.src if side == "src" else tokenizers.tgt).vocabulary
        weight = model.embedding(side).weight
        pretrained = read_vectors(path, vocabulary, weight.shape[1], embedding_size_key(recipe))
        ids, vectors = torch.from_numpy(pretrained.ids), torch.from_numpy(pretrained.vectors)
        factor = set_rows(weight, ids, vectors)
        places = [
            name
            for name, other in model.named_parameters(remove_duplicate=False)
            if other is weight
        ]
        matched, count = len(pretrained.ids), len(vocabulary)
        notify(
            f"{path} contains {pretrained.n_file_vectors:,} vectors; {matched:,} of the {count:,} "
            f"tokens ({matched / count:.1%}) in {' and '.join(places)} are initialized with them, "
            f"scaled by {factor:.3g}; the others are initialized at random"
            + ("" if weight.requires_grad else "; all these embeddings stay frozen")
        )


def more_time_advice(run: Run, stopped: Stopped) -> str | None:
    """Suggests training longer if a limit ended a run that was still improving."""
    stage = run.stages()[-1]
    config, facts = stage.recipe.training, stage.checkpoints.read_metadata()
    scores = [score for _, score in facts["validations"]]
    if (
        stopped.reason not in ("max_updates", "max_minutes")
        or len(scores) < 2
        or scores[-1] <= max(scores[:-1])
    ):
        return None
    key, how = f"training.{stopped.reason}", "continue with --resume and a larger"
    schedule = config.schedule
    if (
        isinstance(schedule, DecayToZero)
        and schedule.end is not None
        and facts["update"] >= schedule.end
    ):
        key, how = (
            "training.schedule.updates",
            "the learning rate has reached zero, so restart with a larger",
        )
    own = any(key in dict(one.changed_keys()) for one in run.recipe.stages[-1:])
    how += f" stages.{stage.name}.{key}" if own else f" {key}"
    shown = ", ".join(f"{abs(score):.2f}" for score in scores[-4:])
    return f"the last validation was the best ({config.best_metric} {shown}), so more updates may still help: {how}"
