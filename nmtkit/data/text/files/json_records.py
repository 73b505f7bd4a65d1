"""Reads fields of JSON lines, and detects JSON lines where plain text is expected."""

from collections.abc import Mapping, Sequence
from typing import Any

from nmtkit.core.errors import DataError, shorten
from nmtkit.core.formats import parse_json

DETECTION_LINES = 64
"""Number of lines at the beginning of a text that are searched for JSON."""
JSON_ENDS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
"""File extensions of JSON Lines files."""
EXTRACT_HINT = "use FILE#KEY to read one field of each line, or extract the text first, for example with `jq -r .KEY`"
JSONL_HINT = f"in a recipe, use `jsonl`, src_field and tgt_field, or {EXTRACT_HINT}"


_MISSING = object()


def parse_record(line: str, where: str) -> dict[str, Any]:
    """Parses a line as a JSON object; raises a DataError if it is not one. `where` locates the line in messages."""
    record = parse_json(line, where)
    if not isinstance(record, dict):
        raise DataError(
            f"{where}: expected a JSON object, but found a value of type {type(record).__name__}"
        )
    return record


def field_of(record: Mapping[str, Any], name: str, where: str, remedy: str) -> Any:
    """Returns the value of a field, or of a nested field such as translation.en.

    Raises:
        DataError: there is no such field; the message contains the `remedy`, such as "set src_field".
    """
    if name in record:
        return record[name]
    value = _nested(record, name)
    if value is _MISSING:
        names = shorten(", ".join(_field_names(record)))
        others = f", only {names}" if names else ""
        raise DataError(f"{where}: there is no field {name!r}{others}; {remedy}")
    return value


def _field_names(record: Mapping[str, Any]) -> list[str]:
    """Returns the names of all fields, with nested fields in the form translation.en."""
    names = []
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            names += [f"{key}.{inner}" for inner in _field_names(value)]
        else:
            names.append(key)
    return names


def _nested(record: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a nested field: translation.en is the field `en` of the object `translation`."""
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value


def set_field(record: dict[str, Any], name: str, value: object) -> None:
    """Sets the value of a field, or of a nested field such as translation.en."""
    if name in record:
        record[name] = value
        return
    *outer_keys, last_key = name.split(".")
    inner = record
    for key in outer_keys:
        inner = inner.setdefault(key, {})
    inner[last_key] = value


def is_list_of_strings(value: object) -> bool:
    """Returns whether a value is a list that contains only strings; an empty list counts."""
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def text_of(record: Mapping[str, Any], name: str, where: str, remedy: str, joint: str = " ") -> str:
    """Returns the text of a field: a string, or a list of strings joined by `joint`.

    If `joint` is a space, newlines within a string become spaces, too.
    """
    value = field_of(record, name, where=where, remedy=remedy)
    if is_list_of_strings(value):
        value = joint.join(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: field {name!r} is neither a string nor a list of strings")
    if joint == " ":
        return " ".join(value.splitlines())
    return value


def refuse_json_lines(lines: Sequence[str], where: str, remedy: str) -> None:
    """Raises a DataError for JSON lines where plain text is expected, since a model would translate braces and keys.

    Text counts as JSON lines if all nonempty lines at its beginning are JSON objects with keys.
    """
    keys: list[str] = []  # keys of the first object
    for line in lines[:DETECTION_LINES]:
        text = line.strip()
        if not text:
            continue
        if not text.startswith("{"):
            return
        try:
            record = parse_json(line, where)
        except DataError:
            return
        if not isinstance(record, dict) or not record:
            return
        keys = keys or list(record)
    if keys:
        shown_keys = shorten(", ".join(keys))
        raise DataError(
            f"{where}: each line is a JSON object (with the keys {shown_keys}), but plain text is expected here; "
            f"{remedy}"
        )
