"""XLNet: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding".

Words are predicted one by one in any order z, each from those before it in z (equation 3). A position has two streams
(section 2.3): the content stream h sees the word at its position, and the query stream g only the position.

    g_zt = Attention(Q = g_zt, KV = h_z<t)      h_zt = Attention(Q = h_zt, KV = h_z<=t)      P(x_zt) = softmax(E g_zt)

Both streams share their weights; g starts with a trained vector w, h with the word embedding. The energies are those of
Transformer-XL (Dai et al. 2019, section 3.3), which depend on the distance between two positions, represented by
sinusoids r, and not on the positions themselves:

    A_ij = (q_i + u) . k_j + (q_i + v) . W r_(i-j)        divided by the square root of D

Only positions that are predicted have a query stream (section 2.3, partial prediction). The memory of earlier segments
and the segment encodings (sections 2.4 and 2.5) are omitted: texts are independent of each other.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.data.batches.batch import ABSENT, Batch, Rows
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.layers.elementary import Dropout, dropout
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.transformer import (
    FeedForward,
    LayerStack,
    Residual,
    SinusoidalPositions,
    merge_heads,
)
from nmtkit.models.abilities import Pretrained
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes
from nmtkit.models.language.bert import INITIAL_STD, StackConfig
from nmtkit.training.losses.corruption import Pretraining, length_mask, pack, texts_of
from nmtkit.training.losses.objective import OBJECTIVES


class XLNetConfig(StackConfig):
    """Settings of XLNet. The defaults suit small corpora.

    XLNet-base has hidden size 768, feed-forward size 3072, 12 heads, 12 layers and norm_epsilon 1e-12.
    """

    kind: Literal["xlnet"] = "xlnet"


@dataclass(frozen=True)
class Order(Rows):
    """The order in which the words of each text are predicted."""

    ranks: Tensor
    """The rank of each position `(B,S)`, int64; the lowest rank comes first."""
    asked: Tensor
    """The positions to predict `(B,Q)`, int64."""


class RelativeAttention(nn.Module):
    """Relative attention as in the module docstring. Its linear maps have no bias."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        width, self.heads, self.rate = config.hidden_size, config.heads, config.attention_dropout
        self.query, self.distance, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        self.u, self.v = (
            nn.Parameter(torch.zeros(self.heads, 1, width // self.heads)) for _ in range(2)
        )

    def forward(
        self, queries: Tensor, content: Tensor, distances: Tensor, columns: Tensor, mask: Tensor
    ) -> Tensor:
        """Returns the attention of queries `(B,Q,H)` over the content `(B,S,H)`: `(B,Q,H)`.

        `mask` `(B,1,Q,S)` is True for visible positions; a query that sees none gets zeros. `distances` `(R,H)` are the
        sinusoids of distances, and `columns` `(B,Q,S)` selects the distance of each query and key.
        """
        query = self.query(queries).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B,A,Q,D)
        packed = self.keys_values(content).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys, values = packed.unbind(0)  # (B,A,S,D)
        relations = (
            self.distance(distances).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)
        )  # (A,D,R)
        by_distance = (query + self.v) @ relations  # (B,A,Q,R)
        energies = (query + self.u) @ keys.transpose(-1, -2)
        energies = energies + by_distance.gather(
            -1, columns[:, None].expand(-1, self.heads, -1, -1)
        )
        energies = energies / math.sqrt(query.shape[-1])
        weights = dropout(masked_softmax(energies, mask), self.rate, self.training)
        out: Tensor = self.out(merge_heads(weights.to(values.dtype) @ values))
        return out


