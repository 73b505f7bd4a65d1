"""The LSTM language model of Zaremba et al. 2014, with the dropout of Gal and Ghahramani 2016 and tied embeddings.

LSTM layers read the previous word, and a softmax layer predicts the next word from the state of the top layer (Zaremba
et al., section 3):

    x_t = E w_{t-1}        h_t^l = LSTM(h_t^{l-1}, h_{t-1}^l, c_{t-1}^l)        P(w_t) = softmax(W h_t^L + b)

With `tie`, W is E: Press and Wolf 2017; Inan et al. 2017, section 3.

Dropout is applied to x, between layers and to h^L, but not between time steps (Zaremba et al., section 3.1). A dropout
mask is sampled for each word or, with `variational`, once for all words of a text (Gal and Ghahramani, section 4.2).
Gal and Ghahramani also define `recurrent_dropout`, which drops elements of h_{t-1}^l, and `word_dropout`, which drops
all occurrences of a word. All texts in a batch share the masks of `recurrent_dropout` and `word_dropout`. The masks can
thus be applied, at almost no cost, to the columns of the recurrent matrices and to the rows of E.

The state is zero at the beginning of each block of `batch.block_tokens`; no state is carried over to the next block.

Notation: as in `models/base.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import build_rnn, init_weights, rnn_step, run_rnn
from nmtkit.models.base import (
    MODELS,
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    VocabularySizes,
)


class RecurrentLMConfig(ModelConfig):
    """Settings of recurrent language models.

    The defaults suit small corpora; the large model of Zaremba et al. has size 1500, 2 layers and dropout 0.65.
    """

    hidden_size: Width = Field(default=256, ge=1)
    """Number of units in each layer, and the size of the embeddings."""
    layers: Depth = Field(default=2, ge=1)
    """Number of layers."""
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Dropout rate on embeddings, between layers, and on the input of the output layer."""
    variational: bool = True
    """Whether all words in a text share one dropout mask (Gal and Ghahramani 2016); otherwise a mask is sampled for
    each word."""
    recurrent_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout rate on the previous state that a layer reads, with one mask per batch (Gal and Ghahramani 2016)."""
    word_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Proportion of the vocabulary whose embeddings are set to zero in each batch (Gal and Ghahramani 2016)."""
    tie: Literal["none", "decoder"] = "decoder"
    """Layers that share a weight matrix. none: no layers. decoder: the embedding and the output layer
    (Press and Wolf 2017; Inan et al. 2017)."""


class RnnLMConfig(RecurrentLMConfig):
    """Settings of the LSTM language model."""

    kind: Literal["rnn_lm"] = "rnn_lm"


@dataclass(frozen=True)
class RnnLMState(DecoderState):
    """State of the LSTM layers after the words read so far."""

    hidden: Tensor
    """Hidden states `(N, L, H)`."""
    cell: Tensor
    """Memory cells `(N, L, H)`."""


@MODELS.register("rnn_lm")
class RnnLM(Decoder[Memory, RnnLMState]):
    """LSTM layers that read the words so far; see the module docstring."""

    Config: ClassVar[type[ModelConfig]] = RnnLMConfig

    def __init__(self, config: RecurrentLMConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.rates = config
        width = config.hidden_size
        vocabulary_size = sizes["tgt"]
        self.tgt_embedding = nn.Embedding(vocabulary_size, width)
        self.decoder = build_rnn("lstm", width, width, layers=config.layers)
        self.output = nn.Linear(width, vocabulary_size)
        init_weights(self, "xavier")
        self.tie_output()

    @override
    def start(self, memory: Memory) -> RnnLMState:
        decoder = self.decoder
        weight = next(decoder.parameters())
        zeros = weight.new_zeros(
            len(memory.mask), decoder.num_layers, decoder.hidden_size
        )  # (B, L, H)
        return RnnLMState(zeros, zeros)

    def advance(
        self,
        tokens: Tensor,
        state: RnnLMState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RnnLMState]:
        """Runs one step, without dropout, because the masks belong to whole texts."""
        vectors = self.tgt_embedding(tokens)  # (N, H)
        hidden, cell = rnn_step(
            self.decoder, vectors, hidden=state.hidden, cell=state.cell
        )  # (N, L, H), (N, L, H)
        assert cell is not None, "an LSTM has memory cells"
        return ModelOutput(hidden[:, -1]), RnnLMState(hidden, cell)

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """Runs all positions at once. Padding is on the right, so no real position reads it."""
        words = batch.targets.shifted  # (B, T)
        if not self.training:
            states, _ = run_rnn(self.decoder, self.tgt_embedding(words))  # (B, T, H)
            return ModelOutput(states)
        states = self.embed(words)  # (B, T, H)
        for input_weight, recurrent_weight, *biases in self.decoder.all_weights:
            states = self._run_layer(
                states, input_weight, recurrent_weight, biases=biases
            )  # (B, T, H)
            states = self.drop(states)  # (B, T, H)
        return ModelOutput(states)

    def embed(self, words: Tensor) -> Tensor:
        """Returns the embeddings `(B, T, H)` of words `(B, T)` in training, after word dropout and dropout."""
        # 0 for dropped words, and 1 / (1 - rate) for all others.
        weight = self.tgt_embedding.weight
        ones = torch.ones_like(weight[:, :1])  # (V, 1)
        scale_by_word = dropout(ones, self.rates.word_dropout, self.training)  # (V, 1)
        scales = F.embedding(words, scale_by_word)  # (B, T, 1)
        vectors = self.tgt_embedding(words)  # (B, T, H)
        return self.drop(vectors * scales)

    def _run_layer(
        self,
        inputs: Tensor,
        input_weight: Tensor,
        recurrent_weight: Tensor,
        biases: Sequence[Tensor],
    ) -> Tensor:
        """Runs an LSTM layer over inputs `(B, T, H)`, with dropout on the columns of its recurrent matrix `(4H, H)`."""
        hidden_size = recurrent_weight.shape[1]
        ones = torch.ones_like(recurrent_weight[:1])  # (1, H)
        column_scales = dropout(ones, self.rates.recurrent_dropout, training=True)  # (1, H)
        recurrent_weight = recurrent_weight * column_scales  # (4H, H)
        zeros = recurrent_weight.new_zeros(1, len(inputs), hidden_size)  # (1, B, H)
        with torch.autocast(inputs.device.type, enabled=False):  # see `run_rnn`
            states, _, _ = torch.lstm(
                inputs.to(recurrent_weight),
                hx=(zeros, zeros),
                params=[input_weight, recurrent_weight, *biases],
                has_biases=True,
                num_layers=1,
                dropout=0.0,
                train=self.training,
                bidirectional=False,
                batch_first=True,
            )  # (B, T, H)
        return states

    def drop(self, states: Tensor) -> Tensor:
        """Applies dropout to states `(B, T, H)`, with one mask per text if `variational`."""
        rate = self.rates.dropout
        if not self.rates.variational:
            return dropout(states, rate, self.training)
        ones = torch.ones_like(states[:, :1])  # (B, 1, H)
        mask = dropout(ones, rate, self.training)  # (B, 1, H)
        return states * mask
