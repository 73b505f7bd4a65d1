"""Loads a recipe from its file, the recipes that it extends, and `--set`; each error names its place."""

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmtkit.config.groups import MAX_STAGES, STAGE_GROUPS, with_best_metric, without_replaced
from nmtkit.config.renamed import translate
from nmtkit.config.schema import Recipe, deep_merge
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import RecipeError, shorten
from nmtkit.core.files import bundled_path
from nmtkit.core.formats import MAX_DEPTH, KeyPath, load_yaml, parse_value
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import parse
from nmtkit.core.user_module import load_copy
from nmtkit.data.text.config import FILE_KINDS, joined_corpora
from nmtkit.models.base import MODELS, PARTS

PRESET = "preset-"
"""Prefix of the names of recipes without text, which other recipes extend."""


@dataclass(frozen=True)
class Layer:
    """Keys of a recipe from a file or an option; merging two layers gives a third."""

    data: Mapping[str, Any]
    places: Mapping[KeyPath, str]
    """The place of each key, as returned by `load_yaml`."""
    name: str
    """The name of the file or option."""

    def over(self, base: "Layer") -> "Layer":
        """Merges this layer into another, key by key; a group whose `kind` changes loses its old keys."""
        replaced: set[KeyPath] = set()
        kind = _kind_of_model(self) or _kind_of_model(base)
        upper, base = self.expand_shorthands(kind), base.expand_shorthands(kind)
        data = deep_merge(base.data, upper.data, replaced)
        gone = {
            path
            for path in base.places
            if any(path[:n] in replaced for n in range(1, len(path) + 1))
        }
        kept = {path: place for path, place in base.places.items() if path not in gone}
        return Layer(data, {**kept, **upper.places}, self.name)

    def expand_shorthands(self, kind: str) -> "Layer":
        """Replaces each model key that is short for several keys with those keys, so that each can be overridden."""
        given, places = self.data.get("model"), dict(self.places)
        if not kind or not isinstance(given, dict):
            return self
        model = dict(given)
        for short, keys in MODELS.get(kind).Config.shorthands.items():
            both = model.keys() & {*keys}  # an error, which validation reports
            if model.get(short) is None or both:
                continue
            model |= dict.fromkeys(keys, model.pop(short))
            places |= {("model", key): places.get(("model", short), self.name) for key in keys}
        return replace(self, data={**self.data, "model": model}, places=places)

    def only(self, keys: Collection[str]) -> "Layer":
        """Returns the layer with only these keys."""
        data = {key: value for key, value in self.data.items() if key in keys}
        return replace(
            self,
            data=data,
            places={path: place for path, place in self.places.items() if path[0] in data},
        )

    def stage(self, number: int) -> "Layer":
        """Returns the layer of one stage, whose keys are relative to the stage."""
        above: KeyPath = ("stages", number)
        places = {
            path[2:]: place for path, place in self.places.items() if path[:2] == above and path[2:]
        }
        return Layer(self.data["stages"][number], places, self.places.get(above, self.name))

    def with_stage(self, number: int, stage: "Layer") -> "Layer":
        """Returns the layer with the stage of this number replaced."""
        above: KeyPath = ("stages", number)
        stages = [stage.data if n == number else one for n, one in enumerate(self.data["stages"])]
        places = {
            path: place for path, place in self.places.items() if path[:2] != above or path == above
        }
        below = {(*above, *path): place for path, place in stage.places.items()}
        return replace(self, data={**self.data, "stages": stages}, places={**places, **below})


def _kind_of_model(layer: Layer) -> str:
    kind = _value_at(layer.data, ("model", "kind"))
    return kind if isinstance(kind, str) and kind in MODELS.names() else ""


def bundled(presets: bool = False) -> list[str]:
    """Returns the names of the recipes that come with nmtkit: only presets, or all other recipes."""
    names = sorted(path.stem for path in bundled_path("recipes").glob("*.yaml"))
    return [name for name in names if name.startswith(PRESET) == presets]


def any_text(preset: str) -> list[str]:
    """Returns overrides that turn a preset into a recipe, so that its settings can be shown."""
    columns = TASKS.get(_read(locate(preset)).data.get("task", TRANSLATION.name)).columns
    return [f"data.train.{column.name}=TEXT" for column in columns]


