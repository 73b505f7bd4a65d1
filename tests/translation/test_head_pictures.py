"""All heads of all layers of a translation, as a picture holds them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from untrained import learned, untrained

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.batch import collate
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.vocabulary import EOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.search.rules import SearchConfig
from nmtkit.translation.translator import Translator

LINES = ["the dog sees Anna and Otto", "Otto sees the dogs", "dogs and Anna"]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return learned(LINES, "bpe", vocab_size=40)


@pytest.fixture
def model(tokenizers: TokenizerPair) -> Transformer:
    size = len(tokenizers.src.vocabulary)
    torch.manual_seed(3)
    config = TransformerConfig(hidden_size=12, feed_forward_size=16, heads=3, encoder_layers=2, decoder_layers=1)
    return Transformer(config, VocabularySizes(size, size, shared=True)).eval()


def translator(model: Transformer, tokenizers: TokenizerPair, **settings: object) -> Translator:
    return Translator(model, tokenizers, SearchConfig.model_validate({"beam_size": 2, **settings}), name="toy")


def test_each_pair_has_the_weights_of_its_own_forward(model: Transformer, tokenizers: TokenizerPair) -> None:
    targets = ["Otto and the dog", "dogs", "Anna sees Anna sees Anna"]
    pictures = translator(model, tokenizers).head_pictures(LINES, targets)
    for source, target, picture in zip(LINES, targets, pictures, strict=True):
        src, tgt = tokenizers.src.encode(source), tokenizers.tgt.encode(target)
        with torch.no_grad():
            alone = model.attentions(collate([src], [tgt]))
        assert picture.src_tokens == [*tokenizers.src.pieces(src), "</s>"]
        assert picture.tgt_tokens == [*tokenizers.tgt.pieces(tgt), "</s>"]
        for side, expected, layers in (
            (picture.encoder, alone.encoder, 2),
            (picture.decoder, alone.decoder, 1),
            (picture.cross, alone.cross, 1),
        ):
            assert side.shape[:2] == (layers, 3)
            np.testing.assert_allclose(side, torch.stack(expected, 1)[0].numpy(), rtol=0, atol=1e-6)
            np.testing.assert_allclose(side.sum(-1), 1.0, rtol=0, atol=1e-5)
        assert picture.title == "toy"
        (scored,) = translator(model, tokenizers).rescore([source], [target])
        assert picture.score == pytest.approx(scored.score, abs=1e-5)


@pytest.mark.parametrize(("wish_to_end", "finished"), [(6.0, True), (-60.0, False)])
def test_without_targets_the_models_own_are_shown(
    model: Transformer, tokenizers: TokenizerPair, wish_to_end: float, finished: bool
) -> None:
    """Also a translation that was cut at the length limit: it has no row for an end that it did not reach."""
    torch.nn.init.constant_(model.output.bias[EOS : EOS + 1], wish_to_end)
    using = translator(model, tokenizers, max_length=8)
    found = [best[0] for best in using.search(LINES, need_attention=True)]
    assert [translation.finished for translation in found] == [finished] * 3
    for translation, picture in zip(found, using.head_pictures(LINES), strict=True):
        assert picture.tgt_tokens == translation.tokens + ["</s>"] * translation.finished
        assert picture.score == translation.score
        assert translation.attention is not None  # of the one layer of the decoder, mean of its heads
        np.testing.assert_allclose(picture.cross[0].mean(0), translation.attention, rtol=0, atol=1e-5)


def test_some_targets_may_be_given_and_some_not(model: Transformer, tokenizers: TokenizerPair) -> None:
    using = translator(model, tokenizers, max_length=8)
    mixed = using.head_pictures(LINES, [None, "dogs", None])
    own, given = using.head_pictures(LINES), using.head_pictures(LINES[1:2], ["dogs"])
    assert [one.tgt_tokens for one in mixed] == [own[0].tgt_tokens, given[0].tgt_tokens, own[2].tgt_tokens]
    for one, other in zip(mixed, (own[0], given[0], own[2]), strict=True):
        np.testing.assert_allclose(one.cross, other.cross, rtol=0, atol=1e-6)


def test_what_cannot_be_drawn_is_refused(model: Transformer, tokenizers: TokenizerPair) -> None:
    with pytest.raises(DataError, match="source line 2 is empty"):
        translator(model, tokenizers).head_pictures(["dog", " "])
    with pytest.raises(DataError, match="target line 1 is empty"):
        translator(model, tokenizers).head_pictures(["dog"], [""])
    with pytest.raises(DataError, match="2 source lines but 1 target"):
        translator(model, tokenizers).head_pictures(["dog", "dogs"], ["dog"])
    other = replace(untrained("rnnsearch", tokenizers), name="toy")
    with pytest.raises(NmtkitError, match=r"'toy' \(rnnsearch\) has no layers of attention heads"):
        other.head_pictures(["dog"])
