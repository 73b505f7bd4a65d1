"""Imports a model from another toolkit as a run."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nmtkit.config import Recipe
from nmtkit.config.tasks.builtin import SUMMARIZATION, TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.convert.external_files import has_weights
from nmtkit.convert.imported_model import READERS, ImportedModel
from nmtkit.core.errors import CheckpointError, NmtkitError, RecipeError
from nmtkit.core.files import new_folder, write_errors, write_json
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import is_valid_name, parse
from nmtkit.decoding.settings import BeamConfig
from nmtkit.models.abilities import pretraining_objectives
from nmtkit.models.base import MODELS
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.run import Run

_TASKS = (TRANSLATION.name, SUMMARIZATION.name)
"""Tasks for which a model with a source and a target can be imported."""

_PUBLIC_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""Files of a public model in addition to its weights."""


def detect_toolkit(path: Path) -> str:
    """Returns the toolkit that probably wrote these files."""
    if path.suffix == ".pt":
        return "opennmt-py"
    if any(path.glob("*.ckpt")):
        return "joeynmt"
    has_config = (
        path / "config.json"
    ).exists()  # optimizers may be saved as .pt in the same folder
    return "opennmt-py" if any(path.glob("*.pt")) and not has_config else "huggingface"


def import_run(
    source: Path,
    path: str | None = None,
    notify: Notify = ignore,
    toolkit: str | None = None,
    task: str | None = None,
    source_prefix: str | None = None,
) -> RunFolder:
    """Imports a folder or checkpoint from another toolkit as a run; detects the toolkit by default.

    `path` defaults to `runs/` plus the name of `source`. `notify` receives notes about the model.
    `task` is one of nmtkit's tasks, or one for which the model has settings (see `TaskVariant`).
    `source_prefix` is put before every source.
    """
    _require_foreign(source)
    name = source.stem if source.is_file() else source.name
    name = name if is_valid_name(name) else source.resolve().name
    run = RunFolder.at(path, name)
    with new_folder(run.path, "choose another folder with -o") as unfinished:
        imported = READERS.get(toolkit or detect_toolkit(source))(source)
        imported = choose_task(imported, task, source_prefix)
        title = run.path.resolve().name
        _write(RunFolder(unfinished), imported, name, title if is_valid_name(title) else "imported")
        if imported.tokenizers.config.kind == "huggingface":
            _keep_public_files(source, RunFolder(unfinished))
    notify(_describe_model(imported))
    if imported.search:
        origin = imported.search_source or f"used by {imported.toolkit}"
        notify(
            f"search settings: {_describe_search(imported.search)}, as {origin}; see `search` "
            f"in {run.recipe}"
        )
    for note in imported.notes:
        notify(note)
    return run


def _require_foreign(source: Path) -> None:
    """Rejects folders that are already runs, and folders of programs that no reader supports."""
    run = RunFolder(source)
    if run.recipe.is_file() and (run.vocabulary.is_dir() or run.result.is_file()):
        command = TASKS.get(Run(run).recipe.task).command or "evaluate"
        raise NmtkitError(
            f"{source}: this is already a run; use it with `nmtkit {command} -m {source}`"
        )
    if (source / "model.bin").exists() and not has_weights(source):
        raise CheckpointError(
            f"{source}: this is a CTranslate2 model, which cannot be imported; import the Hugging "
            "Face or OpenNMT-py model that it was converted from"
        )
    if (source / "config.json").is_file() and any(source.glob("model.[0-9][0-9].safetensors")):
        raise CheckpointError(
            f"{source}: this is an eole model, which cannot be imported; import it in the "
            "OpenNMT-py 3 (.pt) or Hugging Face format, if it was published in one of them"
        )


