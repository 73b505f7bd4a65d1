"""The Transformer: "Attention Is All You Need", Vaswani et al. 2017."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.data.batch import Batch
from nmtkit.layers.dropout import Dropout
from nmtkit.layers.transformer import DecoderLayer, EncoderLayer, LayerPlan, LearnedPositions, SinusoidalPositions
from nmtkit.models.base import (
    MODELS,
    DecoderState,
    LayerAttentions,
    Memory,
    ModelConfig,
    Readout,
    Seq2Seq,
    Tie,
    VocabularySizes,
    log_probabilities,
    refuse_tie_of_two_vocabularies,
    rows_per_sentence,
)
from nmtkit.settings import Field, field_validator, model_validator


class TransformerConfig(ModelConfig):
    """The defaults suit small corpora; the paper's "base" is 512, 2048, 8 heads, 6 + 6 layers, post-norm."""

    kind: Literal["transformer"] = "transformer"
    """Which model."""
    hidden_size: int = Field(default=256, ge=2)
    """Width of the model (d_model); also the size of its embeddings."""
    feed_forward_size: int = Field(default=1024, ge=1)
    """Inner width of the feed-forward part (d_ff)."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; they divide hidden_size."""
    encoder_layers: int = Field(default=3, ge=1)
    """Layers of the encoder."""
    decoder_layers: int = Field(default=3, ge=1)
    """Layers of the decoder; fewer than in the encoder translate faster."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout of embeddings and of every sub-layer's result."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of attention weights; slow on a CPU, where attention then is not fused."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout inside the feed-forward part."""
    norm: Literal["pre", "post"] = "pre"
    """Normalize before each sub-layer (trains without a long warm-up), or after it as in the paper."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Positions as sines of fixed wavelengths, or one trained vector each."""
    max_positions: int = Field(default=1024, ge=1)
    """How many positions are learned; sinusoidal positions have no limit."""
    tie: Tie = "decoder"
    """What shares one matrix: nothing; target embedding and output; or source embedding as well (one vocabulary)."""
    activation: Literal["relu", "gelu"] = "relu"
    """Between the two products of the feed-forward part."""
    alignment_layer: int | None = Field(default=None, ge=1)
    """Decoder layer, counted from 1, whose attention is shown as the alignment; without it, the last but one."""
    alignment_heads: Literal["mean"] | int = "mean"
    """What of that layer is shown: the mean of all its heads, or one head, counted from 1."""

    @field_validator("alignment_heads", mode="before")
    @classmethod
    def _mean_or_number(cls, value: Any) -> Any:
        if value != "mean" and (type(value) is not int or value < 1):
            raise ValueError("give mean, or the number of a head, counted from 1")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "TransformerConfig":
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}; change one")
        if self.alignment_layer is not None and self.alignment_layer > self.decoder_layers:
            raise ValueError(
                f"alignment_layer {self.alignment_layer} does not exist: decoder_layers is {self.decoder_layers}"
            )
        if self.alignment_heads != "mean" and self.alignment_heads > self.heads:
            raise ValueError(f"alignment_heads {self.alignment_heads} does not exist: heads is {self.heads}")
        return self

    @property
    def shows_one_head(self) -> bool:
        """Whether `alignment_heads` names a head."""
        return self.alignment_heads != "mean"


@dataclass(frozen=True)
class TransformerMemory(Memory):
    """What the decoder's layers read of the source: one entry per decoder layer."""

    keys: tuple[Tensor, ...]
    """L x `(B,A,S,D)`."""
    values: tuple[Tensor, ...]
    """L x `(B,A,S,D)`."""


@dataclass(frozen=True)
class TransformerState(DecoderState):
    """Keys and values of the positions so far.

    `select` only notes which row of the caches each hypothesis continues; the next step copies those rows to their new
    place and appends to them in one go, so that following the parents costs no copy of its own.
    """

    caches: tuple[Tensor, ...]
    """L x `(M,P,2,A,D)`: keys and values of P positions of the M hypotheses of the step before."""
    rows: Tensor
    """`(N,)`: each hypothesis' row in the caches."""
    position: Tensor
    """`(N,)`: the position of the next word, from 0."""

    def select(self, index: Tensor) -> "TransformerState":
        """Picks hypotheses by number, as `Rows.select` does."""
        return replace(self, rows=self.rows.index_select(0, index), position=self.position.index_select(0, index))

    def room_for_one(self) -> tuple[Tensor, ...]:
        """New caches `(N,P+1,2,A,D)` with the history of each hypothesis; the last place is not filled."""

        def grown(cache: Tensor) -> Tensor:
            if torch.is_grad_enabled():  # writing through `out` cannot be differentiated
                return F.pad(cache.index_select(0, self.rows), (0, 0, 0, 0, 0, 0, 0, 1))
            places = cache.shape[1]
            roomy = cache.new_empty(self.rows.shape[0], places + 1, *cache.shape[2:])
            torch.index_select(cache, 0, self.rows, out=roomy[:, :places])
            return roomy

        return tuple(grown(cache) for cache in self.caches)


