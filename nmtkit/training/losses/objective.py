"""The contract between losses and the training loop, and the backward pass that they share.

An objective returns sums over a batch by name. The loop adds them up over batches, processes and updates, and divides
each by its normalizer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from nmtkit.core.device import send
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.models.base import Memory, Model, ModelOutput, as_headed

OBJECTIVES: Registry["type[Objective]"] = Registry("training objective")
"""Losses by name. A loss of the package has a key of its own in `training`; others get a weight in
`training.objectives`."""

InputKind = Literal["log_probs", "attention", "heads", "output", "none"]

LOSS = "loss"
"""The total loss: the weighted sum of all objectives that report none of their own."""

Reader = Callable[[Batch, bool], tuple[ModelOutput, Memory | None]]
"""What `Model.read` does, for a batch on the device."""
_Gradient = tuple[Tensor, Tensor | None]
"""A tensor in the graph and the gradient that arrived there; None for a loss."""


@dataclass(frozen=True)
class ObjectiveInput:
    """The model's output for a batch, as much of it as an objective needs."""

    model: Model
    batch: Batch
    """What is read and what is to be predicted, on the CPU, so that indexing does not wait for the device."""
    device_batch: Batch
    """The same on the device."""
    vocabulary_size: int
    """V."""
    output: ModelOutput
    """Of all positions, `(B,T,*)` for targets; for an objective that needs `log_probs`, of the M of `part`, `(M,*)`."""
    heads: Tensor | None = None
    """Weights of all heads of the layer whose attention is shown `(B,A,T,S)`, for an objective that needs them."""
    log_probs: Tensor | None = None
    """Log-probabilities at the positions of `part`, `(M,X)`, for an objective that needs them, and reads all words'."""
    nll: Tensor | None = None
    """Negative log-probabilities of what is wanted there, `(M,)`, in nats, for an objective that needs `log_probs`."""
    sums: Tensor | None = None
    """Without `log_probs`: their sum over the vocabulary, `(M,)`, for an objective that reads it."""
    part: slice = field(default_factory=lambda: slice(None))
    """Which of the positions in `batch.loss_mask`, in row-major order."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss that training minimises."""

    weight: float = 1.0
    """Factor on its mean."""
    settings: Any = None
    """The value of its key, if that is a group."""

    normalizers: ClassVar[Mapping[str, str]]
    """Its sums by name, each with the count that it is divided by: `tokens`, `sentences`, or one of `counts`. The first
    is minimised, times the weight; the others are only reported."""
    replaces_likelihood: ClassVar[bool] = False
    """Whether it takes the place of the plain likelihood, as pretraining objectives do."""
    needs: ClassVar[InputKind] = "log_probs"
    """Input of `terms`: log-probabilities, in parts of the batch; the attention of all steps, alone or with all heads
    of its layer; the output of all positions, for the model's further head; or none, if `custom_backward` does it
    all."""
    specials: ClassVar[Sequence[str]] = ()
    """The special tokens that it needs in the vocabulary."""

    @classmethod
    def from_setting(cls, setting: Any) -> "Objective | None":
        """The objective for the value of its key, settings or a weight; None if it is off or the key is missing."""
        if isinstance(setting, Settings):
            return cls(settings=setting)
        return cls(weight=setting) if setting else None

    @property
    def remaining_weight(self) -> float:
        """Factor on the weights of all other objectives."""
        return 1.0

    @property
    def reads_words(self) -> Literal["all", "sum", "wanted"]:
        """Of which words it needs log-probabilities: all; those wanted and the sum of all; those wanted."""
        return "all"

    @property
    def loss_name(self) -> str:
        """The name of the sum that is minimised."""
        return next(iter(self.normalizers))

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """The batch as the model is to read it, and what it is to predict; here as it is.

        It is called with every batch of training and of the validation loss, on the CPU. All that is random must come
        from the generator, a CPU's, which is seeded by the batch's place: so a resumed training sees the same.
        """
        return batch

    def counts(self, batch: Batch) -> dict[str, int]:
        """Additional counts of a batch, which is on the CPU."""
        return {}

    @abstractmethod
    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Its sums by name: scalars on the device, the minimised one in the graph."""

    def custom_backward(self, update: "GradientAccumulator", batch: Batch) -> dict[str, Tensor]:
        """Adds gradients that `terms` cannot express; returns sums by name, `LOSS` times its weight."""
        return {}

    def after_update(self, model: Model, sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
        """May change a buffer of the model by the sums and counts of an update over all processes."""
        return

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """What the log reports of its means, `LOSS` left out: by default the means themselves."""
        return dict(means)


def chosen_objectives(config: Settings) -> dict[str, Objective]:
    """The objectives of a training config by name, in the order of registration."""
    further = getattr(config, "objectives", {})
    chosen = {name: OBJECTIVES.get(name).from_setting(getattr(config, name, further.get(name))) for name in OBJECTIVES}
    if any(one is not None and one.replaces_likelihood for one in chosen.values()):
        chosen["label_smoothing"] = None
    return {name: one for name, one in chosen.items() if one is not None}


def build_objectives(config: Settings) -> list[Objective]:
    """The objectives of a training config, in the order of registration, with their final weights."""
    built = [*chosen_objectives(config).values()]
    return [
        replace(one, weight=one.weight * math.prod(other.remaining_weight for other in built if other is not one))
        for one in built
    ]


@dataclass(frozen=True)
class GradientAccumulator:
    """Adds up the gradients of all batches of one update."""

    model: Model
    """In training mode, on the device."""
    objectives: Sequence[Objective]
    counts: Mapping[str, int]
    """Normalizers: counts over all batches of the update in all processes."""
    device: torch.device
    chunk_bytes: int
    """Largest size of the log-probabilities in memory at a time."""
    factor: float = 1.0
    """What the gradient is multiplied by."""

    def backward(
        self, batch: Batch, read: Reader | None = None, around_last: AbstractContextManager[None] | None = None
    ) -> dict[str, Tensor]:
        """Adds the gradient of a batch, which is on the CPU; returns the sums of all objectives by name, on the device.

        `read` may stand for `Model.read`. The last pass of backward runs in `around_last`, unless an objective has
        passes of its own.

        Log-probabilities are by far the largest tensors. The output layer is therefore run in parts: backward goes from
        each part's loss to the input of `predict`, the rows of the model's output and the memory, before the next part
        begins. The gradient is the same, in the memory of one part. Other losses read the output whole.
        """
        totals: dict[str, Tensor] = {}
        inputs, memory = self._read(batch, read or self.model.read)
        gradients = self._losses_of_the_whole(inputs, totals)
        gradients = self._backward_in_parts(inputs, memory, totals) + gradients
        is_last = all(type(one).custom_backward is Objective.custom_backward for one in self.objectives)
        with around_last if around_last is not None and is_last else nullcontext():
            _backward([tensor for tensor, _ in gradients], [gradient for _, gradient in gradients])
        for objective in self.objectives:
            _add(totals, objective.custom_backward(self, batch))
        return totals

    def _read(self, batch: Batch, read: Reader) -> tuple[ObjectiveInput, Memory | None]:
        moved = batch.to(self.device)
        needs = {objective.needs for objective in self.objectives}
        memory, heads = None, None
        if "heads" in needs:
            model = as_headed(self.model)
            assert model is not None, f"{self.model.config.kind} has no heads"
            memory = model.encode(moved)
            output, heads = model.unroll_with_heads(moved, memory)
        else:
            output, memory = read(moved, "attention" in needs)
        assert output.attention is not None or not needs & {"attention", "heads"}, (
            f"{self.model.config.kind} shows no attention"
        )
        return ObjectiveInput(self.model, batch, moved, self.model.vocabulary_size, output, heads), memory

    def _losses_of_the_whole(self, inputs: ObjectiveInput, totals: dict[str, Tensor]) -> list[_Gradient]:
        losses: list[_Gradient] = []
        for objective in self.objectives:
            if objective.needs in ("attention", "heads", "output"):
                terms = objective.terms(inputs)
                losses.append((terms[objective.loss_name] * self._scale(objective), None))
                _add(totals, {name: term.detach() for name, term in terms.items()}, objective.weight)
        return losses

    def _backward_in_parts(
        self, inputs: ObjectiveInput, memory: Memory | None, totals: dict[str, Tensor]
    ) -> list[_Gradient]:
        """Backward of all losses on log-probabilities to the input of the output layer, which it returns."""
        objectives = [objective for objective in self.objectives if objective.needs == "log_probs"]
        reads = {objective.reads_words for objective in objectives}
        whole = inputs.output.gather(inputs.batch.loss_mask)
        all_words = "all" in reads or (whole.copy_gate is not None and "sum" in reads)
        wanted = inputs.batch.wanted(extended=whole.copy_gate is not None)[inputs.batch.loss_mask]
        wanted = send(wanted, self.device)  # on the CPU until here, so that nothing waits for the device
        rows = max(1, self.chunk_bytes // (4 * (inputs.vocabulary_size + inputs.batch.n_oov)))
        memory_leaf = memory and memory.mapped(_leaf)  # one for all parts
        parts, sums, log_probs, of_all = [], [], None, None
        for begin in range(0, max(1, whole.features.shape[0]), rows):  # a batch may have nothing to predict
            place = slice(begin, min(begin + rows, whole.features.shape[0]))
            part = whole.select(place).mapped(_leaf)  # backward stops there
            if all_words:
                log_probs = self.model.predict(part, memory_leaf)
                found = log_probs.gather(-1, wanted[place, None]).squeeze(-1)
            else:
                found, of_all = self.model.log_likelihood(part, memory_leaf, wanted[place], "sum" in reads)
            here = replace(inputs, output=part, log_probs=log_probs, nll=-found, sums=of_all, part=place)
            terms = [objective.terms(here) for objective in objectives]
            pairs = [*zip(objectives, terms, strict=True)]
            losses = [one[objective.loss_name] * self._scale(objective) for objective, one in pairs]
            _backward(losses, [None] * len(losses))
            parts.append(part)
            sums.append(torch.stack([one[name].detach() for objective, one in pairs for name in objective.normalizers]))
        total = iter(torch.stack(sums).sum(0).unbind())
        for objective in objectives:
            _add(totals, {name: next(total) for name in objective.normalizers}, objective.weight)
        both = zip(memory.tensors(), memory_leaf.tensors(), strict=True) if memory and memory_leaf else ()
        return [*_gradients_of(whole, parts), *((one, leaf.grad) for one, leaf in both if leaf.grad is not None)]

    def _scale(self, objective: Objective) -> float:
        return self.factor * objective.weight / max(1, self.counts[objective.normalizers[objective.loss_name]])


def _add(totals: dict[str, Tensor], sums: Mapping[str, Tensor], weight: float = 1.0) -> None:
    for name, value in sums.items():
        weighted = weight * value if name == LOSS else value
        totals[name] = totals[name] + weighted if name in totals else weighted


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _gradients_of(whole: ModelOutput, parts: Sequence[ModelOutput]) -> list[_Gradient]:
    """The tensors of a decoder output that the losses of its parts reached, with their gradients."""
    gradients: list[_Gradient] = []
    for tensor, *pieces in zip(whole.tensors(), *(part.tensors() for part in parts), strict=True):
        if any(piece.grad is not None for piece in pieces):
            of_pieces = [torch.zeros_like(piece) if piece.grad is None else piece.grad for piece in pieces]
            gradients.append((tensor, torch.cat(of_pieces)))
    return gradients


def _backward(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Backward outside of autocast, as torch advises: each operation has the types that it had in the forward pass."""
    reached = [pair for pair in zip(tensors, gradients, strict=True) if pair[0].requires_grad]  # others are frozen
    if reached:
        with torch.autocast(tensors[0].device.type, enabled=False):
            torch.autograd.backward([tensor for tensor, _ in reached], [gradient for _, gradient in reached])
