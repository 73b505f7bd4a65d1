"""The fastest way to train a model on this machine: precision and threads, measured by a few real updates."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nmtkit.autotune import cache, timing
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.timing import TimeLimitError
from nmtkit.config import Recipe
from nmtkit.core import device as devices
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.batches.batch_stream import widths
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS
from nmtkit.models.base import MODELS, Model, VocabularySizes
from nmtkit.runs.batches import training_batches
from nmtkit.runs.saved import SavedRun, build_model, sizes_of
from nmtkit.training import randomness
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.gradients import Summing, UpdateGradients
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.training.losses.objective import OBJECTIVES, GradientAccumulator
from nmtkit.training.parallel import processes
from nmtkit.training.trainer import Trainer

_PIECE = 8
"""Where whole updates would take too long, a batch keeps at least one sentence of so many."""
_SHORT_UPDATE = 1.0
"""An update of at most so many seconds is made whole before the training's time is estimated: part of its cost does not
depend on its size."""
_LEAST_SECONDS = 2.0
"""What is measured in less is chance: a training too short for this is not measured."""
_SENTENCE = 25
"""Words in a sentence, and its end, roughly."""
_SAME_LOSS = 1.005
"""A less exact configuration is taken only if the loss of a batch is not higher by more than this factor."""

AUTO_KEYS = ("precision", "matmul_precision", "threads")
"""What `auto` leaves open, in the recipe's group `training`."""


@dataclass(frozen=True)
class TrainingSpeedConfig:
    """Settings that change the speed of an update; the fields are keys of the recipe's group `training`."""

    precision: Literal["fp32", "bf16"]
    matmul_precision: devices.MatmulPrecision
    threads: int

    def __str__(self) -> str:
        kind = self.precision if self.precision == "bf16" else f"fp32 {self.matmul_precision}"
        return f"{kind}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def training_workload_key(recipe: Recipe, sizes: VocabularySizes, device: torch.device) -> dict[str, Any]:
    """The key of the cached result."""
    deciding = {"accumulate", "optimizer", "ema_decay", "objectives", *OBJECTIVES} - {"label_smoothing"}
    return {
        **cache.workload_key("training", recipe.model, device),
        "processes": processes.size(),
        "vocabularies": [*sizes.values()],
        "batch": [recipe.batch.batch_tokens, recipe.batch.batch_size, *filter(None, [recipe.batch.block_tokens])],
        "limits": list(recipe.data.truncation or ()),
        "training": recipe.training.model_dump(mode="json", include={*AUTO_KEYS, *deciding}),
    }


