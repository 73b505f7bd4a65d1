"""ELECTRA beside the published one (`transformers`) with the same weights, its size, and how it is trained."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nmtkit.config import Recipe, load
from nmtkit.core.errors import RecipeError
from nmtkit.experiment.checks import require_fitting_stages
from nmtkit.models.base import VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.training.losses.masked_words import MaskedWords, MaskedWordsConfig
from nmtkit.zoo import electra as zoo_electra
from nmtkit.zoo.electra import Electra, ElectraConfig, draw_words
from tests.support.gradients import backward, gradients
from tests.support.pretraining_batches import WORDS, seeded, texts, tokenizers
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
from tests.support.tiny_training import FromList, run, same_weights, settings, steps


@pytest.fixture(autouse=True)
def generator_of_half_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_electra, "GENERATOR_SHARE", 0.5)


def electra() -> tuple[Electra, nn.Module, nn.Module]:
    """Ours with the weights of a published generator and discriminator, and these."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ElectraConfig(
        embedding_size=12, hidden_size=16, num_attention_heads=4, **THEIRS
    )
    smaller = {**THEIRS, "intermediate_size": 12}
    of_generator = transformers.ElectraConfig(
        embedding_size=12, hidden_size=8, num_attention_heads=2, **smaller
    )
    discriminator = enlarged(transformers.ElectraForPreTraining(config))
    generator = enlarged(transformers.ElectraForMaskedLM(of_generator))
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    ours = Electra(ElectraConfig(**TINY, embedding_size=12), SIZES).eval()
    heads = {
        "discriminator_predictions.dense.": "dense.",
        "discriminator_predictions.dense_prediction": "replaced",
    }
    take_weights(ours, discriminator, heads)
    heads = {
        "generator_predictions.dense": "output.dense",
        "generator_predictions.LayerNorm": "output.norm",
    }
    take_weights(
        ours.generator, generator, {**heads, "generator_lm_head.bias": "output.words.bias"}
    )
    return ours, discriminator, generator


def test_electra_is_the_published_one() -> None:
    ours, discriminator, generator = electra()
    batch = batch_of_pairs()
    real = batch.inputs.mask
    with torch.no_grad():
        output, memory = ours.read(batch)
        assert_close(
            output.features[real], generator.electra(**asked(batch)).last_hidden_state[real]
        )
        logits = generator(**asked(batch)).logits
        assert_close(ours.logits(output, memory)[real], logits[real])
        assert_close(
            ours.encode(batch)[real], discriminator.electra(**asked(batch)).last_hidden_state[real]
        )
        assert_close(
            ours.auxiliary_logits(batch, output)[real], discriminator(**asked(batch)).logits[real]
        )
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
    model = Electra(ElectraConfig(**TINY, dropout=0.0), SIZES)
    word = 7
    nn.init.constant_(model.generator.output.words.bias, -100.0)
    with torch.no_grad():
        model.generator.output.words.bias[word] = 100.0  # the only one that is drawn
    plain = texts(4, 9, 17, 2)
    plain.targets.ids[0, 1] = word
    batch = MaskedWords(settings=MaskedWordsConfig(rate=0.99)).corrupt(
        plain, seeded(), tokenizers()
    )
    assert batch.labels[0, 2] == word
    seen: list[Tensor] = []

    def look(module: nn.Module, given: object, logits: Tensor) -> None:
        logits.retain_grad()
        seen.append(logits)

    model.replaced.register_forward_hook(look)
    n_read = int(batch.inputs.mask.sum())
    sums = backward(
        model, batch, batch.n_tokens, counts={"read": n_read}, masked_words={}, replaced_tokens=50.0
    )
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
    logits = torch.tensor(
        [[math.log(p) if p else -math.inf for p in (0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0)]]
    )
    counts = torch.bincount(draw_words(logits.expand(200_000, -1)), minlength=7).double()
    assert counts[[0, 2, 6]].tolist() == [0, 0, 0]
    expected = 200_000 * logits.exp()[0].double()
    chi_square = ((counts - expected).square() / expected)[[1, 3, 4, 5]].sum()
    assert chi_square < 16.3  # of 3 degrees of freedom: one in a thousand


