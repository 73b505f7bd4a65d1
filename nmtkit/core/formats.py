"""Reads untrusted YAML and JSON with limits on size and depth; errors name the line."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmtkit.core.errors import DataError, RecipeError, shorten

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 100
"""Maximum nesting depth of groups and lists in YAML or JSON, far above the depth of real files."""
MAX_YAML_VALUES = 20_000
"""Maximum number of keys and values in a YAML text; values that an alias repeats count each time."""
MAX_YAML_BYTES = 1 << 18
"""Maximum size of a YAML file."""

_LONGEST_NUMBER = 100  # digits
_TOO_DEEP = f"groups and lists are nested more than {MAX_DEPTH} levels deep"
_TAG = "tag:yaml.org,2002:"
_TAGS = {
    yaml.ScalarNode: {
        f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge")
    },
    yaml.SequenceNode: {f"{_TAG}seq"},
    yaml.MappingNode: {f"{_TAG}map"},
}
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys and reads `1e-3` as a number.

    The result is a tree of bounded size: each use of an alias creates separate values, which count toward the limit.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines: dict[KeyPath, int] = {}
        """The line of every key and every list item."""
        self._count = 0

    def load(self) -> Any:
        try:
            root = self.get_single_node()
            if root is None:
                return None
            self._check(root, ())
            return self.construct_document(root)
        except RecursionError as fault:
            raise yaml.YAMLError(_TOO_DEEP) from fault
        finally:
            self.dispose()

    def _check(self, node: yaml.Node, path: KeyPath) -> None:
        self._count += 1
        if self._count > MAX_YAML_VALUES:
            raise _refusal(f"the file has more than {MAX_YAML_VALUES:,} keys and values", node)
        if len(path) > MAX_DEPTH:
            raise _refusal(_TOO_DEEP, node)
        if node.tag not in _TAGS[type(node)]:
            raise _refusal(f"{shorten(node.tag.removeprefix(_TAG))} is not a supported type", node)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _refusal("a key must be a word, not a list or a group", key)
                key_path = (*path, key.value)
                self._check(key, key_path)
                if key_path in self.lines:
                    raise _refusal(
                        f"duplicate key {key.value!r}, first used on line {self.lines[key_path]}",
                        key,
                    )
                self.lines[key_path] = key.start_mark.line + 1
                self._check(value, key_path)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self.lines[*path, number] = item.start_mark.line + 1
                self._check(item, (*path, number))
        else:
            _check_scalar(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=True)
        # A value that looks like a date or a number, or is tagged as one, but cannot be parsed as such.
        except (ValueError, LookupError, AttributeError, OverflowError) as fault:
            raise _refusal(str(fault), node) from fault
        del self.constructed_objects[node]  # so the next alias creates a new object
        return value


def _check_scalar(node: yaml.Node) -> None:
    if odd := _NO_TEXT.search(node.value):
        raise _refusal(f"\\u{ord(odd[0]):04x} is not a valid character", node)
    if node.tag.endswith(":int") and len(node.value) > _LONGEST_NUMBER:
        raise _refusal(f"numbers may have at most {_LONGEST_NUMBER} digits", node)


def _refusal(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, shorten(problem, 300), node.start_mark)


def _explained(fault: yaml.YAMLError, text: str) -> tuple[str, str]:
    """Returns the place of the error, ", line N" if known, and its description."""
    if isinstance(fault, yaml.reader.ReaderError):
        line = text.count("\n", 0, fault.position) + 1
        return f", line {line}", f"#x{fault.character:04x} is not a valid character"
    mark = getattr(fault, "problem_mark", None)
    problem = str(getattr(fault, "problem", None) or fault)
    return f", line {mark.line + 1}" if mark else "", shorten(problem, 500)


# YAML 1.1 requires a dot in a float ("1.0e-3"), but a recipe may contain 1e-3.
_FLOAT = r"^[-+]?([0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)|[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+([eE][-+]?[0-9]+)?)$"


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes strings that look like numbers or contain Unicode line breaks."""


def _represent_string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Double-quotes strings with Unicode line breaks, which YAML 1.1 would fold like newlines."""
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _represent_string)


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(f"{_TAG}float", re.compile(_FLOAT), list("-+0123456789."))


def read_yaml_text(path: Path) -> str:
    """Returns the text of a YAML file; raises DataError if it cannot be read or is not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_YAML_BYTES + 1)
        if len(content) > MAX_YAML_BYTES:
            raise DataError(
                f"{path}: this file is larger than {MAX_YAML_BYTES >> 10} KiB, the limit for a YAML file; "
                "use a different file"
            )
        return content.decode("utf-8")
    except OSError as fault:
        raise DataError(f"{path}: cannot be read: {fault.strerror or fault}") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}: not UTF-8 text (byte {fault.start}); save it as UTF-8") from fault


def load_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Reads a YAML file that contains one mapping.

    Returns:
        The mapping, and the place of each key, by its path ("FILE, line N", counted from 1).

    Raises:
        DataError: the file cannot be read.
        RecipeError: the file is not YAML, or not a mapping; the message gives the line.
    """
    text = read_yaml_text(path)
    try:
        loader = _Loader(text)
        data = loader.load()
    except yaml.YAMLError as fault:
        line, problem = _explained(fault, text)
        raise RecipeError(f"{path}{line}: not valid YAML: {problem}") from fault
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: expected `key: value` lines, found a {type(data).__name__}")
    return data, {key: f"{path}, line {line}" for key, line in loader.lines.items()}


def parse_value(text: str) -> Any:
    """Parses the VALUE of `--set KEY=VALUE` as YAML; raises RecipeError if it is not valid."""
    try:
        return _Loader(text).load()
    except yaml.YAMLError as fault:
        problem = _explained(fault, text)[1]
        raise RecipeError(
            f"--set: {shorten(repr(text))} is not a valid value: {problem}; put strings in quotes"
        ) from fault


# Half of a surrogate pair. Complete pairs match, too, so a match only triggers a closer look.
_PERHAPS_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse_json(text: str | bytes, place: str) -> Any:
    """Parses an untrusted JSON text; every string in the result can be encoded as UTF-8."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text)
        if _PERHAPS_HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as fault:
        raise DataError(
            f"{place}: not UTF-8 text (byte {fault.start}); save it as UTF-8"
        ) from fault
    # Half a surrogate pair, a number of more than 4,300 digits, or groups nested too deeply for Python's parser.
    except (ValueError, RecursionError) as fault:
        raise DataError(f"{place}: not valid JSON: {fault}") from fault
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        groups = [part for part in level if isinstance(part, (dict, list))]
        if not groups:
            return value
        level = [
            part
            for group in groups
            for part in (group.values() if isinstance(group, dict) else group)
        ]
    raise DataError(f"{place}: not valid JSON: {_TOO_DEEP}")


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Returns the mapping as YAML text with its keys in order."""
    text: str = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110
    )
    return text


def dump_yaml_value(value: Any) -> str:
    """Returns a value as YAML on one line, such as `{src: [train.en.gz]}`."""
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=MAX_YAML_BYTES,
        default_flow_style=True,
    )
    # A value that is not a list or a group is followed by the mark of the document's end.
    return text.removesuffix("\n").removesuffix("\n...")
