"""Common parts of models with a recurrent encoder: settings, embeddings, the encoder, memory and state.

Notation: as in `models/base.py`, and:

    Hm  size of an encoder state, both directions together
    D   size of the encoder's final state
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn
from typing_extensions import override

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
    """Settings that all recurrent models share; subclasses redefine fields whose defaults differ."""

    embedding_size: Width = Field(default=256, ge=1)
    """Size of word vectors on both sides."""
    hidden_size: Width = Field(default=256, ge=1)
    """Number of units in each decoder layer and in each direction of the encoder."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout rate on embeddings, between layers, before the output layer and, with attention, on encoder states."""
    tie: Tie = "none"
    """Layers that share a weight matrix. none: no layers. embeddings: both embeddings. decoder: the target embedding
    and the output layer. all: all three."""
    src_embedding: AnyEmbeddingConfig = None
    """Contextual source embeddings: `kind` and its settings (ELMo: Peters et al. 2018, section 3.3). Default: a table
    of word vectors."""

    @abstractmethod
    def encoder(self) -> RecurrentEncoder:
        """Builds the encoder that these settings describe."""

    def require_equal_where_tied(self, name: str, other_name: str) -> None:
        """Raises a ValueError if two sizes, given by name, differ although `tie` requires them to be equal."""
        size = getattr(self, name)
        other_size = getattr(self, other_name)
        if self.tie in ("decoder", "all") and size != other_size:
            raise ValueError(
                f"`tie: {self.tie}` uses the target embedding as the output layer, so {name} ({size}) must equal "
                f"{other_name} ({other_size})"
            )


class StackedConfig(RecurrentConfig):
    """Settings of an encoder and a decoder that may have several layers."""

    encoder_hidden_size: Width | None = Field(default=None, ge=1)
    """Number of units in each direction of the encoder. Default: hidden_size."""
    layers: Depth = Field(default=1, ge=1)
    """Number of recurrent layers in the encoder and in the decoder. The attention and the output layer read the
    decoder's top layer."""
    encoder_layers: Depth | None = Field(default=None, ge=1)
    """Number of encoder layers. Default: layers."""
    cell: CellKind = "gru"
    """Type of the recurrent cells."""
    bidirectional: bool = False
    """Whether the encoder reads the source in both directions."""
    reverse_source: bool = False
    """Whether a unidirectional encoder reads the source from the last word to the first."""
    initialisation: Initialisation = "xavier"
    """Initial weights. xavier: Xavier initialization. paper: as in the paper, from a normal distribution with a small
    variance; in `luong`, uniform between -0.1 and 0.1; in `rnn_encdec` without `feed_context`, as in Sutskever et al.,
    uniform between -0.08 and 0.08."""

    @model_validator(mode="after")
    def _encoder_fits_together(self) -> "StackedConfig":
        if self.reverse_source and self.bidirectional:
            raise ValueError(
                "reverse_source: a bidirectional encoder reads the source in both directions anyway; set either "
                "reverse_source or bidirectional to false"
            )
        return self

    @property
    def depth(self) -> int:
        return self.encoder_layers or self.layers

    @property
    def width(self) -> int:
        """Number of units in each direction of the encoder."""
        return self.encoder_hidden_size or self.hidden_size

    @property
    def memory_size(self) -> int:
        """Size of an encoder state (Hm), both directions together."""
        directions = 2 if self.bidirectional else 1
        return directions * self.width

    def require_score_fits(self, score: str) -> None:
        """Raises a ValueError if the score multiplies decoder states by encoder states of a different size."""
        if score in ("dot", "scaled_dot") and self.memory_size != self.hidden_size:
            raise ValueError(
                f"`score: {score}` multiplies decoder states of size {self.hidden_size} by encoder states of size "
                f"{self.memory_size}; set encoder_hidden_size so that these sizes are equal, or score to general or "
                "additive"
            )

    def require_copy_fits(self, alternative: str) -> None:
        """Raises a ValueError if the decoder, which copies the encoder's final states, has a different shape.

        `alternative` is a remedy for users who want to keep the sizes.
        """
        if (self.memory_size, self.depth) != (self.hidden_size, self.layers):
            raise ValueError(
                f"the decoder's initial state is a copy of the final states of the encoder, which has {self.depth} x "
                f"{self.memory_size} units (layers x state size), but the decoder has {self.layers} x "
                f"{self.hidden_size}; make these sizes equal, set bidirectional to false, or {alternative}"
            )

    @override
    def encoder(self) -> RecurrentEncoder:
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
    """Memory of a recurrent decoder, including the decoder's initial state."""

    hidden: Tensor
    """The initial hidden states of the decoder, `(B, L, H)`."""
    cell: Tensor | None
    """The initial memory cells of the decoder, `(B, L, H)`; None for a GRU."""


