"""Measures a few seconds of updates to find the precision and the number of threads that train a model fastest.

A new model runs updates on the first batches in every configuration that the recipe allows, in turn, so that machine
noise affects all configurations alike. Updates are small enough for three rounds to fit into `MAX_SECONDS`.
Configurations that are clearly slower than the fastest drop out; the median decides among the others. The result is
cached, so identical runs on the same machine use the same settings.

A short run is not measured. It uses the first configuration, which is the most exact, and so does a run whose updates
are so slow that not even an eighth of a batch can be computed within `MAX_SECONDS`.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core import device as devices
from nmtkit.core import speed_cache
from nmtkit.core.speed_cache import TuningResult
from nmtkit.data.batches.batch import Batch
from nmtkit.experiment.workloads import CyclingStream, TrainingWorkload, is_too_short
from nmtkit.models.base import Model
from nmtkit.training import randomness
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.gradients import GradientReducer, UpdateGradients
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.training.losses.objective import GradientAccumulator
from nmtkit.training.parallel import processes
from nmtkit.training.trainer import Trainer

MAX_SECONDS = 5.0
"""Time limit of the measurement in seconds, including the comparison of losses; see `time_limit`."""
ROUNDS = 5
"""Maximum number of updates per configuration."""
WANTED_ROUNDS = 3
"""Number of rounds that must fit into the time limit."""
SMALLEST_PIECE = 8
"""Updates use at least one in this many sentences of a batch."""
CLEARLY_SLOWER = 1.3
"""A configuration slower than the fastest by this factor drops out."""
GIVE_UP = 4.0
"""An update is aborted when it takes this many times as long as the fastest ..."""
GIVE_UP_SECONDS = 0.5
"""... but not before this many seconds, because a first update also prepares its kernels."""
TIE = 1.03
"""Configurations within this factor of the fastest count as equally fast; the first one wins."""
SAME_LOSS = 1.005
"""A less exact configuration is accepted only if the loss of a batch rises by at most this factor."""


@dataclass(frozen=True)
class TrainingSpeedConfig:
    """Settings that affect the speed of an update; the field names are keys of `training` in a recipe."""

    precision: Literal["fp32", "bf16"]
    matmul_precision: devices.MatmulPrecision
    threads: int

    def __str__(self) -> str:
        kind = self.precision if self.precision == "bf16" else f"fp32 {self.matmul_precision}"
        return f"{kind}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def candidate_training_configs(
    config: TrainingConfig, device: torch.device, bf16_allowed: bool
) -> list[TrainingSpeedConfig]:
    """Returns the allowed configurations; the preferred ones (exact, all threads) come first.

    Less exact float32 matrix products use bfloat16 on CPUs that support it, and tf32 on GPUs.
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
    candidates = []
    for precision in precisions:
        # with bf16, hardly any products are in float32
        for matmul in matmuls if precision == "fp32" else matmuls[:1]:
            for count in dict.fromkeys(threads):
                candidates.append(TrainingSpeedConfig(precision, matmul, count))
    return candidates


def tune_training(
    workload: TrainingWorkload, again: bool = False, need_speed: bool = False
) -> TuningResult[TrainingSpeedConfig]:
    """Returns the fastest configuration, cached or newly measured; see the module docstring.

    Random states are restored. All processes take part, and process 0's clock counts. Call `device.prepare` again
    afterwards, because the process is left in one of the configurations.

    Args:
        workload: the run to measure.
        again: whether to measure even if a result is cached or the run is short.
        need_speed: whether to measure even if only one configuration is allowed, as in a short run.
    """
    with randomness.fork_rng(workload.device):
        model = workload.build()
        candidates = candidate_training_configs(
            workload.config, workload.device, model.config.bf16_allowed
        )
        unmeasured = TuningResult(candidates[0])
        if workload.config.shard:  # the model may not fit into one process
            return unmeasured
        is_short = is_too_short(workload)
        if is_short and not again:
            candidates = candidates[:1]
        # A short run keeps its settings even if a longer run of the same model has been measured.
        key = {**workload.key, "short": True} if is_short else workload.key
        is_first = processes.rank() == 0
        known = speed_cache.get(key, TrainingSpeedConfig) if is_first and not again else None
        known = processes.broadcast_object(known)
        if known is not None:
            return known
        if len(candidates) == 1 and not need_speed:
            return unmeasured
        result = _Trials(model, workload).measure(candidates)
    devices.trim_malloc()
    if is_first and result.speeds:
        speed_cache.put(key, result)
    return result


