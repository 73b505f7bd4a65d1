"""GNMT: the equations of the paper one number after the other, in numpy; what runs in one call; how weights begin."""

from functools import partial
from typing import Any

import numpy as np
import torch

from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from tests.support import small_models
from tests.support.formulas import Array, linear, recurrent_step, softmax
from tests.support.small_models import batch_of
from tests.support.step_by_step import told

build = partial(small_models.build, "gnmt")
SOURCE, TARGET, HIDDEN = [4, 9, 6, 11], [7, 5, 10], 4


def run(layer: Any, inputs: list[Array]) -> list[Array]:
    """The hidden states of one layer over a sentence, from zero."""
    hidden, cell, states = np.zeros(HIDDEN), np.zeros(HIDDEN), []
    for one in inputs:
        hidden, cell = recurrent_step(layer, one, hidden, cell)
        states.append(hidden)
    return states


def encoded(model: Any, ids: list[int]) -> Array:
    """Figure 3, and residual connections from the third layer on: `(S,H)`."""
    ahead, back = model.encoder.forward_layers, model.encoder.backward_layers
    assert (len(ahead), len(back)) == (4, 1)
    words = [*model.src_embedding.weight.numpy()[ids]]
    states = [
        *map(
            np.concatenate, zip(run(ahead[0], words), run(back[0], words[::-1])[::-1], strict=True)
        )
    ]
    for number, layer in enumerate(ahead[1:], start=2):
        answers = run(layer, states)
        states = (
            answers
            if number == 2
            else [one + other for one, other in zip(answers, states, strict=True)]
        )
    return np.array(states)


def decoded(model: Any, memory: Array, ids: list[int]) -> tuple[Array, Array]:
    """Log-probabilities `(T,V)` and weights `(T,S)`: equations 4 to 6, all layers of a word before the next word."""
    score = model.attention.score
    W, v = score.query.weight.numpy(), score.energy.numpy()
    before = [(np.zeros(HIDDEN), np.zeros(HIDDEN)) for _ in model.decoder]
    rows, looks = [], []
    for word in model.tgt_embedding.weight.numpy()[ids]:
        y = before[0][0]
        looks.append(softmax(np.array([v @ np.tanh(W @ y + linear(score.key, x)) for x in memory])))
        context = looks[-1] @ memory
        x = word
        for number, layer in enumerate(model.decoder):
            before[number] = recurrent_step(layer, np.concatenate([x, context]), *before[number])
            x = before[number][0] + (x if number >= 2 else 0)
        rows.append(np.log(softmax(linear(model.output, x))))
    return np.array(rows), np.array(looks)


@torch.no_grad()
def test_the_equations_of_the_paper() -> None:
    model = build(noise=0.5, scale=3.0)
    batch = batch_of([SOURCE, SOURCE[:2]], [TARGET, TARGET])
    memory = encoded(model, [*SOURCE, EOS])
    np.testing.assert_allclose(model.encode(batch).values[0].numpy(), memory, atol=1e-12)
    found = told(model, batch)
    log_probs, looks = decoded(model, memory, [BOS, *TARGET])
    np.testing.assert_allclose(found.log_probs[0].numpy(), log_probs, atol=1e-12)
    np.testing.assert_allclose(found.attention[0].numpy(), looks, atol=1e-12)
    assert np.ptp(looks, axis=0).max() > 0.01


@torch.no_grad()
def test_only_the_bottom_layer_reads_word_by_word() -> None:
    model, calls = build(), []
    for number, layer in enumerate(model.decoder):
        layer.register_forward_hook(
            lambda own, inputs, output, at=number: calls.append((at, inputs[0].shape[1]))
        )
    model(batch_of([SOURCE], [TARGET]))
    assert calls == [(number, len(TARGET) + 1) for number in (1, 2, 3)]


@torch.no_grad()
def test_dropout_is_before_the_output_words_too() -> None:
    model = build(dropout=0.5).train()
    features = model.unroll(batch := batch_of([SOURCE], [TARGET]), model.encode(batch)).features
    assert 0 < int((features == 0).sum()) < features.numel()


def test_the_initialisation_of_the_paper() -> None:
    model = build(initialisation="paper", hidden_size=32)
    for name, weight in model.named_parameters():
        assert 0.03 < float(weight.detach().abs().max()) <= 0.04, name
