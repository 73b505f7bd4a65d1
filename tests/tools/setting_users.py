"""Who needs each setting: `python -m tests.tools.setting_users [--without | --counts]`.

A setting has a user if

* a recipe of nmtkit sets it, or an entry in the catalogue of corpora,
* a page of the guide or a README sets it in YAML, or names it with its group, as in `search.beam_size`,
* a command or a preset sets it, or reads it with its group, as in `recipe.data.folder`,
* an imported model sets it, or a file that nmtkit writes contains it,
* a paper has it: the description of the setting or a comment at the setting cites one. A paper in the docstring of the
  class counts for the `kind`, and for the settings that the docstring names, as in "the paper uses hidden size 512".

A key counts only where it is below its group. If the kinds of a group define the key differently, as `heads` of `model`
in a transformer and in an ntm, it counts only for the kinds that the same recipe, command or paragraph names.
"""

import argparse
import ast
import inspect
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from nmtkit import config
from nmtkit.cli.inference.model_options import CombinationSettings
from nmtkit.config.renamed import translate
from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import Settings, group_classes, members_of
from nmtkit.datasets.catalogue import Entry
from nmtkit.inference.reranking import ChannelWeights
from nmtkit.models.base import ModelConfig
from nmtkit.models.ensemble import CombinedConfig
from nmtkit.runs.origin import FineTuningOrigin, WeightsOrigin
from nmtkit.runs.run import InferenceConfig
from tests.tools import house

ROOT = Path(__file__).resolve().parents[2]
CITATION = re.compile(
    r"et al\.|\([A-Z][\w\s,]*(?:19|20)\d\d|[A-Z]\w+ (?:and [A-Z]\w+ )?(?:19|20)\d\d"
)
RECIPES = ("recipes/*.yaml",)
CATALOGUE = ("data/corpora.yaml",)
PAGES = (
    "README.md",
    "data/README.md",
    "nmtkit/guide/*.md",
    "recipes/README.md",
    "recipes/results/*.md",
)
COMMANDS = ("nmtkit/cli/**/*.py", "nmtkit/datasets/*.py")
PRESETS = ("nmtkit/experiment/presets/*.py",)
IMPORTS = ("nmtkit/convert/**/*.py",)
INTERNAL: dict[type[Settings], str] = {
    InferenceConfig: "`inference.json` of a run",
    WeightsOrigin: "`origin.json` of a run",
    FineTuningOrigin: "`origin.json` of a run",
    ChannelWeights: "the file that `rerank --tune` writes",
    CombinedConfig: "the config of several models that decode together",
    ModelConfig: "the `kind` that all models redefine",
}
"""Classes that nobody writes into a recipe, and what nmtkit uses them for."""
GENERATED = ("nmtkit/cli/commands/options/recipe_keys.py",)
"""Files that list all settings; they need none of them."""
GROUPS = tuple(name for name, field in config.Recipe.model_fields.items() if group_classes(field))
"""The groups of a recipe, such as `model`."""

Definition = tuple[str, str, str]
"""File, class and name of a setting."""


@dataclass(frozen=True)
class Setting:
    """A field of a class of settings."""

    file: str
    owner: str
    name: str
    paper: str
    """The first line that cites a paper; empty without one."""

    @property
    def definition(self) -> Definition:
        return self.file, self.owner, self.name


# ------------------------------------------------------------------------------------------- all settings, and papers


def settings() -> Iterator[Setting]:
    """Yields all settings of nmtkit, without the fields of foreign files."""
    foreign = {owner.name for owner in house.subclasses_of("ExternalSettings")}
    names = {owner.name for owner in house.subclasses_of("Settings")} - foreign
    for path in house.FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for owner in house.classes_of(path):
            if owner.name in names:
                yield from _fields(path, lines, owner)


def _fields(path: Path, lines: Sequence[str], owner: ast.ClassDef) -> Iterator[Setting]:
    end_of_previous = owner.lineno
    for number, field in enumerate(owner.body):
        first_line = end_of_previous
        end_of_previous = field.end_lineno or field.lineno
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(field.annotation):
            continue
        description = ""
        if number + 1 < len(owner.body):
            description = _text_of(owner.body[number + 1])
        comments = [line for line in lines[first_line:end_of_previous] if "#" in line]
        texts = [description, *comments]
        of_class = ast.get_docstring(owner) or ""
        words = field.target.id.replace("_", " ")
        if words == "kind" or re.search(rf"\b{words}s?\b", of_class.replace("_", " ")):
            texts.append(of_class)
        yield Setting(
            file=str(path.relative_to(ROOT)),
            owner=owner.name,
            name=field.target.id,
            paper=_citation(texts),
        )