def test_published_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_electra, "GENERATOR_SHARE", 0.25)
    sizes = VocabularySizes({"src": 30522, "tgt": 30522}, shared=True)
    small = {
        "hidden_size": 256,
        "feed_forward_size": 1024,
        "heads": 4,
        "layers": 12,
        "embedding_size": 128,
    }
    with torch.device("meta"):
        electra = Electra(ElectraConfig(**small, max_positions=512), sizes)
    # ElectraModel: the discriminator
    assert parameters(electra, "generator.", "dense.", "replaced.") == 13_483_008
    generator = electra.config.generator
    assert (generator.hidden_size, generator.heads, generator.feed_forward_size) == (64, 1, 256)


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
    given = Electra(ElectraConfig(layers=3, norm=norm), SIZES).state_dict()
    assert {name: given[name].shape for name in wanted} == wanted
    assert "src_positions.table" in given


RECIPE = """
task: language-modelling
data: {train: {tgt: a}, valid: {tgt: b}}
tokenizer: {specials: [<mask>]}
model: {kind: bert}
training: {max_updates: 1, best_metric: loss, objectives: {masked_words: {}}}
"""


def loaded(folder: Path, *changes: str) -> Recipe:
    (folder / "bert.yaml").write_text(RECIPE)
    return load(folder / "bert.yaml", changes)


def test_an_encoder_without_a_discriminator_is_refused(tmp_path: Path) -> None:
    message = "`training.objectives.replaced_tokens`: the model has no output layer for this objective; `nmtkit"
    with pytest.raises(RecipeError, match=message):
        loaded(tmp_path, "training.replaced_tokens=50")


SMALL = {"hidden_size": 16, "feed_forward_size": 16, "heads": 4, "layers": 1}


def test_an_electra_whose_encoder_learns_nothing_is_refused(tmp_path: Path) -> None:
    given = "model={kind: electra}", "training.objectives.masked_words.mask=1"
    with pytest.raises(
        RecipeError,
        match=r"objectives.replaced_tokens` is missing; without it, electra trains only its generator",
    ):
        require_fitting_stages(loaded(tmp_path, *given))
    require_fitting_stages(loaded(tmp_path, *given, "training.objectives.replaced_tokens=50"))
    staged = "stages=[{name: warm}, {name: both, training: {objectives: {replaced_tokens: 50}}}]"
    require_fitting_stages(loaded(tmp_path, *given, staged))


def fresh_electra() -> Electra:
    torch.manual_seed(1)
    return Electra(ElectraConfig(**SMALL), VocabularySizes({"src": WORDS, "tgt": WORDS}, True))


def test_a_resumed_training_draws_the_same_words(tmp_path: Path) -> None:
    masking = MaskedWords(settings=MaskedWordsConfig(mask=1.0, rate=0.3))
    stream = [
        masking.corrupt(texts(4, 9, 6, seed=seed), seeded(seed), tokenizers()) for seed in range(4)
    ]
    config = settings(masked_words={}, replaced_tokens=50.0)
    straight, events = run(tmp_path / "straight", config, fresh_electra(), FromList(stream))
    run(tmp_path / "stopped", config.changed({"max_updates": 3}), fresh_electra(), FromList(stream))
    resumed, _ = run(tmp_path / "stopped", config, fresh_electra(), FromList(stream), resume=True)
    assert same_weights(straight, resumed)
    assert [[*step.terms] for step in steps(events)] == [["nll", "ppl", "replaced_loss"]] * 4
    for step in steps(events):
        assert step.loss == pytest.approx(step.terms["nll"] + 50 * step.terms["replaced_loss"])
