"""What the Configs of all models with recurrent encoders and decoders have in common."""

from nmtkit.layers.recurrent import CellKind, Initialisation
from nmtkit.models.base import ModelConfig, Tie
from nmtkit.settings import Depth, Field, Width, model_validator


class RecurrentConfig(ModelConfig):
    """Sizes and shape of the encoder and the decoder; a model that begins otherwise gives a field another default."""

    embedding_size: Width = Field(default=256, ge=1)
    """Numbers per word, on either side."""
    hidden_size: Width = Field(default=256, ge=1)
    """Units of every layer of the decoder, and of each direction of the encoder."""
    encoder_hidden_size: Width | None = Field(default=None, ge=1)
    """Units of each direction of the encoder, where they are not to be as many as the decoder's."""
    layers: Depth = Field(default=1, ge=1)
    """Recurrent layers of the encoder and of the decoder; the decoder's top layer is the one that is read."""
    encoder_layers: Depth | None = Field(default=None, ge=1)
    """Layers of the encoder, where they are not to be as many as the decoder's."""
    cell: CellKind = "gru"
    """The recurrent cell."""
    bidirectional: bool = False
    """Whether the encoder reads the source in both directions, or in one."""
    residual: bool = False
    """Whether the encoder's layers from the second on add what they read to what they give."""
    reverse_source: bool = False
    """Whether a one-directional encoder reads from the last word to the first."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Probability, on embeddings, between layers and before the output words; with attention on encoder states too."""
    tie: Tie = "none"
    """What shares one matrix: nothing; target embedding and output; or source embedding as well (one vocabulary)."""
    initialisation: Initialisation = "xavier"
    """How weights start: xavier, or as in the paper (small normal numbers; Luong's: uniform between -0.1 and 0.1)."""

    @model_validator(mode="after")
    def _encoder_fits_together(self) -> "RecurrentConfig":
        if self.residual and self.depth == 1:
            raise ValueError("residual: an encoder of one layer has none to connect; set layers or encoder_layers")
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
