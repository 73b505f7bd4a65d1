"""The networks of `models.py` in bare torch: its floors.

Each computes the loss that nmtkit's model has, from the same batches, with as many parameters, and with dropout in the
same places. Recurrent layers are torch's own wherever no step waits for a look of the step before.
"""

from collections.abc import Mapping
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.layers.experts import ExpertsConfig
from nmtkit.models.convs2s import KERNEL_SIZE, ConvS2SConfig
from nmtkit.models.hierarchical_attention import AttentionConfig, HierarchicalAttentionConfig
from nmtkit.models.rnn.gnmt import GnmtConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.zoo.captioning.show_and_tell import ShowAndTellConfig
from nmtkit.zoo.captioning.show_attend_tell import ShowAttendTellConfig
from nmtkit.zoo.lstmn.language_model import LstmnConfig
from nmtkit.zoo.snail import SnailConfig

from .floors import BareTransformer, load
from .pretraining_floors import WORDS, BareRnnLM, Floor

LABELS, REGION = 5, 512
"""Labels of texts, and numbers in a region of a picture."""


def read_both_ways(layers: nn.ModuleList, inputs: Tensor, mask: Tensor) -> Tensor:
    """The states `(B,S,2H)` of a layer for each direction; the second reads each text turned within its length.

    On a CPU this takes a half to a third of the time of packed sequences.
    """
    columns = torch.arange(mask.shape[1])
    turned = torch.where(mask, mask.sum(1, keepdim=True) - 1 - columns, columns)
    places = torch.arange(len(mask))[:, None], turned
    return torch.cat([layers[0](inputs)[0], layers[1](inputs[places])[0][places]], -1)


def likelihood(output: nn.Module, states: Tensor, batch: Batch) -> Tensor:
    """Of the targets, from what the output layer reads `(B,T,*)`."""
    real = batch.targets.mask
    return F.cross_entropy(output(states[real]), batch.targets.ids[real])


class BareAttentiveGRU(nn.Module):
    """Reads sequences both ways and sums up the states of each."""

    def __init__(self, inputs: int, config: AttentionConfig) -> None:
        super().__init__()
        self.both = nn.ModuleList(
            nn.GRU(inputs, config.hidden_size, batch_first=True) for _ in range(2)
        )
        self.key = nn.Linear(2 * config.hidden_size, config.attention_size)
        self.context = nn.Parameter(torch.zeros(config.attention_size))

    def forward(self, inputs: Tensor, mask: Tensor, attended: Tensor) -> Tensor:
        states = read_both_ways(self.both, inputs, mask)
        energies = (torch.tanh(self.key(states)) @ self.context).masked_fill(~attended, -torch.inf)
        return (energies.softmax(-1)[:, None] @ states)[:, 0]


class BareClassifier(Floor):
    """Attention over the words of each real sentence and over the sentences, or over all words."""

    renamed: ClassVar = {
        "src_embedding.": "embedding.", "encoder.forward_layers.0.": "both.0.", "encoder.backward_layers.0.": "both.1."
    }  # fmt: skip

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.embedding, self.dropout = (
            nn.Embedding(WORDS, config.embedding_size),
            nn.Dropout(config.dropout),
        )
        self.words, self.sentences = BareAttentiveGRU(config.embedding_size, config), None
        if isinstance(config, HierarchicalAttentionConfig):
            self.sentences = BareAttentiveGRU(2 * config.hidden_size, config)
        self.output = nn.Linear(2 * config.hidden_size, LABELS)

    def loss(self, batch: Batch) -> Tensor:
        ids, mask, places = batch.inputs.ids, batch.inputs.mask, batch.inputs.sentences
        if self.sentences is None:
            summary = self.words(self.dropout(self.embedding(ids)), mask, mask & (ids != EOS))
        else:
            assert places is not None
            real = places[..., 0] > 0  # (B,N)
            rows, mask = real.nonzero()[:, :1], places[real] > 0  # (M,1), (M,W)
            ids = ids[rows, (places[real] - 1).clamp(min=0)]
            summaries = self.words(self.dropout(self.embedding(ids)), mask, mask)
            texts = pad_sequence(summaries.split(real.sum(1).tolist()), batch_first=True)
            summary = self.sentences(texts, real, real)
        return F.cross_entropy(self.output(self.dropout(summary)), batch.labels)


