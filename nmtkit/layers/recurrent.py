"""Recurrent encoders, the stacked cells of a decoder, and the bridge between them.

All cells are torch's own, which are fused. Torch's GRU differs from the one in the papers (Cho et al. 2014, eq. 8;
Bahdanau et al. 2015, appendix A.1.1) in one place: the papers reset the previous state *before* the recurrent product,
`tanh(W x + U (r * h))`, torch resets *after* it, `tanh(W x + r * (U h + b))`, and so computes all gates with one
product. And names differ: torch's update gate z keeps the old state, the one of Bahdanau et al. lets in the new.

Letters: B sentences, N hypotheses, S source length, I input size, H hidden size, L layers.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from nmtkit.layers.dropout import Dropout

CellKind = Literal["gru", "lstm"]
Initialisation = Literal["xavier", "paper"]


def reversal(mask: Tensor) -> Tensor:
    """For each sentence the positions `(B,S)` that read it from its last word to its first; padding stays in place.

    Args:
        mask: `(B,S)`, True where a token is real; the real tokens come first.
    """
    positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)  # (1,S)
    return torch.where(mask, mask.sum(1, keepdim=True) - 1 - positions, positions)


def take(sequence: Tensor, positions: Tensor) -> Tensor:
    """The vectors of `sequence` `(B,S,H)` at `positions` `(B,S)`."""
    return sequence.gather(1, positions.unsqueeze(2).expand(-1, -1, sequence.shape[2]))


def recurrent(cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0) -> nn.RNNBase:
    """A one-directional GRU or LSTM over `(B,S,I)`, with dropout between its layers."""
    kind: type[nn.GRU] | type[nn.LSTM] = nn.GRU if cell == "gru" else nn.LSTM
    return kind(input_size, hidden_size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)


class BidirectionalEncoder(nn.Module):
    """Reads a sentence in both directions, so that the state of a word knows what stands on either side of it.

    Bahdanau et al. 2015, section 3.2. Each upper layer reads both directions of the layer below.

    The backward direction is a forward pass over each sentence turned round within its own length. So padding comes
    last in both directions and can change nothing, and neither sorting nor lengths on the CPU are needed; on a CPU an
    LSTM is twice as fast this way as over packed sequences, and a GRU as fast.

    Args:
        cell: which cell.
        input_size: I.
        hidden_size: H, of each direction.
        layers: L.
        dropout: probability, between layers.
    """

    def __init__(
        self, cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = [input_size] + [2 * hidden_size] * (layers - 1)
        self.forward_layers = nn.ModuleList(recurrent(cell, size, hidden_size) for size in sizes)
        self.backward_layers = nn.ModuleList(recurrent(cell, size, hidden_size) for size in sizes)
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Runs all layers.

        Args:
            inputs: `(B,S,I)`.
            mask: `(B,S)`, True where a token is real; the real tokens come first.

        Returns:
            The states `(B,S,2H)` of the top layer, forward half first, zero at padding; and the backward direction's
            state at the first word `(B,H)`, which has read the whole sentence.
        """
        turned = reversal(mask)
        states = inputs
        for number, (ahead, back) in enumerate(zip(self.forward_layers, self.backward_layers, strict=True)):
            if number > 0:
                states = self.dropout(states)
            rightward, _ = ahead(states)
            leftward, _ = back(take(states, turned))
            states = torch.cat([rightward, take(leftward, turned)], -1)  # (B,S,2H)
        states = states.masked_fill(~mask.unsqueeze(2), 0.0)
        return states, states[:, 0, states.shape[2] // 2 :]


class FinalStateEncoder(nn.Module):
    """Reads a sentence in one direction and keeps its last state: all that a model without attention knows of it.

    It runs over packed sequences, which give the last state of every layer, an LSTM's memory cell included, at each
    sentence's own end.

    Args:
        cell: which cell.
        input_size: I.
        hidden_size: H.
        layers: L.
        dropout: probability, between layers.
    """

    def __init__(
        self, cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.rnn = recurrent(cell, input_size, hidden_size, layers, dropout)

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Runs all layers.

        Args:
            inputs: `(B,S,I)`.
            lengths: `(B,)`, at least 1; moved to the CPU if it is not there.

        Returns:
            The last hidden state of every layer `(B,L,H)`, and for an LSTM its memory cell `(B,L,H)`, else None.
        """
        packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, final = self.rnn(packed)
        return rows_first(final)


def rows_first(state: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Torch's state `(L,N,H)` of a GRU, or pair of an LSTM, as hidden state and memory cell `(N,L,H)`."""
    if isinstance(state, Tensor):
        return state.transpose(0, 1), None
    return state[0].transpose(0, 1), state[1].transpose(0, 1)


def layers_first(hidden: Tensor, cell: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
    """The inverse of `rows_first`."""
    hidden = hidden.transpose(0, 1).contiguous()
    return hidden if cell is None else (hidden, cell.transpose(0, 1).contiguous())


class StackedCells(nn.Module):
    """One step of L recurrent layers: each reads the new hidden state of the one below.

    Args:
        cell: which cell.
        input_size: I, of the lowest layer.
        hidden_size: H.
        layers: L.
        dropout: probability, between layers.
    """

    def __init__(
        self, cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        kind: type[nn.GRUCell] | type[nn.LSTMCell] = nn.GRUCell if cell == "gru" else nn.LSTMCell
        sizes = [input_size] + [hidden_size] * (layers - 1)
        self.cells = nn.ModuleList(kind(size, hidden_size) for size in sizes)
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step.

        Args:
            inputs: `(N,I)`.
            hidden: `(N,L,H)`.
            cell: an LSTM's memory cells `(N,L,H)`; None for a GRU.

        Returns:
            The new hidden state and memory cells.
        """
        new_hidden, new_cell = [], []
        for number, layer in enumerate(self.cells):
            if number > 0:
                inputs = self.dropout(inputs)
            if cell is None:
                inputs = layer(inputs, hidden[:, number])
            else:
                inputs, kept = layer(inputs, (hidden[:, number], cell[:, number]))
                new_cell.append(kept)
            new_hidden.append(inputs)
        return torch.stack(new_hidden, 1), torch.stack(new_cell, 1) if new_cell else None


class Bridge(nn.Module):
    """The first state of a decoder from one vector that knows the sentence: `s_0 = tanh(W x + b)` for each layer.

    Bahdanau et al. 2015, appendix A.2.2; Cho et al. 2014, appendix A.1.2. An LSTM's memory cell gets a map of its own.

    Args:
        cell: the decoder's cell.
        input_size: I.
        hidden_size: H, of the decoder.
        layers: L, of the decoder.
    """

    def __init__(self, cell: CellKind, input_size: int, hidden_size: int, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.hidden = nn.Linear(input_size, layers * hidden_size)
        self.cell = nn.Linear(input_size, layers * hidden_size) if cell == "lstm" else None

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden state `(N,L,H)`, and memory cell `(N,L,H)` or None, from `(N,I)`."""
        hidden = torch.tanh(self.hidden(inputs)).view(inputs.shape[0], self.layers, -1)
        if self.cell is None:
            return hidden, None
        return hidden, torch.tanh(self.cell(inputs)).view(inputs.shape[0], self.layers, -1)


class Maxout(nn.Module):
    """The larger of each pair of numbers of a linear map: Goodfellow et al. 2013, with two pieces.

    It is the hidden layer between a decoder and its output words in Cho et al. 2014 and in Bahdanau et al. 2015,
    appendix A.2.2; several inputs, set side by side, share the map. The papers pair number 2j-1 with 2j; here j is
    paired with l+j, which is the same up to the order of rows and keeps both halves contiguous.

    Args:
        input_size: I.
        output_size: l, the number of maxima.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.pieces = nn.Linear(input_size, 2 * output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """`(...,l)` from `(...,I)`."""
        first, second = self.pieces(inputs).chunk(2, -1)
        return torch.maximum(first, second)


def initialise(model: nn.Module, style: Initialisation) -> None:
    """Sets every linear map, embedding and recurrent weight of a model; parameters of other kinds are left alone.

    `xavier`: orthogonal recurrent matrices, Glorot & Bengio 2010 for the others, gate by gate; embeddings of length
    about one; biases zero, but one for the forget gates of an LSTM (Jozefowicz et al. 2015).

    `paper`: Bahdanau et al. 2015, appendix B.1: orthogonal recurrent matrices, all others from N(0, 0.01^2), biases
    zero. So small a start suits the Adadelta of the paper; Adam learns slower from it.
    """

    def weight(matrix: Tensor) -> None:
        if style == "paper":
            nn.init.normal_(matrix, std=0.01)
        else:
            nn.init.xavier_uniform_(matrix)

    for module in model.modules():
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            gates = 4 if isinstance(module, (nn.LSTM, nn.LSTMCell)) else 3
            for name, parameter in module.named_parameters():
                for number, gate in enumerate(parameter.data.chunk(gates)):
                    if "weight_hh" in name:
                        nn.init.orthogonal_(gate)
                    elif "weight_ih" in name:
                        weight(gate)
                    else:
                        forget = gates == 4 and number == 1 and "bias_ih" in name and style == "xavier"
                        nn.init.constant_(gate, 1.0 if forget else 0.0)
        elif isinstance(module, nn.Linear):
            weight(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.01 if style == "paper" else module.embedding_dim**-0.5)
