"""The state of a training, and the steps that change it."""

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
from nmtkit.layers.non_finite import where_they_begin
from nmtkit.models.base import Model
from nmtkit.training import optimizers, randomness
from nmtkit.training.checkpoints.manager import CheckpointManager, preference
from nmtkit.training.checkpoints.weights import EMA, OPTIMIZER, WEIGHTS, Ema, assign_weights, get_weights, strip_prefix
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Evaluated, Reason, Resumed, Saved, Step, Stopped
from nmtkit.training.gradients import UpdateGradients
from nmtkit.training.layers import prepare_layers
from nmtkit.training.losses.objective import LOSS, build_objectives
from nmtkit.training.parallel import processes
from nmtkit.training.parallel.agreement import require_same_weights
from nmtkit.training.read_ahead import OwnBatches
from nmtkit.training.schedules import TrainingProgress
from nmtkit.training.sharding import Shards

_TRIM_EVERY = 20
"""Updates on a CPU between two returns of freed memory, the gaps between tensors; more often costs speed."""

_COMPARE_EVERY = 1000
"""Updates between two comparisons of the weights of several processes; every save has one, too."""

_FIRST_UPDATE = 0.001
"""The part of max_minutes that the first update is taken to last, before any has shown how long they take."""

_GIVE_UP_AFTER = 10
"""Updates in a row with a loss that is not finite, which end the training."""


@dataclass(frozen=True)
class _PendingUpdate:
    """An update whose numbers may still be on the device."""

    update: int
    position: dict[str, Any]
    counts: dict[str, int]
    """The normalizers of its sums."""
    numbers: Tensor
    """The sums of all names in `Trainer.normalizers`, then the gradient's norm, and 1 if the update was called off."""


@dataclass(frozen=True)
class ValidationResult:
    """The result of a validation, by which weights are compared."""

    update: int
    score: float
    """By `training.best_metric`, turned so that higher is better."""
    loss: float
    """NaN if validation gave none."""

    @property
    def preference(self) -> tuple[float, float, int]:
        """Sort key: better results are greater."""
        return preference(self.score, self.loss, self.update)