class BareConvS2S(Floor):
    """Fused attention, with one head."""

    renamed: ClassVar = {
        "src_embedding.": "src.", "tgt_embedding.": "tgt.", "src_positions.table": "src_places",
        "tgt_positions.table": "tgt_places",
    }  # fmt: skip

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        f, d, self.reach = config.embedding_size, config.hidden_size, KERNEL_SIZE - 1
        self.src, self.tgt, self.dropout = (
            nn.Embedding(WORDS, f),
            nn.Embedding(WORDS, f),
            nn.Dropout(config.dropout),
        )
        self.src_places, self.tgt_places = (
            nn.Parameter(torch.zeros(config.max_positions, f)) for _ in range(2)
        )
        self.src_map, self.tgt_map, self.encoder_map = (
            nn.Linear(f, d),
            nn.Linear(f, d),
            nn.Linear(d, f),
        )

        def layer(**maps: nn.Module) -> nn.ModuleDict:
            return nn.ModuleDict({"map": nn.Linear(KERNEL_SIZE * d, 2 * d), **maps})

        self.encoder = nn.ModuleList(layer() for _ in range(config.encoder_layers))
        both = [
            {"query": nn.Linear(d, f), "context": nn.Linear(f, d)}
            for _ in range(config.decoder_layers)
        ]
        self.decoder = nn.ModuleList(layer(**maps) for maps in both)
        self.decoder_map, self.output = nn.Linear(d, f), nn.Linear(f, WORDS)
        self.output.weight = self.tgt.weight

    def loss(self, batch: Batch) -> Tensor:
        ids, real, words = batch.inputs.ids, batch.inputs.mask[..., None], batch.targets.shifted
        read = self.dropout(self.src(ids) + self.src_places[: ids.shape[1]])
        states = self.src_map(read)
        for layer in self.encoder:
            states = states * real
            states = self._gated(layer, states, self.reach // 2, self.reach // 2)
        keys = self.encoder_map(states)
        keys = keys.detach().lerp(keys, 1 / len(self.decoder))
        values = (keys + read) * 0.5**0.5 * real.sum(1, keepdim=True).sqrt()
        entering = self.dropout(self.tgt(words) + self.tgt_places[: words.shape[1]])
        states, seen = self.tgt_map(entering), batch.inputs.mask[:, None, None]
        for layer in self.decoder:
            layer = cast(nn.ModuleDict, layer)
            states = self._gated(layer, states, self.reach, 0)
            query = (layer["query"](states) + entering) * 0.5**0.5
            found = F.scaled_dot_product_attention(
                query[:, None], keys[:, None], values[:, None], seen, scale=1.0
            )
            states = (states + layer["context"](found[:, 0])) * 0.5**0.5
        return likelihood(self.output, self.dropout(self.decoder_map(states)), batch)

    def _gated(self, layer: nn.Module, states: Tensor, before: int, after: int) -> Tensor:
        """On a CPU one product of windows takes less time than torch's convolution."""
        seen, length = F.pad(self.dropout(states), (0, 0, before, after)), states.shape[1]
        windows = torch.cat(
            [seen[:, first : first + length] for first in range(self.reach + 1)], -1
        )
        return (F.glu(cast(nn.ModuleDict, layer)["map"](windows), -1) + states) * 0.5**0.5


class Additive(nn.Module):
    """A look `(N,M)` at values `(N,S,M)` by a state."""

    def __init__(self, query: int, key: int, size: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(query, size, bias=False), nn.Linear(key, size)
        self.energy = nn.Parameter(torch.zeros(size))

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        energies = torch.tanh(self.query(query)[:, None] + keys) @ self.energy
        energies = energies if hidden is None else energies.masked_fill(hidden, -torch.inf)
        return (energies.softmax(-1)[:, None] @ values)[:, 0]


class BareGnmt(Floor):
    """Only the bottom layer of the decoder goes word by word."""

    renamed: ClassVar = {
        "encoder.forward_layers.0.": "both.0.", "encoder.backward_layers.0.": "both.1.", ".forward_layers.": ".",
        "src_embedding.": "src.", "tgt_embedding.": "tgt.", "attention.score.": "attention.",
        **{f"decoder.0.{name}_l0": f"cell.{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
    }  # fmt: skip

    def __init__(self, config: GnmtConfig) -> None:
        super().__init__()
        width, size = config.hidden_size, config.embedding_size
        self.src, self.tgt, self.dropout = (
            nn.Embedding(WORDS, size),
            nn.Embedding(WORDS, size),
            nn.Dropout(config.dropout),
        )
        self.both = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for _ in range(2))
        above = [
            nn.LSTM(2 * width if number == 1 else width, width, batch_first=True)
            for number in range(1, config.layers)
        ]
        self.encoder = nn.ModuleDict(
            {str(number): layer for number, layer in enumerate(above, start=1)}
        )
        self.cell = nn.LSTMCell(size + width, width)
        self.attention = Additive(width, width, width)
        upper = [nn.LSTM(2 * width, width, batch_first=True) for _ in range(config.layers - 1)]
        self.decoder = nn.ModuleDict(
            {str(number): layer for number, layer in enumerate(upper, start=1)}
        )
        self.output = nn.Linear(width, WORDS)

    def loss(self, batch: Batch) -> Tensor:
        ids, mask = batch.inputs.ids, batch.inputs.mask
        states = read_both_ways(self.both, self.dropout(self.src(ids)), mask)
        for name, layer in self.encoder.items():
            answer = layer(self.dropout(states))[0]
            states = answer if name == "1" else states + answer
        values = self.dropout(states)
        keys, hidden, steps = self.attention.key(values), ~mask, []
        state = cell = values.new_zeros(len(ids), values.shape[2])
        for word in self.dropout(self.tgt(batch.targets.shifted)).unbind(1):
            context = self.attention(state, keys, values, hidden)
            state, cell = self.cell(torch.cat([word, context], -1), (state, cell))
            steps.append((state, context))
        states, contexts = (torch.stack(part, 1) for part in zip(*steps, strict=True))
        for name, layer in self.decoder.items():
            answer = layer(torch.cat([self.dropout(states), contexts], -1))[0]
            states = answer if name == "1" else answer + states
        return likelihood(self.output, self.dropout(states), batch)


class BareLstmn(BareRnnLM):
    """An LSTM that looks back at its tapes; the products with inputs stand before the loop."""

    renamed: ClassVar = {**BareRnnLM.renamed, "decoder_looks.": "looks."}

    def __init__(self, config: LstmnConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.looks = nn.ModuleList(Additive(2 * width, width, width) for _ in range(config.layers))

    def forward(self, ids: Tensor) -> Tensor:
        states = self._dropped(self.words(ids))
        for layer, look in zip(self.layers, self.looks, strict=True):
            states = self._dropped(self._read(cast(nn.LSTM, layer), cast(Additive, look), states))
        return states

    def _read(self, layer: nn.LSTM, look: Additive, inputs: Tensor) -> Tensor:
        width, (of_inputs, of_hidden, *biases) = inputs.shape[2], layer.all_weights[0]
        of_word, of_before = look.query.weight.split(width, 1)
        read, asked = F.linear(inputs, of_inputs, biases[0] + biases[1]), F.linear(inputs, of_word)
        before = cell = inputs.new_zeros(len(inputs), width)
        tape, states = inputs.new_zeros(len(inputs), 0, 3 * width), []
        for place, (gates, query) in enumerate(zip(read.unbind(1), asked.unbind(1), strict=True)):
            if place:
                kept, keys = tape.split([2 * width, width], 2)
                energies = (
                    torch.tanh((query + F.linear(before, of_before))[:, None] + keys) @ look.energy
                )
                before, cell = (energies.softmax(-1)[:, None] @ kept)[:, 0].chunk(2, 1)
            into, forget, new, out = (gates + F.linear(before, of_hidden)).chunk(4, 1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            tape = torch.cat([tape, torch.cat([state, cell, look.key(state)], 1)[:, None]], 1)
            states.append(state)
        return torch.stack(states, 1)


class BareSnail(Floor):
    """Dense blocks and fused attention in turns."""

    renamed: ClassVar = {"tgt_embedding.": "words.", "decoder.": "layers.", "output.bias": "bias"}

    def __init__(self, config: SnailConfig) -> None:
        super().__init__()
        width, filters, self.size = config.embedding_size, config.filters, config.attention_size
        self.words, self.bias = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(WORDS))
        self.dilations, self.layers = (
            [2**number for number in range((config.reach - 1).bit_length())],
            nn.ModuleList(),
        )
        for _ in range(config.blocks):
            for _ in self.dilations:
                self.layers.append(nn.Linear(2 * width, 2 * filters))
                width += filters
            self.layers.append(nn.Linear(width, 3 * self.size))
            width += self.size
        self.last, self.dropout = (
            nn.Linear(width, config.embedding_size),
            nn.Dropout(config.dropout),
        )

    def loss(self, batch: Batch) -> Tensor:
        states = self.dropout(self.words(batch.targets.shifted))
        for number, layer in enumerate(self.layers):
            place = number % (len(self.dilations) + 1)
            if place < len(self.dilations):
                before = F.pad(states, (0, 0, self.dilations[place], 0))[:, : states.shape[1]]
                found, gate = layer(torch.cat([before, states], -1)).chunk(2, -1)
                found = found.tanh() * gate.sigmoid()
            else:
                query, keys, values = layer(states)[:, None].chunk(3, -1)
                found = F.scaled_dot_product_attention(query, keys, values, is_causal=True)[:, 0]
            states = torch.cat([states, found], -1)
        real, states = batch.targets.mask, self.dropout(self.last(states))
        return F.cross_entropy(
            F.linear(states[real], self.words.weight, self.bias), batch.targets.ids[real]
        )


class BareShowAndTell(Floor):
    """One call of an LSTM, for the picture and all words."""

    renamed: ClassVar = {"tgt_embedding.": "words.", "decoder.": "lstm."}

    def __init__(self, config: ShowAndTellConfig) -> None:
        super().__init__()
        size, width = config.embedding_size, config.hidden_size
        self.words, self.picture, self.dropout = (
            nn.Embedding(WORDS, size),
            nn.Linear(REGION, size),
            nn.Dropout(config.dropout),
        )
        self.lstm, self.output = nn.LSTM(size, width, batch_first=True), nn.Linear(width, WORDS)

    def loss(self, batch: Batch) -> Tensor:
        real = batch.inputs.mask[..., None]
        mean = (batch.inputs.features * real).sum(1) / real.sum(1)
        inputs = torch.cat([self.picture(mean)[:, None], self.words(batch.targets.shifted)], 1)
        return likelihood(
            self.output, self.dropout(self.lstm(self.dropout(inputs))[0][:, 1:]), batch
        )


class BareShowAttendTell(Floor):
    """An LSTM's cell in a loop; embeddings and the output layer stand before and behind it."""

    renamed: ClassVar = {
        "tgt_embedding.": "words.", "attention.score.": "attention.", "decoder.cells.0.": "cell.",
        "bridge.hidden.": "first_hidden.", "bridge.cell.": "first_cell.",
    }  # fmt: skip

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        size, width = config.embedding_size, config.hidden_size
        self.words, self.dropout = nn.Embedding(WORDS, size), nn.Dropout(config.dropout)
        self.first_hidden, self.first_cell = nn.Linear(REGION, width), nn.Linear(REGION, width)
        self.attention, self.gate = (
            Additive(width, REGION, config.attention_size),
            nn.Linear(width, 1),
        )
        self.cell, self.readout = nn.LSTMCell(size + REGION, width), nn.Linear(width + REGION, size)
        self.output = nn.Linear(size, WORDS)

    def loss(self, batch: Batch) -> Tensor:
        regions, mask = batch.inputs.features, batch.inputs.mask
        mean = (regions * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        hidden, cell = self.first_hidden(mean).tanh(), self.first_cell(mean).tanh()
        values, words = self.dropout(regions), self.dropout(self.words(batch.targets.shifted))
        keys, steps = self.attention.key(values), []
        for word in words.unbind(1):
            context = torch.sigmoid(self.gate(hidden)) * self.attention(hidden, keys, values, ~mask)
            hidden, cell = self.cell(torch.cat([word, context], -1), (hidden, cell))
            steps.append(torch.cat([hidden, context], -1))
        return likelihood(
            self.output, self.dropout(words + self.readout(torch.stack(steps, 1))), batch
        )


class BareExperts(nn.Module):
    """Each expert reads the rows that it is chosen for."""

    def __init__(self, config: TransformerConfig, settings: ExpertsConfig) -> None:
        super().__init__()
        width, inner, self.used = config.hidden_size, config.feed_forward_size, settings.used
        self.gate, self.noise = (nn.Linear(width, settings.count, bias=False) for _ in range(2))

        def expert() -> nn.Module:
            return nn.Sequential(
                nn.Linear(width, inner),
                nn.ReLU(),
                nn.Dropout(config.activation_dropout),
                nn.Linear(inner, width),
            )

        self.experts = nn.ModuleList(expert() for _ in range(settings.count))

    def forward(self, states: Tensor) -> Tensor:
        flat = states.flatten(0, 1)
        energies = self.gate(flat)
        if self.training:
            energies = energies + torch.randn_like(energies) * F.softplus(self.noise(flat))
        best, chosen = energies.topk(self.used)
        shares, result = best.softmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, rows, expert(flat[rows]) * shares[rows, places, None])
        return result.view_as(states)


class BareMixture(Floor):
    """The Transformer of `floors.py`, with experts in the places of some feed-forward parts."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.bare, self.every = BareTransformer(config, WORDS, config.dropout), config.experts.every
        for side in (self.bare.encoder, self.bare.decoder):
            for layer in list(side.layers)[self.every - 1 :: self.every]:
                layer.linear1, layer.linear2, layer.dropout = (
                    BareExperts(config, config.experts),
                    nn.Identity(),
                    nn.Identity(),
                )
                layer.activation, layer.activation_relu_or_gelu = nn.Identity(), 0

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        taken = self.bare.named_here(weights)
        for name, weight in weights.items():
            side, found, rest = name.partition(".feed_forward.")
            if found and any(part in rest for part in ("experts.", "gate.", "noise.")):
                rest = rest.replace(".inner.", ".0.").replace(".out.", ".3.")
                taken[f"{side.replace('.', '.layers.')}.linear1.{rest}"] = weight
        self.bare.load_state_dict(taken)

    def loss(self, batch: Batch) -> Tensor:
        return self.bare.loss(load(batch, torch.device("cpu")))
