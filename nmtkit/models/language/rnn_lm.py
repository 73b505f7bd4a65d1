"""The LSTM language model: Zaremba et al. 2014, with the dropout of Gal and Ghahramani 2016 and one matrix for words.

The word before, its layers of LSTM cells, and a softmax over the top layer's state (Zaremba et al., section 3):

    x_t = E w_{t-1}        h_t^l = LSTM(h_t^{l-1}, h_{t-1}^l, c_{t-1}^l)        P(w_t) = softmax(W h_t^L + b)

With `tie` W is E: Press and Wolf 2017; Inan et al. 2017, section 3. Dropout is on x, between layers and on h^L, and
never on the way from one time to the next (Zaremba et al., section 3.1). It is drawn anew for each word, or with
`variational` once for a text, the same numbers at all its words (Gal and Ghahramani, section 4.2). Theirs as well are
`recurrent_dropout`, of h_{t-1}^l where it is read, and `word_dropout`, of words wherever they stand. All texts of a
batch share these two, which so are dropped columns of the recurrent matrices and dropped rows of E, and cost no time.

Every block of `batch.block_tokens` begins with a state of zeros: none is carried from one block to the next.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import build_rnn, init_weights, rnn_step, run_rnn
from nmtkit.models.base import MODELS, Decoder, DecoderState, Memory, ModelConfig, ModelOutput, VocabularySizes


class RecurrentLMConfig(ModelConfig):
    """The defaults suit small corpora; the large model of Zaremba et al. is 1500, 2 layers, dropout 0.65."""

    hidden_size: Width = Field(default=256, ge=1)
    """Units of every layer; also the size of the embeddings."""
    layers: Depth = Field(default=2, ge=1)
    """Layers."""
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Dropout of embeddings, of what each layer hands on, and of what the output layer reads."""
    variational: bool = True
    """Dropout is the same at all words of a text; false: it is drawn anew for each word."""
    recurrent_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of the state that a layer reads from the word before, the same in all of a batch."""
    word_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share of the vocabulary whose embeddings are zero in a batch."""
    tie: Literal["none", "decoder"] = "decoder"
    """Whether embedding and output layer share one matrix."""


class RnnLMConfig(RecurrentLMConfig):
    """The layers alone."""

    kind: Literal["rnn_lm"] = "rnn_lm"
    """Which model."""


@dataclass(frozen=True)
class RnnLMState(DecoderState):
    """What has been read."""

    hidden: Tensor
    """`(N,L,H)`."""
    cell: Tensor
    """`(N,L,H)`."""


@MODELS.register("rnn_lm")
class RnnLM(Decoder[Memory, RnnLMState]):
    """LSTM layers over the words so far; see the head of this file."""

    Config: ClassVar[type[ModelConfig]] = RnnLMConfig

    def __init__(self, config: RecurrentLMConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.rates, width = config, config.hidden_size
        self.tgt_embedding = nn.Embedding(sizes["tgt"], width)
        self.decoder = build_rnn("lstm", width, width, config.layers)
        self.output = nn.Linear(width, sizes["tgt"])
        init_weights(self, "xavier")
        self.tie_output()

    def start(self, memory: Memory) -> RnnLMState:
        """Zeros."""
        shape = (len(memory.mask), self.decoder.num_layers, self.decoder.hidden_size)
        zeros = next(self.decoder.parameters()).new_zeros(shape)
        return RnnLMState(zeros, zeros)

    def advance(
        self, tokens: Tensor, state: RnnLMState, memory: Memory, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, RnnLMState]:
        """One word; without dropout, which is for whole texts."""
        hidden, cell = rnn_step(self.decoder, self.tgt_embedding(tokens), state.hidden, state.cell)
        assert cell is not None, "an LSTM has cells"
        return ModelOutput(hidden[:, -1]), RnnLMState(hidden, cell)

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """All words at once. Padding stands on the right, so that no real word reads it."""
        words = batch.targets.shifted
        if not self.training:
            return ModelOutput(run_rnn(self.decoder, self.tgt_embedding(words))[0])
        states = self.embed(words)
        for weights in self.decoder.all_weights:
            states = self.drop(self._layer(states, *weights))
        return ModelOutput(states)

    def embed(self, words: Tensor) -> Tensor:
        """The vectors `(B,T,H)` of words `(B,T)` in training, some words and some numbers dropped."""
        kept = dropout(torch.ones_like(self.tgt_embedding.weight[:, :1]), self.rates.word_dropout, self.training)
        return self.drop(self.tgt_embedding(words) * F.embedding(words, kept))

    def _layer(self, inputs: Tensor, of_inputs: Tensor, of_hidden: Tensor, *biases: Tensor) -> Tensor:
        """A layer over `(B,T,H)`, some columns of whose recurrent matrix `(4H,H)` are dropped."""
        of_hidden = of_hidden * dropout(torch.ones_like(of_hidden[:1]), self.rates.recurrent_dropout, True)
        zeros = 2 * (of_hidden.new_zeros(1, len(inputs), of_hidden.shape[1]),)
        with torch.autocast(inputs.device.type, enabled=False):  # see `run_rnn`
            weights = [of_inputs, of_hidden, *biases]
            states, *_ = torch.lstm(inputs.to(of_hidden), zeros, weights, True, 1, 0.0, self.training, False, True)
        return states

    def drop(self, states: Tensor) -> Tensor:
        """`(B,T,H)` after dropout."""
        if not self.rates.variational:
            return dropout(states, self.rates.dropout, self.training)
        return states * dropout(torch.ones_like(states[:, :1]), self.rates.dropout, self.training)
