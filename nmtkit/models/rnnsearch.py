"""RNNsearch: the first translation model with attention (Bahdanau et al. 2015, appendix A).

A bidirectional recurrent encoder gives one state per source word. For each target word the decoder first looks, with
the state it has, then updates that state:

    c_i = attention(s_{i-1}, h)                                        A.1.2
    p(y_i) = softmax(W_o maxout(U_o s_{i-1} + V_o E y_{i-1} + C_o c_i))  A.2.2
    s_i = GRU([E y_{i-1}; c_i], s_{i-1})                               A.1.1

So the word is read out from the state *before* the update, as the appendix says; the last word reaches the output
through V_o.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from nmtkit.data.batch import Batch
from nmtkit.errors import RecipeError
from nmtkit.layers.attention import Additive, Attention
from nmtkit.layers.recurrent import BidirectionalEncoder, Bridge, CellKind, Initialisation, Maxout, StackedCells, initialise
from nmtkit.models.base import (
    MODELS,
    DecoderState,
    Memory,
    ModelConfig,
    Readout,
    Seq2Seq,
    VocabularySizes,
    rows_per_sentence,
)
from nmtkit.settings import Field, model_validator


@dataclass(frozen=True)
class RnnSearchMemory(Memory):
    """The source as the decoder sees it."""

    values: Tensor
    """Encoder states `(B,S,2H)`."""
    keys: Tensor
    """The values, projected for the attention, `(B,S,A)`."""
    summary: Tensor
    """The backward encoder's state at the first word, `(B,H)`."""


@dataclass(frozen=True)
class RnnSearchState(DecoderState):
    """The decoder between two words."""

    hidden: Tensor
    """`(N,L,H)`."""
    cell: Tensor | None
    """An LSTM's memory cells `(N,L,H)`; None for a GRU."""


@MODELS.register("rnnsearch")
class RnnSearch(Seq2Seq):
    """See the head of this file."""

    class Config(ModelConfig):
        """RNNsearch's settings; the paper's RNNsearch-50 has 620, 1000, 1000 and 500 for the first four sizes."""

        kind: Literal["rnnsearch"] = "rnnsearch"
        """Which model."""
        embedding_size: int = Field(default=256, ge=1)
        """Numbers per word, on either side."""
        hidden_size: int = Field(default=256, ge=1)
        """Units of the decoder, and of each direction of the encoder."""
        attention_size: int = Field(default=256, ge=1)
        """Units in which queries and keys are compared."""
        maxout_size: int = Field(default=256, ge=1)
        """Maxout units between decoder and output words."""
        layers: int = Field(default=1, ge=1)
        """Recurrent layers of the encoder and of the decoder; the paper has 1. The top layer looks and is read out."""
        cell: CellKind = "gru"
        """The recurrent cell."""
        dropout: float = Field(default=0.2, ge=0, lt=1)
        """Probability, on embeddings, encoder states, between layers and before the output words."""
        tie_embeddings: Literal["none", "output", "all"] = "none"
        """One matrix for target embeddings and output words (output), and for source embeddings too (all)."""
        initialisation: Initialisation = "xavier"
        """How weights start: xavier, or the small normal numbers of the paper."""

        @model_validator(mode="after")
        def _tied_sizes(self) -> "RnnSearch.Config":
            if self.tie_embeddings != "none" and self.maxout_size != self.embedding_size:
                raise ValueError("tied embeddings need maxout_size equal to embedding_size")
            return self

    config: "RnnSearch.Config"

    def __init__(self, config: "RnnSearch.Config", sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        embedding, hidden, layers = config.embedding_size, config.hidden_size, config.layers
        self.dropout = nn.Dropout(config.dropout)
        self.src_embedding = nn.Embedding(sizes.src, embedding)
        self.tgt_embedding = nn.Embedding(sizes.tgt, embedding)
        self.encoder = BidirectionalEncoder(config.cell, embedding, hidden, layers, config.dropout)
        self.attention = Attention(Additive(hidden, 2 * hidden, config.attention_size))
        self.bridge = Bridge(config.cell, hidden, hidden, layers)
        self.decoder = StackedCells(config.cell, embedding + 2 * hidden, hidden, layers, config.dropout)
        self.readout = Maxout(hidden + embedding + 2 * hidden, config.maxout_size)
        self.output = nn.Linear(config.maxout_size, sizes.tgt)
        initialise(self, config.initialisation)
