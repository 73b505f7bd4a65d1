"""Masked words and the next sentence (Devlin et al. 2019, section 3.1)."""

from pathlib import Path

import pytest
import torch
from gradients import backward, gradients
from pretraining import MASK, WORDS, seeded, texts, tokenizers
from tiny_training import FromList, run, same_weights, settings, steps
from torch import Tensor

from nmtkit.config import Recipe, load
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.experiment.checks import require_fitting_stages
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.electra import Electra, ElectraConfig
from nmtkit.training.losses.masked_words import MaskedWords, MaskedWordsConfig, NextSentence

KNOWN = tokenizers()


def masked(batch: Batch, seed: int = 1, **settings: float) -> Batch:
    return MaskedWords(settings=MaskedWordsConfig(**settings)).corrupt(batch, seeded(seed), KNOWN)


def surprise(counts: Tensor, expected: Tensor) -> float:
    """The chi-square statistic as standard deviations above its mean, which is that of as many squared normals."""
    freedom = len(counts) - 1
    return float(((counts - expected).square() / expected).sum() - freedom) / (2 * freedom) ** 0.5


def test_shares_and_random_words_of_a_million_tokens() -> None:
    plain = texts(*[499] * 2000)
    batch = masked(plain)
    before = torch.cat([torch.full((2000, 1), BOS), plain.targets.ids], 1)
    after, words, n = batch.inputs.ids, before >= 5, 499 * 2000
    chosen = batch.labels >= 0
    assert torch.equal(batch.labels[chosen], before[chosen])
    assert not bool(chosen[~words].any())
    assert torch.equal(after[~chosen], before[~chosen])
    # A random word is the one that was there in one of V - 5 cases.
    hidden, same = (after == MASK).sum(), (chosen & (after == before)).sum()
    other, by_chance = chosen.sum() - hidden - same, 0.1 / (WORDS - 5)
    counts = torch.stack([hidden, other, same, n - chosen.sum()]).double()
    expected = n * torch.tensor([0.15 * 0.8, 0.15 * (0.1 - by_chance), 0.15 * (0.1 + by_chance), 0.85]).double()
    assert surprise(counts, expected) < 4
    drawn = torch.bincount(after[chosen & (after != before) & (after != MASK)], minlength=WORDS)[5:].double()
    assert surprise(drawn, drawn.mean().expand(len(drawn))) < 4
    # Words are chosen independently: in a text as often as a binomial says.
    of_texts = chosen.sum(1).double()
    assert of_texts.var() == pytest.approx(499 * 0.15 * 0.85, rel=0.15)


def test_lines_and_blocks_are_read_whole_after_bos() -> None:
    batch = masked(texts(3, 1), rate=0.999, mask=1.0)
    assert batch.inputs.ids.tolist() == [[BOS, MASK, MASK, MASK, EOS], [BOS, MASK, EOS, 0, 0]]
    assert batch.inputs.lengths.tolist() == batch.inputs.mask.sum(1).tolist() == [5, 3]
    assert not batch.has_targets
    ids = torch.tensor([[7, 8, EOS, 9]])
    block = Batch(targets=Targets(torch.tensor([[6, 7, 8, EOS]]), ids, ids, ids > 0))
    assert masked(block, rate=1e-9).inputs.ids.tolist() == [[BOS, 7, 8, EOS, 9]]


def pairs(batch: Batch, seed: int = 1) -> Batch:
    return NextSentence().corrupt(batch, seeded(seed), KNOWN)


def test_a_pair_is_a_text_cut_in_two_or_of_two_texts() -> None:
    plain = texts(*range(2, 42))
    words = [row[: row.index(EOS)] for row in plain.targets.ids.tolist()]
    batch = pairs(plain)
    assert batch.next_sentence is not None
    assert batch.inputs.segments is not None
    for number, label in enumerate(batch.next_sentence.tolist()):
        row = batch.inputs.ids[number, : batch.inputs.lengths[number]].tolist()
        end = row.index(EOS)
        first, second = row[1:end], row[end + 1 : -1]
        assert (row[0], row[-1], len(first) > 0, len(second) > 0) == (BOS, EOS, True, True)
        assert batch.inputs.segments[number].tolist() == [0] * (end + 1) + [1] * (len(row) - end - 1) + [0] * (
            batch.inputs.ids.shape[1] - len(row)
        )
        assert words[number][: len(first)] == first
        ends = [text for text in words if text[-len(second) :] == second]
        assert (words[number] in ends) == (label == 0)
        assert ends
    # Every token is read with the words hidden, and the segments stay.
    hidden = masked(batch, rate=0.5)
    assert hidden.inputs.segments is batch.inputs.segments
    assert hidden.next_sentence is batch.next_sentence


