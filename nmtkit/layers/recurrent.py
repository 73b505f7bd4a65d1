"""The recurrent encoder, the stacked cells of a decoder, and the bridge between them.

All cells are torch's. Torch's GRU differs from the GRU in the papers (Cho et al. 2014, eq. 8; Bahdanau et al. 2015,
appendix A.1.1) in two ways. First, the papers apply the reset gate *before* the recurrent product,
`tanh(W x + U (r * h))`; torch applies it *after* the product, `tanh(W x + r * (U h + b))`. Second, torch's update gate
z determines how much of the old state is kept; in Bahdanau et al., it determines how much of the new state is used. In
addition, the reset gate in the decoder of Cho et al. is applied to the context; here, it is not applied to any input.

Notation: B sentences, N hypotheses, S source length, T word positions in `run_rnn`, I input size, H hidden size, L
layers, D size of the encoder's states (H, or 2H with two directions).
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

HiddenAndCell = tuple[Tensor, Tensor | None]
"""Hidden states and the memory cells of an LSTM, `(N, L, H)` each; for a GRU, the memory cells are None."""
TorchState = Tensor | tuple[Tensor, Tensor]
"""State of torch's recurrent layers: `(L, N, H)` for a GRU, a pair of these for an LSTM."""


def reversed_positions(mask: Tensor) -> Tensor:
    """Returns positions `(B, S)` that reverse each sentence within its own length and leave padding in place.

    `mask` `(B, S)` is True for real tokens, which precede the padding.
    """
    positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)  # (1, S)
    last = mask.sum(1, keepdim=True) - 1  # (B, 1)
    return torch.where(mask, last - positions, positions)


def gather_positions(sequence: Tensor, positions: Tensor) -> Tensor:
    """Returns the vectors of `sequence` `(B, S, H)` at `positions` `(B, *)`: `(B, *, H)`."""
    index = positions.unsqueeze(2).expand(-1, -1, sequence.shape[2])  # (B, *, H)
    return sequence.gather(1, index)


def build_rnn(
    cell: CellKind, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0
) -> nn.RNNBase:
    """Builds a unidirectional GRU or LSTM over `(B, S, I)`, with dropout between its layers."""
    kind: type[nn.GRU] | type[nn.LSTM] = nn.GRU if cell == "gru" else nn.LSTM
    # With a single layer, dropout would have no effect, and torch would warn.
    rate = dropout if layers > 1 else 0.0
    return kind(input_size, hidden_size, layers, batch_first=True, dropout=rate)


def _has_no_16_bit_lstm() -> bool:
    """Returns whether an LSTM would fail under autocast, as it does on a processor without AVX-512."""
    if not torch.is_autocast_enabled("cpu"):
        return False
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch does not type it
    return has_onednn and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def run_rnn(
    layer: nn.Module,
    inputs: Tensor | PackedSequence,
    state: Tensor | tuple[Tensor, ...] | None = None,
) -> tuple[Any, Any]:
    """Runs a GRU or LSTM; where 16-bit types do not work, disables autocast and uses the dtype of the weights.

    Under autocast for CUDA, torch runs these layers in float16 even if bfloat16 was requested, and most gradients would
    silently become zero. On a CPU, they run in bfloat16, which has the range of float32. But on a processor without
    AVX-512, torch has no LSTM in bfloat16 and raises an error.

    `inputs` are `(N, T, I)`, possibly packed. `state` is a state as in torch: `(L, N, H)`, a pair of such tensors, or
    None for zeros. The results are also as in torch: the states `(N, T, H)`, and the state after the last word.
    """
    device_type = inputs.data.device.type
    fails_on_cpu = device_type == "cpu" and isinstance(layer, nn.LSTM) and _has_no_16_bit_lstm()
    if device_type != "cuda" and not fails_on_cpu:
        return layer(inputs, state)  # type: ignore[no-any-return]  # torch types a module's call as Any
    dtype = next(layer.parameters()).dtype
    if isinstance(state, tuple):
        state = tuple(part.to(dtype) for part in state)  # (L, N, H) each
    elif state is not None:
        state = state.to(dtype)  # (L, N, H)
    with torch.autocast(device_type, enabled=False):
        return layer(inputs.to(dtype), state)  # type: ignore[no-any-return]  # torch types a module's call as Any


