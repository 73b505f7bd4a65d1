"""The contract between objectives and the training loop, and the one way in which gradients are made.

An objective is given what the model says of the given targets (`ObjectiveInput`) and returns sums over a batch, each
under a name. The loop adds them up by name over batches, processes and updates, divides each by its normalizer, and
knows none of them. To add one, write a class in a file of its own and enter it in `OBJECTIVES` under the key of
`training` that asks for it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings
from nmtkit.data.batch import Batch
from nmtkit.models.base import DecoderOutput, Memory, Seq2Seq, as_headed

OBJECTIVES: Registry["type[Objective]"] = Registry("training objective")
"""Every objective under the key of `training` whose value makes one; see `Objective.from_setting`."""

InputKind = Literal["words", "attention", "heads", "nothing"]

LOSS = "loss"
"""The name of the sum that is minimised, of an objective that does not tell its own apart from those of others. Such
sums are added up with their weights: together they are what is minimised, but for the terms that have a name."""


_Gradient = tuple[Tensor, Tensor | None]
"""Where a gradient begins or goes on, and what arrived there; None for a loss."""


@dataclass(frozen=True)
class ObjectiveInput:
    """What a model says of given targets, as much of it as an objective asks for."""

    batch: Batch
    """The sentences and their targets, on the CPU, where nothing waits for the device."""
    device_batch: Batch
    """The same on the device."""
    vocabulary_size: int
    """V."""
    decoder_output: DecoderOutput
    """All steps `(B,T,*)`; for an objective of words the M positions of `part`, `(M,*)`."""
    heads: Tensor | None = None
    """Weights of all heads of the layer whose attention is shown `(B,A,T,S)`, for an objective that reads them."""
    log_probs: Tensor | None = None
    """Of the words at the positions of `part`, `(M,X)`, for an objective of words."""
    part: slice = field(default_factory=lambda: slice(None))
    """Which of the positions in `batch.tgt_mask`, in row-major order."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """Something that a training minimises."""

    weight: float = 1.0
    """What its mean is multiplied with."""

    normalizers: ClassVar[Mapping[str, str]]
    """The names of its sums, and the count that each is a mean over: `tokens` or `sentences`, or one of `counts`. The
    first one is minimised, times the weight; the others are only told."""
    needs: ClassVar[InputKind] = "words"
    """What `terms` is asked about: the log-probabilities of words, part by part; the attention of all steps, alone or
    with all heads of its layer; or nothing, where all that it does is in `custom_backward`."""

    @classmethod
    @abstractmethod
    def from_setting(cls, setting: Any) -> "Objective | None":
        """The objective that the value of its key asks for; None if it asks for none, or if there is no such key."""

    @property
    def remaining_weight(self) -> float:
        """What the weights of all other objectives are multiplied with where there is this one."""
        return 1.0

    @property
    def loss_name(self) -> str:
        """The name of the sum that is minimised."""
        return next(iter(self.normalizers))

    def counts(self, batch: Batch) -> dict[str, int]:
        """What a batch, on the CPU, adds to the counts that no other objective has."""
        return {}

    @abstractmethod
    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Its sums by name: scalars on the device, the minimised one in the graph."""

    def custom_backward(self, update: "GradientAccumulator", batch: Batch) -> dict[str, Tensor]:
        """Adds gradients in a way of its own beside that of `terms`; gives sums by name, `LOSS` times its weight."""
        return {}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """What the log says of its means, but for `LOSS`: the means themselves unless it knows better."""
        return dict(means)


def build_objectives(config: Settings) -> list[Objective]:
    """What the settings of a training ask for, in the order of registration, each with its weight beside the others."""
    asked = ((OBJECTIVES.get(key), getattr(config, key, None)) for key in OBJECTIVES)
    found = [one for one in (objective.from_setting(setting) for objective, setting in asked) if one is not None]
    return [
        replace(one, weight=one.weight * math.prod(other.remaining_weight for other in found if other is not one))
        for one in found
    ]