@MODELS.register("transformer")
class Transformer(Seq2Seq):
    """Encoder and decoder of attention and feed-forward layers.

    Args:
        config: see `TransformerConfig`.
        sizes: of the vocabularies.

    Raises:
        RecipeError: `tie: all` without a shared vocabulary.
    """

    Config = TransformerConfig
    has_heads = True

    def __init__(self, config: TransformerConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        refuse_tie_of_two_vocabularies(config.tie, sizes)
        width = config.hidden_size
        self.width = width
        self.show(config.alignment_layer, config.alignment_heads)
        self.tgt_embedding = self._embedding(sizes.tgt)
        self.src_embedding = self.tgt_embedding if config.tie == "all" else self._embedding(sizes.src)
        self.src_positions, self.tgt_positions = self._positions(config), self._positions(config)
        self.dropout = Dropout(config.dropout)

        plan = LayerPlan(
            width,
            config.heads,
            config.feed_forward_size,
            config.norm,
            config.activation,
            config.dropout,
            config.attention_dropout,
            config.activation_dropout,
        )
        self.encoder = nn.ModuleList(EncoderLayer(plan) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(plan) for _ in range(config.decoder_layers))
        # Post-norm layers end in a normalization of their own.
        self.encoder_norm = nn.LayerNorm(width) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if config.norm == "pre" else nn.Identity()

        self.output = nn.Linear(width, sizes.tgt)
        nn.init.zeros_(self.output.bias)
        if config.tie == "none":
            nn.init.normal_(self.output.weight, std=width**-0.5)
        else:
            self.output.weight = self.tgt_embedding.weight

    def show(self, layer: int | None = None, heads: Literal["mean"] | int = "mean") -> None:
        """Changes which attention `need_attention` shows, in a forward and in a search; what is learned stays as it is.

        Args:
            layer: as `alignment_layer` in the settings.
            heads: as `alignment_heads`.

        Raises:
            RecipeError: there is no such layer or head.
        """
        chosen = cast(TransformerConfig, self.config).changed({"alignment_layer": layer, "alignment_heads": heads})
        self.config = chosen
        self.alignment_layer = (layer or max(chosen.decoder_layers - 1, 1)) - 1
        self.shown_heads = slice(None) if heads == "mean" else slice(heads - 1, heads)

    def _embedding(self, size: int) -> nn.Embedding:
        embedding = nn.Embedding(size, self.width)
        # After the scaling by sqrt(H) of section 3.4 each element has variance 1.
        nn.init.normal_(embedding.weight, std=self.width**-0.5)
        return embedding

    @staticmethod
    def _positions(config: TransformerConfig) -> SinusoidalPositions | LearnedPositions:
        if config.positions == "learned":
            return LearnedPositions(config.hidden_size, config.max_positions)
        return SinusoidalPositions(config.hidden_size)

    def encode(self, batch: Batch) -> TransformerMemory:
        """Runs the encoder and projects keys and values of every decoder layer."""
        return self._encode(batch, None)

    def _encode(self, batch: Batch, seen: list[Tensor] | None) -> TransformerMemory:
        """As `encode`; a list is filled with the weights `(B,A,S,S)` of each layer."""
        mask = batch.src_mask[:, None, None, :]  # (B,1,1,S)
        states = self._enter(self.src_embedding, batch.src, self.src_positions(batch.src.shape[1]))  # (B,S,H)
        for layer in self.encoder:
            if seen is not None:
                seen.append(cast(EncoderLayer, layer).self_weights(states, mask))
            states = layer(states, mask)
        states = self.encoder_norm(states)
        layers = [cast(DecoderLayer, layer) for layer in self.decoder]
        keys, values = zip(*(layer.cross_attention.project(states) for layer in layers), strict=True)
        if not torch.is_grad_enabled():  # read again in every decoding step, where strides cost time
            keys, values = tuple(k.contiguous() for k in keys), tuple(v.contiguous() for v in values)
        return TransformerMemory(batch.src_mask, batch.src_extended, batch.n_oov, keys, values)

    def start(self, memory: Memory) -> TransformerState:
        """Empty caches."""
        assert isinstance(memory, TransformerMemory)
        keys = memory.keys[0]
        sentences, heads, _, head_width = keys.shape
        empty = keys.new_empty(sentences, 0, 2, heads, head_width)
        rows = torch.arange(sentences, device=keys.device)
        return TransformerState(tuple(empty for _ in self.decoder), rows, torch.zeros_like(rows))

    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, need_attention: bool = False
    ) -> tuple[Readout, TransformerState]:
        """One position of every hypothesis; the K hypotheses of a sentence are K queries into its memory."""
        assert isinstance(state, TransformerState)
        beam = rows_per_sentence(tokens.shape[0], memory)
        caches = state.room_for_one()
        positions = F.embedding(state.position, self.tgt_positions(caches[0].shape[1]))  # (N,H)
        states = self._enter(self.tgt_embedding, tokens, positions).view(-1, beam, self.width)  # (B,K,H)
        states, weights = self._decode(states, memory, caches, self.shown_heads if need_attention else None)
        attention = None if weights is None else weights.mean(1).flatten(0, 1)  # (N,S)
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        return Readout(states.flatten(0, 1), attention), TransformerState(caches, rows, state.position + 1)

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> Readout:
        """All positions at once. Padding stands on the right, so that no real position reads it."""
        assert batch.tgt_in is not None
        states = self._enter(self.tgt_embedding, batch.tgt_in, self.tgt_positions(batch.tgt_in.shape[1]))  # (B,T,H)
        states, weights = self._decode(states, memory, None, self.shown_heads if need_attention else None)
        return Readout(states, None if weights is None else weights.mean(1))

    def unroll_with_heads(self, batch: Batch, memory: Memory) -> tuple[Readout, Tensor]:
        """As `unroll` with attention, and the weights `(B,A,T,S)` of all heads of the alignment layer."""
        assert batch.tgt_in is not None
        states = self._enter(self.tgt_embedding, batch.tgt_in, self.tgt_positions(batch.tgt_in.shape[1]))  # (B,T,H)
        states, weights = self._decode(states, memory, None, slice(None))
        assert weights is not None
        return Readout(states, weights[:, self.shown_heads].mean(1)), weights

    def attentions(self, batch: Batch) -> LayerAttentions:
        """Every head of every layer while the given targets are read; see `LayerAttentions` for rows and columns.

        A pass of its own, so that no other way through the model makes a weight that nobody asked for. Dropout of
        weights is left out; for numbers without any dropout the model must be in evaluation mode.
        """
        assert batch.tgt_in is not None
        assert batch.tgt_mask is not None
        encoder: list[Tensor] = []
        decoder: list[Tensor] = []
        cross: list[Tensor] = []
        memory = self._encode(batch, encoder)
        src_mask = memory.mask[:, None, None, :]  # (B,1,1,S)
        states = self._enter(self.tgt_embedding, batch.tgt_in, self.tgt_positions(batch.tgt_in.shape[1]))  # (B,T,H)
        for number, module in enumerate(self.decoder):
            layer = cast(DecoderLayer, module)
            decoder.append(layer.self_weights(states))
            states, weights = layer(states, memory.keys[number], memory.values[number], src_mask, shown=slice(None))
            cross.append(weights)

        def real(weights: list[Tensor], rows: Tensor) -> tuple[Tensor, ...]:
            return tuple(one.masked_fill(~rows[:, None, :, None], 0.0) for one in weights)

        return LayerAttentions(
            real(encoder, batch.src_mask), real(decoder, batch.tgt_mask), real(cross, batch.tgt_mask)
        )

    def _enter(self, embedding: nn.Embedding, ids: Tensor, positions: Tensor) -> Tensor:
        """What the first layer reads: words, scaled, and positions; section 3.4 and 3.5."""
        entering: Tensor = self.dropout(embedding(ids) * math.sqrt(self.width) + positions)
        return entering

    def _decode(
        self, states: Tensor, memory: Memory, caches: tuple[Tensor, ...] | None, shown: slice | None
    ) -> tuple[Tensor, Tensor | None]:
        """The decoder's layers over `(B,T,H)`, or with caches over one step `(B,K,H)`.

        Returns:
            The last states, and the weights of the `shown` heads of the alignment layer, `(B,a,T,S)` or `(B,a,K,S)`.
        """
        assert isinstance(memory, TransformerMemory)
        mask = memory.mask[:, None, None, :]  # (B,1,1,S)
        found = None
        for number, layer in enumerate(self.decoder):
            states, weights = layer(
                states,
                memory.keys[number],
                memory.values[number],
                mask,
                None if caches is None else caches[number],
                shown if number == self.alignment_layer else None,
            )
            found = found if weights is None else weights
        return self.decoder_norm(states), found

    def predict(self, readout: Readout, memory: Memory) -> Tensor:
        """The output layer: natural logs `(...,V)`."""
        return log_probabilities(self.output(readout.features))
