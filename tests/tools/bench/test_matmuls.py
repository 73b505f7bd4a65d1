"""The products of a job are counted as they are computed, and nothing else is."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.tools.bench.matmuls import MatmulTrace

CPU = torch.device("cpu")


def flop_of(job: object) -> int:
    trace = MatmulTrace()
    trace.record(job)
    return round(trace.gflop * 1e9)


def test_a_linear_map_is_two_operations_a_weight_and_row() -> None:
    linear, rows = nn.Linear(5, 7), torch.randn(3, 5)
    assert flop_of(lambda: linear(rows)) == 2 * 3 * 5 * 7
    # the rows need no gradient
    assert flop_of(lambda: linear(rows).sum().backward()) == 2 * 2 * 3 * 5 * 7


def test_what_is_no_product_is_not_counted() -> None:
    values = torch.randn(3, 5)
    assert flop_of(lambda: (values.tanh() + values).softmax(-1).topk(2)) == 0


def test_attention_is_two_products() -> None:
    query, keys = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 6, 8)
    with torch.no_grad():
        fused = flop_of(lambda: F.scaled_dot_product_attention(query, keys, keys))
        assert fused == flop_of(lambda: (query @ keys.transpose(-1, -2)).softmax(-1) @ keys)
    assert fused == 2 * (2 * 2 * 4 * 3 * 6 * 8)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
@torch.no_grad()
def test_a_layer_of_cells_is_its_maps_at_every_step(kind: type[nn.RNNBase], gates: int) -> None:
    layer, states = kind(5, 7, batch_first=True), torch.randn(2, 6, 5)
    assert flop_of(lambda: layer(states)) == 2 * 2 * 6 * gates * 7 * (5 + 7)


def test_products_are_computed_again_as_often() -> None:
    trace = MatmulTrace()
    values, wide = torch.randn(3, 5), torch.randn(5, 4).t()
    trace.record(lambda: [F.linear(values, wide) for _ in range(7)])
    (count,) = trace.counts.values()
    assert count == 7
    assert round(trace.gigabytes * 1e9) == 7 * 4 * (3 * 5 + 5 * 4 + 3 * 4)
    again = MatmulTrace()
    again.record(lambda: trace.seconds(CPU))
    assert again.counts == trace.counts
    assert trace.seconds(CPU, threads=2) > 0
