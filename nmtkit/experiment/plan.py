"""Plans a training run: checks the recipe and collects everything that is known in advance."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from nmtkit.config import Recipe
from nmtkit.core import device as devices
from nmtkit.experiment import checks
from nmtkit.experiment.largest_batch import LEAST_TOKENS, SHARE, UPDATES_AN_EPOCH
from nmtkit.experiment.tuning import candidate_training_configs
from nmtkit.experiment.workloads import AUTO_KEYS
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.origin import FineTuningOrigin, find_origin
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import count_parameters


@dataclass(frozen=True)
class Plan:
    """The input of `execute`, created by `plan`."""

    recipe: Recipe
    """The recipe; for a resumed run, with the values that the run has determined for `auto`."""
    device: torch.device
    resume: bool = False
    """Whether a run is resumed."""
    origin: FineTuningOrigin | None = None
    """The run or runs that provide the initial weights."""
    notes: tuple[str, ...] = ()
    """Warnings and notes for the user."""
    rows: tuple[tuple[str, str], ...] = ()
    """Names and values to print: sizes, `auto` settings, stages and files."""


def plan(
    recipe: Recipe,
    device: torch.device,
    folder: RunFolder | None = None,
    resume: bool = False,
    need_files: bool = True,
) -> Plan:
    """Checks a recipe and plans its run, without writing files, starting anything or drawing random numbers.

    The largest batch, the fastest settings and the vocabulary size depend on the preprocessed text
    and are not known yet. The rows give the rules by which `execute` determines them.

    Args:
        recipe: the recipe to train.
        device: the device to train on.
        folder: the folder to train in, which must not be the recipe's `init_from`. Default: `runs/`
            plus the recipe's name.
        resume: whether to resume the run in the folder, which no longer needs `init_from` and word
            vectors.
        need_files: whether to reject a recipe with missing files. Its sizes can be shown without
            them.

    Raises:
        RecipeError: settings conflict with each other, this machine, or the resumed run.
        DataError: files are missing or do not match.
        CheckpointError: runs are missing.
    """
    if need_files:
        for text in recipe.texts().values():
            checks.require_validation_files(text)
        checks.require_data(recipe)
    checks.require_columns(recipe)
    checks.require_fitting_stages(recipe)
    checks.require_memory(recipe)
    notes = [
        warning for text in recipe.texts().values() if (warning := checks.metric_warning(text))
    ]
    for direction in recipe.data.zero_shot:
        notes.append(
            f"no corpus in data.train has the direction {direction}, so it is translated zero-shot"
        )
    origin = None
    if resume:
        run = Run.open((folder or RunFolder.at(None, recipe.name)).path)
        checks.require_same_recipe(run, recipe)
        recipe = checks.with_values_of(run.recipe, recipe)
        notes += checks.notes_on_resuming(run, recipe)
    else:
        checks.require_languages(recipe)
        if need_files or checks.has_files(recipe):
            checks.require_embeddings(recipe)
            origin = find_origin(recipe, folder)
    return Plan(
        recipe=recipe,
        device=device,
        resume=resume,
        origin=origin,
        notes=tuple(notes),
        rows=tuple(_rows(recipe, device, origin)),
    )


def _rows(
    recipe: Recipe, device: torch.device, origin: FineTuningOrigin | None
) -> Iterator[tuple[str, str]]:
    training = recipe.training
    sizes = recipe.max_vocabulary_sizes
    parameters = count_parameters(checks.model_on_meta([*recipe.by_stage().values()][-1]))
    tokens = " and ".join(
        dict.fromkeys(f"{size:,}" for column, size in sizes.items() if column != "labels")
    )
    yield "model", recipe.model.kind
    yield "parameters", f"{parameters:,} with {tokens} tokens per vocabulary"
    yield "size", f"{parameters * 4 / 2**20:,.0f} MiB in fp32"
    if origin is not None and origin.vocabulary:
        yield "tokenizer", f"{recipe.tokenizer.kind}, from {origin.run}"
    else:
        yield (
            "tokenizer",
            f"{recipe.tokenizer.kind}, trained on data.train; a small text yields fewer tokens",
        )
    yield (
        "optimizer",
        f"{training.optimizer}, learning rate {training.lr}, schedule {training.schedule.kind}",
    )
    if recipe.batch.is_auto:
        batch = "as many padded tokens as fit"
    else:
        batch = f"{recipe.batch.batch_tokens:,} padded tokens"
    yield "batch", f"{batch} x {training.accumulate}"
    yield "device", devices.describe(device)
    yield from _open_settings(recipe, device)
    for number, stage in enumerate(recipe.stages, start=1):
        changes = ", ".join(f"{key} {value}" for key, value in stage.changed_keys())
        yield f"stage {number}", f"{stage.name}: {changes or 'changes nothing'}"
    for key, path in checks.named_files(recipe):
        yield key, path if os.path.exists(path) else f"{path} (missing)"
    if origin is not None:
        for begun_from in origin.parts.values() or [origin]:
            yield "weights", begun_from.weights


def _open_settings(recipe: Recipe, device: torch.device) -> Iterator[tuple[str, str]]:
    """Yields the `auto` settings with their values, or with the rules by which `execute` determines them."""
    if recipe.batch.is_auto:
        yield (
            "batch.batch_tokens",
            f"measured on the preprocessed text: {LEAST_TOKENS} padded tokens at first, then "
            "doubled while the longest examples fit into "
            f"{SHARE['cuda' if device.type == 'cuda' else 'cpu']:.0%} of the free memory and an "
            f"epoch has at least {UPDATES_AN_EPOCH} updates",
        )
    open_keys = [key for key in AUTO_KEYS if getattr(recipe.training, key) == "auto"]
    first_stage = next(iter(recipe.by_stage().values()))
    bf16_allowed = first_stage.model.bf16_allowed
    candidates = candidate_training_configs(first_stage.training, device, bf16_allowed)
    if first_stage.training.shard:
        # the model may not fit into one process, so nothing is measured
        candidates = candidates[:1]
    for key in open_keys:
        values = dict.fromkeys(str(getattr(candidate, key)) for candidate in candidates)
        first, *others = values
        if others:
            yield (
                f"training.{key}",
                f"{' or '.join(values)}: whichever is fastest in a few updates on the preprocessed "
                f"text without raising the loss; {first} if the run is too short to measure",
            )
        else:
            yield f"training.{key}", first
