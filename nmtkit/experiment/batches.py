"""The batches for training and for the validation loss of a recipe."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from nmtkit.config import Recipe
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch
from nmtkit.data.batches.batch_stream import BatchStream, Corruption, sorted_batches, widest_batch
from nmtkit.data.batches.running_text import BlockStream, blocks_in_order
from nmtkit.data.batches.sampled_text import SampledStream
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.training.losses.objective import build_objectives

VALIDATION_BATCH_TOKENS = 4096
"""Number of padded tokens of the longer side in a validation batch."""


def training_batches(
    recipe: Recipe, store: Store, tokenizers: Tokenizers, seed: int
) -> BatchStream:
    """Returns the batches of all processes for training with a recipe or a stage's recipe."""
    if recipe.batch.is_auto:
        raise RecipeError(
            "batch.batch_tokens: only `nmtkit train` can determine `auto`; set a number"
        )
    stream: Callable[..., BatchStream] = (
        BatchStream if recipe.batch.block_tokens is None else BlockStream
    )
    if tokenizers.sampling:
        stream = partial(SampledStream, tokenizers=tokenizers)
    return stream(
        store,
        recipe.batch,
        seed,
        limits=recipe.data.truncation,
        weights=recipe.data.train.epoch_weights(store.examples_per_file),
        corrupt=_corruption(recipe, tokenizers),
    )


def longest_examples(
    recipe: Recipe, store: Store, tokenizers: Tokenizers, batch_tokens: int
) -> Batch:
    """Returns the batch with this many padded tokens that needs the most memory."""
    return widest_batch(
        store, batch_tokens, recipe.data.truncation, _corruption(recipe, tokenizers)
    )


def loss_batches(recipe: Recipe, store: Store, tokenizers: Tokenizers) -> Iterator[Batch]:
    """Yields the batches of a stored split once; they are the same every time."""
    budget, corrupt = VALIDATION_BATCH_TOKENS, _corruption(recipe, tokenizers)
    if recipe.batch.block_tokens is None:
        return sorted_batches(store, budget, recipe.data.truncation, corrupt)
    return blocks_in_order(
        store, recipe.batch.changed({"batch_tokens": budget, "batch_size": None}), corrupt
    )


def _corruption(recipe: Recipe, tokenizers: Tokenizers) -> Corruption:
    objectives = build_objectives(recipe.training)

    def corrupt(batch: Batch, generator: torch.Generator) -> Batch:
        for objective in objectives:
            batch = objective.corrupt(batch, generator, tokenizers)
        return batch

    return corrupt
