"""RNNsearch, Luong's model with input feeding and the pointer-generator in bare torch: floors of `models.py`.

Each is a loop over the words with torch's cells. What no step waits for stands before the loop or behind it.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmtkit.data.batches.batch import Batch
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.rnn.pointer_generator import PointerGeneratorConfig
from nmtkit.models.rnn.recurrent import RecurrentConfig
from nmtkit.models.rnn.rnnsearch import RnnSearchConfig

from .models_floors import Additive, likelihood, read_both_ways
from .pretraining_floors import WORDS, Floor

GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class BareSeq2Seq(Floor):
    """The embeddings and the dropout of them all."""

    def __init__(self, config: RecurrentConfig, shared: bool = False) -> None:
        super().__init__()
        self.tgt, self.dropout = (
            nn.Embedding(WORDS, config.embedding_size),
            nn.Dropout(config.dropout),
        )
        self.src = self.tgt if shared else nn.Embedding(WORDS, config.embedding_size)

    def words(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The embeddings of the source and of the target, moved by one."""
        return self.dropout(self.src(batch.inputs.ids)), self.dropout(
            self.tgt(batch.targets.shifted)
        )

    def read(
        self, lstm: nn.LSTM, words: Tensor, batch: Batch
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The states, and what the LSTM ends in, of which only packed sequences give the cells."""
        packed = pack_padded_sequence(
            words, batch.inputs.lengths, batch_first=True, enforce_sorted=False
        )
        answer, ends = lstm(packed)
        return self.dropout(pad_packed_sequence(answer, batch_first=True)[0]), ends


class BareRnnSearch(BareSeq2Seq):
    """Looks with the state before the word, which is also the one that the word is read from."""

    renamed: ClassVar = {
        "encoder.forward_layers.0.": "both.0.", "encoder.backward_layers.0.": "both.1.", "bridge.hidden.": "first.",
        "src_embedding.": "src.", "tgt_embedding.": "tgt.", "attention.score.": "attention.",
        "decoder.cells.0.": "cell.", "readout.pieces.": "pieces.",
    }  # fmt: skip

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(config)
        size, width = config.embedding_size, config.hidden_size
        self.both = nn.ModuleList(nn.GRU(size, width, batch_first=True) for _ in range(2))
        self.attention, self.first = (
            Additive(width, 2 * width, config.attention_size),
            nn.Linear(width, width),
        )
        self.cell, self.output = (
            nn.GRUCell(size + 2 * width, width),
            nn.Linear(config.maxout_size, WORDS),
        )
        self.pieces = nn.Linear(size + 3 * width, 2 * config.maxout_size)

    def loss(self, batch: Batch) -> Tensor:
        (source, target), hidden = self.words(batch), ~batch.inputs.mask
        states = read_both_ways(self.both, source, batch.inputs.mask)
        state, values = self.first(states[:, 0].chunk(2, -1)[1]).tanh(), self.dropout(states)
        keys, steps = self.attention.key(values), []
        for word in target.unbind(1):
            context = self.attention(state, keys, values, hidden)
            steps.append(torch.cat([state, word, context], -1))
            state = self.cell(torch.cat([word, context], -1), state)
        one, other = self.pieces(torch.stack(steps, 1)).chunk(2, -1)
        return likelihood(self.output, self.dropout(torch.maximum(one, other)), batch)


class BareLuong(BareSeq2Seq):
    """Two layers, the general score, and the attentional state fed with the next word."""

    renamed: ClassVar = {
        **{f"encoder.forward_layers.1.{name}_l0": f"encoder.{name}_l1" for name in GATES},
        **{f"decoder.{name}_l{layer}": f"cells.{layer}.{name}" for name in GATES for layer in range(2)},
        "encoder.forward_layers.0.": "encoder.", "attention.score.key.": "key.",
        "src_embedding.": "src.", "tgt_embedding.": "tgt.",
    }  # fmt: skip

    def __init__(self, config: LuongConfig) -> None:
        super().__init__(config)
        size, width = config.embedding_size, config.hidden_size
        self.encoder = nn.LSTM(size, width, 2, batch_first=True, dropout=config.dropout)
        self.cells = nn.ModuleList([nn.LSTMCell(size + width, width), nn.LSTMCell(width, width)])
        self.key, self.attentional = (
            nn.Linear(width, width, bias=False),
            nn.Linear(2 * width, width, bias=False),
        )
        self.output = nn.Linear(width, WORDS)

    def loss(self, batch: Batch) -> Tensor:
        (source, target), hidden = self.words(batch), ~batch.inputs.mask
        values, ends = self.read(self.encoder, source, batch)
        states, keys, steps = list(zip(*ends, strict=True)), self.key(values), []
        fed = torch.zeros_like(states[0][0])
        for word in target.unbind(1):
            read = torch.cat([word, fed], -1)
            for number, cell in enumerate(self.cells):
                states[number] = cell(read, states[number])
                read = self.dropout(states[number][0]) if number == 0 else states[number][0]
            energies = (keys @ read[:, :, None])[..., 0].masked_fill(hidden, -torch.inf)
            context = (energies.softmax(-1)[:, None] @ values)[:, 0]
            fed = self.dropout(self.attentional(torch.cat([context, read], -1)).tanh())
            steps.append(fed)
        return likelihood(self.output, torch.stack(steps, 1), batch)


class BareCovered(Additive):
    """It knows how much it has looked where."""

    def __init__(self, query: int, key: int, size: int) -> None:
        super().__init__(query, key, size)
        self.coverage = nn.Parameter(torch.zeros(size))

    def weights(self, query: Tensor, keys: Tensor, coverage: Tensor, hidden: Tensor) -> Tensor:
        sums = self.query(query)[:, None] + keys + coverage[..., None] * self.coverage
        energies: Tensor = torch.tanh(sums) @ self.energy
        return energies.masked_fill(hidden, -torch.inf).softmax(-1)


class BarePointerGenerator(BareSeq2Seq):
    """With coverage; words are written or copied."""

    renamed: ClassVar = {
        **{f"encoder.backward_layers.0.{name}_l0": f"encoder.{name}_l0_reverse" for name in GATES},
        "encoder.forward_layers.0.": "encoder.", "src_embedding.": "src.", "tgt_embedding.": "tgt.",
        "reduce.hidden.": "first_hidden.", "reduce.cell.": "first_cell.", "decoder.cells.0.": "cell.",
        "attention.score.": "attention.",
    }  # fmt: skip

    def __init__(self, config: PointerGeneratorConfig) -> None:
        super().__init__(config, shared=True)
        size, width = config.embedding_size, config.hidden_size
        self.encoder = nn.LSTM(size, width, batch_first=True, bidirectional=True)
        self.first_hidden, self.first_cell = (
            nn.Linear(2 * width, width),
            nn.Linear(2 * width, width),
        )
        self.word_input, self.context_input = (
            nn.Linear(size, size),
            nn.Linear(2 * width, size, bias=False),
        )
        self.cell, self.gate = nn.LSTMCell(size, width), nn.Linear(4 * width + size, 1)
        self.attention = BareCovered(2 * width, 2 * width, config.attention_size or 2 * width)
        self.readout, self.output = nn.Linear(3 * width, width), nn.Linear(width, WORDS)

    def loss(self, batch: Batch) -> Tensor:
        (source, target), hidden, real = self.words(batch), ~batch.inputs.mask, batch.targets.mask
        values, ends = self.read(self.encoder, source, batch)
        state, cell = (torch.cat([*end], -1) for end in ends)
        state, cell = self.first_hidden(state).relu(), self.first_cell(cell).relu()
        keys, context, steps = self.attention.key(values), torch.zeros_like(values[:, 0]), []
        coverage = torch.zeros_like(values[..., 0])
        for word in self.word_input(target).unbind(1):
            read = word + self.context_input(context)
            state, cell = self.cell(read, (state, cell))
            weights = self.attention.weights(torch.cat([state, cell], -1), keys, coverage, hidden)
            coverage, context = coverage + weights, (weights[:, None] @ values)[:, 0]
            steps.append(torch.cat([state, context, cell, read, weights], -1))
        parts = [one := self.readout.in_features, self.gate.in_features - one, keys.shape[1]]
        features, others, weights = torch.stack(steps, 1)[real].split(parts, -1)
        wanted, rows = batch.targets.ids[real], real.nonzero()[:, 0]
        gate = self.gate(torch.cat([features, others], -1)).sigmoid()[:, 0]
        logits = self.output(self.dropout(self.readout(features)))
        written = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0].exp()
        copied = (weights * (batch.inputs.ids[rows] == wanted[:, None])).sum(-1)
        return -(gate * written + (1 - gate) * copied).log().mean()
