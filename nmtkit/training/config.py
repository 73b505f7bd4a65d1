"""How a model is fitted: the settings of the training loop."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from nmtkit.core.limits import MAX_THREADS
from nmtkit.core.settings import Field, SettingsByName, field_validator, model_validator
from nmtkit.metrics import METRICS
from nmtkit.training.losses.objective import OBJECTIVES, Objective, chosen_objectives
from nmtkit.training.optimizers import OptimizerConfig
from nmtkit.training.schedules import Constant, DecayToZero, Schedule


class TrainingConfig(OptimizerConfig):
    """How a model is fitted."""

    schedule: Schedule = Constant()
    """How the learning rate changes: `kind` and its own settings."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each target's probability that is spread over the vocabulary."""
    objectives: Annotated[dict[str, Any], SettingsByName(OBJECTIVES, left_out=lambda: TrainingConfig.model_fields)] = (
        Field(default_factory=dict)
    )
    """Further losses by name, each with its weight or with its settings, such as `{coverage_weight: 1.0}`; `{}` takes
    the defaults, and 0 or null switches a loss off. Losses that are registered from outside the package are here, too.
    Some take the place of the likelihood, as pretraining does."""
    freeze: list[str] = Field(default_factory=list)
    """Weights that are not trained: names as in the model, or beginnings of them that end before a dot, such as
    encoder, src_embedding or decoder.0."""
    unfreeze_every: int | None = Field(default=None, ge=1)
    """Gradual unfreezing: the top layer of encoder and decoder is trained at once, as is what is in no layer; the next
    lower one joins after so many updates, and so on; embeddings come last (Howard and Ruder 2018, section 3.3)."""
    loss_unit: Literal["word", "sentence"] = "word"
    """What the loss is a mean of: target words; or sentences, each the sum over its words, as in many older papers,
    whose learning rates, norms and eps belong to it. The whole loss is larger then, by the words to a sentence of the
    update; the log shows it per word either way."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient of the mean loss per `loss_unit`; longer ones are scaled down to it."""
    accumulate: int = Field(default=1, ge=1, le=10_000)
    """Batches per update and process. With another number of processes a run goes on with as many per update."""
    max_updates: int | None = Field(default=None, ge=1)
    """Stop after this many updates."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Stop after this many passes over the data."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Stop after so many minutes of training; validations count, and so do earlier sessions of a resumed run. In a
    recipe with stages it limits the whole training, not each stage: a stage that sets its own has that; the others
    share the rest equally, and get what earlier stages did not use."""
    validate_every: int = Field(default=1000, ge=1)
    """Updates between two validations. One more follows at the end, for which max_minutes leaves the time that the one
    before took. A validation that would use up the rest is left out, so that the schedule reaches its end."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations in a row without a new best."""
    best_metric: str = "bleu"
    """The validation metric that chooses the best checkpoint; of equal values the lower loss decides. Default: bleu of
    translations and captions, rougeL of summaries, accuracy of labels, bracket-f1 of trees, perplexity of language
    models; or the first of `evaluation.metrics`."""
    keep_best: int = Field(default=1, ge=1)
    """How many of the best checkpoints to keep."""
    keep_recent: int | None = Field(default=None, ge=0)
    """How many of the newest checkpoints to keep too, for `nmtkit average`. null: 5, or none if keep_best is more than
    one."""
    save_every: int = Field(default=1000, ge=1)
    """Updates between two saves of the full state. Every validation and the end save it too."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Keep an exponential moving average of the weights with this decay, and evaluate and save that."""
    precision: Literal["fp32", "bf16", "auto"] = "auto"
    """bf16: matrix products in bfloat16 (autocast), the weights stay in fp32. auto, here and below: what a few updates
    of this model show to be quickest on this machine, found once and kept (see `nmtkit tune`); bf16 only where the
    model allows it. In a training too short to measure, auto is fp32, highest and one thread a core."""
    matmul_precision: Literal["highest", "high", "medium", "auto"] = "auto"
    """Exactness of fp32 matrix products: highest, or less exact and faster where the device can."""
    threads: Literal["auto"] | int = "auto"
    """CPU threads."""
    activation_checkpointing: bool = False
    """Keep of each Transformer layer only what it reads, and compute the rest again for its gradient: the same weights
    with less memory, in a third more time."""
    compile: bool = False
    """Have torch compile Transformer layers for training, which takes a minute or more at its beginning; for a GPU.
    Validation and search run them as they are."""
    shard: bool = False
    """Cut weights, gradients and the optimizer's state among the processes (ZeRO, stage 3), for models of Transformer
    layers that fit into the memory of a GPU, but not with all these; updates, metrics and checkpoints stay the same."""
    deterministic: bool = False
    """On CUDA: sum in the same order every time, so that equal trainings give equal weights and a resumed one is
    bit-exact. It is slower. A CPU always does so."""
    log_every: int = Field(default=50, ge=1)
    """Updates between two log lines."""

    @field_validator("threads", mode="before")
    @classmethod
    def _threads(cls, threads: object) -> object:
        if threads != "auto" and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
            raise ValueError(f"auto, or a number from 1 to {MAX_THREADS:,}")
        return threads

    @field_validator("objectives", mode="before")
    @classmethod
    def _objectives(cls, objectives: Any) -> Any:
        for name in objectives if isinstance(objectives, Mapping) else ():
            if name in cls.model_fields:
                raise ValueError(f"{name!r} is set by `training.{name}`")
        return objectives

    @classmethod
    def key_of(cls, objective: str) -> str:
        """The key of an objective in a recipe."""
        return f"training.{objective}" if objective in cls.model_fields else f"training.objectives.{objective}"

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        has_budget = self.max_updates or self.max_minutes
        if not (has_budget or self.max_epochs or self.patience):
            raise ValueError("training would never end: set max_updates, max_epochs, max_minutes or patience")
        if isinstance(self.schedule, DecayToZero) and self.schedule.over == "budget" and not has_budget:
            raise ValueError("schedule: `over: budget` needs a budget to run over: set max_updates or max_minutes")
        replacing = [name for name, one in chosen_objectives(self).items() if one.replaces_likelihood]
        beside = ["label_smoothing"] * bool(self.label_smoothing) + ["reinforce"] * ("reinforce" in self.objectives)
        others = [*replacing[1:], *beside]
        if replacing and others:
            raise ValueError(
                f"{replacing[0]}: it takes the place of the likelihood, so not together with {others[0]}; give each a "
                "stage of its own"
            )
        # A process would wait for others in passes that not all make, or not through `Model.read`.
        others = [name for name in ("freeze", "unfreeze_every", "compile") if getattr(self, name)]
        likely = "log_probs", Objective.custom_backward
        losses = chosen_objectives(self).items()
        others += [name for name, one in losses if (one.needs, type(one).custom_backward) != likely]
        if self.shard and others:
            raise ValueError(f"shard: not together with {others[0]}; leave one of them out")
        if "reinforce" in self.objectives:
            for other in ("guided_alignment", "hard_attention"):
                if other in self.objectives:
                    raise ValueError(f"reinforce: not together with {other}; give each a stage of its own")
        return self

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of `best_metric` are better, as for BLEU."""
        return METRICS.get(self.best_metric).higher_is_better

    @property
    def recent_to_keep(self) -> int:
        """The number of the newest weights files that stay."""
        if self.keep_recent is not None:
            return self.keep_recent
        return 5 if self.keep_best == 1 else 0

    def share(self, updates: int, seconds: float, epochs: int = 0) -> float | None:
        """The part of the training that is done, from 0 to 1, by the nearest of its limits; None if it has none."""
        most_seconds = 60 * (self.max_minutes or 0.0)
        limits = ((updates, self.max_updates), (seconds, most_seconds), (epochs, self.max_epochs))
        shares = [done / limit for done, limit in limits if limit]
        return min(max(shares), 1.0) if shares else None

    def scheduled(self, updates: int, seconds: float) -> float | None:
        """The part of the learning rate's schedule that is done, from 0 to 1; None where it has no end."""
        if not isinstance(self.schedule, DecayToZero):
            return None
        end = self.schedule.end
        return self.share(updates, seconds) if end is None else min(updates / end, 1.0)
