"""The parts of the Transformer (Vaswani et al. 2017): multi-head attention, feed-forward networks, positions, layers.

Notation: as in `models/base.py`, and:

    H  size of the hidden states    A  attention heads       D  size of a head, by default H / A
    F  inner size of a feed-forward network                  P  positions up to the current one, during decoding
    Q  queries per sentence

Queries, keys and values of all heads are `(B, A, *, D)`. A mask is True where a key may be read.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.errors import DataError
from nmtkit.layers.elementary import Dropout, dropout
from nmtkit.layers.kv_cache import KVCache

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
SinusoidKind = Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq"]

_INITIAL_SINUSOIDS = 256
"""Number of positions in a new table of sinusoids. The table grows if a text is longer."""


def sinusoids(length: int, width: int, kind: SinusoidKind = "sinusoidal") -> Tensor:
    """Returns the position encodings of Vaswani et al. 2017, section 3.5: `(length, width)`, float32.

        PE(pos, 2i)   = sin(pos / 10000^(2i / width))
        PE(pos, 2i+1) = cos(pos / 10000^(2i / width))

    `sinusoidal` alternates sines and cosines, as in the paper. `sinusoidal_halves` puts all sines before all cosines,
    as in Marian. `sinusoidal_fairseq` does the same, but counts positions from 2 and has the exponent
    i / (width / 2 - 1).
    """
    if kind == "sinusoidal_fairseq":
        first_position = 2
        exponent_width = max(width - 2, 1)
    else:
        first_position = 0
        exponent_width = width
    positions = torch.arange(length, dtype=torch.float64) + first_position  # (length,)
    even_columns = torch.arange(0, width, 2, dtype=torch.float64)  # (ceil(width / 2),)
    log_base = -math.log(10000.0) / exponent_width
    rates = torch.exp(even_columns * log_base)  # (ceil(width / 2),), 10000^(-2i / width)
    angles = torch.outer(positions, rates)  # (length, ceil(width / 2))
    sines = torch.sin(angles)  # (length, ceil(width / 2))
    cosines = torch.cos(angles)  # (length, ceil(width / 2))
    # With an odd width, there is one more sine than cosines.
    cosines = cosines[:, : width // 2]  # (length, floor(width / 2))

    if kind == "sinusoidal":
        table = torch.empty(length, width, dtype=torch.float64)  # (length, width)
        table[:, 0::2] = sines
        table[:, 1::2] = cosines
    else:
        table = torch.cat([sines, cosines], dim=1)  # (length, width)
    return table.float()


class SinusoidalPositions(nn.Module):
    """Returns rows of the table of `sinusoids`, which grows on demand."""

    table: Tensor

    def __init__(self, width: int, kind: SinusoidKind = "sinusoidal") -> None:
        super().__init__()
        self.width = width
        self.kind = kind
        table = sinusoids(_INITIAL_SINUSOIDS, width, kind)  # (_INITIAL_SINUSOIDS, H)
        self.register_buffer("table", table, persistent=False)
        # A captured CUDA graph reads the table that existed when it was captured, but holds no reference to it. So
        # tables that have been replaced must not be freed.
        self._outgrown_tables: list[Tensor] = []

    def forward(self, length: int) -> Tensor:
        """Returns the encodings of positions 0 to length-1: `(length, H)`."""
        return self.reserve(length)[:length]

    def reserve(self, length: int) -> Tensor:
        """Returns the table with at least `length` rows.

        New rows are computed on the CPU, so a search reserves all rows that it may need before it begins.
        """
        table = self.table  # read only once, because another thread may replace it
        if length > table.shape[0]:
            self._outgrown_tables.append(table)
            table = sinusoids(2 * length, self.width, self.kind).to(table)  # (2 * length, H)
            self.table = table
        return table


class LearnedPositions(nn.Module):
    """Learned position embeddings: Gehring et al. 2017; also Vaswani et al. 2017, section 3.5."""

    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_positions, width))  # (max_positions, H)
        # Random vectors as large as sinusoids would dominate the sum with the word embeddings.
        nn.init.normal_(self.table, std=0.1)

    def forward(self, length: int) -> Tensor:
        """Returns the embeddings of positions 0 to length-1: `(length, H)`.

        Raises:
            DataError: there are fewer than `length` embeddings.
        """
        max_positions = self.table.shape[0]
        if length > max_positions:
            raise DataError(
                f"a sentence needs {length} positions, but the model learned only {max_positions} positions; leave out "
                "or split longer sentences, or train with a larger max_positions (or, if the model has the setting "
                "`positions`, with sinusoidal positions)"
            )
        return self.table[:length]


class RelativePositions(nn.Module):
    """Learned bias on energies, based on the distance between query and key: Raffel et al. 2020 (T5), section 2.1.

    Distances are grouped into buckets, and each head learns one number per bucket. Each bucket in the first half
    contains a single distance: 0, 1, 2, ... The sizes of the buckets in the second half grow by a constant factor up to
    `max_distance`, and the last one also contains all larger distances. If `bidirectional`, half of all buckets are for
    keys after the query; otherwise these keys share bucket 0, since a causal mask hides them.
    """

    buckets: Tensor
    """Bucket of each distance from -max_distance to max_distance, `(2 * max_distance + 1,)`."""

    def __init__(self, heads: int, buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(buckets, heads))  # (buckets, A)
        per_direction = buckets // 2 if bidirectional else buckets
        exact = per_direction // 2  # number of buckets with a single distance

        distances = torch.arange(max_distance + 1)  # (max_distance + 1,)
        # The logarithm of 0 is not defined.
        clamped = distances.float().clamp(min=1)  # (max_distance + 1,)
        growth = torch.log(clamped / exact) / math.log(max_distance / exact)  # (max_distance + 1,)
        shared = exact + (growth * (per_direction - exact)).long()  # (max_distance + 1,)
        shared = shared.clamp(max=per_direction - 1)  # (max_distance + 1,)
        # Buckets of the distances 0, -1, -2, ...
        before = torch.where(distances < exact, distances, shared)  # (max_distance + 1,)
        if bidirectional:
            after = before[1:] + per_direction  # (max_distance,): distances 1, 2, 3, ...
        else:
            after = torch.zeros(max_distance, dtype=torch.long)  # (max_distance,)
        self.register_buffer("buckets", torch.cat([before.flip(0), after]), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """Returns the bias on energies, `(B, A, Q, P)`.

        Distances `(B, Q, P)` are key positions minus query positions, so they are negative before the query.
        """
        by_distance = self.weight[self.buckets].t()  # (A, 2 * max_distance + 1)
        indices = (
            distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        )  # (B, Q, P)
        return by_distance[:, indices].transpose(0, 1)


def merge_heads(states: Tensor) -> Tensor:
    """Concatenates the heads: `(B, A, Q, D)` to `(B, Q, A * D)`."""
    return states.transpose(1, 2).flatten(2)


def attention_weights(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Returns softmax(Q K^T / sqrt(D)), the weights in equation 1 of Vaswani et al. 2017: `(B, A, Q, S)`.

    Queries are `(B, A, Q, D)`, keys `(B, A, S, D)`. The mask broadcasts to the weights. A boolean mask is True where a
    key may be read; any other mask is a bias that is added to the energies. Each query must have at least one key that
    it may read.
    """
    energies: Tensor = (query * query.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # (B, A, Q, S)
    if mask is None:
        return energies.softmax(-1)
    if mask.dtype == torch.bool:
        energies = energies.masked_fill(~mask, -math.inf)  # (B, A, Q, S)
    else:
        energies = energies + mask.to(energies.dtype)  # (B, A, Q, S)
    return energies.softmax(-1)


def _causal_mask(query: Tensor) -> Tensor:
    """Returns a mask `(Q, Q)` that lets position i read positions 0 to i."""
    length = query.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril()


def _is_fused_faster(query: Tensor, rate: float) -> bool:
    """Returns whether torch's fused attention is faster than separate operations.

    On a GPU, it always is; on a CPU with dropout, it never is. On a CPU without dropout, it is slow if oneDNN computes
    its many small products, as it does for 16-bit types and for float32 products of reduced precision. Exceptions are a
    single query in float32, and bfloat16 at inference.
    """
    if query.device.type != "cpu":
        return True
    is_full_precision = query.dtype in (torch.float32, torch.float64)
    if rate == 0.0 and is_full_precision:
        return torch.get_float32_matmul_precision() == "highest" or query.shape[-2] == 1
    is_search = not torch.is_grad_enabled()
    return rate == 0.0 and query.dtype == torch.bfloat16 and is_search


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    rate: float = 0.0,
) -> Tensor:
    """Returns softmax(Q K^T / sqrt(D)) V, equation 1 of Vaswani et al. 2017: `(B, A, Q, D)`.

    The fastest implementation for the device is used.

    Args:
        query: `(B, A, Q, D)`.
        keys: `(B, A, S, D)`.
        values: `(B, A, S, D)`.
        mask: as in `attention_weights`; None means that all keys may be read.
        causal: whether query i reads only keys 0 to i, which requires Q = S and no mask.
        rate: dropout rate of the attention weights.
    """
    if _is_fused_faster(query, rate):
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=rate, is_causal=causal
        )
    if causal:
        mask = _causal_mask(query)  # (Q, Q)
    weights = dropout(attention_weights(query, keys, mask), rate, training=True)  # (B, A, Q, S)
    context: Tensor = weights @ values  # (B, A, Q, D)
    return context


