import math

import pytest
import torch
from torch import Tensor, nn

from nmtkit.layers.recurrent import (
    BidirectionalEncoder,
    Bridge,
    CellKind,
    FinalStateEncoder,
    Maxout,
    StackedCells,
    initialise,
    layers_first,
    recurrent,
    reversal,
    rows_first,
    take,
)

Vector = list[float]
CELLS: list[CellKind] = ["gru", "lstm"]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def affine(weight: Tensor, bias: Tensor, vector: Vector) -> Vector:
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + b
        for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
    ]


def step_by_hand(
    cell: CellKind, weights: tuple[Tensor, Tensor, Tensor, Tensor], x: Vector, hidden: Vector, kept: Vector
) -> tuple[Vector, Vector]:
    """One step from the papers' formulas, number by number; the GRU resets after the recurrent product."""
    size = len(hidden)
    from_input, from_state = affine(weights[0], weights[2], x), affine(weights[1], weights[3], hidden)
    new_hidden, new_kept = [], []
    for k in range(size):
        if cell == "gru":
            reset = sigmoid(from_input[k] + from_state[k])
            keep = sigmoid(from_input[size + k] + from_state[size + k])
            proposal = math.tanh(from_input[2 * size + k] + reset * from_state[2 * size + k])
            new_hidden.append((1 - keep) * proposal + keep * hidden[k])
        else:
            gates = [from_input[g * size + k] + from_state[g * size + k] for g in range(4)]
            let_in, forget, out = sigmoid(gates[0]), sigmoid(gates[1]), sigmoid(gates[3])
            new_kept.append(forget * kept[k] + let_in * math.tanh(gates[2]))
            new_hidden.append(out * math.tanh(new_kept[-1]))
    return new_hidden, new_kept


