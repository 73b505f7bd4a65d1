"""The Transformer beside its contract: which attention is its alignment, positions that end, and copying."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.models.transformer import Transformer
from tests.support import small_models
from tests.support.small_models import V, batch_of
from tests.support.step_by_step import Walk, told

build = partial(small_models.build, "transformer", seed=5, noise=0.3)
H = 12


@pytest.mark.parametrize(
    ("chosen", "layers", "expected"), [(None, 3, 1), (None, 1, 0), (1, 3, 0), (3, 3, 2)]
)
def test_the_alignment_is_one_layers_attention_over_heads(
    chosen: int | None, layers: int, expected: int
) -> None:
    model = build(alignment_layer=chosen, decoder_layers=layers)
    batch = batch_of([[4, 5, 6, 7], [8]], [[9, 4], [5]])
    # without queries it looks at all words alike
    query = model.decoder[expected].cross_attention.query
    nn.init.zeros_(query.weight)
    nn.init.zeros_(query.bias)
    even = batch.inputs.mask[:, None] / batch.inputs.lengths[:, None, None].double().expand(2, 3, 1)
    torch.testing.assert_close(told(model, batch).attention, even, rtol=0, atol=1e-10)


@torch.no_grad()
def test_learned_positions_end_in_a_clear_error() -> None:
    model = build(positions="learned", max_positions=6)
    walk = Walk(model, model.encode(batch_of([[4] * 5])))
    with pytest.raises(DataError, match="only 6 positions"):
        model.encode(batch_of([[4] * 6]))
    for _ in range(6):
        walk.step(torch.tensor([4]))
    with pytest.raises(DataError, match="only 6 positions"):
        walk.step(torch.tensor([4]))


def test_each_dropout_has_its_place() -> None:
    model = build(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3)
    for layer in [*model.encoder, *model.decoder]:
        assert (layer.self_attention.rate, layer.feed_forward.dropout.rate) == (0.2, 0.3)
        assert (
            layer.around_self_attention.dropout.rate
            == layer.around_feed_forward.dropout.rate
            == 0.1
        )
    assert {layer.cross_attention.rate for layer in model.decoder} == {0.2}


# Copying.

SOURCE = [5, V, 7, V + 1, V]
PAIR = batch_of([SOURCE], [[6, V + 1, V]])


def mixed_by_hand(model: Transformer, attention: Tensor) -> Tensor:
    """Probabilities `(T,X)` of See et al., eq. 9, from attention `(T,S)`; the gate is worked out from its parts."""
    memory = model.encode(PAIR)
    readout = model.unroll(PAIR, memory)
    context = attention @ memory.states[0]  # (T,H)
    words = (
        model.tgt_embedding(PAIR.targets.shifted)[0] * math.sqrt(H)
        + model.tgt_positions(4).double()
    )
    gate = model.get_submodule("copy_gate")
    p_gen = torch.sigmoid(
        torch.cat([context, readout.features[0], words], 1) @ gate.weight[0] + gate.bias
    )
    torch.testing.assert_close(readout.copy_gate[0, :, 0], p_gen, rtol=0, atol=1e-12)
    vocab = (readout.features[0] @ model.output.weight.T + model.output.bias).softmax(-1)
    mixed = torch.zeros(4, V + 2, dtype=torch.float64)
    mixed[:, :V] = p_gen[:, None] * vocab
    for place, word in enumerate([*SOURCE, 3]):
        mixed[:, word] += (1 - p_gen) * attention[:, place]
    return mixed


def check_copying(model: Transformer, attention: Tensor) -> None:
    """It shows this attention `(T,S)`, and copies by it."""
    output = told(model, PAIR)
    torch.testing.assert_close(output.attention[0], attention, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        output.log_probs[0].exp(), mixed_by_hand(model, attention), rtol=0, atol=1e-12
    )
    with pytest.raises(RecipeError, match="the attention shown is always its copy attention"):
        model.show(1, 1)


@torch.no_grad()
@pytest.mark.parametrize("head", ["mean", 1, 3])
@pytest.mark.parametrize("layer", [1, 3])
def test_copies_by_the_head_that_is_named(layer: int, head: str | int) -> None:
    model = build(copying="head", alignment_layer=layer, alignment_heads=head)
    weights = model.attentions(PAIR).cross[layer - 1][0]  # (A,T,S)
    check_copying(model, weights.mean(0) if head == "mean" else weights[head - 1])


@torch.no_grad()
def test_copies_by_an_attention_learned_for_it() -> None:
    model = build(copying="learned")
    memory = model.encode(PAIR)
    states = model.unroll(PAIR, memory).features[0]
    query = states @ model.get_parameter("copy_query.weight").T + model.get_parameter(
        "copy_query.bias"
    )
    keys = memory.states[0] @ model.get_parameter("copy_key.weight").T
    check_copying(model, (query @ keys.T / math.sqrt(H)).softmax(-1))
