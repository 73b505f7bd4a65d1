"""A model without learned weights that copies its source, word for word."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.abilities import Copying
from nmtkit.models.base import (
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    VocabularySizes,
)


@dataclass(frozen=True)
class CopyState(DecoderState):
    position: Tensor
    """`(N,)`: how many words were written."""


class CopyModel(Copying, Seq2Seq):
    """Looks at source word t with weight `sure` in step t, at the others evenly; generates every word alike.

    The end is looked at in its own step only, where it is copied like a word; it is never generated.

    Args:
        size: V, of both sides.
        p_gen: the gate, the same in every step.
        sure: the weight of the word whose turn it is.
    """

    class Config(ModelConfig):
        kind: Literal["copy"] = "copy"

        @property
        def copies(self) -> bool:
            return True

    def __init__(self, size: int, p_gen: float = 0.2, sure: float = 0.9) -> None:
        super().__init__(self.Config(), VocabularySizes({"src": size, "tgt": size}, shared=True))
        self.place = nn.Parameter(torch.zeros(1, dtype=torch.float64))  # says on which device
        self.p_gen = p_gen
        self.sure = sure
        self.eval()

    def encode(self, batch: Batch) -> Memory:
        return Memory(mask=batch.inputs.mask, copy=batch.inputs.copy)

    def start(self, memory: Memory) -> DecoderState:
        return CopyState(torch.zeros(memory.mask.shape[0], dtype=torch.long))

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        assert isinstance(state, CopyState)
        mask = memory.mask.repeat_interleave(len(tokens) // memory.mask.shape[0], 0)  # (N,S)
        last = mask.sum(1) - 1
        at = torch.minimum(state.position, last)[:, None]
        others = mask.scatter(1, last[:, None], False).scatter(1, at, False).double()
        weights = (1 - self.sure) * others / others.sum(1, keepdim=True).clamp(min=1)
        weights = weights.scatter_add(1, at, torch.full_like(weights, self.sure))
        weights = weights / weights.sum(1, keepdim=True)
        gate = torch.full((len(tokens), 1), self.p_gen, dtype=torch.float64)
        return ModelOutput(weights, weights, gate), CopyState(state.position + 1)

    def logits(self, readout: ModelOutput, memory: Memory) -> Tensor:
        """All words of the vocabulary but the end are alike."""
        logits = torch.zeros(*readout.features.shape[:-1], self.sizes["tgt"], dtype=torch.float64)
        logits[..., EOS] = -torch.inf
        return logits