def weights_of(module: nn.Module, layer: str = "_l0") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(getattr(module, f"{name}{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def run_by_hand(cell: CellKind, rnn: nn.Module, inputs: list[Vector], size: int) -> tuple[list[Vector], Vector]:
    hidden, kept, states = [0.0] * size, [0.0] * size, []
    for x in inputs:
        hidden, kept = step_by_hand(cell, weights_of(rnn), x, hidden, kept)
        states.append(hidden)
    return states, kept


def test_reversal_turns_words_and_leaves_padding() -> None:
    mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    assert reversal(mask).tolist() == [[4, 3, 2, 1, 0], [2, 1, 0, 3, 4], [0, 1, 2, 3, 4]]
    sequence = torch.arange(15.0).view(3, 5, 1)
    assert take(sequence, reversal(mask))[1, :, 0].tolist() == [7.0, 6.0, 5.0, 8.0, 9.0]


@pytest.mark.parametrize("cell", CELLS)
def test_bidirectional_encoder_by_hand(cell: CellKind) -> None:
    torch.manual_seed(1)
    encoder = BidirectionalEncoder(cell, 3, 2, layers=2, dropout=0.5).double().eval()
    inputs, lengths = torch.randn(2, 4, 3).double(), [4, 2]
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    states, summary = encoder(inputs, mask)
    for row, length in enumerate(lengths):
        words: list[Vector] = inputs[row, :length].tolist()
        for ahead, back in zip(encoder.forward_layers, encoder.backward_layers, strict=True):
            rightward, _ = run_by_hand(cell, ahead, words, 2)
            leftward, _ = run_by_hand(cell, back, words[::-1], 2)
            words = [right + left for right, left in zip(rightward, leftward[::-1], strict=True)]
        torch.testing.assert_close(states[row, :length], torch.tensor(words).double(), rtol=0, atol=1e-6)
        assert states[row, :length].tolist() == [pytest.approx(word, abs=1e-12) for word in words]
        assert summary[row].tolist() == pytest.approx(words[0][2:], abs=1e-12)
        assert bool((states[row, length:] == 0).all())


@pytest.mark.parametrize("cell", CELLS)
def test_final_state_encoder_stops_at_each_end(cell: CellKind) -> None:
    torch.manual_seed(1)
    encoder = FinalStateEncoder(cell, 3, 2).double()
    inputs, lengths = torch.randn(3, 4, 3).double(), [2, 4, 1]
    hidden, kept = encoder(inputs, torch.tensor(lengths))
    assert hidden.shape == (3, 1, 2)
    assert (kept is None) == (cell == "gru")
    for row, length in enumerate(lengths):
        states, memory_cell = run_by_hand(cell, encoder.rnn, inputs[row, :length].tolist(), 2)
        assert hidden[row, 0].tolist() == pytest.approx(states[-1], abs=1e-12)
        if kept is not None:
            assert kept[row, 0].tolist() == pytest.approx(memory_cell, abs=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_stacked_cells_by_hand(cell: CellKind) -> None:
    torch.manual_seed(1)
    cells = StackedCells(cell, 3, 2, layers=2, dropout=0.5).double().eval()
    inputs, hidden = torch.randn(2, 3).double(), torch.randn(2, 2, 2).double()
    kept = torch.randn(2, 2, 2).double() if cell == "lstm" else None
    new_hidden, new_kept = cells(inputs, hidden, kept)
    for row in range(2):
        x: Vector = inputs[row].tolist()
        for number, layer in enumerate(cells.cells):
            memory_cell: Vector = [] if kept is None else kept[row, number].tolist()
            x, memory_cell = step_by_hand(cell, weights_of(layer, ""), x, hidden[row, number].tolist(), memory_cell)
            assert new_hidden[row, number].tolist() == pytest.approx(x, abs=1e-12)
            if new_kept is not None:
                assert new_kept[row, number].tolist() == pytest.approx(memory_cell, abs=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_state_layouts_are_inverse(cell: CellKind) -> None:
    rnn = recurrent(cell, 3, 2, layers=3)
    _, final = rnn(torch.randn(5, 4, 3))
    hidden, kept = rows_first(final)
    assert hidden.shape == (5, 3, 2)
    back = layers_first(hidden, kept)
    torch.testing.assert_close(back, final, rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_bridge_by_hand(cell: CellKind) -> None:
    torch.manual_seed(1)
    bridge = Bridge(cell, 3, 2, layers=2).double()
    inputs = torch.randn(2, 3).double()
    hidden, kept = bridge(inputs)
    for row in range(2):
        expected = [math.tanh(x) for x in affine(bridge.hidden.weight, bridge.hidden.bias, inputs[row].tolist())]
        assert hidden[row].flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert (kept is None) == (cell == "gru")
    if kept is not None:
        assert kept.shape == (2, 2, 2)
        assert not torch.equal(kept, hidden)


def test_maxout_by_hand() -> None:
    maxout = Maxout(2, 3)
    with torch.no_grad():
        maxout.pieces.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 1], [1, 0], [-1, -1]]))
        maxout.pieces.bias.copy_(torch.tensor([0.0, 0, 0, 0.5, 0, 1]))
    # Pairs (1,4), (2,5), (3,6) of [2, -3, -1, -2.5, 2, 2].
    assert maxout(torch.tensor([[2.0, -3.0]])).tolist() == [[2.0, 2.0, 2.0]]
    assert maxout(torch.tensor([[[0.0, 1.0]]])).tolist() == [[[1.5, 1.0, 1.0]]]


def test_initialisation() -> None:
    torch.manual_seed(1)
    for style in ("xavier", "paper"):
        model = nn.ModuleList([nn.LSTM(30, 40), nn.GRUCell(30, 40), nn.Linear(100, 200), nn.Embedding(500, 64)])
        initialise(model, style)  # type: ignore[arg-type]  # a loop variable is a plain str
        lstm, gru, linear, embedding = model
        for matrix in (*lstm.weight_hh_l0.chunk(4), *gru.weight_hh.chunk(3)):
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(40), rtol=0, atol=1e-5)
        bound = math.sqrt(6 / (30 + 40))
        for matrix in (*lstm.weight_ih_l0.chunk(4), *gru.weight_ih.chunk(3)):
            if style == "xavier":
                assert 0.9 * bound < matrix.abs().max().item() <= bound
            else:
                assert matrix.std().item() == pytest.approx(0.01, rel=0.1)
        assert linear.weight.std().item() == pytest.approx(math.sqrt(2 / 300) if style == "xavier" else 0.01, rel=0.1)
        assert embedding.weight.std().item() == pytest.approx(0.125 if style == "xavier" else 0.01, rel=0.1)
        biases = lstm.bias_ih_l0 + lstm.bias_hh_l0
        assert biases[40:80].tolist() == [1.0 if style == "xavier" else 0.0] * 40
        assert biases[:40].tolist() + biases[80:].tolist() == [0.0] * 120
        assert (gru.bias_ih + gru.bias_hh + linear.bias.sum()).abs().sum().item() == 0.0
