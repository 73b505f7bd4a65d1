"""BERT and ELECTRA beside the published ones (`transformers`) with the same weights, and their sizes."""

import math
import re
from collections.abc import Mapping

import pytest
import torch
from gradients import backward, gradients
from pretraining import WORDS, seeded, texts, tokenizers
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.bert import Bert, BertConfig, PretrainedEncoder
from nmtkit.models.language.electra import Electra, ElectraConfig
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.training.losses.masked_words import MaskedWords, MaskedWordsConfig, NextSentence, draw_words

SIZES = VocabularySizes({"src": WORDS, "tgt": WORDS}, shared=True)
TINY = {"hidden_size": 16, "feed_forward_size": 24, "heads": 4, "layers": 2, "max_positions": 40, "norm_epsilon": 1e-12}
THEIRS = {"vocab_size": WORDS, "type_vocab_size": 2, "pad_token_id": 0, "num_hidden_layers": 2}
THEIRS |= {"intermediate_size": 24, "max_position_embeddings": 40, "layer_norm_eps": 1e-12}
OF_A_LAYER = {
    "attention.output.dense": "self_attention.out",
    "attention.output.LayerNorm": "around_self_attention.norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.out",
    "output.LayerNorm": "around_feed_forward.norm",
}
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "src_embedding.weight",
    "embeddings.position_embeddings.weight": "src_positions.table",
    "embeddings.token_type_embeddings.weight": "segment_embedding.weight",
    "embeddings.LayerNorm": "src_embedding_norm",
    "embeddings_project": "widen",
}


def take_weights(ours: nn.Module, theirs: nn.Module, heads: Mapping[str, str]) -> None:
    """Gives our model the weights of theirs; `heads` are our names of theirs that are not of the encoder."""
    given, weights = dict[str, Tensor](), theirs.state_dict()
    for name, tensor in weights.items():
        name = re.sub(r"^(bert|electra)\.", "", name)
        if found := re.match(r"encoder\.layer\.(\d+)\.(.*)\.(weight|bias)$", name):
            number, part, kind = found.groups()
            packed = f"encoder.{number}.self_attention.query_keys_values.{kind}"
            if part in OF_A_LAYER:
                given[f"encoder.{number}.{OF_A_LAYER[part]}.{kind}"] = tensor
            else:  # queries, keys, values, in this order
                given[packed] = torch.cat([given[packed], tensor]) if packed in given else tensor
            continue
        for begin, own in {**EMBEDDINGS, **heads}.items():
            if name.startswith(begin):
                given[own + name.removeprefix(begin)] = tensor
    missing, unknown = ours.load_state_dict(given, strict=False)
    assert unknown == []
    assert [name for name in missing if not name.startswith("generator.") and name != "output.words.weight"] == []


