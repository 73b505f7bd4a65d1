"""Ensembles: several trained models that decode as one, using the mean of their predictions.

Each member encodes the source and has its own memory and state. All members read the same words, and number the unknown
words of the source in the same way. If a member copies, its copy probabilities are included in the mean; if it does
not, its probability of unknown words is zero.

Notation: as in `models/base.py`.
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
from typing_extensions import override

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
"""The quantity that is averaged. A mean of probabilities is a mixture, in which one confident member is enough. With a
mean of log-probabilities, each member can veto a word."""


class CombinedConfig(ModelConfig):
    """Config of models that decode together; it cannot be part of a recipe."""

    kind: Literal["ensemble", "shallow_fusion"]
    """How the models are combined."""
    copying: bool
    """Whether any member copies."""


@dataclass(frozen=True)
class EnsembleMemory(Memory):
    """Memories of all members."""

    members: tuple[Memory, ...]


@dataclass(frozen=True)
class EnsembleState(DecoderState):
    """States of all members."""

    members: tuple[DecoderState, ...]


@dataclass(frozen=True)
class EnsembleOutput(ModelOutput):
    """Outputs of all members. `features` come from the first member; attention and p_gen are means.

    The mean attention excludes members without attention. If a member does not copy, its p_gen is 1.
    """

    members: tuple[ModelOutput, ...] = ()


class JointDecoder(
    Combined[EnsembleMemory, EnsembleState],
    Copying[EnsembleMemory, EnsembleState],
    Seq2Seq[EnsembleMemory, EnsembleState],
):
    """Several models on one device, in evaluation mode, that decode together. Language models have an empty memory.

    Subclasses combine the members' predictions in `logits` and their outputs in `_join`.
    """

    def __init__(self, config: ModelConfig, members: Sequence[Decoder]) -> None:
        first_member = members[0]
        super().__init__(config, first_member.sizes)
        self.members = nn.ModuleList(members)
        self.has_attention = any(member.has_attention for member in members)
        self.eval()

    @override
    def encode(self, batch: Batch) -> EnsembleMemory:
        memories = tuple(member.encode(batch) for member in self._members())
        if batch.reads_text:
            mask = batch.inputs.mask
            copy = batch.inputs.copy
        else:
            # For images, the memory positions are regions, and only the members know how many there are.
            mask = memories[0].mask
            copy = memories[0].copy
        return EnsembleMemory(mask, copy, memories)

    @override
    def start(self, memory: EnsembleMemory) -> EnsembleState:
        members = zip(self._members(), memory.members, strict=True)
        states = []
        for member, member_memory in members:
            state = member.start(member_memory)
            states.append(state)
        return EnsembleState(tuple(states))

    def advance(
        self,
        tokens: Tensor,
        state: EnsembleState,
        memory: EnsembleMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[EnsembleOutput, EnsembleState]:
        """Runs one step of each member. In the shared cache, each member has its own layers."""
        # Members that do not copy have no embeddings for extended ids.
        plain_tokens = extended_to_unk(tokens, self.sizes) if self.config.copies else tokens  # (N,)
        members = zip(self._members(), state.members, memory.members, strict=True)
        outputs = []
        states = []
        for member, member_state, member_memory in members:
            member_tokens = tokens if member.config.copies else plain_tokens
            cache.begin_model()
            output, new_state = member.advance(
                member_tokens,
                member_state,
                member_memory,
                cache=cache,
                need_attention=need_attention,
            )
            outputs.append(output)
            states.append(new_state)
        return self._join(outputs, need_attention), EnsembleState(tuple(states))

    @override
    def unroll(
        self, batch: Batch, memory: EnsembleMemory, need_attention: bool = False
    ) -> EnsembleOutput:
        members = zip(self._members(), memory.members, strict=True)
        outputs = []
        for member, member_memory in members:
            output = member.unroll(batch, member_memory, need_attention)
            outputs.append(output)
        return self._join(outputs, need_attention)

    def copied(
        self,
        log_probs: Tensor,
        output: ModelOutput,
        memory: EnsembleMemory,
        log_normalizer: Tensor | None = None,
    ) -> Tensor:
        """Returns log-probabilities `(..., X)`, normalized if requested; `logits` already includes the copied words."""
        return log_probs if log_normalizer is None else log_probs - log_normalizer

    def _members(self) -> list[Decoder]:
        return [member for member in self.members if isinstance(member, Decoder)]

    def _predictions(self, output: ModelOutput, memory: EnsembleMemory) -> list[Tensor]:
        """Returns each member's log-probabilities: `(..., X)`, or `(..., V)` if the member does not copy."""
        assert isinstance(output, EnsembleOutput)
        members = zip(self._members(), output.members, memory.members, strict=True)
        predictions = []
        for member, member_output, member_memory in members:
            # `ModelOutput.gather` sets `sentence` only in the joint output.
            member_output = replace(member_output, sentence=output.sentence)
            log_probs = member.predict(member_output, member_memory)  # (..., X or V)
            predictions.append(log_probs)
        return predictions

    @abstractmethod
    def _join(self, outputs: Sequence[ModelOutput], need_attention: bool) -> EnsembleOutput:
        """Combines the outputs of all members into one."""