@dataclass(frozen=True)
class GradientAccumulator:
    """What the gradients of all batches of an update have in common."""

    model: Seq2Seq
    """In training mode, on the device."""
    objectives: Sequence[Objective]
    """What is minimised."""
    counts: Mapping[str, int]
    """What the sums are means over: of all batches of the update in all processes."""
    device: torch.device
    """Where to compute."""
    chunk_bytes: int
    """How large the log-probabilities may be that are in memory at a time."""

    def backward(self, batch: Batch, memory: Memory | None = None) -> dict[str, Tensor]:
        """Adds the gradient of a batch's part of all that is minimised to the model's parameters.

        The log-probabilities of a real vocabulary are by far the largest tensors. The output layer is gone through in
        parts: each part's loss is taken back to what `predict` reads, the rows of the readout and the memory, before
        the next part begins. The gradient is the same; the space is that of one part, and stays in the caches. What
        reads the attention reads it whole; its gradient goes back together with what the parts leave at the attention
        and at the features.

        Args:
            batch: with targets; stays on the CPU, so that finding the kept positions does not wait for the device.
            memory: what `encode` makes of the batch, if somebody has it already.

        Returns:
            The sums of all objectives by their names; on the device and outside the graph.
        """
        totals: dict[str, Tensor] = {}
        if any(objective.needs != "nothing" for objective in self.objectives):
            device_batch = batch.to(self.device, non_blocking=True)
            memory = self.model.encode(device_batch) if memory is None else memory
            inputs = self._unrolled(batch, device_batch, memory)
            whole = self._of_attention(inputs, totals)
            reached = self._through_words(inputs, memory, totals)
            _backward([tensor for tensor, _ in (*reached, *whole)], [gradient for _, gradient in (*reached, *whole)])
        for objective in self.objectives:
            _add(totals, objective.custom_backward(self, batch))
        return totals

    def _unrolled(self, batch: Batch, device_batch: Batch, memory: Memory) -> ObjectiveInput:
        """All steps of the model, with what the objectives read of them."""
        asked = {objective.needs for objective in self.objectives}
        heads = None
        if "heads" in asked:
            model = as_headed(self.model)
            assert model is not None, f"{self.model.config.kind} has no heads"
            readout, heads = model.unroll_with_heads(device_batch, memory)
        else:
            readout = self.model.unroll(device_batch, memory, need_attention="attention" in asked)
        assert readout.attention is not None or not asked & {"attention", "heads"}, (
            f"{self.model.config.kind} shows no attention"
        )
        return ObjectiveInput(batch, device_batch, self.model.sizes.tgt, readout, heads)

    def _of_attention(self, inputs: ObjectiveInput, totals: dict[str, Tensor]) -> list[_Gradient]:
        """The losses of what the attention is asked, and adds their sums to what is told."""
        whole: list[_Gradient] = []
        for objective in self.objectives:
            if objective.needs in ("attention", "heads"):
                terms = objective.terms(inputs)
                whole.append((terms[objective.loss_name] * self._scale(objective), None))
                _add(totals, self._weighted(objective, {name: term.detach() for name, term in terms.items()}))
        return whole

    def _through_words(self, inputs: ObjectiveInput, memory: Memory, totals: dict[str, Tensor]) -> list[_Gradient]:
        """Takes the losses of words back to what the output layer reads, and adds their sums to what is told.

        Returns:
            The tensors that were reached, and their gradients.
        """
        words = [objective for objective in self.objectives if objective.needs == "words"]
        if not words:
            return []
        assert inputs.batch.tgt_mask is not None
        whole = inputs.decoder_output.gather(inputs.batch.tgt_mask)
        rows = max(1, self.chunk_bytes // (4 * (inputs.vocabulary_size + inputs.batch.n_oov)))
        leaves: list[tuple[Tensor, Tensor]] = []  # of the memory: one for all parts
        read = memory.mapped(lambda tensor: _leaf_among(leaves, tensor))
        parts, sums = [], []
        for begin in range(0, whole.features.shape[0], rows):
            place = slice(begin, min(begin + rows, whole.features.shape[0]))
            part = whole.slice_rows(place).mapped(_leaf)  # backward stops there
            log_probs = self.model.predict(part, read)
            here = replace(inputs, decoder_output=part, log_probs=log_probs, part=place)
            terms = [objective.terms(here) for objective in words]
            losses = [
                one[objective.loss_name] * self._scale(objective) for objective, one in zip(words, terms, strict=True)
            ]
            _backward(losses, [None] * len(losses))
            parts.append(part)
            each = (one[name] for objective, one in zip(words, terms, strict=True) for name in objective.normalizers)
            sums.append(torch.stack([term.detach() for term in each]))
        total = iter(torch.stack(sums).sum(0).unbind())
        for objective in words:
            _add(totals, self._weighted(objective, {name: next(total) for name in objective.normalizers}))
        return [
            *_gradients_of(whole, parts),
            *((tensor, leaf.grad) for tensor, leaf in leaves if leaf.grad is not None),
        ]

    def _scale(self, objective: Objective) -> float:
        return objective.weight / max(1, self.counts[objective.normalizers[objective.loss_name]])

    @staticmethod
    def _weighted(objective: Objective, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What has no name of its own is told with its weight."""
        return {name: objective.weight * value if name == LOSS else value for name, value in sums.items()}


def _add(totals: dict[str, Tensor], sums: Mapping[str, Tensor]) -> None:
    """Adds sums to those that are totals, name by name."""
    for name, value in sums.items():
        totals[name] = totals[name] + value if name in totals else value


def _leaf(tensor: Tensor) -> Tensor:
    """The same numbers as the beginning of a graph of their own."""
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _leaf_among(leaves: list[tuple[Tensor, Tensor]], tensor: Tensor) -> Tensor:
    leaf = _leaf(tensor)
    if leaf is not tensor:
        leaves.append((tensor, leaf))
    return leaf


def _gradients_of(whole: DecoderOutput, parts: Sequence[DecoderOutput]) -> list[_Gradient]:
    """The tensors of a readout that the parts' losses reached, and what arrived there."""
    found: list[_Gradient] = []
    for name in (one.name for one in fields(whole)):
        pieces = [getattr(part, name) for part in parts]
        if any(piece is not None and piece.grad is not None for piece in pieces):
            arrived = [torch.zeros_like(piece) if piece.grad is None else piece.grad for piece in pieces]
            found.append((getattr(whole, name), torch.cat(arrived)))
    return found


def _backward(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Backward outside of autocast, where torch wants it: each operation has the types it had on the way forward."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        torch.autograd.backward(tensors, gradients)
