"""What a Transformer shows of its attention, against weights worked out with numpy from its parameters."""

import math
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batch import Batch, collate
from nmtkit.layers import transformer as layers
from nmtkit.layers.transformer import DecoderLayer, EncoderLayer, Residual, sinusoids
from nmtkit.models.base import Seq2Seq, VocabularySizes, as_headed
from nmtkit.models.rnnsearch import RnnSearch
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.search.engine import beam_search
from nmtkit.search.rules import SearchConfig

Array = NDArray[np.float64]

V, H, A, D = 13, 12, 3, 4
SMALL = {"hidden_size": H, "feed_forward_size": 20, "heads": A, "encoder_layers": 2, "decoder_layers": 3}
BATCH = collate([[5, 6, 7, 8], [9, 4]], [[7, 6], [5, 8, 9, 4, 12]])


def build(**settings: object) -> Transformer:
    torch.manual_seed(5)
    model = Transformer(parse(TransformerConfig, {**SMALL, **settings}, "test"), VocabularySizes(V, V, shared=True))
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


class ByHand:
    """The model of one sentence, section 3 of Vaswani et al. 2017, head by head; pre- or post-norm, ReLU."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def run(self, src: list[int], tgt_in: list[int]) -> tuple[list[Array], list[Array], list[Array]]:
        """Weights (A,S,S), (A,T,T), (A,T,S) of every layer."""
        model = self.model
        encoder, decoder, cross = [], [], []
        states = self.enter(model.src_embedding, src)
        for module in model.encoder:
            own = cast(EncoderLayer, module)
            entering = self.norm(own.around_self_attention, states)
            query, keys, values = np.split(self.linear(own.self_attention.query_keys_values, entering), 3, -1)
            result, weights = self.heads(query, keys, values, np.ones((len(src), len(src)), dtype=bool))
            encoder.append(weights)
            states = self.leave(own.around_self_attention, states, self.linear(own.self_attention.out, result))
            states = self.feed_forward(own, states)
        memory = self.last_norm(model.encoder_norm, states)

        states = self.enter(model.tgt_embedding, tgt_in)
        for module in model.decoder:
            layer = cast(DecoderLayer, module)
            entering = self.norm(layer.around_self_attention, states)
            query, keys, values = np.split(self.linear(layer.self_attention.query_keys_values, entering), 3, -1)
            result, weights = self.heads(query, keys, values, np.tri(len(tgt_in), dtype=bool))
            decoder.append(weights)
            states = self.leave(layer.around_self_attention, states, self.linear(layer.self_attention.out, result))
            query = self.linear(layer.cross_attention.query, self.norm(layer.around_cross_attention, states))
            keys, values = np.split(self.linear(layer.cross_attention.keys_values, memory), 2, -1)
            result, weights = self.heads(query, keys, values, np.ones((len(tgt_in), len(src)), dtype=bool))
            cross.append(weights)
            states = self.leave(layer.around_cross_attention, states, self.linear(layer.cross_attention.out, result))
            states = self.feed_forward(layer, states)
        return encoder, decoder, cross

    def enter(self, embedding: nn.Embedding, ids: list[int]) -> Array:
        table = embedding.weight.detach().numpy()
        return np.asarray(table[ids] * math.sqrt(H) + sinusoids(256, H).double().numpy()[: len(ids)])

    def linear(self, layer: nn.Linear, states: Array) -> Array:
        return np.asarray(states @ layer.weight.detach().numpy().T + layer.bias.detach().numpy())

    def heads(self, query: Array, keys: Array, values: Array, allowed: NDArray[np.bool_]) -> tuple[Array, Array]:
        contexts, weights = [], []
        for head in range(A):
            part = slice(head * D, (head + 1) * D)
            raised = np.where(allowed, np.exp(query[:, part] @ keys[:, part].T / math.sqrt(D)), 0.0)
            weights.append(raised / raised.sum(-1, keepdims=True))
            contexts.append(weights[-1] @ values[:, part])
        return np.concatenate(contexts, -1), np.stack(weights)

    def feed_forward(self, layer: EncoderLayer | DecoderLayer, states: Array) -> Array:
        inner = np.maximum(0.0, self.linear(layer.feed_forward.inner, self.norm(layer.around_feed_forward, states)))
        return self.leave(layer.around_feed_forward, states, self.linear(layer.feed_forward.out, inner))

    def norm(self, around: Residual, states: Array) -> Array:
        return self.last_norm(around.norm, states) if around.pre else states

    def leave(self, around: Residual, states: Array, result: Array) -> Array:
        return states + result if around.pre else self.last_norm(around.norm, states + result)

    def last_norm(self, norm: nn.Module, states: Array) -> Array:
        if isinstance(norm, nn.Identity):
            return states
        layer = cast(nn.LayerNorm, norm)
        centred = states - states.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
        return np.asarray(scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy())


def sentence(batch: Batch, row: int) -> tuple[list[int], list[int]]:
    assert batch.tgt_in is not None
    assert batch.tgt_mask is not None
    src = batch.src[row][batch.src_mask[row]].tolist()
    return src, batch.tgt_in[row][batch.tgt_mask[row]].tolist()


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_head_of_every_layer_by_hand(norm: str) -> None:
    model = build(norm=norm)
    found = model.attentions(BATCH)
    assert [len(side) for side in (found.encoder, found.decoder, found.cross)] == [2, 3, 3]
    for row in range(2):
        src, tgt = sentence(BATCH, row)
        expected = ByHand(model).run(src, tgt)
        for side, by_hand in zip((found.encoder, found.decoder, found.cross), expected, strict=True):
            for layer, weights in zip(side, by_hand, strict=True):
                rows, columns = weights.shape[1:]
                np.testing.assert_allclose(layer[row, :, :rows, :columns].numpy(), weights, rtol=0, atol=1e-10)


@torch.no_grad()
def test_rows_sum_to_one_and_padding_is_zero() -> None:
    found = build().attentions(BATCH)
    assert BATCH.tgt_mask is not None
    sides = (
        (found.encoder, BATCH.src_mask, BATCH.src_mask),
        (found.decoder, BATCH.tgt_mask, BATCH.tgt_mask),
        (found.cross, BATCH.tgt_mask, BATCH.src_mask),
    )
    for side, rows, columns in sides:
        for weights in side:
            assert weights.shape == (2, A, rows.shape[1], columns.shape[1])
            real = (rows[:, None, :, None] & columns[:, None, None, :]).expand_as(weights)
            assert bool((weights[~real] == 0).all())
            sums = rows[:, None].expand(2, A, -1).double()
            torch.testing.assert_close(weights.sum(-1), sums, rtol=0, atol=1e-12)
    for weights in found.decoder:
        assert bool((weights.triu(1) == 0).all())
        assert bool((weights.tril()[0, :, :3, 0] > 0).all())  # every row reads BOS


@torch.no_grad()
def test_asking_changes_nothing() -> None:
    """The pass that shows the weights goes the same way as the one that does not."""
    model = build()
    before = model(BATCH).log_probs
    memory = model.encode(BATCH)
    plain = model.unroll(BATCH, memory)
    readout, heads = model.unroll_with_heads(BATCH, memory)
    assert plain.attention is None
    assert torch.equal(plain.features, readout.features)
    assert BATCH.tgt_mask is not None
    shown = model.attentions(BATCH)
    real = BATCH.tgt_mask[:, None, :, None]
    assert torch.equal(shown.cross[model.alignment_layer], heads.masked_fill(~real, 0.0))
    assert torch.equal(before, model(BATCH).log_probs)


@pytest.mark.parametrize("training", [True, False])
def test_who_does_not_ask_pays_nothing(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No weights are made in a forward, backward or search; with `need_attention`, those of the one head shown."""
    made: list[tuple[int, ...]] = []
    real = layers.attention_weights

    def counted(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        made.append(tuple(query.shape))
        return real(query, keys, mask)

    monkeypatch.setattr(layers, "attention_weights", counted)
    model = build(dropout=0.0, alignment_layer=2, alignment_heads=3)
    torch.set_float32_matmul_precision("highest")  # where attention is not fused it makes weights itself
    model.train(training)
    model(BATCH).log_probs.sum().backward()
    if not training:
        beam_search(model, BATCH, SearchConfig(beam_size=3, max_length=8))
    assert made == []
    model(BATCH, need_attention=True)
    assert made == [(2, 1, 6, D)]


@torch.no_grad()
@pytest.mark.parametrize(("layer", "heads"), [(None, "mean"), (1, 2), (3, 3), (2, "mean")])
def test_a_search_shows_the_chosen_heads_as_a_forward_does(layer: int | None, heads: object) -> None:
    model = build(alignment_layer=layer, alignment_heads=heads)
    best = beam_search(model, BATCH, SearchConfig(beam_size=3, max_length=12), n_best=1, need_attention=True)
    number = 1 if layer is None else layer - 1
    for row, (hypothesis,) in enumerate(best):
        src, _ = sentence(BATCH, row)
        batch = collate([src[:-1]], [hypothesis.ids])
        cross = model.attentions(batch).cross[number][0]  # (A,T,S)
        expected = cross.mean(0) if heads == "mean" else cross[cast(int, heads) - 1]
        assert hypothesis.attention is not None
        rows = hypothesis.attention.shape[0]
        np.testing.assert_allclose(hypothesis.attention, expected[:rows].numpy(), rtol=0, atol=1e-6)
        forward = model(batch, need_attention=True).attention
        torch.testing.assert_close(forward[0], expected, rtol=0, atol=1e-12)
        steps = Seq2Seq.unroll(model, batch, model.encode(batch), need_attention=True).attention
        assert steps is not None
        torch.testing.assert_close(steps[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"alignment_heads": 4}, "alignment_heads 4 does not exist: heads is 3"),
        ({"alignment_heads": 0}, "`alignment_heads`: give mean, or the number of a head, counted from 1 "),
        ({"alignment_heads": "first"}, "`alignment_heads`: give mean, or the number of a head, counted from 1 "),
        ({"alignment_heads": True}, "`alignment_heads`: give mean, or the number of a head, counted from 1 "),
    ],
)
def test_heads_that_do_not_exist_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        parse(TransformerConfig, {**SMALL, **settings}, "test")


