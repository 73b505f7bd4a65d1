"""ConvS2S: Gehring et al. 2017, "Convolutional sequence to sequence learning".

Encoder and decoder are stacks of convolutions over words and their positions, e_j = w_j + p_j (section 3.1). A layer
sees k states, and gates what it finds by a gated linear unit (section 3.2):

    h_i^l = v(W^l [h_{i-k/2}^{l-1}; ...; h_{i+k/2}^{l-1}] + b^l) + h_i^{l-1}        v([A; B]) = A * sigmoid(B)

Those of the decoder see the k states up to their own, none that comes later. Each of them looks at the source, whose
encoder states are z_j, with g_i, what the decoder reads at i (section 3.3, equations 1 and 2); m is the length of the
source:

    d_i^l = W_d^l h_i^l + b_d^l + g_i                          a_ij^l = softmax_j(d_i^l . z_j)
    c_i^l = sqrt(m) sum_j a_ij^l (z_j + e_j)                   h_i^l + W_c^l c_i^l goes on to the next layer

Every sum of two such parts is multiplied by sqrt(0.5), so that it varies no more than one (section 3.4 and the authors'
code). So is c by sqrt(m), and what the encoder learns is divided by the number of decoder layers, all of which it hears
(section 3.4). Weights begin as in section 3.5. Embeddings and layers have sizes of their own, f and d: a linear map
stands wherever one becomes the other. The attention shown is the mean of all layers.

Not done here: the weight normalization with which the paper trains.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
"""How many states a convolution sees (k), as in section 5. It is odd: the encoder sees as many words on either side."""
HALF = math.sqrt(0.5)  # what a sum of two is multiplied by: section 3.4


class ConvS2SConfig(ModelConfig):
    """The defaults suit small corpora; the paper has 512 and 512, 20 layers on either side for English-Romanian."""

    shorthands: ClassVar = {"layers": ("encoder_layers", "decoder_layers")}
    kind: Literal["convs2s"] = "convs2s"
    """Which model."""
    embedding_size: Width = Field(default=256, ge=1)
    """Numbers per word and per position, on either side (f)."""
    hidden_size: Width = Field(default=256, ge=1)
    """Numbers that a convolution gives (d)."""
    layers: Depth | None = Field(default=None, ge=1)
    """Layers of the encoder and of the decoder, instead of encoder_layers and decoder_layers; not beside them."""
    encoder_layers: Depth = Field(default=4, ge=1)
    """Layers of the encoder."""
    decoder_layers: Depth = Field(default=3, ge=1)
    """Layers of the decoder, each with an attention of its own."""
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Dropout of embeddings, of what every convolution reads, and of what the output layer reads."""
    max_positions: Width = Field(default=1024, ge=1)
    """How many positions are learned: the longest text, in tokens with its end mark."""
    tie: Tie = "decoder"
    """What shares one matrix: nothing; both embeddings; target embedding and output; or all three."""


@dataclass(frozen=True)
class ConvMemory(Memory):
    """The source as the decoder sees it."""

    keys: Tensor
    """z, `(B,S,f)`."""
    values: Tensor
    """sqrt(m) (z + e), `(B,S,f)`."""


@dataclass(frozen=True)
class ConvState(DecoderState):
    """What the convolutions of the decoder see again."""

    inputs: Tensor
    """The last k-1 inputs of each layer, `(N,L,k-1,d)`, the newest last; zero before the text."""


def _linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A map whose results vary as its inputs do times `gain`, and which begins without bias: section 3.5."""
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=math.sqrt(gain / inputs))
    nn.init.zeros_(linear.bias)
    return linear


def _windows(states: Tensor, before: int, after: int) -> Tensor:
    """Of states `(B,T,d)` those that each position sees, `(B,T,k*d)`; zeros stand beyond both ends."""
    padded, length = F.pad(states, (0, 0, before, after)), states.shape[1]
    return torch.cat([padded[:, first : first + length] for first in range(before + after + 1)], -1)


class GatedConvolution(nn.Module):
    """`(v(W [h; ...; h] + b) + h) sqrt(0.5)`; a gate halves what is found, which the first weights make up for."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.map = _linear(KERNEL_SIZE * width, 2 * width, 4 * (1 - config.dropout))

    def forward(self, windows: Tensor, states: Tensor) -> Tensor:
        """`(B,Q,d)` from what is seen `(B,Q,k*d)` and the states `(B,Q,d)` themselves."""
        return (F.glu(self.map(windows), -1) + states) * HALF


