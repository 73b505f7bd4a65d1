"""The Transformer: Vaswani et al. 2017, "Attention Is All You Need"; with `copying` it can copy source words.

Copying follows See et al. 2017, eq. 8 and 9, with the corresponding parts of a Transformer:

    c_t   = sum_i a_ti h_i                            h_i: states of the encoder
    p_gen = sigmoid(w_c c_t + w_s s_t + w_x x_t + b)  s_t: state of the last decoder layer; x_t: input of the first
    P(w)  = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_ti

The weights a_ti come from a cross-attention layer of the decoder, either from one head (as in Gehrmann et al. 2018,
"Bottom-Up Abstractive Summarization") or as the mean of all heads, or from an additional learned attention:
softmax_i(W_q s_t . W_k h_i / sqrt(H)).

Unlike in sections 3.2.2 and 3.4, the projections of queries, keys, values and heads have biases, as does the output
layer.

Notation: as in `models/base.py` and `layers/transformer.py`, with A attention heads of size D, `a` of which are shown.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

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
    """Settings of Transformer layers, in a single stack or in an encoder and a decoder."""

    hidden_size: Width = Field(default=256, ge=2)
    """Width of the model (d_model), including its embeddings."""
    feed_forward_size: Width = Field(default=1024, ge=1)
    """Inner width of the feed-forward networks (d_ff)."""
    heads: int = Field(default=4, ge=1)
    """Number of attention heads; hidden_size must be a multiple of this number, except in t5."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout rate on embeddings and on the output of every sub-layer."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout rate on attention weights. On a CPU, it slows training down because it rules out fused attention."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout rate inside the feed-forward networks."""
    norm: Literal["pre", "post"] = "pre"
    """Where layer normalization is applied: before each sub-layer (pre), which needs no long warm-up, or after it
    (post), as in Vaswani et al. 2017."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0, le=1e-2)
    """Constant that is added to the variance in layer normalization; Joey NMT and OpenNMT-py use 1e-6."""
    activation: Activation = "relu"
    """Activation function of the feed-forward networks; silu is also called swish, and gelu_tanh approximates gelu."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "LayersConfig":
        if self.layer_form.head_size is None and self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size must be a multiple of heads, but {self.hidden_size} is not a multiple of {self.heads}; "
                "change one of them"
            )
        return self

    @property
    def layer_form(self) -> LayerForm:
        return LayerForm()

    @property
    @override
    def bf16_allowed(self) -> bool:
        return True


