"""The Transformer: "Attention Is All You Need", Vaswani et al. 2017; with `copying` it can point at source words.

Copying is that of See et al. 2017, eq. 8 and 9, with what a Transformer has in place of the parts of a recurrent one:

    c_t   = sum_i a_ti h_i                           h_i: the encoder's states
    p_gen = sigmoid(w_c c_t + w_s s_t + w_x x_t + b)  s_t: the decoder's last state; x_t: what its first layer reads
    P(w)  = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_ti

The weights a_ti are those of an attention that is there anyway, one head or the mean of all heads of a layer (Gehrmann
et al. 2018, "Bottom-Up Abstractive Summarization", copy by one head of a Transformer), or of one more that is learned
for this: softmax_i(W_q s_t . W_k h_i / sqrt(H)).

Maps of queries, keys, values and heads, and the output layer, have biases, which sections 3.2.2 and 3.4 leave out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import Depth, Field, Width, field_validator, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.data.embeddings import Side
from nmtkit.layers.elementary import Dropout, at_least_float32, mask_without_eos, run_by_length
from nmtkit.layers.experts import ExpertsConfig, place_experts, use_of_experts
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import (
    Activation,
    DecoderLayer,
    EncoderLayer,
    LayerForm,
    LayerStack,
    LearnedPositions,
    SinusoidalPositions,
    attention_weights,
    normalization,
)
from nmtkit.models.abilities import (
    AuxiliaryHead,
    Copying,
    LayerAttentions,
    LimitedPositions,
    MultiHeadModel,
    OptionalSourceEnd,
    ParallelPrefill,
)
from nmtkit.models.base import (
    MODELS,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Tie,
    VocabularySizes,
    extended_to_unk,
    require_shared_vocabulary,
    rows_per_sentence,
)
from nmtkit.models.embeddings import AnyEmbeddingConfig, source_embedding


class LayersConfig(ModelConfig):
    """The settings of a stack of Transformer layers, alone or as encoder and decoder."""

    hidden_size: Width = Field(default=256, ge=2)
    """Width of the model (d_model); also the size of its embeddings."""
    feed_forward_size: Width = Field(default=1024, ge=1)
    """Inner width of the feed-forward part (d_ff)."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; they divide hidden_size."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout of embeddings and of every sub-layer's result."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of attention weights; slow on a CPU, where attention then is not fused."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout inside the feed-forward part."""
    norm: Literal["pre", "post"] = "pre"
    """Normalize before each sub-layer (trains without a long warm-up), or after it as Vaswani et al. 2017."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0, le=1e-2)
    """What a normalization adds to the variance; Joey NMT and OpenNMT-py add 1e-6."""
    activation: Activation = "relu"
    """Between the two products of the feed-forward part; silu is also called swish, gelu_tanh approximates gelu."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "LayersConfig":
        if self.layer_form.head_size is None and self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}; change one")
        return self

    @property
    def layer_form(self) -> LayerForm:
        """The form of the layers."""
        return LayerForm()

    @property
    def bf16_allowed(self) -> bool:
        """Yes."""
        return True


