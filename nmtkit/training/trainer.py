"""Training state, and the steps that change it: update, report, validation, save, restore.

`loop.py` contains the loop that calls these steps.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nmtkit.core.device import bound_kernel_caches, trim_malloc
from nmtkit.core.errors import CheckpointError, TrainingError
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.non_finite import locate_non_finite
from nmtkit.models.base import Model
from nmtkit.training import optimizers, randomness
from nmtkit.training.checkpoints.manager import CheckpointManager, preference
from nmtkit.training.checkpoints.weights import (
    EMA,
    OPTIMIZER,
    WEIGHTS,
    Ema,
    assign_weights,
    get_weights,
    strip_prefix,
)
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Evaluated, Reason, Resumed, Saved, Step, Stopped
from nmtkit.training.gradients import UpdateGradients
from nmtkit.training.layers import prepare_layers
from nmtkit.training.losses.objective import LOSS, build_objectives
from nmtkit.training.parallel import processes
from nmtkit.training.parallel.agreement import require_same_weights
from nmtkit.training.read_ahead import LocalBatches
from nmtkit.training.schedules import TrainingProgress
from nmtkit.training.sharding import Shards

_TRIM_EVERY = 20
"""Interval, in updates, at which a CPU run returns freed memory to the system. Doing so more often would slow training
down."""

_COMPARE_EVERY = 1000
"""Interval, in updates, at which the weights of all processes are compared. They are also compared at every save."""

_FIRST_UPDATE_SHARE = 0.001
"""Assumed duration of the first update, as a share of max_minutes."""

_GIVE_UP_AFTER = 10
"""Number of consecutive updates with a non-finite loss or gradient after which training stops."""

_SECONDS_PER_MINUTE = 60


@dataclass(frozen=True)
class _PendingUpdate:
    """An update that has not been reported yet. Its numbers may still be on the device."""

    update: int
    """Number of the update, counted from 1."""
    position: dict[str, Any]
    """Stream position of the update's first batch."""
    counts: dict[str, int]
    """Counts that normalize the sums."""
    numbers: Tensor
    """`(n+2,)`: n sums in the order of `Trainer.normalizers`, the gradient norm, and 1 if the update was skipped, else
    0."""


@dataclass(frozen=True)
class ValidationResult:
    """Result of a validation, used to compare checkpoints."""

    update: int
    score: float
    """Value of `training.best_metric`, negated if lower values are better."""
    loss: float
    """Validation loss, or NaN if none was computed."""

    @property
    def preference(self) -> tuple[float, float, int]:
        """Sort key; better results have greater keys."""
        return preference(self.score, self.loss, self.update)