def _text_of(statement: ast.stmt) -> str:
    """Returns the text of a statement that is only a string; otherwise empty."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def _citation(texts: Iterable[str]) -> str:
    """Returns the first line that cites a paper; empty without one."""
    for text in texts:
        for line in text.splitlines():
            if CITATION.search(line):
                return line.strip()
    return ""


# -------------------------------------------------------------------------------------- from keys to the settings


def definition_of(cls: type[Any], name: str) -> Definition:
    """Returns where a setting of a class is defined: in the class itself, or in a class that it inherits from."""
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            module = sys.modules[base.__module__]
            file = Path(str(module.__file__)).resolve()
            if file.is_relative_to(ROOT):
                return str(file.relative_to(ROOT)), base.__name__, name
    raise AssertionError(f"{cls.__name__} has no setting {name}")


def kind_of(cls: type[Any]) -> str:
    """Returns the kind of a class of settings; empty if its group has no kinds."""
    field = cls.model_fields.get("kind")
    if field is None or len(get_args(field.annotation)) != 1:
        return ""
    return str(field.default)


def found_in(
    tree: Mapping[Any, Any], classes: Sequence[type[Any]], inherited: Mapping[Any, Any]
) -> Iterator[Definition]:
    """Yields the settings that a tree of keys contains.

    Args:
        tree: the keys, as in YAML.
        classes: the classes that the tree may be an instance of.
        inherited: the keys of the recipe that is extended, which may name the `kind` of a group.
    """
    classes = [
        cls for cls in classes if cls.__module__.startswith("nmtkit.")
    ]  # tests register others
    kind = tree.get("kind", inherited.get("kind"))
    candidates = [cls for cls in classes if kind_of(cls) == kind] or classes
    for key, value in tree.items():
        owners = [cls for cls in candidates if key in cls.model_fields]
        definitions = {definition_of(owner, key) for owner in owners}
        if len(definitions) == 1:
            yield from definitions
        below = inherited.get(key)
        for owner in owners:
            for group, group_classes_below in _groups_in(owner, key, value):
                yield from found_in(
                    group, group_classes_below, below if isinstance(below, Mapping) else {}
                )


def _groups_in(
    owner: type[Any], key: str, value: Any
) -> Iterator[tuple[Mapping[Any, Any], Sequence[type[Any]]]]:
    """Yields each group below a key, with its possible classes."""
    field = owner.model_fields[key]
    members = members_of(field)
    classes = group_classes(field)
    if key == "columns" and owner.__name__ == "TokenizerConfig":  # overrides for one column
        classes = [owner]
    for group in value if isinstance(value, list) else [value]:
        if not isinstance(group, Mapping):
            continue
        is_by_name = key == "columns" or get_origin(field.annotation) is dict
        if members:
            for name in group.keys() & members.keys():
                if isinstance(group[name], Mapping):
                    yield group[name], [members[name]]
        elif classes and is_by_name:
            for inner in group.values():
                if isinstance(inner, Mapping):
                    yield inner, classes
        elif classes:
            yield group, classes


def found_in_recipe(tree: Any, inherited: Mapping[Any, Any]) -> Iterator[Definition]:
    """Yields the settings that a recipe, or a part of one, contains. Keys of earlier versions are replaced."""
    if not isinstance(tree, Mapping):
        return
    try:
        current, _ = translate({str(key): value for key, value in tree.items()}, {}, "")
    except RecipeError:  # a setting that no longer exists
        return
    yield from found_in(current, [config.Recipe], inherited)
    stages = current.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if isinstance(stage, Mapping):
            groups = {key: stage[key] for key in stage.keys() & {*GROUPS}}
            yield from found_in(groups, [config.Recipe], _merged(inherited, current))


def _merged(base: Mapping[Any, Any], upper: Mapping[Any, Any]) -> dict[Any, Any]:
    merged = dict(base)
    for key, value in upper.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(before, value)
        else:
            merged[key] = value
    return merged


# -------------------------------------------------------------------------------------------- recipes and catalogue


@cache
def recipe_tree(name: str) -> dict[Any, Any]:
    """Returns the keys of one of nmtkit's recipes with those it extends; empty if there is no such recipe."""
    path = ROOT / "recipes" / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        return {}
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    return _merged(recipe_tree(tree.get("extends", "")), tree)