def test_half_of_the_pairs_are_of_two_texts_whose_length_does_not_tell() -> None:
    batch = pairs(texts(*[64] * 4000))
    assert batch.next_sentence is not None
    assert abs(float(batch.next_sentence.double().mean()) - 0.5) < 4 * 0.5 / 4000**0.5
    assert {*batch.inputs.lengths.tolist()} == {64 + 3}
    alone = pairs(texts(1))  # too short to be cut, and there is no other
    assert alone.inputs.ids[0, 2:].tolist() == [EOS, EOS]
    assert alone.next_sentence is not None
    assert not bool(alone.next_sentence.any())


RECIPE = """
task: language-modelling
data: {train: {tgt: a}, valid: {tgt: b}}
tokenizer: {specials: [<mask>]}
model: {kind: bert}
training: {max_updates: 1, best_metric: loss, higher_is_better: false, masked_words: {}}
"""


def loaded(folder: Path, *changes: str) -> Recipe:
    (folder / "bert.yaml").write_text(RECIPE)
    return load(folder / "bert.yaml", changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "tokenizer.specials=[]",
            r"`training.masked_words`: it needs special tokens: add \['<mask>'\] to `tokenizer.sp",
        ),
        ("training.masked_words=null", "bert learns from texts by masked_words: set `training.masked_words`"),
        ("training={masked_words: null, next_sentence: 1}", "bert learns from texts by masked_words: set `training.ma"),
        (
            "training.label_smoothing=0.1",
            "masked_words: it takes the place of the likelihood, so not together with lab",
        ),
        (
            "training.next_sentence=1",
            "`training.next_sentence`: this bert has no head for it; see the settings of `mod",
        ),
        ("model={kind: transformer_lm}", "`training.masked_words`: it trains no transformer_lm for language-modelling"),
        ("training.replaced_tokens=50", "`training.replaced_tokens`: this bert has no head for it"),
    ],
)
def test_recipes_that_do_not_fit(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        loaded(tmp_path, change)


def test_a_recipe_that_fits(tmp_path: Path) -> None:
    given = "model={kind: bert, next_sentence: true}"
    require_fitting_stages(loaded(tmp_path, given, "training.next_sentence=1"))
    with pytest.raises(RecipeError, match=r"`training.next_sentence`: without it the head .* remains random; set it"):
        require_fitting_stages(loaded(tmp_path, given))


SMALL = {"hidden_size": 16, "feed_forward_size": 16, "heads": 4, "layers": 1}


def test_an_electra_whose_encoder_learns_nothing_is_refused(tmp_path: Path) -> None:
    given = "model={kind: electra}", "training.masked_words.mask=1"
    with pytest.raises(RecipeError, match=r"`training.replaced_tokens`: without it electra trains its generator alone"):
        require_fitting_stages(loaded(tmp_path, *given))
    require_fitting_stages(loaded(tmp_path, *given, "training.replaced_tokens=50"))
    staged = "stages=[{name: warm}, {name: both, training: {replaced_tokens: 50}}]"
    require_fitting_stages(loaded(tmp_path, *given, staged))


def fresh_electra() -> Electra:
    torch.manual_seed(1)
    return Electra(ElectraConfig(**SMALL, generator_size=0.5), VocabularySizes({"src": WORDS, "tgt": WORDS}, True))


def test_a_resumed_training_draws_the_same_words(tmp_path: Path) -> None:
    stream = [masked(texts(4, 9, 6, seed=seed), seed, mask=1.0, rate=0.3) for seed in range(4)]
    config = settings(masked_words={}, replaced_tokens=50.0)
    straight, events = run(tmp_path / "straight", config, fresh_electra(), FromList(stream))
    run(tmp_path / "stopped", config.changed({"max_updates": 3}), fresh_electra(), FromList(stream))
    resumed, _ = run(tmp_path / "stopped", config, fresh_electra(), FromList(stream), resume=True)
    assert same_weights(straight, resumed)
    assert [[*step.terms] for step in steps(events)] == [["nll", "ppl", "replaced_loss"]] * 4
    for step in steps(events):
        assert step.loss == pytest.approx(step.terms["nll"] + 50 * step.terms["replaced_loss"])


def test_a_batch_of_which_no_word_was_chosen_changes_nothing(tmp_path: Path) -> None:
    empty = masked(texts(4, 9), rate=1e-9)
    assert empty.n_tokens == 0
    model = fresh_electra()
    sums = backward(model, empty, 1, masked_words={})
    assert float(sums["loss"]) == 0
    assert not any(bool(one.any()) for one in gradients(model).values())