def locate(recipe: str) -> Path:
    """Returns the file of a recipe; `recipe` is a path, or the name of a recipe that comes with nmtkit."""
    path = Path(recipe)
    if os.path.isfile(path):  # also False if the name is too long for a file name
        return path
    name = recipe.removesuffix(".yaml")
    ours = bundled_path("recipes", f"{name}.yaml")
    if os.path.isfile(ours):
        return ours
    near = difflib.get_close_matches(name, [*bundled(), *bundled(presets=True)], n=3, cutoff=0.0)
    raise RecipeError(
        f"recipe not found: there is no file {shorten(repr(recipe))}, and nmtkit has no recipe with that name; "
        f"the closest names are {', '.join(near[:2])} and {near[2]} (`nmtkit recipe ls` lists all)"
    )


def _read(
    path: Path, extended_by: tuple[Path, ...] = (), in_folder: bool = False, trained: bool = False
) -> Layer:
    """Reads a recipe's file and merges it into the recipe it extends; with `in_folder`, text paths stay relative."""
    if path.resolve() in extended_by:
        chain = " -> ".join(str(one) for one in (*extended_by, path.resolve()))
        raise RecipeError(
            f"{path}: `extends` forms a cycle ({chain}); remove one of these references"
        )
    if path.name in ("recipe.yaml", "chosen.yaml"):  # files in the folder of a run
        load_copy(path.parent)
    data, places = translate(*load_yaml(path), str(path), trained)
    _settle_paths(data, path, in_folder)
    parent = data.get("extends")
    own = Layer(data, places, str(path)).only(data.keys() - {"extends"})
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise RecipeError(
            f"{places[('extends',)]}: `extends` must be the name of one other recipe, not a {type(parent).__name__}"
        )
    parent_path = path.parent / parent
    if not os.path.isfile(parent_path):
        try:
            parent_path = locate(parent)
        except RecipeError as fault:
            raise RecipeError(f"{places[('extends',)]}: `extends`: {fault}") from fault
    extended = _read(parent_path, (*extended_by, path.resolve()), in_folder)
    return own.over(_inherited(extended, own))


def _inherited(extended: Layer, own: Layer) -> Layer:
    """Returns the part of the recipe `extended` that the recipe `own` inherits.

    Name and description are not inherited, because a run with the name of another recipe would be written to the folder
    of that recipe. A test set belongs to its training text, so a recipe with its own `data.train` inherits no test set.
    """
    inherited = extended.only(extended.data.keys() - {"name", "description"})
    data = inherited.data.get("data")
    if _value_at(own.data, ("data", "train")) is None or not isinstance(data, dict):
        return inherited
    without_test = {key: value for key, value in data.items() if key != "test"}
    places = {
        path: place for path, place in inherited.places.items() if path[:2] != ("data", "test")
    }
    return replace(inherited, data={**inherited.data, "data": without_test}, places=places)


def _settle_paths(data: dict[str, Any], path: Path, in_folder: bool) -> None:
    """Resolves the paths of files relative to the recipe's folder, or else to the current folder."""
    stages = data.get("stages")
    for one in (data, *(stages if isinstance(stages, list) else ())):
        splits = [("data", split) for split in ("train", "valid", "test")]
        has_folder = in_folder or any(
            _value_at(group, ("data", "folder")) is not None for group in (one, data)
        )
        if isinstance(one, dict):
            _settle_folders(one, path.parent)
        for keys in (("pretrained_embeddings",), ("init_from", "test"), *splits):
            files = _value_at(one, keys)
            if isinstance(files, list) and len(keys) > 1:
                with suppress(ValueError):  # errors are reported when the settings are validated
                    files = one[keys[0]][keys[1]] = joined_corpora(files)
            if isinstance(files, dict) and not (has_folder and keys in splits):
                files.update(
                    {kind: _beside(files[kind], path) for kind in files.keys() & {*FILE_KINDS}}
                )


def _beside(given: Any, path: Path) -> Any:
    """Resolves paths relative to the recipe's folder, or to the current folder for files that exist only there."""
    if isinstance(given, list):
        return [_beside(one, path) for one in given]
    if not isinstance(given, str):
        return given
    beside = path.parent.resolve() / given
    return given if os.path.exists(given) and not os.path.exists(beside) else str(beside)


