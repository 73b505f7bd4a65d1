"""The base of every part's settings, the one door to YAML and pydantic, and the one guard of JSON from outside.

A part declares its settings as a frozen class with one line of meaning under each field. A recipe file is read with the
line of every key, so that a fault is reported where it stands; all faults of a file are reported at once.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nmtkit.errors import DataError, RecipeError
from nmtkit.registry import near_names

__all__ = [
    "Field",
    "Settings",
    "dump_yaml",
    "field_validator",
    "load_yaml",
    "model_validator",
    "parse",
    "parse_json",
    "parse_value",
]

KeyPath = tuple[str | int, ...]
Places = Mapping[KeyPath, str]


class Settings(BaseModel):
    """A frozen group of settings; unknown keys are refused, and the text under a field is its meaning for users."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def changed(self: "S", values: Mapping[str, Any]) -> "S":
        """The same settings with some values replaced; checked like a recipe.

        Raises:
            RecipeError: a key or a value is not valid.
        """
        return parse(type(self), {**self.model_dump(), **values}, "option")


S = TypeVar("S", bound=Settings)


class _LineLoader(yaml.SafeLoader):
    """A YAML loader that refuses a key given twice and reads `1e-3` as the number everybody means."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            key = self.construct_object(key_node)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice, first on line {seen[key]}", key_node.start_mark
                )
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 wants a dot in a float ("1.0e-3"); a recipe may say 1e-3.
_FLOAT = r"^[-+]?([0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)|[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+([eE][-+]?[0-9]+)?)$"


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that puts quotes about what the loader above would take for a number."""


for _end in (_LineLoader, _Dumper):
    _end.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+0123456789."))


def _collect_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = (*path, key_node.value)
            lines[key] = key_node.start_mark.line + 1
            _collect_lines(value_node, key, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            item_path = (*path, number)
            lines[item_path] = item.start_mark.line + 1
            _collect_lines(item, item_path, lines)


def load_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Reads a YAML file that holds one mapping.

    Returns:
        The mapping, and the place ("FILE, line N", from 1) of every key in it by its path.

    Raises:
        DataError: the file cannot be read.
        RecipeError: it is not YAML, or not a mapping; the message gives the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}: not UTF-8 text (byte {fault.start}); save it as UTF-8") from fault
    try:
        root = yaml.compose(text, Loader=_LineLoader)
        data = yaml.load(text, Loader=_LineLoader)
    except (yaml.YAMLError, ValueError) as fault:  # ValueError: looks like a date or number, and is none
        mark = getattr(fault, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise RecipeError(f"{place}: not valid YAML: {getattr(fault, 'problem', None) or fault}") from fault
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: expected `key: value` lines, found a {type(data).__name__}")
    lines: dict[KeyPath, int] = {}
    if root is not None:
        _collect_lines(root, (), lines)
    return data, {key: f"{path}, line {line}" for key, line in lines.items()}


def parse_value(text: str) -> Any:
    """Reads the VALUE of `--set KEY=VALUE` as a recipe file would read it.

    Raises:
        RecipeError: it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_LineLoader)
    except (yaml.YAMLError, ValueError) as fault:
        problem = getattr(fault, "problem", None) or fault
        raise RecipeError(f"--set: {text!r} is not a valid value: {problem}; put text in quotes") from fault


DEEPEST = 100
"""How many groups and lists may lie one in the other in a YAML or JSON text; nothing that people write comes near."""

# A half of a character of two: whole pairs are escaped so too, so what this finds is only looked at more closely.
_PERHAPS_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse_json(text: str | bytes, place: str) -> Any:
    """The value that a JSON text from outside holds; every string in it can be written as UTF-8.

    Args:
        text: the JSON text; bytes are UTF-8.
        place: what to call it in a message: a file and its line.

    Raises:
        DataError: it is not JSON, nested too deeply, or has half a character or a number of thousands of digits in it.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text)
        if _PERHAPS_HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as fault:
        raise DataError(f"{place}: not UTF-8 text (byte {fault.start}); save it as UTF-8") from fault
    except UnicodeEncodeError as fault:
        half = f"\\u{ord(fault.object[fault.start]):x}"
        raise DataError(f"{place}: {half} is half a character, which is no text; take it out") from fault
    except json.JSONDecodeError as fault:
        raise DataError(f"{place}: not JSON: {fault}") from fault
    except ValueError as fault:  # Python reads no number of more than 4,300 digits
        raise DataError(f"{place}: a number in it has thousands of digits; write a shorter one") from fault
    except RecursionError as fault:
        raise _too_deep(place) from fault
    level = [value]
    for _ in range(DEEPEST + 1):
        groups = [part for part in level if isinstance(part, (dict, list))]
        if not groups:
            return value
        level = [part for group in groups for part in (group.values() if isinstance(group, dict) else group)]
    raise _too_deep(place)


