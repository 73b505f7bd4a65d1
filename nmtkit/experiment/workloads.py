"""A training run as a workload to measure: the model, the first batches and the limits."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from nmtkit.config import Recipe
from nmtkit.core import speed_cache
from nmtkit.core.version import __version__
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.batches.batch_stream import widths
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS
from nmtkit.experiment.batches import training_batches
from nmtkit.models.abilities import reads_sentences
from nmtkit.models.base import MODELS, Model, VocabularySizes
from nmtkit.runs.run import Run, build_model, sizes_of
from nmtkit.training.config import TrainingConfig
from nmtkit.training.losses.objective import OBJECTIVES
from nmtkit.training.parallel import processes

AUTO_KEYS = ("precision", "matmul_precision", "threads")
"""The `auto` settings in the recipe's group `training`."""
MIN_MINUTES = 2.0
"""A run with fewer `max_minutes` is short ..."""
MIN_TOKENS = 500_000
"""... and so is one whose updates have fewer target tokens in all."""
_SENTENCE = 25
"""Approximate number of words per sentence, counting its end as one."""


@dataclass(frozen=True)
class TrainingWorkload:
    """A training run to measure."""

    build: Callable[[], Model]
    """Creates the model."""
    first_batches: Callable[[int], Sequence[Batch]]
    """Returns the given number of batches from the start of training."""
    config: TrainingConfig
    device: torch.device
    key: Mapping[str, Any]
    """The key of the cached result; see `training_workload_key`."""
    updates_an_epoch: float
    """Approximate number of updates per epoch; infinite if unknown."""


def is_too_short(workload: TrainingWorkload) -> bool:
    """Returns whether a run is too short to be measured, judging only by its recipe and text."""
    config = workload.config
    if config.max_minutes and config.max_minutes < MIN_MINUTES:
        return True
    updates = math.inf
    if config.max_updates:
        updates = config.max_updates
    if config.max_epochs:
        updates = min(updates, config.max_epochs * workload.updates_an_epoch)
    (batch,) = workload.first_batches(1)
    tokens_an_update = batch.n_tokens * config.accumulate * processes.size()
    return updates * processes.max_over_ranks([tokens_an_update])[0] < MIN_TOKENS


class CyclingStream:
    """Repeats the given batches, or a part of each."""

    epoch = 0

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.next = 0
        self.every = 1
        """Each batch uses only one out of this many sentences."""

    def __next__(self) -> Batch:
        batch = self.batches[self.next % len(self.batches)]
        self.next += 1
        return (
            batch
            if self.every == 1
            else batch.select(torch.arange(0, batch.size, min(self.every, batch.size)))
        )

    def state(self) -> dict[str, int]:
        """Returns the position of the next batch."""
        return {"batch": self.next}

    def restore(self, state: Mapping[str, int]) -> None:
        """Restores the position."""
        self.next = state["batch"]


def training_workload_key(
    recipe: Recipe, sizes: VocabularySizes, device: torch.device
) -> dict[str, Any]:
    """Returns the key of the cached result: everything that determines the speed of an update."""
    deciding = {"accumulate", "optimizer", "ema_decay", "objectives", *OBJECTIVES} - {
        "label_smoothing"
    }
    model = recipe.model.model_dump(mode="json")
    return {
        "work": "training",
        "nmtkit": __version__,
        "torch": torch.__version__,
        "machine": speed_cache.machine(device),
        "model": {key: value for key, value in model.items() if "dropout" not in key},
        "processes": processes.size(),
        "vocabularies": [*sizes.values()],
        "batch": [
            recipe.batch.batch_tokens,
            recipe.batch.batch_size,
            *filter(None, [recipe.batch.block_tokens]),
        ],
        "limits": list(recipe.data.truncation or ()),
        "training": recipe.training.model_dump(mode="json", include={*AUTO_KEYS, *deciding}),
    }


def workload_of_run(run: Run, device: torch.device, number: int = 0) -> TrainingWorkload:
    """Returns the workload of a preprocessed run, or of the stage with this number (from 0)."""
    stage, tokenizers = run.stages()[number], run.load_tokenizers()
    first, store = stage.recipe, Store.open(stage.data, "train")

    def first_batches(count: int) -> list[Batch]:
        return list(islice(training_batches(first, store, tokenizers, first.seed), count))

    numbers = np.arange(
        0, len(store), max(1, len(store) // 1_000_000)
    )  # only a sample of a large corpus
    tokens = int(np.maximum(*widths(store, None, numbers)).sum()) * len(store) / len(numbers)
    examples = tokens / first.batch.block_tokens if first.batch.block_tokens else len(store)
    batches = max(
        tokens / first.batch.batch_tokens, examples / (first.batch.batch_size or math.inf)
    )
    return TrainingWorkload(
        build=lambda: build_model(first, tokenizers),
        first_batches=first_batches,
        config=first.training,
        device=device,
        key=training_workload_key(first, sizes_of(tokenizers), device),
        updates_an_epoch=batches / first.training.accumulate / processes.size(),
    )


def synthetic_workload(
    recipe: Recipe, lengths: tuple[int, int], device: torch.device
) -> TrainingWorkload:
    """Returns the workload of a recipe without text, with random words and the largest vocabulary.

    `lengths` are typical source and target lengths in tokens. For a recipe with stages, the workload is
    that of the first stage.
    """
    first = first_stage(recipe)
    sizes, (src, tgt) = first.max_vocabulary_sizes, truncated_lengths(first, lengths)
    rows = max(
        1,
        min(first.batch.batch_tokens // (max(src, tgt) + 1), first.batch.batch_size or sys.maxsize),
    )

    def random_batches(count: int) -> list[Batch]:
        draw = np.random.default_rng(1)

        def words(length: int, size: int) -> list[Any]:
            return list(draw.integers(len(SPECIALS), size, (rows, length)))

        reads = words(src, sizes["src"]) if "src" in sizes else None
        if "labels" in sizes:
            for row in reads or [] if reads_sentences(first.model) else []:
                row[_SENTENCE::_SENTENCE] = EOS
            return [
                collate(reads, labels=[np.zeros((1, 1), dtype=np.int64)] * rows)
                for _ in range(count)
            ]
        return [collate(reads, words(tgt, sizes["tgt"])) for _ in range(count)]

    return TrainingWorkload(
        build=lambda: MODELS.get(first.model.kind)(first.model, sizes),
        first_batches=random_batches,
        config=first.training,
        device=device,
        key=training_workload_key(first, sizes, device),
        updates_an_epoch=math.inf,
    )


def first_stage(recipe: Recipe) -> Recipe:
    """Returns the recipe of the first stage."""
    return next(iter(recipe.by_stage().values()))


def truncated_lengths(stage: Recipe, lengths: tuple[int, int]) -> tuple[int, int]:
    """Returns source and target lengths, limited to the recipe's truncation."""
    src, tgt = stage.data.truncation or lengths
    return min(src, lengths[0]), min(tgt, lengths[1])


def planned_seconds(
    config: TrainingConfig, seconds_an_update: float, updates_an_epoch: float
) -> float:
    """Returns the training time at this speed; infinite if it cannot be predicted, as with only `patience`."""
    an_epoch = updates_an_epoch * seconds_an_update
    limits = [
        (config.max_minutes, 60.0),
        (config.max_updates, seconds_an_update),
        (config.max_epochs, an_epoch),
    ]
    return min((most * seconds for most, seconds in limits if most), default=math.inf)
