"""Formulas of the field in plain numpy and float64, for tests that compare layers and models with them."""

import math

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(energies: Array) -> Array:
    raised = np.exp(energies - energies.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def linear(layer: nn.Linear, states: Array) -> Array:
    return states @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def layer_norm(layer: nn.LayerNorm, states: Array) -> Array:
    centred = states - states.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def multi_head(query: Array, keys: Array, values: Array, heads: int, allowed: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Vaswani et al. 2017, section 3.2.2, over one sentence, head by head: contexts `(Q,H)` and weights `(A,Q,S)`."""
    width = query.shape[-1] // heads
    contexts, weights = [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        energies = query[:, part] @ keys[:, part].T / math.sqrt(width)
        weights.append(softmax(np.where(allowed, energies, -np.inf)))
        contexts.append(weights[-1] @ values[:, part])
    return np.concatenate(contexts, -1), np.stack(weights)
