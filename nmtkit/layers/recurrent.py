"""The recurrent encoder, the stacked cells of a decoder, and the bridge between them.

All cells are torch's own. Torch's GRU differs from the one in the papers (Cho et al. 2014, eq. 8; Bahdanau et al. 2015,
appendix A.1.1) in one place: the papers reset the previous state *before* the recurrent product, `tanh(W x + U (r *
h))`, torch resets *after* it, `tanh(W x + r * (U h + b))`. And torch's update gate z keeps the old state, the one of
Bahdanau et al. lets in the new. Cho's decoder resets what it reads of the source as well; here inputs are not reset.

Letters: B sentences, N hypotheses, S source length, I input size, H hidden size, L layers.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nmtkit.core.device import send
from nmtkit.layers.elementary import Dropout

CellKind = Literal["gru", "lstm"]
BridgeKind = Literal["tanh", "linear", "copy", "zero"]
Initialisation = Literal["xavier", "paper"]


def reversed_positions(mask: Tensor) -> Tensor:
    """Positions `(B,S)` that reverse each sentence within its length; `mask` `(B,S)` is True for real tokens."""
    positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)  # (1,S)
    return torch.where(mask, mask.sum(1, keepdim=True) - 1 - positions, positions)


def gather_positions(sequence: Tensor, positions: Tensor) -> Tensor:
    """The vectors of `sequence` `(B,S,H)` at `positions` `(B,S)`."""
    return sequence.gather(1, positions.unsqueeze(2).expand(-1, -1, sequence.shape[2]))


def build_rnn(cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0) -> nn.RNNBase:
    """A one-directional GRU or LSTM over `(B,S,I)`, with dropout between its layers."""
    kind: type[nn.GRU] | type[nn.LSTM] = nn.GRU if cell == "gru" else nn.LSTM
    return kind(input_size, hidden_size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)


def _has_no_16_bit_lstm() -> bool:
    """Whether an LSTM would end with an error under autocast, as it does on a processor without AVX-512."""
    if not torch.is_autocast_enabled("cpu"):
        return False
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch does not type it
    return has_onednn and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def run_rnn(
    layer: nn.Module, inputs: Tensor | PackedSequence, state: Tensor | tuple[Tensor, ...] | None = None
) -> tuple[Any, Any]:
    """Runs a GRU or LSTM; outside of autocast, in the type of its weights, where 16 bits will not do.

    Under autocast for CUDA torch runs these layers in float16, also where bfloat16 was asked for: most gradients would
    silently become zero. On a CPU they run in bfloat16, which has the range of float32; but without AVX-512 torch has
    no such LSTM and would end with an error of its own.

    Takes `(N,T,I)`, or the same packed, and torch's state `(L,N,H)` or a pair of it; None is zero. Returns, as torch,
    the states `(N,T,H)`, and the state after the last word.
    """
    place = inputs.data.device.type
    if place != "cuda" and not (place == "cpu" and isinstance(layer, nn.LSTM) and _has_no_16_bit_lstm()):
        return layer(inputs, state)  # type: ignore[no-any-return]  # torch types a module's call as Any
    dtype = next(layer.parameters()).dtype
    if isinstance(state, tuple):
        state = tuple(part.to(dtype) for part in state)
    elif state is not None:
        state = state.to(dtype)
    with torch.autocast(place, enabled=False):
        return layer(inputs.to(dtype), state)  # type: ignore[no-any-return]


def rnn_step(layer: nn.RNNBase, inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One step of a GRU or LSTM of L layers, cell by cell: less overhead than torch's call for sequences.

    Takes inputs `(N,I)`, hidden states `(N,L,H)` and an LSTM's memory cells `(N,L,H)`; returns both after the step.
    """
    dtype = next(layer.parameters()).dtype
    hiddens, cells = [], []
    with torch.autocast(inputs.device.type, enabled=False):  # see `run_rnn`
        inputs, hidden = inputs.to(dtype), hidden.to(dtype)
        for number, weights in enumerate(layer.all_weights):
            inputs = F.dropout(inputs, layer.dropout, layer.training) if number else inputs
            if cell is None:
                inputs = torch.gru_cell(inputs, hidden[:, number], *weights)  # (N,H)
            else:
                before = (hidden[:, number], cell[:, number].to(dtype))
                inputs, new_cell = torch.lstm_cell(inputs, before, *weights)  # (N,H) each
                cells.append(new_cell)
            hiddens.append(inputs)
    return torch.stack(hiddens, 1), torch.stack(cells, 1) if cells else None


@dataclass(frozen=True)
class RecurrentEncoderOutput:
    """What a recurrent encoder makes of B sentences. D is H, or with two directions 2H, the forward half first."""

    states: Tensor
    """The top layer's answer to every word, `(B,S,D)`; zero at padding."""
    hidden: Tensor
    """The hidden state in which each layer ended, `(B,L,D)`: the forward direction's at the last word of the sentence,
    the backward direction's at the first. It is the state that the cell itself would go on from."""
    cell: Tensor | None
    """An LSTM's memory cells, as `hidden`; None for a GRU, and where not asked for."""


