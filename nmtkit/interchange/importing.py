"""Imports a model of another toolkit as a run."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nmtkit.core.errors import CheckpointError
from nmtkit.core.files import new_folder, write_json
from nmtkit.core.registry import Registry
from nmtkit.core.settings import is_valid_name, parse
from nmtkit.interchange.exporting import write_untrained_run
from nmtkit.interchange.external_files import read_text
from nmtkit.interchange.import_weights import ImportedModel
from nmtkit.models.base import MODELS
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.search.rules import SearchConfig
from nmtkit.tasks.builtin import TRANSLATION
from nmtkit.tasks.task import TASKS

READERS: Registry[Callable[[Path], ImportedModel]] = Registry("toolkit")
"""The reader of a folder or checkpoint, by toolkit."""


def detect_toolkit(path: Path) -> str:
    """The toolkit that probably wrote these files."""
    if path.suffix == ".pt":
        return "opennmt-py"
    if (path / "model.bin").exists():
        return "ctranslate2"
    if any(path.glob("*.ckpt")):
        return "joeynmt"
    has_config = (path / "config.json").exists()  # beside which optimizers may be saved as .pt
    return "opennmt-py" if any(path.glob("*.pt")) and not has_config else "huggingface"


def import_run(source: Path, path: str | None = None, notify: Notify = ignore, toolkit: str | None = None) -> RunFolder:
    """Makes a run of the folder or checkpoint of a model of another toolkit, one of `READERS`, by default detected.

    The default of `path` is `runs/` and the name of `source`. `notify` gets sentences about the model.
    """
    name = source.stem if source.is_file() else source.name
    name = name if is_valid_name(name) else source.resolve().name
    run = RunFolder.at(path, name)
    with new_folder(run.path, "name another folder with -o") as unfinished:
        imported = READERS.get(toolkit or detect_toolkit(source))(source)
        title = run.path.resolve().name
        _write(RunFolder(unfinished), imported, name, title if is_valid_name(title) else "imported")
    sides = {"src": "source", "tgt": "target"}
    sizes = [f"{len(one.vocabulary):,} {sides[column]}" for column, one in imported.tokenizers.items()]
    weights = sum(map(torch.numel, imported.tensors.values()))
    config = imported.model.model_dump()
    depth = config.get("decoder_layers") or config["layers"]
    layers = f"{config.get('encoder_layers') or depth}+{depth}" if len(sizes) > 1 else depth
    what = f"{layers} layers of {config['hidden_size']}, {' and '.join(sizes)} tokens, {weights:,} weights"
    notify(f"{imported.architecture} model of {what}")
    if imported.search:
        origin = imported.search_source or f"{imported.toolkit} does"
        notify(f"it searches {_describe_search(imported.search)}, as {origin}; see `search` in {run.recipe}")
    for note in imported.notes:
        notify(note)
    return run


def _describe_search(search: Mapping[str, Any]) -> str:
    """Returns what a user notices of a search: its width, and how long and how repetitive texts may be."""
    config = parse(SearchConfig, search, "the imported model")
    parts = ["greedily" if config.beam_size == 1 else f"with a beam of {config.beam_size}"]
    if config.min_length:
        parts.append(f"from {config.min_length} tokens")
    parts.append(f"up to {config.max_length} tokens")
    if config.beam_size > 1 and config.length_penalty == "average" and config.alpha != 1.0:
        parts.append(f"with length penalty {config.alpha:g}")
    if config.no_repeat_ngram:
        parts.append(f"without repeating {config.no_repeat_ngram}-grams")
    if config.repetition_penalty > 1.0:
        parts.append(f"with repetition penalty {config.repetition_penalty:g}")
    return ", ".join(parts)


def _write(run: RunFolder, imported: ImportedModel, name: str, title: str) -> None:
    task = TASKS.get(imported.task)
    files = {column.name: {"src": "SOURCE", "tgt": "TARGET"}[column.name] for column in task.columns}
    ways: dict[str, Any] = {one: {} for one in MODELS.get(imported.model.kind).pretrained_by[:1] if len(files) == 1}
    best = (*task.validation_metrics, "loss")[0]
    settings = {
        "name": title,
        "description": f"imported {imported.architecture} model {name}; it was trained elsewhere, so "
        f"{' and '.join(files.values())} stand for no files",
        "task": imported.task,
        "data": {"train": files},
        "tokenizer": imported.tokenizers.config.model_dump(),
        "model": imported.model.model_dump(),
        "training": ways | {"lr": 1e-4, "max_epochs": 5, "best_metric": best, "higher_is_better": best != "loss"},
        "search": {**imported.search},
    }
    recipe = parse(Recipe, settings, "the imported model")
    write_untrained_run(run, recipe, imported.tokenizers, imported.tensors, "imported")
    origin = {"from": imported.toolkit, "folder": name, "model_type": imported.architecture}
    write_json(run.imported, origin | {"license": imported.licence})


def exported_task(given: Mapping[str, Any]) -> str:
    """The task in a `config.json` that `nmtkit export` wrote; translation in others."""
    own = given.get("nmtkit")
    task = own.get("task") if isinstance(own, dict) else None
    return task if task in TASKS.names() else TRANSLATION.name


def license_of(folder: Path) -> str | None:
    """The licence in the metadata of the model card."""
    try:
        card = read_text(folder / "README.md")
    except CheckpointError:
        return None
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    named = re.search(r"^license: *([\w.-]+) *$", head.group(1), re.MULTILINE) if head else None
    return named.group(1) if named else None
