"""An ensemble: several trained models as one, by the mean of their predictions.

Each member reads the source and decodes by itself; they share the chosen words and the numbers of the words that only
the source has. A member that copies mixes its copies in before the mean; to one that does not, such words are unknown
and have no probability.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.abilities import Copying
from nmtkit.models.base import (
    Combined,
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    extended_to_unk,
)

Mean = Literal["probabilities", "log-probabilities"]
"""What is averaged. Averaging probabilities gives a mixture: one confident member is enough. Averaging
log-probabilities lets any member veto a word."""


class CombinedConfig(ModelConfig):
    """Models that decode together; no recipe has it."""

    kind: Literal["ensemble", "shallow_fusion"]
    """How they are combined."""
    copying: bool
    """Whether one of them copies."""


@dataclass(frozen=True)
class EnsembleMemory(Memory):
    """The memories of all members."""

    members: tuple[Memory, ...]


@dataclass(frozen=True)
class EnsembleState(DecoderState):
    """The states of all members."""

    members: tuple[DecoderState, ...]


@dataclass(frozen=True)
class EnsembleOutput(ModelOutput):
    """The outputs of all members; `features` are those of the first, attention and p_gen are means.

    p_gen of a member that does not copy is 1; attention is of the members that have any.
    """

    members: tuple[ModelOutput, ...] = ()


class SideBySide(
    Combined[EnsembleMemory, EnsembleState],
    Copying[EnsembleMemory, EnsembleState],
    Seq2Seq[EnsembleMemory, EnsembleState],
):
    """Models in evaluation mode, on one device, that decode together; each encodes the source, language models none.

    A subclass combines their predictions in `logits` and their outputs in `_joined`.
    """

    def __init__(self, config: ModelConfig, members: Sequence[Decoder]) -> None:
        super().__init__(config, members[0].sizes)
        self.members = nn.ModuleList(members)
        self.has_attention = any(one.has_attention for one in members)
        self.eval()

    def encode(self, batch: Batch) -> EnsembleMemory:
        """Runs the encoder of each."""
        members = tuple(one.encode(batch) for one in self._members())
        if not batch.reads_text:
            return EnsembleMemory(members[0].mask, members[0].copy, members)
        return EnsembleMemory(batch.inputs.mask, batch.inputs.copy, members)

    def start(self, memory: EnsembleMemory) -> EnsembleState:
        """The first state of each."""
        members = zip(self._members(), memory.members, strict=True)
        return EnsembleState(tuple(one.start(own) for one, own in members))

    def advance(
        self, tokens: Tensor, state: EnsembleState, memory: EnsembleMemory, cache: KVCache, need_attention: bool = False
    ) -> tuple[EnsembleOutput, EnsembleState]:
        """A step of each; their layers follow each other in the one cache."""
        known = extended_to_unk(tokens, self.sizes) if self.config.copies else tokens
        readouts, states = [], []
        for one, own, its in zip(self._members(), state.members, memory.members, strict=True):
            cache.begin_model()
            readout, after = one.advance(tokens if one.config.copies else known, own, its, cache, need_attention)
            readouts.append(readout)
            states.append(after)
        return self._joined(readouts, need_attention), EnsembleState(tuple(states))

    def unroll(self, batch: Batch, memory: EnsembleMemory, need_attention: bool = False) -> EnsembleOutput:
        """All steps of each."""
        members = zip(self._members(), memory.members, strict=True)
        return self._joined([one.unroll(batch, own, need_attention) for one, own in members], need_attention)

    def copied(
        self, log_probs: Tensor, readout: ModelOutput, memory: EnsembleMemory, excess: Tensor | None = None
    ) -> Tensor:
        """What `logits` gives has the copies already."""
        return log_probs if excess is None else log_probs - excess

    def _members(self) -> list[Decoder]:
        return [one for one in self.members if isinstance(one, Decoder)]

    def _predictions(self, readout: ModelOutput, memory: EnsembleMemory) -> list[Tensor]:
        """Log-probabilities of each: `(...,X)`, or `(...,V)` of one that does not copy."""
        assert isinstance(readout, EnsembleOutput)
        members = zip(self._members(), readout.members, memory.members, strict=True)
        return [one.predict(replace(own, sentence=readout.sentence), its) for one, own, its in members]

    @abstractmethod
    def _joined(self, readouts: Sequence[ModelOutput], need_attention: bool) -> EnsembleOutput:
        """The outputs of all members as one."""


class Ensemble(SideBySide):
    """A mean of models over one vocabulary; by default all weigh the same."""

    Config = CombinedConfig

    def __init__(
        self, members: Sequence[Decoder], mean: Mean = "probabilities", weights: Sequence[float] | None = None
    ) -> None:
        weights = [1.0] * len(members) if weights is None else weights
        if len(weights) != len(members) or not all(weight > 0 for weight in weights):
            raise RecipeError(f"an ensemble of {len(members)} models needs as many weights, each above 0")
        sizes = members[0].sizes
        if any(one.sizes != sizes for one in members):
            raise RecipeError("the models of an ensemble have one vocabulary, and these have several sizes of it")
        copying = any(one.config.copies for one in members)
        super().__init__(CombinedConfig(kind="ensemble", copying=copying), members)
        self.of_logs = mean == "log-probabilities"
        self.shares = [weight / sum(weights) for weight in weights]

    def logits(self, readout: ModelOutput, memory: EnsembleMemory) -> Tensor:
        """The mean `(...,X)`, with copies; normalised for probabilities, not for log-probabilities."""
        width = self.sizes["tgt"] if memory.shortlist is None else memory.shortlist.bias.shape[1]
        width += memory.copy.n_oov if self.config.copies else 0
        means: list[Tensor] = []
        for log_probs, share in zip(self._predictions(readout, memory), self.shares, strict=True):
            log_probs = pad(log_probs, (0, width - log_probs.shape[-1]), value=-torch.inf)
            means.append(log_probs * share if self.of_logs else log_probs + math.log(share))
        return reduce(torch.add if self.of_logs else torch.logaddexp, means)

    def _joined(self, readouts: Sequence[ModelOutput], need_attention: bool) -> EnsembleOutput:
        shared = list(zip(readouts, self.shares, strict=True))
        looks = [(one.attention, share) for one, share in shared if one.attention is not None]
        attention = gate = None
        if looks and (need_attention or self.config.copies):
            if len({look.shape for look, _ in looks}) > 1:
                raise RecipeError(
                    "the attention of these models has no mean: they see pictures in different numbers of regions "
                    "(`model.cnn`); name one of them, or set coverage_penalty to 0 where they only write"
                )
            total = sum(share for _, share in looks)
            attention = torch.stack([look.to(at_least_float32(look)) * (share / total) for look, share in looks]).sum(0)
        if self.config.copies:
            mean = torch.stack([one.copy_gate * share for one, share in shared if one.copy_gate is not None]).sum(0)
            gate = mean + sum(share for one, share in shared if one.copy_gate is None)
        return EnsembleOutput(readouts[0].features, attention, gate, members=tuple(readouts))
