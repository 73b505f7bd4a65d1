"""The neural Turing machine: its equations number by number in numpy, heads and memory by hand, and that it copies."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.base import VocabularySizes
from nmtkit.zoo import ntm
from nmtkit.zoo.ntm import EMPTY, Ntm, NtmConfig, move, write
from tests.support.formulas import Array, linear, sigmoid, softmax

TEXT = [7, 4, 7, 9, 4, 10]
S, W = 5, 3


def softplus(x: float) -> float:
    return math.log(1 + math.exp(x))


def head_by_hand(told: Array, before: Array, memory: Array, shift: int) -> Array:
    """w_t of one head from its numbers, w_{t-1} and the memory `(S,W)`: equations 5 to 9."""
    key, (beta, g, gamma), shifts = told[:W], told[W : W + 3], told[W + 3 :]
    likeness = [row @ key / (math.sqrt(row @ row) * math.sqrt(key @ key)) for row in memory]
    by_content = softmax(softplus(beta) * np.array(likeness))
    gated = sigmoid(g - 2) * by_content + (1 - sigmoid(g - 2)) * before
    shares = softmax(shifts)
    moved_on = np.zeros(S)
    for i in range(S):
        for j in range(S):
            for step in range(-shift, shift + 1):
                if (i - j - step) % S == 0:
                    moved_on[i] += gated[j] * shares[shift + step]
    raised = moved_on ** (1 + softplus(gamma))
    return raised / raised.sum()


@torch.no_grad()
@pytest.mark.parametrize(
    ("controller", "heads", "shift"), [("lstm", 1, 1), ("feedforward", 2, 1), ("lstm", 2, 2)]
)
def test_the_machine_is_its_equations(
    controller: Any, heads: int, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ntm, "SHIFT", shift)
    torch.manual_seed(1)
    config = NtmConfig(
        embedding_size=4,
        controller=controller,
        hidden_size=6,
        memory_slots=S,
        memory_width=W,
        heads=heads,
    )
    model = Ntm(config, VocabularySizes({"tgt": 11})).double().eval()
    for parameter in model.parameters():
        parameter.mul_(2.0).add_(0.5 * torch.randn_like(parameter))
    memory, read = np.full((S, W), EMPTY), np.zeros(heads * W)
    weights = [np.eye(S)[0] for _ in range(2 * heads)]
    hidden, cell = np.zeros((2, 1, 6))
    expected = []
    for word in [BOS, *TEXT]:
        top = np.concatenate([model.tgt_embedding.weight.numpy()[word], read])
        if controller == "lstm":
            for layer, weights_of_layer in enumerate(model.decoder.all_weights):
                of_input, of_hidden, *biases = (one.numpy() for one in weights_of_layer)
                gates = of_input @ top + of_hidden @ hidden[layer] + sum(biases)
                let_in, forget, new, out = np.split(gates, 4)
                cell[layer] = sigmoid(forget) * cell[layer] + sigmoid(let_in) * np.tanh(new)
                top = hidden[layer] = sigmoid(out) * np.tanh(cell[layer])
        else:
            top = np.tanh(linear(model.decoder, top))
        erases, adds, moves = np.split(
            linear(model.decoder_heads[0], top).reshape(heads, -1), [W, 2 * W], 1
        )
        moves = [*moves, *linear(model.decoder_heads[1], top).reshape(heads, -1)]
        before = memory
        for head in range(heads):
            weights[head] = head_by_hand(moves[head], weights[head], before, shift)
        for i in range(S):
            for head in range(heads):
                memory = memory.copy()
                memory[i] = memory[i] * (1 - weights[head][i] * sigmoid(erases[head]))
        for i in range(S):
            for head in range(heads):
                memory[i] = memory[i] + weights[head][i] * np.tanh(adds[head])
        found = []
        for head in range(heads, 2 * heads):
            weights[head] = head_by_hand(moves[head], weights[head], memory, shift)
            found.append(sum(weights[head][i] * memory[i] for i in range(S)))
        read = np.concatenate(found)
        features = linear(model.decoder_last, np.concatenate([top, read]))
        expected.append(np.log(softmax(linear(model.output, features))))
    np.testing.assert_allclose(
        model(Batch(targets=Targets.of_texts([TEXT])))[0], expected, atol=1e-12
    )


OFF, ON = -60.0, 60.0
"""What a sigmoid makes 0 or 1, and a softplus 0 or 60."""
HERE, ON_BY_ONE = [OFF, ON, OFF], [OFF, OFF, ON]
ROWS = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -4.0]]], dtype=torch.float64)
LAST, BOTH = [0.0, 0.0, 0.0, 1.0], [0.8, 0.2, 0.0, 0.0]
TWO = math.log(math.e - 1)
"""What 1 + softplus makes 2."""


@pytest.mark.parametrize(
    ("key", "beta", "g", "gamma", "shifts", "before", "after"),
    [
        # to the slot of this direction, whatever its length
        ([0, 5], ON, ON, OFF, HERE, LAST, [0, 1, 0, 0]),
        ([0, 5], OFF, ON, OFF, HERE, LAST, [0.25] * 4),  # without strength everywhere
        ([0, 5], ON, OFF, OFF, HERE, LAST, LAST),  # the gate is closed
        ([0, 5], ON, OFF, OFF, ON_BY_ONE, LAST, [1, 0, 0, 0]),  # round the ring
        ([0, 5], ON, OFF, OFF, ON_BY_ONE[::-1], LAST, [0, 0, 1, 0]),
        # to the slot behind the one that resembles the key
        ([0, 5], ON, ON, OFF, ON_BY_ONE, LAST, [0, 0, 1, 0]),
        ([0, 5], ON, 2.0, OFF, HERE, LAST, [0, 0.5, 0, 0.5]),
        ([0, 5], ON, OFF, TWO, HERE, BOTH, [0.64 / 0.68, 0.04 / 0.68, 0, 0]),  # sharper: squares
        ([0, 5], ON, OFF, OFF, [math.log(0.5), OFF, math.log(0.5)], BOTH, [0.1, 0.4, 0.1, 0.4]),
    ],
)
def test_a_head_moves_as_by_hand(
    key: list[float],
    beta: float,
    g: float,
    gamma: float,
    shifts: list[float],
    before: list[float],
    after: list[float],
) -> None:
    moves = torch.tensor(
        [[[*key, beta, g, gamma, *shifts]]], dtype=torch.float64, requires_grad=True
    )
    weights = move(torch.tensor([[before]], dtype=torch.float64), moves, ROWS)
    np.testing.assert_allclose(weights[0, 0].detach(), after, atol=1e-12)
    weights[0, 0, 1].backward()
    assert moves.grad is not None
    assert bool(moves.grad.isfinite().all())


def test_a_head_erases_and_adds_as_by_hand() -> None:
    """One head is on slot 0, the other half on slot 0 and half on slot 1."""
    slots = torch.tensor([[[8.0, 4.0], [2.0, 6.0]]])
    heads = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    erase = torch.tensor([[[ON, 0.0], [OFF, ON]]])  # 1 and 0.5, 0 and 1
    add = torch.tensor([[[ON, OFF], [0.0, ON]]])  # 1 and -1, 0 and 1
    # Slot 0: 8 * 0 * 1 + 1, 4 * 0.5 * 0.5 - 1 + 0.5. Slot 1: 2 * 1 * 1 + 0, 6 * 1 * 0.5 + 0.5.
    assert write(slots, heads, erase, add).tolist() == [[[1.0, 0.5], [2.0, 3.5]]]