def _settle_folders(data: dict[str, Any], start: Path) -> None:
    """Makes the paths of existing folders absolute, so that they are valid in any current folder.

    `data.folder` is relative to `start`. `init_from` runs are looked up in `start`, in the current folder and under
    `runs/`. The user's file in such a run is executed, so that the recipe can use what it registers.
    `init_from: RUN` is short for `init_from: {run: RUN}`.
    """
    folder, origin = _value_at(data, ("data", "folder")), data.get("init_from")
    if isinstance(folder, str) and folder and os.path.isdir(start.resolve() / folder):
        data["data"] = {**data["data"], "folder": str(start.resolve() / folder)}
    origin = {"run": origin} if isinstance(origin, str) else origin
    if isinstance(origin, dict):
        data["init_from"] = dict(origin)
        for key in ("run", "tokenizer", *PARTS):
            run = origin.get(key)
            places = (
                (start.resolve() / run, Path(run), Path("runs", run))
                if isinstance(run, str) and run
                else ()
            )
            if there := [str(place.absolute()) for place in places if place.is_dir()]:
                data["init_from"][key] = there[0]
                load_copy(Path(there[0]))


def _over_run(layer: Layer) -> Layer:
    """Adds missing settings from the `init_from` run: task, tokenizer, model and search.

    If several runs provide parts, only the tokenizer is added.
    """
    named = {key: _value_at(layer.data, ("init_from", key)) for key in ("run", "tokenizer", *PARTS)}
    key, run = next(((key, run) for key, run in named.items() if run), ("run", None))
    needed = ("model", "tokenizer") if key == "run" else ("tokenizer",)
    groups = [layer.data.get(group) for group in needed]
    if (
        not isinstance(run, str)
        or not run
        or all(isinstance(group, dict) and "kind" in group for group in groups)
    ):
        return layer
    path = Path(run, "recipe.yaml")
    if not path.is_file():
        place = layer.places.get(("init_from", key)) or layer.places.get(("init_from",), layer.name)
        raise RecipeError(
            f"{place}: `init_from`: {run!r} is not the folder of a run, and the recipe itself has no "
            f"{' and no '.join(needed)}; set `init_from` to a run, or resume with the recipe.yaml of the started run"
        )
    read = _read(path, trained=True)
    source = _checked(replace(read, data={**read.data, "name": "run"}))
    last = list(source.by_stage().values())[-1].model_dump(mode="json")
    taken = {key: last[key] for key in ("task", "tokenizer", "model", "search")}
    if key != "run":
        taken = {"tokenizer": last["tokenizer"], "init_from": {"tokenizer": run}}
    return layer.over(Layer(taken, {(key,): str(path) for key in taken}, str(path)))


def run_name(recipe: str, overrides: Sequence[str] = ()) -> str:
    """Returns the name of a recipe, even if the recipe has errors."""
    path = locate(recipe)
    name = load_yaml(path)[0].get("name", path.stem)
    for text in overrides:
        key, _, value = text.partition("=")
        if key.strip() == "name":
            name = value.strip()
    return str(name)


def load(recipe: str | Path, overrides: Sequence[str] = (), trained: bool = False) -> Recipe:
    """Loads a recipe and the recipes that it extends, and applies overrides.

    Args:
        recipe: a file, or the name of a bundled recipe.
        overrides: `KEY=VALUE` strings with dotted keys, such as `training.lr=0.001`.
        trained: whether the recipe belongs to a trained run whose model is used.

    Raises:
        RecipeError: the recipe has errors. All are listed, each with its place, the dotted key, the given value and the
            valid values.
    """
    path = locate(str(recipe))
    in_folder = any(text.partition("=")[0].strip() == "data.folder" for text in overrides)
    layer = _read(path, in_folder=in_folder, trained=trained)
    for text in overrides:
        layer = _overridden(layer, text)
    data = {"name": path.stem, **layer.data}
    _settle_folders(
        data, Path()
    )  # for paths in --set; the paths in the recipe's files are already absolute
    return _checked(_over_run(replace(layer, data=data)))


