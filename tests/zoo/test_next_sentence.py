"""Next sentence prediction (Devlin et al. 2019, section 3.1)."""

from pathlib import Path

import pytest
from torch import Tensor

from nmtkit.config import Recipe, load
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.experiment.checks import require_fitting_stages
from nmtkit.training.losses.masked_words import MaskedWords, MaskedWordsConfig
from nmtkit.zoo.next_sentence import NextSentence, PairClasses
from tests.support.pretraining_batches import seeded, texts, tokenizers

KNOWN = tokenizers()


def pairs(batch: Batch, seed: int = 1) -> Batch:
    return NextSentence().corrupt(batch, seeded(seed), KNOWN)


def classes_of(batch: Batch) -> Tensor:
    pairs = batch.extra(PairClasses)
    assert pairs is not None
    return pairs.classes


def test_a_pair_is_a_text_cut_in_two_or_of_two_texts() -> None:
    plain = texts(*range(2, 42))
    words = [row[: row.index(EOS)] for row in plain.targets.ids.tolist()]
    batch = pairs(plain)
    assert batch.inputs.segments is not None
    for number, label in enumerate(classes_of(batch).tolist()):
        row = batch.inputs.ids[number, : batch.inputs.lengths[number]].tolist()
        end = row.index(EOS)
        first, second = row[1:end], row[end + 1 : -1]
        assert (row[0], row[-1], len(first) > 0, len(second) > 0) == (BOS, EOS, True, True)
        assert batch.inputs.segments[number].tolist() == [0] * (end + 1) + [1] * (
            len(row) - end - 1
        ) + [0] * (batch.inputs.ids.shape[1] - len(row))
        assert words[number][: len(first)] == first
        ends = [text for text in words if text[-len(second) :] == second]
        assert (words[number] in ends) == (label == 0)
        assert ends
    # Every token is read with the words hidden, and the segments stay.
    hidden = MaskedWords(settings=MaskedWordsConfig(rate=0.5)).corrupt(batch, seeded(), KNOWN)
    assert hidden.inputs.segments is batch.inputs.segments
    assert hidden.extra(PairClasses) is batch.extra(PairClasses)


def test_half_of_the_pairs_are_of_two_texts_whose_length_does_not_tell() -> None:
    batch = pairs(texts(*[64] * 4000))
    assert abs(float(classes_of(batch).double().mean()) - 0.5) < 4 * 0.5 / 4000**0.5
    assert {*batch.inputs.lengths.tolist()} == {64 + 3}
    alone = pairs(texts(1))  # too short to be cut, and there is no other
    assert alone.inputs.ids[0, 2:].tolist() == [EOS, EOS]
    assert not bool(classes_of(alone).any())


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
            "training.objectives={masked_words: null, next_sentence: 1}",
            r"training bert on text requires an objective \(masked_words\); set `training.objectives.ma",
        ),
        (
            "training.objectives.next_sentence=1",
            "`training.objectives.next_sentence`: the model has no output layer for this objective; `nmtkit",
        ),
        (
            "training.next_sentence=1",
            "`training.objectives.next_sentence`: the model has no output layer for this objective; `nmtkit",
        ),
    ],
)
def test_recipes_that_do_not_fit(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        loaded(tmp_path, change)


def test_a_recipe_that_fits(tmp_path: Path) -> None:
    given = "model={kind: bert, next_sentence: true}"
    require_fitting_stages(loaded(tmp_path, given, "training.objectives.next_sentence=1"))
    with pytest.raises(
        RecipeError,
        match=r"objectives.next_sentence` is missing; without it, the head .* remains random; set it",
    ):
        require_fitting_stages(loaded(tmp_path, given))
