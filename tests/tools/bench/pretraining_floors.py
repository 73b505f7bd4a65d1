"""The networks of pretraining and of language models in bare torch: the floors of `pretraining.py`.

Each computes the loss that nmtkit's model has, from the same batches and with as many parameters. The texts of a batch
are of one length; where padding would cost a floor something, it says so.
"""

from collections.abc import Mapping
from functools import partial, reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.language.bert import BertConfig, EncoderConfig
from nmtkit.models.language.rnn_lm import RecurrentLMConfig
from nmtkit.models.language.transformer_lm import TransformerLMConfig
from nmtkit.zoo.electra import ElectraConfig
from nmtkit.zoo.elmo import ElmoConfig
from nmtkit.zoo.next_sentence import PairClasses
from nmtkit.zoo.pointer_sentinel import PointerSentinelConfig
from nmtkit.zoo.xlnet import Order, XLNetConfig

from .floors import ENCODER_LAYER, LONGEST

WORDS = 8000
"""V."""


class Floor(nn.Module):
    """A network in bare torch, and its loss."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Parts of the names of nmtkit's weights, with what they are here; they are replaced in this order."""

    def loss(self, batch: Batch) -> Tensor:
        """A scalar, in nats."""
        raise NotImplementedError

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies the weights of nmtkit's model, given by its own names. All of the floor's must be among them."""
        own, taken = self.state_dict().keys(), {}
        for name, weight in weights.items():
            taken[reduce(lambda name, pair: name.replace(*pair), self.renamed.items(), name)] = (
                weight
            )
        self.load_state_dict({name: weight for name, weight in taken.items() if name in own})


class BareEncoder(nn.Module):
    """torch's own layers over embeddings, which another encoder may share; perhaps with the head that tells words."""

    def __init__(
        self, config: EncoderConfig, tells: bool, embeddings: nn.ModuleDict | None = None
    ) -> None:
        super().__init__()
        width, size, rate = (
            config.hidden_size,
            config.embedding_size or config.hidden_size,
            config.dropout,
        )
        vectors = {
            "words": nn.Embedding(WORDS, size),
            "places": nn.Embedding(config.max_positions, size),
        }
        vectors |= {"segments": nn.Embedding(2, size)}
        self.embeddings = embeddings or nn.ModuleDict(
            {**vectors, "norm": nn.LayerNorm(size, config.norm_epsilon)}
        )
        for one in vectors.values():
            nn.init.normal_(one.weight, std=0.02)
        self.dropout, self.widen = (
            nn.Dropout(rate),
            nn.Linear(size, width) if size != width else nn.Identity(),
        )
        layer = nn.TransformerEncoderLayer(
            width,
            config.heads,
            config.feed_forward_size,
            rate,
            "gelu",
            config.norm_epsilon,
            batch_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        if tells:
            self.told = nn.Sequential(
                nn.Linear(width, size), nn.GELU(), nn.LayerNorm(size, config.norm_epsilon)
            )
            self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, ids: Tensor, segments: Tensor, padding: Tensor) -> Tensor:
        of = self.embeddings
        entering = of["words"](ids) + of["places"].weight[: ids.shape[1]] + of["segments"](segments)
        states: Tensor = self.layers(
            self.widen(self.dropout(of["norm"](entering))), src_key_padding_mask=padding
        )
        return states

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.told(states), self.embeddings["words"].weight, self.bias)


