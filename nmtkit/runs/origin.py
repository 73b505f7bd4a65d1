"""The origin of initial weights (`init_from`): a run, or one run per part, recorded in `origin.json`.

Weights of a part are copied by name, and embedding rows by token. This way, an encoder can be initialized from BERT, a
decoder from GPT, or both from BERT (Rothe et al. 2020, "Leveraging Pre-trained Checkpoints for Sequence Generation
Tasks").
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit.config import Recipe
from nmtkit.config.renamed import columns_of_json
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.files import file_sha256, write_json
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import Field, Settings, parse
from nmtkit.data.text.config import COLUMNS, SplitFiles
from nmtkit.data.tokenizers.embedding_rows import copy_first_input, tie_shared_rows
from nmtkit.data.tokenizers.languages import language_names, with_affixes
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import Vocabulary, read_vocabulary_file
from nmtkit.models.abilities import part_of
from nmtkit.models.base import MODELS, PARTS, Model
from nmtkit.runs.folder import Notify, RunFolder
from nmtkit.runs.run import Run, build_model, find_run
from nmtkit.training.checkpoints.weights import assign_weights, read_weights
from nmtkit.training.parallel import processes

_MAY_DIFFER = ("alignment_layer", "alignment_heads", "joint", "affixes")
"""Settings that, like dropout, may differ from those of the original run: which attention is shown, whether both sides
share a tokenizer, and the languages of an imported tokenizer.
"""


class WeightsOrigin(Settings):
    """A weights file of a run; paths are absolute."""

    run: str = ""
    weights: str = ""
    sha256: str = ""
    """Checksum of the weights file."""
    taken: str = ""
    """Description of the copied weights of a part; recorded when training starts."""


class FineTuningOrigin(WeightsOrigin):
    """The content of `origin.json`. With parts, `run` is only the source of the tokenizers, if any."""

    vocabulary: str = ""
    """Checksum of the vocabulary; empty if the run trains its own tokenizers."""
    parts: dict[str, WeightsOrigin] = Field(default_factory=dict)
    test: SplitFiles | None = None
    """Test set of the original run, for measuring forgetting."""
    before: dict[str, float] = Field(default_factory=dict)
    """Scores on the test sets of the original and the new text before fine-tuning."""


def find_origin(recipe: Recipe, folder: RunFolder | None = None) -> FineTuningOrigin | None:
    """Returns the origin that a recipe's `init_from` describes, if any; rejects `folder`, the folder of the new run."""
    if recipe.init_from is None:
        return None
    if recipe.init_from.test and not (recipe.init_from.run and TASKS.get(recipe.task).references):
        why = (
            "scores before and after fine-tuning require `init_from.run` and a task with references; "
            "remove this key"
        )
        raise RecipeError(f"recipe {recipe.name}: `init_from.test`: {why}")
    sources = {key: find_run(run)[0] for key, run in recipe.init_from.runs.items()}
    source_folders = [source.folder.path.resolve() for source in sources.values()]
    if folder is not None and folder.path.resolve() in source_folders:
        raise RecipeError(
            f"recipe {recipe.name}: `init_from` is the folder of the new run itself; use another "
            "folder for the new run with --run DIR"
        )
    origins = {}
    for key, source in sources.items():
        weights = source.weights(recipe.init_from.checkpoint)
        origins[key] = WeightsOrigin(
            run=os.path.abspath(source.folder.path),
            weights=os.path.abspath(weights),
            sha256=file_sha256(weights),
        )
        if key in PARTS:
            # A trial on the meta device, which needs no memory, finds mismatched shapes before training begins.
            with torch.device("meta"):
                model = MODELS.get(recipe.model.kind)(recipe.model, recipe.max_vocabulary_sizes)
                source_model = build_model(source.newest_stage().recipe, source.load_tokenizers())
                _copy_and_describe(model, key, source_model)
    parts = {part: origins[part] for part in PARTS if part in origins}
    tokenizers_key = "run" if "run" in sources else "tokenizer"
    if tokenizers_key not in sources:
        return FineTuningOrigin(parts=parts)
    source = sources[tokenizers_key]
    origin = origins[tokenizers_key]
    if tokenizers_key == "run":
        _require_same_settings(recipe, source, ("model", "tokenizer"))
    else:
        _require_same_settings(recipe, source, ("tokenizer",))
        origin = WeightsOrigin(run=origin.run)
    return FineTuningOrigin(
        **vars(origin),
        parts=parts,
        vocabulary=source.load_tokenizers().checksum,
        test=recipe.init_from.test or _absolute_test_set(source.recipe),
    )