class RecurrentEncoder(nn.Module):
    """Reads a sentence in one direction, or in both so that the state of a word knows what stands on either side of it.

    Both directions: Bahdanau et al. 2015, section 3.2; each upper layer reads both directions of the layer below. The
    backward direction is a forward pass over each sentence turned round within its own length, so that padding comes
    last in both directions. With "bottom" (Wu et al. 2016, section 3.2) only the first layer reads both, and its final
    states are not given.

    Residual connections: Wu et al. 2016, section 3.1. What a layer gives the next one is the sum of its states and its
    input; the state that it carries from word to word is without that sum. The first layer, and one whose input is of
    another size, has none.

    Dropout is on what each layer but the first reads; a residual connection passes it by. Each direction has H units.
    """

    def __init__(
        self,
        cell: CellKind,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool | Literal["bottom"] = True,
        residual: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        both = 1 if bidirectional == "bottom" else layers * bidirectional
        sizes = [input_size] + [hidden_size * (2 if number < both else 1) for number in range(layers - 1)]
        self.forward_layers = nn.ModuleList(build_rnn(cell, size, hidden_size) for size in sizes)
        self.backward_layers = nn.ModuleList(build_rnn(cell, size, hidden_size) for size in sizes[:both])
        self.residual = residual
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, mask: Tensor, lengths: Tensor, need_cell: bool = True) -> RecurrentEncoderOutput:
        """Runs all layers over `(B,S,I)`.

        The mask `(B,S)` is True where a token is real; real tokens come first, at least one, and `lengths` `(B,)`, on
        the CPU, counts them. `need_cell`: an LSTM must give its memory cells, which costs it some time.
        """
        turned = reversed_positions(mask)
        need_cell = need_cell and isinstance(self.forward_layers[0], nn.LSTM)
        lengths = lengths if need_cell else mask.sum(1)  # on the device
        states, ends, cells = inputs, list[Tensor](), list[Tensor]()
        for number, ahead in enumerate(self.forward_layers):
            read = states if number == 0 else self.dropout(states)
            answer, hidden, cell = run_to_final_states(ahead, read, lengths, need_cell)
            if number < len(self.backward_layers):
                opposite = self.backward_layers[number]
                back, back_hidden, back_cell = run_to_final_states(
                    opposite, gather_positions(read, turned), lengths, need_cell
                )
                answer = torch.cat([answer, gather_positions(back, turned)], -1)  # (B,S,2H)
                hidden = torch.cat([hidden, back_hidden], -1)  # (B,2H)
                cell = None if cell is None or back_cell is None else torch.cat([cell, back_cell], -1)
            states = states + answer if self.residual and number > 0 and states.shape == answer.shape else answer
            if ends and ends[-1].shape != hidden.shape:
                ends, cells = [], []
            ends.append(hidden)
            cells += [] if cell is None else [cell]
        states = states.masked_fill(~mask.unsqueeze(2), 0.0)
        return RecurrentEncoderOutput(states, torch.stack(ends, 1), torch.stack(cells, 1) if cells else None)