class AttendingConvolution(GatedConvolution):
    """A layer of the decoder: the convolution, and equations 1 and 2."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__(config)
        self.query = _linear(config.hidden_size, config.embedding_size)
        self.context = _linear(config.embedding_size, config.hidden_size)

    def attend(self, states: Tensor, read: Tensor, memory: ConvMemory) -> tuple[Tensor, Tensor]:
        """What goes on `(B,Q,d)`, and weights `(B,Q,S)`, from the states `(B,Q,d)` and g `(B,Q,f)`."""
        energies = ((self.query(states) + read) * HALF) @ memory.keys.mT
        weights = masked_softmax(energies, memory.mask[:, None])
        return (states + self.context(weights.to(memory.values.dtype) @ memory.values)) * HALF, weights


@MODELS.register("convs2s")
class ConvS2S(LimitedPositions[ConvMemory, ConvState], Seq2Seq[ConvMemory, ConvState]):
    """Convolutions with an attention in every decoder layer; see the head of this file."""

    Config = ConvS2SConfig

    def __init__(self, config: ConvS2SConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        require_shared_vocabulary(config.tie, sizes)
        embedding, width, self.reach = config.embedding_size, config.hidden_size, KERNEL_SIZE - 1
        self.tgt_embedding = nn.Embedding(sizes["tgt"], embedding)
        shared = config.tie in ("embeddings", "all")
        self.src_embedding = self.tgt_embedding if shared else nn.Embedding(sizes["src"], embedding)
        for words in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(words.weight, std=0.1)
        self.src_positions, self.tgt_positions = (LearnedPositions(embedding, config.max_positions) for _ in range(2))
        self.src_map, self.tgt_map = (_linear(embedding, width, 1 - config.dropout) for _ in range(2))
        self.encoder = LayerStack(GatedConvolution(config) for _ in range(config.encoder_layers))
        self.encoder_map = _linear(width, embedding)
        self.decoder = LayerStack(AttendingConvolution(config) for _ in range(config.decoder_layers))
        self.decoder_map = _linear(width, embedding)
        self.output = _linear(embedding, sizes["tgt"], 1 - config.dropout)
        self.tie_output()
        self.dropout = Dropout(config.dropout)

    def encode(self, batch: Batch) -> ConvMemory:
        """Runs the encoder; keys and values are the same for all layers of the decoder."""
        mask = batch.inputs.mask
        keys, values = run_by_length(self._encoded, batch.inputs.lengths, batch.inputs.ids, mask)
        return ConvMemory(mask=mask, copy=batch.inputs.copy, keys=keys, values=values)

    def _encoded(self, src: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `(B,S,f)` of sources `(B,S)`."""
        real = mask[:, :, None]
        read = self.dropout(self.src_embedding(src) + self.src_positions(src.shape[1]))  # e, (B,S,f)
        states, side = self.src_map(read), self.reach // 2
        for layer in self.encoder:
            states = states.masked_fill(~real, 0.0)  # beyond the end is nothing
            states = layer(_windows(self.dropout(states), side, side), states)
        keys = self.encoder_map(states)
        if torch.is_grad_enabled():  # the same, with a part of the gradient
            keys = keys.detach().lerp(keys, 1 / len(self.decoder))
        return keys, (keys + read) * (HALF * real.sum(1, keepdim=True).sqrt()).to(keys.dtype)

    def start(self, memory: ConvMemory) -> ConvState:
        """Nothing has been read."""
        shape = (len(memory.mask), len(self.decoder), self.reach, self.tgt_map.out_features)
        return ConvState(self.tgt_embedding.weight.new_zeros(shape))

    def reserve_positions(self, length: int) -> bool:
        """No more than were learned."""
        return length <= len(self.tgt_positions.table)

    def advance(
        self, tokens: Tensor, state: ConvState, memory: ConvMemory, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, ConvState]:
        """One word: each layer sees its last k-1 inputs again."""
        ids = tokens.view(-1, rows_per_sentence(len(tokens), memory))  # (B,K)
        read = self.tgt_embedding(ids) + F.embedding(cache.positions(), self.tgt_positions(cache.reach))
        states, kept, looks = self.tgt_map(read), [], []
        for layer, before in zip(self.decoder, state.inputs.unbind(1), strict=True):
            window = torch.cat([before, states.flatten(0, 1)[:, None].to(before.dtype)], 1)  # (N,k,d)
            states, weights = layer.attend(layer(window.view(*ids.shape, -1), states), read, memory)
            kept.append(window[:, 1:])
            looks.append(weights)
        output = self._readout(states, looks, need_attention).mapped(lambda tensor: tensor.flatten(0, 1))
        return output, ConvState(torch.stack(kept, 1))

    def unroll(self, batch: Batch, memory: ConvMemory, need_attention: bool = False) -> ModelOutput:
        """All words at once. Padding stands on the right, so that no real word sees it."""
        ids = batch.targets.shifted
        read = self.dropout(self.tgt_embedding(ids) + self.tgt_positions(ids.shape[1]))  # g, (B,T,f)
        states, looks = self.tgt_map(read), []
        for layer in self.decoder:
            states = layer(_windows(self.dropout(states), self.reach, 0), states)
            states, weights = layer.attend(states, read, memory)
            looks.append(weights)
        return self._readout(states, looks, need_attention)

    def _readout(self, states: Tensor, looks: list[Tensor], need_attention: bool) -> ModelOutput:
        """What the output layer reads `(B,Q,f)`, and the mean of the weights of all layers."""
        attention = torch.stack(looks).mean(0) if need_attention else None
        return ModelOutput(self.dropout(self.decoder_map(states)), attention)
