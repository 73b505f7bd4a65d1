"""The Transformer's parts against the paper's formulas, written out with numpy in float64."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtkit.core.errors import DataError
from nmtkit.layers.elementary import Dropout, dropout
from nmtkit.layers.transformer import (
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerConfig,
    LearnedPositions,
    Residual,
    SelfAttention,
    SinusoidalPositions,
    attend,
    attention_weights,
    sinusoids,
)

Array = NDArray[np.float64]


@pytest.fixture(params=["highest", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to attend on a CPU: fused, and written out."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def np_softmax(energies: Array) -> Array:
    raised = np.exp(energies - energies.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def np_heads(query: Array, keys: Array, values: Array, heads: int, allowed: NDArray[np.bool_]) -> tuple[Array, Array]:
    """MultiHead of section 3.2.2 over one sentence, head by head: contexts (Q,H) and weights (A,Q,S)."""
    width = query.shape[-1] // heads
    contexts, weights = [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        energies = query[:, part] @ keys[:, part].T / math.sqrt(width)
        weights.append(np_softmax(np.where(allowed, energies, -np.inf)))
        contexts.append(weights[-1] @ values[:, part])
    return np.concatenate(contexts, -1), np.stack(weights)


def np_linear(layer: nn.Linear, states: Array) -> Array:
    return np.asarray(states @ layer.weight.detach().numpy().T + layer.bias.detach().numpy())


def np_norm(states: Array, layer: nn.LayerNorm) -> Array:
    centred = states - states.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
    return np.asarray(scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy())


def scramble(module: nn.Module) -> nn.Module:
    """Float64 and every parameter random, so that a forgotten bias or gain shows."""
    module.double()
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        parameter.data.normal_(generator=generator)
    return module.eval()


def test_attention_by_hand(precision: str) -> None:
    # Energies of the one query: (1*2 + 1*0)/sqrt(2) = sqrt 2 and (1*0 + 1*2)/sqrt(2) = sqrt 2; equal, so 1/2 each.
    query = torch.tensor([[[[1.0, 1.0]]]], dtype=torch.float64)
    keys = torch.tensor([[[[2.0, 0.0], [0.0, 2.0]]]], dtype=torch.float64)
    values = torch.tensor([[[[4.0, 0.0], [0.0, 8.0]]]], dtype=torch.float64)
    assert attention_weights(query, keys, None).tolist() == [[[[0.5, 0.5]]]]
    assert torch.allclose(attend(query, keys, values), torch.tensor([2.0, 4.0], dtype=torch.float64))
    # Keys of energies ln 3 and 0 get the weights 3/4 and 1/4.
    keys = torch.tensor([[[[math.sqrt(2) * math.log(3), 0.0], [0.0, 0.0]]]], dtype=torch.float64)
    assert torch.allclose(attend(query, keys, values), torch.tensor([3.0, 2.0], dtype=torch.float64))
    mask = torch.tensor([[[[False, True]]]])
    assert torch.allclose(attend(query, keys, values, mask), torch.tensor([0.0, 8.0], dtype=torch.float64))


def test_causal_attention_reads_only_the_past(precision: str) -> None:
    query, keys, values = (random_tensor(2, 3, 5, 4, seed=seed) for seed in range(3))
    context = attend(query, keys, values, causal=True)
    for last in range(5):
        seen = attend(query[:, :, : last + 1], keys[:, :, : last + 1], values[:, :, : last + 1])
        assert torch.allclose(context[:, :, last], seen[:, :, last], atol=1e-12)


def test_self_attention_is_the_papers_multi_head(precision: str) -> None:
    layer = scramble(SelfAttention(6, 2, 0.0))
    assert isinstance(layer, SelfAttention)
    states = random_tensor(2, 4, 6)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    found = layer(states, mask[:, None, None, :])
    causal = layer(states, causal=True)
    looks = layer.weights(states, mask[:, None, None, :])
    causal_looks = layer.weights(states, causal=True)
    for row in range(2):
        query, keys, values = np.split(np_linear(layer.query_keys_values, states[row].numpy()), 3, axis=-1)
        context, weights = np_heads(query, keys, values, 2, np.broadcast_to(mask[row].numpy(), (4, 4)))
        np.testing.assert_allclose(found[row].detach().numpy(), np_linear(layer.out, context), atol=1e-10)
        np.testing.assert_allclose(looks[row].detach().numpy(), weights, atol=1e-12)
        context, weights = np_heads(query, keys, values, 2, np.tri(4, dtype=bool))
        np.testing.assert_allclose(causal[row].detach().numpy(), np_linear(layer.out, context), atol=1e-10)
        np.testing.assert_allclose(causal_looks[row].detach().numpy(), weights, atol=1e-12)


def test_cross_attention_is_the_papers_multi_head(precision: str) -> None:
    layer = scramble(CrossAttention(6, 3, 0.0))
    assert isinstance(layer, CrossAttention)
    states, memory = random_tensor(2, 4, 6), random_tensor(2, 5, 6, seed=1)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    keys, values = layer.project(memory)
    found, weights = layer(states, keys, values, mask[:, None, None, :], shown=slice(None))
    some, second = layer(states, keys, values, mask[:, None, None, :], shown=slice(1, 2))
    plain, none = layer(states, keys, values, mask[:, None, None, :])
    assert none is None
    assert torch.equal(plain, found)
    assert torch.equal(plain, some)
    assert torch.equal(second, weights[:, 1:2])
    for row in range(2):
        query = np_linear(layer.query, states[row].numpy())
        packed = np_linear(layer.keys_values, memory[row].numpy())
        context, by_head = np_heads(query, packed[:, :6], packed[:, 6:], 3, np.broadcast_to(mask[row].numpy(), (4, 5)))
        np.testing.assert_allclose(found[row].detach().numpy(), np_linear(layer.out, context), atol=1e-10)
        np.testing.assert_allclose(weights[row].detach().numpy(), by_head, atol=1e-12)


def test_feed_forward_is_equation_2() -> None:
    layer = scramble(FeedForward(3, 5, "relu", 0.0))
    assert isinstance(layer, FeedForward)
    states = random_tensor(2, 4, 3)
    expected = np_linear(layer.out, np.maximum(0.0, np_linear(layer.inner, states.numpy())))
    np.testing.assert_allclose(layer(states).detach().numpy(), expected, atol=1e-12)
    layer.activation = "gelu"
    inner = np_linear(layer.inner, states.numpy())
    gelu = inner * np.vectorize(lambda x: 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))))(inner)
    np.testing.assert_allclose(layer(states).detach().numpy(), np_linear(layer.out, gelu), atol=1e-12)
    layer.activation = "silu"
    silu = inner / (1.0 + np.exp(-inner))
    np.testing.assert_allclose(layer(states).detach().numpy(), np_linear(layer.out, silu), atol=1e-12)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_by_the_formula(width: int) -> None:
    table = sinusoids(40, width)
    assert table.shape == (40, width)
    for position in range(40):
        for column in range(width):
            angle = position / 10000 ** (2 * (column // 2) / width)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(sinusoids(40, width, halves=True), torch.cat([table[:, 0::2], table[:, 1::2]], 1))


def test_sinusoidal_positions_have_no_end() -> None:
    positions = SinusoidalPositions(4)
    assert torch.equal(positions(1000), sinusoids(1000, 4))
    assert torch.equal(positions(3), sinusoids(3, 4))
    assert torch.equal(SinusoidalPositions(4, halves=True)(1000), sinusoids(1000, 4, halves=True))
    assert "table" not in positions.state_dict()


def test_learned_positions_end_in_a_clear_error() -> None:
    positions = LearnedPositions(4, 3)
    assert torch.equal(positions(2), positions.table[:2])
    with pytest.raises(DataError, match=r"position 4.*only 3.*max_positions"):
        positions(4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_where_the_normalization_stands(norm: str) -> None:
    around = scramble(Residual(3, "pre" if norm == "pre" else "post", 0.5))
    assert isinstance(around, Residual)
    states = random_tensor(2, 3)

    def f(entering: Tensor) -> Tensor:
        return entering**2

    found = around.after(states, f(around.before(states))).detach().numpy()
    x = states.numpy()
    expected = x + np_norm(x, around.norm) ** 2 if norm == "pre" else np_norm(x + x**2, around.norm)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_chain_their_sublayers(norm: str) -> None:
    plan = LayerConfig(4, 2, 8, "pre" if norm == "pre" else "post", "relu", 0.3, 0.3, 0.3)
    states, memory = random_tensor(2, 3, 4), random_tensor(2, 5, 4, seed=1)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)

    def sublayer(around: Residual, x: Array, f: nn.Module, *others: Tensor) -> Array:
        def apply(entering: Array) -> Array:
            result = f(torch.from_numpy(entering), *others)
            return np.asarray((result[0] if isinstance(result, tuple) else result).detach().numpy())

        return x + apply(np_norm(x, around.norm)) if norm == "pre" else np_norm(x + apply(x), around.norm)

    encoder = scramble(EncoderLayer(plan))
    assert isinstance(encoder, EncoderLayer)
    own_mask = torch.ones(2, 1, 1, 3, dtype=torch.bool)
    x = sublayer(encoder.around_self_attention, states.numpy(), encoder.self_attention, own_mask)
    x = sublayer(encoder.around_feed_forward, x, encoder.feed_forward)
    np.testing.assert_allclose(encoder(states, own_mask).detach().numpy(), x, atol=1e-10)

    decoder = scramble(DecoderLayer(plan))
    assert isinstance(decoder, DecoderLayer)

    class Causal(nn.Module):
        def forward(self, entering: Tensor) -> Tensor:
            return attention.forward(entering, causal=True)

    attention = decoder.self_attention
    keys, values = decoder.cross_attention.project(memory)
    x = sublayer(decoder.around_self_attention, states.numpy(), Causal())
    x = sublayer(decoder.around_cross_attention, x, decoder.cross_attention, keys, values, mask)
    x = sublayer(decoder.around_feed_forward, x, decoder.feed_forward)
    np.testing.assert_allclose(decoder(states, keys, values, mask)[0].detach().numpy(), x, atol=1e-10)


def test_projections_start_in_xaviers_range() -> None:
    layer = SelfAttention(32, 4, 0.0)  # three 32 x 32 products in one: sqrt(6 / (32 + 32)) for each
    bound = math.sqrt(6 / 64)
    most = layer.query_keys_values.weight.abs().max().item()
    assert 0.95 * bound < most <= bound
    assert not layer.query_keys_values.bias.any()


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_dropout_zeroes_at_its_rate_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(3)
    states = torch.ones(1001, 203)  # not a multiple of four elements
    dropped = dropout(states, rate, True)
    assert float((dropped == 0).float().mean()) == pytest.approx(rate, abs=0.005)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    assert len(set(dropped.flatten().tolist())) == 2
    # Neighbours share a draw and must still be independent: both zero with probability rate squared.
    both = ((dropped[:, :-1] == 0) & (dropped[:, 1:] == 0)).float().mean()
    assert float(both) == pytest.approx(rate * rate, abs=0.01)


def test_dropout_has_a_gradient_and_an_off_switch() -> None:
    states = torch.ones(50, 8, requires_grad=True)
    layer = Dropout(0.5)
    torch.manual_seed(1)
    dropped = layer(states)
    dropped.sum().backward()
    assert states.grad is not None
    assert torch.equal(states.grad, dropped.detach())
    torch.manual_seed(1)
    assert torch.equal(layer(states), dropped)  # the seed decides
    assert layer.eval()(states) is states
    assert dropout(states, 0.0, True) is states


def test_dropout_of_weights_keeps_the_expected_context() -> None:
    torch.manual_seed(2)
    query, keys, values = (torch.randn(1, 1, 4, 8) for _ in range(3))
    mean = torch.stack([attend(query, keys, values, rate=0.3) for _ in range(4000)]).mean(0)
    assert torch.allclose(mean, attend(query, keys, values), atol=0.08)
    assert not torch.equal(attend(query, keys, values, rate=0.3), attend(query, keys, values, rate=0.3))
