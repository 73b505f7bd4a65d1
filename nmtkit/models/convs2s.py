"""ConvS2S: Gehring et al. 2017, "Convolutional sequence to sequence learning".

The encoder and the decoder are stacks of convolutions over the sums of word and position embeddings, e_j = w_j + p_j
(section 3.1). Each layer reads windows of k states and applies a gated linear unit v (section 3.2):

    h_i^l = v(W^l [h_{i-k/2}^{l-1}; ...; h_{i+k/2}^{l-1}] + b^l) + h_i^{l-1}        v([A; B]) = A * sigmoid(B)

In the decoder, the window for position i ends at position i. Each decoder layer attends to the encoder states z_j of a
source of m words (section 3.3, equations 1 and 2); g_i is the embedding of the decoder's input at position i:

    d_i^l = W_d^l h_i^l + b_d^l + g_i                          a_ij^l = softmax_j(d_i^l . z_j)
    c_i^l = sqrt(m) sum_j a_ij^l (z_j + e_j)                   h_i^l + W_c^l c_i^l is the input of the next layer

To preserve the variance, the sums v + h, d, z + e and h + W c are multiplied by sqrt(0.5), and c by sqrt(m) (section
3.4 and the authors' code). The gradient of the encoder is divided by the number of decoder layers, since every decoder
layer contributes to it (section 3.4). Weights are initialized as in section 3.5. Embeddings have size f, and layer
states have size d; linear layers convert between the two. The attention in the model's output is the mean of all
layers.

The paper's weight normalization is not implemented.

Notation: as in `models/base.py`, with k, f and d as above.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout, run_by_length
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import LayerStack, LearnedPositions
from nmtkit.models.abilities import LimitedPositions
from nmtkit.models.base import (
    MODELS,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    Tie,
    VocabularySizes,
    require_shared_vocabulary,
    rows_per_sentence,
)

KERNEL_SIZE = 3
"""Number of states in a window (k), as in section 5. It is odd, so that the windows of the encoder are symmetric."""
SUM_SCALE = math.sqrt(0.5)
"""Factor that preserves the variance of a sum of two terms: section 3.4."""


class ConvS2SConfig(ModelConfig):
    """Settings of ConvS2S.

    The defaults suit small corpora; for English-Romanian, the paper uses sizes of 512, 20 encoder layers and 20 decoder
    layers.
    """

    shorthands: ClassVar = {"layers": ("encoder_layers", "decoder_layers")}
    kind: Literal["convs2s"] = "convs2s"
    embedding_size: Width = Field(default=256, ge=1)
    """Size of word and position embeddings on both sides (f)."""
    hidden_size: Width = Field(default=256, ge=1)
    """Size of the states of all layers (d)."""
    layers: Depth | None = Field(default=None, ge=1)
    """Sets both encoder_layers and decoder_layers; cannot be combined with them."""
    encoder_layers: Depth = Field(default=4, ge=1)
    """Number of encoder layers; Gehring et al. 2017 use 20 for English-Romanian."""
    decoder_layers: Depth = Field(default=3, ge=1)
    """Number of decoder layers, each of which has its own attention; Gehring et al. 2017 use 20 for
    English-Romanian."""
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Dropout rate on embeddings, and on the inputs of the convolutions and of the output layer, as in Gehring et al.
    2017."""
    max_positions: Width = Field(default=1024, ge=1)
    """Number of learned position embeddings (Gehring et al. 2017, section 3.1), which limits the text length in tokens,
    including EOS."""
    tie: Tie = "decoder"
    """Layers that share a weight matrix. none: no layers. embeddings: both embeddings. decoder: the target embedding
    and the output layer (Press and Wolf 2017; `--share-input-output-embed` in fairseq). all: all three."""


@dataclass(frozen=True)
class ConvMemory(Memory):
    """Keys and values of the source, which all decoder layers share."""

    keys: Tensor
    """z, `(B, S, f)`."""
    values: Tensor
    """sqrt(m) (z + e) sqrt(0.5), `(B, S, f)`."""


@dataclass(frozen=True)
class ConvState(DecoderState):
    """Recent inputs of the decoder's convolutions, which are still in the window at the next step."""

    inputs: Tensor
    """The last k-1 inputs of each layer, `(N, L, k-1, d)`, newest last; zero before the beginning of the text."""


def _linear(input_size: int, output_size: int, gain: float = 1.0) -> nn.Linear:
    """Builds a linear layer whose outputs have `gain` times the variance of its inputs; section 3.5."""
    linear = nn.Linear(input_size, output_size)
    std = math.sqrt(gain / input_size)
    nn.init.normal_(linear.weight, std=std)
    nn.init.zeros_(linear.bias)
    return linear


