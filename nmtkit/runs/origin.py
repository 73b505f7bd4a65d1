"""The run whose weights fine-tuning begins from (`init_from`), recorded in `origin.json`."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtkit.checkpoints.weights import assign_weights, read_weights
from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import Field, Settings, parse
from nmtkit.corpus.config import COLUMNS, SplitFiles
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.data.vocabulary import read_vocabulary_file
from nmtkit.models.base import Model
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun, find_run

_MAY_DIFFER = ("alignment_layer", "alignment_heads")
"""Model settings that may differ, beside dropout: the attention that is shown."""


class FineTuningOrigin(Settings):
    """The content of `origin.json`; paths are absolute."""

    run: str
    weights: str
    sha256: str
    """The file of the weights."""
    vocabulary: str
    """Checksum of its vocabulary."""
    test: SplitFiles | None = None
    """A test set of the text it was trained on."""
    before: dict[str, float] = Field(default_factory=dict)
    """Scores of the origin on the test sets of its own text and of the new one: see `nmtkit.presets.forgetting`."""


def find_origin(recipe: Recipe, folder: RunFolder | None = None) -> FineTuningOrigin | None:
    """The origin that a recipe names with `init_from`, if any; it must not be `folder`, that of the new run."""
    if recipe.init_from is None:
        return None
    source = find_run(recipe.init_from.run)[0]
    if folder is not None and source.folder.path.resolve() == folder.path.resolve():
        raise RecipeError(
            f"recipe {recipe.name}: `init_from` is the folder to train in; name another one for the training: --run DIR"
        )
    weights = source.weights(recipe.init_from.checkpoint)
    _require_same_model(recipe, source)
    return FineTuningOrigin(
        run=os.path.abspath(source.folder.path),
        weights=os.path.abspath(weights),
        sha256=_sha256(weights),
        vocabulary=source.load_tokenizers().checksum,
        test=recipe.init_from.test or _absolute_test_set(source.recipe),
    )


def _absolute_test_set(recipe: Recipe) -> SplitFiles | None:
    """If its files exist and have targets."""
    files = recipe.data.splits().get("test")
    if files is None or not (files.tgt or not files.src) or not all(map(os.path.exists, files.paths())):
        return None
    kinds = (*COLUMNS, "jsonl", "stories", "story_lists")
    whole = {kind: [os.path.abspath(path) for path in getattr(files, kind)] for kind in kinds}
    return files.model_copy(update={**whole, "alignment": [], "src_words": [], "tgt_words": [], "alignment_base": None})


def _require_same_model(recipe: Recipe, source: SavedRun) -> None:
    before = source.newest_stage().recipe
    now = next(iter(recipe.by_stage().values()))
    if faults := [*_differing("tokenizer", before, now), *_differing("model", before, now)]:
        raise RecipeError(
            f"recipe {recipe.name}: `init_from` is {source.folder.path}, and its weights fit only its own model and "
            "tokenizer; leave `model` and `tokenizer` out of the recipe to take those:",
            *(f"  {fault}" for fault in faults),
        )


def _differing(group: str, before: Recipe, now: Recipe) -> list[str]:
    old: Mapping[str, Any] = getattr(before, group).model_dump()
    new: Mapping[str, Any] = getattr(now, group).model_dump()
    if old.get("kind") != new.get("kind"):
        return [f"`{group}.kind` is {new.get('kind')!r}, and there {old.get('kind')!r}"]
    return [
        f"`{group}.{key}` is {new.get(key)!r}, and there {old.get(key)!r}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key) and "dropout" not in key and key not in _MAY_DIFFER
    ]


def read_origin(folder: RunFolder) -> FineTuningOrigin | None:
    """The recorded origin of a run, if it has one."""
    path = folder.origin
    if not path.is_file():
        return None
    try:
        return parse(FineTuningOrigin, parse_json(read_vocabulary_file(path, "it"), path.name), str(path))
    except (DataError, RecipeError) as fault:
        raise CheckpointError(f"{path}: damaged ({fault}); train anew with --overwrite") from fault


def origin_tokenizers(origin: FineTuningOrigin) -> Tokenizers:
    """The tokenizers of the origin; raises CheckpointError if they are missing or have changed."""
    tokenizers = SavedRun(RunFolder(Path(origin.run))).load_tokenizers()
    if tokenizers.checksum != origin.vocabulary:
        raise CheckpointError(f"{origin.run}: its vocabulary has changed; begin the training anew")
    return tokenizers


def load_origin_weights(model: Model, origin: FineTuningOrigin) -> None:
    """Loads the recorded weights; raises CheckpointError if they are missing, changed, or of another model."""
    path = Path(origin.weights)
    weights = read_weights(path, origin.vocabulary)
    if _sha256(path) != origin.sha256:
        raise CheckpointError(f"{path}: changed since this training was prepared; begin it anew with --overwrite")
    assign_weights(model, weights, path)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
