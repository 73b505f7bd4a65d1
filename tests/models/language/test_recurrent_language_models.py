"""The LSTM language model and the pointer sentinel: their equations word by word in numpy, and their dropout."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from formulas import Array, linear, sigmoid, softmax
from torch import Tensor

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language import rnn_lm
from nmtkit.models.language.pointer_sentinel import PointerSentinel, PointerSentinelConfig
from nmtkit.models.language.rnn_lm import RnnLM, RnnLMConfig

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


def pointer(window: int, **settings: Any) -> PointerSentinel:
    torch.manual_seed(1)
    config = PointerSentinelConfig(hidden_size=H, window=window, **{"dropout": 0.0, **settings})
    return enlarged(PointerSentinel(config, SIZES))


def states_by_hand(model: RnnLM, words: list[int], recurrent: float = 1.0) -> list[Array]:
    """h^L after each word (Zaremba et al. 2014, section 3); `recurrent` is a factor on the h_{t-1} that is read."""
    layers = [[one.detach().numpy() for one in weights] for weights in model.decoder.all_weights]
    hidden, cells = [np.zeros((2, H)) for _ in range(2)]
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


def log_probs(model: RnnLM) -> Array:
    with torch.no_grad():
        return np.asarray(model(given(TEXT))[0])


@pytest.mark.parametrize("tie", ["none", "decoder"])
def test_the_lstm_language_model_is_its_equations(tie: str) -> None:
    model = lstm_lm(tie=tie)
    expected = [np.log(softmax(linear(model.output, top))) for top in states_by_hand(model, [BOS, *TEXT])]
    np.testing.assert_allclose(log_probs(model), expected, atol=1e-12)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_the_pointer_sentinel_is_its_equations(window: int) -> None:
    model, words = pointer(window), [BOS, *TEXT]
    tops = states_by_hand(model, words)
    for now, top in enumerate(tops):
        query = np.tanh(linear(model.query, top))
        places = [place for place in range(max(0, now - window + 1), now + 1) if words[place] != BOS]
        weights = softmax(
            np.array([*(query @ tops[place] for place in places), query @ model.sentinel.detach().numpy()])
        )
        by_word = weights[-1] * softmax(linear(model.output, top))
        for place, weight in zip(places, weights, strict=False):
            by_word[words[place]] += weight
        np.testing.assert_allclose(log_probs(model)[now], np.log(by_word), atol=1e-12)


def test_where_the_sentinel_takes_all_it_is_the_lstm_language_model() -> None:
    model = pointer(4)
    plain = RnnLM(RnnLMConfig(hidden_size=H, dropout=0.0), SIZES).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    plain.output.weight = plain.tgt_embedding.weight
    assert np.abs(log_probs(model) - log_probs(plain)).max() > 0.1
    with torch.no_grad():
        model.query.weight.zero_()
        model.query.bias.fill_(5.0)
        model.sentinel.fill_(1000.0)
    np.testing.assert_allclose(log_probs(model), log_probs(plain), atol=1e-12)


@pytest.mark.slow
def test_a_repeated_word_is_learned_by_pointing() -> None:
    """Words that never came before in training are repeated by pointing alone: a text is one new word, said again."""
    torch.manual_seed(2)
    sizes = VocabularySizes({"tgt": 60})
    model = PointerSentinel(PointerSentinelConfig(hidden_size=24, layers=1, window=4, dropout=0.0), sizes)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(90):
        rows = torch.randint(4, 40, (32, 1)).expand(-1, 3)
        batch = Batch(targets=Targets.of_texts(rows.tolist()))
        loss = -model(batch).gather(2, batch.targets.ids[..., None])[:, 1:3].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        unseen = [[word] * 3 for word in range(40, 60)]
        assert model.eval()(given(*unseen))[:, 1].argmax(-1).tolist() == [row[0] for row in unseen]


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


def test_recurrent_dropout_acts_on_the_state_of_the_word_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask that halves the state, the layers are those of the equations with half the state."""
    model = lstm_lm(recurrent_dropout=0.5).train()
    batch = given(TEXT)

    def halve(states: Tensor, rate: float, training: bool) -> Tensor:
        return states * 0.5 if rate else states

    monkeypatch.setattr(rnn_lm, "dropout", halve)
    with torch.no_grad():
        states = model.unroll(batch, model.encode(batch)).features[0]
    np.testing.assert_allclose(states.numpy(), states_by_hand(model, [BOS, *TEXT], recurrent=0.5), atol=1e-12)


def test_a_dropped_word_is_dropped_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a word that is kept is larger by 1 / (1 - rate)."""
    model = lstm_lm(word_dropout=0.5).train()
    seen: dict[int, set[float]] = defaultdict(set)
    entered: list[Tensor] = []
    monkeypatch.setattr(model, "_layer", lambda inputs, *weights: entered.append(inputs) or inputs)
    batch = given(TEXT, TEXT[::-1])
    model.unroll(batch, model.encode(batch))
    words = batch.targets.shifted
    factors = (entered[0] / model.tgt_embedding(words)).mean(-1)
    for word, factor in zip(words.flatten().tolist(), factors.flatten().tolist(), strict=True):
        seen[word].add(round(factor, 6))
    assert all(len(several) == 1 for several in seen.values())
    assert set.union(*seen.values()) == {0.0, 2.0}
