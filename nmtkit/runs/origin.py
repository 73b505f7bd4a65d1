"""The run, or the runs of parts, whose weights training begins with (`init_from`), recorded in `origin.json`.

Of a part is said which of its weights go where, by name, shape and token. So an encoder can begin as BERT, a decoder as
GPT, or both as BERT: Rothe et al. 2020.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nmtkit.config import Recipe
from nmtkit.config.renamed import columns_of_json
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.files import file_sha256, write_json
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import Field, Settings, parse
from nmtkit.data.text.config import COLUMNS, SplitFiles
from nmtkit.data.tokenizers.languages import copy_first_input, language_names, tie_shared_rows, with_affixes
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import read_vocabulary_file
from nmtkit.models.abilities import part_of
from nmtkit.models.base import MODELS, PARTS, Model
from nmtkit.runs.folder import Notify, RunFolder
from nmtkit.runs.run import Run, build_model, find_run
from nmtkit.training.checkpoints.weights import assign_weights, read_weights
from nmtkit.training.parallel import processes

_MAY_DIFFER = ("alignment_layer", "alignment_heads", "joint", "affixes")
"""Settings besides dropout that may differ: the attention that is shown, whether a pair shares one tokenizer, and the
languages of an imported tokenizer."""


class WeightsOrigin(Settings):
    """Some weights of a run; paths are absolute."""

    run: str = ""
    weights: str = ""
    sha256: str = ""
    """The file of the weights."""
    taken: str = ""
    """Of a part, once training has begun: which of its weights were taken."""


class FineTuningOrigin(WeightsOrigin):
    """The content of `origin.json`. With parts it is only the run that gives the tokenizers, if one does."""

    vocabulary: str = ""
    """Checksum of the vocabulary; empty where the tokenizers are the recipe's own."""
    parts: dict[str, WeightsOrigin] = Field(default_factory=dict)
    test: SplitFiles | None = None
    """A test set of the text it was trained on."""
    before: dict[str, float] = Field(default_factory=dict)
    """Scores of the origin on the test sets of its own text and of the new one."""


def find_origin(recipe: Recipe, folder: RunFolder | None = None) -> FineTuningOrigin | None:
    """The origin that a recipe names with `init_from`, if any; it must not be `folder`, that of the new run."""
    if recipe.init_from is None:
        return None
    if recipe.init_from.test and not (recipe.init_from.run and TASKS.get(recipe.task).references):
        why = "a test set is scored before and after only of a whole `run` of a task with references: leave it out"
        raise RecipeError(f"recipe {recipe.name}: `init_from.test`: {why}")
    sources = {key: find_run(run)[0] for key, run in recipe.init_from.runs.items()}
    if folder is not None and folder.path.resolve() in [one.folder.path.resolve() for one in sources.values()]:
        raise RecipeError(
            f"recipe {recipe.name}: `init_from` is the folder to train in; name another one for the training: --run DIR"
        )
    origins = {}
    for key, source in sources.items():
        weights = source.weights(recipe.init_from.checkpoint)
        run, path = map(os.path.abspath, (source.folder.path, weights))
        origins[key] = WeightsOrigin(run=run, weights=path, sha256=file_sha256(weights))
        if key in PARTS:
            with torch.device("meta"):
                model = MODELS.get(recipe.model.kind)(recipe.model, recipe.max_vocabulary_sizes)
                _take(model, key, build_model(source.newest_stage().recipe, source.load_tokenizers()))
    parts = {part: origins[part] for part in PARTS if part in origins}
    giving = "run" if "run" in sources else "tokenizer"
    if giving not in sources:
        return FineTuningOrigin(parts=parts)
    _require_same_model(recipe, sources[giving], ("model", "tokenizer") if giving == "run" else ("tokenizer",))
    return FineTuningOrigin(
        **vars(origins[giving] if giving == "run" else WeightsOrigin(run=origins[giving].run)),
        parts=parts,
        vocabulary=sources[giving].load_tokenizers().checksum,
        test=recipe.init_from.test or _absolute_test_set(sources[giving].recipe),
    )


def _absolute_test_set(recipe: Recipe) -> SplitFiles | None:
    """If its files exist and have targets."""
    files = recipe.data.splits().get("test")
    if files is None or not (files.tgt or not files.src) or not all(map(os.path.exists, files.paths())):
        return None
    kinds = (*COLUMNS, "jsonl", "stories", "story_lists")
    whole = {kind: [os.path.abspath(path) for path in getattr(files, kind)] for kind in kinds}
    return files.model_copy(update={**whole, "alignment": [], "src_words": [], "tgt_words": [], "alignment_base": None})


