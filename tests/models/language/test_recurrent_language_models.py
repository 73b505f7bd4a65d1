"""The LSTM language model: its equations word by word in numpy, and its dropout."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language import rnn_lm
from nmtkit.models.language.rnn_lm import RnnLM, RnnLMConfig
from tests.support.formulas import Array, linear, lstm_states, softmax

SIZES = VocabularySizes({"tgt": 11})
H = 5
TEXT = [7, 4, 7, 9, 4, 7, 7, 10]


def given(*texts: list[int]) -> Batch:
    return Batch(targets=Targets.of_texts(texts))


def enlarged(model: Any) -> Any:
    """With weights of which every one shows."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def lstm_lm(**settings: Any) -> RnnLM:
    torch.manual_seed(1)
    return enlarged(RnnLM(RnnLMConfig(hidden_size=H, **{"dropout": 0.0, **settings}), SIZES))


def log_probs(model: RnnLM) -> Array:
    with torch.no_grad():
        return np.asarray(model(given(TEXT))[0])


@pytest.mark.parametrize("tie", ["none", "decoder"])
def test_the_lstm_language_model_is_its_equations(tie: str) -> None:
    model = lstm_lm(tie=tie)
    expected = [
        np.log(softmax(linear(model.output, top))) for top in lstm_states(model, [BOS, *TEXT])
    ]
    np.testing.assert_allclose(log_probs(model), expected, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- dropout


def dropped(states: Tensor) -> Tensor:
    return states == 0


@pytest.mark.parametrize("variational", [True, False])
def test_dropout_is_drawn_once_a_text_or_for_each_word(variational: bool) -> None:
    model = lstm_lm(dropout=0.5, variational=variational).train()
    batch = given(TEXT, TEXT[::-1])
    torch.manual_seed(0)
    zeros = dropped(model.unroll(batch, model.encode(batch)).features)  # (B,T,H)
    assert bool((zeros == zeros[:, :1]).all()) == variational
    assert not torch.equal(zeros[0], zeros[1])
    assert 0.2 < float(zeros.double().mean()) < 0.8


def test_recurrent_dropout_acts_on_the_state_of_the_word_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a mask that halves the state, the layers are those of the equations with half the state."""
    model = lstm_lm(recurrent_dropout=0.5).train()
    batch = given(TEXT)

    def halve(states: Tensor, rate: float, training: bool) -> Tensor:
        return states * 0.5 if rate else states

    monkeypatch.setattr(rnn_lm, "dropout", halve)
    with torch.no_grad():
        states = model.unroll(batch, model.encode(batch)).features[0]
    np.testing.assert_allclose(
        states.numpy(), lstm_states(model, [BOS, *TEXT], recurrent=0.5), atol=1e-12
    )


def test_a_dropped_word_is_dropped_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a word that is kept is larger by 1 / (1 - rate)."""
    model = lstm_lm(word_dropout=0.5).train()
    seen: dict[int, set[float]] = defaultdict(set)
    entered: list[Tensor] = []
    monkeypatch.setattr(
        model, "_run_layer", lambda inputs, *weights, **_: entered.append(inputs) or inputs
    )
    batch = given(TEXT, TEXT[::-1])
    model.unroll(batch, model.encode(batch))
    words = batch.targets.shifted
    factors = (entered[0] / model.tgt_embedding(words)).mean(-1)
    for word, factor in zip(words.flatten().tolist(), factors.flatten().tolist(), strict=True):
        seen[word].add(round(factor, 6))
    assert all(len(several) == 1 for several in seen.values())
    assert set.union(*seen.values()) == {0.0, 2.0}
