"""The training loop: an iterator of events. It prints nothing; whoever iterates shows and records what happens.

One update is: draw the batches, add up their gradients, clip, step. The loss is a mean over the target tokens of all
micro-batches of all processes, so how an update is cut into micro-batches and processes does not change it.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils import clip_grad_norm_

from nmtkit.data.batch import Batch
from nmtkit.device import give_back_freed_memory
from nmtkit.errors import CheckpointError, TrainingError
from nmtkit.models.base import Seq2Seq
from nmtkit.registry import near_names
from nmtkit.settings import MOST_THREADS, Field, field_validator, model_validator
from nmtkit.training import checkpoint, distributed, randomness
from nmtkit.training.checkpoint import Checkpoints
from nmtkit.training.ema import Ema
from nmtkit.training.losses import Guide, GuidedAlignment, add_gradients, linked_positions
from nmtkit.training.optimizers import (
    OptimizerSettings,
    build_optimizer,
    most_steps,
    read_state,
    restore_state,
    set_rate,
    step_unless,
)
from nmtkit.training.reinforce import Reinforce, add_reinforced_gradients
from nmtkit.training.schedules import Constant, Ending, Progress, Schedule

Reason = Literal["max_updates", "max_epochs", "max_minutes", "patience", "interrupted"]
"""Why training stopped: the setting whose limit was reached, or a request from outside."""


class TrainingConfig(OptimizerSettings):
    """How a model is fitted."""

    schedule: Schedule = Constant()
    """How the learning rate changes: `kind` and its own settings."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each target's probability that is spread over the vocabulary."""
    guided_alignment: GuidedAlignment | None = None
    """Teach the attention where to look; without it attention is left to itself."""
    coverage_weight: float = Field(default=0.0, ge=0)
    """Weight of the coverage loss, a mean per target token, which makes it costly to look again at what was looked at
    before (lambda of See et al. 2017, equation 13; 1 in the paper, in a short stage at the end). 0 is none."""
    reinforce: Reinforce | None = None
    """Self-critical training: reward summaries that the model draws itself, beside the likelihood of the references;
    for a stage at the end."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient of the mean loss per token; longer ones are scaled down to it."""
    accumulate: int = Field(default=1, ge=1, le=10_000)
    """Batches per update and process."""
    max_updates: int | None = Field(default=None, ge=1)
    """Stop after this many updates."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Stop after this many passes over the data."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Stop after this much training time, validations and earlier sessions of a resumed run included. Of a recipe with
    stages it is the whole training's: a stage that sets its own has that; the others share equally what is left, and
    have what earlier ones did not use as well."""
    validate_every: int = Field(default=1000, ge=1)
    """Updates between two validations; one more follows at the end. One that would use up what is left of max_minutes
    is left out: the schedule would not come to its end."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations in a row without a new best."""
    best_metric: str = "bleu"
    """The validation metric that decides which weights are best."""
    higher_is_better: bool = True
    """Its direction: true for BLEU, false for a loss."""
    keep_best: int = Field(default=1, ge=1)
    """How many of the best weights files stay."""
    keep_recent: int = Field(default=0, ge=0)
    """How many of the newest weights files stay as well, for averaging."""
    save_every: int = Field(default=1000, ge=1)
    """Updates between two saves of the full state; it is saved at every validation and at the end as well."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Keep an exponential moving average of the weights with this decay, and evaluate and save that."""
    precision: Literal["fp32", "bf16", "auto"] = "auto"
    """bf16: matrix products in bfloat16 (autocast), the weights stay in fp32. auto, here and below: what a few updates
    of this model show to be quickest on this machine, found once and kept (see `nmtkit tune`); bf16 only where the
    model allows it. In a training too short to measure, auto is fp32, highest and one thread a core."""
    matmul_precision: Literal["highest", "high", "medium", "auto"] = "auto"
    """How exact fp32 matrix products are: highest, or less exact and faster where the device can."""
    threads: Literal["auto"] | int = "auto"
    """CPU threads."""
    deterministic: bool = False
    """On CUDA: the same sums in the same order every time, so that the same training gives the same weights, and a
    resumed one goes on bit for bit; slower. On a CPU it is so anyway."""
    log_every: int = Field(default=50, ge=1)
    """Updates between two `Step` events; on a GPU the numbers are read only then."""

    @field_validator("threads", mode="before")
    @classmethod
    def _threads(cls, threads: object) -> object:
        if threads != "auto" and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
            raise ValueError(f"auto, or a number from 1 to {MOST_THREADS:,}")
        return threads

    @model_validator(mode="after")
    def _ends(self) -> "TrainingConfig":
        if not (self.max_updates or self.max_epochs or self.max_minutes or self.patience):
            raise ValueError("training would never end: set max_updates, max_epochs, max_minutes or patience")
        return self

    @model_validator(mode="after")
    def _budget(self) -> "TrainingConfig":
        over_budget = isinstance(self.schedule, Ending) and self.schedule.over == "budget"
        if over_budget and not (self.max_updates or self.max_minutes):
            raise ValueError("schedule: `over: budget` needs a budget to run over: set max_updates or max_minutes")
        return self

    @model_validator(mode="after")
    def _one_teacher(self) -> "TrainingConfig":
        if self.reinforce is not None and self.guided_alignment is not None:
            raise ValueError("reinforce: not together with guided_alignment; give each a stage of its own")
        return self

    def share(self, updates: int, seconds: float, epochs: int = 0) -> float | None:
        """The part of the training that is done, from 0 to 1, by the limit that is nearest.

        Args:
            updates: made so far.
            seconds: of training so far.
            epochs: complete so far.

        Returns:
            None where none of max_updates, max_minutes and max_epochs is set.
        """
        shares = []
        if self.max_updates:
            shares.append(updates / self.max_updates)
        if self.max_minutes:
            shares.append(seconds / (60 * self.max_minutes))
        if self.max_epochs:
            shares.append(epochs / self.max_epochs)
        return min(max(shares), 1.0) if shares else None


