"""The parts of the Transformer (Vaswani et al. 2017): attention with heads, feed-forward, positions, blocks.

Shapes use the letters of `models/base.py`, and:

    H  the width of the model    A  attention heads    D = H / A  width of a head    P  positions in the past

Queries, keys and values of all heads are `(B,A,*,D)`. Masks are True where a key may be read.
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


def sinusoids(length: int, width: int, kind: SinusoidKind = "sinusoidal") -> Tensor:
    """Position encodings `(length,width)`, float32: sine in the even columns, cosine in the odd ones.

    PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos(the same): Vaswani et al. 2017, section 3.5. In
    halves all sines stand before all cosines, as in Marian. Those of fairseq stand so, too; they begin with pos 2, and
    10000 has the exponent i/(width/2-1). Some lectures write the exponent i/width, i being the column, in odd columns
    too; here, as in the paper, a sine and its cosine have one exponent.
    """
    fairseq, halves = kind == "sinusoidal_fairseq", kind != "sinusoidal"
    position = torch.arange(length, dtype=torch.float64)[:, None] + (2 if fairseq else 0)
    slowest = max(width - 2, 1) if fairseq else width
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / slowest))
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)[:, : width // 2]
    return (torch.cat([table[:, 0::2], table[:, 1::2]], 1) if halves else table).float()


class SinusoidalPositions(nn.Module):
    """The table of `sinusoids`, which grows on demand."""

    table: Tensor

    def __init__(self, width: int, kind: SinusoidKind = "sinusoidal") -> None:
        super().__init__()
        self.width, self.kind = width, kind
        self.register_buffer("table", sinusoids(256, width, kind), persistent=False)
        self._outgrown: list[Tensor] = []  # CUDA graphs read them where they stand, and do not keep them

    def forward(self, length: int) -> Tensor:
        """The encodings of positions 0 to length-1: `(length,H)`."""
        return self.reserve(length)[:length]

    def reserve(self, length: int) -> Tensor:
        """The table, with at least so many rows. A search reserves them before it begins: they are made on the CPU."""
        table = self.table  # another thread may put another one in its place
        if length > table.shape[0]:
            self._outgrown.append(table)
            table = self.table = sinusoids(2 * length, self.width, self.kind).to(table)
        return table


class LearnedPositions(nn.Module):
    """One trained vector for each of `most` positions (Gehring et al. 2017; as good in Vaswani et al., section 3.5)."""

    def __init__(self, width: int, most: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(most, width))
        # The size of sinusoids would drown the words while the vectors still mean nothing.
        nn.init.normal_(self.table, std=0.1)

    def forward(self, length: int) -> Tensor:
        """The vectors of positions 0 to length-1: `(length,H)`; raises a DataError beyond the last one."""
        most = self.table.shape[0]
        if length > most:
            raise DataError(
                f"a sentence reaches position {length}, but the model learned only {most} positions: "
                "leave out or split longer sentences, or train with a larger max_positions or, where the model has the "
                "setting `positions`, sinusoidal ones"
            )
        return self.table[:length]


class RelativePositions(nn.Module):
    """What each head adds to the energy of a key at some distance: Raffel et al. 2020 (T5), section 2.1.

    A distance has a bucket, and a bucket a number for each head. Half of the buckets are for the distances 0, 1, 2, ...
    each; the others grow by a constant factor up to `farthest`, and the last is for all beyond. If keys may stand
    `behind` the query, they have half of all buckets.
    """

    buckets: Tensor

    def __init__(self, heads: int, buckets: int, farthest: int, behind: bool) -> None:
        super().__init__()
        self.farthest = farthest
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        half = buckets // 2 if behind else buckets
        exact = half // 2
        far = torch.arange(farthest + 1).float().clamp(min=1)
        grown = exact + (torch.log(far / exact) / math.log(farthest / exact) * (half - exact)).long()
        before = torch.where(far < exact, torch.arange(farthest + 1), grown.clamp(max=half - 1))
        table = torch.cat([before.flip(0), before[1:] + half if behind else torch.zeros(farthest, dtype=torch.long)])
        self.register_buffer("buckets", table, persistent=False)  # of the distances -farthest to farthest

    def forward(self, distances: Tensor) -> Tensor:
        """What is added to energies, `(B,A,Q,P)`, for distances from queries to keys `(B,Q,P)`, negative before."""
        by_distance = self.weight[self.buckets].t()  # (A,2*farthest+1)
        places = distances.clamp(-self.farthest, self.farthest) + self.farthest
        return by_distance[:, places].transpose(0, 1)


def merge_heads(states: Tensor) -> Tensor:
    """`(B,A,Q,D)` to `(B,Q,A*D)`."""
    return states.transpose(1, 2).flatten(2)


def attention_weights(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)), the weights in equation 1 of Vaswani et al. 2017.

    From queries `(B,A,Q,D)` and keys `(B,A,S,D)`: `(B,A,Q,S)`. The mask broadcasts to that: True where a key may be
    read, or a bias on the energies; every query needs a key that it may read.
    """
    energies: Tensor = (query * query.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    if mask is not None:
        is_bias = mask.dtype != torch.bool
        energies = energies + mask.to(energies.dtype) if is_bias else energies.masked_fill(~mask, -math.inf)
    return energies.softmax(-1)


def _causal_mask(query: Tensor) -> Tensor:
    length = query.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril()


def _fused_pays(query: Tensor, rate: float) -> bool:
    """Whether torch's fused attention is faster.

    It is not where its many small products go through oneDNN: on a CPU in lower precision, but for one query in float32
    and a search in bfloat16.
    """
    if query.device.type != "cpu":
        return True
    if rate > 0.0 or query.dtype not in (torch.float32, torch.float64):
        return rate == 0.0 and query.dtype == torch.bfloat16 and not torch.is_grad_enabled()
    return torch.get_float32_matmul_precision() == "highest" or query.shape[-2] == 1


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, causal: bool = False, rate: float = 0.0
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V: equation 1 of Vaswani et al. 2017, the fastest way on the device.

    From queries `(B,A,Q,D)`, keys and values `(B,A,S,D)`. The mask is that of `attention_weights`; None reads all. If
    `causal`, query i reads keys 0 to i only; then Q = S, and there is no mask. `rate` is the dropout of the weights.
    """
    if _fused_pays(query, rate):
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=rate, is_causal=causal)
    if causal:
        mask = _causal_mask(query)
    context: Tensor = dropout(attention_weights(query, keys, mask), rate, True) @ values
    return context


def _xavier(linear: nn.Linear, parts: int) -> nn.Linear:
    """Glorot's uniform initialisation, taken for each of the `parts` products packed into one; zero bias."""
    fan_out, fan_in = linear.weight.shape[0] // parts, linear.weight.shape[1]
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


@dataclass(frozen=True)
class LayerForm:
    """How layers differ from those of Vaswani et al. 2017; the defaults are theirs, and biases everywhere."""

    head_size: int | None = None
    """D; None: H / A."""
    bias: bool = True
    """Whether linear maps have a bias."""
    rms_norm: bool = False
    """Normalize by the root mean square alone, without a bias: Zhang and Sennrich 2019."""
    scaled: bool = True
    """Divide energies by sqrt(D)."""
    gated: bool = False
    """Multiply the inner part of the feed-forward part by one more linear map: Shazeer 2020, "GLU Variants"."""


class LayerConfig(Protocol):
    """The settings of a model that its layers read."""

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
    """Settings of layers that differ from those of Vaswani et al. 2017."""

    @property
    def layer_form(self) -> LayerForm:
        """The form of the layers."""


def layer_form_of(config: object) -> LayerForm:
    """Returns the form of the layers that a config describes: `layer_form`, or the default."""
    return config.layer_form if isinstance(config, HasLayerForm) else LayerForm()


def normalization(config: LayerConfig) -> nn.Module:
    """A normalization of states `(...,H)`."""
    kind = nn.RMSNorm if layer_form_of(config).rms_norm else nn.LayerNorm
    return kind(config.hidden_size, config.norm_epsilon)


class _HeadedAttention(nn.Module):
    """What both kinds of attention have: heads, dropout of weights, and the map behind them."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        form, self.heads, self.rate = layer_form_of(config), config.heads, config.attention_dropout
        self.width, self.has_bias = config.hidden_size, form.bias
        self.inner = self.heads * (form.head_size or self.width // self.heads)
        self.scale = 1.0 if form.scaled else math.sqrt(self.inner / self.heads)

    def _from_states(self, parts: int) -> nn.Linear:
        return _xavier(nn.Linear(self.width, parts * self.inner, bias=self.has_bias), parts)

    def _scaled(self, query: Tensor) -> Tensor:
        """Undoes the division of energies by sqrt(D), where there is to be none."""
        return query if self.scale == 1.0 else query * self.scale

    def _to_states(self) -> nn.Linear:
        return _xavier(nn.Linear(self.inner, self.width, bias=self.has_bias), 1)


class SelfAttention(_HeadedAttention):
    """Multi-head attention of a sequence to itself: section 3.2.2 of Vaswani et al. 2017.

    One product makes queries, keys and values of all heads, in this order.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(config)
        self.query_keys_values = self._from_states(3)
        self.out = self._to_states()

    def _project(self, states: Tensor) -> Tensor:
        packed: Tensor = self.query_keys_values(states)
        return packed.view(*states.shape[:-1], 3, self.heads, -1)  # (B,Q,3,A,D)

    def forward(self, states: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """All positions `(B,Q,H)` at once; `mask` is `(B,1,1,Q)`, or `causal`: see `attend`."""
        query, keys, values = (part.transpose(1, 2) for part in self._project(states).unbind(2))  # (B,A,Q,D)
        context = attend(self._scaled(query), keys, values, mask, causal, self.rate if self.training else 0.0)
        out: Tensor = self.out(merge_heads(context))
        return out

    def weights(self, states: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """The weights `(B,A,Q,Q)` behind `forward`, which does not compute them; without dropout."""
        query, keys, _ = self._project(states).to(states.dtype).transpose(1, 3).unbind(2)  # (B,A,Q,D)
        return attention_weights(self._scaled(query), keys, _causal_mask(query) if causal else mask)

    def step(self, states: Tensor, cache: KVCache, layer: int, bias: Tensor | None = None) -> Tensor:
        """The newest position of N = B*K sequences, `(B,K,H)`; keys and values go into `layer` of the cache.

        `bias` `(B,A,K,P*K)` is added to the energies in place of the cache's.
        """
        packed = self._project(states)  # (B,K,3,A,D)
        cache.append(layer, packed.flatten(0, 1)[:, 1:])
        keys, values = (part.transpose(1, 2) for part in cache.read(layer).unbind(2))  # (B,A,P*K,D)
        query = self._scaled(packed[:, :, 0].transpose(1, 2))  # (B,A,K,D)
        mask = cache.bias() if bias is None else bias
        mask = None if mask is None else mask.to(query.dtype)  # in an ensemble another model may have begun the cache
        context = attend(query, keys, values, mask, rate=self.rate if self.training else 0.0)
        out: Tensor = self.out(merge_heads(context))
        return out


class CrossAttention(_HeadedAttention):
    """Multi-head attention to a memory whose keys and values are projected once; section 3.2.2."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(config)
        self.keys_values = self._from_states(2)
        self.query = self._from_states(1)
        self.out = self._to_states()

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `(B,A,S,D)` of a memory `(B,S,H)`."""
        packed = self.keys_values(memory).view(*memory.shape[:-1], 2, self.heads, -1)  # (B,S,2,A,D)
        keys, values = packed.unbind(-3)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def forward(
        self, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, shown: slice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Q queries `(B,Q,H)` per sentence: the positions of a target, or the hypotheses of a beam.

        Returns `(B,Q,H)`, and the weights `(B,a,Q,S)` of the a heads `shown`, if any are, before dropout. Keys and
        values are those of `project`; `mask` is `(B,1,1,S)`, see `attend`.
        """
        query = self._scaled(self.query(states).view(*states.shape[:-1], self.heads, -1).transpose(1, 2))  # (B,A,Q,D)
        context = attend(query, keys, values, mask, rate=self.rate if self.training else 0.0)
        if shown is None:
            return self.out(merge_heads(context)), None
        looks = attention_weights(query[:, shown].to(states.dtype), keys[:, shown].to(states.dtype), mask)
        return self.out(merge_heads(context)), looks


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2: Vaswani et al. 2017, equation 2; or with GELU or SiLU (Hendrycks and Gimpel 2016).

    gelu_tanh is the approximation of GELU in section 2 of that paper, which GPT-2 uses.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        form, width, inner = layer_form_of(config), config.hidden_size, config.feed_forward_size
        self.inner: nn.Module = _xavier(nn.Linear(width, inner, bias=form.bias), 1)
        self.gate = _xavier(nn.Linear(width, inner, bias=form.bias), 1) if form.gated else None
        self.out = _xavier(nn.Linear(inner, width, bias=form.bias), 1)
        self.activation = config.activation
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, states: Tensor) -> Tensor:
        """`(...,H)` to `(...,H)`."""
        if self.activation == "silu":
            inner = F.silu(self.inner(states))
        elif self.activation != "relu":
            inner = F.gelu(self.inner(states), approximate="tanh" if self.activation == "gelu_tanh" else "none")
        else:
            inner = F.relu(self.inner(states), inplace=True)
        out: Tensor = self.out(self.dropout(inner if self.gate is None else inner * self.gate(states)))
        return out


class Residual(nn.Module):
    """The residual connection around a sub-layer f, with normalization.

    post: LayerNorm(x + dropout(f(x))), section 3.1 and 5.4 of Vaswani et al. 2017. pre: x + dropout(f(LayerNorm(x))),
    which trains without a long warm-up (Xiong et al. 2020) and needs one more normalization after the last layer.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = normalization(config)
        self.dropout = Dropout(config.dropout)

    def before(self, states: Tensor) -> Tensor:
        """The input of the sub-layer `(...,H)`."""
        normed: Tensor = self.norm(states) if self.pre else states
        return normed

    def after(self, states: Tensor, result: Tensor) -> Tensor:
        """The sum of the input and the result of the sub-layer."""
        states = states + self.dropout(result)
        normed: Tensor = states if self.pre else self.norm(states)
        return normed


L = TypeVar("L", bound=nn.Module)


class LayerStack(nn.ModuleList, Generic[L]):
    """Layers of one kind, lowest first."""

    def __init__(self, layers: Iterable[L]) -> None:
        super().__init__(layers)

    def __iter__(self) -> Iterator[L]:
        return super().__iter__()  # type: ignore[return-value]  # torch's list does not say of what


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; left half of figure 1 of Vaswani et al. 2017."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.around_self_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """`(B,S,H)` to `(B,S,H)`; `mask` `(B,1,1,S)` is True for real tokens; see `attend`."""
        around = self.around_self_attention
        states = around.after(states, self.self_attention(around.before(states), mask))
        around = self.around_feed_forward
        return around.after(states, self.feed_forward(around.before(states)))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, then feed-forward; right half of figure 1 of Vaswani et al. 2017.

    Without `reads_memory`, as in a language model, the attention to the memory is left out.
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
        """Whole targets `(B,T,H)` at once, or one step of a beam `(B,K,H)`.

        The memory is keys, values and mask; they and `shown` are as of `CrossAttention`. In a step `cache` has the
        earlier positions, and the number of this layer. `bias`, if any, says what positions of the target read of each
        other, in place of the causal mask or the cache's: `(B,A,T,T)` or `(B,A,K,P*K)`.
        """
        around = self.around_self_attention
        entering = around.before(states)
        if cache is None:
            result = self.self_attention(entering, bias, causal=bias is None)
        else:
            result = self.self_attention.step(entering, *cache, bias)
        states = around.after(states, result)
        weights = None
        if self.reads_memory:
            assert memory is not None, "this layer reads it"
            around = self.around_cross_attention
            result, weights = self.cross_attention(around.before(states), *memory, shown)
            states = around.after(states, result)
        around = self.around_feed_forward
        return around.after(states, self.feed_forward(around.before(states))), weights