def rnn_step(
    layer: nn.RNNBase, inputs: Tensor, hidden: Tensor, cell: Tensor | None
) -> HiddenAndCell:
    """Runs one step of a GRU or LSTM with L layers, cell by cell, which has less overhead than calling the whole layer.

    The inputs are `(N, I)`, the hidden states `(N, L, H)`, and the memory cells `(N, L, H)`, or None for a GRU. Returns
    the hidden states and memory cells after the step.
    """
    dtype = next(layer.parameters()).dtype
    new_hiddens = []
    new_cells = []
    with torch.autocast(inputs.device.type, enabled=False):  # see `run_rnn`
        inputs = inputs.to(dtype)  # (N, I)
        hidden = hidden.to(dtype)  # (N, L, H)
        for number, weights in enumerate(layer.all_weights):
            if number > 0:
                inputs = F.dropout(inputs, layer.dropout, layer.training)  # (N, H)
            if cell is None:
                inputs = torch.gru_cell(inputs, hidden[:, number], *weights)  # (N, H)
            else:
                state = (hidden[:, number], cell[:, number].to(dtype))  # (N, H) each
                inputs, new_cell = torch.lstm_cell(inputs, state, *weights)  # (N, H) each
                new_cells.append(new_cell)
            new_hiddens.append(inputs)
    return torch.stack(new_hiddens, 1), _stack_cells(new_cells)


def _stack_cells(cells: list[Tensor]) -> Tensor | None:
    """Stacks the memory cells of L layers to `(N, L, H)`; returns None for a GRU, which has no memory cells."""
    return torch.stack(cells, 1) if cells else None


@dataclass(frozen=True)
class RecurrentEncoderOutput:
    """Output of a recurrent encoder. D is H, or 2H with two directions, the forward half first."""

    states: Tensor
    """States of the top layer at each word, `(B, S, D)`; zero at padding."""
    hidden: Tensor
    """Final hidden state of each layer, `(B, L, D)`: the state of the forward direction at the last word, and the state
    of the backward direction at the first word. Residual inputs are not added, so a cell could continue from this
    state."""
    cell: Tensor | None
    """Memory cells of an LSTM, shaped like `hidden`; None for a GRU, or if they were not requested."""