def _absolute_test_set(recipe: Recipe) -> SplitFiles | None:
    """Returns a recipe's test set with absolute paths; None if it has no targets or a file is missing."""
    files = recipe.data.splits().get("test")
    if files is None:
        return None
    has_targets = files.tgt or not files.src
    if not has_targets or not all(map(os.path.exists, files.paths())):
        return None
    changes: dict[str, Any] = {
        "alignment": [],
        "src_words": [],
        "tgt_words": [],
        "alignment_base": None,
    }
    for kind in (*COLUMNS, "jsonl", "stories", "story_lists"):
        changes[kind] = [os.path.abspath(path) for path in getattr(files, kind)]
    return files.model_copy(update=changes)


def _require_same_settings(recipe: Recipe, source: Run, groups: Sequence[str]) -> None:
    """Raises RecipeError if groups of settings differ from those of the run that provides the weights."""
    first_stage = next(iter(recipe.by_stage().values()))
    source_stage = source.newest_stage().recipe
    faults = []
    for group in groups:
        theirs = getattr(source_stage, group).model_dump()
        ours = getattr(first_stage, group).model_dump()
        faults += _differences(group, theirs=theirs, ours=ours)
    if faults:
        names = " and ".join(groups)
        keys = " and ".join(f"`{group}`" for group in groups)
        raise RecipeError(
            f"recipe {recipe.name}: the weights of `init_from` ({source.folder.path}) require the {names} of "
            f"that run; remove {keys} from the recipe. These settings differ:",
            *(f"  {fault}" for fault in faults),
        )