class TimeLimitError(Exception):
    """A time limit was exceeded."""


@contextmanager
def time_limit(seconds: float, model: nn.Module) -> Iterator[None]:
    """Raises TimeLimitError when a model exceeds the limit in seconds, even in the middle of an update.

    The clock is checked before each layer computes and when each gradient is ready, so the limit is exceeded by the
    time of one layer at most.
    """
    end = time.monotonic() + seconds

    def look(*_: object) -> None:
        if time.monotonic() > end:
            raise TimeLimitError

    hooks = [layer.register_forward_pre_hook(look) for layer in model.modules()]
    for parameter in model.parameters():
        if parameter.requires_grad:
            hooks.append(parameter.register_post_accumulate_grad_hook(look))  # type: ignore[no-untyped-call]  # torch
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class SafeGradients(UpdateGradients):
    """Aborts an update that runs out of memory or time, so that training could continue afterwards.

    A process whose pass was aborted still takes part in the reduction of gradients.
    """

    failed = False
    """Whether an update has been aborted since this flag was last reset."""

    def backward(
        self, update: GradientAccumulator, batch: Batch, reducer: GradientReducer | None = None
    ) -> Tensor:
        """Returns NaN for all sums if the pass runs out of memory or time."""
        try:
            return super().backward(update, batch, reducer)
        except (torch.OutOfMemoryError, TimeLimitError):
            self.failed = True
        self.clear()  # the error has been released, and with it all memory that the pass had allocated
        # An update whose loss is not finite is skipped.
        return torch.full((len(self.normalizers),), math.nan, device=self.device)