class BarePretraining(Floor):
    """BERT with or without its second head, or ELECTRA."""

    renamed: ClassVar = {
        "encoder.": "encoder.layers.layers.",
        **ENCODER_LAYER,
        "src_embedding_norm.": "encoder.embeddings.norm.",
        "src_embedding.": "encoder.embeddings.words.",
        "src_positions.table": "encoder.embeddings.places.weight",
        "segment_embedding.": "encoder.embeddings.segments.",
        "output.words.bias": "encoder.bias",
        "output.dense.": "encoder.told.0.",
        "output.norm.": "encoder.told.2.",
        "pooler.": "dense.",
        "next_sentence.": "two.",
        "replaced.": "one.",
        "generator.encoder.": "generator.",
    }

    def __init__(self, config: BertConfig | ElectraConfig) -> None:
        super().__init__()
        generates, width = isinstance(config, ElectraConfig), config.hidden_size
        self.encoder, self.generator = BareEncoder(config, tells=not generates), None
        if isinstance(config, ElectraConfig):
            self.generator = BareEncoder(
                config.generator, tells=True, embeddings=self.encoder.embeddings
            )
            self.dense, self.one = nn.Linear(width, width), nn.Linear(width, 1)
        elif config.next_sentence:
            self.dense, self.two = nn.Linear(width, width), nn.Linear(width, 2)

    def loss(self, batch: Batch) -> Tensor:
        read, chosen = batch.inputs, (batch.labels >= 0).nonzero(as_tuple=True)
        segments, padding = (
            torch.zeros_like(read.ids) if read.segments is None else read.segments,
            ~read.mask,
        )
        states = (self.generator or self.encoder)(read.ids, segments, padding)
        logits = (self.generator or self.encoder).logits(states[chosen])
        loss = F.cross_entropy(logits, batch.labels[chosen])
        if (pairs := batch.extra(PairClasses)) is not None:
            loss = loss + F.cross_entropy(
                self.two(torch.tanh(self.dense(states[:, 0]))), pairs.classes
            )
        if self.generator is None:
            return loss
        drawn = torch.multinomial(logits.detach().softmax(-1), 1).squeeze(1)
        ids = read.ids.index_put(chosen, drawn)
        was = read.ids.index_put(chosen, batch.labels[chosen])
        replaced = self.one(F.gelu(self.dense(self.encoder(ids, segments, padding)))).squeeze(-1)
        return loss + 50 * F.binary_cross_entropy_with_logits(
            replaced[read.mask], (ids != was)[read.mask].float()
        )