def _overridden(layer: Layer, text: str) -> Layer:
    """Merges one `KEY=VALUE` into a recipe.

    A key of a stage contains the stage's name or its number from 0, as in `stages.NAME.training.lr=0.001`.
    """
    key, separator, value = text.partition("=")
    key = key.strip()
    keys = key.split(".")
    text = shorten(text)
    if not separator or not key or len(keys) > MAX_DEPTH:
        raise RecipeError(
            f"--set {text!r} is invalid; expected KEY=VALUE, for example --set training.lr=0.001"
        )
    listed = layer.data.get("stages")
    stages = {
        n: one
        for n, one in enumerate(listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
    }
    if keys[0] == "stages" and len(keys) > 1:
        names = {str(stage.get("name", "")): number for number, stage in reversed(stages.items())}
        number = {**{str(number): number for number in stages}, **names}.get(keys[1])
        if number is None:
            raise RecipeError(
                f"--set {text}: the recipe has no stage {shorten(repr(keys[1]))}; {suggest_names(keys[1], names)}"
            )
        if len(keys) == 2:
            raise RecipeError(
                f"--set {text}: specify which key of the stage to set, for example "
                f"stages.{keys[1]}.training.lr=0.001"
            )
        stage = layer.stage(number)
        return layer.with_stage(number, _given(stage, text, keys[2:], value, key).over(stage))
    if (
        stages
        and keys[0] in STAGE_GROUPS
        and all(_value_at(stage, keys) is not None for stage in stages.values())
    ):
        first = next(iter(stages.values())).get("name")
        raise RecipeError(
            f"--set {text}: every stage sets `{key}` itself, so this would have no effect; "
            f"set it in a stage: --set stages.{first}.{text}"
        )
    return _given(layer, text, keys, value, key).over(layer)


def _given(layer: Layer, text: str, keys: Sequence[str], value: str, key: str) -> Layer:
    """Returns the layer of one `--set`; `keys` are the path to the value, which is YAML."""
    nested: Any = parse_value(value)
    for part in reversed(keys):
        nested = {part: nested}
    if any(
        not isinstance(_value_at(layer.data, keys[:n]), dict | None) for n in range(1, len(keys))
    ):
        raise RecipeError(
            f"--set {text}: `{key}` cannot be set, because a key above it has a plain value instead of a group of keys"
        )
    place = f"--set {text}"
    places: dict[KeyPath, str] = {tuple(keys[:n]): place for n in range(1, len(keys) + 1)}
    return Layer(*translate(nested, places, place), layer.name)


def _value_at(group: Any, keys: Sequence[str]) -> Any:
    """Returns the value at a path of keys, or None."""
    for key in keys:
        group = group.get(key) if isinstance(group, dict) else None
    return group


def _checked(layer: Layer) -> Recipe:
    """Validates a recipe, and each stage merged into it; raises a RecipeError that lists all errors."""
    # Done before stages are merged in, so that they get the same metric as from a saved recipe, which has all defaults.
    layer = replace(layer, data=with_best_metric(layer.data))
    layers = [layer]
    listed = layer.data.get("stages")
    whole = layer.only(layer.data.keys() - {"stages"})
    for number, data in enumerate(
        listed if isinstance(listed, list) and len(listed) <= MAX_STAGES else []
    ):
        if isinstance(data, dict):
            given = {
                key
                for key in STAGE_GROUPS
                if isinstance(data.get(key), str if key == "task" else dict)
            }
            changes = layer.stage(number).only(given)
            base = replace(whole, data=without_replaced(whole.data, changes.data))
            layers.append(
                replace(changes, name=f"{changes.name}: stage {data.get('name') or number}").over(
                    base
                )
            )
    recipes: list[Recipe] = []
    faults: list[str] = []
    for one in layers:
        try:
            recipes.append(parse(Recipe, one.data, one.name, one.places))
        except RecipeError as fault:
            if fault.more:
                raise
            faults += fault.faults
    if faults:
        raise RecipeError(*dict.fromkeys(faults))
    first = recipes[0].tokenizer.specials
    if new := [tag for one in recipes for tag in one.tokenizer.specials if tag not in first]:
        raise RecipeError(
            f"{layer.name}: `stages`: the tag {new[0]} is used only in a stage, so the tokenizer has no token "
            "for it; add the tag to `tokenizer.specials`"
        )
    return recipes[0]
