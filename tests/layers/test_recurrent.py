import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nmtkit.layers.elementary import Maxout
from nmtkit.layers.recurrent import (
    Bridge,
    BridgeKind,
    CellKind,
    RecurrentEncoder,
    StackedCells,
    init_weights,
)
from tests.support.formulas import Array, linear, recurrent_step

CELLS: list[CellKind] = ["gru", "lstm"]


def run_by_hand(layer: nn.Module, inputs: Array, size: int) -> tuple[Array, Array]:
    """All states `(S,H)`, and the memory cell at the end."""
    hidden, kept, states = np.zeros(size), np.zeros(size), []
    for x in inputs:
        hidden, kept = recurrent_step(layer, x, hidden, kept)
        states.append(hidden)
    return np.stack(states), kept


def assert_near(result: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_encoder_by_hand(cell: CellKind, bidirectional: bool, residual: bool) -> None:
    """States, and the state in which each layer ends; the width is larger than the longest sentence."""
    torch.manual_seed(1)
    encoder = RecurrentEncoder(cell, 3, 2, 3, bidirectional, residual, dropout=0.5).double().eval()
    inputs, lengths = torch.randn(4, 5, 3).double(), [4, 2, 1, 2]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    result = encoder(inputs, mask, torch.tensor(lengths))
    assert (result.cell is None) == (cell == "gru")
    without_cells = encoder(inputs, mask, torch.tensor(lengths), need_cell=False)
    assert without_cells.cell is None
    torch.testing.assert_close(without_cells.states, result.states, rtol=0, atol=1e-12)
    torch.testing.assert_close(without_cells.hidden, result.hidden, rtol=0, atol=1e-12)
    for row, length in enumerate(lengths):
        words = inputs[row, :length].numpy()
        for number in range(3):
            answers, kept = run_by_hand(encoder.forward_layers[number], words, 2)
            end = answers[-1]
            if bidirectional:
                leftward, back_kept = run_by_hand(encoder.backward_layers[number], words[::-1], 2)
                answers = np.concatenate([answers, leftward[::-1]], 1)
                end, kept = np.concatenate([end, leftward[-1]]), np.concatenate([kept, back_kept])
            assert_near(result.hidden[row, number], end)
            if cell == "lstm":
                assert_near(result.cell[row, number], kept)
            words = words + answers if residual and number > 0 else answers
        assert_near(result.states[row, :length], words)
        assert bool((result.states[row, length:] == 0).all())


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_has_no_gradient_and_changes_none(cell: CellKind, bidirectional: bool) -> None:
    torch.manual_seed(1)
    encoder = RecurrentEncoder(cell, 3, 2, 2, bidirectional, residual=True).double()
    inputs, lengths = torch.randn(3, 6, 3).double().requires_grad_(), [5, 1, 3]

    def gradients(batches: list[list[int]], padding: int) -> list[Tensor]:
        encoder.zero_grad()
        inputs.grad = None
        for rows in batches:
            ends = torch.tensor([lengths[row] for row in rows])
            mask = torch.arange(int(ends.max()) + padding) < ends[:, None]
            result = encoder(inputs[rows][:, : mask.shape[1]], mask, ends)
            total = (result.states**2).sum() + (result.hidden**3).sum()
            (total if result.cell is None else total + (result.cell**3).sum()).backward()
        return [
            inputs.grad,
            *(parameter.grad for parameter in encoder.parameters() if parameter.grad is not None),
        ]

    together, alone = gradients([[0, 1, 2]], padding=1), gradients([[0], [1], [2]], padding=0)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    for row, length in enumerate(lengths):
        assert bool((together[0][row, length:] == 0).all())
        assert bool((together[0][row, :length] != 0).all())


def test_dropout_of_the_encoder_spares_the_residual_path_and_the_first_layer() -> None:
    """With nearly everything dropped, an upper layer knows nothing of its input, but the sum still does."""
    torch.manual_seed(1)
    mask, lengths = torch.ones(1, 4, dtype=torch.bool), torch.tensor([4])
    one, other = torch.randn(2, 1, 4, 3).double().unbind(0)
    for layers, residual in ((2, True), (2, False), (1, False)):
        encoder = RecurrentEncoder("gru", 3, 2, layers, False, residual, dropout=0.9999).double()
        first, second = encoder(one, mask, lengths), encoder(other, mask, lengths)
        assert torch.equal(first.hidden[:, -1], second.hidden[:, -1]) == (layers == 2)
        assert torch.equal(first.states, second.states) == (layers == 2 and not residual)


@torch.no_grad()
@pytest.mark.parametrize("cell", CELLS)
def test_stacked_cells_by_hand(cell: CellKind) -> None:
    torch.manual_seed(1)
    cells = StackedCells(cell, 3, 2, layers=2, dropout=0.5).double().eval()
    inputs, hidden, kept = (
        torch.randn(2, 3).double(),
        torch.randn(2, 2, 2).double(),
        torch.randn(2, 2, 2).double(),
    )
    new_hidden, new_kept = cells(inputs, hidden, kept if cell == "lstm" else None)
    for row in range(2):
        x = inputs[row].numpy()
        for number, layer in enumerate(cells.cells):
            x, memory_cell = recurrent_step(
                layer, x, hidden[row, number].numpy(), kept[row, number].numpy()
            )
            assert_near(new_hidden[row, number], x)
            if cell == "lstm":
                assert_near(new_kept[row, number], memory_cell)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["tanh", "linear"])
