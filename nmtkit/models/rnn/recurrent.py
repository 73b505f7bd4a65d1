"""What the models with a recurrent encoder have in common: settings, embeddings, the encoder, memory and state."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.recurrent import (
    Bridge,
    CellKind,
    Initialisation,
    RecurrentEncoder,
    RecurrentEncoderOutput,
    gather_positions,
    reversed_positions,
)
from nmtkit.models.base import (
    DecoderState,
    M,
    Memory,
    ModelConfig,
    S,
    Seq2Seq,
    Tie,
    VocabularySizes,
    require_shared_vocabulary,
)
from nmtkit.models.embeddings import AnyEmbeddingConfig, source_embedding


class RecurrentConfig(ModelConfig):
    """Sizes of the encoder and the decoder; a model that begins otherwise gives a field another default."""

    embedding_size: Width = Field(default=256, ge=1)
    """Numbers per word, on either side."""
    hidden_size: Width = Field(default=256, ge=1)
    """Units of every layer of the decoder, and of each direction of the encoder."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Probability, on embeddings, between layers and before the output words; with attention on encoder states too."""
    tie: Tie = "none"
    """What shares one matrix: nothing; both embeddings; target embedding and output; or all three."""
    src_embedding: AnyEmbeddingConfig = None
    """Source embeddings that read words in their context: `kind` and its settings. Default: a table of vectors."""

    @abstractmethod
    def encoder(self) -> RecurrentEncoder:
        """A new encoder."""

    def require_equal_where_tied(self, one: str, other: str) -> None:
        """Raises a ValueError if the target embedding is the output layer, and these two sizes differ."""
        size, needed = getattr(self, one), getattr(self, other)
        if self.tie in ("decoder", "all") and size != needed:
            raise ValueError(
                f"tie: {self.tie} uses the target embedding as output layer: {one} {size} must equal {other} {needed}"
            )


class StackedConfig(RecurrentConfig):
    """The shape as well, of an encoder and a decoder of any number of layers."""

    encoder_hidden_size: Width | None = Field(default=None, ge=1)
    """Units of each direction of the encoder. Default: hidden_size."""
    layers: Depth = Field(default=1, ge=1)
    """Recurrent layers of the encoder and of the decoder. Attention and output read the decoder's top layer."""
    encoder_layers: Depth | None = Field(default=None, ge=1)
    """Layers of the encoder. Default: layers."""
    cell: CellKind = "gru"
    """The recurrent cell."""
    bidirectional: bool = False
    """The encoder reads the source in both directions."""
    reverse_source: bool = False
    """The encoder reads the source from the last word to the first; for a one-directional encoder."""
    initialisation: Initialisation = "xavier"
    """How weights start: xavier, or as in the paper (small normal numbers; Luong's: uniform between -0.1 and 0.1;
    Sutskever's, which is `rnn_encdec` without `feed_context`: between -0.08 and 0.08)."""

    @model_validator(mode="after")
    def _encoder_fits_together(self) -> "StackedConfig":
        if self.reverse_source and self.bidirectional:
            raise ValueError("reverse_source: a bidirectional encoder reads the source both ways: set one to false")
        return self

    @property
    def depth(self) -> int:
        """Layers of the encoder."""
        return self.encoder_layers or self.layers

    @property
    def width(self) -> int:
        """Units of each direction of the encoder."""
        return self.encoder_hidden_size or self.hidden_size

    @property
    def memory_size(self) -> int:
        """Numbers in a state of an encoder layer, all directions together: M."""
        return self.width * (2 if self.bidirectional else 1)

    def require_score_fits(self, score: str) -> None:
        """Raises a ValueError if a score multiplies states of decoder and encoder, but they differ in size."""
        if score in ("dot", "scaled_dot") and self.memory_size != self.hidden_size:
            raise ValueError(
                f"score: {score} multiplies decoder states of {self.hidden_size} numbers with encoder states of "
                f"{self.memory_size}: set encoder_hidden_size so that they are equal, or score to general or additive"
            )

    def require_bridge_fits(self, bridge: str) -> None:
        """Raises a ValueError if the encoder's final states cannot be copied as they are."""
        if bridge == "copy" and (self.memory_size, self.depth) != (self.hidden_size, self.layers):
            raise ValueError(
                f"bridge: copy hands on the encoder's final states, {self.depth} x {self.memory_size} numbers (layers "
                f"x units) where the decoder has {self.layers} x {self.hidden_size}: make them equal, read the source "
                "in one direction, or set bridge to tanh or linear"
            )

    def encoder(self) -> RecurrentEncoder:
        """A new encoder."""
        return RecurrentEncoder(
            cell=self.cell,
            input_size=self.embedding_size,
            hidden_size=self.width,
            layers=self.depth,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class RecurrentMemory(Memory):
    """The source as a recurrent decoder sees it."""

    hidden: Tensor
    """The decoder's first hidden state, `(B,L,H)`."""
    cell: Tensor | None
    """The decoder's first memory cell, `(B,L,H)`; None for a GRU."""


@dataclass(frozen=True)
class AttentionMemory(RecurrentMemory):
    """The source as a decoder sees it that looks at its words. M is the size of the encoder's states."""

    values: Tensor
    """Encoder states `(B,S,M)`, in the order of the source."""
    keys: Tensor
    """The values, projected for the attention, `(B,S,*)`."""


@dataclass(frozen=True)
class RecurrentState(DecoderState):
    """A decoder between two words."""

    hidden: Tensor
    """`(N,L,H)`."""
    cell: Tensor | None
    """An LSTM's memory cells `(N,L,H)`; None for a GRU."""


class RecurrentModel(Seq2Seq[M, S]):
    """Embeddings of both sides, dropout and a recurrent encoder; a model adds its decoder and its output layer."""

    def __init__(self, config: RecurrentConfig, sizes: VocabularySizes, reverse_source: bool = False) -> None:
        super().__init__(config, sizes)
        require_shared_vocabulary(config.tie, sizes)
        self.reverse_source = reverse_source
        self.dropout = Dropout(config.dropout)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], config.embedding_size)
        shared = config.tie in ("embeddings", "all")
        own = self.tgt_embedding if shared else nn.Embedding(sizes["src"], config.embedding_size)
        self.src_embedding = source_embedding(own, config.src_embedding)
        self.encoder = config.encoder()

    def encode_source(self, batch: Batch, need_cell: bool) -> RecurrentEncoderOutput:
        """Runs the encoder over the source; whichever way it reads, its states stand in the order of the words."""
        order = reversed_positions(batch.inputs.mask) if self.reverse_source else None
        words = self.src_embedding(batch.inputs.ids)  # (B,S,E)
        embedded = self.dropout(words if order is None else gather_positions(words, order))
        encoded: RecurrentEncoderOutput = self.encoder(embedded, batch.inputs.mask, batch.inputs.lengths, need_cell)
        return encoded if order is None else replace(encoded, states=gather_positions(encoded.states, order))

    def attention_memory(self, batch: Batch, project: Callable[[Tensor], Tensor], bridge: Bridge) -> AttentionMemory:
        """Runs the encoder, projects the keys once, and makes the decoder's first state of the encoder's last."""
        encoded = self.encode_source(batch, bridge.reads_cell)
        values = self.dropout(encoded.states)  # (B,S,M)
        hidden, cell = bridge(encoded.hidden, encoded.cell)
        return AttentionMemory(batch.inputs.mask, batch.inputs.copy, hidden, cell, values, project(values))

    def start(self, memory: Any) -> S:
        """The state that `encode` has made."""
        return cast(S, RecurrentState(memory.hidden, memory.cell))