class Stream(Protocol):
    """An endless source of batches that can be put back to where it was.

    Of several processes each has its own stream, which gives it its own share of the batches of one common sequence.
    """

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete."""

    def __next__(self) -> Batch:
        """The next batch, with targets, on the CPU."""

    def state(self) -> dict[str, Any]:
        """Where the stream is, `epoch` and `batch` among it; the same in all processes."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` was taken: the batches that follow are the same, if they are cut as then."""


@dataclass(frozen=True)
class Step:
    """Some updates were made; sums and means are over those since the last `Step`, leaving out skipped ones."""

    update: int
    """The number of the last one, from 1."""
    epoch: int
    """How many epochs are complete."""
    loss: float
    """What is minimised, in nats per target token; the weighted losses of the attention, if any, are in it."""
    nll: float
    """Negative log-likelihood in nats per target token, without smoothing."""
    ppl: float
    """exp(nll)."""
    tokens: int
    """Target tokens, EOS included, padding not."""
    tokens_per_second: float
    """Of all processes; without the time of validations and saves."""
    lr: float
    """Learning rate of the last update."""
    grad_norm: float
    """Norm of the last finite gradient of the mean loss per token, before clipping."""
    seconds: float
    """Training time so far, everything included."""
    skipped: int = 0
    """Updates called off because the loss or its gradient was not finite."""
    alignment_loss: float | None = None
    """Loss of the guided alignment, a mean over linked target tokens; None without guided alignment."""
    coverage_loss: float | None = None
    """Mean coverage loss per target token, from 0 to 1, without its weight; None where it is not trained by."""
    sampled_reward: float | None = None
    """Mean reward of the summaries that were drawn, from 0 to 1; None without reinforcement."""
    greedy_reward: float | None = None
    """The same of the most probable ones, which the drawn ones are compared with."""


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated."""

    update: int
    """After which update."""
    metrics: dict[str, float]
    """What `evaluate` gave."""
    best: bool
    """Whether this is the best so far."""
    seconds: float
    """Training time so far, everything included."""


@dataclass(frozen=True)
class Saved:
    """The full state is on the disk."""

    path: str
    """The file."""
    update: int
    """After which update."""


@dataclass(frozen=True)
class Stopped:
    """Training is over; always the last event."""

    reason: Reason
    """Why."""
    update: int
    """After which update."""
    lr: float
    """Learning rate of the last update."""
    peak_lr: float
    """The highest that it was in any update."""
    seconds: float
    """Training time, everything included."""


Event = Step | Evaluated | Saved | Stopped

_PART_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Size of the log-probabilities that are in memory at a time: large enough for full speed, on a CPU near its caches."""