class Trainer:
    """The state of a training, and its steps. `train` walks them; tuning measures `make_update`."""

    def __init__(
        self,
        model: Model,
        stream: OwnBatches,
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
        self.begun_with = processes.size()  # processes, of which each has `accumulate` batches in an update
        prepare_layers(model, config, device)
        optimizers.freeze(model, config.freeze)
        self.shards = Shards(model, device) if config.shard and processes.size() > 1 else None
        own = self.shards.parameters.items() if self.shards else model.named_parameters()
        self.parameters = {name: p for name, p in own if p.requires_grad}
        self._layers_above = optimizers.layers_below_top(self.parameters)
        self.optimizer = optimizers.build_optimizer(config, self.parameters)
        self.objectives = build_objectives(config)
        self.gradients = UpdateGradients(model, self.objectives, list(self.parameters.values()), device)
        self.gradients.shards = self.shards
        self.gradients.in_bf16 = config.precision == "bf16"
        self.gradients.per_sentence = config.loss_unit == "sentence"
        self.normalizers = self.gradients.normalizers
        self.ema = Ema(self.parameters, config.ema_decay) if config.ema_decay else None
        self.update = 0
        self.validations: list[ValidationResult] = []
        self.lr = self.peak_lr = 0.0
        self._grad_norm = math.nan
        self.unreported: list[_PendingUpdate] = []
        self._skipped_in_a_row = 0
        self.is_saved = False
        self._validating = 0.0  # seconds of the last validation; as `_used`, the same in all processes
        self._clock, self._started = clock, clock()
        self._seconds_before = 0.0  # of earlier sessions
        # At the end of the last update, and of the one before, which all processes know.
        self._used = self._used_before = 0.0
        self._busy = 0.0  # of updates since the last report
        model.train()

    @property
    def seconds(self) -> float:
        """Training time so far, everything included."""
        return self._seconds_before + self._clock() - self._started

    @property
    def is_validated(self) -> bool:
        """Whether the last update was validated."""
        return bool(self.validations) and self.validations[-1].update == self.update

    @property
    def is_validation_due(self) -> bool:
        """Whether to validate after this update.

        The last validation must end within the minutes. How long it takes the first one shows, after half of them.
        """
        regular, limit = self.update % self.config.validate_every == 0, self.config.max_minutes
        if limit is None:
            return regular
        if not self.validations:
            return regular or self._used_before >= 30 * limit
        return regular and self._used_before + 2 * self._validating < 60 * limit  # one more follows at the end

    def improvements(self) -> list[bool]:
        """Whether each validation was better than all before it: by its score or, at an equal score, by its loss."""
        improvements = []
        best = -math.inf, -math.inf
        for result in self.validations:
            score, minus_loss, _ = result.preference
            improvements.append((score, minus_loss) > best)
            best = max(best, (score, minus_loss))
        return improvements

    def reason_to_stop(self, stop: Callable[[], bool] | None) -> Reason | None:
        """Why no further update is to be made; None while there is none. The same in all processes."""
        config = self.config
        if config.max_updates and self.update >= config.max_updates:
            return "max_updates"
        if config.max_epochs and self.stream.epoch >= config.max_epochs:
            return "max_epochs"
        improvements = self.improvements()
        if config.patience and len(improvements) > config.patience and not any(improvements[-config.patience :]):
            return "patience"
        # Clocks differ, and so would the rates of several processes: that of process 0 counts for all.
        out_of_time, used = False, 0.0
        if processes.rank() == 0:
            used = self._used
            end = self.seconds + self._validating  # within the minutes, too
            out_of_time = config.max_minutes is not None and end >= 60 * config.max_minutes
        interrupted, timed_out, self._used = processes.max_over_ranks([stop is not None and stop(), out_of_time, used])
        if interrupted:
            return "interrupted"
        return "max_minutes" if timed_out else None

    def make_update(self) -> None:
        """Draws batches, adds up their gradients, clips, steps; its numbers stay on the device until `report`."""
        begun = self._clock()
        config = self.config
        if config.unfreeze_every:
            for name, parameter in self.parameters.items():
                parameter.requires_grad_(self.update >= config.unfreeze_every * self._layers_above[name])
        position = self.stream.state()
        epoch = self.stream.epoch
        per_process = -(-config.accumulate * self.begun_with // processes.size())
        drawn = [next(self.stream) for _ in range(per_process)]
        batches = [batch for batch in drawn if batch is not None]  # a process may have one less
        counts = self.gradients.count(batches)
        self.lr = config.schedule.rate(config.lr, self._progress(epoch))
        self.peak_lr = max(self.peak_lr, self.lr)

        self._last_batch = batches[-1] if batches else None
        try:
            sums = self.gradients.add_up(batches, counts)  # one of each of `normalizers`
        except TrainingError as fault:
            raise TrainingError(f"update {self.update + 1}: {fault}") from fault
        processes.all_reduce_sum(sums)
        norm = get_total_norm([parameter.grad for parameter in self.parameters.values() if parameter.grad is not None])
        if self.shards:
            norm = self.shards.norm(norm)
        clip_grads_with_norm_(self.parameters.values(), config.clip_norm or math.inf, norm)
        # Skipped, not stopped, so that one bad batch costs nothing but itself.
        bad = ~torch.isfinite(norm + sums.sum())
        optimizers.skippable_step(bad, self.optimizer, self.lr)
        self.optimizer.zero_grad(set_to_none=True)
        sums_by_name = dict(zip(self.normalizers, sums, strict=True))
        for objective in self.objectives:
            objective.after_update(self.model, sums_by_name, counts)
        self.update += 1
        self.is_saved = False
        if self.ema:
            self.ema.update(self.update)
        numbers = torch.cat([sums, torch.stack([norm.to(sums), bad.to(sums)])])
        self.unreported.append(_PendingUpdate(self.update, position, counts, numbers))
        if self.device.type == "cpu" and self.update % _TRIM_EVERY == 0:
            trim_malloc()
        if self.update % _COMPARE_EVERY == 0 and not self.shards:
            require_same_weights(self.parameters, self.update)
        self._used_before = self._used
        self._used = self.seconds
        self._busy += self._clock() - begun

    def _progress(self, epoch: int) -> TrainingProgress:
        """How far training has come with the next update."""
        if self.update:
            seconds_an_update = self._used / self.update
        else:
            seconds_an_update = _FIRST_UPDATE * 60 * (self.config.max_minutes or 0.0)
        seconds = self._used + seconds_an_update + self._validating
        share = self.config.share(self.update + 1, seconds) or 0.0
        return TrainingProgress(self.update + 1, epoch, self.improvements(), share)

    def report(self) -> Step:
        """Reads the numbers of the updates since the last report."""
        begun = self._clock()
        rows = torch.stack([made.numbers for made in self.unreported]).tolist()
        busy = self._busy + self._clock() - begun  # reading waits for the device
        finite_updates: list[tuple[_PendingUpdate, list[float]]] = []  # each with its sums
        for update, (*sums, norm, is_bad) in zip(self.unreported, rows, strict=True):
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
        (halved,) = processes.max_over_ranks([self.gradients.halved])
        step = Step(
            update=self.update,
            epoch=self.stream.epoch,
            loss=loss,
            terms=terms,
            tokens=tokens,
            tokens_per_second=tokens / max(busy, 1e-9),
            lr=self.lr,
            grad_norm=self._grad_norm,
            seconds=self.seconds,
            skipped=len(self.unreported) - len(finite_updates),
            halved=int(halved),
        )
        self.unreported = []
        self._busy = 0.0
        self.gradients.halved = 0
        return step

    def _mean_losses(self, updates: Sequence[tuple[_PendingUpdate, Sequence[float]]]) -> tuple[float, dict[str, float]]:
        """The mean loss of these updates, given with their sums, and the metrics of the objectives."""
        means: dict[str, float] = {}
        for number, (name, normalizer) in enumerate(self.normalizers.items()):
            total = sum(sums[number] for _, sums in updates)
            count = sum(update.counts[normalizer] for update, _ in updates)
            means[name] = total / max(1, count) if updates else math.nan
        loss = means.get(LOSS, 0.0)
        terms: dict[str, float] = {}
        for objective in self.objectives:
            if objective.loss_name != LOSS:
                loss += objective.weight * means[objective.loss_name]
            own_means = {name: means[name] for name in objective.normalizers if name != LOSS}
            terms.update(objective.metrics(own_means))
        return loss, terms

    def _not_finite(self, last: _PendingUpdate) -> str:
        place = ", ".join(f"{key} {value}" for key, value in last.position.items() if isinstance(value, int))
        cause = "another process has it"
        if self._last_batch is not None:
            batch = self._last_batch.to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.gradients.in_bf16):
                model = self.whole_model()
                cause = where_they_begin(model, lambda: model(batch, keep=batch.loss_mask))
        return (
            f"update {last.update}: the loss or its gradient is not finite, {_GIVE_UP_AFTER} updates in a row; the "
            f"last bad batch is the one at {place} of the training data; {cause}. Lower training.lr, lengthen the "
            "warmup, set training.clip_norm, or use precision fp32; then go on with --resume from the last save"
        )

    def whole_model(self) -> Model:
        """The model; where this process has a part of it, another that has all of its weights."""
        return self.shards.whole() if self.shards else self.model

    def own(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Of the optimizer's tensors, or of averages, what this process has."""
        return self.shards.own(tensors) if self.shards else tensors

    def validate(self, evaluate: Callable[[Model], dict[str, float]]) -> Evaluated:
        """Evaluates the model, with averaged weights if there are any, and keeps them if they are good."""
        averaged = self.ema.applied() if self.ema else nullcontext()
        begun = self._clock()
        if self.device.type == "cpu":
            trim_malloc()
        with averaged, randomness.fork_rng(self.device), torch.no_grad():
            model = self.whole_model().eval()
            own = evaluate(model)
            self.model.train()
            metrics, self._validating = processes.broadcast_object((own, self._clock() - begun))
            sign, value = 1 if self.config.higher_is_better else -1, metrics[self.config.best_metric]
            if math.isnan(value):
                value = -sign * math.inf
            loss = metrics.get("loss", math.nan)
            result = ValidationResult(self.update, sign * value, loss)
            best = result.score > -math.inf
            if self.validations:
                best = best and result.preference > max(earlier.preference for earlier in self.validations)
            self.validations.append(result)
            if processes.rank() == 0:
                known_loss = None if math.isnan(loss) else loss
                self.checkpoints.keep(get_weights(model), self.update, value, self.config, known_loss)
        self.is_saved = False
        return Evaluated(self.update, metrics, best, self.seconds)

    def save(self) -> Saved:
        """Saves the full state; with `BackgroundCheckpoints` it is on the disk when they have been waited for."""
        if not self.shards:
            require_same_weights(self.parameters, self.update)
        weights = self.shards.weights() if self.shards else get_weights(self.model)
        tensors = {WEIGHTS + name: tensor for name, tensor in weights.items()}
        if self.ema:
            tensors |= {EMA + name: tensor for name, tensor in self.ema.averages.items()}
        state = optimizers.read_state(self.optimizer, self.parameters)
        tensors |= {OPTIMIZER + name: tensor for name, tensor in state.items()}
        tensors = self.shards.gathered(tensors) if self.shards else tensors
        randoms = processes.all_gather_objects(randomness.get_rng_states(self.device))
        if processes.rank() == 0:
            facts = {
                "update": self.update,
                "seconds": self.seconds,
                "used": self._used,
                "validating": self._validating,
                "lr": [self.lr, self.peak_lr],
                "optimizer": self.config.optimizer,
                "optimizer_tensors": len(state),
                "best_metric": [self.config.best_metric, self.config.higher_is_better],
                "validations": [(result.update, result.score) for result in self.validations],
                "validation_losses": [result.loss for result in self.validations],
                "stream": self.stream.state(),
                "random": randoms,
                "processes": self.begun_with,
            }
            self.checkpoints.save_last(tensors, facts)
        self.is_saved = True
        return Saved(str(self.checkpoints.last), self.update)

    def stopped(self, reason: Reason) -> Stopped:
        """The last event: why and where training ends, before the last validation, for which there is time."""
        scheduled = self.config.scheduled(self.update, self.seconds + self._validating * (not self.is_validated))
        return Stopped(reason, self.update, self.lr, self.peak_lr, self.seconds, scheduled)

    def restore(self, seed: int) -> Resumed:
        """Puts back what `save` saved; `seed` is for processes that were not there then."""
        tensors, facts = self.checkpoints.load_last()
        last = self.checkpoints.last
        if facts["optimizer"] != self.config.optimizer:
            raise CheckpointError(
                f"{last}: saved with optimizer {facts['optimizer']!r}, but the recipe says {self.config.optimizer!r}; "
                "resume with the same one, or train in another folder"
            )
        with self.checkpoints.name_last_in_errors():
            load = self.shards.load if self.shards else partial(assign_weights, self.model)
            load(strip_prefix(WEIGHTS, tensors), last)
            state = self.own(strip_prefix(OPTIMIZER, tensors))
            if len(state) != facts.get("optimizer_tensors", len(state)):
                raise CheckpointError("a part of the optimizer's state is missing")
            optimizers.restore_state(self.optimizer, self.parameters, state)
            if self.ema:
                self.ema.restore(self.own(strip_prefix(EMA, tensors)))
            self.stream.restore(facts["stream"])
            self.update = facts["update"]
            if processes.rank() < len(facts["random"]):
                randomness.set_rng_states(facts["random"][processes.rank()], self.device)
            else:  # there are more processes than before
                randomness.seed_all(seed + processes.rank() + self.update)
        self.is_saved = True
        self._seconds_before = facts["seconds"]
        self._validating, self._used = facts["validating"], facts["used"]
        self.lr, self.peak_lr = facts["lr"]
        if facts["best_metric"] == [self.config.best_metric, self.config.higher_is_better]:
            scores = facts["validations"]
            losses = facts.get("validation_losses", [math.nan] * len(scores))
            self.validations = [
                ValidationResult(update, score, loss) for (update, score), loss in zip(scores, losses, strict=True)
            ]
        self._started = self._clock()  # the time that loading took is none of the training's
        return Resumed(self.update, self.stream.epoch, self.seconds)