class Ensemble(JointDecoder):
    """A weighted mean of models with the same vocabulary; by default all weights are equal."""

    Config = CombinedConfig

    def __init__(
        self,
        members: Sequence[Decoder],
        mean: Mean = "probabilities",
        weights: Sequence[float] | None = None,
    ) -> None:
        models = len(members)
        if weights is None:
            weights = [1.0] * models
        are_positive = all(weight > 0 for weight in weights)
        if len(weights) != models or not are_positive:
            raise RecipeError(
                f"an ensemble of {models} models needs {models} weights, all of them above 0"
            )
        first_member = members[0]
        if any(member.sizes != first_member.sizes for member in members):
            raise RecipeError(
                "the models of an ensemble must have the same vocabulary, but their vocabulary sizes differ"
            )
        copying = any(member.config.copies for member in members)
        config = CombinedConfig(kind="ensemble", copying=copying)
        super().__init__(config, members)
        self.averages_log_probs = mean == "log-probabilities"
        total = sum(weights)
        self.shares = [weight / total for weight in weights]

    def logits(self, output: ModelOutput, memory: EnsembleMemory) -> Tensor:
        """Returns the logarithm of the mean, including copied words, `(..., X)`.

        A mean of log-probabilities is not normalized.
        """
        if memory.shortlist is None:
            width = self.sizes["tgt"]
        else:
            width = memory.shortlist.bias.shape[1]
        if self.config.copies:
            width += memory.copy.n_oov
        predictions = self._predictions(output, memory)
        terms: list[Tensor] = []
        for log_probs, share in zip(predictions, self.shares, strict=True):
            missing = width - log_probs.shape[-1]
            log_probs = pad(log_probs, (0, missing), value=-torch.inf)  # (..., X)
            if self.averages_log_probs:
                terms.append(log_probs * share)
            else:
                terms.append(log_probs + math.log(share))
        add = torch.add if self.averages_log_probs else torch.logaddexp
        return reduce(add, terms)

    @override
    def _join(self, outputs: Sequence[ModelOutput], need_attention: bool) -> EnsembleOutput:
        attentions = []
        attention_shares = []
        gates = []
        share_without_gate = 0.0
        for output, share in zip(outputs, self.shares, strict=True):
            if output.attention is not None:
                attentions.append(output.attention)
                attention_shares.append(share)
            if output.copy_gate is None:
                share_without_gate += share  # p_gen = 1
            else:
                gates.append(output.copy_gate * share)

        attention = None
        if attentions and (need_attention or self.config.copies):
            if len({weights.shape for weights in attentions}) > 1:
                raise RecipeError(
                    "the attention of these models cannot be averaged, because they divide images into different "
                    "numbers of regions (`model.cnn`); use only one of the models, or, if you need only captions, set "
                    "coverage_penalty to 0"
                )
            total = sum(attention_shares)
            terms = []
            for weights, share in zip(attentions, attention_shares, strict=True):
                terms.append(weights.to(at_least_float32(weights)) * (share / total))
            attention = torch.stack(terms).sum(0)  # (..., S)

        copy_gate = None
        if self.config.copies:
            copy_gate = torch.stack(gates).sum(0) + share_without_gate  # (..., 1)
        return EnsembleOutput(outputs[0].features, attention, copy_gate, members=tuple(outputs))