_GIVE_BACK_EVERY = 50
"""So many updates on a CPU between two returns of freed memory; after every tenth it cost a seventh of the speed."""

_SUMS = ("loss", "nll", "alignment_loss", "coverage_loss", "sampled_reward", "greedy_reward")
"""What is added up over the batches of an update; the losses of the attention are not in the first."""

_FIRST_UPDATE = 0.001
"""The part of max_minutes that the first update is taken to last, before any update has shown how long they take."""

_GIVE_UP_AFTER = 10
"""So many updates in a row with a loss that is not finite end the training."""


_EPOCHS_PER_UPDATE = 10_000
"""More epochs cannot have come to their end in an update, however many batches it had and however few the data give."""


def train(
    model: Seq2Seq,
    stream: Stream,
    config: TrainingConfig,
    evaluate: Callable[[Seq2Seq], dict[str, float]],
    checkpoints: Checkpoints,
    device: torch.device,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
    seed: int = 1,
    optimizer_state: Mapping[str, Tensor] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Event]:
    """Fits the model in place until a limit of the config is reached.

    A state is saved before the first update, so that a folder that cannot be written is found at once and a run that
    is killed can always be resumed. Resumed with the same settings, data and number of processes, training goes on as
    if it had never stopped: bit for bit on a CPU, and on CUDA with `deterministic`, else up to rounding. A schedule
    over the budget goes on by the time that was used before. If there is an EMA, the model has the averaged weights
    inside `evaluate` and the plain ones when training is over.

    Args:
        model: is moved to `device`.
        stream: the training data; this process's share of it.
        config: the settings.
        evaluate: scores the model, which is in evaluation mode, without gradients. It may draw random numbers: those of
            the training are not disturbed. Called in process 0 only.
        checkpoints: where to save.
        device: where to train.
        resume: go on from `checkpoints.last` instead of from the model's weights.
        stop: asked between updates whether to stop; the state is saved first. A `threading.Event().is_set` fits.
        seed: of dropout and whatever else is random while training.
        optimizer_state: what the optimizer of an earlier training knew of some of the weights, as its checkpoint holds
            it, to begin with. Not looked at where training is resumed.
        clock: gives the seconds since any moment in the past.

    Yields:
        `Step` every `log_every` updates and before every validation and save, `Evaluated`, `Saved`, and one `Stopped`.

    Raises:
        TrainingError: the loss stays not finite (the model keeps the last good weights), or the metric that decides is
            not among those that `evaluate` gives.
        CheckpointError: the state cannot be read or written, or the folder holds another training's state.
    """
    with randomness.deterministic(device, config.deterministic):
        training = Trainer(model, stream, config, checkpoints, device, clock)
        if resume:
            training.restore(seed)
        elif checkpoints.last.exists():
            raise CheckpointError(
                f"{checkpoints.last}: an earlier training is saved here; go on with --resume, or use another folder"
            )
        else:
            randomness.seed_all(seed + distributed.rank())
            if optimizer_state is not None:
                restore_state(training.optimizer, training.parameters, optimizer_state)
            yield training.save()
        distributed.send_from_first(list(checkpoint.weights_of(model).values()))

        while (reason := training.reason_to_stop(stop)) is None:
            training.make_update()
            due_validation = training.update % config.validate_every == 0 and training.has_time_to_validate
            due_save = due_validation or training.update % config.save_every == 0
            if due_save or training.update % config.log_every == 0:
                yield training.report()
            if due_validation:
                yield training.validate(evaluate)
            if due_save:
                yield training.save()

        if training.has_unreported:
            yield training.report()
        if reason != "interrupted" and not training.is_validated:
            yield training.validate(evaluate)
        if not training.is_saved:
            yield training.save()
        yield Stopped(reason, training.update, training.lr, training.peak_lr, training.seconds)


