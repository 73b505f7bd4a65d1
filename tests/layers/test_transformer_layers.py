"""The Transformer's parts against the paper's formulas, written out with numpy in float64."""

import math
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import DataError
from nmtkit.layers.elementary import Dropout, dropout
from nmtkit.layers.transformer import (
    FeedForward,
    LearnedPositions,
    SelfAttention,
    SinusoidalPositions,
    attend,
    attention_weights,
    sinusoids,
)
from nmtkit.models.transformer import TransformerConfig
from tests.support.formulas import Array, linear


@pytest.fixture(params=["highest", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to attend on a CPU: fused, and written out."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_attention_by_hand(precision: str) -> None:
    def of_energies(*energies: float) -> Tensor:
        """Keys `(1,1,S,2)` that have these energies with the query."""
        return torch.tensor(
            [[[[math.sqrt(2) * energy, 0.0] for energy in energies]]], dtype=torch.float64
        )

    query = torch.tensor([[[[1.0, 1.0]]]], dtype=torch.float64)
    values = torch.tensor([[[[4.0, 0.0], [0.0, 8.0]]]], dtype=torch.float64)
    even, uneven = of_energies(0.7, 0.7), of_energies(math.log(3), 0.0)
    first_hidden = torch.tensor([[[[False, True]]]])
    torch.testing.assert_close(
        attention_weights(query, uneven, None)[0, 0, 0].tolist(), [0.75, 0.25]
    )
    for keys, mask, context in (
        (even, None, [2, 4]),
        (uneven, None, [3, 2]),
        (uneven, first_hidden, [0, 8]),
    ):
        torch.testing.assert_close(
            attend(query, keys, values, mask)[0, 0, 0], torch.tensor(context).double()
        )


def test_causal_attention_reads_only_the_past(precision: str) -> None:
    query, keys, values = (random_tensor(2, 3, 5, 4, seed=seed) for seed in range(3))
    context = attend(query, keys, values, causal=True)
    for last in range(5):
        shorter = attend(query[:, :, : last + 1], keys[:, :, : last + 1], values[:, :, : last + 1])
        assert torch.allclose(context[:, :, last], shorter[:, :, last], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("relu", lambda x: np.maximum(0.0, x)),
        (
            "gelu",
            lambda x: x * np.vectorize(lambda one: 0.5 * (1.0 + math.erf(one / math.sqrt(2.0))))(x),
        ),
        ("silu", lambda x: x / (1.0 + np.exp(-x))),
    ],
    ids=["relu", "gelu", "silu"],
)
def test_feed_forward_is_equation_2(name: str, activation: Callable[[Array], Array]) -> None:
    layer = (
        FeedForward(TransformerConfig(hidden_size=4, feed_forward_size=5, activation=name))
        .double()
        .eval()
    )
    states = random_tensor(2, 4, 4)
    expected = linear(layer.out, activation(linear(layer.inner, states.numpy())))
    np.testing.assert_allclose(layer(states).detach().numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_by_the_formula(width: int) -> None:
    table = sinusoids(40, width)
    assert table.shape == (40, width)
    for position in range(40):
        for column in range(width):
            angle = position / 10000 ** (2 * (column // 2) / width)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(
        sinusoids(40, width, "sinusoidal_halves"), torch.cat([table[:, 0::2], table[:, 1::2]], 1)
    )


@pytest.mark.parametrize("width", [6, 8])
def test_sinusoids_of_fairseq_by_the_formula(width: int) -> None:
    table, half = sinusoids(30, width, "sinusoidal_fairseq"), width // 2
    for position in range(30):
        for column in range(half):
            angle = (position + 2) / 10000 ** (column / (half - 1))
            expected = pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
            assert table[position, [column, half + column]].tolist() == expected


def test_the_end_of_learned_positions_has_a_remedy_in_models_without_others() -> None:
    with pytest.raises(
        DataError,
        match=r"a larger max_positions \(or, if the model has the setting `positions`, with sin",
    ):
        LearnedPositions(4, 3)(4)


def test_sinusoidal_positions_have_no_end() -> None:
    positions = SinusoidalPositions(4)
    assert torch.equal(positions(1000), sinusoids(1000, 4))
    assert torch.equal(positions(3), sinusoids(3, 4))
    assert torch.equal(
        SinusoidalPositions(4, "sinusoidal_halves")(1000), sinusoids(1000, 4, "sinusoidal_halves")
    )
    assert "table" not in positions.state_dict()


def test_a_table_that_is_outgrown_stays_for_captured_steps() -> None:
    """A CUDA graph reads its numbers where they stand, and keeps no tensor."""
    positions = SinusoidalPositions(4)
    read = weakref.ref(positions.table)
    positions(1000)
    assert read() is not positions.table
    assert read() is not None


def test_projections_start_in_xaviers_range() -> None:
    layer = SelfAttention(
        TransformerConfig(hidden_size=32)
    )  # three 32 x 32 products in one: sqrt(6 / (32 + 32)) for each
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
    assert not torch.equal(
        attend(query, keys, values, rate=0.3), attend(query, keys, values, rate=0.3)
    )
