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
from nmtkit.models.abilities import as_headed, log_likelihood
from nmtkit.models.base import Memory, Model, ModelConfig, ModelOutput

# The order is that of the log, and that in which objectives change a batch: pairs of texts are made before words of
# them are hidden.
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

    Config: ClassVar[type[Settings]] = Settings
    """Its settings in `training.objectives`, if it has any; `{}` takes the defaults, a number is its weight."""
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
        return cls(weight=setting, settings=cls.Config()) if setting else None

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

    @classmethod
    def fault_without(cls, model: ModelConfig, begins_from_run: bool) -> str:
        """What is wrong with a model that has a head for this objective, and that no stage trains by it; else empty.

        `begins_from_run`: whether the weights of the model are of another run.
        """
        return ""

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
    chosen: dict[str, Objective] = {}
    for name in OBJECTIVES:
        setting = getattr(config, name, further.get(name))
        objective = None if setting is None else OBJECTIVES.get(name).from_setting(setting)
        if objective is not None:
            chosen[name] = objective
    if any(objective.replaces_likelihood for objective in chosen.values()):
        chosen.pop("label_smoothing", None)
    return chosen


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
        device_batch = batch.to(self.device)
        needs = {objective.needs for objective in self.objectives}
        heads = None
        if "heads" in needs:
            model = as_headed(self.model)
            assert model is not None, f"{self.model.config.kind} has no heads"
            memory: Memory | None = model.encode(device_batch)
            output, heads = model.unroll_with_heads(device_batch, memory)
        else:
            output, memory = read(device_batch, "attention" in needs)
        if needs & {"attention", "heads"}:
            assert output.attention is not None, f"{self.model.config.kind} shows no attention"
        inputs = ObjectiveInput(
            model=self.model,
            batch=batch,
            device_batch=device_batch,
            vocabulary_size=self.model.vocabulary_size,
            output=output,
            heads=heads,
        )
        return inputs, memory

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
        """Backward of all losses on log-probabilities, up to the input of the output layer.

        The log-probabilities of a batch may take more memory than all else. So they are computed for a part of its M
        positions at a time, and each part is differentiated before the next one.

        Returns the tensors at which backward stopped, with their gradients.
        """
        objectives = [objective for objective in self.objectives if objective.needs == "log_probs"]
        reads = {objective.reads_words for objective in objectives}
        mask = inputs.batch.loss_mask
        whole = inputs.output.gather(mask)  # (M,*)
        copies = whole.copy_gate is not None
        needs_log_probs = "all" in reads or (copies and "sum" in reads)
        wanted = inputs.batch.wanted(extended=copies)[mask]  # (M,)
        wanted = send(wanted, self.device)  # on the CPU until here, so that nothing waits for the device
        size = whole.features.shape[0]
        rows = max(1, self.chunk_bytes // (4 * (inputs.vocabulary_size + inputs.batch.n_oov)))
        memory_leaf = memory and memory.mapped(_leaf)  # one for all parts
        parts: list[ModelOutput] = []
        sums: list[Tensor] = []  # of each part, the terms of all objectives
        for begin in range(0, max(1, size), rows):  # a batch may have nothing to predict
            place = slice(begin, min(begin + rows, size))
            part = whole.select(place).mapped(_leaf)
            log_probs = None  # (m,X)
            word_sums = None  # (m,)
            if needs_log_probs:
                log_probs = self.model.predict(part, memory_leaf)
                log_likelihoods = log_probs.gather(-1, wanted[place, None]).squeeze(-1)  # (m,)
            else:
                log_likelihoods, word_sums = log_likelihood(
                    self.model, part, memory_leaf, wanted[place], "sum" in reads
                )
            part_inputs = replace(
                inputs, output=part, log_probs=log_probs, nll=-log_likelihoods, sums=word_sums, part=place
            )
            losses: list[Tensor] = []
            part_sums: list[Tensor] = []
            for objective in objectives:
                terms = objective.terms(part_inputs)
                losses.append(terms[objective.loss_name] * self._scale(objective))
                part_sums += [terms[name].detach() for name in objective.normalizers]
            _backward(losses, [None] * len(losses))
            parts.append(part)
            sums.append(torch.stack(part_sums))
        total = iter(torch.stack(sums).sum(0).unbind())
        for objective in objectives:
            own_totals = {name: next(total) for name in objective.normalizers}
            _add(totals, own_totals, objective.weight)
        gradients = _gradients_of(whole, parts)
        if memory and memory_leaf:
            for tensor, leaf in zip(memory.tensors(), memory_leaf.tensors(), strict=True):
                if leaf.grad is not None:
                    gradients.append((tensor, leaf.grad))
        return gradients

    def _scale(self, objective: Objective) -> float:
        normalizer = objective.normalizers[objective.loss_name]
        return self.factor * objective.weight / max(1, self.counts[normalizer])


def _add(totals: dict[str, Tensor], sums: Mapping[str, Tensor], weight: float = 1.0) -> None:
    for name, value in sums.items():
        weighted = weight * value if name == LOSS else value
        totals[name] = totals[name] + weighted if name in totals else weighted


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _gradients_of(whole: ModelOutput, parts: Sequence[ModelOutput]) -> list[_Gradient]:
    """The tensors of a decoder output that the losses of its parts reached, with their gradients."""
    gradients: list[_Gradient] = []
    tensors_of_parts = [part.tensors() for part in parts]
    for number, tensor in enumerate(whole.tensors()):
        pieces = [tensors[number] for tensors in tensors_of_parts]
        if all(piece.grad is None for piece in pieces):
            continue
        of_pieces = [torch.zeros_like(piece) if piece.grad is None else piece.grad for piece in pieces]
        gradients.append((tensor, torch.cat(of_pieces)))
    return gradients


def _backward(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Backward outside of autocast, as torch advises: each operation has the types that it had in the forward pass."""
    pairs = zip(tensors, gradients, strict=True)
    trained = [(tensor, gradient) for tensor, gradient in pairs if tensor.requires_grad]  # the others are frozen
    if not trained:
        return
    with torch.autocast(tensors[0].device.type, enabled=False):
        torch.autograd.backward([tensor for tensor, _ in trained], [gradient for _, gradient in trained])
