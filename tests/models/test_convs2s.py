"""ConvS2S: its equations one number after the other in numpy, what its layers can see, and how its weights begin."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.layers.elementary import dropout
from nmtkit.models import convs2s
from tests.support.formulas import Array, linear, sigmoid, softmax
from tests.support.small_models import batch_of, build

SOURCE, TARGET = [5, 7, 4, 9, 6, 8, 11], [7, 4, 4, 10, 6]


def numbers(tensor: torch.Tensor) -> Array:
    return tensor.detach().numpy()


def entered(model: Any, side: str, words: list[int]) -> list[Array]:
    """w_j + p_j: section 3.1."""
    vectors, places = (
        numbers(model.embedding(side).weight),
        numbers(getattr(model, f"{side}_positions").table),
    )
    return [vectors[word] + places[place] for place, word in enumerate(words)]


def convolved(layer: Any, states: list[Array], first: int, last: int) -> list[Array]:
    """`(v(W [h; ...; h] + b) + h) sqrt(1/2)`: each state sees those from `first` to `last` places beside it."""
    width, found = len(states[0]), []
    for place, own in enumerate(states):
        seen = [
            states[place + offset] if 0 <= place + offset < len(states) else np.zeros(width)
            for offset in range(first, last + 1)
        ]
        both = linear(layer.map, np.concatenate(seen))
        found.append(
            np.array(
                [(both[i] * sigmoid(both[width + i]) + own[i]) / math.sqrt(2) for i in range(width)]
            )
        )
    return found


def by_hand(model: Any, source: list[int], target: list[int], kernel: int) -> tuple[Array, Array]:
    """Log-probabilities `(T,V)` and the mean attention `(T,S)`: sections 3.1 to 3.4 of Gehring et al. 2017."""
    read = entered(model, "src", [*source, EOS])
    states = [linear(model.src_map, e) for e in read]
    for layer in model.encoder:
        states = convolved(layer, states, -(kernel // 2), kernel // 2)
    z = [linear(model.encoder_map, h) for h in states]
    written = entered(model, "tgt", [BOS, *target])
    states = [linear(model.tgt_map, g) for g in written]
    looks = np.zeros((len(model.decoder), len(written), len(z)))
    for number, layer in enumerate(model.decoder):
        states = convolved(layer, states, 1 - kernel, 0)
        for place, (h, g) in enumerate(zip(states, written, strict=True)):
            d = (linear(layer.query, h) + g) / math.sqrt(2)
            looks[number, place] = softmax(np.array([d @ z_j for z_j in z]))
            c = sum(
                a * (z_j + e_j) / math.sqrt(2)
                for a, z_j, e_j in zip(looks[number, place], z, read, strict=True)
            )
            states[place] = (h + linear(layer.context, math.sqrt(len(z)) * c)) / math.sqrt(2)
    features = [linear(model.decoder_map, h) for h in states]
    return np.array([np.log(softmax(linear(model.output, one))) for one in features]), looks.mean(0)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_it_is_its_equations(kernel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convs2s, "KERNEL_SIZE", kernel)
    model = build("convs2s", noise=0.3)
    batch = batch_of([SOURCE, SOURCE[:2]], [TARGET, TARGET[:1]])
    output, memory = model.read(batch, need_attention=True)
    for row, (source, target) in enumerate([(SOURCE, TARGET), (SOURCE[:2], TARGET[:1])]):
        log_probs, looks = by_hand(model, source, target, kernel)
        places, columns = len(target) + 1, len(source) + 1
        np.testing.assert_allclose(
            model.predict(output, memory)[row, :places], log_probs, atol=1e-12
        )
        np.testing.assert_allclose(output.attention[row, :places, :columns], looks, atol=1e-12)
        assert not bool(output.attention[row, :places, columns:].any())


@pytest.mark.parametrize(("kernel", "layers"), [(3, 1), (3, 2), (5, 2), (1, 3)])
def test_what_is_seen_counted_by_gradients(
    kernel: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer of the encoder adds k // 2 words on either side, each of the decoder k - 1 words before."""
    monkeypatch.setattr(convs2s, "KERNEL_SIZE", kernel)
    model = build("convs2s", noise=0.3, encoder_layers=layers, decoder_layers=layers)
    batch = batch_of([[4, 5] * 8], [[6, 7] * 8])
    side, behind = layers * (kernel // 2), layers * (kernel - 1)
    memory = model.encode(batch)
    for place in (0, 8, 16):
        (slope,) = torch.autograd.grad(
            memory.keys[0, place].sum(), model.src_positions.table, retain_graph=True
        )
        seen = slope.abs().sum(1).gt(1e-12).nonzero().flatten().tolist()
        assert seen == list(range(max(0, place - side), min(16, place + side) + 1))
    features = model.unroll(batch, memory).features
    for place in (0, 8, 16):
        (slope,) = torch.autograd.grad(
            features[0, place].sum(), model.tgt_positions.table, retain_graph=True
        )
        seen = slope.abs().sum(1).gt(1e-12).nonzero().flatten().tolist()
        assert seen == list(range(max(0, place - behind), place + 1))


def test_the_encoder_learns_a_part_from_each_layer_of_the_decoder() -> None:
    """The gradient of its weights is that of the equations divided by the decoder's layers, the rest is whole."""
    model = build("convs2s", noise=0.3, decoder_layers=2)
    batch = batch_of([SOURCE], [TARGET])
    wanted = batch.targets.ids[..., None]

    def loss() -> torch.Tensor:
        return -model(batch).gather(2, wanted).sum()

    loss().backward()
    with torch.no_grad():
        for weight, share in (
            (model.encoder[0].map.weight, 0.5),
            (model.encoder_map.weight, 0.5),
            (model.decoder[0].map.weight, 1.0),
            (model.decoder[1].query.weight, 1.0),
        ):
            step = 1e-6
            weight[1, 2] += step
            above = loss()
            weight[1, 2] -= 2 * step
            below = loss()
            weight[1, 2] += step
            slope = float(above - below) / (2 * step)
            assert abs(slope) > 1e-4
            assert float(weight.grad[1, 2]) == pytest.approx(share * slope, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_states_vary_as_much_behind_the_layers_as_before_them(rate: float) -> None:
    """The aim of section 3.5, with dropout too; of small states, whose gates are near a half (appendix A.1)."""
    model = build("convs2s", embedding_size=128, hidden_size=128, encoder_layers=10, dropout=rate)
    torch.manual_seed(1)
    states = 0.1 * torch.randn(4, 30, 128, dtype=torch.float64)
    for layer in model.encoder:
        windows = torch.cat(
            [dropout(states.roll(offset, 1), rate, True) for offset in (1, 0, -1)], -1
        )
        states = layer(windows, states)
        assert 0.7 < float(states.var()) / 0.01 < 1.4


def test_layers_sets_the_layers_of_both_sides() -> None:
    config = parse(convs2s.ConvS2SConfig, {"kind": "convs2s", "layers": 2}, "test")
    assert (config.encoder_layers, config.decoder_layers) == (2, 2)
    with pytest.raises(
        RecipeError,
        match="`layers` sets encoder_layers and decoder_layers; remove decoder_layers or",
    ):
        parse(convs2s.ConvS2SConfig, {"kind": "convs2s", "layers": 2, "decoder_layers": 3}, "test")