@dataclass(frozen=True)
class _Made:
    """An update whose numbers may still be on the device."""

    update: int
    epoch: int
    position: dict[str, Any]
    tokens: int
    linked: int
    """Target tokens whose attention was taught."""
    sentences: int
    """How many examples."""
    numbers: Tensor
    """Sums of `_SUMS`, then the gradient's norm, and 1 if the update was called off."""


class Trainer:
    """All that changes while training, and its steps. `train` walks them; tuning measures `make_update`."""

    def __init__(
        self,
        model: Seq2Seq,
        stream: Stream,
        config: TrainingConfig,
        checkpoints: Checkpoints,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model.to(device)
        self.stream = stream
        self.config = config
        self.checkpoints = checkpoints
        self.device = device
        self.in_bf16 = config.precision == "bf16"
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(config, self.parameters)
        self.ema = Ema(self.parameters, config.ema_decay) if config.ema_decay else None
        self.update = 0
        self.validations: list[tuple[int, float]] = []  # update, score turned so that higher is better
        self.lr = self.peak_lr = 0.0
        self._grad_norm = math.nan
        self._made: list[_Made] = []
        self._skipped_in_a_row = 0
        self.is_saved = False
        self._saved_at = 0
        self._validating = 0.0  # seconds of the last validation; as `_used`, the same in all processes
        self._clock = clock
        self._started = clock()
        self._seconds_before = 0.0
        self._used = 0.0  # seconds at the end of the last update: what the share of the next one rests on
        self._busy = 0.0  # seconds of updates since the last report
        model.train()

    @property
    def seconds(self) -> float:
        """Training time so far, everything included."""
        return self._seconds_before + self._clock() - self._started

    @property
    def has_unreported(self) -> bool:
        """Whether updates were made that no `Step` has told of."""
        return bool(self._made)

    @property
    def is_validated(self) -> bool:
        """Whether the last update was validated."""
        return bool(self.validations) and self.validations[-1][0] == self.update

    @property
    def has_time_to_validate(self) -> bool:
        """Whether there would be time to train after a validation that takes as long as the last one did."""
        limit = self.config.max_minutes
        return limit is None or self._used + self._validating < 60 * limit

    def reason_to_stop(self, stop: Callable[[], bool] | None) -> Reason | None:
        """Why no further update is to be made; None while there is none. The same in all processes."""
        config = self.config
        if config.max_updates and self.update >= config.max_updates:
            return "max_updates"
        if config.max_epochs and self.stream.epoch >= config.max_epochs:
            return "max_epochs"
        if config.patience and self.validations:
            scores = [score for _, score in self.validations]
            if len(scores) - 1 - scores.index(max(scores)) >= config.patience:
                return "patience"
        # Clocks differ, and so would the rates of several processes: that of process 0 counts for all.
        out_of_time, used = False, 0.0
        if distributed.rank() == 0:
            used = self._used
            out_of_time = config.max_minutes is not None and self.seconds >= 60 * config.max_minutes
        interrupted, over, self._used = distributed.largest([stop is not None and stop(), out_of_time, used])
        if interrupted:
            return "interrupted"
        return "max_minutes" if over else None

    def make_update(self) -> None:
        """Draws batches, adds up their gradients, clips, steps; its numbers stay on the device until `report`."""
        begun = self._clock()
        position, epoch = self.stream.state(), self.stream.epoch
        batches = [self._next_batch() for _ in range(self.config.accumulate)]
        tokens = distributed.total(sum(int(batch.tgt_mask.sum()) for batch in batches if batch.tgt_mask is not None))
        scores = [score for _, score in self.validations]
        progress = Progress(self.update + 1, epoch, scores, self._coming_share())
        self.lr = self.config.schedule.rate(self.config.lr, progress)
        self.peak_lr = max(self.peak_lr, self.lr)

        linked, guide = self._guide(batches)

        losses = torch.stack([self._backward(batch, tokens, guide) for batch in batches]).sum(0)  # (6,)
        distributed.add_up([*self._gradients(), losses])
        norm = clip_grad_norm_(self.parameters.values(), self.config.clip_norm or math.inf)
        # Skipped, not stopped, so that one bad batch costs nothing but itself.
        bad = ~torch.isfinite(norm + losses.sum())
        set_rate(self.optimizer, self.lr)
        step_unless(bad, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        self.update, self.is_saved = self.update + 1, False
        if self.ema:
            self.ema.update(self.update)
        numbers = torch.cat([losses, torch.stack([norm.to(losses), bad.to(losses)])])
        sentences = distributed.total(sum(batch.size for batch in batches)) if self.config.reinforce else 0
        self._made.append(_Made(self.update, epoch, position, tokens, linked, sentences, numbers))
        if self.device.type == "cpu" and self.update % _GIVE_BACK_EVERY == 0:
            give_back_freed_memory()
        self._used = self.seconds
        self._busy += self._clock() - begun

    def _coming_share(self) -> float:
        """`Progress.share` of the coming update."""
        limit = 60 * (self.config.max_minutes or 0.0)
        lasting = self._used / self.update if self.update else _FIRST_UPDATE * limit
        return self.config.share(self.update + 1, self._used + lasting) or 0.0

    def _next_batch(self) -> Batch:
        try:
            return next(self.stream)
        except StopIteration:
            raise TrainingError("there are no batches to train on: the training data is empty") from None

    def _guide(self, batches: list[Batch]) -> tuple[int, Guide | None]:
        """How the attention is taught in this update, and for how many target tokens of all processes."""
        settings = self.config.guided_alignment
        if settings is None:
            return 0, None
        linked = distributed.total(sum(int(linked_positions(batch, settings.source).sum()) for batch in batches))
        return linked, Guide(settings, settings.weight / max(linked, 1))

    def _backward(self, batch: Batch, tokens: int, guide: Guide | None) -> Tensor:
        """Adds the gradient of this batch's part of the mean loss over `tokens`; gives the sums of `_SUMS`."""
        size = _PART_BYTES.get(self.device.type, _PART_BYTES["cpu"])
        smoothing, coverage, reinforce = (
            self.config.label_smoothing,
            self.config.coverage_weight,
            self.config.reinforce,
        )
        with self._precision():
            if reinforce is None:
                sums = add_gradients(self.model, batch, 1 / tokens, smoothing, self.device, size, guide, coverage)
                return pad(sums, (0, 2))
            loss, nll, covered, sampled, greedy = add_reinforced_gradients(
                self.model, batch, 1 / tokens, reinforce, smoothing, self.device, size, coverage
            )
        return torch.stack([loss, nll, torch.zeros_like(loss), covered, sampled, greedy])

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16)

    def _gradients(self) -> list[Tensor]:
        """All gradients, in one order in every process."""
        if distributed.size() > 1:  # what one process did not use another may have used
            for parameter in self.parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def report(self) -> Step:
        """Reads the numbers of the updates since the last report."""
        begun = self._clock()
        rows = torch.stack([made.numbers for made in self._made]).tolist()
        busy = self._busy + self._clock() - begun  # reading waits for the device
        good, skipped = [], []
        sums = dict.fromkeys(_SUMS, 0.0)
        for made, (*numbers, norm, bad) in zip(self._made, rows, strict=True):
            if bad:
                skipped.append(made)
                self._skipped_in_a_row += 1
                if self._skipped_in_a_row >= _GIVE_UP_AFTER:
                    raise TrainingError(self._not_finite(skipped))
                continue
            self._skipped_in_a_row = 0
            self._grad_norm = norm
            good.append(made)
            sums = {name: total + number for (name, total), number in zip(sums.items(), numbers, strict=True)}
        tokens = sum(made.tokens for made in self._made)
        good_tokens = sum(made.tokens for made in good)
        self._made, self._busy = [], 0.0
        config = self.config

        def mean(name: str, count: int) -> float:
            return sums[name] / count if count else math.nan

        mean_nll, mean_loss = mean("nll", good_tokens), mean("loss", good_tokens)
        alignment_loss = coverage_loss = sampled_reward = greedy_reward = None
        if config.guided_alignment is not None:
            alignment_loss = sums["alignment_loss"] / max(sum(made.linked for made in good), 1)
            mean_loss += config.guided_alignment.weight * alignment_loss
        if config.coverage_weight:
            coverage_loss = mean("coverage_loss", good_tokens)
            likelihood_share = 1 - config.reinforce.gamma if config.reinforce else 1.0
            mean_loss += likelihood_share * config.coverage_weight * coverage_loss
        if config.reinforce is not None:
            sentences = sum(made.sentences for made in good)
            sampled_reward, greedy_reward = mean("sampled_reward", sentences), mean("greedy_reward", sentences)
        return Step(
            update=self.update,
            epoch=self.stream.epoch,
            loss=mean_loss,
            nll=mean_nll,
            ppl=math.exp(min(mean_nll, 700.0)),
            tokens=tokens,
            tokens_per_second=tokens / max(busy, 1e-9),
            lr=self.lr,
            grad_norm=self._grad_norm,
            seconds=self.seconds,
            skipped=len(skipped),
            alignment_loss=alignment_loss,
            coverage_loss=coverage_loss,
            sampled_reward=sampled_reward,
            greedy_reward=greedy_reward,
        )

    def _not_finite(self, skipped: list[_Made]) -> str:
        last = skipped[-1]
        place = ", ".join(f"{key} {value}" for key, value in last.position.items() if isinstance(value, int))
        return (
            f"update {last.update}: the loss or its gradient is not finite, {_GIVE_UP_AFTER} updates in a row; "
            f"the last bad batch is the one at {place} of the training data. "
            f"The weights of before are kept, and {self.checkpoints.last} holds update {self._saved_at}. "
            "Lower training.lr, lengthen the schedule's warmup, set training.clip_norm, or use precision fp32; "
            "then go on with --resume"
        )

    def validate(self, evaluate: Callable[[Seq2Seq], dict[str, float]]) -> Evaluated:
        """Evaluates the model, with the averaged weights if there are some, and keeps them if they are good."""
        averaged = self.ema.applied() if self.ema else nullcontext()
        begun = self._clock()
        with averaged, randomness.preserved(self.device), torch.no_grad():
            found = None
            if distributed.rank() == 0:
                self.model.eval()
                found = evaluate(self.model), self._clock() - begun
                self.model.train()
            metrics, self._validating = distributed.said_by_first(found)
            value = self._value_in(metrics)
            sign = 1 if self.config.higher_is_better else -1
            best = sign * value > max((score for _, score in self.validations), default=-math.inf)
            self.validations.append((self.update, sign * value))
            if distributed.rank() == 0:
                self.checkpoints.keep(
                    checkpoint.weights_of(self.model),
                    self.update,
                    self.config.best_metric,
                    value,
                    self.config.higher_is_better,
                    self.config.keep_best,
                    self.config.keep_recent,
                )
        self.is_saved = False
        return Evaluated(self.update, metrics, best, self.seconds)

    def _value_in(self, metrics: Mapping[str, float]) -> float:
        name = self.config.best_metric
        if name not in metrics:
            raise TrainingError(f"training.best_metric: validation gives no {name!r}: {near_names(name, metrics)}")
        worst = -math.inf if self.config.higher_is_better else math.inf
        return worst if math.isnan(metrics[name]) else metrics[name]

    def save(self) -> Saved:
        """Saves the full state."""
        tensors = {checkpoint.WEIGHTS + name: tensor for name, tensor in checkpoint.weights_of(self.model).items()}
        if self.ema:
            tensors |= {checkpoint.EMA + name: tensor for name, tensor in self.ema.averages.items()}
        state = read_state(self.optimizer, self.parameters)
        tensors |= {checkpoint.OPTIMIZER + name: tensor for name, tensor in state.items()}
        randoms = distributed.gathered(randomness.read_states(self.device))
        if distributed.rank() == 0:
            facts = {
                "update": self.update,
                "seconds": self.seconds,
                "used": self._used,
                "validating": self._validating,
                "lr": [self.lr, self.peak_lr],
                "optimizer": self.config.optimizer,
                "best_metric": [self.config.best_metric, self.config.higher_is_better],
                "validations": self.validations,
                "stream": self.stream.state(),
                "random": randoms,
            }
            self.checkpoints.save_last(tensors, facts)
        distributed.wait_for_all()  # no process goes on, or away to resume, before the file is there
        self.is_saved, self._saved_at = True, self.update
        return Saved(str(self.checkpoints.last), self.update)

    def restore(self, seed: int) -> None:
        """Puts back what `save` saved; `seed` is for processes that were not there then."""
        facts = self.checkpoints.read_facts()
        tensors, _ = self.checkpoints.load_last()
        last = self.checkpoints.last
        if facts["optimizer"] != self.config.optimizer:
            raise CheckpointError(
                f"{last}: saved with optimizer {facts['optimizer']!r}, but the recipe says {self.config.optimizer!r}; "
                "resume with the same one, or train in another folder"
            )
        with self.checkpoints.blamed_on_last():
            checkpoint.fill_weights(self.model, checkpoint.under(checkpoint.WEIGHTS, tensors), last)
            restore_state(self.optimizer, self.parameters, checkpoint.under(checkpoint.OPTIMIZER, tensors))
            if self.ema:
                self.ema.restore(checkpoint.under(checkpoint.EMA, tensors))
            self._require_sense(facts)
            self.stream.restore(facts["stream"])
            self.update = facts["update"]
            if distributed.rank() < len(facts["random"]):
                randomness.restore_states(facts["random"][distributed.rank()], self.device)
            else:  # there are more processes than before
                randomness.seed_all(seed + distributed.rank() + self.update)
        self.is_saved, self._saved_at = True, self.update
        self._seconds_before = facts["seconds"]
        # Checkpoints of earlier versions do not know the last two.
        self._validating = facts["validating"]
        self._used = facts["seconds"] if facts["used"] is None else facts["used"]
        self.lr, self.peak_lr = facts["lr"] or (self.lr, self.peak_lr)
        if facts["best_metric"] == [self.config.best_metric, self.config.higher_is_better]:
            self.validations = [(update, score) for update, score in facts["validations"]]
        self._started = self._clock()  # the time that loading took is none of the training's

    def _require_sense(self, facts: Mapping[str, Any]) -> None:
        """Makes sure that the numbers of a state fit each other, as far as it can be told."""
        update, epoch = facts["update"], facts["stream"]["epoch"]
        steps = most_steps(self.optimizer)
        # So many updates in a row without a step would have ended the training. Steps may be those of earlier stages.
        if steps is not None and update >= _GIVE_UP_AFTER * (steps + 1):
            raise CheckpointError(f"`update` is {update}, but the optimizer has made {steps} steps")
        if epoch > _EPOCHS_PER_UPDATE * (update + 1):
            raise CheckpointError(f"`stream.epoch` is {epoch} after {update} updates")
