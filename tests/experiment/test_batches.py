"""The batches of a recipe: corrupted where its objective does so, and as they are stored where it does not."""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from typing_extensions import override

from nmtkit.data.batches.batch import Batch
from nmtkit.data.batches.batch_stream import BatchStream, sorted_batches
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.experiment.batches import VALIDATION_BATCH_TOKENS, loss_batches, training_batches
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.losses.likelihood import Likelihood
from nmtkit.training.losses.objective import OBJECTIVES
from tests.support.registries import keep_members


@dataclass(frozen=True)
class Unscrambling(Likelihood):
    """Every source id is moved by a random number below the size of the vocabulary."""

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        size = len(tokenizers.src.vocabulary)
        moved = batch.inputs.ids + torch.randint(size, batch.inputs.ids.shape, generator=generator)
        return replace(batch, inputs=replace(batch.inputs, ids=moved % size))


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    keep_members(monkeypatch, OBJECTIVES)
    OBJECTIVES.register("unscrambling")(Unscrambling)
    return Run(RunFolder(trained))


def inputs(batches: list[Batch]) -> list[list[list[int]]]:
    return [batch.inputs.ids.tolist() for batch in batches]


def test_an_objective_corrupts_what_is_trained_on_and_what_the_loss_is_of(run: Run) -> None:
    training = run.recipe.training.changed({"objectives": {"unscrambling": 1.0}})
    recipe, tokenizers = run.recipe.model_copy(update={"training": training}), run.load_tokenizers()
    store = Store.open(run.folder.data, "train")

    def trained_on(seed: int, skipped: int = 0) -> list[list[list[int]]]:
        return inputs([*islice(training_batches(recipe, store, tokenizers, seed), skipped, 3)])

    plain = inputs([*islice(training_batches(run.recipe, store, tokenizers, 1), 3)])
    assert all(one != other for one, other in zip(trained_on(1), plain, strict=True))
    assert trained_on(1) == trained_on(1) == [*trained_on(1)[:1], *trained_on(1, 1)]
    first, again = (inputs([*loss_batches(recipe, store, tokenizers)]) for _ in range(2))
    assert first == again != inputs([*loss_batches(run.recipe, store, tokenizers)])


def test_an_objective_that_corrupts_nothing_leaves_the_batches_as_they_are(run: Run) -> None:
    recipe, tokenizers = run.recipe, run.load_tokenizers()
    store = Store.open(run.folder.data, "train")
    stream = BatchStream(store, recipe.batch, 1, limits=recipe.data.truncation)
    assert inputs([*islice(training_batches(recipe, store, tokenizers, 1), 3)]) == inputs(
        [*islice(stream, 3)]
    )
    batches = sorted_batches(store, VALIDATION_BATCH_TOKENS, recipe.data.truncation)
    assert inputs([*loss_batches(recipe, store, tokenizers)]) == inputs([*batches])