def _init_xavier(linear: nn.Linear, parts: int = 1) -> nn.Linear:
    """Initializes a linear layer as in Glorot and Bengio 2010, with zero bias, and returns it.

    The weight consists of `parts` matrices of equal size. Initial values have the range of a single matrix.
    """
    fan_in = linear.weight.shape[1]
    fan_out = linear.weight.shape[0] // parts
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


@dataclass(frozen=True)
class LayerForm:
    """Differences from the layers in Vaswani et al. 2017. The defaults match the paper, with biases everywhere."""

    head_size: int | None = None
    """Size of a head (D). None means H / A."""
    bias: bool = True
    """Whether linear layers have a bias."""
    rms_norm: bool = False
    """Whether to use RMSNorm, without a bias, instead of LayerNorm: Zhang and Sennrich 2019."""
    scaled: bool = True
    """Whether to divide energies by sqrt(D)."""
    gated: bool = False
    """Whether to multiply the inner layer of a feed-forward network by the output of another linear layer: Shazeer
    2020, "GLU Variants"."""


class LayerConfig(Protocol):
    """The model settings on which the layers depend."""

    hidden_size: int
    heads: int
    feed_forward_size: int
    norm: Norm
    norm_epsilon: float
    activation: Activation
    dropout: float
    attention_dropout: float
    activation_dropout: float