def candidate_training_configs(
    config: TrainingConfig, device: torch.device, bf16_allowed: bool
) -> list[TrainingSpeedConfig]:
    """What the settings leave open; the preferred ones come first: exact, with all threads.

    Less exact products of float32 use bfloat16 on a CPU where its library can, and tf32 on a GPU.
    """
    threads = [devices.cpu_threads() if config.threads == "auto" else config.threads]
    if config.threads == "auto" and device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        threads += [threads[0] // 2, 1] if threads[0] >= 4 else [1]
    less_exact: dict[str, list[devices.MatmulPrecision]] = {"cpu": ["medium"], "cuda": ["high"]}
    matmuls: list[devices.MatmulPrecision] = ["highest", *less_exact.get(device.type, [])]
    if config.matmul_precision != "auto":
        matmuls = [config.matmul_precision]
    precisions: list[Literal["fp32", "bf16"]] = ["fp32"]
    if config.precision != "auto":
        precisions = [config.precision]
    elif bf16_allowed and device.type in less_exact:
        precisions.append("bf16")
    return [
        TrainingSpeedConfig(precision, matmul, count)
        for precision in precisions
        for matmul in (matmuls if precision == "fp32" else matmuls[:1])  # bf16 leaves hardly a product in float32
        for count in dict.fromkeys(threads)
    ]


class CyclingStream:
    """Some batches over and over, or a piece of each."""

    epoch = 0

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.next = 0
        self.every = 1
        """One sentence of so many is taken."""

    def __next__(self) -> Batch:
        batch = self.batches[self.next % len(self.batches)]
        self.next += 1
        return batch if self.every == 1 else batch.select(torch.arange(0, batch.size, min(self.every, batch.size)))

    def state(self) -> dict[str, int]:
        """Which batch is next."""
        return {"batch": self.next}

    def restore(self, state: Mapping[str, int]) -> None:
        """Restores the position."""
        self.next = state["batch"]


class OOMSafeGradients(UpdateGradients):
    """Gives up an update that needs more memory or time than there is; a training could go on afterwards.

    A process whose pass through the model does not fit still adds up gradients with the others.
    """

    fault: type[Exception] | None = None
    """Of an update since this was last set: OutOfMemoryError or TimeLimitError."""

    def backward(self, update: GradientAccumulator, batch: Batch, last: Summing | None = None) -> Tensor:
        """Gradients that are not finite where the pass does not fit."""
        try:
            return super().backward(update, batch, last)
        except (torch.OutOfMemoryError, TimeLimitError) as fault:
            self.fault = type(fault)
        self.clear()  # the error is gone, and with it all that the pass had allocated
        # An update whose loss is not finite is skipped.
        return torch.full((len(self.normalizers),), math.nan, device=self.device)


@dataclass(frozen=True)
class TrainingWorkload:
    """A training whose fastest settings are wanted."""

    build: Callable[[], Model]
    """Makes the model."""
    first_batches: Callable[[int], Sequence[Batch]]
    """Gives so many of the first batches."""
    config: TrainingConfig
    """What it names is not varied."""
    device: torch.device
    key: Mapping[str, Any]
    """The key of the cached result; see `training_workload_key`."""
    updates_an_epoch: float
    """Roughly."""
    part: float = 1.0
    """Of the time for measuring: the first of several presets leaves some for the others."""

    @property
    def plan_key(self) -> dict[str, Any]:
        """The key of just this training, with its limits."""
        limits = self.config.model_dump(mode="json", include={"max_updates", "max_epochs", "max_minutes"})
        return {**self.key, cache.PLAN: limits | {"updates_an_epoch": self.updates_an_epoch}}


def tune_training(workload: TrainingWorkload, again: bool = False) -> TuningResult[TrainingSpeedConfig]:
    """The fastest way to train, from the cache or else measured now.

    A fresh model is updated with the first batches of the data in every configuration that the settings leave open, in
    turns; random states are restored. All processes take part, and the first one's clock counts. The process is left
    prepared for one of the configurations: call `device.prepare` again. `again` measures in spite of the cache.

    That a training is too short to be measured is cached too, for this training alone: its time, estimated anew, might
    be found long enough, and one recipe would give two models.
    """
    begun, is_first = time.monotonic(), processes.rank() == 0
    with randomness.fork_rng(workload.device):
        model = workload.build()
        candidates = candidate_training_configs(workload.config, workload.device, model.config.bf16_allowed)
        unmeasured = TuningResult("training", candidates[0], "target tokens/s")
        if len(candidates) == 1 or workload.config.shard:  # one process alone may not hold the model
            return unmeasured
        keys = (workload.plan_key, workload.key) if is_first and not again else ()
        known = next(filter(None, (cache.get(key, TrainingSpeedConfig) for key in keys)), None)
        known = processes.broadcast_object(known)
        if known is not None:
            return known
        result = _measure(model, workload, candidates, unmeasured, again)
    devices.trim_malloc()
    if result.speeds:
        result = replace(result, seconds=time.monotonic() - begun)
    if is_first and result.speeds:
        cache.put(workload.key, result)
    if is_first and (result.rough_speed or (again and result.speeds)):
        cache.put(workload.plan_key, result)
    return result


def workload_of_run(run: SavedRun, device: torch.device, number: int = 0) -> TrainingWorkload:
    """The training of a preprocessed run; where its recipe has stages, the one of this number, from 0."""
    stage, tokenizers = run.stages()[number], run.load_tokenizers()
    first, store = stage.recipe, Store.open(stage.data, "train")

    def first_batches(count: int) -> list[Batch]:
        return list(islice(training_batches(first, store, tokenizers, first.seed), count))

    numbers = np.arange(0, len(store), max(1, len(store) // 1_000_000))  # of a large corpus not all
    tokens = int(np.maximum(*widths(store, None, numbers)).sum()) * len(store) / len(numbers)
    examples = tokens / first.batch.block_tokens if first.batch.block_tokens else len(store)
    batches = max(tokens / first.batch.batch_tokens, examples / (first.batch.batch_size or math.inf))
    return TrainingWorkload(
        build=lambda: build_model(first, tokenizers),
        first_batches=first_batches,
        config=first.training,
        device=device,
        key=training_workload_key(first, sizes_of(tokenizers), device),
        updates_an_epoch=batches / first.training.accumulate / processes.size(),
    )


def tokens_a_minute(recipe: Recipe, lengths: tuple[int, int], device: torch.device) -> float | None:
    """Padded tokens of the longer side that are trained in a minute, measured with random words; None if unknown."""
    result = tune_training(synthetic_workload(recipe, lengths, device))
    src, tgt = _truncated(next(iter(recipe.by_stage().values())), lengths)
    speed = result.speed or result.rough_speed
    return None if speed is None else 60 * speed * (max(src, tgt) + 1) / (tgt + 1)


def synthetic_workload(recipe: Recipe, lengths: tuple[int, int], device: torch.device) -> TrainingWorkload:
    """The training of a recipe without its text: a model with the largest vocabulary possible learns random words.

    `lengths` are those of a usual source and a usual target, in tokens. Of a recipe's stages the first counts.
    """
    first = next(iter(recipe.by_stage().values()))
    sizes, (src, tgt) = first.max_vocabulary_sizes, _truncated(first, lengths)
    rows = max(1, min(first.batch.batch_tokens // (max(src, tgt) + 1), first.batch.batch_size or sys.maxsize))

    def random_batches(count: int) -> list[Batch]:
        draw = np.random.default_rng(1)

        def words(length: int, size: int) -> list[Any]:
            return list(draw.integers(len(SPECIALS), size, (rows, length)))

        reads = words(src, sizes["src"]) if "src" in sizes else None
        if "labels" in sizes:
            for row in reads or [] if first.model.reads_sentences else []:
                row[_SENTENCE::_SENTENCE] = EOS
            return [collate(reads, labels=[np.zeros((1, 1), dtype=np.int64)] * rows) for _ in range(count)]
        return [collate(reads, words(tgt, sizes["tgt"])) for _ in range(count)]

    return TrainingWorkload(
        build=lambda: MODELS.get(first.model.kind)(first.model, sizes),
        first_batches=random_batches,
        config=first.training,
        device=device,
        key=training_workload_key(first, sizes, device),
        updates_an_epoch=math.inf,
        part=0.5,
    )


def _truncated(stage: Recipe, lengths: tuple[int, int]) -> tuple[int, int]:
    src, tgt = stage.data.truncation or lengths
    return min(src, lengths[0]), min(tgt, lengths[1])


def planned_seconds(config: TrainingConfig, seconds_an_update: float, updates_an_epoch: float) -> float:
    """How long the training would take at this speed; infinite if only `patience` ends it."""
    an_epoch = updates_an_epoch * seconds_an_update
    limits = [(config.max_minutes, 60.0), (config.max_updates, seconds_an_update), (config.max_epochs, an_epoch)]
    return min((most * seconds for most, seconds in limits if most), default=math.inf)


def _measure(
    model: Model,
    workload: TrainingWorkload,
    candidates: Sequence[TrainingSpeedConfig],
    unmeasured: TuningResult[TrainingSpeedConfig],
    again: bool,
) -> TuningResult[TrainingSpeedConfig]:
    """The speeds and the best configuration; only a rough speed if the training is too short.

    A configuration that runs out of memory has speed 0, and if all do there are no speeds.
    """
    # Compiling would take longer than measuring.
    settings, device = workload.config.changed({"compile": False}), workload.device
    stream = CyclingStream(workload.first_batches(timing.MAX_ROUNDS * settings.accumulate))
    trainer = Trainer(model, stream, settings, CheckpointManager(Path()), device, time.monotonic)
    trainer.gradients = gradients = OOMSafeGradients(model, trainer.objectives, trainer.gradients.parameters, device)

    def seconds_of(config: TrainingSpeedConfig, number: int, most: float) -> float:
        devices.prepare(device, config.matmul_precision, config.threads)
        gradients.in_bf16, gradients.fault = config.precision == "bf16", None
        stream.next = number * settings.accumulate
        begun = devices.read_clock(device)
        with timing.time_limit(most, model):
            trainer.make_update()
        seconds = devices.read_clock(device) - begun
        faults = [gradients.fault is kind for kind in (torch.OutOfMemoryError, TimeLimitError)]
        seconds, ran_out, gave_up = processes.max_over_ranks([seconds if processes.rank() == 0 else 0.0, *faults])
        if gave_up:
            raise TimeLimitError
        return math.inf if ran_out else seconds

    def too_short(an_update: float) -> TuningResult[TrainingSpeedConfig]:
        stream.every = 1
        return replace(unmeasured, rough_speed=_target_tokens(stream, settings.accumulate) / an_update)

    first, stream.every = candidates[0], _PIECE
    most = _budget(workload, math.inf, again)
    try:
        spent = [seconds_of(first, 0, most) for _ in range(2)]  # the first one prepares much
    except TimeLimitError:
        return too_short(_PIECE * most)
    piece = spent[-1]
    if math.isinf(sum(spent)):  # the whole will not fit in any configuration
        return unmeasured
    whole = _PIECE * piece
    if whole < _SHORT_UPDATE:
        stream.every = 1
        spent.append(seconds_of(first, 0, math.inf))
        whole = min(whole, spent[-1])
    limit = _budget(workload, whole, again) - sum(seconds for seconds in spent if seconds < math.inf)
    # Three rounds are wanted; the first configuration is none of the slowest, and those are out after the first round.
    wanted = 4 * len(candidates)
    if limit < max(_LEAST_SECONDS, wanted / 2 * piece):
        return too_short(whole)
    stream.every = max(1, min(_PIECE, round(wanted * whole / limit)))
    timings = timing.time_interleaved(candidates, seconds_of, limit)
    best, slower = timings.best, timings.slower
    if math.isinf(slower[best]):
        return unmeasured
    turns = timings.turns[best]
    speed = slower[best] * _target_tokens(stream, len(turns) * settings.accumulate) / sum(turns)
    stream.next, stream.every = 0, _PIECE  # of a piece, since all its log-probabilities are in memory at a time
    sample = next(stream)
    if best != first and _loss(model, sample, best, device) > _SAME_LOSS * _loss(model, sample, first, device):
        exact = [one for one in slower if one.precision == "fp32" and one.matmul_precision == "highest"]
        best = min((one for one in exact if slower[one] < math.inf), key=slower.__getitem__, default=best)
    best = processes.broadcast_object(best)  # each process has looked at batches of its own
    return replace(unmeasured, config=best, speeds={str(config): speed / slower[config] for config in candidates})


def _budget(workload: TrainingWorkload, an_update: float, again: bool) -> float:
    """The seconds that measuring may take, where an update takes so many."""
    planned = planned_seconds(workload.config, an_update, workload.updates_an_epoch)
    return timing.MAX_SECONDS if again else workload.part * min(timing.MAX_SECONDS, timing.MAX_SHARE * planned)


def _target_tokens(stream: CyclingStream, count: int) -> int:
    """Target tokens of the first batches, in all processes; or labels."""
    stream.next = 0
    return processes.size() * sum(next(stream).n_tokens for _ in range(count))


@torch.no_grad()
def _loss(model: Model, batch: Batch, config: TrainingSpeedConfig, device: torch.device) -> float:
    """The loss of a batch in nats per target token."""
    devices.prepare(device, config.matmul_precision, config.threads)
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        _, nll = likelihood(model(batch.to(device), keep=batch.loss_mask), batch, model.vocabulary_size)
    model.train()
    return float(nll) / max(1, batch.n_tokens)