def _too_deep(place: str) -> DataError:
    return DataError(f"{place}: groups and lists lie more than {DEEPEST} deep in each other; make it flatter")


def dump_yaml(data: Mapping[str, Any]) -> str:
    """The mapping as YAML text, keys in their order."""
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def _settings_at(cls: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel] | None, KeyPath]:
    """Follows a fault's location from `cls`; the location's union tags, which no file holds, are left out."""
    kept: list[str | int] = []
    here: list[type[BaseModel]] = [cls]
    for part in path:
        if isinstance(part, int):
            kept.append(part)
            continue
        found = [c.model_fields[part] for c in here if part in c.model_fields]
        if found:
            kept.append(part)
            here = [c for field in found for c in _classes_in(field.annotation)]
            continue
        tagged = [c for c in here if "kind" in c.model_fields and c.model_fields["kind"].default == part]
        if tagged:
            here = tagged
        else:
            kept.append(part)
            return (here[0] if len(here) == 1 else None), tuple(kept)
    return (here[0] if len(here) == 1 else None), tuple(kept)


def _classes_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in get_args(annotation) for c in _classes_in(part)]


def _sentence(
    fault: Mapping[str, Any], cls: type[BaseModel], places: Places, where: str, called: Callable[[KeyPath], KeyPath]
) -> str:
    """One fault of pydantic's as one sentence: place, dotted key, what was given, what is valid."""
    owner, path = _settings_at(cls, tuple(fault["loc"]))
    dotted = ".".join(str(part) for part in called(path))
    place = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), where)
    kind, given = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        advice = f": {near_names(str(path[-1]), owner.model_fields)}" if owner else ""
        return f"{place}: unknown key `{dotted}`{advice}"
    if kind == "missing":
        return f"{place}: `{dotted}` is missing"
    if kind == "union_tag_not_found":
        return f"{place}: `{dotted}.kind` is missing"
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in fault["ctx"]["expected_tags"].split(",")]
        place = places.get((*path, "kind"), place)
        return f"{place}: `{dotted}.kind`: unknown name {given['kind']!r}: {near_names(str(given['kind']), tags)}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if kind == "literal_error":
        options = [option.strip(" '") for option in fault["ctx"]["expected"].replace(" or ", ", ").split(",")]
        message = f"not one of its values: {near_names(str(given), options)}"
    shown = "" if isinstance(given, (dict, list, BaseModel)) else f" (given: {given!r})"
    return f"{place}: `{dotted}`: {message}{shown}" if dotted else f"{place}: {message}{shown}"


def parse(
    cls: type[S],
    data: Mapping[str, Any],
    where: str,
    places: Places | None = None,
    called: Callable[[KeyPath], KeyPath] = lambda path: path,
) -> S:
    """Checks `data` against the settings class.

    Args:
        cls: the class to build.
        data: plain mappings, lists, numbers and strings, as YAML gives them.
        where: what to call the place in a message where `places` has none: a file's name, or `--set`.
        places: where each key stands, as `load_yaml` gives it.
        called: what the user calls a key, where that is another path than its own.

    Raises:
        RecipeError: one line for every fault, each with the place, the dotted key, what was given and what is valid.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        sentences = [_sentence(dict(fault), cls, places or {}, where, called) for fault in error.errors()]
        raise RecipeError("\n".join(sentences)) from error
