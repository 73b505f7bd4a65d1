"""All heads of all layers of a translation, as a picture holds them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.batches.batch import collate
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.inference.translator import Translator
from tests.inference.untrained import learned, untrained

LINES = ["the dog sees Anna and Otto", "Otto sees the dogs", "dogs and Anna"]
TOKENIZERS = learned(LINES, "bpe", vocab_size=40)


@pytest.fixture
def translator() -> Translator:
    """Of one layer in the encoder and two in the decoder, each with two heads."""
    return replace(untrained("transformer", TOKENIZERS, beam_size=2, max_length=8), name="toy")


def test_each_pair_has_the_weights_of_its_own_forward(translator: Translator) -> None:
    targets = ["Otto and the dog", "dogs", "Anna sees Anna sees Anna"]
    pictures = translator.head_pictures(LINES, targets)
    for source, target, picture in zip(LINES, targets, pictures, strict=True):
        src, tgt = TOKENIZERS.src.encode(source), TOKENIZERS.tgt.encode(target)
        with torch.no_grad():
            alone = translator.model.attentions(collate([src], [tgt]))
        assert picture.src_tokens == [*TOKENIZERS.src.pieces(src), "</s>"]
        assert picture.tgt_tokens == [*TOKENIZERS.tgt.pieces(tgt), "</s>"]
        for side, expected, layers in (
            (picture.encoder, alone.encoder, 1),
            (picture.decoder, alone.decoder, 2),
            (picture.cross, alone.cross, 2),
        ):
            assert side.shape[:2] == (layers, 2)
            np.testing.assert_allclose(side, torch.stack(expected, 1)[0].numpy(), rtol=0, atol=1e-6)
            np.testing.assert_allclose(side.sum(-1), 1.0, rtol=0, atol=1e-5)
        assert picture.title == "toy"
        (scored,) = translator.rescore([source], [target])
        assert picture.score == pytest.approx(scored.score, abs=1e-5)


@pytest.mark.parametrize(("wish_to_end", "finished"), [(6.0, True), (-60.0, False)])
def test_without_targets_the_models_own_are_shown(
    translator: Translator, wish_to_end: float, finished: bool
) -> None:
    """Also a translation that was cut at the length limit: it has no row for an end that it did not reach."""
    torch.nn.init.constant_(translator.model.output.bias[EOS : EOS + 1], wish_to_end)
    found = [best[0] for best in translator.search(LINES, need_attention=True)]
    assert [translation.finished for translation in found] == [finished] * 3
    for translation, picture in zip(found, translator.head_pictures(LINES), strict=True):
        assert picture.tgt_tokens == translation.tokens + ["</s>"] * translation.finished
        assert picture.score == translation.score
        # of the last layer of the decoder but one, mean of its heads
        assert translation.attention is not None
        np.testing.assert_allclose(
            picture.cross[0].mean(0), translation.attention, rtol=0, atol=1e-5
        )


def test_some_targets_may_be_given_and_some_not(translator: Translator) -> None:
    mixed = translator.head_pictures(LINES, [None, "dogs", None])
    own, given = translator.head_pictures(LINES), translator.head_pictures(LINES[1:2], ["dogs"])
    assert [one.tgt_tokens for one in mixed] == [
        own[0].tgt_tokens,
        given[0].tgt_tokens,
        own[2].tgt_tokens,
    ]
    for one, other in zip(mixed, (own[0], given[0], own[2]), strict=True):
        np.testing.assert_allclose(one.cross, other.cross, rtol=0, atol=1e-6)


def test_what_cannot_be_drawn_is_refused(translator: Translator) -> None:
    with pytest.raises(DataError, match="source line 2 is empty"):
        translator.head_pictures(["dog", " "])
    with pytest.raises(DataError, match="target line 1 is empty"):
        translator.head_pictures(["dog"], [""])
    with pytest.raises(DataError, match="2 source lines but 1 target"):
        translator.head_pictures(["dog", "dogs"], ["dog"])
    other = replace(untrained("rnnsearch", TOKENIZERS), name="toy")
    with pytest.raises(
        NmtkitError, match=r"'toy' \(rnnsearch\) has no multi-head attention layers"
    ):
        other.head_pictures(["dog"])
