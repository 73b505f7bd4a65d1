"""Exports a run with a model card: for Hugging Face or CTranslate2, or as a run without its training state."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nmtkit.config import Recipe
from nmtkit.convert.ctranslate2 import write_ctranslate2
from nmtkit.convert.engines import require_comparable
from nmtkit.convert.huggingface.exporting import write_public_ctranslate2, write_public_huggingface
from nmtkit.convert.huggingface.marian import write_marian
from nmtkit.convert.model_card import model_card, read_object
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_write_text, new_folder, write_errors, write_json
from nmtkit.data.text.config import FILE_KINDS
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.models.base import Model
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.run import Run, source_token_limit
from nmtkit.training.checkpoints.weights import get_weights


def export_run(
    run: Run,
    to: str,
    folder: Path,
    weights: str = "auto",
    licence: str | None = None,
    notify: Notify = ignore,
) -> None:
    """Writes a trained run with a model card into a new or empty folder, in one of the formats in `EXPORTS`.

    `weights` is as in `Run.weights`; the card's `licence` defaults to the imported model's.
    `notify` receives a warning if the other program cannot run the recipe's search.
    """
    with new_folder(folder, "use another folder") as unfinished:
        model, tokenizers, recipe = run.open_model(torch.device("cpu"), weights)
        is_public = tokenizers.config.kind == "huggingface"
        if to == "safetensors" and run.folder.user_module.is_file():
            with write_errors(folder):
                shutil.copyfile(run.folder.user_module, unfinished / run.folder.user_module.name)
        if is_public and to in PUBLIC_EXPORTS:
            PUBLIC_EXPORTS[to](run.folder, model, tokenizers, recipe, unfinished)
        else:
            EXPORTS[to](model, tokenizers, recipe, unfinished)
        if to == "safetensors":
            _copy_reports(run.folder, unfinished)
        else:
            _warn_of_differences(to, recipe, is_public, notify)
        card = model_card(
            run=run.folder,
            recipe=recipe,
            model=model,
            tokenizers=tokenizers,
            program=to,
            licence=licence,
        )
        atomic_write_text(unfinished / "README.md", card)


def _warn_of_differences(to: str, recipe: Recipe, is_public: bool, notify: Notify) -> None:
    """Warns if another program decodes differently with the same weights."""
    search = recipe.search
    if is_public:  # certain_prefix affects only the score of the forced language token
        search = search.changed({"certain_prefix": False})
    try:
        require_comparable(to, search)
    except NmtkitError as fault:
        notify(f"warning: {fault}; with the same weights, its output may differ from nmtkit's")
    limit = source_token_limit(recipe)
    if limit:
        notify(
            f"warning: {to} reads whole sources, but nmtkit reads only their first {limit} tokens; "
            "truncate longer sources"
        )


def _write_safetensors(model: Model, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    """Writes a run that consists of weights, tokenizers and recipe."""
    recipe = _without_folders(recipe)
    Run.create_untrained(RunFolder(folder), recipe, tokenizers, get_weights(model), "exported")


def _without_folders(recipe: Recipe) -> Recipe:
    """Returns a recipe in which texts and other runs are given by name only, because their paths are private."""
    data_changes: dict[str, Any] = {"folder": ""}
    for split, files in recipe.data.splits().items():
        names = {kind: [Path(path).name for path in getattr(files, kind)] for kind in FILE_KINDS}
        data_changes[split] = files.model_copy(update=names)
    changes: dict[str, Any] = {"data": recipe.data.model_copy(update=data_changes), "stages": []}
    init = recipe.init_from
    if init is not None:
        run_names: dict[str, Any] = {
            key: Path(run).resolve().name for key, run in init.runs.items()
        }
        run_names["checkpoint"] = Path(init.checkpoint).name
        run_names["test"] = None
        changes["init_from"] = init.model_copy(update=run_names)
    vectors = recipe.pretrained_embeddings
    if vectors is not None:
        vector_names: dict[str, Any] = {
            side: Path(path).name for side, path in vectors.files().items()
        }
        changes["pretrained_embeddings"] = vectors.model_copy(update=vector_names)
    return recipe.model_copy(update=changes)


def _copy_reports(run: RunFolder, folder: Path) -> None:
    """Copies a run's records of its data, scores and origin, without the paths of its text."""
    report = read_object(run.report)
    if report:
        write_json(folder / run.report.name, report | {"files": {}})
    with write_errors(folder):
        for path in (run.imported, run.test_scores):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        if run.public.is_dir():
            shutil.copytree(run.public, folder / run.public.name)


EXPORTS: dict[str, Callable[[Any, Tokenizers, Recipe, Path], None]] = {
    "huggingface": write_marian,
    "ctranslate2": write_ctranslate2,
    "safetensors": _write_safetensors,
}
"""Functions that write a model, by format."""

PUBLIC_EXPORTS: dict[str, Callable[[RunFolder, Any, Tokenizers, Recipe, Path], None]] = {
    "huggingface": write_public_huggingface,
    "ctranslate2": write_public_ctranslate2,
}
"""Functions that write a model imported with a Hugging Face tokenizer, by format."""