@torch.no_grad()
def test_another_head_can_be_chosen_later() -> None:
    model = build()
    before = model(BATCH).log_probs
    for layer, heads in ((3, 2), (1, "mean"), (None, 3)):
        asked = build(alignment_layer=layer, alignment_heads=heads)
        model.show(layer, "mean" if heads == "mean" else cast(int, heads))
        assert model.config == asked.config
        assert torch.equal(model(BATCH, need_attention=True).attention, asked(BATCH, need_attention=True).attention)
    assert torch.equal(before, model(BATCH).log_probs)
    with pytest.raises(RecipeError, match="alignment_heads 4 does not exist: heads is 3"):
        model.show(1, 4)
    with pytest.raises(RecipeError, match="alignment_layer 4 does not exist: decoder_layers is 3"):
        model.show(4)


def test_who_has_heads_says_so() -> None:
    model = build()
    assert as_headed(model) is model
    assert as_headed(RnnSearch(RnnSearch.Config.model_validate({}), VocabularySizes(V, V, shared=True))) is None
    assert build(alignment_heads=2).config.shows_one_head
    assert not build().config.shows_one_head
    assert not RnnSearch.Config.model_validate({}).shows_one_head


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.no_grad()
def test_cuda_shows_the_same() -> None:
    model = build()
    expected = model.attentions(BATCH)
    found = model.cuda().attentions(BATCH.to("cuda"))
    for one, other in (
        (expected.encoder, found.encoder),
        (expected.decoder, found.decoder),
        (expected.cross, found.cross),
    ):
        for here, there in zip(one, other, strict=True):
            torch.testing.assert_close(here, there.cpu(), rtol=0, atol=1e-10)
