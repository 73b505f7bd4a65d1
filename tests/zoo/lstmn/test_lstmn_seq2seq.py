"""The LSTMN as encoder and decoder: its equations one number after the other, in numpy, and the LSTM that it can be."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.zoo.lstmn import layers as file_of_layers
from tests.support import small_models
from tests.support.formulas import Array, linear, look_back, softmax
from tests.support.small_models import batch_of
from tests.support.step_by_step import told

build = partial(small_models.build, "lstmn_seq2seq")
SOURCE, TARGET, HIDDEN = [4, 9, 6, 11], [7, 5, 10], 4


def encoded(model: Any, ids: list[int]) -> Array:
    """The top layer's states `(S,H)`."""
    states = [*model.src_embedding.weight.numpy()[ids]]
    for look, weights in zip(model.encoder_looks, model.encoder.all_weights, strict=True):
        tapes: list[tuple[Array, Array]] = []
        found = np.zeros(HIDDEN)
        for x in states:
            _, found = look_back(look, weights, x, tapes, found)
        states = [hidden for hidden, _ in tapes]
    return np.array(states)


def decoded(model: Any, memory: Array, ids: list[int]) -> tuple[Array, Array]:
    """Log-probabilities `(T,V)` and weights `(T,S)`, all layers of a word before the next word."""
    score = model.attention.score
    of_query, u = score.query.weight.numpy(), score.energy.numpy()
    layers = [*zip(model.decoder_looks, model.decoder.all_weights, strict=True)]
    tapes: list[list[tuple[Array, Array]]] = [[] for _ in layers]
    found, x = [np.zeros(HIDDEN) for _ in layers], np.zeros(HIDDEN)
    rows, looks = [], []
    for word in model.tgt_embedding.weight.numpy()[ids]:
        looks.append(
            softmax(
                np.array([u @ np.tanh(of_query @ x + linear(score.key, state)) for state in memory])
            )
        )
        x = np.concatenate([word, looks[-1] @ memory])
        for number, (look, weights) in enumerate(layers):
            _, found[number] = look_back(look, weights, x, tapes[number], found[number])
            x = tapes[number][-1][0]
        rows.append(np.log(softmax(linear(model.output, x))))
    return np.array(rows), np.array(looks)


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_the_equations_of_the_paper(layers: int) -> None:
    model = build(noise=0.5, scale=3.0, layers=layers)
    batch = batch_of([SOURCE[:2], SOURCE], [TARGET[:1], TARGET])
    found = told(model, batch)
    memory = encoded(model, [*SOURCE, EOS])
    np.testing.assert_allclose(model.encode(batch).values[1].numpy(), memory, atol=1e-12)
    log_probs, looks = decoded(model, memory, [BOS, *TARGET])
    np.testing.assert_allclose(found.log_probs[1].numpy(), log_probs, atol=1e-12)
    np.testing.assert_allclose(found.attention[1].numpy(), looks, atol=1e-12)
    assert np.ptp(looks, axis=0).max() > 0.01


def only_the_last(energies: Tensor, visible: Tensor) -> Tensor:
    """All weight on the last slot that is seen; none where nothing is."""
    seen = visible.expand_as(energies).to(energies.dtype)
    return seen * (seen.flip(-1).cumsum(-1).flip(-1) == 1)


@torch.no_grad()
def test_with_all_weight_on_the_last_slot_both_sides_are_lstms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = build(noise=0.5, layers=2), batch_of([SOURCE, SOURCE[:2]], [TARGET, TARGET[:1]])
    monkeypatch.setattr(file_of_layers, "masked_softmax", only_the_last)
    memory = model.encode(batch)
    states, _ = model.encoder(model.src_embedding(batch.inputs.ids))
    torch.testing.assert_close(memory.values, states, rtol=0, atol=1e-12)
    output = model.unroll(batch, memory)
    words = model.tgt_embedding(batch.targets.shifted)
    tops, _ = model.decoder(torch.cat([words, output.attention @ memory.values], 2))
    torch.testing.assert_close(output.features, tops, rtol=0, atol=1e-12)
