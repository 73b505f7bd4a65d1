"""What a Transformer shows of its attention, against weights worked out with numpy from its parameters."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.layers import transformer as layers
from nmtkit.layers.transformer import DecoderLayer, EncoderLayer, Residual, sinusoids
from nmtkit.models.abilities import as_multi_head, shows_one_head
from nmtkit.models.base import Seq2Seq
from nmtkit.models.transformer import Transformer
from tests.support import small_models
from tests.support.formulas import Array, layer_norm, linear, multi_head, softmax
from tests.support.small_models import batch_of
from tests.support.step_by_step import told

build = partial(small_models.build, "transformer", seed=5, noise=0.3)
H, A, D = 12, 3, 4
BATCH = batch_of([[5, 6, 7, 8], [9, 4]], [[7, 6], [5, 8, 9, 4, 11]])


def pass_by_hand(
    model: Transformer, src: list[int], tgt_in: list[int]
) -> tuple[list[list[Array]], Array]:
    """Section 3 of Vaswani et al. 2017: for one sentence the weights of every layer, and probabilities `(T,V)`.

    Weights are `(A,S,S)` of the encoder, `(A,T,T)` of the decoder, `(A,T,S)` between them.
    """
    encoder, decoder, cross = [], [], []
    everything = np.ones((len(src), len(src)), dtype=bool)
    states = embed(model.src_embedding, src)
    for layer in model.encoder:
        states, weights = self_attention_by_hand(layer, states, everything)
        encoder.append(weights)
        states = feed_forward_by_hand(layer, states)
    memory = final_norm(model.encoder_norm, states)

    states = embed(model.tgt_embedding, tgt_in)
    for layer in model.decoder:
        states, weights = self_attention_by_hand(layer, states, np.tri(len(tgt_in), dtype=bool))
        decoder.append(weights)
        query = linear(layer.cross_attention.query, before(layer.around_cross_attention, states))
        keys, values = np.split(linear(layer.cross_attention.keys_values, memory), 2, -1)
        context, weights = multi_head(
            query, keys, values, A, np.ones((len(tgt_in), len(src)), dtype=bool)
        )
        cross.append(weights)
        states = after(
            layer.around_cross_attention, states, linear(layer.cross_attention.out, context)
        )
        states = feed_forward_by_hand(layer, states)
    return [encoder, decoder, cross], softmax(
        linear(model.output, final_norm(model.decoder_norm, states))
    )


def embed(embedding: nn.Embedding, ids: list[int]) -> Array:
    return (
        embedding.weight.detach().numpy()[ids] * math.sqrt(H)
        + sinusoids(len(ids), H).double().numpy()
    )


def self_attention_by_hand(
    layer: EncoderLayer | DecoderLayer, states: Array, mask: Array
) -> tuple[Array, Array]:
    packed = linear(
        layer.self_attention.query_keys_values, before(layer.around_self_attention, states)
    )
    context, weights = multi_head(*np.split(packed, 3, -1), A, mask)
    return after(
        layer.around_self_attention, states, linear(layer.self_attention.out, context)
    ), weights


def feed_forward_by_hand(layer: EncoderLayer | DecoderLayer, states: Array) -> Array:
    inner = np.maximum(
        0.0, linear(layer.feed_forward.inner, before(layer.around_feed_forward, states))
    )
    return after(layer.around_feed_forward, states, linear(layer.feed_forward.out, inner))


def before(around: Residual, states: Array) -> Array:
    return layer_norm(around.norm, states) if around.pre else states


def after(around: Residual, states: Array, result: Array) -> Array:
    return states + result if around.pre else layer_norm(around.norm, states + result)


def final_norm(norm: nn.Module, states: Array) -> Array:
    return states if isinstance(norm, nn.Identity) else layer_norm(norm, states)


@torch.no_grad()
@pytest.mark.parametrize("precision", ["highest", "medium"])  # attention is fused, and written out
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_head_of_every_layer_and_the_words_by_hand(norm: str, precision: str) -> None:
    """Weights of padding, and of words that come later, are zero."""
    torch.set_float32_matmul_precision(precision)
    model = build(norm=norm)
    attentions, probabilities = model.attentions(BATCH), model(BATCH).exp()
    assert [len(side) for side in (attentions.encoder, attentions.decoder, attentions.cross)] == [
        2,
        3,
        3,
    ]
    for row in range(2):
        src, tgt_in = (
            BATCH.inputs.ids[row][BATCH.inputs.mask[row]],
            BATCH.targets.shifted[row][BATCH.targets.mask[row]],
        )
        expected, words = pass_by_hand(model, src.tolist(), tgt_in.tolist())
        np.testing.assert_allclose(
            probabilities[row, : len(tgt_in)].numpy(), words, rtol=0, atol=1e-12
        )
        for side, by_hand in zip(
            (attentions.encoder, attentions.decoder, attentions.cross), expected, strict=True
        ):
            for layer, weights in zip(side, by_hand, strict=True):
                padded = np.zeros(layer[row].shape)
                padded[:, : weights.shape[1], : weights.shape[2]] = weights
                np.testing.assert_allclose(layer[row].numpy(), padded, rtol=0, atol=1e-10)


@torch.no_grad()
def test_asking_changes_nothing() -> None:
    """The pass that shows the weights goes the same way as the one that does not."""
    model = build()
    before = model(BATCH)
    memory = model.encode(BATCH)
    readout, heads = model.unroll_with_heads(BATCH, memory)
    assert torch.equal(model.unroll(BATCH, memory).features, readout.features)
    shown = model.attentions(BATCH).cross[model.alignment_layer]
    assert torch.equal(shown, heads.masked_fill(~BATCH.targets.mask[:, None, :, None], 0.0))
    assert torch.equal(before, model(BATCH))


@pytest.mark.parametrize("training", [True, False])
def test_who_does_not_ask_pays_nothing(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No weights are made in a forward, backward or search; with `need_attention`, those of the one head shown."""
    shapes: list[tuple[int, ...]] = []
    attention_weights = layers.attention_weights

    def noted(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        shapes.append(tuple(query.shape))
        return attention_weights(query, keys, mask)

    monkeypatch.setattr(layers, "attention_weights", noted)
    model = build(dropout=0.0, alignment_layer=2, alignment_heads=3)
    # where attention is not fused it makes weights itself
    torch.set_float32_matmul_precision("highest")
    model.train(training)
    model(BATCH).sum().backward()
    if not training:
        search_batch(model, BATCH, BeamConfig(beam_size=3, max_length=8))
    assert shapes == []
    told(model, BATCH)
    assert shapes == [(2, 1, 6, D)]


@torch.no_grad()
@pytest.mark.parametrize(("layer", "head"), [(None, "mean"), (1, 2), (3, 3), (2, "mean")])
def test_a_search_shows_the_chosen_heads_as_a_forward_does(
    layer: int | None, head: str | int
) -> None:
    model = build(alignment_layer=layer, alignment_heads=head)
    best = search_batch(
        model, BATCH, BeamConfig(beam_size=3, max_length=12), n_best=1, need_attention=True
    )
    for source, (hypothesis,) in zip(([5, 6, 7, 8], [9, 4]), best, strict=True):
        batch = batch_of([source], [hypothesis.ids])
        cross = model.attentions(batch).cross[1 if layer is None else layer - 1][0]  # (A,T,S)
        expected = cross.mean(0) if head == "mean" else cross[head - 1]
        rows = expected[: len(hypothesis.attention)]
        np.testing.assert_allclose(hypothesis.attention, rows.numpy(), rtol=0, atol=1e-6)
        whole = told(model, batch).attention
        steps = Seq2Seq.unroll(model, batch, model.encode(batch), need_attention=True).attention
        torch.testing.assert_close((whole[0], steps[0]), (expected, expected), rtol=0, atol=1e-12)


@torch.no_grad()
def test_another_head_can_be_chosen_later() -> None:
    model = build()
    before = model(BATCH)
    for layer, head in ((3, 2), (1, "mean"), (None, 3)):
        other = build(alignment_layer=layer, alignment_heads=head)
        model.show(layer, head)
        assert model.config == other.config
        assert torch.equal(told(model, BATCH).attention, told(other, BATCH).attention)
    assert torch.equal(before, model(BATCH))
    with pytest.raises(
        RecipeError,
        match="alignment_heads: there is no head 4; choose `mean` or a number from 1 to 3",
    ):
        model.show(1, 4)
    with pytest.raises(
        RecipeError,
        match="alignment_layer: there is no decoder layer 4; choose a number from 1 to 3",
    ):
        model.show(4)


def test_who_has_heads_says_so() -> None:
    model, without = build(), small_models.build("rnnsearch")
    assert as_multi_head(model) is model
    assert as_multi_head(without) is None
    copying = [build(alignment_heads=2, copying=way) for way in ("head", "learned")]
    shows_one = [
        shows_one_head(one.config) for one in (build(alignment_heads=2), model, without, *copying)
    ]
    assert shows_one == [True, False, False, True, False]  # a learned attention is of no head


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.no_grad()
def test_cuda_shows_the_same() -> None:
    model = build()
    expected = model.attentions(BATCH)
    attentions = model.cuda().attentions(BATCH.to("cuda"))
    for side in ("encoder", "decoder", "cross"):
        weights = [layer.cpu() for layer in getattr(attentions, side)]
        torch.testing.assert_close(weights, list(getattr(expected, side)), rtol=0, atol=1e-10)