class StacksConfig(LayersConfig):
    """Settings that the Transformer and T5 share: an encoder and a decoder with Transformer layers."""

    shorthands: ClassVar = {"layers": ("encoder_layers", "decoder_layers")}
    layers: Depth | None = Field(default=None, ge=1)
    """Sets both encoder_layers and decoder_layers; cannot be combined with them."""
    encoder_layers: Depth = Field(default=3, ge=1)
    """Number of encoder layers."""
    decoder_layers: Depth = Field(default=3, ge=1)
    """Number of decoder layers; the fewer there are, the faster translation is."""
    source_end: bool = True
    """Whether the encoder and the decoder attend to the source's EOS; false matches OpenNMT-py."""
    tie: Tie = "decoder"
    """Layers that share a weight matrix. none: no layers. embeddings: both embeddings. decoder: the target embedding
    and the output layer. all: all three."""
    alignment_layer: int | None = Field(default=None, ge=1)
    """Decoder layer, counted from 1, whose attention is used as the alignment. Default: the second to last."""
    alignment_heads: Literal["mean"] | int = "mean"
    """Head of alignment_layer whose attention is used, counted from 1, or mean for the mean of all heads."""
    src_embedding: AnyEmbeddingConfig = None
    """Contextual source embeddings: `kind` and its settings. Default: a table of word vectors."""
    experts: ExpertsConfig | None = None
    """Mixture of experts that replaces the feed-forward networks of some layers; the objective expert_balance balances
    the use of the experts. `{}` selects the defaults."""
    copying: Literal["none", "head", "learned"] = "none"
    """Whether and how the decoder can copy source words, including unknown ones. head: with the attention of
    alignment_layer and alignment_heads. learned: with an additional attention, which is also used as the alignment."""

    @field_validator("alignment_heads", mode="before")
    @classmethod
    def _mean_or_number(cls, value: Any) -> Any:
        if value != "mean" and (type(value) is not int or value < 1):
            raise ValueError("must be mean or the number of a head, counted from 1")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "StacksConfig":
        layer = self.alignment_layer
        if layer is not None and layer > self.decoder_layers:
            raise ValueError(
                f"alignment_layer: there is no decoder layer {layer}; choose a number from 1 to {self.decoder_layers}"
            )
        head = self.alignment_heads
        if head != "mean" and head > self.heads:
            raise ValueError(
                f"alignment_heads: there is no head {head}; choose `mean` or a number from 1 to {self.heads}"
            )
        if self.experts and self.experts.every > max(self.encoder_layers, self.decoder_layers):
            raise ValueError(
                f"experts.every ({self.experts.every}) is greater than the number of layers, so no layer would have "
                "experts"
            )
        return self

    @property
    def shown(self) -> tuple[int, slice]:
        """The decoder layer whose attention is shown, counted from 0, and the slice of its heads."""
        layer = self.alignment_layer or max(self.decoder_layers - 1, 1)
        head = self.alignment_heads
        if head == "mean":
            heads = slice(None)
        else:
            heads = slice(head - 1, head)
        return layer - 1, heads

    @property
    def bf16_allowed(self) -> bool:
        """False if the model copies, since rounding errors would add up in the sums of small copy probabilities."""
        return not self.copies


class TransformerConfig(StacksConfig):
    """Settings of the Transformer.

    The defaults suit small corpora; the paper's "base" model has hidden_size 512, feed_forward_size 2048, 8 heads, 6
    encoder layers, 6 decoder layers, and `norm: post`.
    """

    kind: Literal["transformer"] = "transformer"
    embedding_norm: bool = False
    """Whether the inputs of the first encoder layer and the first decoder layer are normalized, as in BART (Lewis et
    al. 2020) and mBART."""
    positions: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned"] = (
        "sinusoidal"
    )
    """Position encodings. sinusoidal: sinusoids of fixed wavelengths. learned: learned vectors. sinusoidal_halves: all
    sines precede all cosines, as in Marian. sinusoidal_fairseq: the same order with different wavelengths, as in
    M2M100."""
    scale_embeddings: bool = True
    """Whether word vectors are multiplied by the square root of hidden_size before position encodings are added, as in
    the paper."""
    max_positions: Width = Field(default=1024, ge=1)
    """Number of learned position embeddings, which limits the text length in tokens; sinusoids impose no limit."""


@dataclass(frozen=True)
class TransformerMemory(Memory):
    """Keys and values of the source for each decoder layer."""

    bias: Tensor
    """The mask as a bias on energies: zero or minus infinity, `(B, 1, 1, S)`."""
    keys: tuple[Tensor, ...]
    """L x `(B, A, S, D)`."""
    values: tuple[Tensor, ...]
    """L x `(B, A, S, D)`."""
    states: Tensor | None = None
    """Encoder states `(B, S, H)`; None if the model does not copy."""
    copy_keys: Tensor | None = None
    """Keys `(B, S, H)` of the additional attention; only with `copying: learned`."""