def run_to_final_states(
    layer: nn.Module, inputs: Tensor, lengths: Tensor, need_cell: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Runs one recurrent layer of one direction over padded sentences `(B,S,I)`, from a state of zero.

    The final hidden state is picked from among all states; but torch returns an LSTM's memory cells after the last
    column only. A GPU gives the right ones for packed sequences, for which a CPU takes far longer: there all sentences
    run together up to the end of the shortest, the others from there to the next end, and so on.

    `lengths` `(B,)` are on the CPU where cells are needed, else on the device of the inputs. Returns the states
    `(B,S,H)`, undefined at padding; and at each sentence's own end the hidden state `(B,H)` and the memory cell
    `(B,H)`, or None.
    """
    if not need_cell:
        states, _ = run_rnn(layer, inputs)
        return states, gather_positions(states, (lengths - 1).unsqueeze(1)).squeeze(1), None
    if inputs.is_cuda:
        # Sorted here and not by torch, which would wait for the device when it undoes it.
        order = lengths.argsort(descending=True)
        there, back = (send(index, inputs.device) for index in (order, order.argsort()))
        packed = pack_padded_sequence(inputs.index_select(0, there), lengths[order], batch_first=True)
        answer, (hidden, cell) = run_rnn(layer, packed)
        states, _ = pad_packed_sequence(answer, batch_first=True, total_length=inputs.shape[1])
        states, hidden, cell = (part.index_select(0, back) for part in (states, hidden[0], cell[0]))
        return states, hidden, cell
    return _run_by_spans(layer, inputs, lengths)


def _run_by_spans(layer: nn.Module, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`run_to_final_states` on a CPU; while it runs, the longest sentences stand first."""
    order = lengths.argsort(descending=True)
    inputs, ends = inputs[order], lengths[order].tolist()
    spans, hiddens, cells = [], [], []
    state, start, running = None, 0, len(ends)
    for stop in sorted(set(ends)):
        states, (hidden, cell) = run_rnn(layer, inputs[:running, start:stop], state)
        going_on = sum(end > stop for end in ends)
        spans.append(F.pad(states, (0, 0, 0, 0, 0, len(ends) - running)))  # (B,*,H)
        hiddens.append(hidden[0, going_on:])
        cells.append(cell[0, going_on:])
        state = hidden[:, :going_on].contiguous(), cell[:, :going_on].contiguous()
        start, running = stop, going_on
    padded = F.pad(torch.cat(spans, 1), (0, 0, 0, inputs.shape[1] - start))  # (B,S,H)
    back = order.argsort()
    return padded[back], torch.cat(hiddens[::-1])[back], torch.cat(cells[::-1])[back]


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
    """One step of L recurrent layers, with dropout between them: each reads the new hidden state of the one below."""

    def __init__(
        self, cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        kind: type[nn.GRUCell] | type[nn.LSTMCell] = nn.GRUCell if cell == "gru" else nn.LSTMCell
        sizes = [input_size] + [hidden_size] * (layers - 1)
        self.cells = nn.ModuleList(kind(size, hidden_size) for size in sizes)
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step from `(N,I)`, hidden states `(N,L,H)` and an LSTM's memory cells `(N,L,H)`, None for a GRU."""
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
    """The first state of a decoder from the final states of an encoder.

    `tanh`: `s_0 = tanh(W x + b)`, a map of its own for each layer, and for each layer's memory cell, of one vector x,
    the final state of the encoder's top layer: Bahdanau et al. 2015, appendix A.2.2; Cho et al. 2014, appendix A.1.2.
    `linear`: the same without the tanh. `copy`: the final states as they are, layer by layer: Sutskever et al. 2014,
    Luong et al. 2015. `zero`: zeros. `relu`: as `tanh` with ReLUs, but memory cells are mapped from the encoder's: See
    et al. 2017, section 2.1.

    An LSTM's memory cells can be copied only from an LSTM. x is the last `input_size` numbers of the final state: with
    two directions the whole state is both, and its second half the backward direction's alone, which is what Bahdanau
    et al. read. Cell, H and L are those of the decoder.
    """

    def __init__(
        self, kind: BridgeKind | Literal["relu"], cell: CellKind, input_size: int, hidden_size: int, layers: int
    ) -> None:
        super().__init__()
        self.kind = kind
        self.input_size, self.hidden_size, self.layers = input_size, hidden_size, layers
        maps = kind in ("linear", "tanh", "relu")
        self.hidden = nn.Linear(input_size, layers * hidden_size) if maps else None
        self.cell = nn.Linear(input_size, layers * hidden_size) if maps and cell == "lstm" else None
        self.has_cell = cell == "lstm"
        self.reads_cell = self.has_cell and kind in ("copy", "relu")

    def forward(self, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The decoder's first hidden state `(B,L,H)`, and memory cell `(B,L,H)` or None.

        From the final hidden states of the encoder's layers `(B,*,D)`, and their memory cells, see `reads_cell`.
        """
        if self.kind == "copy":
            return hidden, cell
        if self.hidden is None:
            zeros = hidden.new_zeros(hidden.shape[0], self.layers, self.hidden_size)
            return zeros, zeros if self.has_cell else None
        ends = cell if cell is not None and self.reads_cell else hidden
        return self._mapped(self.hidden, hidden), None if self.cell is None else self._mapped(self.cell, ends)

    def _mapped(self, linear: nn.Linear, ends: Tensor) -> Tensor:
        mapped: Tensor = linear(ends[:, -1, -self.input_size :]).view(-1, self.layers, self.hidden_size)  # (B,L,H)
        if self.kind == "linear":
            return mapped
        return mapped.tanh() if self.kind == "tanh" else mapped.relu()


def init_weights(model: nn.Module, style: Initialisation) -> None:
    """Initialises all linear maps, convolutions, embeddings and recurrent weights; other parameters are left alone.

    `xavier`: orthogonal recurrent matrices, Glorot & Bengio 2010 for the others, gate by gate; embeddings of length
    about one; biases zero, but one for the forget gates of an LSTM (Jozefowicz et al. 2015).

    `paper`: Bahdanau et al. 2015, appendix B.1: orthogonal recurrent matrices, all others from N(0, 0.01^2), biases
    zero. It suits Adadelta; Adam learns slower from it.
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
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            weight(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.01 if style == "paper" else module.embedding_dim**-0.5)