@dataclass(frozen=True)
class AttentionMemory(RecurrentMemory):
    """Memory of a recurrent decoder with attention."""

    values: Tensor
    """Encoder states `(B, S, Hm)`, in the order of the source."""
    keys: Tensor
    """Values projected for the attention score, `(B, S, *)`."""


@dataclass(frozen=True)
class RecurrentState(DecoderState):
    """State of a recurrent decoder between two words."""

    hidden: Tensor
    """Hidden states `(N, L, H)`."""
    cell: Tensor | None
    """Memory cells of an LSTM, `(N, L, H)`; None for a GRU."""


class RecurrentModel(Seq2Seq[M, S]):
    """Base class with source and target embeddings and a recurrent encoder.

    Subclasses add the decoder and the output layer.
    """

    def __init__(
        self, config: RecurrentConfig, sizes: VocabularySizes, reverse_source: bool = False
    ) -> None:
        super().__init__(config, sizes)
        require_shared_vocabulary(config.tie, sizes)
        embedding_size = config.embedding_size
        self.reverse_source = reverse_source
        self.dropout = Dropout(config.dropout)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], embedding_size)
        if config.tie in ("embeddings", "all"):
            src_vectors = self.tgt_embedding
        else:
            src_vectors = nn.Embedding(sizes["src"], embedding_size)
        self.src_embedding = source_embedding(src_vectors, config.src_embedding)
        self.encoder = config.encoder()

    def encode_source(self, batch: Batch, need_cell: bool) -> RecurrentEncoderOutput:
        """Runs the encoder. The returned states are in the order of the source, even if it is read reversed."""
        mask = batch.inputs.mask
        words = self.src_embedding(batch.inputs.ids)  # (B, S, E)
        if self.reverse_source:
            reversal = reversed_positions(mask)  # (B, S)
            words = gather_positions(words, reversal)  # (B, S, E)
        embedded = self.dropout(words)  # (B, S, E)
        encoded: RecurrentEncoderOutput = self.encoder(
            embedded, mask, batch.inputs.lengths, need_cell=need_cell
        )
        if self.reverse_source:
            states = gather_positions(encoded.states, reversal)  # (B, S, Hm)
            encoded = replace(encoded, states=states)
        return encoded

    def attention_memory(
        self, batch: Batch, project: Callable[[Tensor], Tensor], bridge: Bridge
    ) -> AttentionMemory:
        """Runs the encoder, projects its states to keys, and computes the decoder's initial state with the bridge."""
        encoded = self.encode_source(batch, bridge.reads_cell)
        values = self.dropout(encoded.states)  # (B, S, Hm)
        hidden, cell = bridge(encoded.hidden, encoded.cell)  # (B, L, H), (B, L, H)
        return AttentionMemory(
            mask=batch.inputs.mask,
            copy=batch.inputs.copy,
            hidden=hidden,
            cell=cell,
            values=values,
            keys=project(values),
        )

    def start(self, memory: Any) -> S:
        """Returns the initial state, which `encode` has computed."""
        return cast(S, RecurrentState(memory.hidden, memory.cell))
