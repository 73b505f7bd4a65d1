"""The base of every part's settings, the one door to YAML and pydantic, and the one guard of JSON from outside.

A part declares its settings as a frozen class with one line of meaning under each field. A recipe file is read with the
line of every key, so that a fault is reported where it stands; all faults of a file are reported at once.
"""

import ast
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypeVar, Union, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.registry import MAX_KEYS, Registry, suggest_names
from nmtkit.core.wording import shorten

__all__ = ["Field", "field_validator", "model_validator"]  # of pydantic, passed on to the settings of every part

KeyPath = tuple[str | int, ...]
Locations = Mapping[KeyPath, str]

MAX_INT = 2**53 - 1
"""The largest whole number of any setting; up to here JSON and a float hold each one exactly."""

Width = Annotated[int, Field(le=2**20)]
"""How many numbers or positions a layer has."""
Depth = Annotated[int, Field(le=200)]
"""How many layers lie one upon the other."""
Length = Annotated[int, Field(le=1_000_000)]
"""How many tokens a model may write."""
Beam = Annotated[int, Field(le=1000)]
"""How many hypotheses of a sentence are kept."""
MAX_THREADS = 1024
"""The most CPU threads; no machine has more cores by far."""

MAX_NAME_BYTES = 200
"""Bytes of the longest name: with an ending or a draw of letters it is still the name of a file."""


def is_valid_name(text: str) -> bool:
    """Whether it can be what a recipe, a run, a stage or a corpus is called: one folder's name, within any other."""
    plain = text.isprintable() and not set(text) & set("/\\{}")
    return plain and text[:1] not in (*".-~ ", "") and text[-1] != " " and len(text.encode("utf-8")) <= MAX_NAME_BYTES


