"""Fields of JSON lines, and detection of JSON lines in place of plain text."""

from collections.abc import Mapping, Sequence
from typing import Any

from nmtkit.core.errors import DataError, shorten
from nmtkit.core.formats import parse_json

DETECTION_LINES = 64
"""The first lines of a text by which JSON lines are detected."""
JSON_ENDS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
"""Ends of the names of files with JSON lines."""
EXTRACT_HINT = "name one key of a file as FILE#KEY, or write its text out first, e.g. by `jq -r .KEY`"
JSONL_HINT = f"in a recipe name it with `jsonl`, src_field and tgt_field, or {EXTRACT_HINT}"


_MISSING = object()


def parse_record(line: str, where: str) -> dict[str, Any]:
    """The JSON object in a line, which messages call `where`; DataError if there is none."""
    record = parse_json(line, where)
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found a {type(record).__name__}")
    return record


def field_of(record: Mapping[str, Any], name: str, where: str, remedy: str) -> Any:
    """The value of a field, or of a field of a field, such as translation.en.

    DataError with a `remedy` such as "set src_field" if it is missing.
    """
    if name not in record:
        nested = _nested(record, name)
        if nested is not _MISSING:
            return nested
        raise DataError(
            f"{where}: no field {name!r}; it has {shorten(', '.join(_field_names(record))) or 'none'}: {remedy}"
        )
    return record[name]


def _field_names(record: Mapping[str, Any]) -> list[str]:
    """The names of all fields, those inside of objects as `translation.en`."""
    names = []
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            names += [f"{key}.{inner}" for inner in _field_names(value)]
        else:
            names.append(key)
    return names


def _nested(record: Mapping[str, Any], name: str) -> Any:
    """The value that translation.en names: the field `en` of the field `translation`."""
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value


def set_field(record: dict[str, Any], name: str, value: object) -> None:
    """Sets the value of a field, or of a field of a field, such as translation.en."""
    *outer, last = [name] if name in record else name.split(".")
    inner = record
    for key in outer:
        inner = inner.setdefault(key, {})
    inner[last] = value


def is_list_of_strings(value: object) -> bool:
    """Whether a value is a list of strings."""
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def text_of(record: Mapping[str, Any], name: str, where: str, remedy: str, joint: str = " ") -> str:
    """The text of a field: a string, or a list of strings joined by `joint`; a space makes it one line."""
    value = field_of(record, name, where, remedy)
    text = joint.join(value) if is_list_of_strings(value) else value
    if not isinstance(text, str):
        raise DataError(f"{where}: field {name!r} is neither a string nor a list of strings")
    return " ".join(text.splitlines()) if joint == " " else text


def refuse_json_lines(lines: Sequence[str], where: str, remedy: str) -> None:
    """Refuses JSON lines where plain text is expected: a model would answer braces and keys without complaint.

    The first lines are JSON lines if all that are not empty are objects with keys.
    """
    keys: list[str] = []
    for line in filter(str.strip, lines[:DETECTION_LINES]):
        try:
            record = parse_json(line, where) if line.lstrip()[0] == "{" else None
        except DataError:
            return
        if not isinstance(record, dict) or not record:
            return
        keys = keys or list(record)
    if keys:
        shown = shorten(", ".join(keys))
        raise DataError(f"{where}: each line is a JSON object (with {shown}), and plain text is read here; {remedy}")
