"""The bench of steps measures all that it prints, and its floor has the products of a step."""

from nmtkit.layers.linear import prepare_for_inference

from . import steps
from .search import Network

TOY = Network(
    "rnnsearch",
    {"embedding_size": 8, "hidden_size": 16, "attention_size": 16, "maxout_size": 8},
    40,
    6,
    12,
)


def test_a_step_is_measured_together_and_alone_with_its_floors() -> None:
    figures = steps.measure(TOY, 3, 1)
    assert len(figures) == 6
    assert min(figures) > 0
    assert len(steps.measure(TOY, 3, 1, floors=False)) == 2


def test_the_floor_has_all_products_of_a_step_with_weights_of_their_own() -> None:
    model = TOY.build()
    prepare_for_inference(model, "fp32")
    trace = steps.trace_products(steps.Begun.of(model, TOY, 2))
    # Query, two maps of the cell, maxout and output words; energies and contexts.
    assert len(steps.calls_of(trace)) == sum(trace.counts.values()) == 7
    maps = 16 * 16 + (8 + 32) * 48 + 16 * 48 + (16 + 8 + 32) * 16 + 8 * 40
    looks = 7 * (16 + 32)
    assert round(trace.gflop * 1e9) == 2 * (2 * steps.BEAM) * (maps + looks)
