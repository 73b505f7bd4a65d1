"""Copying in the Transformer: which attention it is by, the gate by hand, and what may not be shown any more."""

import math

import pytest
import torch
from torch import Tensor
from walk import Walk

from nmtkit.core.errors import RecipeError
from nmtkit.data.batch import Batch, collate
from nmtkit.data.vocabulary import UNK
from nmtkit.models.base import VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig

V = 12
EXTENDED = [5, V, 7, V + 1, V]


def build(**settings: object) -> Transformer:
    """Two decoder layers of two heads, in float64, with all weights random."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(TransformerConfig.model_validate({**sizes, **settings}), VocabularySizes(V, V, shared=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def batch() -> Batch:
    src = [UNK if word >= V else word for word in EXTENDED]
    return collate([src], [[6, UNK, UNK]], [EXTENDED], [[6, V + 1, V]], 2)


def mixed_by_hand(model: Transformer, attention: Tensor) -> Tensor:
    """Probabilities `(T,X)` of eq. 9, from attention `(T,S)`, with the gate worked out from its three parts."""
    given = batch()
    memory = model.encode(given)
    assert memory.states is not None
    readout = model.unroll(given, memory)
    context = attention @ memory.states[0]  # (T,H)
    words = model.tgt_embedding(given.tgt_in)[0] * math.sqrt(8) + model.tgt_positions(4).double()
    gate = model.get_submodule("copy_gate")
    p_gen = torch.sigmoid(torch.cat([context, readout.features[0], words], 1) @ gate.weight[0] + gate.bias)
    assert readout.copy_gate is not None
    torch.testing.assert_close(readout.copy_gate[0, :, 0], p_gen, rtol=0, atol=1e-12)
    vocab = (readout.features[0] @ model.output.weight.T + model.output.bias).softmax(-1)
    found = torch.zeros(4, V + 2, dtype=torch.float64)
    found[:, :V] = p_gen[:, None] * vocab
    for place, word in enumerate([*EXTENDED, 3]):
        found[:, word] += (1 - p_gen) * attention[:, place]
    return found


@torch.no_grad()
@pytest.mark.parametrize("heads", ["mean", 1, 2])
@pytest.mark.parametrize("layer", [1, 2])
def test_copies_by_the_head_that_is_named(layer: int, heads: object) -> None:
    model = build(copying="head", alignment_layer=layer, alignment_heads=heads)
    weights = model.attentions(batch()).cross[layer - 1][0]  # (A,T,S)
    attention = weights.mean(0) if heads == "mean" else weights[int(str(heads)) - 1]
    output = model(batch(), need_attention=True)
    torch.testing.assert_close(output.attention[0], attention, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_probs[0].exp(), mixed_by_hand(model, attention), rtol=0, atol=1e-12)


@torch.no_grad()
def test_copies_by_an_attention_learned_for_it() -> None:
    model = build(copying="learned")
    memory = model.encode(batch())
    assert memory.states is not None
    states = model.unroll(batch(), memory).features[0]
    query = states @ model.get_parameter("copy_query.weight").T + model.get_parameter("copy_query.bias")
    keys = memory.states[0] @ model.get_parameter("copy_key.weight").T
    attention = (query @ keys.T / math.sqrt(8)).softmax(-1)
    output = model(batch(), need_attention=True)
    torch.testing.assert_close(output.attention[0], attention, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_probs[0].exp(), mixed_by_hand(model, attention), rtol=0, atol=1e-12)


@pytest.mark.parametrize("copying", ["head", "learned"])
def test_what_is_copied_by_is_what_is_shown(copying: str) -> None:
    with pytest.raises(RecipeError, match="copies by the attention that it shows"):
        build(copying=copying).show(1, 1)
    build(copying="none").show(1, 1)


@torch.no_grad()
def test_extended_ids_are_read_as_unknown_words() -> None:
    model = build(copying="learned")
    memory = model.encode(batch())
    known = Walk(model, memory).step(torch.tensor([UNK]))[0]
    assert torch.equal(Walk(model, memory).step(torch.tensor([V + 1]))[0], known)