def _differences(group: str, *, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Describes the differences between two runs in a group of settings that must be the same."""
    our_kind = ours.get("kind")
    their_kind = theirs.get("kind")
    if our_kind != their_kind:
        return [f"`{group}.kind` is {our_kind!r}, but {their_kind!r} in that run"]
    differences = []
    for key in dict.fromkeys((*theirs, *ours)):
        our_value = ours.get(key)
        their_value = theirs.get(key)
        may_differ = "dropout" in key or key in _MAY_DIFFER
        if our_value != their_value and not may_differ:
            differences.append(f"`{group}.{key}` is {our_value!r}, but {their_value!r} in that run")
    return differences


def record_origin(origin: FineTuningOrigin, folder: RunFolder) -> None:
    """Writes the origin of a new run into its folder, and copies the files that the export of a public model needs."""
    write_json(folder.origin, origin.model_dump(mode="json"))
    public = RunFolder(Path(origin.run)).public
    if origin.weights and public.is_dir():
        shutil.copytree(public, folder.public, dirs_exist_ok=True)


def read_origin(folder: RunFolder) -> FineTuningOrigin | None:
    """Returns the recorded origin of a run, if any."""
    path = folder.origin
    if not path.is_file():
        return None
    try:
        recorded = parse_json(read_vocabulary_file(path, "it"), path.name)
        if isinstance(recorded, dict):
            recorded = {**recorded, "test": columns_of_json(recorded.get("test"))}
        return parse(FineTuningOrigin, recorded, str(path))
    except (DataError, RecipeError) as fault:
        raise CheckpointError(
            f"{path} is damaged ({fault}); restart training with --overwrite"
        ) from fault


def origin_tokenizers(origin: FineTuningOrigin, recipe: Recipe) -> Tokenizers:
    """Returns the origin's tokenizers for a task.

    If the origin has only one text column, its tokenizer is used for all text columns of the task. A task with only one
    text column uses the origin's tokenizer for that column.

    Raises:
        CheckpointError: the tokenizers are missing or have changed.
    """
    tokenizers = Run(RunFolder(Path(origin.run))).load_tokenizers()
    if tokenizers.checksum != origin.vocabulary:
        raise CheckpointError(
            f"{origin.run}: the vocabulary of this run has changed; restart training with --overwrite"
        )
    texts = [column.name for column in TASKS.get(recipe.task).columns if column.type == "text"]
    if len(tokenizers) == 1 and len(texts) > 1:
        (tokenizer,) = tokenizers.values()
        return Tokenizers(
            recipe.tokenizer.changed({"joint": True}), dict.fromkeys(texts, tokenizer)
        )
    if len(tokenizers) > 1 and len(texts) == 1:
        return Tokenizers(recipe.tokenizer, {texts[0]: tokenizers[texts[0]]})
    affixes = recipe.tokenizer.affixes
    if language_names(tokenizers.config.specials) and affixes != tokenizers.config.affixes:
        return with_affixes(tokenizers, affixes)
    return tokenizers


def load_origin_weights(
    model: Model, tokenizers: Tokenizers, folder: RunFolder, notify: Notify
) -> None:
    """Loads the recorded initial weights, if any, into a model; records which weights of parts were copied.

    Raises:
        CheckpointError: the weights are missing, have changed, or belong to a different model.
    """
    origin = read_origin(folder)
    if origin is None or not (origin.weights or origin.parts):
        return
    for weights_origin in origin.parts.values() or [origin]:
        path = weights_origin.weights
        if os.path.isfile(path) and file_sha256(Path(path)) != weights_origin.sha256:
            raise CheckpointError(
                f"{path} has changed since this run was prepared; restart training with --overwrite"
            )
    if not origin.parts:
        assign_weights(
            model, read_weights(Path(origin.weights), origin.vocabulary), Path(origin.weights)
        )
        if "tgt" in tokenizers:
            copy_first_input(model.embedding("tgt"), tokenizers)
        notify(f"fine-tuning starts from {origin.weights}")
        return
    for part, part_origin in origin.parts.items():
        run = Run(RunFolder(Path(part_origin.run)))
        source, source_tokenizers, _ = run.open_model(torch.device("cpu"), part_origin.weights)
        taken = _copy_and_describe(model, part, source, tokenizers=(tokenizers, source_tokenizers))
        origin.parts[part] = part_origin.model_copy(update={"taken": taken})
        notify(f"{part} from {part_origin.weights}: {taken}")
    if processes.rank() == 0:
        write_json(folder.origin, origin.model_dump(mode="json"))


def _copy_and_describe(
    model: Model, part: str, source: Model, tokenizers: tuple[Tokenizers, Tokenizers] | None = None
) -> str:
    """Copies a part with `copy_part`; returns its description, followed by settings in which the models differ."""
    theirs = source.config.model_dump()
    ours = model.config.model_dump()
    group = "model"
    part_settings = ours.get(part)
    if isinstance(part_settings, dict) and part_settings.get("kind") == source.config.kind:
        # This part has its own group of settings, such as `model.src_embedding`.
        group = f"model.{part}"
        ours = part_settings
    shared = []
    for key, value in theirs.items():
        if key not in ("kind", "tie") and value is not None and ours.get(key) is not None:
            shared.append(key)
    differences = _differences(
        group, theirs={key: theirs[key] for key in shared}, ours={key: ours[key] for key in shared}
    )
    copied = copy_part(model, part, source, differences=differences, tokenizers=tokenizers)
    return "; ".join([copied, *differences])


def keep_public_form(model: Model, tokenizers: Tokenizers) -> None:
    """Restricts the training of an imported model so that it can still be exported to its public format.

    Embedding and output rows that share one row in the public format stay equal (see `tie_shared_rows`). The output
    bias, which the public format lacks, is frozen.
    """
    bias = dict(model.named_parameters()).get("output.bias")
    if bias is not None:
        bias.requires_grad_(False)
    for name, parameter in model.named_parameters():  # lists a tied matrix only once
        if name in _TOKEN_WEIGHTS and parameter.ndim == 2:
            tie_shared_rows(parameter, tokenizers.get(_TOKEN_WEIGHTS[name]))


_OTHER_SIDE = {"encoder": "decoder", "src_": "tgt_", "decoder": "encoder", "tgt_": "src_"}
_TOKEN_WEIGHTS = {
    "src_embedding.weight": "src",
    "tgt_embedding.weight": "tgt",
    "output.weight": "tgt",
    "output.bias": "tgt",
    "output_bias": "tgt",
}
"""Weights with one row per token of a text column, and the name of the column."""


def _token_weights(model: Model) -> dict[str, str]:
    """Returns a model's weights that have one row per token of a text column, with the name of the column."""
    token_weights = dict(_TOKEN_WEIGHTS)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.startswith("src_embedding."):
            token_weights[f"{name}.weight"] = "src"
    return token_weights


def copy_part(
    model: Model,
    part: str,
    source: Model,
    differences: Sequence[str] = (),
    tokenizers: tuple[Tokenizers, Tokenizers] | None = None,
) -> str:
    """Copies one of `PARTS` from another model.

    If the other model lacks this part, the corresponding part of its other side is used, so that an encoder can
    initialize a decoder (BERT2BERT).

    Args:
        model: the model to initialize.
        part: name of the part.
        source: the other model.
        differences: descriptions of differing settings, for the error message.
        tokenizers: tokenizers of both models, by which embedding rows are matched; not needed on the meta device.

    Returns:
        a description of the weights that were copied, have additional rows, stay random, or were not used.

    Raises:
        RecipeError: a shape does not match, a frozen weight is missing, or the other model has no such weights.
    """
    theirs = part_of(source, part)
    if not theirs:
        for name, weight in part_of(source, _other_side(part)).items():
            theirs[_other_side(name)] = weight
    weights = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if name.startswith(PARTS[part]):
            weights[name] = weight
    # A tied weight has several names, of which only one is used, if possible one that the other model also has. Names
    # that both models have come last, so that they replace the others.
    name_by_id = {}
    for name in sorted(weights, key=lambda name: name in theirs):
        name_by_id[id(weights[name])] = name
    ours = {name: weights[name] for name in name_by_id.values()}
    taken = [name for name in ours if name in theirs]

    token_weights = _token_weights(model)
    faults = _misfits(part, ours=ours, theirs=theirs, token_weights=token_weights)
    if not taken and not faults:
        faults.append(f"the {source.config.kind} in that run has no {', '.join(_grouped(ours))}")
    if faults:
        raise RecipeError(
            f"`init_from.{part}`: the weights of that run do not fit this model; use another run, or "
            "change the model settings:",
            *(f"  {fault}" for fault in (*faults[:3], *differences)),
        )

    grown = []
    for name in taken:
        weight = ours[name]
        our_rows = list(range(min(len(weight), len(theirs[name]))))
        their_rows = our_rows
        if name in token_weights and tokenizers is not None:
            our_vocabulary, their_vocabulary = (
                _vocabulary(side, token_weights[name]) for side in tokenizers
            )
            our_rows = [
                row for row, token in enumerate(our_vocabulary.tokens) if token in their_vocabulary
            ]
            their_rows = their_vocabulary.ids(our_vocabulary.tokens[row] for row in our_rows)
        with torch.no_grad():
            weight[our_rows] = theirs[name][their_rows].to(weight)
        if len(our_rows) < len(weight):
            grown.append(f"{name}: {len(weight) - len(our_rows):,} of {len(weight):,} rows")

    groups = {
        "taken": taken,
        "grown": grown,
        "still random": [name for name in ours if name not in theirs],
        "not used": [name for name in theirs if name not in ours],
    }
    return "; ".join(
        f"{group}: {', '.join(_grouped(names))}" for group, names in groups.items() if names
    )


def _misfits(
    part: str,
    *,
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    token_weights: Mapping[str, str],
) -> list[str]:
    """Describes the weights of a part whose shapes differ, and frozen weights that the other model lacks."""
    faults = []
    for name, weight in ours.items():
        is_frozen = isinstance(weight, nn.Parameter) and not weight.requires_grad
        # Frozen weights of another part, such as ELMo in the embedding of an encoder, come from that part's run.
        if is_frozen and name.startswith(f"{part}.") and name not in theirs:
            faults.append(f"{name} is frozen and must come from that run, which does not have it")
    for name, weight in ours.items():
        if name not in theirs:
            continue
        our_shape = list(weight.shape)
        their_shape = list(theirs[name].shape)
        may_have_other_rows = name in token_weights or name.endswith("_positions.table")
        first_axis = 1 if may_have_other_rows else 0
        if our_shape[first_axis:] != their_shape[first_axis:]:
            faults.append(f"{name} has shape {our_shape}, but {their_shape} in that run")
    return faults


def _vocabulary(tokenizers: Tokenizers, column: str) -> Vocabulary:
    """Returns the vocabulary of a text column, or of the first column if a model of another task lacks this column."""
    tokenizer = tokenizers.get(column)
    if tokenizer is None:
        tokenizer = next(iter(tokenizers.values()))
    return tokenizer.vocabulary


def _other_side(name: str) -> str:
    """Returns the name of a weight or part on the other side."""
    for prefix, other_prefix in _OTHER_SIDE.items():
        if name.startswith(prefix):
            return other_prefix + name.removeprefix(prefix)
    return name


def _grouped(names: Iterable[str]) -> list[str]:
    """Shortens names of weights to their sub-layers without layer numbers; returns each name once."""
    groups: dict[str, None] = {}  # an ordered set
    for name in names:
        without_number = re.sub(r"\.\d+\.", ".N.", name)
        groups[".".join(without_number.split(".")[:3])] = None
    return list(groups)