def in_recipes(text: str) -> Iterator[Definition]:
    """Yields the settings in the text of a recipe."""
    tree = yaml.safe_load(text)
    complete = _merged(recipe_tree(str(tree.get("extends", ""))), tree)
    yield from found_in_recipe(tree, complete)
    for line in text.splitlines():
        if line.startswith("#"):  # the command that trains with the recipe
            yield from _in_commands(line, complete)


def in_catalogue(text: str) -> Iterator[Definition]:
    """Yields the settings in the text of a catalogue of corpora."""
    for entry in yaml.safe_load(text).values():
        if isinstance(entry, Mapping) and isinstance(entry.get("parameters"), Mapping):
            for parameter in entry["parameters"].values():
                if isinstance(parameter, list):  # short for `values`
                    parameter = {"values": parameter}
                yield from found_in({"parameters": {"": parameter}}, [Entry], {})
        yield from found_in(entry, [Entry], {})


# ------------------------------------------------------------------------------------------------------------- pages

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_DOTTED = re.compile(r"(?<![\w./-])([a-z_]+(?:\.[a-z_0-9]+)+)(?![\w/(])")
_ASSIGNMENT = re.compile(r"""--(set|search)[ =](?:"([^"]+)"|'([^']+)'|([^\s`]+))""")
_WORD = re.compile(r"[\w.-]+")


def in_page(text: str) -> Iterator[Definition]:
    """Yields the settings in a page in Markdown."""
    for language, content in _BLOCK.findall(text):
        if language == "yaml":
            yield from _in_yaml(content)
    heading = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("#"):
            heading = paragraph.splitlines()[0]
        # The kind of a group may be named in the heading above the paragraph.
        hints = _kinds_named_in(f"{heading}\n{paragraph}")
        for span in _SPAN.findall(paragraph):
            if ":" in span:
                yield from _in_yaml(span)
        codes = [*_SPAN.findall(paragraph), *(block for _, block in _BLOCK.findall(paragraph))]
        for code in codes:
            for key in _DOTTED.findall(code):
                yield from found_in_dotted(key, hints)
            for line in code.replace("\\\n", " ").splitlines():
                yield from _in_commands(line, {})


def _in_commands(line: str, recipe: Mapping[Any, Any]) -> Iterator[Definition]:
    """Yields the settings in the `--set` and `--search` of a command, which may name one of nmtkit's recipes."""
    tree: dict[Any, Any] = {}
    for option, *quoted in _ASSIGNMENT.findall(line):
        key, _, text = "".join(quoted).partition("=")
        if option == "search" and key in CombinationSettings.model_fields:
            yield definition_of(CombinationSettings, key)
        names = [*(["search"] if option == "search" else []), *key.split(".")]
        tree = _merged(tree, _nested(names, _parsed(text)))
    for word in _WORD.findall(line) if tree else ():
        recipe = _merged(recipe, recipe_tree(word))
    yield from found_in_recipe(tree, recipe)


