"""YAML and JSON from outside: one message with its line for every fault, and bounds on size and depth."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.wording import shorten

KeyPath = tuple[str | int, ...]

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


def dump_yaml(data: Mapping[str, Any]) -> str:
    """The mapping as YAML text, keys in their order."""
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text