class RecurrentEncoder(nn.Module):
    """Reads sentences in one direction, or in both directions so that each state depends on the whole sentence.

    The bidirectional encoder follows Bahdanau et al. 2015, section 3.2; each upper layer reads both directions of the
    layer below. The backward direction is a forward pass over each sentence reversed within its own length, so padding
    comes last in both directions. With "bottom" (Wu et al. 2016, section 3.2), only the first layer is bidirectional,
    and its final states are not part of the output.

    Residual connections follow Wu et al. 2016, section 3.1: the next layer reads the sum of a layer's states and the
    layer's input, but this sum is not part of the state that is passed from word to word. There is no residual
    connection around the first layer, or around layers whose inputs and states differ in size.

    Dropout is applied to the input of each layer except the first; residual connections bypass it. Each direction has
    H units.
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
        if bidirectional == "bottom":
            backward_layers = 1
        elif bidirectional:
            backward_layers = layers
        else:
            backward_layers = 0
        input_sizes = [input_size]
        for number in range(layers - 1):
            directions_below = 2 if number < backward_layers else 1
            input_sizes.append(hidden_size * directions_below)
        self.forward_layers = nn.ModuleList(
            build_rnn(cell, size, hidden_size) for size in input_sizes
        )
        self.backward_layers = nn.ModuleList(
            build_rnn(cell, size, hidden_size) for size in input_sizes[:backward_layers]
        )
        self.residual = residual
        self.dropout = Dropout(dropout)

    def forward(
        self, inputs: Tensor, mask: Tensor, lengths: Tensor, need_cell: bool = True
    ) -> RecurrentEncoderOutput:
        """Runs all layers.

        Args:
            inputs: `(B, S, I)`.
            mask: True at real tokens, `(B, S)`. Real tokens precede padding, and each sentence has at least one.
            lengths: number of real tokens of each sentence, `(B,)`, on the CPU.
            need_cell: whether an LSTM must return its memory cells, which takes extra time.
        """
        reversal = reversed_positions(mask)  # (B, S)
        need_cell = need_cell and isinstance(self.forward_layers[0], nn.LSTM)
        if not need_cell:
            lengths = mask.sum(1)  # (B,), on the device: see `run_to_final_states`
        states = inputs
        final_hiddens: list[Tensor] = []
        final_cells: list[Tensor] = []
        for number, forward_layer in enumerate(self.forward_layers):
            layer_inputs = states if number == 0 else self.dropout(states)  # (B, S, I or D)
            outputs, hidden, cell = run_to_final_states(
                forward_layer, layer_inputs, lengths, need_cell=need_cell
            )  # (B, S, H), (B, H), (B, H) or None
            if number < len(self.backward_layers):
                reversed_inputs = gather_positions(layer_inputs, reversal)  # (B, S, I or D)
                reversed_outputs, backward_hidden, backward_cell = run_to_final_states(
                    self.backward_layers[number], reversed_inputs, lengths, need_cell=need_cell
                )  # (B, S, H), (B, H), (B, H) or None
                backward_outputs = gather_positions(reversed_outputs, reversal)  # (B, S, H)
                outputs = torch.cat([outputs, backward_outputs], -1)  # (B, S, 2H)
                hidden = torch.cat([hidden, backward_hidden], -1)  # (B, 2H)
                if cell is not None and backward_cell is not None:
                    cell = torch.cat([cell, backward_cell], -1)  # (B, 2H)
            if self.residual and number > 0 and states.shape == outputs.shape:
                states = states + outputs  # (B, S, D)
            else:
                states = outputs
            if final_hiddens and final_hiddens[-1].shape != hidden.shape:
                # Only the bottom layer is bidirectional, so its final states differ in size and are left out.
                final_hiddens = []
                final_cells = []
            final_hiddens.append(hidden)
            if cell is not None:
                final_cells.append(cell)
        is_padding = ~mask.unsqueeze(2)  # (B, S, 1)
        return RecurrentEncoderOutput(
            states=states.masked_fill(is_padding, 0.0),
            hidden=torch.stack(final_hiddens, 1),  # (B, L, D)
            cell=_stack_cells(final_cells),
        )


def run_to_final_states(
    layer: nn.Module, inputs: Tensor, lengths: Tensor, need_cell: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Runs a single recurrent layer in one direction over padded sentences `(B, S, I)`, starting from zeros.

    The final hidden state of a sentence is one of the states that torch returns for all words. The final memory cell of
    an LSTM is not: torch returns only the cell after the last column, which is padding in most sentences. For packed
    sequences torch returns the right cells, but packing is fast only on a GPU.

    `lengths` `(B,)` must be on the CPU if cells are needed, otherwise on the device of the inputs.

    Returns:
        The states `(B, S, H)`, undefined at padding; the hidden state of each sentence after its last word, `(B, H)`;
        and the memory cells after the last word, `(B, H)`, or None if they are not needed.
    """
    if not need_cell:
        states, _ = run_rnn(layer, inputs)  # (B, S, H)
        last = (lengths - 1).unsqueeze(1)  # (B, 1)
        return states, gather_positions(states, last).squeeze(1), None
    if inputs.is_cuda:
        return _run_packed(layer, inputs, lengths)
    return _run_by_spans(layer, inputs, lengths)