def _parsed(text: str) -> Any:
    """Returns a value in YAML; None if it is not valid."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _in_yaml(text: str) -> Iterator[Definition]:
    """Yields the settings in a part of a recipe, or of a catalogue; none if the text is not YAML."""
    given = _parsed(text)
    if not isinstance(given, Mapping):
        return
    tree: dict[Any, Any] = {}
    for key, value in given.items():  # a key may be dotted, as in `model.kind: ntm`
        tree = _merged(tree, _nested(str(key).split("."), value))
    yield from found_in_recipe(tree, recipe_tree(str(tree.get("extends", ""))))
    for entry in tree.values():
        if isinstance(entry, Mapping) and "sources" in entry:
            yield from found_in(entry, [Entry], {})


@cache
def model_kinds() -> tuple[str, ...]:
    classes = group_classes(config.Recipe.model_fields["model"])
    return tuple(kind_of(cls) for cls in classes)


def _kinds_named_in(text: str) -> list[str]:
    """Returns the kinds of models that a text names, such as `rnn_encdec`."""
    return [kind for kind in model_kinds() if re.search(rf"\b{kind}\b", text, re.IGNORECASE)]


def found_in_dotted(key: str, kinds: Sequence[str]) -> Iterator[Definition]:
    """Yields the setting that a dotted key names. `kinds` are the kinds of models that its paragraph names."""
    names = key.split(".")
    if names[0] in ("objectives", "schedule"):
        names.insert(0, "training")
    tree = _nested(names)
    if names[0] in ("sources", "read", "filter", "split"):
        yield from found_in(tree, [Entry], {})
    if names[0] not in GROUPS:
        return
    found = {*found_in_recipe(tree, {})}
    for kind in kinds:
        found.update(found_in_recipe(tree, {"model": {"kind": kind}}))
    yield from found


# -------------------------------------------------------------------------------------------------------------- code


def in_code(text: str) -> Iterator[Definition]:
    """Yields the settings that code sets or reads together with their group."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for part in _parts_of_recipes(node):
            for definition in found_in_recipe(part, {}):
                if definition[1] != "Recipe":  # the keys are too general: `name`, `data`
                    yield definition
        if isinstance(node, ast.Attribute):
            names = _attributes(node)
            if "entry" in names[:-1]:
                name = names[names.index("entry") + 1]
                if name in Entry.model_fields:
                    yield definition_of(Entry, name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from _found_by_class(node.func.id, _keywords(node))


def _parts_of_recipes(node: ast.AST) -> Iterator[Mapping[str, Any]]:
    """Yields parts of recipes that a node builds or reads."""
    if isinstance(node, ast.Dict):
        yield _literal(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # A key, or an assignment for --set; not a sentence with a key.
        key = node.value.partition("=")[0]
        if _DOTTED.fullmatch(key):
            yield _nested(key.split("."))
    if isinstance(node, ast.Attribute):
        names = _attributes(node)
        for start, name in enumerate(names[:-1]):
            if name in GROUPS:
                yield _nested(names[start:])
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        first_argument = node.args[0].value
        if first_argument in GROUPS:  # such as `self._set("training", lr=...)`
            yield {str(first_argument): dict.fromkeys(_keywords(node))}
    # A table of a group's keys, such as SEARCH.
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        group = _group_in_name(target)
        if group == "search":
            yield from _by_kind(group, _literal(node.value))
        elif group:
            yield {group: _literal(node.value)}
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        entry = node.targets[0]
        if isinstance(entry.slice, ast.Constant) and isinstance(entry.slice.value, str):
            group = _group_in_name(entry.value)
            if group:
                yield {group: {entry.slice.value: None}}
    if isinstance(node, ast.FunctionDef) and node.name.endswith("_settings"):
        group = node.name.removesuffix("_settings")
        for inner in ast.walk(node):
            if group in GROUPS and isinstance(inner, ast.Dict):
                yield {group: _literal(inner)}


def _by_kind(group: str, keys: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the keys of each kind of a group that has some of them alone, such as `samples` of sampling."""
    classes = group_classes(config.Recipe.model_fields[group])
    shared = set.intersection(*({*cls.model_fields} for cls in classes))
    for cls in classes:
        of_kind = {key: None for key in keys if key in cls.model_fields}
        if of_kind.keys() - shared:
            yield {group: {**of_kind, "kind": kind_of(cls)}}


def _group_in_name(target: ast.expr) -> str:
    """Returns the group that a variable is named after, such as `_SEARCH`; empty if there is none."""
    name = target.id.strip("_").lower() if isinstance(target, ast.Name) else ""
    return name if name in GROUPS else ""


def _literal(node: ast.Dict) -> dict[str, Any]:
    """Returns the constant keys of a dictionary, with the dictionaries below them."""
    tree: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None and isinstance(value, ast.IfExp):  # **({...} if condition else {})
            value = value.body
        if key is None and isinstance(value, ast.Dict):
            tree.update(_literal(value))
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if isinstance(value, ast.Dict):
            tree[key.value] = _literal(value)
        elif isinstance(value, ast.Constant):
            tree[key.value] = value.value
        else:
            tree[key.value] = None
    return tree


def _nested(names: Sequence[str], value: Any = None) -> dict[str, Any]:
    tree = value
    for name in reversed(names):
        tree = {name: tree}
    return dict(tree)


def _attributes(node: ast.expr) -> list[str]:
    """Returns the names of a chain of attributes: `recipe.data.folder` gives recipe, data and folder."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        names.insert(0, node.id)
    return names


def _keywords(node: ast.Call) -> list[str]:
    return [keyword.arg for keyword in node.keywords if keyword.arg]


@cache
def classes_by_name() -> dict[str, type[Settings]]:
    """Returns all classes of settings that are imported, by name."""
    group_classes(config.Recipe.model_fields["model"])  # imports the modules of all models
    classes: dict[str, type[Settings]] = {}
    waiting: list[type[Settings]] = [Settings]
    while waiting:
        cls = waiting.pop()
        if cls.__module__.startswith("nmtkit."):  # tests define others
            classes[cls.__name__] = cls
        waiting += cls.__subclasses__()
    return classes


def _found_by_class(name: str, keys: Iterable[str]) -> Iterator[Definition]:
    """Yields the settings of a class, given by its name, that have these keys."""
    cls = classes_by_name().get(name)
    for key in keys if cls is not None else ():
        if cls is not None and key in cls.model_fields:
            yield definition_of(cls, key)


def in_import(text: str) -> Iterator[Definition]:
    """Yields the settings that the conversion of a foreign model sets.

    The settings of a model are a dictionary, in a file that names the class of the model's settings. If the file
    uses all fields of that class, as in `include={*BertConfig.model_fields}`, they come from the fields of the same
    name in the foreign file.
    """
    yield from in_code(text)
    names: set[str] = set()
    keys: set[str] = set()
    copied: set[str] = set()
    foreign_fields: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "model_fields":
            copied.add(ast.unparse(node.value))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            foreign_fields.add(node.target.id)
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Dict):
            keys.update(_literal(node))
        elif isinstance(node, ast.Call):
            keys.update(_keywords(node))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            index = node.targets[0].slice
            if isinstance(index, ast.Constant) and isinstance(index.value, str):
                keys.add(index.value)
    for name in names:
        yield from _found_by_class(name, keys)
        yield from _found_by_class(name, ["kind"])
        if name in copied:
            yield from _found_by_class(name, foreign_fields)


# ------------------------------------------------------------------------------------------------------------- users


def _found(
    patterns: Iterable[str], find: Callable[[str], Iterable[Definition]]
) -> dict[Definition, list[str]]:
    """Returns the files that contain each setting. The file that defines a setting does not count."""
    files: defaultdict[Definition, list[str]] = defaultdict(list)
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            if name in GENERATED:
                continue
            for definition in {*find(path.read_text(encoding="utf-8"))}:
                if definition[0] != name:
                    files[definition].append(name)
    return files


def users() -> dict[Setting, str]:
    """Returns the first user of each setting; empty if there is none."""
    found = {
        "recipe": _found(RECIPES, in_recipes),
        "catalogue": _found(CATALOGUE, in_catalogue),
        "guide": _found(PAGES, in_page),
        "command": _found(COMMANDS, in_code),
        "preset": _found(PRESETS, in_code),
        "import": _found(IMPORTS, in_import),
    }
    internal = {
        definition_of(cls, name): purpose
        for cls, purpose in INTERNAL.items()
        for name in cls.__annotations__
    }
    first: dict[Setting, str] = {}
    for setting in settings():
        names = [
            f"{kind}: {files[setting.definition][0]}"
            for kind, files in found.items()
            if setting.definition in files
        ]
        if setting.definition in internal:
            names.append(f"internal: {internal[setting.definition]}")
        if setting.paper:
            names.append(f"paper: {setting.paper}")
        first[setting] = names[0] if names else ""
    return first


def main() -> None:
    """Prints a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", action="store_true", help="only settings without a user")
    parser.add_argument("--counts", action="store_true", help="only the number of each kind")
    options = parser.parse_args()
    found = users()
    if options.counts:
        counts = Counter(user.partition(":")[0] or "NOBODY" for user in found.values())
        for kind, number in counts.most_common():
            print(f"{number:5} {kind}")
        return
    for setting, user in found.items():
        if not (options.without and user):
            print(f"{setting.file}  {setting.owner}.{setting.name}  {user or 'NOBODY'}")


if __name__ == "__main__":
    main()