@torch.no_grad()
def enlarged(model: nn.Module) -> nn.Module:
    """With weights at which outputs differ clearly."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.mul_(3).add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def batch_of(objective_of_pairs: bool, rate: float = 0.3) -> Batch:
    plain = texts(4, 9, 17, 2, 30)
    plain = NextSentence().corrupt(plain, seeded(), tokenizers()) if objective_of_pairs else plain
    return MaskedWords(settings=MaskedWordsConfig(rate=rate)).corrupt(plain, seeded(), tokenizers())


def asked(batch: Batch) -> dict[str, Tensor]:
    """As they are asked."""
    read = batch.inputs
    return {"input_ids": read.ids, "attention_mask": read.mask.long(), "token_type_ids": read.segments}


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_bert_is_the_published_one() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=16, num_attention_heads=4, **THEIRS)
    theirs = enlarged(transformers.BertForPreTraining(config))
    ours = Bert(BertConfig(**TINY, next_sentence=True), SIZES).eval()
    heads = {"cls.predictions.transform.dense": "output.dense", "cls.predictions.transform.LayerNorm": "output.norm"}
    heads |= {"cls.predictions.bias": "output.words.bias", "pooler.dense": "pooler"}
    take_weights(ours, theirs, {**heads, "cls.seq_relationship": "next_sentence"})
    batch = batch_of(True)
    labels = batch.labels.masked_fill(batch.labels < 0, -100)
    with torch.no_grad():
        expected = theirs(**asked(batch), labels=labels, next_sentence_label=batch.next_sentence)
        states = theirs.bert(**asked(batch)).last_hidden_state
        output, memory = ours.read(batch)
        real = batch.inputs.mask
        assert_close(output.features[real], states[real])
        assert_close(ours.logits(output, memory)[real], expected.prediction_logits[real])
        assert_close(ours.further_logits(batch, output), expected.seq_relationship_logits)
    sums = backward(ours, batch, batch.n_tokens, masked_words={}, next_sentence=1.0)
    total = sums["loss"] / batch.n_tokens + sums["next_sentence_loss"] / batch.size
    assert_close(total.detach(), expected.loss)
    found = gradients(ours)
    theirs(**asked(batch), labels=labels, next_sentence_label=batch.next_sentence).loss.backward()
    assert_close(found["src_embedding.weight"][1:], theirs.bert.embeddings.word_embeddings.weight.grad[1:])
    assert found.keys() == {name for name, _ in ours.named_parameters()}
    # A text alone has the states that it has in a batch, padding or not.
    alone = batch.select(torch.tensor([0]))
    with torch.no_grad():
        assert_close(ours.read(alone)[0].features[alone.inputs.mask], output.features[:1][alone.inputs.mask])


def electra() -> tuple[Electra, nn.Module, nn.Module]:
    """Ours with the weights of a published generator and discriminator, and these."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ElectraConfig(embedding_size=12, hidden_size=16, num_attention_heads=4, **THEIRS)
    smaller = {**THEIRS, "intermediate_size": 12}
    of_generator = transformers.ElectraConfig(embedding_size=12, hidden_size=8, num_attention_heads=2, **smaller)
    discriminator = enlarged(transformers.ElectraForPreTraining(config))
    generator = enlarged(transformers.ElectraForMaskedLM(of_generator))
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    ours = Electra(ElectraConfig(**TINY, embedding_size=12, generator_size=0.5), SIZES).eval()
    heads = {"discriminator_predictions.dense.": "dense.", "discriminator_predictions.dense_prediction": "replaced"}
    take_weights(ours, discriminator, heads)
    heads = {"generator_predictions.dense": "output.dense", "generator_predictions.LayerNorm": "output.norm"}
    take_weights(ours.generator, generator, {**heads, "generator_lm_head.bias": "output.words.bias"})
    return ours, discriminator, generator


def test_electra_is_the_published_one() -> None:
    ours, discriminator, generator = electra()
    batch, real = batch_of(True), batch_of(True).inputs.mask
    with torch.no_grad():
        output, memory = ours.read(batch)
        assert_close(output.features[real], generator.electra(**asked(batch)).last_hidden_state[real])
        logits = generator(**asked(batch)).logits
        assert_close(ours.logits(output, memory)[real], logits[real])
        assert_close(ours.encode(batch)[real], discriminator.electra(**asked(batch)).last_hidden_state[real])
        assert_close(ours.further_logits(batch, output)[real], discriminator(**asked(batch)).logits[real])
        torch.manual_seed(5)
        chosen = batch.loss_mask
        ids = batch.inputs.ids.masked_scatter(chosen, draw_words(logits[chosen]))
        replaced = ids != torch.where(chosen, batch.labels, batch.inputs.ids)
        assert bool(replaced.any())
        expected = discriminator(**{**asked(batch), "input_ids": ids}, labels=replaced.long()).loss
    torch.manual_seed(5)
    n_read = int(real.sum())
    training = {"masked_words": {"mask": 1}, "replaced_tokens": 50.0}
    sums = backward(ours, batch, batch.n_tokens, counts={"read": n_read}, **training)
    assert_close(sums["replaced_loss"].detach() / n_read, expected)
    mlm = nn.functional.cross_entropy(logits[chosen], batch.labels[chosen])
    assert_close(sums["loss"] / batch.n_tokens, mlm)
    both = gradients(ours)
    assert both.keys() == {name for name, _ in ours.named_parameters()}
    # Nothing of the discriminator's loss reaches the generator but through the embeddings that they share.
    backward(ours, batch, batch.n_tokens, masked_words={})
    for name, gradient in gradients(ours).items():
        assert torch.equal(gradient, both[name]) == name.startswith("generator."), name


