"""Masked words (Devlin et al. 2019, section 3.1)."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtkit.config import Recipe, load
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.bert import Bert, BertConfig
from nmtkit.training.losses.masked_words import MaskedWords, MaskedWordsConfig
from tests.support.gradients import backward, gradients
from tests.support.pretraining_batches import MASK, WORDS, seeded, texts, tokenizers

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
    expected = (
        n
        * torch.tensor(
            [0.15 * 0.8, 0.15 * (0.1 - by_chance), 0.15 * (0.1 + by_chance), 0.85]
        ).double()
    )
    assert surprise(counts, expected) < 4
    drawn = torch.bincount(after[chosen & (after != before) & (after != MASK)], minlength=WORDS)[
        5:
    ].double()
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "tokenizer.specials=[]",
            r"`training.objectives.masked_words`: this objective needs special tokens; add \['<mask>'\] to",
        ),
        (
            "training.objectives.masked_words=null",
            r"training bert on text requires an objective \(masked_words\); set `training.objectives.masked_words`",
        ),
        (
            "training.label_smoothing=0.1",
            "masked_words replaces the likelihood, so it cannot be combined with lab",
        ),
        (
            "model={kind: transformer_lm}",
            "`training.objectives.masked_words`: this objective cannot be used with model `transformer_lm` and "
            "task `language-modelling`",
        ),
    ],
)
def test_recipes_that_do_not_fit(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        loaded(tmp_path, change)


def test_a_batch_of_which_no_word_was_chosen_changes_nothing(tmp_path: Path) -> None:
    empty = masked(texts(4, 9), rate=1e-9)
    assert empty.n_tokens == 0
    torch.manual_seed(1)
    sizes = VocabularySizes({"src": WORDS, "tgt": WORDS}, True)
    model = Bert(BertConfig(hidden_size=16, feed_forward_size=16, heads=4, layers=1), sizes)
    sums = backward(model, empty, 1, masked_words={})
    assert float(sums["loss"]) == 0
    assert not any(bool(one.any()) for one in gradients(model).values())
