"""The Transformer as a language model: GPT, Radford et al. 2018, and GPT-2, Radford et al. 2019.

A stack of decoder layers that attend to no source, over the words so far (GPT: equation 2 of section 3.1):

    h_0 = U W_e + W_p        h_l = layer_l(h_{l-1})        P(u) = softmax(h_n W_e^T)

GPT normalizes after each sub-layer. GPT-2 normalizes before it and once more after the last layer, and its residual
layers begin with weights smaller by 1 / sqrt(N), where N is the number of residual layers (section 2.3).
"""

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import Activation, DecoderLayer, LayerStack, LearnedPositions, SinusoidalPositions
from nmtkit.models.abilities import LimitedPositions, ParallelPrefill
from nmtkit.models.base import MODELS, DecoderState, Memory, ModelOutput, VocabularySizes, rows_per_sentence
from nmtkit.models.transformer import LayersConfig

INITIAL_STD = 0.02
"""Of all weights: section 4.1 of Radford et al. 2018."""


class TransformerLMConfig(LayersConfig):
    """The defaults suit small corpora; GPT-2 small is 768, 3072, 12 heads, 12 layers, 1024 positions."""

    kind: Literal["transformer_lm"] = "transformer_lm"
    """Which model."""
    layers: Depth = Field(default=4, ge=1)
    """Layers."""
    positions: Literal["learned", "sinusoidal"] = "learned"
    """One trained vector for each position, or sines of fixed wavelengths, which have no longest text."""
    max_positions: Width = Field(default=1024, ge=1)
    """How many positions are learned."""
    activation: Activation = "gelu_tanh"
    """Between the two products of the feed-forward part; GPT and GPT-2 take gelu_tanh."""
    tie: Literal["none", "decoder"] = "decoder"
    """Whether embedding and output layer share one matrix."""
    output_bias: bool = False
    """Whether the output layer has a bias."""


@MODELS.register("transformer_lm")
class TransformerLM(LimitedPositions[Memory, DecoderState], ParallelPrefill[Memory, DecoderState]):
    """Decoder layers over the words so far; see the head of this file."""

    Config = TransformerLMConfig

    def __init__(self, config: TransformerLMConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width = config.hidden_size
        self.tgt_embedding = nn.Embedding(sizes["tgt"], width)
        learned = config.positions == "learned"
        self.tgt_positions = LearnedPositions(width, config.max_positions) if learned else SinusoidalPositions(width)
        self.dropout = Dropout(config.dropout)
        self.decoder = LayerStack(DecoderLayer(config, reads_memory=False) for _ in range(config.layers))
        self.decoder_norm = nn.LayerNorm(width, config.norm_epsilon) if config.norm == "pre" else nn.Identity()
        self.output = nn.Linear(width, sizes["tgt"], bias=config.output_bias)
        self.tie_output()
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                ends_a_branch = config.norm == "pre" and name.endswith("out.weight")
                nn.init.normal_(parameter, std=INITIAL_STD / (math.sqrt(2 * config.layers) if ends_a_branch else 1.0))
            elif name == "output.bias":
                nn.init.zeros_(parameter)

    def reserve_positions(self, length: int) -> bool:
        """Makes the table of sinusoids long enough; learned positions are as many as they are."""
        if isinstance(self.tgt_positions, SinusoidalPositions):
            self.tgt_positions.reserve(length)
        return length <= len(self.tgt_positions.table)

    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, DecoderState]:
        """One position of every hypothesis, or all positions of a prompt."""
        ids = tokens.view(-1, rows_per_sentence(tokens.shape[0], memory))
        states = self._enter(ids, F.embedding(cache.positions(), self.tgt_positions(cache.reach)))  # (B,K,H)
        for number, layer in enumerate(self.decoder):
            states, _ = layer(states, cache=(cache, number))
        return ModelOutput(self.decoder_norm(states).flatten(0, 1)), state

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """All positions at once. Padding stands on the right, so that no real position reads it."""
        ids = batch.targets.shifted
        states = self._enter(ids, self.tgt_positions(ids.shape[1]))
        for layer in self.decoder:
            states, _ = layer(states)
        return ModelOutput(self.decoder_norm(states))

    def _enter(self, ids: Tensor, positions: Tensor) -> Tensor:
        """What the first layer reads."""
        entering: Tensor = self.dropout(self.tgt_embedding(ids) + positions)
        return entering