@MODELS.register("transformer")
class Transformer(
    AuxiliaryHead,
    Copying[TransformerMemory, DecoderState],
    LimitedPositions[TransformerMemory, DecoderState],
    OptionalSourceEnd[TransformerMemory, DecoderState],
    ParallelPrefill[TransformerMemory, DecoderState],
    MultiHeadModel[TransformerMemory, DecoderState],
):
    """Encoder and decoder with attention and feed-forward layers; see the module docstring."""

    Config: ClassVar[type[ModelConfig]] = TransformerConfig
    first_entry: ClassVar[int] = 0
    """Layer of the cache that the first decoder layer uses."""

    def __init__(self, config: TransformerConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        require_shared_vocabulary(config.tie, sizes)
        width = config.hidden_size
        self.width = width
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        self.source_end = config.source_end
        self.alignment_layer, self.shown_heads = config.shown

        self.tgt_embedding = self._embedding(sizes["tgt"])
        if config.tie in ("embeddings", "all"):
            src_vectors = self.tgt_embedding
        else:
            src_vectors = self._embedding(sizes["src"])
        self.src_embedding = source_embedding(src_vectors, config.src_embedding)
        self.src_positions = self._positions(config, "src")
        self.tgt_positions = self._positions(config, "tgt")
        self.dropout = Dropout(config.dropout)

        encoder_layers = [EncoderLayer(config) for _ in range(config.encoder_layers)]
        decoder_layers = [DecoderLayer(config) for _ in range(config.decoder_layers)]
        self.encoder = LayerStack(encoder_layers)
        self.decoder = LayerStack(decoder_layers)
        place_experts(config, config.experts, [self.encoder, self.decoder])
        # With post-norm, the layers normalize their own results.
        pre_norm = config.norm == "pre"
        self.encoder_norm = normalization(config) if pre_norm else nn.Identity()
        self.decoder_norm = normalization(config) if pre_norm else nn.Identity()
        self.src_embedding_norm: nn.LayerNorm | None = None
        self.tgt_embedding_norm: nn.LayerNorm | None = None
        if config.embedding_norm:
            self.src_embedding_norm = nn.LayerNorm(width, config.norm_epsilon)
            self.tgt_embedding_norm = nn.LayerNorm(width, config.norm_epsilon)

        self.output = nn.Linear(width, sizes["tgt"])
        nn.init.zeros_(self.output.bias)
        if config.tie in ("decoder", "all"):
            self.output.weight = self.tgt_embedding.weight
        else:
            nn.init.normal_(self.output.weight, std=width**-0.5)

        self.copy_query: nn.Linear | None = None
        self.copy_key: nn.Linear | None = None
        self.copy_gate: nn.Linear | None = None
        if config.copying == "learned":
            self.copy_query = nn.Linear(width, width)
            self.copy_key = nn.Linear(width, width, bias=False)
        if config.copies:
            self.copy_gate = nn.Linear(3 * width, 1)

    def show(self, layer: int | None = None, heads: Literal["mean"] | int = "mean") -> None:
        """Changes `alignment_layer` and `alignment_heads`, but no weights."""
        if self.copy_gate is not None:
            raise RecipeError(
                "this model has a copy mechanism, and the attention shown is always its copy attention; remove --layer "
                "and --head"
            )
        changes = {"alignment_layer": layer, "alignment_heads": heads}
        config = cast(TransformerConfig, self.config).changed(changes)
        self.config = config
        self.alignment_layer, self.shown_heads = config.shown

    def _embedding(self, size: int) -> nn.Embedding:
        embedding = nn.Embedding(size, self.width)
        # After multiplication by sqrt(H) (section 3.4), the elements have variance 1.
        nn.init.normal_(embedding.weight, std=self.width**-0.5)
        return embedding

    @staticmethod
    def _positions(config: TransformerConfig, side: Side) -> nn.Module:
        if config.positions == "learned":
            return LearnedPositions(config.hidden_size, config.max_positions)
        return SinusoidalPositions(config.hidden_size, config.positions)

    def encode(self, batch: Batch) -> TransformerMemory:
        """Runs the encoder, and projects its states to the keys and values of each decoder layer."""
        inputs = batch.inputs
        mask = inputs.mask  # (B, S)
        if not self.source_end:
            mask = mask_without_eos(mask)  # (B, S)
        # The bias is computed once here, instead of in each layer.
        dtype = self.src_embedding.weight.dtype
        bias = torch.where(mask, 0.0, -math.inf).to(dtype)  # (B, S)
        bias = bias[:, None, None]  # (B, 1, 1, S)
        states, *keys_and_values = run_by_length(
            self._encode_group, inputs.lengths, [inputs.ids, bias]
        )  # (B, S, H), 2L x (B, A, S, D)
        return TransformerMemory(
            mask=mask,
            copy=inputs.copy,
            bias=bias,
            keys=tuple(keys_and_values[::2]),
            values=tuple(keys_and_values[1::2]),
            states=None if self.copy_gate is None else states,
            copy_keys=None if self.copy_key is None else self.copy_key(states),
        )

    def _encode_group(self, src: Tensor, bias: Tensor) -> list[Tensor]:
        """Encodes some sentences `(b, s)` of a batch, with bias `(b, 1, 1, s)`.

        Returns the encoder states `(b, s, H)`, followed by the keys and values, `(b, A, s, D)` each, of all decoder
        layers.
        """
        states = self._embed("src", src)  # (b, s, H)
        bias = self._encoder_bias(bias)  # (b, 1 or A, 1 or s, s)
        for layer in self.encoder:
            states = layer(states, bias)  # (b, s, H)
        states = self.encoder_norm(states)  # (b, s, H)
        results = [states]
        for decoder_layer in self.decoder:
            keys, values = decoder_layer.cross_attention.project(
                states
            )  # (b, A, s, D), (b, A, s, D)
            if not torch.is_grad_enabled():
                # Decoding reads keys and values in each step, which would be slower with strided views.
                keys = keys.contiguous()  # (b, A, s, D)
                values = values.contiguous()  # (b, A, s, D)
            results.append(keys)
            results.append(values)
        return results

    @override
    def positions(self, most: int) -> tuple[str, Tensor]:
        positions = self.src_positions
        if isinstance(positions, LearnedPositions):
            learned = len(positions.table)
            most = min(most, learned)
            return "learned (source)", positions(most)
        return "sinusoidal", positions(most)

    @override
    def reserve_positions(self, length: int) -> bool:
        positions = self.tgt_positions
        if isinstance(positions, SinusoidalPositions):
            positions.reserve(length)
        if isinstance(positions, LearnedPositions):
            return length <= len(positions.table)
        return True

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: TransformerMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        """Runs one step. The K hypotheses of a sentence are K queries into its memory."""
        beam_size = rows_per_sentence(tokens.shape[0], memory)
        ids = tokens.view(-1, beam_size)  # (B, K)
        inputs = self._embed("tgt", ids, cache)  # (B, K, H)
        shown = self._heads_to_show(need_attention)
        states, weights = self._decode(
            inputs, memory, cache, shown=shown
        )  # (B, K, H), (B, a, K, S)
        output = self._join(states, inputs, weights=weights, memory=memory)  # (B, K, *)
        return output.mapped(lambda tensor: tensor.flatten(0, 1)), state  # (N, *)

    def unroll(
        self, batch: Batch, memory: TransformerMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all positions at once. Padding is on the right, so with causal attention no real position reads it."""
        ids = batch.targets.shifted  # (B, T)
        inputs = self._embed("tgt", ids)  # (B, T, H)
        shown = self._heads_to_show(need_attention)
        states, weights = self._decode(
            inputs, memory, cache=None, shown=shown
        )  # (B, T, H), (B, a, T, S)
        return self._join(states, inputs, weights=weights, memory=memory)

    @override
    def unroll_with_heads(
        self, batch: Batch, memory: TransformerMemory
    ) -> tuple[ModelOutput, Tensor]:
        ids = batch.targets.shifted  # (B, T)
        inputs = self._embed("tgt", ids)  # (B, T, H)
        all_heads = slice(None)
        states, weights = self._decode(
            inputs, memory, cache=None, shown=all_heads
        )  # (B, T, H), (B, A, T, S)
        assert weights is not None
        shown_weights = weights[:, self.shown_heads]  # (B, a, T, S)
        output = self._join(states, inputs, weights=shown_weights, memory=memory)  # (B, T, *)
        return output, weights

    @classmethod
    def shows_one_head(cls, config: TransformerConfig) -> bool:
        """Returns whether the model shows the attention of a single head; with `copying: learned`, it shows no head."""
        return config.alignment_heads != "mean" and config.copying != "learned"

    @classmethod
    def auxiliary_objective(cls, config: TransformerConfig) -> str:
        """Returns the name of the objective that balances the use of the experts; empty without experts."""
        return "expert_balance" if config.experts else ""

    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Returns how much each expert was used in the forward pass that gave `output`; see `use_of_experts`."""
        return use_of_experts((self.encoder, batch.inputs.mask), (self.decoder, batch.targets.mask))

    def attentions(self, batch: Batch) -> LayerAttentions:
        """Runs a separate forward pass, so that other passes can use fused attention, which returns no weights."""
        memory = self.encode(batch)
        encoder_weights = []
        states = self._embed("src", batch.inputs.ids)  # (B, S, H)
        bias = self._encoder_bias(memory.bias)  # (B, 1 or A, 1 or S, S)
        for encoder_layer in self.encoder:
            normed = encoder_layer.around_self_attention.before(states)  # (B, S, H)
            encoder_weights.append(encoder_layer.self_attention.weights(normed, bias))
            states = encoder_layer(states, bias)  # (B, S, H)

        decoder_weights = []
        cross_weights = []
        states = self._embed("tgt", batch.targets.shifted)  # (B, T, H)
        decoder_bias = self._decoder_bias(states, None)  # (1, A, T, T) or None
        for number, decoder_layer in enumerate(self.decoder):
            normed = decoder_layer.around_self_attention.before(states)  # (B, T, H)
            causal = decoder_bias is None
            decoder_weights.append(
                decoder_layer.self_attention.weights(normed, decoder_bias, causal=causal)
            )
            layer_memory = (memory.keys[number], memory.values[number], memory.bias)
            states, weights = decoder_layer(
                states, layer_memory, shown=slice(None), bias=decoder_bias
            )  # (B, T, H), (B, A, T, S)
            cross_weights.append(weights)
        return LayerAttentions(
            encoder=_without_padding(encoder_weights, memory.mask),  # L x (B, A, S, S)
            decoder=_without_padding(decoder_weights, batch.targets.mask),  # L x (B, A, T, T)
            cross=_without_padding(cross_weights, batch.targets.mask),  # L x (B, A, T, S)
        )

    def _embed(self, side: Side, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Returns the input of the first encoder or decoder layer: scaled word vectors plus position encodings.

        See sections 3.4 and 3.5. `ids` are whole texts `(B, T)` or, with a cache, the words of one step `(B, K)`.
        """
        table = self.src_positions if side == "src" else self.tgt_positions
        if cache is None:
            length = ids.shape[1]
            positions = table(length)  # (T, H)
        else:
            vectors = table(cache.reach)  # (P, H)
            positions = F.embedding(cache.positions(), vectors)  # (B, 1, H) or (1, K, H)
        words = self._word_vectors(side, ids)  # (B, T or K, H)
        embedded = words * self.scale + positions  # (B, T or K, H)
        norm = self.src_embedding_norm if side == "src" else self.tgt_embedding_norm
        if norm is not None:
            embedded = norm(embedded)  # (B, T or K, H)
        dropped: Tensor = self.dropout(embedded)  # (B, T or K, H)
        return dropped

    def _word_vectors(self, side: Side, ids: Tensor) -> Tensor:
        # During decoding, a model that copies reads extended ids.
        if side == "tgt" and self.copy_gate is not None:
            ids = extended_to_unk(ids, self.sizes)  # (...)
        embedding = self.embedding(side)
        vectors: Tensor = embedding(ids)  # (..., H)
        return vectors

    def _encoder_bias(self, bias: Tensor) -> Tensor:
        """Returns the bias on the energies of the encoder's self-attention; `bias` `(B, 1, 1, S)` masks padding."""
        return bias

    def _decoder_bias(self, states: Tensor, cache: KVCache | None) -> Tensor | None:
        """Returns the bias on the decoder's self-attention energies; None means a causal mask. See `DecoderLayer`."""
        return None

    def _heads_to_show(self, need_attention: bool) -> slice | None:
        """Returns the heads of the alignment layer whose weights must be computed, or None."""
        # With `copying: learned`, no head is shown: `_join` computes the attention.
        if self.copy_query is not None:
            return None
        copies = self.copy_gate is not None
        return self.shown_heads if need_attention or copies else None

    def _join(
        self, states: Tensor, inputs: Tensor, weights: Tensor | None, memory: TransformerMemory
    ) -> ModelOutput:
        """Returns the output for Q positions per sentence, with the copy gate described in the module docstring.

        `inputs` and `states`, `(B, Q, H)` each, are the input of the first layer and the result of the last layer.
        `weights` contains the weights of the shown heads, `(B, a, Q, S)`, or is None.
        """
        attention = None if weights is None else weights.mean(1)  # (B, Q, S)
        if self.copy_gate is None:
            if attention is not None:
                # NumPy has no bfloat16.
                attention = attention.to(at_least_float32(attention))  # (B, Q, S)
            return ModelOutput(states, attention)
        if self.copy_query is not None:
            assert memory.copy_keys is not None
            # This attention has a single head of size H.
            query = self.copy_query(states).unsqueeze(1)  # (B, 1, Q, H)
            keys = memory.copy_keys.unsqueeze(1)  # (B, 1, S, H)
            attention = attention_weights(query, keys, memory.bias)  # (B, 1, Q, S)
            attention = attention.squeeze(1)  # (B, Q, S)
        assert attention is not None
        assert memory.states is not None
        if attention.dtype in (torch.float16, torch.bfloat16):
            # The rounded weights do not sum to one.
            totals = attention.sum(-1, keepdim=True, dtype=torch.float32)  # (B, Q, 1)
            attention = attention.float() / totals  # (B, Q, S)
        encoder_states = memory.states
        contexts = attention.to(encoder_states.dtype) @ encoder_states  # (B, Q, H), c_t
        gate_inputs = torch.cat([contexts, states, inputs], -1)  # (B, Q, 3H)
        gate_logits = self.copy_gate(gate_inputs)  # (B, Q, 1)
        gate_logits = gate_logits.to(at_least_float32(gate_logits))  # (B, Q, 1)
        return ModelOutput(states, attention, copy_gate=torch.sigmoid(gate_logits))

    def _decode(
        self, states: Tensor, memory: TransformerMemory, cache: KVCache | None, shown: slice | None
    ) -> tuple[Tensor, Tensor | None]:
        """Runs the decoder layers over targets `(B, T, H)` or, with a cache, over one step `(B, K, H)`.

        Returns states of the same shape, and the weights of the `shown` heads in the alignment layer,
        `(B, a, T or K, S)`, or None.
        """
        alignment_weights = None
        bias = self._decoder_bias(states, cache)  # (1 or B, A, T or K, T or P * K), or None
        for number, layer in enumerate(self.decoder):
            is_alignment_layer = number == self.alignment_layer
            states, weights = layer(
                states,
                memory=(memory.keys[number], memory.values[number], memory.bias),
                cache=None if cache is None else (cache, self.first_entry + number),
                shown=shown if is_alignment_layer else None,
                bias=bias,
            )  # (B, T or K, H), (B, a, T or K, S) or None
            if is_alignment_layer:
                alignment_weights = weights
        return self.decoder_norm(states), alignment_weights


def _without_padding(weights: list[Tensor], mask: Tensor) -> tuple[Tensor, ...]:
    """Sets the rows of padded queries to zero in weights `(B, A, Q, *)`; `mask` `(B, Q)` is True at real queries."""
    is_padding = ~mask[:, None, :, None]  # (B, 1, Q, 1)
    return tuple(head_weights.masked_fill(is_padding, 0.0) for head_weights in weights)