def _run_packed(layer: nn.Module, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Implements `run_to_final_states` for an LSTM on a GPU."""
    # The sentences are sorted here, because torch would have to wait for the device to restore their order.
    order = lengths.argsort(descending=True)  # (B,)
    device_order = send(order, inputs.device)  # (B,)
    inverse_order = send(order.argsort(), inputs.device)  # (B,)
    packed = pack_padded_sequence(
        inputs.index_select(0, device_order), lengths[order], batch_first=True
    )
    packed_states, (hidden, cell) = run_rnn(layer, packed)  # hidden, cell: (1, B, H)
    states, _ = pad_packed_sequence(
        packed_states, batch_first=True, total_length=inputs.shape[1]
    )  # (B, S, H)
    return (
        states.index_select(0, inverse_order),
        hidden[0].index_select(0, inverse_order),
        cell[0].index_select(0, inverse_order),
    )


def _run_by_spans(
    layer: nn.Module, inputs: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `run_to_final_states` for an LSTM on a CPU.

    The sentences are sorted, longest first, and their columns are cut wherever a sentence ends. For each of the
    resulting spans, the layer is called once, with the sentences that have not ended before that span. So each call
    returns the final cells of the sentences that end with its span:

        sentence 0   span 1 | span 2 | span 3
        sentence 1   span 1 | span 2
        sentence 2   span 1 | span 2
        sentence 3   span 1
    """
    order = lengths.argsort(descending=True)  # (B,)
    inputs = inputs[order]  # (B, S, I)
    sorted_lengths = lengths[order].tolist()
    spans = []
    final_hiddens = []
    final_cells = []
    state = None
    start = 0
    running = len(sorted_lengths)  # number of sentences that end after `start`
    for stop in sorted(set(sorted_lengths)):
        span_inputs = inputs[:running, start:stop]  # (running, stop - start, I)
        states, (hidden, cell) = run_rnn(layer, span_inputs, state)  # hidden, cell: (1, running, H)
        remaining = sum(length > stop for length in sorted_lengths)
        ended = len(sorted_lengths) - running
        spans.append(F.pad(states, (0, 0, 0, 0, 0, ended)))  # (B, stop - start, H)
        final_hiddens.append(hidden[0, remaining:])  # (running - remaining, H)
        final_cells.append(cell[0, remaining:])  # (running - remaining, H)
        next_hidden = hidden[:, :remaining].contiguous()  # (1, remaining, H)
        next_cell = cell[:, :remaining].contiguous()  # (1, remaining, H)
        state = (next_hidden, next_cell)
        start = stop
        running = remaining
    padding = inputs.shape[1] - start
    padded = F.pad(torch.cat(spans, 1), (0, 0, 0, padding))  # (B, S, H)
    # The shortest sentences ended first, but are the last ones in the sorted order.
    final_hidden = torch.cat(final_hiddens[::-1])  # (B, H)
    final_cell = torch.cat(final_cells[::-1])  # (B, H)
    inverse_order = order.argsort()  # (B,)
    return padded[inverse_order], final_hidden[inverse_order], final_cell[inverse_order]


def rows_first(state: TorchState) -> HiddenAndCell:
    """Converts torch's state to hidden states and memory cells, `(N, L, H)` each."""
    if isinstance(state, Tensor):
        return state.transpose(0, 1), None
    hidden, cell = state
    return hidden.transpose(0, 1), cell.transpose(0, 1)


def layers_first(hidden: Tensor, cell: Tensor | None) -> TorchState:
    """Converts hidden states and memory cells, `(N, L, H)` each, to torch's state; the inverse of `rows_first`."""
    hidden = hidden.transpose(0, 1).contiguous()  # (L, N, H)
    if cell is None:
        return hidden
    cell = cell.transpose(0, 1).contiguous()  # (L, N, H)
    return hidden, cell


class StackedCells(nn.Module):
    """L recurrent layers that run single steps, with dropout between them; each reads the layer below."""

    def __init__(
        self,
        cell: CellKind,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kind: type[nn.GRUCell] | type[nn.LSTMCell] = nn.GRUCell if cell == "gru" else nn.LSTMCell
        input_sizes = [input_size] + [hidden_size] * (layers - 1)
        self.cells = nn.ModuleList(kind(size, hidden_size) for size in input_sizes)
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> HiddenAndCell:
        """Runs one step; the arguments and results are the same as in `rnn_step`."""
        new_hiddens = []
        new_cells = []
        for number, layer in enumerate(self.cells):
            if number > 0:
                inputs = self.dropout(inputs)  # (N, H)
            if cell is None:
                inputs = layer(inputs, hidden[:, number])  # (N, H)
            else:
                state = (hidden[:, number], cell[:, number])  # (N, H) each
                inputs, new_cell = layer(inputs, state)  # (N, H) each
                new_cells.append(new_cell)
            new_hiddens.append(inputs)
        return torch.stack(new_hiddens, 1), _stack_cells(new_cells)


class Bridge(nn.Module):
    """Computes the decoder's first state from the encoder's final states.

    * `tanh`: `s_0 = tanh(W x + b)`, with a separate linear layer for the hidden states and the memory cells of each
      decoder layer. All of them read x, the final state of the encoder's top layer: Bahdanau et al. 2015, appendix
      A.2.2; Cho et al. 2014, appendix A.1.2.
    * `linear`: like `tanh`, but without the tanh.
    * `copy`: the final states themselves, layer by layer: Sutskever et al. 2014, Luong et al. 2015. Memory cells can be
      copied only from an LSTM to an LSTM.
    * `zero`: zeros.
    * `relu`: like `tanh`, but with ReLUs, and memory cells are computed from the encoder's memory cells: See et al.
      2017, section 2.1.

    x consists of the last `input_size` elements of the final state. In a bidirectional encoder, an `input_size` of 2H
    selects both directions, and H selects only the backward direction, as in Bahdanau et al. `cell`, `hidden_size` and
    `layers` describe the decoder.
    """

    def __init__(
        self,
        kind: BridgeKind | Literal["relu"],
        cell: CellKind,
        input_size: int,
        hidden_size: int,
        layers: int,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.layers = layers
        self.has_cell = cell == "lstm"
        self.reads_cell = self.has_cell and kind in ("copy", "relu")
        self.hidden: nn.Linear | None = None
        self.cell: nn.Linear | None = None
        if kind in ("linear", "tanh", "relu"):
            self.hidden = nn.Linear(input_size, layers * hidden_size)
            if self.has_cell:
                self.cell = nn.Linear(input_size, layers * hidden_size)

    def forward(self, hidden: Tensor, cell: Tensor | None) -> HiddenAndCell:
        """Returns the decoder's first hidden states `(B, L, H)`, and its first memory cells, `(B, L, H)` or None.

        `hidden` contains the final hidden states of the encoder's layers, `(B, *, D)`; `cell` contains their memory
        cells, `(B, *, D)`, which are needed only if `reads_cell`.
        """
        if self.kind == "copy":
            return hidden, cell
        if self.hidden is None:
            zeros = hidden.new_zeros(hidden.shape[0], self.layers, self.hidden_size)  # (B, L, H)
            first_cell = zeros if self.has_cell else None
            return zeros, first_cell
        first_hidden = self._first_state(self.hidden, hidden)  # (B, L, H)
        if self.cell is None:
            return first_hidden, None
        cell_source = cell if cell is not None and self.reads_cell else hidden
        return first_hidden, self._first_state(self.cell, cell_source)

    def _first_state(self, linear: nn.Linear, final_states: Tensor) -> Tensor:
        top = final_states[:, -1]  # (B, D)
        inputs = top[:, -self.input_size :]  # (B, I)
        projected: Tensor = linear(inputs)  # (B, L * H)
        state = projected.view(-1, self.layers, self.hidden_size)  # (B, L, H)
        if self.kind == "tanh":
            return state.tanh()
        if self.kind == "relu":
            return state.relu()
        return state


def init_weights(model: nn.Module, style: Initialisation) -> None:
    """Initializes all linear layers, convolutions, embeddings and recurrent weights, but no other parameters.

    `xavier`: Recurrent matrices are orthogonal; all other matrices are initialized as in Glorot and Bengio 2010, gate
    by gate. Embeddings have a length of about one. Biases are zero, except for the forget gates of an LSTM, where they
    are one (Jozefowicz et al. 2015).

    `paper`: As in Bahdanau et al. 2015, appendix B.1, recurrent matrices are orthogonal, all other matrices are drawn
    from N(0, 0.01^2), and biases are zero. This suits Adadelta; with Adam, training is slower.
    """
    for module in model.modules():
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            _init_recurrent(module, style)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            _init_matrix(module.weight, style)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            if style == "paper":
                nn.init.normal_(module.weight, std=0.01)
            else:
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _init_recurrent(module: nn.RNNBase | nn.RNNCellBase, style: Initialisation) -> None:
    """Initializes each gate separately: a parameter contains the matrices of all gates, stacked vertically."""
    is_lstm = isinstance(module, (nn.LSTM, nn.LSTMCell))
    n_gates = 4 if is_lstm else 3
    for name, parameter in module.named_parameters():
        gates = parameter.data.chunk(n_gates)  # (H, *) or (H,) each
        for gate in gates:
            if "weight_hh" in name:
                nn.init.orthogonal_(gate)
            elif "weight_ih" in name:
                _init_matrix(gate, style)
            else:
                nn.init.zeros_(gate)
        # Torch adds two biases, so setting one of them is enough. The order is input, forget, candidate, output gate.
        if is_lstm and "bias_ih" in name and style == "xavier":
            nn.init.ones_(gates[1])


def _init_matrix(matrix: Tensor, style: Initialisation) -> None:
    if style == "paper":
        nn.init.normal_(matrix, std=0.01)
    else:
        nn.init.xavier_uniform_(matrix)