class _Trials:
    """Runs updates of a new model in several configurations and times them on process 0's clock."""

    def __init__(self, model: Model, workload: TrainingWorkload) -> None:
        self.model = model
        self.device = workload.device
        # compiling would take longer than measuring
        config = workload.config.changed({"compile": False})
        self.accumulate = config.accumulate
        self.stream = CyclingStream(workload.first_batches(ROUNDS * config.accumulate))
        self.trainer = Trainer(
            model, self.stream, config, CheckpointManager(Path()), self.device, time.monotonic
        )
        parameters = self.trainer.gradients.parameters
        self.gradients = SafeGradients(model, self.trainer.objectives, parameters, self.device)
        self.trainer.gradients = self.gradients
        self.spent = 0.0
        """Seconds spent so far, including aborted updates, by process 0's clock."""

    def measure(
        self, candidates: Sequence[TrainingSpeedConfig]
    ) -> TuningResult[TrainingSpeedConfig]:
        """Returns the fastest configuration and the speeds; no speeds if no configuration could be measured."""
        self.stream.every = SMALLEST_PIECE
        pieces = self._round(candidates, 0)  # also prepares kernels and memory
        if pieces and sum(pieces.values()) <= self.seconds_left(pieces):
            pieces = self._round(list(pieces), 0)
        if not pieces:
            return TuningResult(candidates[0])
        remaining = max(self.seconds_left(pieces), 1e-9)
        needed = WANTED_ROUNDS * len(pieces) * SMALLEST_PIECE * min(pieces.values())
        self.stream.every = min(SMALLEST_PIECE, max(1, math.ceil(needed / remaining)))

        left = list(pieces)
        seconds: dict[TrainingSpeedConfig, list[float]] = {config: [] for config in left}
        next_round = sum(pieces.values()) * SMALLEST_PIECE / self.stream.every
        for number in range(ROUNDS):
            if next_round > self.seconds_left(pieces):
                break
            found = self._round(left, number)
            for config in left:
                if config in found:
                    seconds[config].append(found[config])
                else:
                    del seconds[config]
            left = _still_in_question(list(found), seconds)
            next_round = sum(found[config] for config in left)
            if not left or len(left) == 1 < len(candidates):
                break
        medians = {config: median(values) for config, values in seconds.items() if values}
        if seconds and not medians:  # there was only time for parts of batches
            self.stream.every = SMALLEST_PIECE
            medians = pieces
        return self._result(candidates, medians)

    def seconds_left(self, pieces: dict[TrainingSpeedConfig, float]) -> float:
        """Returns the seconds left for updates. The rest is for the comparison of losses, if it may be necessary.

        `pieces` are the seconds of an update of a piece of a batch. To compare losses takes two forward passes of a
        piece.
        """
        is_exact = len(pieces) == 1
        reserve = 0.0 if is_exact else 2 * max(pieces.values())
        return MAX_SECONDS - self.spent - reserve

    def _round(
        self, configs: Sequence[TrainingSpeedConfig], number: int
    ) -> dict[TrainingSpeedConfig, float]:
        """Returns the seconds of an update for each configuration that succeeds in the time that is left."""
        found: dict[TrainingSpeedConfig, float] = {}
        for config in configs:
            limit = MAX_SECONDS - self.spent
            if limit <= 0:
                break
            if found:
                limit = min(limit, max(GIVE_UP * min(found.values()), GIVE_UP_SECONDS))
            seconds = self._update_seconds(config, number, limit)
            if seconds is not None:
                found[config] = seconds
        return found

    def _update_seconds(
        self, config: TrainingSpeedConfig, number: int, limit: float
    ) -> float | None:
        """Returns the seconds of the update with this number; None if a process runs out of memory or time."""
        devices.prepare(self.device, config.matmul_precision, config.threads)
        self.gradients.in_bf16 = config.precision == "bf16"
        self.gradients.failed = False
        self.stream.next = number * self.accumulate
        begun = devices.read_clock(self.device)
        with time_limit(limit, self.model):
            try:
                self.trainer.make_update()
            except TimeLimitError:  # raised after the forward and backward passes
                self.gradients.failed = True
        seconds = devices.read_clock(self.device) - begun
        of_first_process = seconds if processes.rank() == 0 else 0.0
        seconds, failed = processes.max_over_ranks([of_first_process, float(self.gradients.failed)])
        self.spent += seconds
        return None if failed else seconds

    def _result(
        self, candidates: Sequence[TrainingSpeedConfig], medians: dict[TrainingSpeedConfig, float]
    ) -> TuningResult[TrainingSpeedConfig]:
        first = candidates[0]
        if not medians:
            return TuningResult(first)
        self.stream.next = 0
        tokens = processes.size() * sum(next(self.stream).n_tokens for _ in range(self.accumulate))
        speeds = {
            str(config): tokens / medians[config] if config in medians else 0.0
            for config in candidates
        }
        fastest = min(medians.values())
        best = next(
            config for config in candidates if medians.get(config, math.inf) <= TIE * fastest
        )
        if best != first and not self._has_loss_of(first, best):
            exact = []
            for config in medians:
                if config.precision == "fp32" and config.matmul_precision == "highest":
                    exact.append(config)
            best = min(exact, key=medians.__getitem__, default=first)
        best = processes.broadcast_object(best)  # each process has used its own batches
        return TuningResult(best, speeds)

    def _has_loss_of(self, first: TrainingSpeedConfig, other: TrainingSpeedConfig) -> bool:
        """Returns whether a less exact configuration has about the same loss as the first one.

        Returns False if there is no time left to compare the losses.
        """
        # A piece of a batch, because all its log-probabilities are in memory at once.
        self.stream.next = 0
        self.stream.every = SMALLEST_PIECE
        sample = next(self.stream)
        try:
            with time_limit(MAX_SECONDS - self.spent, self.model):
                exact_loss = _loss(self.model, sample, first, self.device)
                other_loss = _loss(self.model, sample, other, self.device)
        except TimeLimitError:
            return False
        return other_loss <= SAME_LOSS * exact_loss


def _still_in_question(
    configs: Sequence[TrainingSpeedConfig], seconds: dict[TrainingSpeedConfig, list[float]]
) -> list[TrainingSpeedConfig]:
    """Returns the configurations that are not clearly slower than the fastest."""
    medians = {config: median(seconds[config]) for config in configs}
    fastest = min(medians.values(), default=math.inf)
    return [config for config in configs if medians[config] <= CLEARLY_SLOWER * fastest]


@torch.no_grad()
def _loss(model: Model, batch: Batch, config: TrainingSpeedConfig, device: torch.device) -> float:
    """Returns a batch's loss in nats per target token."""
    devices.prepare(device, config.matmul_precision, config.threads)
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        _, nll = likelihood(
            model(batch.to(device), keep=batch.loss_mask), batch, model.vocabulary_size
        )
    model.train()
    return float(nll) / max(1, batch.n_tokens)
