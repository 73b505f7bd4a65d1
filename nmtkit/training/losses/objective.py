"""The interface between losses and the training loop, and the backward pass that all losses share.

An objective returns sums over a batch by name. The loop adds them up over batches, processes and updates, and divides
each sum by its normalizer.

Notation: B examples, T target positions, S source positions, A heads, M predicted positions, V words in the vocabulary,
X = V plus the unknown words of the source.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from nmtkit.core.device import send
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.models.abilities import as_multi_head, log_likelihood
from nmtkit.models.base import Memory, Model, ModelConfig, ModelOutput

# The log shows objectives in this order, and `corrupt` is called in this order: text pairs must be formed before words
# are hidden.
OBJECTIVES: Registry["type[Objective]"] = Registry(
    "training objective",
    {
        "label_smoothing": "nmtkit.training.losses.likelihood",
        "span_corruption": "nmtkit.training.losses.corruption",
        "denoising": "nmtkit.training.losses.corruption",
        "permutation": "nmtkit.zoo.xlnet",
        "both_directions": "nmtkit.zoo.elmo",
        "next_sentence": "nmtkit.zoo.next_sentence",
        "masked_words": "nmtkit.training.losses.masked_words",
        "replaced_tokens": "nmtkit.zoo.electra",
        "guided_alignment": "nmtkit.training.losses.attention",
        "coverage_weight": "nmtkit.training.losses.attention",
        "expert_balance": "nmtkit.training.losses.attention",
        "doubly_stochastic": "nmtkit.training.losses.attention",
        "hard_attention": "nmtkit.training.losses.attention",
        "reinforce": "nmtkit.training.losses.reinforcement",
    },
)
"""Losses by name. Label smoothing is a key of `training`; all others are keys of `training.objectives`."""

InputKind = Literal["log_probs", "attention", "heads", "output", "none"]

LOSS = "loss"
"""Name of the total loss: the weighted sum of all objectives that do not report a loss under another name."""

Reader = Callable[[Batch, bool], tuple[ModelOutput, Memory | None]]
"""A forward pass over a batch on the device, with the signature of `Model.read`."""


class _Root(NamedTuple):
    """A tensor at which a backward pass starts."""

    tensor: Tensor
    gradient: Tensor | None = None
    """Gradient of the loss with respect to the tensor, or None if the tensor is a loss itself."""


@dataclass(frozen=True)
class ObjectiveInput:
    """A model's output for a batch, with the parts that an objective needs."""

    model: Model
    batch: Batch
    """Inputs and targets on the CPU, where indexing does not wait for the device."""
    device_batch: Batch
    """The same batch on the device."""
    vocabulary_size: int
    """V, the number of words in the vocabulary."""
    output: ModelOutput
    """Output at all positions, `(B, T, *)` for targets, or, for an objective that needs `log_probs`, at the M positions
    of `part`, `(M, *)`."""
    heads: Tensor | None = None
    """Weights of all heads in the layer of `output.attention`, `(B, A, T, S)`; for objectives that need `heads`."""
    log_probs: Tensor | None = None
    """Log-probabilities at the positions of `part`, `(M, X)`; for objectives that need `log_probs` of all words."""
    nll: Tensor | None = None
    """Negative log-probabilities of the targets in `part`, `(M,)`, in nats; for objectives that need `log_probs`."""
    sums: Tensor | None = None
    """Sums of log-probabilities over the vocabulary, `(M,)`; for objectives whose `reads_words` is "sum", if
    `log_probs` is None."""
    part: slice = field(default_factory=lambda: slice(None))
    """Range of the M positions among all positions in `batch.loss_mask`, in row-major order."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss that training minimizes."""

    weight: float = 1.0
    """Factor by which the mean loss is multiplied."""
    settings: Any = None
    """Value of the objective's key in the recipe if it is a group of settings."""

    Config: ClassVar[type[Settings]] = Settings
    """Settings in `training.objectives`, if the objective has any; `{}` selects the defaults, and a number sets the
    weight."""
    normalizers: ClassVar[Mapping[str, str]]
    """Name of each sum, with the name of the count that divides it: `tokens`, `sentences`, or a name from `counts`. The
    first sum, multiplied by the weight, is minimized; the others are only reported."""
    replaces_likelihood: ClassVar[bool] = False
    """Whether the objective replaces the plain likelihood, as pretraining objectives do."""
    needs: ClassVar[InputKind] = "log_probs"
    """Input of `terms`. "log_probs": log-probabilities, for a part of the batch at a time. "attention": attention at
    all positions. "heads": also the weights of all heads in the same layer. "output": the output at all positions,
    for an auxiliary head of the model. "none": `terms` is not called; `custom_backward` does everything."""
    specials: ClassVar[Sequence[str]] = ()
    """Special tokens that the vocabulary must contain."""

    @classmethod
    def from_setting(cls, setting: Any) -> "Objective | None":
        """Builds the objective from a group of settings or from its weight; returns None if the weight is 0."""
        if isinstance(setting, Settings):
            return cls(settings=setting)
        if not setting:
            return None
        return cls(weight=setting, settings=cls.Config())

    @property
    def remaining_weight(self) -> float:
        """Factor by which the weights of all other objectives are multiplied."""
        return 1.0

    @property
    def reads_words(self) -> Literal["all", "sum", "wanted"]:
        """Words whose log-probabilities `terms` needs.

        "all": all words. "sum": the targets, and the sum over all words. "wanted": only the targets.
        """
        return "all"

    @property
    def loss_name(self) -> str:
        """Name of the sum that is minimized."""
        return next(iter(self.normalizers))

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """Returns the batch with the objective's inputs and targets; by default unchanged.

        Called for every batch of training and of the validation loss, on the CPU. All randomness must come from
        `generator`, a CPU generator that is seeded with the batch's position, so that a resumed run sees the same
        batches.
        """
        return batch

    @classmethod
    def fault_without(cls, model: ModelConfig, begins_from_run: bool) -> str:
        """Returns the error message if a model has a head for this objective but no stage uses the objective.

        An empty string means that this is allowed.

        Args:
            model: settings of the model.
            begins_from_run: whether the model starts with weights from another run.
        """
        return ""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Returns additional counts of a batch on the CPU."""
        return {}

    @abstractmethod
    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the sums in `normalizers` by name: scalars on the device, the first one with its graph."""

    def custom_backward(self, update: "GradientAccumulator", batch: Batch) -> dict[str, Tensor]:
        """Adds gradients that `terms` cannot express. Returns sums by name; `LOSS` is already weighted."""
        return {}

    def after_update(
        self, model: Model, sums: Mapping[str, Tensor], counts: Mapping[str, int]
    ) -> None:
        """Called after each update with its sums and counts over all processes; may change buffers of the model."""
        return

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics that the log shows, given the means without `LOSS`; by default these means."""
        return dict(means)


def chosen_objectives(config: Settings) -> dict[str, Objective]:
    """Returns a training config's objectives by name, in the order of registration."""
    settings_by_name = getattr(config, "objectives", {})
    chosen: dict[str, Objective] = {}
    for name in OBJECTIVES:
        # Label smoothing is a key of the config itself.
        setting = getattr(config, name, settings_by_name.get(name))
        if setting is None:
            continue
        objective = OBJECTIVES.get(name).from_setting(setting)
        if objective is not None:
            chosen[name] = objective
    if any(objective.replaces_likelihood for objective in chosen.values()):
        chosen.pop("label_smoothing", None)
    return chosen