class StacksConfig(LayersConfig):
    """The settings of an encoder and a decoder of Transformer layers, which T5 has as well."""

    shorthands: ClassVar = {"layers": ("encoder_layers", "decoder_layers")}
    layers: Depth | None = Field(default=None, ge=1)
    """Layers of the encoder and of the decoder, instead of encoder_layers and decoder_layers; not beside them."""
    encoder_layers: Depth = Field(default=3, ge=1)
    """Layers of the encoder."""
    decoder_layers: Depth = Field(default=3, ge=1)
    """Layers of the decoder; fewer than in the encoder translate faster."""
    source_end: bool = True
    """The encoder reads </s> behind the source. false, as in OpenNMT-py: nothing looks at it."""
    tie: Tie = "decoder"
    """What shares one matrix: nothing; both embeddings; target embedding and output; or all three."""
    alignment_layer: int | None = Field(default=None, ge=1)
    """Decoder layer, counted from 1, whose attention is shown as the alignment. Default: the last but one."""
    alignment_heads: Literal["mean"] | int = "mean"
    """The heads of that layer that are shown: the mean of all, or one head, counted from 1."""
    src_embedding: AnyEmbeddingConfig = None
    """Source embeddings that read words in their context: `kind` and its settings. Default: a table of vectors."""
    experts: ExpertsConfig | None = None
    """A mixture of feed-forward parts in some layers, kept in use by the loss expert_balance; `{}`: the defaults."""
    copying: Literal["none", "head", "learned"] = "none"
    """Whether the decoder can copy source words, unknown ones too. head: by the attention of alignment_layer and
    alignment_heads. learned: by one more attention, which is then the one shown."""

    @model_validator(mode="before")
    @classmethod
    def _layers_of_both(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("layers") is None:
            return given
        both = cls.shorthands["layers"]
        if beside := [key for key in both if key in given]:
            raise ValueError(f"`layers` sets {' and '.join(both)}: leave {beside[0]} out, or `layers`")
        return {key: given[key] for key in given if key != "layers"} | dict.fromkeys(both, given["layers"])

    @field_validator("alignment_heads", mode="before")
    @classmethod
    def _mean_or_number(cls, value: Any) -> Any:
        if value != "mean" and (type(value) is not int or value < 1):
            raise ValueError("give mean, or the number of a head, counted from 1")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "StacksConfig":
        if self.alignment_layer is not None and self.alignment_layer > self.decoder_layers:
            raise ValueError(
                f"alignment_layer {self.alignment_layer} does not exist: decoder_layers is {self.decoder_layers}"
            )
        if self.alignment_heads != "mean" and self.alignment_heads > self.heads:
            raise ValueError(f"alignment_heads {self.alignment_heads} does not exist: heads is {self.heads}")
        if self.experts and self.experts.every > max(self.encoder_layers, self.decoder_layers):
            raise ValueError(f"experts.every {self.experts.every} is more than there are layers: no layer has experts")
        return self

    @property
    def shown(self) -> tuple[int, slice]:
        """The decoder layer whose attention is shown, counted from 0, and which of its heads."""
        layer = self.alignment_layer or max(self.decoder_layers - 1, 1)
        heads = slice(None) if self.alignment_heads == "mean" else slice(self.alignment_heads - 1, self.alignment_heads)
        return layer - 1, heads

    @property
    def bf16_allowed(self) -> bool:
        """Yes, but for a copying one, whose small probabilities are sums."""
        return not self.copies


class TransformerConfig(StacksConfig):
    """The defaults suit small corpora; the paper's "base" is 512, 2048, 8 heads, 6 + 6 layers, post-norm."""

    kind: Literal["transformer"] = "transformer"
    """Which model."""
    embedding_norm: bool = False
    """Normalize what the first layers read, as BART (Lewis et al. 2020) and mBART do."""
    positions: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned"] = "sinusoidal"
    """Positions as sines of fixed wavelengths, or one trained vector each. Halves: all sines stand before all cosines,
    as in Marian. fairseq: so, too, with other wavelengths, as in M2M100."""
    scale_embeddings: bool = True
    """Multiply word vectors by the square root of hidden_size before positions are added, as in the paper."""
    max_positions: Width = Field(default=1024, ge=1)
    """How many positions are learned; sinusoidal positions have no limit."""


@dataclass(frozen=True)
class TransformerMemory(Memory):
    """What the decoder's layers read of the source: one entry per decoder layer."""

    bias: Tensor
    """`mask` as what is added to energies: zero or minus infinity, `(B,1,1,S)`."""
    keys: tuple[Tensor, ...]
    """L x `(B,A,S,D)`."""
    values: tuple[Tensor, ...]
    """L x `(B,A,S,D)`."""
    states: Tensor | None = None
    """The encoder's states `(B,S,H)`, for a model that copies."""
    copy_keys: Tensor | None = None
    """Their keys `(B,S,H)` for an attention learned to copy by."""


@MODELS.register("transformer")
class Transformer(
    AuxiliaryHead,
    Copying[TransformerMemory, DecoderState],
    LimitedPositions[TransformerMemory, DecoderState],
    OptionalSourceEnd[TransformerMemory, DecoderState],
    ParallelPrefill[TransformerMemory, DecoderState],
    MultiHeadModel[TransformerMemory, DecoderState],
):
    """Encoder and decoder of attention and feed-forward layers; see the head of this file."""

    Config: ClassVar[type[ModelConfig]] = TransformerConfig
    first_entry: ClassVar[int] = 0
    """The first entry of the decoder's layers in the cache."""

    def __init__(self, config: TransformerConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        require_shared_vocabulary(config.tie, sizes)
        width = config.hidden_size
        self.width, self.scale = width, math.sqrt(width) if config.scale_embeddings else 1.0
        self.source_end, (self.alignment_layer, self.shown_heads) = config.source_end, config.shown
        self.tgt_embedding = self._embedding(sizes["tgt"])
        shared = config.tie in ("embeddings", "all")
        own = self.tgt_embedding if shared else self._embedding(sizes["src"])
        self.src_embedding = source_embedding(own, config.src_embedding)
        self.src_positions, self.tgt_positions = self._positions(config, "src"), self._positions(config, "tgt")
        self.dropout = Dropout(config.dropout)

        self.encoder = LayerStack(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = LayerStack(DecoderLayer(config) for _ in range(config.decoder_layers))
        place_experts(config, config.experts, self.encoder, self.decoder)
        # Post-norm layers end in a normalization of their own.
        last = [normalization(config) if config.norm == "pre" else nn.Identity() for _ in range(2)]
        self.encoder_norm, self.decoder_norm = last
        first = [nn.LayerNorm(width, config.norm_epsilon) if config.embedding_norm else None for _ in range(2)]
        self.src_embedding_norm, self.tgt_embedding_norm = first

        self.output = nn.Linear(width, sizes["tgt"])
        nn.init.zeros_(self.output.bias)
        if config.tie in ("decoder", "all"):
            self.output.weight = self.tgt_embedding.weight
        else:
            nn.init.normal_(self.output.weight, std=width**-0.5)
        learned = config.copying == "learned"
        self.copy_query = nn.Linear(width, width) if learned else None
        self.copy_key = nn.Linear(width, width, bias=False) if learned else None
        self.copy_gate = nn.Linear(3 * width, 1) if config.copies else None

    def show(self, layer: int | None = None, heads: Literal["mean"] | int = "mean") -> None:
        """Changes `alignment_layer` and `alignment_heads`; what is learned stays as it is."""
        if self.copy_gate is not None:
            raise RecipeError(
                "this model copies by the attention that it shows, so no other layer or head can be shown"
            )
        config = cast(TransformerConfig, self.config).changed({"alignment_layer": layer, "alignment_heads": heads})
        self.config, (self.alignment_layer, self.shown_heads) = config, config.shown

    def _embedding(self, size: int) -> nn.Embedding:
        embedding = nn.Embedding(size, self.width)
        # After the scaling by sqrt(H) of section 3.4 each element has variance 1.
        nn.init.normal_(embedding.weight, std=self.width**-0.5)
        return embedding

    @staticmethod
    def _positions(config: TransformerConfig, side: Side) -> nn.Module:
        if config.positions == "learned":
            return LearnedPositions(config.hidden_size, config.max_positions)
        return SinusoidalPositions(config.hidden_size, config.positions)

    def encode(self, batch: Batch) -> TransformerMemory:
        """Runs the encoder and projects keys and values of every decoder layer."""
        # Made once: of a mask every attention would make it anew.
        mask = batch.inputs.mask if self.source_end else mask_without_eos(batch.inputs.mask)
        bias = torch.where(mask, 0.0, -math.inf).to(self.src_embedding.weight.dtype)[:, None, None]  # (B,1,1,S)
        states, *projected = run_by_length(self._encoded, batch.inputs.lengths, batch.inputs.ids, bias)
        return TransformerMemory(
            mask=mask,
            copy=batch.inputs.copy,
            bias=bias,
            keys=tuple(projected[::2]),
            values=tuple(projected[1::2]),
            states=None if self.copy_gate is None else states,
            copy_keys=None if self.copy_key is None else self.copy_key(states),
        )

    def _encoded(self, src: Tensor, bias: Tensor) -> list[Tensor]:
        """The encoder's states `(B,S,H)` of sources `(B,S)`, and keys and values `(B,A,S,D)` of every decoder layer."""
        states, bias = self._enter("src", src), self._encoder_bias(bias)
        for layer in self.encoder:
            states = layer(states, bias)
        states = self.encoder_norm(states)
        projected = [one for layer in self.decoder for one in layer.cross_attention.project(states)]
        # Read again in every decoding step, where strides cost time.
        return [states, *(projected if torch.is_grad_enabled() else [one.contiguous() for one in projected])]

    def positions(self, most: int) -> tuple[str, Tensor]:
        """Of learned positions no more than were learned."""
        table = self.src_positions
        if isinstance(table, LearnedPositions):
            return "learned (source)", table(min(most, len(table.table)))
        return "sinusoidal", table(most)

    def reserve_positions(self, length: int) -> bool:
        """Makes the table of sinusoids long enough; learned positions are as many as they are."""
        if isinstance(self.tgt_positions, SinusoidalPositions):
            self.tgt_positions.reserve(length)
        return not isinstance(self.tgt_positions, LearnedPositions) or length <= len(self.tgt_positions.table)

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: TransformerMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        """One position of every hypothesis; the K hypotheses of a sentence are K queries into its memory."""
        beam = rows_per_sentence(tokens.shape[0], memory)
        words = self._enter("tgt", tokens.view(-1, beam), cache)  # (B,K,H)
        states, weights = self._decode(words, memory, cache, self._shown(need_attention))
        readout = self._read(states, words, weights, memory).mapped(lambda tensor: tensor.flatten(0, 1))  # (N,*)
        return readout, state

    def unroll(self, batch: Batch, memory: TransformerMemory, need_attention: bool = False) -> ModelOutput:
        """All positions at once. Padding stands on the right, so that no real position reads it."""
        words = self._enter("tgt", batch.targets.shifted)
        states, weights = self._decode(words, memory, None, self._shown(need_attention))
        return self._read(states, words, weights, memory)

    def unroll_with_heads(self, batch: Batch, memory: TransformerMemory) -> tuple[ModelOutput, Tensor]:
        """As `unroll` with attention, and the weights `(B,A,T,S)` of all heads of the alignment layer."""
        words = self._enter("tgt", batch.targets.shifted)
        states, weights = self._decode(words, memory, None, slice(None))
        assert weights is not None
        return self._read(states, words, weights[:, self.shown_heads], memory), weights

    @classmethod
    def shows_one_head(cls, config: TransformerConfig) -> bool:
        """Whether `alignment_heads` names a head; the attention that learns to copy, which then is shown, is none."""
        return config.alignment_heads != "mean" and config.copying != "learned"

    @classmethod
    def auxiliary_objective(cls, config: TransformerConfig) -> str:
        """Returns that for the balance of the gates between experts."""
        return "expert_balance" if config.experts else ""

    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """How much the experts were used in the pass that gave `output`: `(R,n)`, see `use_of_experts`."""
        return use_of_experts((self.encoder, batch.inputs.mask), (self.decoder, batch.targets.mask))

    def attentions(self, batch: Batch) -> LayerAttentions:
        """A pass of its own, so that no other pass makes weights that nobody asked for."""
        encoder, decoder, cross = [], [], []
        memory = self.encode(batch)
        states, bias = self._enter("src", batch.inputs.ids), self._encoder_bias(memory.bias)
        for reading in self.encoder:
            entering = reading.around_self_attention.before(states)
            encoder.append(reading.self_attention.weights(entering, bias))
            states = reading(states, bias)
        states = self._enter("tgt", batch.targets.shifted)
        own = self._decoder_bias(states, None)
        for number, layer in enumerate(self.decoder):
            entering = layer.around_self_attention.before(states)
            decoder.append(layer.self_attention.weights(entering, own, causal=own is None))
            read = memory.keys[number], memory.values[number], memory.bias
            states, weights = layer(states, read, shown=slice(None), bias=own)
            cross.append(weights)

        def real(weights: list[Tensor], rows: Tensor) -> tuple[Tensor, ...]:
            return tuple(one.masked_fill(~rows[:, None, :, None], 0.0) for one in weights)

        return LayerAttentions(
            real(encoder, memory.mask), real(decoder, batch.targets.mask), real(cross, batch.targets.mask)
        )

    def _enter(self, side: Side, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """What the first layer of a side reads: words, scaled, and positions; section 3.4 and 3.5.

        The ids are whole texts `(B,T)`, or with a cache those of one step `(B,K)`.
        """
        table = self.src_positions if side == "src" else self.tgt_positions
        positions = table(ids.shape[1]) if cache is None else F.embedding(cache.positions(), table(cache.reach))
        entering = self._words(side, ids) * self.scale + positions
        norm = self.src_embedding_norm if side == "src" else self.tgt_embedding_norm
        dropped: Tensor = self.dropout(entering if norm is None else norm(entering))
        return dropped

    def _words(self, side: Side, ids: Tensor) -> Tensor:
        """Word vectors; a decoder that copies may be given extended ids."""
        known = ids if self.copy_gate is None or side == "src" else extended_to_unk(ids, self.sizes)
        words: Tensor = self.embedding(side)(known)
        return words

    def _encoder_bias(self, bias: Tensor) -> Tensor:
        """What is added to the energies of the encoder's self-attention, where that is more than `bias` `(B,1,1,S)`."""
        return bias

    def _decoder_bias(self, states: Tensor, cache: KVCache | None) -> Tensor | None:
        """What is added to those of the decoder's, see `DecoderLayer`; None where nothing is but the mask."""
        return None

    def _shown(self, need_attention: bool) -> slice | None:
        """The heads whose weights the decoder has to make: those shown, if they are asked for or copied by."""
        by_heads = self.copy_gate is not None and self.copy_query is None
        return self.shown_heads if by_heads or (need_attention and self.copy_query is None) else None

    def _read(self, states: Tensor, words: Tensor, weights: Tensor | None, memory: TransformerMemory) -> ModelOutput:
        """The readout of Q queries a sentence, from `states` and `words` of the decoder's last and first layer.

        The weights `(B,a,Q,S)` are of the heads shown, None where nobody asked. The head of this file has the gate.
        """
        attention = None if weights is None else weights.mean(1)  # (B,Q,S)
        if self.copy_gate is None:
            if attention is not None:
                attention = attention.to(at_least_float32(attention))  # NumPy has no bfloat16
            return ModelOutput(states, attention)
        if self.copy_query is not None:
            assert memory.copy_keys is not None
            query = self.copy_query(states).unsqueeze(1)  # (B,1,Q,H)
            keys = memory.copy_keys.unsqueeze(1)  # (B,1,S,H)
            attention = attention_weights(query, keys, memory.bias).squeeze(1)  # (B,Q,S)
        assert attention is not None
        assert memory.states is not None
        if attention.dtype in (torch.float16, torch.bfloat16):  # rounded weights do not sum to one
            attention = attention.float() / attention.sum(-1, keepdim=True, dtype=torch.float32)
        context = attention.to(memory.states.dtype) @ memory.states  # (B,Q,H)
        gate = self.copy_gate(torch.cat([context, states, words], -1))
        return ModelOutput(states, attention, torch.sigmoid(gate.to(at_least_float32(gate))))

    def _decode(
        self, states: Tensor, memory: TransformerMemory, cache: KVCache | None, shown: slice | None
    ) -> tuple[Tensor, Tensor | None]:
        """The last states, and the weights of the `shown` heads of the alignment layer, `(B,a,T,S)` or `(B,a,K,S)`.

        The decoder's layers run over `(B,T,H)`, or with a cache over one step `(B,K,H)`.
        """
        shown_weights, bias = None, self._decoder_bias(states, cache)
        for number, layer in enumerate(self.decoder):
            states, weights = layer(
                states,
                (memory.keys[number], memory.values[number], memory.bias),
                None if cache is None else (cache, self.first_entry + number),
                shown if number == self.alignment_layer else None,
                bias,
            )
            shown_weights = shown_weights if weights is None else weights
        return self.decoder_norm(states), shown_weights