def test_the_discriminator_learns_from_every_real_token_and_from_nothing_else() -> None:
    torch.manual_seed(1)
    model = Electra(ElectraConfig(**TINY, generator_size=0.5, dropout=0.0), SIZES)
    word = 7
    nn.init.constant_(model.generator.output.words.bias, -100.0)
    with torch.no_grad():
        model.generator.output.words.bias[word] = 100.0  # the only one that is drawn
    plain = texts(4, 9, 17, 2)
    plain.targets.ids[0, 1] = word
    batch = MaskedWords(settings=MaskedWordsConfig(rate=0.99)).corrupt(plain, seeded(), tokenizers())
    assert batch.labels[0, 2] == word
    seen: list[Tensor] = []

    def look(module: nn.Module, given: object, logits: Tensor) -> None:
        logits.retain_grad()
        seen.append(logits)

    model.replaced.register_forward_hook(look)
    n_read = int(batch.inputs.mask.sum())
    sums = backward(model, batch, batch.n_tokens, counts={"read": n_read}, masked_words={}, replaced_tokens=50.0)
    logits, gradient = seen[0][..., 0].detach(), seen[0].grad[..., 0]
    # 1 where another word was drawn; drawn but the same is original, and so are BOS, EOS and words that were kept.
    replaced = (batch.labels >= 0) & (batch.labels != word)
    assert not bool(replaced[0, 2])
    signs = torch.where(replaced, logits, -logits)
    losses = -nn.functional.logsigmoid(signs)
    assert_close(sums["replaced_loss"].detach(), losses[batch.inputs.mask].sum())
    expected = 50 / n_read * (torch.sigmoid(logits) - replaced.float())
    torch.testing.assert_close(gradient[batch.inputs.mask], expected[batch.inputs.mask])
    assert int(gradient[~batch.inputs.mask].count_nonzero()) == 0
    assert bool(gradient[batch.inputs.mask].all())


def test_words_are_drawn_by_their_probabilities() -> None:
    torch.manual_seed(2)
    logits = torch.tensor([[math.log(p) if p else -math.inf for p in (0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0)]])
    counts = torch.bincount(draw_words(logits.expand(200_000, -1)), minlength=7).double()
    assert counts[[0, 2, 6]].tolist() == [0, 0, 0]
    expected = 200_000 * logits.exp()[0].double()
    chi_square = ((counts - expected).square() / expected)[[1, 3, 4, 5]].sum()
    assert chi_square < 16.3  # of 3 degrees of freedom: one in a thousand


def parameters(model: nn.Module, *without: str) -> int:
    return sum(one.numel() for name, one in model.named_parameters() if not name.startswith(without or ("-",)))


def test_published_sizes() -> None:
    sizes = VocabularySizes({"src": 30522, "tgt": 30522}, shared=True)
    base = {"hidden_size": 768, "feed_forward_size": 3072, "heads": 12, "layers": 12, "max_positions": 512}
    with torch.device("meta"):
        bert = Bert(BertConfig(**base, next_sentence=True), sizes)
        small = {**base, "hidden_size": 256, "feed_forward_size": 1024, "heads": 4, "embedding_size": 128}
        electra = Electra(ElectraConfig(**small), sizes)
    assert parameters(bert, "output.", "next_sentence.") == 109_482_240  # BertModel: embeddings, encoder, pooler
    assert parameters(electra, "generator.", "dense.", "replaced.") == 13_483_008  # ElectraModel: the discriminator
    generator = electra.config.generator
    assert (generator.hidden_size, generator.heads, generator.feed_forward_size) == (64, 1, 256)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("model", [Bert, Electra])
def test_names_of_the_encoder_are_those_of_the_transformer(model: type[PretrainedEncoder], norm: str) -> None:
    translator = Transformer(TransformerConfig(norm=norm, positions="learned", embedding_norm=True), SIZES)
    weights = translator.state_dict()
    wanted = {name: weights[name].shape for name in weights if name.startswith(("src_embedding", "encoder"))}
    given = model(model.Config(layers=3, norm=norm), SIZES).state_dict()
    assert {name: given[name].shape for name in wanted} == wanted
    assert "src_positions.table" in given


def test_pairs_of_texts_need_two_segments() -> None:
    assert parse(BertConfig, {"segments": 1}, "r").segments == 1
    with pytest.raises(RecipeError, match="set segments to 2, or next_sentence to false"):
        parse(BertConfig, {"segments": 1, "next_sentence": True}, "r")