class TwoStreamLayer(nn.Module):
    """One layer for both streams; the queries are the S positions of the content and the Q positions to predict."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.self_attention, self.around_self_attention = (
            RelativeAttention(config),
            Residual(config),
        )
        self.feed_forward, self.around_feed_forward = FeedForward(config), Residual(config)

    def forward(
        self, streams: Tensor, first: int, distances: Tensor, columns: Tensor, mask: Tensor
    ) -> Tensor:
        """Returns the streams `(B,S+Q,H)` from position `first` on; other arguments are as in `RelativeAttention`."""
        around, length = self.around_self_attention, columns.shape[-1]
        entering = around.before(streams)
        looked = self.self_attention(
            entering[:, first:],
            entering[:, :length],
            distances,
            columns[:, first:],
            mask[:, :, first:],
        )
        streams, around = around.after(streams[:, first:], looked), self.around_feed_forward
        return around.after(streams, self.feed_forward(around.before(streams)))


@MODELS.register("xlnet")
class XLNet(Pretrained):
    """An encoder that predicts words in any order; see the module docstring."""

    Config = XLNetConfig
    output_column = "tgt"
    pretrained_by = ("permutation",)

    def __init__(self, config: XLNetConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width = config.hidden_size
        self.src_embedding = nn.Embedding(sizes["tgt"], width)
        self.asked = nn.Parameter(torch.empty(1, width))  # w
        for vectors in (self.src_embedding.weight, self.asked):
            nn.init.normal_(vectors, std=INITIAL_STD)
        self.distances, self.dropout = (
            SinusoidalPositions(width, "sinusoidal_halves"),
            Dropout(config.dropout),
        )
        self.encoder = LayerStack(TwoStreamLayer(config) for _ in range(config.layers))
        self.encoder_norm = (
            nn.LayerNorm(width, config.norm_epsilon) if config.norm == "pre" else nn.Identity()
        )
        self.output = nn.Linear(width, sizes["tgt"])
        self.output.weight = self.src_embedding.weight
        nn.init.zeros_(self.output.bias)

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """Returns the query stream of the positions to predict, `(B,Q,H)`, or, without an order, the content `(B,S,H)`.

        In a text without an order, all positions see each other. There is no memory.
        """
        ids, mask, order = batch.inputs.ids, batch.inputs.mask[:, None, None], batch.extra(Order)
        length = ids.shape[1]
        streams, places = (
            self.src_embedding(ids),
            torch.arange(length, device=ids.device).expand_as(ids),
        )
        if order is not None:
            ranks, asked = order.ranks, order.asked
            own = ranks.gather(1, asked)
            mask = mask & (
                torch.cat([ranks, own - 1], 1)[:, None, :, None] >= ranks[:, None, None]
            )  # (B,1,S+Q,S)
            streams = torch.cat([streams, self.asked.expand(*asked.shape, -1)], 1)
            places = torch.cat([places, asked], 1)
        mask = mask.expand(-1, -1, streams.shape[1], -1)
        # index of distance i - j
        columns = length - 1 - places[..., None] + torch.arange(length, device=ids.device)
        streams, distances = self.dropout(streams), self.dropout(self._distances(length))
        for number, layer in enumerate(self.encoder, start=1):
            # content that no position reads is not computed
            is_last = number == len(self.encoder) and order is not None
            streams = layer(streams, length if is_last else 0, distances, columns, mask)
        return ModelOutput(self.encoder_norm(streams)), None

    def _distances(self, length: int) -> Tensor:
        """Returns the sinusoids of distances from length-1 down to 1-length, `(2*length-1,H)`."""
        ahead = self.distances(length)
        behind = ahead.clone()
        behind[:, : (behind.shape[1] + 1) // 2].neg_()  # sines are odd, cosines even
        return torch.cat([ahead.flip(0), behind[1:]])


PREDICT_ONE_IN = 6
"""One in this many tokens is predicted, namely the last ones in the order (K in section 2.3, where it is 6 or 7)."""


@OBJECTIVES.register("permutation")
@dataclass(frozen=True, kw_only=True)
class Permutation(Pretraining):
    """Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding", equations 3 and 5.

    The last tokens of a random order are predicted, each from those before it in the order. Tokens that are not
    predicted, including EOS, see each other, as in the authors' program.
    """

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)
        inputs = pack(ids.masked_fill(~length_mask(lengths, ids.shape[1]), -1))
        width = inputs.ids.shape[1]
        keys = torch.rand(inputs.ids.shape, generator=generator, dtype=torch.float64)
        order = (keys + ~length_mask(lengths, width)).argsort(1)
        counts = (lengths // PREDICT_ONE_IN).clamp(min=1).minimum(lengths)
        turns = torch.arange(int(counts.max())).expand(len(ids), -1)  # (B,Q)
        asked = turns < counts[:, None]
        places = order.gather(1, (lengths - counts)[:, None] + turns * asked)
        ranks = torch.zeros(len(ids), width + 1, dtype=torch.long)
        ranks.scatter_(1, places.masked_fill(~asked, width), turns + 1)
        labels = inputs.ids.gather(1, places).masked_fill(~asked, -1)
        batch = replace(batch, inputs=inputs, targets=ABSENT, labels=labels)
        return batch.with_extra(Order(ranks[:, :width].contiguous(), places))
