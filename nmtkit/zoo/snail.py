"""SNAIL: Mishra et al. 2018, "A Simple Neural Attentive Meta-Learner", as a language model.

Causal convolutions cover nearby positions, and attention covers all earlier ones. Every layer appends its output to its
input, and the result, [x; found], is the input of the next layer (section 3.1, figure 2):

    dense block  tanh(W_f [x_{t-r}; x_t] + b_f) * sigmoid(W_g [x_{t-r}; x_t] + b_g)     r: the dilation; x is 0 before
    TC block     dense blocks with r = 1, 2, 4, ..., the last of which sees T positions       the text
    attention    sum_{i <= t} softmax_i(q_t . k_i / sqrt(K)) v_i                        q, k, v: linear in x

Here TC blocks and attention blocks alternate. In the paper, r starts at 2, so no position would see the previous one. A
linear layer projects to the embedding size before the output layer.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import LayerStack, attend
from nmtkit.models.base import (
    MODELS,
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    VocabularySizes,
)


class SnailConfig(ModelConfig):
    """Settings of SNAIL; the defaults suit small corpora."""

    kind: Literal["snail"] = "snail"
    embedding_size: Width = Field(default=256, ge=1)
    """Size of the embeddings."""
    filters: Width = Field(default=64, ge=1)
    """Number of channels that a convolution adds (D)."""
    reach: int = Field(default=16, ge=2, le=1024)
    """Minimum receptive field, in positions, of the stacked convolutions of a block (T)."""
    blocks: Depth = Field(default=2, ge=1)
    """Number of convolution blocks, each followed by attention (Mishra et al. 2018, section 3.1)."""
    attention_size: Width = Field(default=128, ge=1)
    """Size of queries, keys and values."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout rate for embeddings and the input of the output layer."""
    tie: ClassVar[str] = "decoder"  # the embedding and the output layer share one matrix


@dataclass(frozen=True)
class SnailState(DecoderState):
    """The cached inputs of the convolutions."""

    found: Tensor
    """All features of the last r positions (r: largest dilation), newest last: `(N,r,W)`."""


@MODELS.register("snail")
class Snail(Decoder[Memory, SnailState]):
    """Alternating convolutions and attention; see the module docstring."""

    Config = SnailConfig

    def __init__(self, config: SnailConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width, filters, self.size = config.embedding_size, config.filters, config.attention_size
        self.tgt_embedding = nn.Embedding(sizes["tgt"], width)
        nn.init.normal_(self.tgt_embedding.weight, std=width**-0.5)
        self.dilations, maps = [2**number for number in range((config.reach - 1).bit_length())], []
        for _ in range(config.blocks):
            widths = [width + number * filters for number in range(len(self.dilations) + 1)]
            maps += [nn.Linear(2 * one, 2 * filters) for one in widths[:-1]]
            maps.append(nn.Linear(widths[-1], 3 * self.size))
            width = widths[-1] + self.size
        self.decoder = LayerStack(maps)
        self.last = nn.Linear(width, config.embedding_size)
        self.output = nn.Linear(config.embedding_size, sizes["tgt"])
        self.tie_output()
        self.dropout = Dropout(config.dropout)

    def start(self, memory: Memory) -> SnailState:
        """Returns the state before the first word."""
        shape = (len(memory.mask), self.dilations[-1], self.last.in_features)
        return SnailState(self.tgt_embedding.weight.new_zeros(shape))

    def advance(
        self,
        tokens: Tensor,
        state: SnailState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, SnailState]:
        """Reads one word; an entry of the cache is a key and a value."""
        found = self._found(tokens.view(len(memory.mask), -1), state.found, cache).flatten(0, 1)
        kept = torch.cat([state.found[:, 1:], found[:, None].to(state.found.dtype)], 1)
        return ModelOutput(self.dropout(self.last(found))), SnailState(kept)

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """Reads all words at once. Padding is on the right, so no real word sees it."""
        return ModelOutput(self.dropout(self.last(self._found(batch.targets.shifted))))

    def _found(
        self, ids: Tensor, past: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """Returns the features `(B,T or K,W)` of whole texts `(B,T)`, or of one step `(B,K)` with past and cache."""
        states: Tensor = self.dropout(self.tgt_embedding(ids))
        maps, bias = iter(self.decoder), None
        for number in range(len(self.decoder) // (len(self.dilations) + 1)):
            for r in self.dilations:
                before = (
                    F.pad(states, (0, 0, r, 0))[:, :-r]
                    if past is None
                    else past[:, -r, : states.shape[2]]
                )
                found, gate = next(maps)(torch.cat([before.view_as(states), states], -1)).chunk(
                    2, -1
                )
                states = torch.cat([states, torch.tanh(found) * torch.sigmoid(gate)], -1)
            query, entries = next(maps)(states).split([self.size, 2 * self.size], -1)
            if cache is not None:
                cache.append(number, entries.flatten(0, 1))
                entries, bias = cache.read(number), cache.bias()
            keys, values = entries[:, None].chunk(2, -1)  # (B,1,*,K)
            bias = None if bias is None else bias.to(query.dtype)
            states = torch.cat(
                [states, attend(query[:, None], keys, values, bias, cache is None)[:, 0]], -1
            )
        return states
