"""The batches that a recipe trains on, and those that its loss is measured on."""

from collections.abc import Iterator

import torch

from nmtkit.data.batch import Batch
from nmtkit.data.store import Store
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.objectives.objective import build_objectives
from nmtkit.recipe import Recipe
from nmtkit.streams.batch_stream import BatchStream, Corruption, sorted_batches
from nmtkit.streams.running_text import BlockStream, blocks_in_order


def training_batches(recipe: Recipe, store: Store, tokenizers: Tokenizers, seed: int) -> BatchStream:
    """The batches of all processes in a training by a recipe, or by a stage's recipe."""
    stream = BatchStream if recipe.batch.block_tokens is None else BlockStream
    return stream(
        store,
        recipe.batch,
        seed,
        tokenizers=tokenizers,
        limits=recipe.data.truncation,
        weights=recipe.data.train.epoch_weights(store.by_file),
        corrupt=_corruption(recipe, tokenizers),
    )


def loss_batches(recipe: Recipe, store: Store, tokenizers: Tokenizers) -> Iterator[Batch]:
    """All of a stored split once, the same every time."""
    budget, corrupt = recipe.evaluation.batch_tokens, _corruption(recipe, tokenizers)
    if recipe.batch.block_tokens is None:
        return sorted_batches(store, budget, recipe.data.truncation, corrupt)
    return blocks_in_order(store, recipe.batch.changed({"batch_tokens": budget, "batch_size": None}), corrupt)


def _corruption(recipe: Recipe, tokenizers: Tokenizers) -> Corruption:
    objectives = build_objectives(recipe.training)

    def corrupt(batch: Batch, generator: torch.Generator) -> Batch:
        for objective in objectives:
            batch = objective.corrupt(batch, generator, tokenizers)
        return batch

    return corrupt
