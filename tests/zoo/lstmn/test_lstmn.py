"""The LSTMN: its equations word by word in numpy, the LSTM that it can be, and where it looks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.rnn_lm import RnnLM, RnnLMConfig
from nmtkit.zoo.lstmn import language_model as file_of_lstmn
from nmtkit.zoo.lstmn import layers as file_of_layers
from nmtkit.zoo.lstmn.language_model import Lstmn, LstmnConfig
from tests.support.formulas import Array, linear, look_back, softmax

SIZES = VocabularySizes({"tgt": 11})
H = 5
TEXT = [7, 4, 7, 9, 4, 10]


def given(*texts: list[int]) -> Batch:
    return Batch(targets=Targets.of_texts(texts))


def lstmn(**settings: Any) -> Lstmn:
    """With weights of which every one shows."""
    torch.manual_seed(1)
    model = Lstmn(LstmnConfig(hidden_size=H, **{"dropout": 0.0, **settings}), SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def by_hand(
    model: Lstmn, words: list[int], recurrent: float = 1.0
) -> tuple[list[Array], list[list[Array]]]:
    """h_t of the top layer, and s of each word in each layer: section 3.2 of Cheng et al. 2016.

    `recurrent` is a factor on the h~ that the gates read.
    """
    inputs = [model.tgt_embedding.weight.detach().numpy()[word] for word in words]
    looks: list[list[Array]] = []
    for score, weights in zip(model.decoder_looks, model.decoder.all_weights, strict=True):
        tapes: list[tuple[Array, Array]] = []
        found, of_layer = np.zeros(H), []
        for x in inputs:
            shares, found = look_back(score, weights, x, tapes, found, recurrent)
            of_layer.append(shares)
        inputs = [hidden for hidden, _ in tapes]
        looks.append(of_layer)
    return inputs, looks


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_the_lstmn_is_its_equations(layers: int) -> None:
    model = lstmn(layers=layers)
    tops, looks = by_hand(model, [BOS, *TEXT])
    expected = [np.log(softmax(linear(model.output, top))) for top in tops]
    np.testing.assert_allclose(model(given(TEXT))[0], expected, atol=1e-12)
    shown = model.history_weights(given(TEXT, TEXT[:2]))
    assert shown.shape == (2, layers, len(TEXT) + 1, len(TEXT) + 1)
    assert not bool(shown.triu().any())
    for layer, of_layer in enumerate(looks):
        for row, shares in enumerate(of_layer):
            np.testing.assert_allclose(shown[0, layer, row, :row], shares, atol=1e-12)
            if row:
                assert float(shown[0, layer, row].sum()) == pytest.approx(1.0)
    # it looks here more than there
    assert max(float(np.ptp(shares)) for shares in looks[0][2:]) > 0.05


def only_the_last(energies: Tensor, visible: Tensor) -> Tensor:
    """All weight on the last slot that is seen; none where nothing is."""
    seen = visible.expand_as(energies).to(energies.dtype)
    return seen * (seen.flip(-1).cumsum(-1).flip(-1) == 1)


@torch.no_grad()
def test_with_all_weight_on_the_last_slot_it_is_the_lstm(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lstmn()
    plain = RnnLM(RnnLMConfig(hidden_size=H, dropout=0.0), SIZES).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    batch = given(TEXT, TEXT[:3])
    assert float((model(batch) - plain(batch))[batch.targets.mask].abs().max()) > 0.1
    monkeypatch.setattr(file_of_layers, "masked_softmax", only_the_last)
    torch.testing.assert_close(model(batch), plain(batch), rtol=0, atol=1e-12)
    memory = model.encode(batch)
    state, cache = model.start(memory), KVCache(2, 1, torch.device("cpu"))
    for place, words in enumerate(batch.targets.shifted.unbind(1)):
        output, state = model.advance(words, state, memory, cache)
        cache.next_step()
        torch.testing.assert_close(
            output.features, plain.unroll(batch, memory).features[:, place], rtol=0, atol=1e-12
        )


@torch.no_grad()
def test_recurrent_dropout_acts_on_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask that halves what the gates read of the tape, the layers are the equations with half of it."""
    model = lstmn(recurrent_dropout=0.5).train()
    monkeypatch.setattr(
        file_of_lstmn,
        "dropout",
        lambda states, rate, training: states * (0.5 if rate and training else 1.0),
    )
    batch = given(TEXT)
    found = model.unroll(batch, model.encode(batch)).features[0]
    np.testing.assert_allclose(found, by_hand(model, [BOS, *TEXT], recurrent=0.5)[0], atol=1e-12)


def test_a_word_reaches_later_ones_through_the_tapes_alone() -> None:
    """The gradient of a state to each earlier word, and to no later one."""
    model = lstmn()
    vectors = model.tgt_embedding(given(TEXT).targets.shifted).detach().requires_grad_()
    states, _ = model.decoder_looks[0].run(vectors, model.decoder.all_weights[0])
    for place in range(len(TEXT) + 1):
        (slope,) = torch.autograd.grad(states[0, place].sum(), vectors, retain_graph=True)
        assert slope[0].abs().sum(-1).gt(1e-9).tolist() == [
            other <= place for other in range(len(TEXT) + 1)
        ]
