"""The pointer sentinel: its equations word by word in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.rnn_lm import RnnLM, RnnLMConfig
from nmtkit.zoo.pointer_sentinel import PointerSentinel, PointerSentinelConfig
from tests.support.formulas import Array, linear, lstm_states, softmax

SIZES = VocabularySizes({"tgt": 11})
H = 5
TEXT = [7, 4, 7, 9, 4, 7, 7, 10]


def given(*texts: list[int]) -> Batch:
    return Batch(targets=Targets.of_texts(texts))


def pointer(window: int) -> Any:
    """With weights of which every one shows."""
    torch.manual_seed(1)
    config = PointerSentinelConfig(hidden_size=H, window=window, dropout=0.0)
    model = PointerSentinel(config, SIZES)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def log_probs(model: Any) -> Array:
    with torch.no_grad():
        return np.asarray(model(given(TEXT))[0])


@pytest.mark.parametrize("window", [1, 3, 100])
def test_the_pointer_sentinel_is_its_equations(window: int) -> None:
    model, words = pointer(window), [BOS, *TEXT]
    tops = lstm_states(model, words)
    for now, top in enumerate(tops):
        query = np.tanh(linear(model.query, top))
        places = [
            place for place in range(max(0, now - window + 1), now + 1) if words[place] != BOS
        ]
        weights = softmax(
            np.array(
                [
                    *(query @ tops[place] for place in places),
                    query @ model.sentinel.detach().numpy(),
                ]
            )
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
    model = PointerSentinel(
        PointerSentinelConfig(hidden_size=24, layers=1, window=4, dropout=0.0), sizes
    )
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