@pytest.mark.parametrize("cell", CELLS)
def test_bridge_maps_the_end_of_the_top_layer_by_hand(cell: CellKind, kind: BridgeKind) -> None:
    torch.manual_seed(1)
    bridge = Bridge(kind, cell, 3, 2, layers=2).double()
    # two encoder layers of two directions; the bridge reads the backward half
    finals = torch.randn(4, 2, 6).double()
    hidden, kept = bridge(finals, None)
    expected = linear(bridge.hidden, finals[:, 1, 3:].numpy())
    assert_near(hidden.view(4, 4), np.tanh(expected) if kind == "tanh" else expected)
    assert (kept is None) == (cell == "gru")
    if kept is not None:
        assert kept.shape == (4, 2, 2)
        assert not torch.equal(kept, hidden)


@pytest.mark.parametrize("cell", CELLS)
def test_bridge_copies_or_gives_zeros(cell: CellKind) -> None:
    finals = torch.randn(4, 3, 2)
    kept = torch.randn(4, 3, 2) if cell == "lstm" else None
    bridge = Bridge("copy", cell, 2, 2, layers=3)
    assert bridge(finals, kept) == (finals, kept)
    assert bridge.reads_cell == (cell == "lstm")
    bridge = Bridge("zero", cell, 2, 5, layers=1)
    zeros = torch.zeros(4, 1, 5)
    hidden, memory_cell = bridge(finals, kept)
    assert torch.equal(hidden, zeros)
    assert (memory_cell is None) == (cell == "gru")
    assert memory_cell is None or torch.equal(memory_cell, zeros)
    assert not list(bridge.parameters())


def test_maxout_by_hand() -> None:
    maxout = Maxout(2, 3)
    with torch.no_grad():
        maxout.pieces.weight.copy_(
            torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 1], [1, 0], [-1, -1]])
        )
        maxout.pieces.bias.copy_(torch.tensor([0.0, 0, 0, 0.5, 0, 1]))
    # Pairs (1,4), (2,5), (3,6) of [2, -3, -1, -2.5, 2, 2].
    assert maxout(torch.tensor([[2.0, -3.0]])).tolist() == [[2.0, 2.0, 2.0]]
    assert maxout(torch.tensor([[[0.0, 1.0]]])).tolist() == [[[1.5, 1.0, 1.0]]]


def test_initialisation() -> None:
    torch.manual_seed(1)
    for style in ("xavier", "paper"):
        model = nn.ModuleList(
            [nn.LSTM(30, 40), nn.GRUCell(30, 40), nn.Linear(100, 200), nn.Embedding(500, 64)]
        )
        init_weights(model, style)
        lstm, gru, linear, embedding = model
        for matrix in (*lstm.weight_hh_l0.double().chunk(4), *gru.weight_hh.double().chunk(3)):
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(40).double(), rtol=0, atol=1e-5)
        bound = math.sqrt(6 / (30 + 40))
        for matrix in (*lstm.weight_ih_l0.chunk(4), *gru.weight_ih.chunk(3)):
            if style == "xavier":
                assert 0.9 * bound < matrix.abs().max().item() <= bound
            else:
                assert matrix.std().item() == pytest.approx(0.01, rel=0.1)
        assert linear.weight.std().item() == pytest.approx(
            math.sqrt(2 / 300) if style == "xavier" else 0.01, rel=0.1
        )
        assert embedding.weight.std().item() == pytest.approx(
            0.125 if style == "xavier" else 0.01, rel=0.1
        )
        biases = lstm.bias_ih_l0 + lstm.bias_hh_l0
        assert biases[40:80].tolist() == [1.0 if style == "xavier" else 0.0] * 40
        assert biases[:40].tolist() + biases[80:].tolist() == [0.0] * 120
        assert (gru.bias_ih + gru.bias_hh + linear.bias.sum()).abs().sum().item() == 0.0