class BareTwoStreamLayer(nn.Module):
    """A layer of XLNet. Keys, values and distances are projected once for both streams."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        width, inner, self.heads = config.hidden_size, config.feed_forward_size, config.heads
        self.query, self.distance, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        self.u, self.v = (
            nn.Parameter(torch.zeros(self.heads, 1, width // self.heads)) for _ in range(2)
        )
        self.linear1, self.linear2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, config.norm_epsilon) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        content: Tensor,
        asked: Tensor,
        waves: Tensor,
        columns: Tensor,
        hidden: tuple[Tensor, Tensor],
        last: bool,
    ) -> tuple[Tensor, Tensor]:
        """Both streams, `(B,S,H)` and `(B,Q,H)`; after the last layer nobody reads the content.

        `waves` `(2S-1,H)` are the sinusoids of distances, of which the query stream takes the `columns` `(B,1,Q,S)`;
        what each stream may not read is `hidden`, `(B,1,S,S)` and `(B,1,Q,S)`.
        """
        keys, values = map(self._split, self.keys_values(content).chunk(2, -1))
        distances = self._split(self.distance(waves))  # (A,R,D)

        def layer(states: Tensor, hidden: Tensor, columns: Tensor | None) -> Tensor:
            query = self._split(self.query(states))
            bias = torch.einsum("baqd,ard->baqr", query + self.v, distances)
            bias = (
                shift(bias)
                if columns is None
                else bias.gather(3, columns.expand(-1, self.heads, -1, -1))
            )
            bias = (bias * query.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
            rate = self.dropout.p if self.training else 0.0
            looked = F.scaled_dot_product_attention(query + self.u, keys, values, bias, rate)
            states = self.norm1(states + self.dropout(self.out(looked.transpose(1, 2).flatten(2))))
            inner = self.dropout(F.gelu(self.linear1(states)))
            normed: Tensor = self.norm2(states + self.dropout(self.linear2(inner)))
            return normed

        return content if last else layer(content, hidden[0], None), layer(
            asked, hidden[1], columns
        )

    def _split(self, states: Tensor) -> Tensor:
        """`(...,*,H)` to `(...,A,*,D)`."""
        return states.unflatten(-1, (self.heads, -1)).transpose(-2, -3)


def shift(by_distance: Tensor) -> Tensor:
    """Of `(B,A,S,2S-1)` row i from column S-1-i on, `(B,A,S,S)`: Dai et al. 2019, appendix B."""
    length = by_distance.shape[2]
    shifted = (
        F.pad(by_distance, (1, 0)).unflatten(-1, (2, length)).flatten(2, 3)[:, :, 1:]
    )  # (B,A,2S-1,S)
    return shifted.reshape(by_distance.shape)[..., :length]


class BareXLNet(Floor):
    """Two streams; the query stream stands at the positions that are asked for."""

    waves: Tensor
    renamed: ClassVar = {
        "src_embedding.": "words.",
        "output.bias": "bias",
        "encoder.": "layers.",
        ".self_attention.": ".",
        "around_self_attention.norm": "norm1",
        "around_feed_forward.norm": "norm2",
        "feed_forward.inner": "linear1",
        "feed_forward.out": "linear2",
    }

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.words, self.asked = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(1, width))
        self.layers = nn.ModuleList(BareTwoStreamLayer(config) for _ in range(config.layers))
        self.bias, self.dropout = nn.Parameter(torch.zeros(WORDS)), nn.Dropout(config.dropout)
        angles = torch.arange(LONGEST - 1, -LONGEST, -1)[:, None] / 10000 ** (
            torch.arange(0, width, 2) / width
        )
        self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def loss(self, batch: Batch) -> Tensor:
        ids, order, length = batch.inputs.ids, batch.extra(Order), batch.inputs.ids.shape[1]
        assert order is not None
        ranks, places = order.ranks, order.asked
        padding, rank = ~batch.inputs.mask[:, None, None], ranks[:, None, None]
        hidden = (
            padding | (ranks[:, None, :, None] < rank),
            padding | (ranks.gather(1, places)[:, None, :, None] <= rank),
        )
        columns = (length - 1 - places[..., None] + torch.arange(length))[:, None]
        content, asked = (
            self.dropout(self.words(ids)),
            self.dropout(self.asked.expand(*places.shape, -1)),
        )
        waves = self.dropout(self.waves[LONGEST - length : LONGEST + length - 1])
        for number, layer in enumerate(self.layers, start=1):
            content, asked = layer(
                content, asked, waves, columns, hidden, number == len(self.layers)
            )
        chosen = batch.labels >= 0
        return F.cross_entropy(
            F.linear(asked[chosen], self.words.weight, self.bias), batch.labels[chosen]
        )


class BareElmo(Floor):
    """LSTMs of either direction. Texts are turned whole; padded ones would have to be turned within their lengths."""

    renamed: ClassVar = {"src_embedding.context.": ""}

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.words, self.output = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        both = [
            [nn.LSTM(width, width, batch_first=True) for _ in range(2)]
            for _ in range(config.layers)
        ]
        self.layers, self.dropout = (
            nn.ModuleList(map(nn.ModuleList, both)),
            nn.Dropout(config.dropout),
        )

    def loss(self, batch: Batch) -> Tensor:
        both = [batch.inputs.ids, batch.inputs.ids.flip(1)]
        tops = [self._top(direction, ids)[:, :-1] for direction, ids in enumerate(both)]
        wanted = torch.cat([ids[:, 1:] for ids in both])
        return F.cross_entropy(self.output(torch.cat(tops)).flatten(0, 1), wanted.flatten())

    def _top(self, direction: int, ids: Tensor) -> Tensor:
        states: Tensor = self.words(ids)
        for number, pair in enumerate(self.layers):
            found, _ = pair[direction](self.dropout(states))
            states = found if number == 0 else states + found
        return self.dropout(states)  # type: ignore[no-any-return]  # torch types a module's call as Any


class BareTransformerLM(Floor):
    """GPT-2."""

    renamed: ClassVar = {
        "tgt_embedding.": "words.",
        "tgt_positions.table": "places.weight",
        "decoder_norm.": "layers.norm.",
        "decoder.": "layers.layers.",
        **ENCODER_LAYER,
    }

    def __init__(self, config: TransformerLMConfig) -> None:
        super().__init__()
        width, gelu = config.hidden_size, partial(F.gelu, approximate="tanh")
        self.words, self.places = (
            nn.Embedding(WORDS, width),
            nn.Embedding(config.max_positions, width),
        )
        layer = nn.TransformerEncoderLayer(
            width,
            config.heads,
            config.feed_forward_size,
            config.dropout,
            gelu,
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, config.layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.dropout = nn.Dropout(config.dropout)

    def loss(self, batch: Batch) -> Tensor:
        ids, real = batch.targets.shifted, batch.targets.mask
        later = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        entering = self.dropout(self.words(ids) + self.places.weight[: ids.shape[1]])
        states = self.layers(entering, mask=later, is_causal=True)
        return F.cross_entropy(F.linear(states[real], self.words.weight), batch.targets.ids[real])


class BareRnnLM(Floor):
    """LSTM layers with the same dropout at all words of a text, and one matrix for words."""

    renamed: ClassVar = {
        "tgt_embedding.": "words.",
        "output.bias": "bias",
        **{
            f"decoder.{name}_l{number}": f"layers.{number}.{name}_l0"
            for number in range(2)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        },
    }

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__()
        width, self.rate = config.hidden_size, config.dropout
        self.words, self.bias = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(WORDS))
        self.layers = nn.ModuleList(
            nn.LSTM(width, width, batch_first=True) for _ in range(config.layers)
        )

    def forward(self, ids: Tensor) -> Tensor:
        states = self._dropped(self.words(ids))
        for layer in self.layers:
            states = self._dropped(layer(states)[0])
        return states

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.words.weight, self.bias)

    def loss(self, batch: Batch) -> Tensor:
        real = batch.targets.mask
        return F.cross_entropy(
            self.logits(self(batch.targets.shifted)[real]), batch.targets.ids[real]
        )

    def _dropped(self, states: Tensor) -> Tensor:
        return states * F.dropout(torch.ones_like(states[:, :1]), self.rate, self.training)


class BarePointerSentinel(BareRnnLM):
    """The probability of the wanted word alone, which needs no mixture of all words."""

    def __init__(self, config: PointerSentinelConfig) -> None:
        super().__init__(config)
        self.window, width = config.window, config.hidden_size
        self.query, self.sentinel = nn.Linear(width, width), nn.Parameter(torch.zeros(width))

    def loss(self, batch: Batch) -> Tensor:
        read, wanted, real = batch.targets.shifted, batch.targets.ids, batch.targets.mask
        states: Tensor = self(read)
        query = self.query(states).tanh()
        seen = (
            torch.ones(read.shape[1], read.shape[1], dtype=torch.bool).tril().triu(1 - self.window)
        )
        energies = (query @ states.mT).masked_fill(~seen | (read == BOS)[:, None], -torch.inf)
        shares = torch.cat([energies, (query @ self.sentinel)[..., None]], -1).softmax(
            -1
        )  # (B,T,T+1)
        pointed = (shares[..., :-1] * (read[:, None] == wanted[..., None])).sum(-1)
        told = torch.exp(
            -F.cross_entropy(self.logits(states[real]), wanted[real], reduction="none")
        )
        return -torch.log(shares[..., -1][real] * told + pointed[real]).mean()