def _windows(states: Tensor, before: int, after: int) -> Tensor:
    """Concatenates the states in the window of each position: `(B, T, d)` to `(B, T, k*d)`, k = before + 1 + after.

    Windows are padded with zeros at both ends of the text.
    """
    length = states.shape[1]
    padded = F.pad(states, (0, 0, before, after))  # (B, before+T+after, d)
    shifted = []
    for offset in range(before + 1 + after):
        shifted.append(padded[:, offset : offset + length])  # (B, T, d)
    return torch.cat(shifted, -1)


class GatedConvolution(nn.Module):
    """Encoder layer: `(v(W [h; ...; h] + b) + h) sqrt(0.5)`.

    On average the gate of v halves its input, so W is initialized with four times the variance: section 3.5.
    """

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.map = _linear(KERNEL_SIZE * width, 2 * width, gain=4 * (1 - config.dropout))

    def forward(self, windows: Tensor, states: Tensor) -> Tensor:
        """Returns new states `(B, Q, d)`, given the old states `(B, Q, d)` and their windows `(B, Q, k*d)`."""
        gate_inputs = self.map(windows)  # (B, Q, 2d)
        gated = F.glu(gate_inputs, -1)  # (B, Q, d)
        return (gated + states) * SUM_SCALE


class AttendingConvolution(GatedConvolution):
    """Decoder layer: the convolution, followed by attention (equations 1 and 2)."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self.query = _linear(config.hidden_size, config.embedding_size)
        self.context = _linear(config.embedding_size, config.hidden_size)

    def attend(self, states: Tensor, embedded: Tensor, memory: ConvMemory) -> tuple[Tensor, Tensor]:
        """Adds the context to states h `(B, Q, d)`, given the decoder's embedded input g `(B, Q, f)`.

        Returns the input of the next layer `(B, Q, d)` and the attention weights `(B, Q, S)`.
        """
        keys = memory.keys
        values = memory.values
        queries = (self.query(states) + embedded) * SUM_SCALE  # (B, Q, f), d
        energies = queries @ keys.mT  # (B, Q, S)
        weights = masked_softmax(energies, memory.mask[:, None])  # (B, Q, S), a
        contexts = weights.to(values.dtype) @ values  # (B, Q, f), c
        mapped_contexts = self.context(contexts)  # (B, Q, d)
        new_states = (states + mapped_contexts) * SUM_SCALE  # (B, Q, d)
        return new_states, weights


@MODELS.register("convs2s")
class ConvS2S(LimitedPositions[ConvMemory, ConvState], Seq2Seq[ConvMemory, ConvState]):
    """Convolutional encoder and decoder with attention in every decoder layer; see the module docstring."""

    Config = ConvS2SConfig

    def __init__(self, config: ConvS2SConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        require_shared_vocabulary(config.tie, sizes)
        embedding_size = config.embedding_size
        width = config.hidden_size
        keep_rate = 1 - config.dropout
        self.tgt_embedding = nn.Embedding(sizes["tgt"], embedding_size)
        if config.tie in ("embeddings", "all"):
            self.src_embedding = self.tgt_embedding
        else:
            self.src_embedding = nn.Embedding(sizes["src"], embedding_size)
        nn.init.normal_(self.src_embedding.weight, std=0.1)
        nn.init.normal_(self.tgt_embedding.weight, std=0.1)
        self.src_positions = LearnedPositions(embedding_size, config.max_positions)
        self.tgt_positions = LearnedPositions(embedding_size, config.max_positions)
        self.src_map = _linear(embedding_size, width, gain=keep_rate)
        self.tgt_map = _linear(embedding_size, width, gain=keep_rate)
        encoder_layers = [GatedConvolution(config) for _ in range(config.encoder_layers)]
        self.encoder = LayerStack(encoder_layers)
        self.encoder_map = _linear(width, embedding_size)
        decoder_layers = [AttendingConvolution(config) for _ in range(config.decoder_layers)]
        self.decoder = LayerStack(decoder_layers)
        self.decoder_map = _linear(width, embedding_size)
        self.output = _linear(embedding_size, sizes["tgt"], gain=keep_rate)
        self.tie_output()
        self.dropout = Dropout(config.dropout)

    def encode(self, batch: Batch) -> ConvMemory:
        """Runs the encoder. All decoder layers share its keys and values."""
        inputs = batch.inputs
        keys, values = run_by_length(
            self._encode_group, inputs.lengths, [inputs.ids, inputs.mask]
        )  # (B, S, f), (B, S, f)
        return ConvMemory(mask=inputs.mask, copy=inputs.copy, keys=keys, values=values)

    def _encode_group(self, src: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values `(b, s, f)` for some sentences `(b, s)` of a batch."""
        is_real = mask[:, :, None]  # (b, s, 1)
        positions = self.src_positions(src.shape[1])  # (s, f)
        embedded = self.src_embedding(src) + positions  # (b, s, f), e
        embedded = self.dropout(embedded)  # (b, s, f)
        states = self.src_map(embedded)  # (b, s, d)
        side = KERNEL_SIZE // 2
        for layer in self.encoder:
            # Beyond the end of a sentence, windows contain zeros, whether or not the sentence is padded.
            states = states.masked_fill(~is_real, 0.0)  # (b, s, d)
            inputs = self.dropout(states)  # (b, s, d)
            windows = _windows(inputs, before=side, after=side)  # (b, s, k*d)
            states = layer(windows, states)  # (b, s, d)
        keys = self.encoder_map(states)  # (b, s, f), z
        if torch.is_grad_enabled():
            # The values stay the same, but the gradients are divided by the number of decoder layers: section 3.4.
            share = 1 / len(self.decoder)
            keys = keys.detach().lerp(keys, share)  # (b, s, f)
        lengths = is_real.sum(1, keepdim=True)  # (b, 1, 1), m
        scale = SUM_SCALE * lengths.sqrt()  # (b, 1, 1)
        values = (keys + embedded) * scale.to(keys.dtype)  # (b, s, f)
        return keys, values

    @override
    def start(self, memory: ConvMemory) -> ConvState:
        sentences = len(memory.mask)
        layers = len(self.decoder)
        width = self.tgt_map.out_features
        weight = self.tgt_embedding.weight
        shape = (sentences, layers, KERNEL_SIZE - 1, width)
        inputs = weight.new_zeros(shape)  # (B, L, k-1, d)
        return ConvState(inputs)

    @override
    def reserve_positions(self, length: int) -> bool:
        return length <= len(self.tgt_positions.table)

    def advance(
        self,
        tokens: Tensor,
        state: ConvState,
        memory: ConvMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, ConvState]:
        """Runs one step. The window of each layer consists of its last k-1 inputs and the new one."""
        beam_size = rows_per_sentence(len(tokens), memory)
        ids = tokens.view(-1, beam_size)  # (B, K)
        table = self.tgt_positions(cache.reach)  # (P, f)
        positions = F.embedding(cache.positions(), table)  # (B, 1, f)
        embedded = self.tgt_embedding(ids) + positions  # (B, K, f), g
        states = self.tgt_map(embedded)  # (B, K, d)
        new_inputs = []
        layer_weights = []
        for layer, last_inputs in zip(
            self.decoder, state.inputs.unbind(1), strict=True
        ):  # (N, k-1, d)
            newest_input = states.flatten(0, 1)[:, None]  # (N, 1, d)
            newest_input = newest_input.to(last_inputs.dtype)  # (N, 1, d)
            window = torch.cat([last_inputs, newest_input], 1)  # (N, k, d)
            flat_window = window.view(*ids.shape, -1)  # (B, K, k*d)
            states = layer(flat_window, states)  # (B, K, d)
            states, weights = layer.attend(states, embedded, memory)  # (B, K, d), (B, K, S)
            new_inputs.append(window[:, 1:])
            layer_weights.append(weights)
        output = self._join(states, layer_weights, need_attention)  # (B, K, *)
        output = output.mapped(lambda tensor: tensor.flatten(0, 1))  # (N, *)
        return output, ConvState(torch.stack(new_inputs, 1))

    def unroll(self, batch: Batch, memory: ConvMemory, need_attention: bool = False) -> ModelOutput:
        """Runs all positions at once. Padding is on the right, so windows of real positions never contain it."""
        ids = batch.targets.shifted  # (B, T)
        length = ids.shape[1]
        positions = self.tgt_positions(length)  # (T, f)
        words = self.tgt_embedding(ids)  # (B, T, f)
        embedded = self.dropout(words + positions)  # (B, T, f), g
        states = self.tgt_map(embedded)  # (B, T, d)
        layer_weights = []
        for layer in self.decoder:
            inputs = self.dropout(states)  # (B, T, d)
            windows = _windows(inputs, before=KERNEL_SIZE - 1, after=0)  # (B, T, k*d)
            states = layer(windows, states)  # (B, T, d)
            states, weights = layer.attend(states, embedded, memory)  # (B, T, d), (B, T, S)
            layer_weights.append(weights)
        return self._join(states, layer_weights, need_attention)

    def _join(
        self, states: Tensor, layer_weights: list[Tensor], need_attention: bool
    ) -> ModelOutput:
        """Returns the features `(B, Q, f)` for the output layer, with the mean attention of all layers if requested."""
        features = self.decoder_map(states)  # (B, Q, f)
        features = self.dropout(features)  # (B, Q, f)
        attention = None
        if need_attention:
            attention = torch.stack(layer_weights).mean(0)  # (B, Q, S)
        return ModelOutput(features, attention)
