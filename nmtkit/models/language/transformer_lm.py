"""Transformer language models: GPT (Radford et al. 2018) and GPT-2 (Radford et al. 2019).

A stack of decoder layers without cross-attention reads the words so far (GPT: equation 2 of section 3.1):

    h_0 = U W_e + W_p        h_l = layer_l(h_{l-1})        P(u) = softmax(h_n W_e^T)

GPT normalizes after each sub-layer. GPT-2 normalizes before each sub-layer, and again after the last layer. It also
multiplies the initial weights at the end of each residual branch by 1 / sqrt(N), where N is the number of branches
(section 2.3).

Notation: as in `models/base.py`.
"""

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import (
    Activation,
    DecoderLayer,
    LayerStack,
    LearnedPositions,
    SinusoidalPositions,
)
from nmtkit.models.abilities import LimitedPositions, ParallelPrefill
from nmtkit.models.base import (
    MODELS,
    DecoderState,
    Memory,
    ModelOutput,
    VocabularySizes,
    rows_per_sentence,
)
from nmtkit.models.transformer import LayersConfig

INITIAL_STD = 0.02
"""Standard deviation of all initial weights: section 4.1 of Radford et al. 2018."""


class TransformerLMConfig(LayersConfig):
    """Settings of Transformer language models.

    The defaults suit small corpora; GPT-2 small has hidden_size 768, feed_forward_size 3072, 12 heads, 12 layers and
    1024 positions.
    """

    kind: Literal["transformer_lm"] = "transformer_lm"
    layers: Depth = Field(default=4, ge=1)
    """Number of layers."""
    positions: Literal["learned", "sinusoidal"] = "learned"
    """Position encodings. learned: learned vectors. sinusoidal: sinusoids of fixed wavelengths. Both are in
    Vaswani et al. 2017, section 3.5."""
    max_positions: Width = Field(default=1024, ge=1)
    """Number of learned position embeddings, which limits the text length in tokens; sinusoids impose no limit."""
    activation: Activation = "gelu_tanh"
    """Activation function of the feed-forward networks; GPT and GPT-2 use gelu_tanh."""
    tie: Literal["none", "decoder"] = "decoder"
    """Layers that share a weight matrix. none: no layers. decoder: the embedding and the output layer."""
    output_bias: bool = False
    """Whether the output layer has a bias."""


@MODELS.register("transformer_lm")
class TransformerLM(LimitedPositions[Memory, DecoderState], ParallelPrefill[Memory, DecoderState]):
    """Decoder layers that read the words so far; see the module docstring."""

    Config = TransformerLMConfig

    def __init__(self, config: TransformerLMConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width = config.hidden_size
        vocabulary_size = sizes["tgt"]
        self.tgt_embedding = nn.Embedding(vocabulary_size, width)
        self.tgt_positions: LearnedPositions | SinusoidalPositions
        if config.positions == "learned":
            self.tgt_positions = LearnedPositions(width, config.max_positions)
        else:
            self.tgt_positions = SinusoidalPositions(width)
        self.dropout = Dropout(config.dropout)
        layers = [DecoderLayer(config, reads_memory=False) for _ in range(config.layers)]
        self.decoder = LayerStack(layers)
        pre_norm = config.norm == "pre"
        self.decoder_norm = nn.LayerNorm(width, config.norm_epsilon) if pre_norm else nn.Identity()
        self.output = nn.Linear(width, vocabulary_size, bias=config.output_bias)
        self.tie_output()
        residual_branches = 2 * config.layers
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                std = INITIAL_STD
                if pre_norm and name.endswith("out.weight"):
                    std /= math.sqrt(residual_branches)
                nn.init.normal_(parameter, std=std)
            elif name == "output.bias":
                nn.init.zeros_(parameter)

    @override
    def reserve_positions(self, length: int) -> bool:
        if isinstance(self.tgt_positions, SinusoidalPositions):
            self.tgt_positions.reserve(length)
        return length <= len(self.tgt_positions.table)

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        """Processes one position of each hypothesis, or all positions of a prompt."""
        hypotheses = tokens.shape[0]
        beam_size = rows_per_sentence(hypotheses, memory)
        ids = tokens.view(-1, beam_size)  # (B, K)
        table = self.tgt_positions(cache.reach)  # (P, H)
        positions = F.embedding(cache.positions(), table)  # (B, 1, H), or (1, K, H) for prompts
        states = self._embed(ids, positions)  # (B, K, H)
        for number, layer in enumerate(self.decoder):
            states, _ = layer(states, cache=(cache, number))  # (B, K, H)
        features = self.decoder_norm(states).flatten(0, 1)  # (N, H)
        return ModelOutput(features), state

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """Runs all positions at once. Padding is on the right, so with causal attention no real position reads it."""
        ids = batch.targets.shifted  # (B, T)
        length = ids.shape[1]
        positions = self.tgt_positions(length)  # (T, H)
        states = self._embed(ids, positions)  # (B, T, H)
        for layer in self.decoder:
            states, _ = layer(states)  # (B, T, H)
        features = self.decoder_norm(states)  # (B, T, H)
        return ModelOutput(features)

    def _embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.tgt_embedding(ids) + positions)  # (B, T or K, H)
        return embedded
