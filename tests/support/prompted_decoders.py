"""Tiny decoders for tests: two without a source, that attends to its own text or has a state, and a captioner."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import EOS, PAD
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import LearnedPositions, SelfAttention
from nmtkit.models.abilities import ParallelPrefill
from nmtkit.models.base import (
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    VocabularySizes,
)
from nmtkit.models.transformer import TransformerConfig

SIZE = 12
"""Words of the vocabulary."""


class AttendingModel(ParallelPrefill[Memory, DecoderState]):
    """Two layers of causal self-attention over learned positions; it reads a prompt in one pass."""

    Config = TransformerConfig

    def __init__(self, size: int = SIZE, most: int = 64) -> None:
        super().__init__(self.Config(hidden_size=8, heads=2), VocabularySizes({"tgt": size}))
        torch.manual_seed(0)
        self.tgt_embedding, self.positions = nn.Embedding(size, 8), LearnedPositions(8, most)
        self.attentive = nn.ModuleList(SelfAttention(self.config) for _ in range(2))  # type: ignore[arg-type]  # this config has all it needs
        self.output = nn.Linear(8, size)
        nn.init.normal_(self.positions.table, std=0.5)
        with torch.no_grad():
            self.output.weight *= 6.0
            self.output.bias[EOS] += 1.0
        self.double().eval()

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        places = nn.functional.embedding(cache.positions(), self.positions(cache.reach))
        states = self.tgt_embedding(tokens.view(len(memory.mask), -1)) + places  # (B,K,H)
        for number, layer in enumerate(self.attentive):
            states = states + layer.step(states, cache, number)  # type: ignore[operator]  # a Module has no `step` for mypy
        return ModelOutput(states.flatten(0, 1)), state


@dataclass(frozen=True)
class HiddenState(DecoderState):
    hidden: Tensor
    """`(N,8)`."""


class RecurrentConfig(ModelConfig):
    kind: Literal["recurrent_test"] = "recurrent_test"


class RecurrentModel(Decoder[Memory, HiddenState]):
    """A GRU cell: what it has read is in its state, and nothing in the cache."""

    Config = RecurrentConfig

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(self.Config(), VocabularySizes({"tgt": size}))
        torch.manual_seed(0)
        self.tgt_embedding, self.cell, self.output = (
            nn.Embedding(size, 8),
            nn.GRUCell(8, 8),
            nn.Linear(8, size),
        )
        with torch.no_grad():
            self.output.weight *= 9.0
            self.output.bias[EOS] += 1.0
        self.double().eval()

    def start(self, memory: Memory) -> HiddenState:
        return HiddenState(self.output.weight.new_zeros(len(memory.mask), 8))

    def advance(
        self,
        tokens: Tensor,
        state: HiddenState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, HiddenState]:
        hidden = self.cell(self.tgt_embedding(tokens), state.hidden)
        return ModelOutput(hidden), HiddenState(hidden)


@dataclass(frozen=True)
class FeatureMemory(Memory):
    states: Tensor
    """`(B,S,8)`."""


class Captioner(Seq2Seq[FeatureMemory, HiddenState]):
    """A GRU cell that attends to rows of three numbers."""

    Config = RecurrentConfig

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(self.Config(), VocabularySizes({"features": 3, "tgt": size}))
        torch.manual_seed(0)
        self.tgt_embedding, self.cell, self.output = (
            nn.Embedding(size, 8),
            nn.GRUCell(8, 8),
            nn.Linear(16, size),
        )
        self.reading = nn.Linear(3, 8)
        with torch.no_grad():
            self.output.weight *= 5.0
        self.double().eval()

    def encode(self, batch: Batch) -> FeatureMemory:
        states = self.reading(batch.inputs.features.double())
        return FeatureMemory(batch.inputs.mask, batch.inputs.copy, states=states)

    def start(self, memory: FeatureMemory) -> HiddenState:
        return HiddenState(self.output.weight.new_zeros(len(memory.mask), 8))

    def advance(
        self,
        tokens: Tensor,
        state: HiddenState,
        memory: FeatureMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, HiddenState]:
        hidden = self.cell(self.tgt_embedding(tokens), state.hidden)
        queries = hidden.view(len(memory.mask), -1, 8)  # (B,K,8)
        weights = (
            (queries @ memory.states.mT).masked_fill(~memory.mask[:, None], -torch.inf).softmax(-1)
        )
        features = torch.cat([(weights @ memory.states).flatten(0, 1), hidden], 1)
        return ModelOutput(features, weights.flatten(0, 1)), HiddenState(hidden)


MODELS_WITHOUT_SOURCE: dict[str, Callable[[], Decoder]] = {
    "attending": AttendingModel,
    "recurrent": RecurrentModel,
}


def prompts(*rows: list[int]) -> Batch:
    """One sentence for each prompt."""
    longest = max(map(len, rows))
    return Batch(
        prompt=torch.tensor(
            [[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long
        )
    )