def _named(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError(
            "not a name: a name has none of / \\\\ { } and nothing that cannot be printed, does not begin with one of "
            f". - ~ or a space nor end with a space, and has 1 to {MAX_NAME_BYTES} bytes; give another, e.g. by "
            "--set name=NAME"
        )
    return text


Name = Annotated[str, AfterValidator(_named)]
"""What a recipe, a run, a stage or a corpus is called."""


def registry_name(registry: Registry[Any]) -> Any:
    """The type of a setting that names a member of a registry; the schema lists those that are there by now."""

    def member(given: object) -> object:
        if given not in registry.names():
            raise ValueError(f"not one of its values: {suggest_names(str(given), registry.names())}")
        return given

    return Annotated[str, BeforeValidator(member), Field(json_schema_extra={"enum": [*registry.names()]}), registry]


class Settings(BaseModel):
    """A frozen group of settings; unknown keys are refused, and the text under a field is its meaning for users."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*")
    @classmethod
    def _within_reach(cls, value: Any) -> Any:
        """The one bound of all whole numbers; a field may have a lower one."""
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ValueError(f"a whole number here is at most {MAX_INT:,}")
        return value

    @classmethod
    def meaning(cls, key: str) -> str:
        """What the text under a field says; it is read when asked for, which only help and schemas do."""
        texts = (_texts_under_fields(one).get(key) for one in cls.__mro__ if issubclass(one, Settings))
        return next(filter(None, texts), "")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        found: dict[str, Any] = handler(schema)
        for key, described in handler.resolve_ref_schema(found).get("properties", {}).items():
            if text := cls.meaning(key):
                described["description"] = text
        return found

    def changed(self: "S", values: Mapping[str, Any]) -> "S":
        """The same settings with some values replaced; raises RecipeError if a key or a value is not valid."""
        return parse(type(self), {**self.model_dump(), **values}, "option")


S = TypeVar("S", bound=Settings)


@cache
def _texts_under_fields(cls: type[Settings]) -> dict[str, str]:
    """The texts under the fields that a class declares itself, by their names."""
    found = {}
    for field, text in pairwise(ast.parse(dedent(inspect.getsource(cls))).body[0].body):  # type: ignore[attr-defined]
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found


class TaggedUnion:
    """The type of a group whose `kind` names one of several classes: `Annotated[Any, TaggedUnion(classes)]`.

    The classes are asked for whenever settings are checked, so that one that came later can be named too.
    """

    def __init__(self, classes: Callable[[], Sequence[type[Settings]]]) -> None:
        self.classes = classes

    def _union(self) -> TypeAdapter[Any]:
        return _union(tuple(self.classes()))

    def _checked(self, value: Any) -> Any:
        found = self._union().validate_python(value)
        type(found).model_rebuild()  # the type of the field is Any: who writes it out asks its own class how
        return found

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return handler(self._union().core_schema)


@cache
def _union(classes: tuple[type[Settings], ...]) -> TypeAdapter[Any]:
    form: Any = Annotated[Union[classes], Field(discriminator="kind")]  # noqa: UP007  # known only now
    return TypeAdapter(form)


MAX_DEPTH = 100
"""How many groups and lists may lie one in the other in a YAML or JSON text; nothing that people write comes near."""
MAX_YAML_VALUES = 20_000
"""How many keys and values a YAML text may have, those that an alias repeats counted as often."""
MAX_YAML_BYTES = 1 << 22
"""How long a YAML file may be."""

_LONGEST_NUMBER = 100  # digits
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_TAGS = {
    yaml.ScalarNode: {_MERGE, *(f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp"))},
    yaml.SequenceNode: {f"{_TAG}seq"},
    yaml.MappingNode: {f"{_TAG}map"},
}
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _LineLoader(yaml.SafeLoader):
    """A YAML loader that refuses a key given twice and reads `1e-3` as the number everybody means.

    It gives a tree: what an alias repeats is copied, so that no value is changed in two places at once and none holds
    itself. Its depth and its size have a bound, which the copies count towards.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0
        self._open: list[str | None] = []  # the anchors of the values that are being read

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # yaml's stubs have no types for it
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._open:
                raise _refusal(f"*{event.anchor} stands within the value that it repeats", event.start_mark)
            repeated = super().compose_node(parent, index)
            return repeated and self._copied(repeated, event.start_mark)
        self._admit(event.start_mark)
        self._open.append(event.anchor)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._open.pop()
        if node is not None and node.tag not in _TAGS[type(node)]:
            raise _refusal(f"{shorten(node.tag.removeprefix(_TAG))} is no kind of value here", node.start_mark)
        if isinstance(node, yaml.ScalarNode) and (odd := _NO_TEXT.search(node.value)):
            raise _refusal(f"\\u{ord(odd[0]):04x} is no character of a text", node.start_mark)
        return node

    def _admit(self, mark: Any) -> None:
        self._count += 1
        if self._count > MAX_YAML_VALUES:
            raise _refusal(f"more than {MAX_YAML_VALUES:,} keys and values", mark)
        if self._depth > MAX_DEPTH:
            raise _refusal(f"groups and lists lie more than {MAX_DEPTH} deep in each other", mark)

    def _copied(self, node: Any, mark: Any) -> Any:
        self._admit(mark)
        if isinstance(node, yaml.ScalarNode):
            return node
        self._depth += 1
        value: list[Any]
        if isinstance(node, yaml.MappingNode):
            value = [(self._copied(key, mark), self._copied(held, mark)) for key, held in node.value]
        else:
            value = [self._copied(held, mark) for held in node.value]
        self._depth -= 1
        return type(node)(node.tag, value, node.start_mark, node.end_mark, node.flow_style)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and len(node.value) > _LONGEST_NUMBER:
            raise _refusal(f"a number of more than {_LONGEST_NUMBER} digits", node.start_mark)
        try:
            return super().construct_object(node, deep)
        # It looks like a date or a number, or its tag says that it is one, and it is none.
        except (ValueError, LookupError, AttributeError, OverflowError) as fault:
            raise _refusal(str(fault), node.start_mark) from fault

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal("a key must be a word", key_node.start_mark)
            if key_node.tag == _MERGE:  # what it brings in, keys of the mapping's own replace
                continue
            key = self.construct_object(key_node)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise _refusal(f"key {key!r} is given twice, first on line {seen[key]}", key_node.start_mark)
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


def _refusal(problem: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, shorten(problem, 300), mark)


def _compose(text: str) -> tuple[Any, yaml.Node | None]:
    """The value that a YAML text holds, and the tree that it was made of."""
    loader = _LineLoader(text)
    try:
        root = loader.get_single_node()
        return (None if root is None else loader.construct_document(root)), root
    finally:
        loader.dispose()


# YAML 1.1 wants a dot in a float ("1.0e-3"); a recipe may say 1e-3.
_FLOAT = r"^[-+]?([0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)|[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+([eE][-+]?[0-9]+)?)$"


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that puts quotes about what the loader above would take for a number."""


for _end in (_LineLoader, _Dumper):
    _end.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+0123456789."))


def _collect_lines(node: yaml.Node | None, path: KeyPath, lines: dict[KeyPath, int]) -> None:
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
        with path.open("rb") as file:
            content = file.read(MAX_YAML_BYTES + 1)
        if len(content) > MAX_YAML_BYTES:
            raise DataError(f"{path}: more than {MAX_YAML_BYTES >> 20} MiB; is this the file that you mean?")
        text = content.decode("utf-8")
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}: not UTF-8 text (byte {fault.start}); save it as UTF-8") from fault
    try:
        data, root = _compose(text)
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        raise RecipeError(
            f"{path}, line {line}: not valid YAML: #x{fault.character:04x} is no character of a text"
        ) from fault
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise RecipeError(
            f"{place}: not valid YAML: {shorten(str(getattr(fault, 'problem', None) or fault), 500)}"
        ) from fault
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: expected `key: value` lines, found a {type(data).__name__}")
    lines: dict[KeyPath, int] = {}
    _collect_lines(root, (), lines)
    return data, {key: f"{path}, line {line}" for key, line in lines.items()}


def parse_value(text: str) -> Any:
    """Reads the VALUE of `--set KEY=VALUE` as a recipe file would; raises RecipeError if it is not YAML."""
    try:
        return _compose(text)[0]
    except yaml.YAMLError as fault:
        problem = shorten(str(getattr(fault, "problem", None) or fault), 300)
        shown = shorten(repr(text))
        raise RecipeError(f"--set: {shown} is not a valid value: {problem}; put text in quotes") from fault


# A half of a character of two: whole pairs are escaped so too, so what this finds is only looked at more closely.
_PERHAPS_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse_json(text: str | bytes, place: str) -> Any:
    """The value that a JSON text from outside holds; every string in it can be written as UTF-8.

    Messages call the text by its place: a file and its line.

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
    for _ in range(MAX_DEPTH + 1):
        groups = [part for part in level if isinstance(part, (dict, list))]
        if not groups:
            return value
        level = [part for group in groups for part in (group.values() if isinstance(group, dict) else group)]
    raise _too_deep(place)


def _too_deep(place: str) -> DataError:
    return DataError(f"{place}: groups and lists lie more than {MAX_DEPTH} deep in each other; make it flatter")


def bundled_path(folder: str, name: str = "") -> Path:
    """A file or folder that comes with nmtkit: inside the package once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / folder / name
    return inside if os.path.exists(inside) else package.parent / folder / name  # false where no name is so long


def dump_yaml(data: Mapping[str, Any]) -> str:
    """The mapping as YAML text, keys in their order."""
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def _settings_at(cls: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel] | None, KeyPath]:
    """Follows a fault's location from `cls`; the location's union tags, which no file holds, are left out."""
    kept: list[str | int] = []
    here: list[type[BaseModel]] = [cls]
    for part in path:
        found = [c.model_fields[part] for c in here if part in c.model_fields]
        tagged = [c for c in here if "kind" in c.model_fields and c.model_fields["kind"].default == part]
        if tagged and not found:
            here = tagged
            continue
        kept.append(part)
        if found:
            here = [c for field in found for c in group_classes(field)]
        elif not isinstance(part, int):
            break
    return (here[0] if len(here) == 1 else None), tuple(kept)


def group_classes(field: FieldInfo) -> list[type[BaseModel]]:
    """The groups of settings that a field may hold."""
    named: list[type[BaseModel]] = [c for one in field.metadata if isinstance(one, TaggedUnion) for c in one.classes()]
    return named or _classes_in(field.annotation)


def _classes_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in get_args(annotation) for c in _classes_in(part)]


def key_paths(cls: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a group of settings and of the groups below it, each of which may be of several kinds."""
    for key, field in cls.model_fields.items():
        yield (*above, key)
        for inner in group_classes(field):
            yield from key_paths(inner, (*above, key))


def _advice(path: KeyPath, owner: type[BaseModel] | None, root: type[BaseModel]) -> str:
    """What an unknown key may have been meant for: a key that is elsewhere, if it is in one place, or one like it."""
    elsewhere = {known for known in key_paths(root) if known[-1] == path[-1]}
    if len(elsewhere) == 1 and path not in elsewhere:
        return f": did you mean {'.'.join(map(str, elsewhere.pop()))!r}?"
    return f": {suggest_names(str(path[-1]), owner.model_fields, MAX_KEYS)}" if owner else ""


def _sentence(
    fault: Mapping[str, Any], cls: type[BaseModel], places: Locations, where: str, called: Callable[[KeyPath], KeyPath]
) -> str:
    """One fault of pydantic's as one sentence: place, dotted key, what was given, what is valid."""
    owner, path = _settings_at(cls, tuple(fault["loc"]))
    dotted = shorten(".".join(str(part) for part in called(path)))
    place = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), where)
    kind, given = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        return f"{place}: unknown key `{dotted}`{_advice(path, owner, cls)}"
    if kind == "missing":
        return f"{place}: `{dotted}` is missing"
    if kind == "union_tag_not_found":
        return f"{place}: `{dotted}.kind` is missing"
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in fault["ctx"]["expected_tags"].split(",")]
        place = places.get((*path, "kind"), place)
        name = str(given["kind"])
        return f"{place}: `{dotted}.kind`: unknown name {shorten(repr(name))}: {suggest_names(name, tags)}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if kind == "literal_error":
        options = [option.strip(" '") for option in fault["ctx"]["expected"].replace(" or ", ", ").split(",")]
        message = f"not one of its values: {suggest_names(str(given), options)}"
    shown = "" if isinstance(given, (dict, list, BaseModel)) else f" (given: {shorten(repr(given))})"
    return f"{place}: `{dotted}`: {message}{shown}" if dotted else f"{place}: {message}{shown}"


def parse(
    cls: type[S],
    data: Mapping[str, Any],
    where: str,
    places: Locations | None = None,
    called: Callable[[KeyPath], KeyPath] = lambda path: path,
) -> S:
    """Checks plain values, as YAML gives them, against the settings class.

    Args:
        cls: the class to build.
        data: the values.
        where: what to call the place in a message where `places` has none: a file's name, or `--set`.
        places: where each key stands, as `load_yaml` gives it.
        called: what the user calls a key, where that is another path than its own.

    Raises:
        RecipeError: a line for each fault, with the place, the dotted key, what was given and what is valid; of many
            faults the first.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        listed = [_sentence(dict(fault), cls, places or {}, where, called) for fault in faults[: RecipeError.MOST]]
        raise RecipeError(*listed, more=len(faults) - len(listed)) from error
