"""How this machine trains this model quickest: number type, exactness of products, threads; by a few real updates."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nmtkit.autotune import cache
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.timing import (
    MOST_SECONDS,
    MOST_SHARE,
    ROUNDS,
    InterleavedTimings,
    TooSlowError,
    time_interleaved,
    time_limit,
)
from nmtkit.core import device as devices
from nmtkit.data.batch import Batch, BatchStream, collate
from nmtkit.data.store import Store
from nmtkit.data.vocabulary import SPECIALS
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.recipe import Recipe
from nmtkit.runs.saved import SavedRun, build_model, sizes_of
from nmtkit.training import distributed, randomness
from nmtkit.training.checkpoint import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.objectives.likelihood import likelihood
from nmtkit.training.objectives.objective import GradientAccumulator
from nmtkit.training.trainer import Trainer

_PIECE = 8
"""Where whole updates would take too long, a batch keeps at least one sentence of so many."""
_SHORT_UPDATE = 1.0
"""An update of at most so many seconds is made whole before the training's time is estimated: part of its cost does not
depend on its size, so that a piece would say too much."""
_LEAST_SECONDS = 2.0
"""What is measured in less is chance: a training too short for this is not measured."""
_SAME_LOSS = 1.005
"""A less exact way is taken only if the loss of a batch is not higher by more than this factor."""

OPEN_KEYS = ("precision", "matmul_precision", "threads")
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
    """What a finding is kept for: all that decides how quick the ways to train are."""
    deciding = {"accumulate", "optimizer", "guided_alignment", "coverage_weight", "reinforce", "ema_decay"}
    return {
        **cache.workload_key("training", recipe.model, device),
        "processes": distributed.size(),
        "vocabularies": [sizes.src, sizes.tgt],
        "batch": [recipe.batch.batch_tokens, recipe.batch.batch_size],
        "limits": list(recipe.data.truncation or ()),
        "training": recipe.training.model_dump(mode="json", include={*OPEN_KEYS, *deciding}),
    }


def candidate_training_configs(
    config: TrainingConfig, device: torch.device, bf16_allowed: bool
) -> list[TrainingSpeedConfig]:
    """The ways that the settings leave open, the ones that one would rather take first: exact ones, with all threads.

    A CPU computes float32 exactly or, where its library can, with bfloat16 inside; a GPU also with tf32.
    """
    cpu = device.type == "cpu"
    threads = [devices.cpu_threads()]
    if config.threads != "auto":
        threads = [config.threads]
    elif cpu and "OMP_NUM_THREADS" not in os.environ:
        threads += [threads[0] // 2, 1] if threads[0] >= 4 else [1]
    less_exact: dict[str, list[devices.MatmulPrecision]] = {"cpu": ["medium"], "cuda": ["high"]}
    exactness: list[devices.MatmulPrecision] = ["highest", *less_exact.get(device.type, [])]
    both = bf16_allowed and device.type in less_exact
    kinds: list[Literal["fp32", "bf16"]] = ["fp32", "bf16"] if both else ["fp32"]
    if config.precision != "auto":
        kinds = [config.precision]
    if config.matmul_precision != "auto":
        exactness = [config.matmul_precision]
    return [
        TrainingSpeedConfig(kind, matmul, count)
        for kind in kinds
        for matmul in (exactness if kind == "fp32" else exactness[:1])  # in bf16 hardly a product is left in float32
        for count in dict.fromkeys(threads)
    ]


class CyclingStream:
    """A stream of some batches over and over; to every way it gives those of the round, or a piece of each."""

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
        """Goes there."""
        self.next = state["batch"]


class OOMSafeTrainer(Trainer):
    """Makes updates that may need more memory or time than there is: they are called off, and training could go on.

    Weights, gradients and the optimizer's state take the same memory in every way to train; it is the pass through the
    model that may not fit. A process for which it does not still adds up gradients with the others.
    """

    lacked: type[Exception] | None = None
    """Whether some update since this was last set lacked memory (OutOfMemoryError), or time (TooSlowError)."""

    def _backward(self, update: GradientAccumulator, batch: Batch) -> Tensor:
        try:
            return super()._backward(update, batch)
        except (torch.OutOfMemoryError, TooSlowError) as fault:
            self.lacked = type(fault)
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()  # the error is gone, and with it all that the pass had made
        # An update whose loss is not finite is called off.
        return torch.full((len(self.normalizers),), math.nan, device=self.device)


@dataclass(frozen=True)
class TrainingWorkload:
    """A training whose fastest settings are wanted."""

    build: Callable[[], Seq2Seq]
    """Makes the model."""
    first_batches: Callable[[int], Sequence[Batch]]
    """Gives so many of the first batches."""
    config: TrainingConfig
    """What it names is not varied."""
    device: torch.device
    work: Mapping[str, Any]
    """What the finding is kept for; see `training_workload_key`."""
    updates_an_epoch: float
    """Roughly."""

    @property
    def plan(self) -> dict[str, Any]:
        """The work together with how long it will be done: what is kept for just this training."""
        limits = self.config.model_dump(mode="json", include={"max_updates", "max_epochs", "max_minutes"})
        return {**self.work, cache.PLAN: limits | {"updates_an_epoch": self.updates_an_epoch}}


def tune_training(trial: TrainingWorkload, again: bool = False) -> TuningResult[TrainingSpeedConfig]:
    """The quickest way to train, as it was once found on this machine, else by measuring it now.

    A fresh model is updated with the first batches of the data in every way that the settings leave open, in turns;
    nothing of that is left behind, random states included. All processes take part, and the first one's clock counts.
    The process is left set up for one of the ways: call `device.prepare` again.

    Where a training is too short to be measured, that is kept too, for this training alone: its time, estimated anew,
    might be found long enough, and one recipe would give two models. With `again` it is measured all the same, and even
    where something was found before.
    """
    begun, is_first = time.monotonic(), distributed.rank() == 0
    with randomness.fork_rng(trial.device):
        model = trial.build()
        possible = candidate_training_configs(trial.config, trial.device, model.config.bf16_allowed)
        unmeasured = TuningResult("training", possible[0], "target tokens/s")
        if len(possible) == 1:
            return unmeasured
        known = None
        if not again and is_first:
            known = cache.get(trial.plan, TrainingSpeedConfig) or cache.get(trial.work, TrainingSpeedConfig)
        known = distributed.broadcast_object(known)
        if known is not None:
            return known
        measured = _measure(model, trial, possible, again)
    devices.trim_malloc()
    if isinstance(measured, float):
        unmeasured = replace(unmeasured, rough_speed=measured)
        if is_first:
            cache.put(trial.plan, unmeasured)
        return unmeasured
    way, speeds, is_noisy = measured
    if not speeds:
        return unmeasured
    result = TuningResult("training", way, "target tokens/s", speeds, time.monotonic() - begun, is_noisy)
    if is_first:
        if again:
            cache.evict_plans(trial.work)
        cache.put(trial.work, result)
    return result


def tune_training_of_run(run: SavedRun, device: torch.device, again: bool = False) -> TuningResult[TrainingSpeedConfig]:
    """How this machine trains the model of a run, which is preprocessed, quickest: see `tune_training`."""
    return tune_training(workload_of_run(run, device), again)


def workload_of_run(run: SavedRun, device: torch.device) -> TrainingWorkload:
    """The training of a run, which is preprocessed; where its recipe has stages, the first one."""
    first = next(iter(run.recipe.by_stage().values()))
    tokenizers = run.load_tokenizers()
    store = Store.open(run.folder.data, "train")

    def first_batches(count: int) -> list[Batch]:
        stream = BatchStream(
            store,
            first.batch,
            first.seed,
            tokenizers=tokenizers,
            rank=distributed.rank(),
            world=distributed.size(),
            limits=first.data.truncation,
        )
        return list(islice(stream, count))

    tokens = int(np.maximum(store.lengths("src"), store.lengths("tgt")).sum()) + len(store)
    a_pass = tokens / first.batch.batch_tokens / first.training.accumulate / distributed.size()
    return TrainingWorkload(
        build=lambda: build_model(first, tokenizers),
        first_batches=first_batches,
        config=first.training,
        device=device,
        work=training_workload_key(first, sizes_of(tokenizers), device),
        updates_an_epoch=a_pass,
    )


def tokens_a_minute(
    recipe: Recipe, lengths: tuple[int, int], device: torch.device
) -> tuple[TuningResult[TrainingSpeedConfig], float | None]:
    """What `tune_training` found, and if known how many padded tokens, of the longer side, it is in a minute.

    There is no tokenizer yet: see `synthetic_workload`.
    """
    found_here = tune_training(synthetic_workload(recipe, lengths, device))
    src, tgt = _cut(recipe, lengths)
    speed = found_here.speed or found_here.rough_speed
    return found_here, None if speed is None else 60 * speed * (max(src, tgt) + 1) / (tgt + 1)


def _cut(recipe: Recipe, lengths: tuple[int, int]) -> tuple[int, int]:
    src, tgt = next(iter(recipe.by_stage().values())).data.truncation or lengths
    return min(src, lengths[0]), min(tgt, lengths[1])


def synthetic_workload(recipe: Recipe, lengths: tuple[int, int], device: torch.device) -> TrainingWorkload:
    """The training of a recipe without its text: random words are learned, by a model as large as it may become.

    The lengths are those of a usual source and a usual target, in tokens. Of a recipe's stages the first counts.
    """
    first = next(iter(recipe.by_stage().values()))
    sizes, (src, tgt) = first.max_vocabulary_sizes, _cut(recipe, lengths)
    rows = max(1, first.batch.batch_tokens // (max(src, tgt) + 1))

    def made_up(count: int) -> list[Batch]:
        draw = np.random.default_rng(1)

        def words(length: int, size: int) -> list[Any]:
            return list(draw.integers(len(SPECIALS), size, (rows, length)))

        return [collate(words(src, sizes.src), words(tgt, sizes.tgt)) for _ in range(count)]

    return TrainingWorkload(
        build=lambda: MODELS.get(first.model.kind)(first.model, sizes),
        first_batches=made_up,
        config=first.training,
        device=device,
        work=training_workload_key(first, sizes, device),
        updates_an_epoch=float("inf"),
    )


def planned_seconds(config: TrainingConfig, seconds_an_update: float, updates_an_epoch: float) -> float:
    """How long the training would take at this speed; infinite if only `patience` ends it."""
    an_epoch = updates_an_epoch * seconds_an_update
    limits = [(config.max_minutes, 60.0), (config.max_updates, seconds_an_update), (config.max_epochs, an_epoch)]
    return min((most * seconds for most, seconds in limits if most), default=math.inf)


def _measure(
    model: Seq2Seq, trial: TrainingWorkload, possible: Sequence[TrainingSpeedConfig], again: bool
) -> tuple[TrainingSpeedConfig, dict[str, float], bool] | float:
    """The best way, the speed of each and whether the turns disagreed; where the training is too short only a speed.

    A way that runs out of memory has speed 0, and if all do there are no speeds. One that cannot win is given up.
    """
    config, device = trial.config, trial.device
    stream = CyclingStream(trial.first_batches(ROUNDS * config.accumulate))
    training = OOMSafeTrainer(model, stream, config, CheckpointManager(Path()), device, time.monotonic)

    def seconds_of(way: TrainingSpeedConfig, number: int, most: float) -> float:
        devices.prepare(device, way.matmul_precision, way.threads)
        training.in_bf16, training.lacked = way.precision == "bf16", None
        stream.next = number * config.accumulate
        _wait_for(device)
        begun = time.monotonic()
        with time_limit(most, model):
            training.make_update()
        _wait_for(device)
        taken = time.monotonic() - begun if distributed.rank() == 0 else 0.0
        lacked = [training.lacked is kind for kind in (torch.OutOfMemoryError, TooSlowError)]
        seconds, ran_out, gave_up = distributed.max_over_ranks([taken, *lacked])
        if gave_up:
            raise TooSlowError
        return math.inf if ran_out else seconds

    def share(an_update: float) -> float:
        planned = math.inf if again else planned_seconds(config, an_update, trial.updates_an_epoch)
        return min(MOST_SECONDS, MOST_SHARE * planned)

    def speed_at(whole: float) -> float:
        stream.every = 1
        return distributed.size() * _target_tokens(stream, 0, config.accumulate) / whole

    stream.every = _PIECE
    try:
        spent = [seconds_of(possible[0], 0, share(math.inf)) for _ in range(2)]  # the first one prepares much
    except TooSlowError:
        return speed_at(_PIECE * share(math.inf))
    piece = spent[-1]
    if math.isinf(sum(spent)):  # so little is in it that the whole will not fit in any way
        return possible[0], {}, False
    whole = _PIECE * piece
    if whole < _SHORT_UPDATE:
        stream.every = 1
        spent.append(seconds_of(possible[0], 0, math.inf))
        whole = min(whole, spent[-1])
    limit = share(whole) - sum(seconds for seconds in spent if seconds < math.inf)
    # Three rounds are wanted; the first way is none of the slowest, and the slow ones are out after the first.
    wanted = 4 * len(possible)
    if limit < max(_LEAST_SECONDS, wanted / 2 * piece):
        return speed_at(whole)
    stream.every = max(1, min(_PIECE, round(wanted * whole / limit)))
    turns = time_interleaved(possible, seconds_of, limit)
    if math.isinf(turns.slower[turns.best]):
        return possible[0], {}, False
    speeds = _speeds(turns, stream, config.accumulate)
    stream.next, stream.every = 0, _PIECE  # of a piece, since all its log-probabilities are in memory at a time
    best = _exact_enough(model, next(stream), turns, possible, device)
    return distributed.broadcast_object(best), speeds, turns.is_noisy  # each process has looked at batches of its own


def _speeds(turns: InterleavedTimings[TrainingSpeedConfig], stream: CyclingStream, accumulate: int) -> dict[str, float]:
    """Target tokens a second of every way, by the batches that the turns of the best one had."""
    taken = turns.turns[turns.best]
    tokens = sum(_target_tokens(stream, number, accumulate) for number in range(len(taken)))
    speed = turns.slower[turns.best] * tokens / sum(taken)
    return {str(way): distributed.size() * speed / slower for way, slower in turns.slower.items()}


def _target_tokens(stream: CyclingStream, number: int, accumulate: int) -> int:
    """How many target tokens the update of a round has."""
    stream.next = number * accumulate
    return sum(int(mask.sum()) for _ in range(accumulate) if (mask := next(stream).tgt_mask) is not None)


def _exact_enough(
    model: Seq2Seq,
    sample: Batch,
    turns: InterleavedTimings[TrainingSpeedConfig],
    possible: Sequence[TrainingSpeedConfig],
    device: torch.device,
) -> TrainingSpeedConfig:
    """The best way; where its loss of a batch is too far from the exact one, the best of the exact ways."""
    best = turns.best
    if _loss(model, sample, best, device) > _SAME_LOSS * _loss(model, sample, possible[0], device):
        exact = [way for way in possible if way.precision == "fp32" and way.matmul_precision == "highest"]
        best = min([way for way in exact if turns.slower[way] < math.inf] or [best], key=turns.slower.__getitem__)
    return best


@torch.no_grad()
def _loss(model: Seq2Seq, batch: Batch, way: TrainingSpeedConfig, device: torch.device) -> float:
    """The loss of a batch, computed in this way, in nats per target token."""
    devices.prepare(device, way.matmul_precision, way.threads)
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=way.precision == "bf16"):
        output = model(batch.to(device), keep=batch.tgt_mask)
        loss = likelihood(output, batch, model.sizes.tgt)
    model.train()
    return float(loss.nll) / loss.tokens


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