class Trainer:
    """Training state and the steps that change it. `train` calls the steps in order; tuning measures `make_update`."""

    def __init__(
        self,
        model: Model,
        stream: LocalBatches,
        config: TrainingConfig,
        checkpoints: CheckpointManager,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        bound_kernel_caches()
        self.model = model.to(device)
        self.stream = stream
        self.config = config
        self.checkpoints = checkpoints
        self.device = device
        self.world_size_at_start = processes.size()
        """Number of processes when the run was started; an update has `accumulate` batches for each of them."""
        prepare_layers(model, config, device)
        optimizers.freeze(model, config.freeze)
        self.shards = Shards(model, device) if config.shard and processes.size() > 1 else None
        parameters = self.shards.parameters if self.shards else dict(model.named_parameters())
        self.parameters = {
            name: parameter for name, parameter in parameters.items() if parameter.requires_grad
        }
        self._layers_below_top = optimizers.layers_below_top(self.parameters)
        self.optimizer = optimizers.build_optimizer(config, self.parameters)
        self.objectives = build_objectives(config)
        self.gradients = UpdateGradients(
            model=model,
            objectives=self.objectives,
            parameters=list(self.parameters.values()),
            device=device,
        )
        self.gradients.shards = self.shards
        self.gradients.in_bf16 = config.precision == "bf16"
        self.gradients.per_sentence = config.loss_unit == "sentence"
        self.normalizers = self.gradients.normalizers
        self.ema = Ema(self.parameters, config.ema_decay) if config.ema_decay else None

        self.update = 0
        self.validations: list[ValidationResult] = []
        self.lr = 0.0
        self.peak_lr = 0.0
        self.unreported: list[_PendingUpdate] = []
        self.is_saved = False
        self._grad_norm = math.nan
        self._skipped_in_a_row = 0
        self._last_batch: Batch | None = None

        self._clock = clock
        self._started_at = clock()
        self._earlier_seconds = 0.0  # of earlier sessions
        self._update_seconds = 0.0  # of updates since the last report
        # Decisions that depend on time must be the same in all processes, so these are process 0's times:
        self._elapsed = 0.0  # at the end of the last update
        self._elapsed_at_previous_update = 0.0
        self._validation_seconds = 0.0  # of the last validation
        model.train()

    @property
    def seconds(self) -> float:
        """Training time so far, including validations, saves and earlier sessions."""
        return self._earlier_seconds + self._clock() - self._started_at

    @property
    def is_validated(self) -> bool:
        """Whether the last update has been validated."""
        return bool(self.validations) and self.validations[-1].update == self.update

    @property
    def is_validation_due(self) -> bool:
        """Whether to validate after this update.

        With `max_minutes`, the last validation must end in time. The first validation takes place no later than
        halfway through the time, to measure how long validations take.
        """
        is_regular = self.update % self.config.validate_every == 0
        minutes = self.config.max_minutes
        if minutes is None:
            return is_regular
        elapsed = self._elapsed_at_previous_update
        if not self.validations:
            half_of_time = minutes * _SECONDS_PER_MINUTE / 2
            return is_regular or elapsed >= half_of_time
        # There must be time for this validation and for a final one.
        end = elapsed + 2 * self._validation_seconds
        is_in_time = end < minutes * _SECONDS_PER_MINUTE
        return is_regular and is_in_time

    def improvements(self) -> list[bool]:
        """Returns whether each validation was better than all earlier ones; ties in score are broken by the loss."""
        improvements = []
        best = (-math.inf, -math.inf)
        for result in self.validations:
            score, minus_loss, _ = result.preference
            improvements.append((score, minus_loss) > best)
            best = max(best, (score, minus_loss))
        return improvements

    def reason_to_stop(self, stop: Callable[[], bool] | None) -> Reason | None:
        """Returns why training stops before the next update, or None if it continues.

        All processes must call this method together: it synchronizes the request to stop and the elapsed time, so that
        all of them make the same decision.
        """
        config = self.config
        if config.max_updates and self.update >= config.max_updates:
            return "max_updates"
        if config.max_epochs and self.stream.epoch >= config.max_epochs:
            return "max_epochs"
        improvements = self.improvements()
        if (
            config.patience
            and len(improvements) > config.patience
            and not any(improvements[-config.patience :])
        ):
            return "patience"
        is_out_of_time = False
        elapsed = 0.0
        # Clocks differ between processes, which could lead to different decisions and learning rates. Therefore only
        # the clock of process 0 counts.
        if processes.rank() == 0:
            elapsed = self._elapsed
            end = self.seconds + self._validation_seconds  # includes a final validation
            if config.max_minutes is not None:
                is_out_of_time = end >= _SECONDS_PER_MINUTE * config.max_minutes
        is_interrupted = stop is not None and stop()
        numbers = processes.max_over_ranks([is_interrupted, is_out_of_time, elapsed])
        any_interrupted, any_out_of_time, self._elapsed = numbers
        if any_interrupted:
            return "interrupted"
        if any_out_of_time:
            return "max_minutes"
        return None

    def make_update(self) -> None:
        """Runs an update: draws batches, adds up their gradients, clips them and runs an optimizer step.

        Does not wait for the device; `report` reads the losses and the gradient norm later.
        """
        begin = self._clock()
        config = self.config
        if config.unfreeze_every:
            for name, parameter in self.parameters.items():
                is_unfrozen = self.update >= config.unfreeze_every * self._layers_below_top[name]
                parameter.requires_grad_(is_unfrozen)
        position = self.stream.state()
        epoch = self.stream.epoch
        per_update = config.accumulate * self.world_size_at_start
        per_process = -(-per_update // processes.size())  # rounded up
        local_batches = [next(self.stream) for _ in range(per_process)]
        # some processes may have one batch fewer
        batches = [batch for batch in local_batches if batch is not None]
        counts = self.gradients.count(batches)
        self.lr = config.schedule.rate(config.lr, self._progress(epoch))
        self.peak_lr = max(self.peak_lr, self.lr)

        self._last_batch = batches[-1] if batches else None
        try:
            sums = self.gradients.add_up(batches, counts)  # (n,), in the order of `normalizers`
        except TrainingError as fault:
            raise TrainingError(f"update {self.update + 1}: {fault}") from fault
        processes.all_reduce_sum(sums)
        gradients = [
            parameter.grad for parameter in self.parameters.values() if parameter.grad is not None
        ]
        norm = get_total_norm(gradients)  # ()
        if self.shards:
            norm = self.shards.norm(norm)
        clip_grads_with_norm_(self.parameters.values(), config.clip_norm or math.inf, norm)
        # An update with a non-finite loss or gradient is skipped, so that a single bad batch does no harm.
        is_bad = ~torch.isfinite(norm + sums.sum())  # ()
        optimizers.skippable_step(is_bad, self.optimizer, self.lr)
        self.optimizer.zero_grad(set_to_none=True)
        sums_by_name = dict(zip(self.normalizers, sums, strict=True))
        for objective in self.objectives:
            objective.after_update(self.model, sums_by_name, counts)

        self.update += 1
        self.is_saved = False
        if self.ema:
            self.ema.update(self.update)
        norm_and_flag = torch.stack([norm.to(sums), is_bad.to(sums)])  # (2,)
        numbers = torch.cat([sums, norm_and_flag])  # (n+2,)
        pending = _PendingUpdate(
            update=self.update, position=position, counts=counts, numbers=numbers
        )
        self.unreported.append(pending)
        if self.device.type == "cpu" and self.update % _TRIM_EVERY == 0:
            trim_malloc()
        if self.update % _COMPARE_EVERY == 0 and not self.shards:
            require_same_weights(self.parameters, self.update)
        self._elapsed_at_previous_update = self._elapsed
        self._elapsed = self.seconds
        self._update_seconds += self._clock() - begin

    def _progress(self, epoch: int) -> TrainingProgress:
        """Returns the progress that determines the learning rate of the next update."""
        if self.update:
            seconds_per_update = self._elapsed / self.update
        else:
            minutes = self.config.max_minutes or 0.0
            seconds_per_update = _FIRST_UPDATE_SHARE * _SECONDS_PER_MINUTE * minutes
        seconds = self._elapsed + seconds_per_update + self._validation_seconds
        share = self.config.share(self.update + 1, seconds) or 0.0
        return TrainingProgress(
            update=self.update + 1, epoch=epoch, improvements=self.improvements(), share=share
        )

    def report(self) -> Step:
        """Reads the numbers of all updates since the last report and returns them as an event."""
        begin = self._clock()
        rows = torch.stack([pending.numbers for pending in self.unreported]).tolist()
        # reading waits for the device to finish the updates
        seconds = self._update_seconds + self._clock() - begin
        finite_updates: list[tuple[_PendingUpdate, list[float]]] = []  # each with its sums
        for update, row in zip(self.unreported, rows, strict=True):
            *sums, norm, is_bad = row
            if is_bad:
                self._skipped_in_a_row += 1
                if self._skipped_in_a_row >= _GIVE_UP_AFTER:
                    raise TrainingError(self._not_finite(update))
                continue
            self._skipped_in_a_row = 0
            self._grad_norm = norm
            finite_updates.append((update, sums))
        tokens = sum(update.counts["tokens"] for update in self.unreported)
        loss, terms = self._mean_losses(finite_updates)
        (oom_splits,) = processes.max_over_ranks([self.gradients.oom_splits])
        step = Step(
            update=self.update,
            epoch=self.stream.epoch,
            loss=loss,
            terms=terms,
            tokens=tokens,
            tokens_per_second=tokens / max(seconds, 1e-9),
            lr=self.lr,
            grad_norm=self._grad_norm,
            seconds=self.seconds,
            skipped=len(self.unreported) - len(finite_updates),
            oom_splits=int(oom_splits),
        )
        self.unreported = []
        self._update_seconds = 0.0
        self.gradients.oom_splits = 0
        return step

    def _mean_losses(
        self, updates: Sequence[tuple[_PendingUpdate, Sequence[float]]]
    ) -> tuple[float, dict[str, float]]:
        """Returns the mean loss of the updates, each given with its sums, and the metrics of the objectives."""
        means: dict[str, float] = {}
        for number, (name, normalizer) in enumerate(self.normalizers.items()):
            if not updates:
                means[name] = math.nan
                continue
            total = sum(sums[number] for _, sums in updates)
            count = sum(update.counts[normalizer] for update, _ in updates)
            means[name] = total / max(1, count)

        # The sum named LOSS already contains the weights of its objectives; the other losses do not.
        loss = means.get(LOSS, 0.0)
        terms: dict[str, float] = {}
        for objective in self.objectives:
            if objective.loss_name != LOSS:
                loss += objective.weight * means[objective.loss_name]
            objective_means = {name: means[name] for name in objective.normalizers if name != LOSS}
            terms.update(objective.metrics(objective_means))
        return loss, terms

    def _not_finite(self, update: _PendingUpdate) -> str:
        """Returns the error message for too many consecutive non-finite updates.

        The message gives the data position of `update`. The cause is located with the batch drawn last, the only one
        that is still available; it may belong to a later update.
        """
        position = ", ".join(
            f"{key} {value}" for key, value in update.position.items() if isinstance(value, int)
        )
        cause = "the batch was in another process"
        if self._last_batch is not None:
            batch = self._last_batch.to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.gradients.in_bf16):
                model = self.whole_model()
                cause = locate_non_finite(model, lambda: model(batch, keep=batch.loss_mask))
        return (
            f"update {update.update}: the loss or its gradient was not finite for {_GIVE_UP_AFTER} updates in a row; "
            f"the last bad batch is at {position} of the training data; {cause}. Lower training.lr, lengthen the "
            "warmup, set training.clip_norm, or use precision fp32; then continue from the last save with --resume"
        )

    def whole_model(self) -> Model:
        """Returns the model, or a copy with all weights if this process has only a part of it."""
        return self.shards.whole_model() if self.shards else self.model

    def local_parts(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns this process's parts of optimizer tensors or averaged weights."""
        return self.shards.local_parts(tensors) if self.shards else tensors

    def validate(self, evaluate: Callable[[Model], dict[str, float]]) -> Evaluated:
        """Evaluates the model, with averaged weights if there are any, and saves the weights if they are to be kept."""
        averaged = self.ema.applied() if self.ema else nullcontext()
        begin = self._clock()
        if self.device.type == "cpu":
            trim_malloc()
        with averaged, randomness.fork_rng(self.device), torch.no_grad():
            model = self.whole_model().eval()
            local_metrics = evaluate(model)
            self.model.train()
            # All processes use process 0's metrics and time.
            local_seconds = self._clock() - begin
            metrics, self._validation_seconds = processes.broadcast_object(
                (local_metrics, local_seconds)
            )

            sign = 1 if self.config.higher_is_better else -1
            value = metrics[self.config.best_metric]
            if math.isnan(value):
                value = -sign * math.inf  # the worst value
            loss = metrics.get("loss", math.nan)
            result = ValidationResult(update=self.update, score=sign * value, loss=loss)
            is_best = result.score > -math.inf
            if self.validations:
                best_preference = max(earlier.preference for earlier in self.validations)
                is_best = is_best and result.preference > best_preference
            self.validations.append(result)
            if processes.rank() == 0:
                self.checkpoints.keep(
                    weights=get_weights(model),
                    update=self.update,
                    value=value,
                    config=self.config,
                    loss=None if math.isnan(loss) else loss,
                )
        self.is_saved = False
        return Evaluated(update=self.update, metrics=metrics, best=is_best, seconds=self.seconds)

    def save(self) -> Saved:
        """Saves the full state. `BackgroundCheckpoints` writes it in the background; see its `wait`."""
        if not self.shards:
            require_same_weights(self.parameters, self.update)
        weights = self.shards.weights() if self.shards else get_weights(self.model)
        tensors = {WEIGHTS + name: tensor for name, tensor in weights.items()}
        if self.ema:
            tensors |= {EMA + name: tensor for name, tensor in self.ema.averages.items()}
        state = optimizers.read_state(self.optimizer, self.parameters)
        tensors |= {OPTIMIZER + name: tensor for name, tensor in state.items()}
        if self.shards:
            tensors = self.shards.gather(tensors)
        rng_states = processes.all_gather_objects(randomness.get_rng_states(self.device))
        if processes.rank() == 0:
            facts = {
                "update": self.update,
                "seconds": self.seconds,
                "used": self._elapsed,
                "validating": self._validation_seconds,
                "lr": [self.lr, self.peak_lr],
                "optimizer": self.config.optimizer,
                "optimizer_tensors": len(state),
                "best_metric": [self.config.best_metric, self.config.higher_is_better],
                "validations": [(result.update, result.score) for result in self.validations],
                "validation_losses": [result.loss for result in self.validations],
                "stream": self.stream.state(),
                "random": rng_states,
                "processes": self.world_size_at_start,
            }
            self.checkpoints.save_last(tensors, facts)
        self.is_saved = True
        return Saved(str(self.checkpoints.last), self.update)

    def stop_event(self, reason: Reason) -> Stopped:
        """Returns the last event, which describes why and where training ends.

        Must be called before the final validation, whose expected duration is included in the schedule's progress.
        """
        seconds = self.seconds
        if not self.is_validated:
            seconds += self._validation_seconds
        scheduled = self.config.scheduled(self.update, seconds)
        return Stopped(
            reason=reason,
            update=self.update,
            lr=self.lr,
            peak_lr=self.peak_lr,
            seconds=self.seconds,
            scheduled=scheduled,
        )

    def restore(self, seed: int) -> Resumed:
        """Loads the state that `save` wrote; `seed` is for processes that did not exist when it was saved."""
        tensors, facts = self.checkpoints.load_last()
        last = self.checkpoints.last
        if facts["optimizer"] != self.config.optimizer:
            raise CheckpointError(
                f"{last}: saved with optimizer {facts['optimizer']!r}, but the recipe sets {self.config.optimizer!r}; "
                "resume with the same optimizer, or train in another folder"
            )
        with self.checkpoints.name_last_in_errors():
            load = self.shards.load if self.shards else partial(assign_weights, self.model)
            load(strip_prefix(WEIGHTS, tensors), last)
            state = self.local_parts(strip_prefix(OPTIMIZER, tensors))
            if len(state) != facts.get("optimizer_tensors", len(state)):
                raise CheckpointError("a part of the optimizer's state is missing")
            optimizers.restore_state(self.optimizer, self.parameters, state)
            if self.ema:
                self.ema.restore(self.local_parts(strip_prefix(EMA, tensors)))
            self.stream.restore(facts["stream"])
            self.update = facts["update"]
            rng_states = facts["random"]
            if processes.rank() < len(rng_states):
                randomness.set_rng_states(rng_states[processes.rank()], self.device)
            else:  # more processes than before
                randomness.seed_all(seed + processes.rank() + self.update)
        self.is_saved = True
        self.lr, self.peak_lr = facts["lr"]
        self._elapsed = facts["used"]
        self._validation_seconds = facts["validating"]
        # Validations by a different metric cannot be compared with new ones.
        if facts["best_metric"] == [self.config.best_metric, self.config.higher_is_better]:
            scores = facts["validations"]
            losses = facts.get("validation_losses", [math.nan] * len(scores))
            self.validations = []
            for (update, score), loss in zip(scores, losses, strict=True):
                self.validations.append(ValidationResult(update, score, loss))
        self._earlier_seconds = facts["seconds"]
        self._started_at = self._clock()  # loading does not count as training time
        return Resumed(update=self.update, epoch=self.stream.epoch, seconds=self.seconds)
