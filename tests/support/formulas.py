"""Formulas of the field in plain numpy and float64, for tests that compare layers and models with them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(energies: Array) -> Array:
    raised = np.exp(energies - energies.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def recurrent_step(layer: nn.Module, x: Array, hidden: Array, kept: Array) -> tuple[Array, Array]:
    """Hidden state and memory cell after one step of a GRU or LSTM; the GRU resets after the recurrent product.

    A GRU has no memory cell: `kept` comes back as it is.
    """
    from_x, from_hidden, x_bias, hidden_bias = map(np.asarray, layer.state_dict().values())
    of_x, of_hidden = from_x @ x + x_bias, from_hidden @ hidden + hidden_bias
    if len(of_x) == 3 * len(hidden):
        (reset, keep, new), (own_reset, own_keep, own_new) = (
            np.split(of_x, 3),
            np.split(of_hidden, 3),
        )
        keep = sigmoid(keep + own_keep)
        return (1 - keep) * np.tanh(
            new + sigmoid(reset + own_reset) * own_new
        ) + keep * hidden, kept
    let_in, forget, new, out = np.split(of_x + of_hidden, 4)
    kept = sigmoid(forget) * kept + sigmoid(let_in) * np.tanh(new)
    return sigmoid(out) * np.tanh(kept), kept


def lstm_states(model: Any, words: Sequence[int], recurrent: float = 1.0) -> list[Array]:
    """The top layer's h after each word of an LSTM language model (Zaremba et al. 2014, section 3).

    `recurrent` is a factor on the h of the word before.
    """
    layers = [[one.detach().numpy() for one in weights] for weights in model.decoder.all_weights]
    size = model.decoder.hidden_size
    hidden = [np.zeros(size) for _ in layers]
    cells = [np.zeros(size) for _ in layers]
    tops = []
    for word in words:
        below = model.tgt_embedding.weight.detach().numpy()[word]
        for number, (of_input, of_hidden, *biases) in enumerate(layers):
            gates = of_input @ below + of_hidden @ (recurrent * hidden[number]) + sum(biases)
            let_in, forget, new, out = np.split(gates, 4)
            cells[number] = sigmoid(forget) * cells[number] + sigmoid(let_in) * np.tanh(new)
            below = hidden[number] = sigmoid(out) * np.tanh(cells[number])
        tops.append(below.copy())
    return tops


def look_back(
    score: nn.Module,
    weights: Sequence[Tensor],
    x: Array,
    tapes: list[tuple[Array, Array]],
    found: Array,
    share: float = 1.0,
) -> tuple[Array, Array]:
    """A step of an LSTMN's layer: s of the words before, and h~. Puts h and c on the tapes.

    Cheng et al. 2016, section 3.2; `found` is h~ of the word before, `share` a factor on the h~ that the gates read.
    """
    own = {name: weight.numpy() for name, weight in score.state_dict().items()}
    of_inputs, of_hidden, *biases = (one.detach().numpy() for one in weights)
    asked = own["query.weight"] @ np.concatenate([x, found])
    energies = [
        own["energy"] @ np.tanh(own["key.weight"] @ h + own["key.bias"] + asked) for h, _ in tapes
    ]
    shares = softmax(np.array(energies)) if tapes else np.zeros(0)
    hidden, kept = (
        sum((s * tape[side] for s, tape in zip(shares, tapes, strict=True)), 0 * found)
        for side in (0, 1)
    )
    let_in, forget, new, out = np.split(
        of_inputs @ x + of_hidden @ (share * hidden) + sum(biases), 4
    )
    cell = sigmoid(forget) * kept + sigmoid(let_in) * np.tanh(new)
    tapes.append((sigmoid(out) * np.tanh(cell), cell))
    return shares, hidden


def linear(layer: nn.Linear, states: Array) -> Array:
    return states @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def layer_norm(layer: nn.LayerNorm, states: Array) -> Array:
    centred = states - states.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def multi_head(
    query: Array, keys: Array, values: Array, heads: int, allowed: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Vaswani et al. 2017, section 3.2.2, over one sentence, head by head: contexts `(Q,H)` and weights `(A,Q,S)`."""
    width = query.shape[-1] // heads
    contexts, weights = [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        energies = query[:, part] @ keys[:, part].T / math.sqrt(width)
        weights.append(softmax(np.where(allowed, energies, -np.inf)))
        contexts.append(weights[-1] @ values[:, part])
    return np.concatenate(contexts, -1), np.stack(weights)