def choose_task(
    imported: ImportedModel, task: str | None, source_prefix: str | None
) -> ImportedModel:
    """Returns the model with the settings of a task; RecipeError if the task does not apply.

    If `task` is None and the model has settings for only one task, that task is chosen.
    """
    names = ", ".join(imported.variants)
    if task is None and len(imported.variants) == 1:
        task = names
    variant = None if task is None else imported.variants.get(task)
    if variant is not None:
        imported = replace(
            imported,
            task=variant.task,
            search={**imported.search, **variant.search},
            notes=variant.notes,
            search_source=f"specified in task_specific_params.{task} of config.json",
        )
        if source_prefix is None:
            source_prefix = variant.source_prefix
    else:
        if task is not None:
            _require_task(imported, task)
            imported = replace(imported, task=task)
        if source_prefix is None and imported.variants:
            note = f"config.json has settings for {names}; choose one with --task"
            if any(other.source_prefix for other in imported.variants.values()):
                note += "; this run adds no prefix to sources"
            imported = replace(imported, notes=[*imported.notes, note])
    if not source_prefix:
        return imported
    if imported.tokenizers.config.kind != "huggingface" or "src" not in imported.tokenizers:
        raise RecipeError(
            "--source-prefix applies only to Hugging Face models that read a source; remove it"
        )
    note = (
        f"every source gets the prefix {source_prefix!r}, including during training "
        "(tokenizer.source_prefix in the recipe)"
    )
    return replace(
        imported,
        tokenizers=imported.tokenizers.with_source_prefix(source_prefix),
        notes=[*imported.notes, note],
    )


def _require_task(imported: ImportedModel, task: str) -> None:
    if "src" not in imported.tokenizers:
        raise RecipeError(
            f"--task {task} does not apply to this model, which reads no source; remove it"
        )
    names = {*_TASKS, *imported.variants}
    if task not in names:
        raise RecipeError(f"--task {task}: {suggest_names(task, names)}")


def _describe_model(imported: ImportedModel) -> str:
    """Describes the architecture: layers, width, vocabularies and number of weights."""
    sides = {"src": "source", "tgt": "target"}
    sizes = [
        f"{len(tokenizer.vocabulary):,} {sides[column]}"
        for column, tokenizer in imported.tokenizers.items()
    ]
    weights = sum(map(torch.numel, imported.tensors.values()))
    config = imported.model.model_dump()
    depth = config.get("decoder_layers") or config["layers"]
    layers = f"{config.get('encoder_layers') or depth}+{depth}" if len(sizes) > 1 else str(depth)
    return (
        f"{imported.architecture} model: {layers} layers of size {config['hidden_size']}, "
        f"{' and '.join(sizes)} tokens, {weights:,} weights"
    )


def _describe_search(search: Mapping[str, Any]) -> str:
    """Describes the search settings that users notice: beam size, length limits and repetition."""
    config = parse(BeamConfig, search, "the imported model")
    parts = ["greedy" if config.beam_size == 1 else f"beam size {config.beam_size}"]
    if config.min_length:
        parts.append(f"at least {config.min_length} tokens")
    parts.append(f"at most {config.max_length} tokens")
    if config.beam_size > 1 and config.length_penalty == "average" and config.alpha != 1.0:
        parts.append(f"length penalty {config.alpha:g}")
    if config.no_repeat_ngram:
        parts.append(f"no repeated {config.no_repeat_ngram}-grams")
    if config.repetition_penalty > 1.0:
        parts.append(f"repetition penalty {config.repetition_penalty:g}")
    return ", ".join(parts)


def _write(run: RunFolder, imported: ImportedModel, name: str, title: str) -> None:
    """Writes the run of a model called `name`, with a recipe for further training."""
    task = TASKS.get(imported.task)
    names = {"src": "SOURCE", "tgt": "TARGET"}
    files = {column.name: names[column.name] for column in task.columns}
    best_metric = (*task.validation_metrics, "loss")[0]
    training: dict[str, Any] = {"lr": 1e-4, "max_epochs": 5, "best_metric": best_metric}
    objectives = pretraining_objectives(MODELS.get(imported.model.kind))
    if len(files) == 1 and objectives:
        training["objectives"] = {objectives[0]: {}}
    settings = {
        "name": title,
        "description": f"imported {imported.architecture} model {name}; it was trained elsewhere, so "
        f"{' and '.join(files.values())} do not exist",
        "task": imported.task,
        "data": {"train": files},
        "tokenizer": imported.tokenizers.config.model_dump(),
        "model": imported.model.model_dump(),
        "training": training,
        "search": {**imported.search},
    }
    recipe = parse(Recipe, settings, "the imported model")
    Run.create_untrained(run, recipe, imported.tokenizers, imported.tensors, "imported")
    origin = {
        "from": imported.toolkit,
        "folder": name,
        "model_type": imported.architecture,
        "license": imported.licence,
    }
    write_json(run.imported, origin)


def _keep_public_files(source: Path, run: RunFolder) -> None:
    """Copies a public model's settings and tokenizer into its run for a later `export`."""
    with write_errors(run.public):
        run.public.mkdir()
        for name in _PUBLIC_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, run.public / name)
