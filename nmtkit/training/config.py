"""Settings of the training loop."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from nmtkit.core.limits import MAX_THREADS
from nmtkit.core.settings import Field, SettingsByName, field_validator, model_validator
from nmtkit.metrics import METRICS
from nmtkit.training.losses.objective import OBJECTIVES, Objective, chosen_objectives
from nmtkit.training.optimizers import OptimizerConfig
from nmtkit.training.schedules import Constant, DecayToZero, Schedule


class TrainingConfig(OptimizerConfig):
    """Settings that determine how a model is trained."""

    schedule: Schedule = Constant()
    """Learning-rate schedule: `kind` and the settings of that kind."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each target's probability that is spread over the vocabulary."""
    objectives: Annotated[
        dict[str, Any], SettingsByName(OBJECTIVES, left_out=lambda: TrainingConfig.model_fields)
    ] = Field(default_factory=dict)
    """Additional losses by name, each with its weight or its settings, such as `{coverage_weight: 1.0}`; `{}` selects
    the default settings of a loss, and 0 or null switches it off. Losses registered by user code are set here, too.
    Some losses, such as those for pretraining, replace the likelihood."""
    freeze: list[str] = Field(default_factory=list)
    """Names of the weights that are not trained. The name of a part of the model, such as encoder, src_embedding or
    decoder.0, selects all weights of that part."""
    unfreeze_every: int | None = Field(default=None, ge=1)
    """Number of updates between two steps of gradual unfreezing (Howard and Ruder 2018, section 3.3). Training starts
    with the top layers of the encoder and the decoder, and with all weights outside layers except embeddings; each step
    adds the next lower layer, and the embeddings come last."""
    loss_unit: Literal["word", "sentence"] = "word"
    """Whether the loss is averaged over target words or, as in many older papers, over sentences (a sentence's loss is
    the sum over its words). Use sentence if lr, clip_norm and eps come from such a paper, because the loss is then
    larger by a factor equal to the mean number of words per sentence. The log always shows the loss per word."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Maximum norm of the gradient of the mean loss per `loss_unit`. A gradient with a larger norm is scaled down to
    this norm."""
    accumulate: int = Field(default=1, ge=1, le=10_000)
    """Number of batches per update on each process. If a run is resumed with a different number of processes, the total
    number of batches per update stays the same."""
    max_updates: int | None = Field(default=None, ge=1)
    """Maximum number of updates."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Maximum number of epochs."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Maximum training time in minutes, including validations and the earlier sessions of a resumed run. In a recipe
    with stages, this limits the whole run: a stage that sets max_minutes itself gets that time; the other stages share
    the rest equally, together with the time that earlier stages did not use."""
    validate_every: int = Field(default=1000, ge=1)
    """Number of updates between two validations. Training ends with a final validation; with max_minutes, as much time
    is reserved for it as the previous validation took, and a validation that would leave too little time for the final
    one is skipped."""
    patience: int | None = Field(default=None, ge=1)
    """Number of consecutive validations without a new best score after which training stops."""
    best_metric: str = "bleu"
    """Validation metric that selects the best checkpoint; ties are broken by the lower loss. Default: bleu for
    translations and captions, rougeL for summaries, accuracy for labels, bracket-f1 for trees, perplexity for language
    models; or the first metric in `evaluation.metrics` if the list does not contain that default."""
    keep_best: int = Field(default=1, ge=1)
    """Number of best checkpoints to keep."""
    keep_recent: int | None = Field(default=None, ge=0)
    """Number of most recent checkpoints to keep even if they are not among the best, for `nmtkit average`. null means
    5, or 0 if keep_best is greater than 1."""
    save_every: int = Field(default=1000, ge=1)
    """Number of updates between two saves of the full state. The state is also saved after every validation and at the
    end."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights. If set, validation and the saved checkpoints use the
    average instead of the raw weights."""
    precision: Literal["fp32", "bf16", "auto"] = "auto"
    """Precision of training. bf16 computes matrix products in bfloat16 (autocast) and stores weights in fp32. auto
    selects the fastest precision, matmul_precision and threads on this machine, measured once in a few updates of this
    model (see `nmtkit tune`); it selects bf16 only if the model allows it. If training is too short to measure, auto
    means fp32, highest and one thread per core."""
    matmul_precision: Literal["highest", "high", "medium", "auto"] = "auto"
    """Precision of fp32 matrix products. high and medium are less precise than highest, but faster on devices that
    support them. auto: see precision."""
    threads: Literal["auto"] | int = "auto"
    """Number of CPU threads. auto: see precision."""
    activation_checkpointing: bool = False
    """Whether to store only the input of each Transformer layer and recompute the rest in the backward pass. This gives
    the same weights with less memory, but takes about a third more time."""
    compile: bool = False
    """Whether to compile Transformer layers with torch.compile for training on a GPU. Compiling takes a minute or more
    at the start. Validation and search do not use the compiled layers."""
    shard: bool = False
    """Whether to divide weights, gradients and optimizer state among the processes (ZeRO, stage 3). This is for
    Transformer models whose weights fit into the memory of one GPU, but not together with gradients and optimizer
    state. Updates, metrics and checkpoints stay the same."""
    deterministic: bool = False
    """Whether to use deterministic CUDA kernels, which are slower. Repeated runs then produce identical weights, and a
    resumed run matches an uninterrupted one bit for bit, unless max_minutes is set; torch warns if an operation has no
    deterministic kernel. CPU kernels are always deterministic."""
    log_every: int = Field(default=50, ge=1)
    """Number of updates between two log lines."""

    @field_validator("threads", mode="before")
    @classmethod
    def _threads(cls, threads: object) -> object:
        if threads != "auto" and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
            raise ValueError(f"must be auto or a number from 1 to {MAX_THREADS:,}")
        return threads

    @field_validator("objectives", mode="before")
    @classmethod
    def _objectives(cls, objectives: Any) -> Any:
        if isinstance(objectives, Mapping):
            for name in objectives:
                if name in cls.model_fields:
                    raise ValueError(f"{name!r} is not an objective; set it as `training.{name}`")
        return objectives

    @classmethod
    def key_of(cls, objective: str) -> str:
        """Returns an objective's key in a recipe."""
        if objective in cls.model_fields:
            return f"training.{objective}"
        return f"training.objectives.{objective}"

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        has_budget = self.max_updates or self.max_minutes
        if not (has_budget or self.max_epochs or self.patience):
            raise ValueError(
                "training would never end: set max_updates, max_epochs, max_minutes or patience"
            )
        if (
            isinstance(self.schedule, DecayToZero)
            and self.schedule.over == "budget"
            and not has_budget
        ):
            raise ValueError(
                "`over: budget` in the schedule requires max_updates or max_minutes; set one of them"
            )
        objectives = chosen_objectives(self)
        self._require_one_likelihood(objectives)
        if self.shard:
            self._require_shardable(objectives)
        if "reinforce" in self.objectives:
            for other in ("guided_alignment", "hard_attention"):
                if other in self.objectives:
                    raise ValueError(
                        f"reinforce cannot be combined with {other}; use a separate stage for each"
                    )
        return self

    def _require_one_likelihood(self, objectives: Mapping[str, Objective]) -> None:
        replacing = [
            name for name, objective in objectives.items() if objective.replaces_likelihood
        ]
        if not replacing:
            return
        conflicts = replacing[1:]
        if self.label_smoothing:
            conflicts.append("label_smoothing")
        if "reinforce" in self.objectives:
            conflicts.append("reinforce")
        if conflicts:
            raise ValueError(
                f"{replacing[0]} replaces the likelihood, so it cannot be combined with {conflicts[0]}; use a separate "
                "stage for each"
            )

    def _require_shardable(self, objectives: Mapping[str, Objective]) -> None:
        conflicts = [
            name for name in ("freeze", "unfreeze_every", "compile") if getattr(self, name)
        ]
        for name, objective in objectives.items():
            # Processes wait for each other in every layer, so all of them must run the same passes, and only through
            # `Model.read`.
            has_own_passes = type(objective).custom_backward is not Objective.custom_backward
            if objective.needs != "log_probs" or has_own_passes:
                conflicts.append(name)
        if conflicts:
            raise ValueError(f"shard cannot be combined with {conflicts[0]}; remove one of them")

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of `best_metric` are better, as for BLEU."""
        return METRICS.get(self.best_metric).higher_is_better

    @property
    def recent_to_keep(self) -> int:
        """Number of newest weights files to keep."""
        if self.keep_recent is not None:
            return self.keep_recent
        return 5 if self.keep_best == 1 else 0

    def share(self, updates: int, seconds: float, epochs: int = 0) -> float | None:
        """Returns the share of training that is complete, from 0 to 1; None if no limit is set.

        If more than one limit is set, the one closest to being reached counts.
        """
        shares: list[float] = []
        if self.max_updates:
            shares.append(updates / self.max_updates)
        if self.max_minutes:
            shares.append(seconds / (60 * self.max_minutes))
        if self.max_epochs:
            shares.append(epochs / self.max_epochs)
        if not shares:
            return None
        return min(max(shares), 1.0)

    def scheduled(self, updates: int, seconds: float) -> float | None:
        """Returns the share of the learning-rate schedule that is complete, from 0 to 1; None if it has no end."""
        if not isinstance(self.schedule, DecayToZero):
            return None
        end = self.schedule.end
        if end is None:
            return self.share(updates, seconds)
        return min(updates / end, 1.0)