def _require_same_model(recipe: Recipe, source: Run, groups: Sequence[str]) -> None:
    both = source.newest_stage().recipe, next(iter(recipe.by_stage().values()))
    faults = [one for key in groups for one in _differing(key, *(getattr(of, key).model_dump() for of in both))]
    if faults:
        own, keys = " and ".join(groups), " and ".join(f"`{key}`" for key in groups)
        raise RecipeError(
            f"recipe {recipe.name}: `init_from` is {source.folder.path}, and its weights fit only its own {own}; "
            f"leave {keys} out of the recipe to take those:",
            *(f"  {fault}" for fault in faults),
        )


def _differing(group: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    if old.get("kind") != new.get("kind"):
        return [f"`{group}.kind` is {new.get('kind')!r}, and there {old.get('kind')!r}"]
    return [
        f"`{group}.{key}` is {new.get(key)!r}, and there {old.get(key)!r}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key) and "dropout" not in key and key not in _MAY_DIFFER
    ]


def record_origin(origin: FineTuningOrigin, folder: RunFolder) -> None:
    """Writes the origin of a new run into its folder, and copies what export needs of a public model."""
    write_json(folder.origin, origin.model_dump(mode="json"))
    public = RunFolder(Path(origin.run)).public
    if origin.weights and public.is_dir():
        shutil.copytree(public, folder.public, dirs_exist_ok=True)


def read_origin(folder: RunFolder) -> FineTuningOrigin | None:
    """The recorded origin of a run, if it has one."""
    path = folder.origin
    if not path.is_file():
        return None
    try:
        recorded = parse_json(read_vocabulary_file(path, "it"), path.name)
        if isinstance(recorded, dict):
            recorded = {**recorded, "test": columns_of_json(recorded.get("test"))}
        return parse(FineTuningOrigin, recorded, str(path))
    except (DataError, RecipeError) as fault:
        raise CheckpointError(f"{path}: damaged ({fault}); train anew with --overwrite") from fault


def origin_tokenizers(origin: FineTuningOrigin, recipe: Recipe) -> Tokenizers:
    """The tokenizers of the origin; raises CheckpointError if they are missing or have changed.

    That of a single text is the one of all texts; of two texts a task of one takes its own.
    """
    tokenizers = Run(RunFolder(Path(origin.run))).load_tokenizers()
    if tokenizers.checksum != origin.vocabulary:
        raise CheckpointError(f"{origin.run}: its vocabulary has changed; start the training again")
    texts = [column.name for column in TASKS.get(recipe.task).columns if column.type == "text"]
    if len(tokenizers) == 1 < len(texts):
        return Tokenizers(recipe.tokenizer.changed({"joint": True}), dict.fromkeys(texts, *tokenizers.values()))
    if len(tokenizers) > len(texts) == 1:
        return Tokenizers(recipe.tokenizer, {texts[0]: tokenizers[texts[0]]})
    affixes = recipe.tokenizer.affixes
    if language_names(tokenizers.config.specials) and affixes != tokenizers.config.affixes:
        return with_affixes(tokenizers, affixes)  # type: ignore[arg-type]
    return tokenizers


def load_origin_weights(model: Model, tokenizers: Tokenizers, folder: RunFolder, notify: Notify) -> None:
    """Loads the recorded weights, if there are any, and says so; what was taken of parts is recorded as well.

    Raises CheckpointError if they are missing, changed, or of another model.
    """
    origin = read_origin(folder)
    if origin is None or not (origin.weights or origin.parts):
        return
    for one in origin.parts.values() or [origin]:
        if os.path.isfile(one.weights) and file_sha256(Path(one.weights)) != one.sha256:
            raise CheckpointError(f"{one.weights}: changed since this training was prepared; use --overwrite")
    if not origin.parts:
        assign_weights(model, read_weights(Path(origin.weights), origin.vocabulary), Path(origin.weights))
        if "tgt" in tokenizers:
            copy_first_input(model.embedding("tgt"), tokenizers)
        notify(f"fine-tuning: it starts from {origin.weights}")
        return
    for part, one in origin.parts.items():
        source, before, _ = Run(RunFolder(Path(one.run))).open_model(torch.device("cpu"), one.weights)
        origin.parts[part] = one.model_copy(update={"taken": _take(model, part, source, tokenizers, before)})
        notify(f"{part} from {one.weights}: {origin.parts[part].taken}")
    if processes.rank() == 0:
        write_json(folder.origin, origin.model_dump(mode="json"))


def _take(model: Model, part: str, source: Model, *tokenizers: Tokenizers) -> str:
    """As `take_part`; it also says what differs in the settings that both models have."""
    old, new, kind = source.config.model_dump(), model.config.model_dump(), source.config.kind
    group, own = "model", new.get(part)
    if isinstance(own, dict) and own.get("kind") == kind:  # the settings of this part are a group of their own
        group, new = f"model.{part}", own
    shared = [key for key in old if key not in ("kind", "tie") and None not in (old[key], new.get(key))]
    differences = _differing(group, *({key: one[key] for key in shared} for one in (old, new)))
    return "; ".join([take_part(model, part, source, differences, tokenizers), *differences])


def keep_public_form(model: Model, tokenizers: Tokenizers) -> None:
    """Lets training change an imported model only in ways that its public form has, so that it can be exported.

    Rows of embeddings and output layer that are one row there stay equal (see `tie_shared_rows`). The bias of the
    output layer, which is no weight there, stays as it is.
    """
    bias = dict(model.named_parameters()).get("output.bias")
    if bias is not None:
        bias.requires_grad_(False)
    for name, parameter in model.named_parameters():  # a tied matrix comes once
        if name in _OF_TOKENS and parameter.ndim == 2:
            tie_shared_rows(parameter, tokenizers.get(_OF_TOKENS[name]))


_OTHER_SIDE = {"encoder": "decoder", "src_": "tgt_", "decoder": "encoder", "tgt_": "src_"}
_OF_TOKENS = {
    "src_embedding.weight": "src",
    "tgt_embedding.weight": "tgt",
    "output.weight": "tgt",
    "output.bias": "tgt",
    "output_bias": "tgt",
}
"""Weights with a row for each token of a text."""


def _token_weights(model: Model) -> dict[str, str]:
    """The weights of a model with a row for each token of a text, and the column of that text."""
    modules = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    return _OF_TOKENS | {f"{name}.weight": "src" for name in modules if name.startswith("src_embedding.")}


def take_part(
    model: Model, part: str, source: Model, differences: Sequence[str], tokenizers: Sequence[Tokenizers] = ()
) -> str:
    """Copies one of `PARTS` from another model; says which weights were taken, grown, left at random, and not used.

    A model without this part gives that of the other side: an encoder goes on as a decoder (BERT2BERT). `tokenizers`
    are those of both: rows of embeddings are taken by token. On the meta device they are not needed. Raises a
    RecipeError with shapes, and the `differences` of settings, if nothing fits or something does not.
    """
    given = part_of(source, part)
    if not given:
        of_other_side = part_of(source, _other_side(part))
        given = {_other_side(name): weight for name, weight in of_other_side.items()}
    there = {name: one for name, one in model.state_dict(keep_vars=True).items() if name.startswith(PARTS[part])}
    unique = {id(there[name]): name for name in sorted(there, key=lambda name: name in given)}  # tied ones once
    own = {name: there[name] for name in unique.values()}
    taken, grown = [name for name in own if name in given], list[str]()
    faults = []
    for name, weight in own.items():
        is_frozen = isinstance(weight, nn.Parameter) and not weight.requires_grad
        # Frozen weights of another part, such as ELMo in the embedding of an encoder, come from that part's run.
        if is_frozen and name.startswith(f"{part}.") and name not in given:
            faults.append(f"{name} is never trained, and not there")
    of_tokens = _token_weights(model)
    for name in taken:
        first = int(name in of_tokens or name.endswith("_positions.table"))  # of these the number of rows may differ
        if own[name].shape[first:] != given[name].shape[first:]:
            faults.append(f"{name} is {[*own[name].shape]}, and there {[*given[name].shape]}")
    if faults or not taken:
        faults = faults[:3] or [f"that {source.config.kind} has none of {', '.join(_grouped(own))}"]
        raise RecipeError(
            f"`init_from.{part}`: its weights do not fit; take another run, or change the settings of the model:",
            *(f"  {fault}" for fault in (*faults, *differences)),
        )
    for name in taken:
        weight, count = own[name], min(len(own[name]), len(given[name]))
        new, old = [*range(count)], [*range(count)]
        if name in of_tokens and tokenizers:
            words, known = (one.get(of_tokens[name], next(iter(one.values()))).vocabulary for one in tokenizers)
            new = [row for row, token in enumerate(words.tokens) if token in known]
            old = known.ids(words.tokens[row] for row in new)
        with torch.no_grad():
            weight[new] = given[name][old].to(weight)
        grown += [f"{name} by {len(weight) - len(new):,} of {len(weight):,}"] if len(new) < len(weight) else []
    left, unused = [name for name in own if name not in given], [name for name in given if name not in own]
    said = {"taken": taken, "grown": grown, "left at random": left, "not used": unused}
    return "; ".join(f"{what}: {', '.join(_grouped(names))}" for what, names in said.items() if names)


def _other_side(name: str) -> str:
    """The name that a weight, or a part, has on the other side."""
    return next((new + name.removeprefix(old) for old, new in _OTHER_SIDE.items() if name.startswith(old)), name)


def _grouped(names: Iterable[str]) -> list[str]:
    """Names of weights without the number of their layer, no deeper than a sub-layer."""
    return list(dict.fromkeys(".".join(re.sub(r"\.\d+\.", ".N.", name).split(".")[:3]) for name in names))