def build_objectives(config: Settings) -> list[Objective]:
    """Returns a training config's objectives, in the order of registration, with their final weights."""
    chosen = list(chosen_objectives(config).values())
    weighted: list[Objective] = []
    for objective in chosen:
        factors = [other.remaining_weight for other in chosen if other is not objective]
        weight = objective.weight * math.prod(factors)
        weighted.append(replace(objective, weight=weight))
    return weighted


@dataclass(frozen=True)
class GradientAccumulator:
    """Adds up the gradients of all batches in an update."""

    model: Model
    """The model on the device, in training mode."""
    objectives: Sequence[Objective]
    counts: Mapping[str, int]
    """Normalizers: counts over all batches of the update in all processes."""
    device: torch.device
    chunk_bytes: int
    """Maximum size, in bytes, of the log-probabilities held in memory at once."""
    factor: float = 1.0
    """Factor by which all gradients are multiplied."""

    def backward(
        self,
        batch: Batch,
        read: Reader | None = None,
        around_last: AbstractContextManager[None] | None = None,
    ) -> dict[str, Tensor]:
        """Adds the gradient of a batch on the CPU; returns the sums of all objectives by name, on the device.

        The log-probabilities `(M, X)` are by far the largest tensors. The output layer therefore processes a part of
        the M positions at a time, and the backward pass runs from the part's losses to the output layer's inputs (rows
        of the model's output, and the memory) before the next part starts. The gradient is the same, but only one
        part's log-probabilities are in memory. Losses on attention or output read all positions at once.

        Args:
            batch: the batch, on the CPU.
            read: the forward pass; default: `Model.read`.
            around_last: context for the last backward pass, unless an objective runs backward passes in
                `custom_backward`.
        """
        totals: dict[str, Tensor] = {}
        inputs, memory = self._forward(batch, read or self.model.read)
        whole_batch_losses = self._whole_batch_losses(inputs, totals)
        roots = self._backward_in_parts(inputs, memory, totals) + whole_batch_losses
        is_last = all(
            type(objective).custom_backward is Objective.custom_backward
            for objective in self.objectives
        )
        if around_last is None or not is_last:
            around_last = nullcontext()
        with around_last:
            _backward(roots)
        for objective in self.objectives:
            sums = objective.custom_backward(self, batch)
            _add(totals, sums)
        return totals

    def _forward(self, batch: Batch, read: Reader) -> tuple[ObjectiveInput, Memory | None]:
        device_batch = batch.to(self.device)
        needs = {objective.needs for objective in self.objectives}
        heads = None  # (B, A, T, S)
        if "heads" in needs:
            model = as_multi_head(self.model)
            assert model is not None, f"{self.model.config.kind} has no heads"
            memory: Memory | None = model.encode(device_batch)
            output, heads = model.unroll_with_heads(device_batch, memory)
        else:
            output, memory = read(device_batch, "attention" in needs)
        if "attention" in needs or "heads" in needs:
            assert output.attention is not None, f"{self.model.config.kind} returns no attention"
        inputs = ObjectiveInput(
            model=self.model,
            batch=batch,
            device_batch=device_batch,
            vocabulary_size=self.model.vocabulary_size,
            output=output,
            heads=heads,
        )
        return inputs, memory

    def _whole_batch_losses(self, inputs: ObjectiveInput, totals: dict[str, Tensor]) -> list[_Root]:
        """Returns the losses that read all positions at once, and adds their sums to `totals`."""
        losses: list[_Root] = []
        for objective in self.objectives:
            if objective.needs not in ("attention", "heads", "output"):
                continue
            terms = objective.terms(inputs)
            loss = terms[objective.loss_name] * self._scale(objective)  # ()
            losses.append(_Root(loss))
            sums = {name: term.detach() for name, term in terms.items()}
            _add(totals, sums, objective.weight)
        return losses

    def _backward_in_parts(
        self, inputs: ObjectiveInput, memory: Memory | None, totals: dict[str, Tensor]
    ) -> list[_Root]:
        """Runs the backward pass of all losses on log-probabilities, down to the inputs of the output layer.

        Computes the log-probabilities for a part of the M positions at a time, and differentiates each part before the
        next one. Adds the sums of the losses to `totals`.

        Returns the tensors at which the backward pass stopped, with their gradients.
        """
        objectives = [objective for objective in self.objectives if objective.needs == "log_probs"]
        needed_words = {objective.reads_words for objective in objectives}
        mask = inputs.batch.loss_mask  # (B, T)
        rows = inputs.output.gather(mask)  # (M, *)
        n_rows = rows.features.shape[0]
        copies = rows.copy_gate is not None
        # For a model that copies, `log_likelihood` cannot return the sum over the vocabulary.
        needs_log_probs = "all" in needed_words or (copies and "sum" in needed_words)
        needs_sums = "sum" in needed_words
        # Selected on the CPU, so that nothing waits for the device.
        targets = inputs.batch.loss_targets(extended=copies)[mask]  # (M,)
        targets = send(targets, self.device)
        row_bytes = 4 * (inputs.vocabulary_size + inputs.batch.n_oov)
        part_size = max(1, self.chunk_bytes // row_bytes)
        # all parts contribute to the gradients of the memory
        memory_leaf = None if memory is None else memory.mapped(_leaf)

        parts: list[ModelOutput] = []
        sums_of_parts: list[Tensor] = []  # for each part, the sums of all objectives
        # at least one part, even for a batch without targets
        for begin in range(0, max(1, n_rows), part_size):
            part = slice(begin, min(begin + part_size, n_rows))
            part_output = rows.select(part).mapped(_leaf)  # (m, *)
            log_probs = None  # (m, X)
            word_sums = None  # (m,)
            if needs_log_probs:
                log_probs = self.model.predict(part_output, memory_leaf)
                target_log_probs = log_probs.gather(-1, targets[part, None]).squeeze(-1)  # (m,)
            else:
                target_log_probs, word_sums = log_likelihood(
                    model=self.model,
                    output=part_output,
                    memory=memory_leaf,
                    wanted=targets[part],
                    summed=needs_sums,
                )
            part_inputs = replace(
                inputs,
                output=part_output,
                log_probs=log_probs,
                nll=-target_log_probs,
                sums=word_sums,
                part=part,
            )
            losses: list[_Root] = []
            part_sums: list[Tensor] = []
            for objective in objectives:
                terms = objective.terms(part_inputs)
                loss = terms[objective.loss_name] * self._scale(objective)  # ()
                losses.append(_Root(loss))
                for name in objective.normalizers:
                    part_sums.append(terms[name].detach())
            _backward(losses)
            parts.append(part_output)
            sums_of_parts.append(torch.stack(part_sums))

        all_sums = iter(torch.stack(sums_of_parts).sum(0).unbind())
        for objective in objectives:
            sums = {name: next(all_sums) for name in objective.normalizers}
            _add(totals, sums, objective.weight)
        roots = _roots_of_parts(rows, parts)
        if memory is not None and memory_leaf is not None:
            for tensor, leaf in zip(memory.tensors(), memory_leaf.tensors(), strict=True):
                if leaf.grad is not None:
                    roots.append(_Root(tensor, leaf.grad))
        return roots

    def _scale(self, objective: Objective) -> float:
        count = self.counts[objective.normalizers[objective.loss_name]]
        return self.factor * objective.weight / max(1, count)


def _add(totals: dict[str, Tensor], sums: Mapping[str, Tensor], weight: float = 1.0) -> None:
    """Adds sums by name to the totals; only `LOSS`, to which several objectives may contribute, is weighted."""
    for name, value in sums.items():
        addend = value
        if name == LOSS:
            addend = weight * value
        if name in totals:
            totals[name] = totals[name] + addend
        else:
            totals[name] = addend


def _leaf(tensor: Tensor) -> Tensor:
    """Detaches a tensor from its graph, so that the backward pass stops there and leaves a gradient."""
    if not tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_()


def _roots_of_parts(rows: ModelOutput, parts: Sequence[ModelOutput]) -> list[_Root]:
    """Returns the tensors of `rows` that the losses of the parts depend on, with their gradients."""
    roots: list[_Root] = []
    tensors_of_parts = [part.tensors() for part in parts]
    for number, tensor in enumerate(rows.tensors()):
        leaves = [tensors[number] for tensors in tensors_of_parts]
        if all(leaf.grad is None for leaf in leaves):
            continue
        gradients: list[Tensor] = []
        for leaf in leaves:
            gradient = leaf.grad
            if gradient is None:
                gradient = torch.zeros_like(leaf)
            gradients.append(gradient)
        roots.append(_Root(tensor, torch.cat(gradients)))
    return roots


def _backward(roots: Sequence[_Root]) -> None:
    """Runs a backward pass outside autocast, as torch recommends: operations keep the types of their forward pass."""
    # with frozen weights, losses may have no graph
    trained = [root for root in roots if root.tensor.requires_grad]
    if not trained:
        return
    tensors = [root.tensor for root in trained]
    gradients = [root.gradient for root in trained]
    with torch.autocast(tensors[0].device.type, enabled=False):
        torch.autograd.backward(tensors, gradients)
