"""BERT beside the published one (`transformers`) with the same weights, and its size."""

import pytest
import torch

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.bert import Bert, BertConfig
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.zoo.next_sentence import PairClasses
from tests.support.gradients import backward, gradients
from tests.support.published_encoders import (
    SIZES,
    THEIRS,
    TINY,
    asked,
    assert_close,
    batch_of_pairs,
    enlarged,
    parameters,
    take_weights,
)


def test_bert_is_the_published_one() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=16, num_attention_heads=4, **THEIRS)
    theirs = enlarged(transformers.BertForPreTraining(config))
    ours = Bert(BertConfig(**TINY, next_sentence=True), SIZES).eval()
    heads = {
        "cls.predictions.transform.dense": "output.dense",
        "cls.predictions.transform.LayerNorm": "output.norm",
    }
    heads |= {"cls.predictions.bias": "output.words.bias", "pooler.dense": "pooler"}
    take_weights(ours, theirs, {**heads, "cls.seq_relationship": "next_sentence"})
    batch = batch_of_pairs()
    pairs = batch.extra(PairClasses)
    assert pairs is not None
    labels = batch.labels.masked_fill(batch.labels < 0, -100)
    with torch.no_grad():
        expected = theirs(**asked(batch), labels=labels, next_sentence_label=pairs.classes)
        states = theirs.bert(**asked(batch)).last_hidden_state
        output, memory = ours.read(batch)
        real = batch.inputs.mask
        assert_close(output.features[real], states[real])
        assert_close(ours.logits(output, memory)[real], expected.prediction_logits[real])
        assert_close(ours.auxiliary_logits(batch, output), expected.seq_relationship_logits)
    sums = backward(ours, batch, batch.n_tokens, masked_words={}, next_sentence=1.0)
    total = sums["loss"] / batch.n_tokens + sums["next_sentence_loss"] / batch.size
    assert_close(total.detach(), expected.loss)
    found = gradients(ours)
    theirs(**asked(batch), labels=labels, next_sentence_label=pairs.classes).loss.backward()
    assert_close(
        found["src_embedding.weight"][1:], theirs.bert.embeddings.word_embeddings.weight.grad[1:]
    )
    assert found.keys() == {name for name, _ in ours.named_parameters()}
    # A text alone has the states that it has in a batch, padding or not.
    alone = batch.select(torch.tensor([0]))
    with torch.no_grad():
        assert_close(
            ours.read(alone)[0].features[alone.inputs.mask], output.features[:1][alone.inputs.mask]
        )


def test_published_sizes() -> None:
    sizes = VocabularySizes({"src": 30522, "tgt": 30522}, shared=True)
    base = {
        "hidden_size": 768,
        "feed_forward_size": 3072,
        "heads": 12,
        "layers": 12,
        "max_positions": 512,
    }
    with torch.device("meta"):
        bert = Bert(BertConfig(**base, next_sentence=True), sizes)
    # BertModel: embeddings, encoder, pooler
    assert parameters(bert, "output.", "next_sentence.") == 109_482_240


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_names_of_the_encoder_are_those_of_the_transformer(norm: str) -> None:
    translator = Transformer(
        TransformerConfig(norm=norm, positions="learned", embedding_norm=True), SIZES
    )
    weights = translator.state_dict()
    wanted = {
        name: weights[name].shape
        for name in weights
        if name.startswith(("src_embedding", "encoder"))
    }
    given = Bert(BertConfig(layers=3, norm=norm), SIZES).state_dict()
    assert {name: given[name].shape for name in wanted} == wanted
    assert "src_positions.table" in given


def test_pairs_of_texts_need_two_segments() -> None:
    assert parse(BertConfig, {"segments": 1}, "r").segments == 1
    with pytest.raises(RecipeError, match="set segments to 2 or more, or next_sentence to false"):
        parse(BertConfig, {"segments": 1, "next_sentence": True}, "r")