@runtime_checkable
class HasLayerForm(Protocol):
    """Settings of a model whose layers differ from those of Vaswani et al. 2017."""

    @property
    def layer_form(self) -> LayerForm:
        """How the layers differ from those of Vaswani et al. 2017."""


def layer_form_of(config: object) -> LayerForm:
    """Returns the `layer_form` of a config, or the default if it has none."""
    return config.layer_form if isinstance(config, HasLayerForm) else LayerForm()


def normalization(config: LayerConfig) -> nn.Module:
    """Builds a normalization layer for states `(..., H)`."""
    if layer_form_of(config).rms_norm:
        return nn.RMSNorm(config.hidden_size, config.norm_epsilon)
    return nn.LayerNorm(config.hidden_size, config.norm_epsilon)


class _MultiHeadAttention(nn.Module):
    """Shared by self- and cross-attention: sizes, dropout rate, construction of linear layers."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        form = layer_form_of(config)
        self.heads = config.heads
        self.rate = config.attention_dropout
        self.width = config.hidden_size
        head_size = form.head_size or self.width // self.heads
        self.inner = self.heads * head_size  # A * D
        self.has_bias = form.bias
        # `attend` always divides energies by sqrt(D). To cancel this division, queries are scaled up beforehand.
        self.scale = 1.0 if form.scaled else math.sqrt(head_size)

    def _input_layer(self, parts: int) -> nn.Linear:
        """Builds a linear layer from size H to `parts` * A * D."""
        linear = nn.Linear(self.width, parts * self.inner, bias=self.has_bias)
        return _init_xavier(linear, parts)

    def _output_layer(self) -> nn.Linear:
        """Builds a linear layer from size A * D to H."""
        return _init_xavier(nn.Linear(self.inner, self.width, bias=self.has_bias))

    def _scaled(self, query: Tensor) -> Tensor:
        return query if self.scale == 1.0 else query * self.scale

    def _current_rate(self) -> float:
        return self.rate if self.training else 0.0


class SelfAttention(_MultiHeadAttention):
    """Multi-head self-attention: section 3.2.2 of Vaswani et al. 2017.

    One matrix product computes queries, keys and values of all heads, in this order.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(config)
        self.query_keys_values = self._input_layer(3)
        self.out = self._output_layer()

    def _project(self, states: Tensor) -> Tensor:
        """Returns queries, keys and values `(B, Q, 3, A, D)` of states `(B, Q, H)`."""
        projected = self.query_keys_values(states)  # (B, Q, 3 * A * D)
        packed: Tensor = projected.unflatten(-1, (3, self.heads, -1))  # (B, Q, 3, A, D)
        return packed

    def forward(self, states: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attends from all positions `(B, Q, H)` at once; returns `(B, Q, H)`.

        `mask` is `(B, 1, 1, Q)`; it must be None if `causal`, see `attend`.
        """
        query, keys, values = self._project(states).unbind(2)  # (B, Q, A, D) each
        context = attend(
            self._scaled(query.transpose(1, 2)),  # (B, A, Q, D)
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask=mask,
            causal=causal,
            rate=self._current_rate(),
        )  # (B, A, Q, D)
        out: Tensor = self.out(merge_heads(context))  # (B, Q, H)
        return out

    def weights(self, states: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Returns the attention weights `(B, A, Q, Q)` without dropout, which `forward` does not compute explicitly."""
        packed = self._project(states).to(states.dtype)  # (B, Q, 3, A, D)
        query, keys, _ = packed.transpose(1, 3).unbind(2)  # (B, A, Q, D) each
        if causal:
            mask = _causal_mask(query)  # (Q, Q)
        return attention_weights(self._scaled(query), keys, mask)

    def step(
        self, states: Tensor, cache: KVCache, layer: int, bias: Tensor | None = None
    ) -> Tensor:
        """Attends from the newest position of N = B * K hypotheses, `(B, K, H)`; returns `(B, K, H)`.

        Writes the keys and values of this position into the cache, as the entries of layer number `layer`. If `bias`,
        `(B, A, K, P * K)`, is given, it replaces the bias that the cache adds to the energies.
        """
        packed = self._project(states)  # (B, K, 3, A, D)
        keys_values = packed[:, :, 1:]  # (B, K, 2, A, D)
        cache.append(layer, keys_values.flatten(0, 1))
        keys, values = cache.read(layer).unbind(2)  # (B, P * K, A, D) each
        query = packed[:, :, 0].transpose(1, 2)  # (B, A, K, D)
        if bias is None:
            bias = cache.bias()
        if bias is not None:
            # In an ensemble, the bias of the cache may have been created by a model of a different precision.
            bias = bias.to(query.dtype)  # (B, 1 or A, K, P * K)
        context = attend(
            self._scaled(query),
            keys.transpose(1, 2),  # (B, A, P * K, D)
            values.transpose(1, 2),
            mask=bias,
            rate=self._current_rate(),
        )  # (B, A, K, D)
        out: Tensor = self.out(merge_heads(context))  # (B, K, H)
        return out


class CrossAttention(_MultiHeadAttention):
    """Multi-head attention to a memory, which is projected to keys and values only once: section 3.2.2."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(config)
        self.keys_values = self._input_layer(2)
        self.query = self._input_layer(1)
        self.out = self._output_layer()

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Projects a memory `(B, S, H)` to keys and values, `(B, A, S, D)` each."""
        projected = self.keys_values(memory)  # (B, S, 2 * A * D)
        heads = projected.unflatten(-1, (2, self.heads, -1))  # (B, S, 2, A, D)
        keys, values = heads.unbind(-3)  # (B, S, A, D) each
        return keys.transpose(1, 2), values.transpose(1, 2)

    def forward(
        self,
        states: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        shown: slice | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends with Q queries per sentence: the positions of a target or the hypotheses of a beam.

        Args:
            states: `(B, Q, H)`.
            keys: result of `project`.
            values: result of `project`.
            mask: `(B, 1, 1, S)`; see `attend`.
            shown: range of heads whose weights are also returned; None means no weights.

        Returns `(B, Q, H)`, and the weights of the `a` heads in `shown`, `(B, a, Q, S)`, without dropout.
        """
        projected = self.query(states)  # (B, Q, A * D)
        heads = projected.unflatten(-1, (self.heads, -1))  # (B, Q, A, D)
        query = self._scaled(heads.transpose(1, 2))  # (B, A, Q, D)
        context = attend(query, keys, values, mask=mask, rate=self._current_rate())  # (B, A, Q, D)
        weights = None
        if shown is not None:
            shown_query = query[:, shown].to(states.dtype)  # (B, a, Q, D)
            shown_keys = keys[:, shown].to(states.dtype)  # (B, a, S, D)
            weights = attention_weights(shown_query, shown_keys, mask)  # (B, a, Q, S)
        return self.out(merge_heads(context)), weights


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2: Vaswani et al. 2017, equation 2, optionally with GELU or SiLU instead of the ReLU.

    GELU and SiLU are from Hendrycks and Gimpel 2016. `gelu_tanh` is the approximation of GELU in section 2 of their
    paper, which GPT-2 uses.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        form = layer_form_of(config)
        bias = form.bias
        width = config.hidden_size
        inner = config.feed_forward_size
        self.inner: nn.Module = _init_xavier(nn.Linear(width, inner, bias=bias))
        self.gate: nn.Module | None = None
        if form.gated:
            self.gate = _init_xavier(nn.Linear(width, inner, bias=bias))
        self.out = _init_xavier(nn.Linear(inner, width, bias=bias))
        self.activation = config.activation
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Maps `(..., H)` to `(..., H)`."""
        inner = self.inner(states)  # (..., F)
        if self.activation == "relu":
            # In place to save memory, since nothing else reads the input of the ReLU.
            inner = F.relu(inner, inplace=True)  # (..., F)
        elif self.activation == "silu":
            inner = F.silu(inner)  # (..., F)
        elif self.activation == "gelu_tanh":
            inner = F.gelu(inner, approximate="tanh")  # (..., F)
        else:
            inner = F.gelu(inner)  # (..., F)
        if self.gate is not None:
            inner = inner * self.gate(states)  # (..., F)
        out: Tensor = self.out(self.dropout(inner))  # (..., H)
        return out


class Residual(nn.Module):
    """Residual connection around a sub-layer f, with normalization.

    post: LayerNorm(x + dropout(f(x))), sections 3.1 and 5.4 of Vaswani et al. 2017. pre: x + dropout(f(LayerNorm(x))),
    which does not need a long warm-up (Xiong et al. 2020), but requires one more normalization after the last layer.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = normalization(config)
        self.dropout = Dropout(config.dropout)

    def before(self, states: Tensor) -> Tensor:
        """Returns the input of the sub-layer, `(..., H)`."""
        normed: Tensor = self.norm(states) if self.pre else states  # (..., H)
        return normed

    def after(self, states: Tensor, result: Tensor) -> Tensor:
        """Adds the sub-layer's result to `states`, from which its input was computed: `(..., H)`."""
        states = states + self.dropout(result)  # (..., H)
        normed: Tensor = states if self.pre else self.norm(states)  # (..., H)
        return normed


L = TypeVar("L", bound=nn.Module)


class LayerStack(nn.ModuleList, Generic[L]):
    """A typed `nn.ModuleList` of layers, lowest layer first."""

    def __init__(self, layers: Iterable[L]) -> None:
        super().__init__(layers)

    def __iter__(self) -> Iterator[L]:
        return super().__iter__()  # type: ignore[return-value]  # nn.ModuleList is not generic


class EncoderLayer(nn.Module):
    """Self-attention followed by a feed-forward network: Vaswani et al. 2017, left half of figure 1."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.around_self_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Maps `(B, S, H)` to `(B, S, H)`. `mask` `(B, 1, 1, S)` is True at real tokens; see `attend`."""
        residual = self.around_self_attention
        normed = residual.before(states)  # (B, S, H)
        result = self.self_attention(normed, mask)  # (B, S, H)
        states = residual.after(states, result)  # (B, S, H)

        residual = self.around_feed_forward
        normed = residual.before(states)  # (B, S, H)
        result = self.feed_forward(normed)  # (B, S, H)
        return residual.after(states, result)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory and a feed-forward network: Vaswani et al. 2017, right half of figure 1.

    If `reads_memory` is false, as in a language model, the attention to the memory is left out.
    """

    def __init__(self, config: LayerConfig, reads_memory: bool = True) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.around_self_attention = Residual(config)
        self.reads_memory = reads_memory
        if reads_memory:
            self.cross_attention = CrossAttention(config)
            self.around_cross_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        states: Tensor,
        memory: tuple[Tensor, Tensor, Tensor | None] | None = None,
        cache: tuple[KVCache, int] | None = None,
        shown: slice | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes all positions of targets `(B, T, H)` at once, or one step of a beam `(B, K, H)`.

        Args:
            states: `(B, T, H)` or `(B, K, H)`.
            memory: keys, values and mask, as in `CrossAttention.forward`.
            cache: the cache with the earlier positions, and the number of this layer; only for a single step.
            shown: heads whose cross-attention weights are returned; see `CrossAttention.forward`.
            bias: bias on the self-attention energies, `(B, A, T, T)` or `(B, A, K, P * K)`, which replaces the causal
                mask or the bias of the cache.

        Returns states of the same shape, and the cross-attention weights or None.
        """
        residual = self.around_self_attention
        normed = residual.before(states)  # (B, T or K, H)
        if cache is None:
            result = self.self_attention(normed, bias, causal=bias is None)  # (B, T, H)
        else:
            kv_cache, layer = cache
            result = self.self_attention.step(normed, kv_cache, layer=layer, bias=bias)  # (B, K, H)
        states = residual.after(states, result)  # (B, T or K, H)

        weights = None
        if self.reads_memory:
            assert memory is not None, "this layer attends to a memory"
            keys, values, mask = memory
            residual = self.around_cross_attention
            normed = residual.before(states)  # (B, T or K, H)
            result, weights = self.cross_attention(
                normed, keys, values, mask=mask, shown=shown
            )  # (B, T or K, H), (B, a, T or K, S) or None
            states = residual.after(states, result)  # (B, T or K, H)

        residual = self.around_feed_forward
        normed = residual.before(states)  # (B, T or K, H)
        result = self.feed_forward(normed)  # (B, T or K, H)
        return residual.after(states, result), weights
