"""A source line with constraints on its translation: a prefix, and terms that it must or must not contain.

A request also has tags, languages and a location.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nmtkit.core.errors import DataError
from nmtkit.data.text.features import Rows
from nmtkit.data.text.files.json_records import is_list_of_strings, parse_record


@dataclass(frozen=True)
class Request:
    """A source line with constraints on its translation, tags, languages and its location."""

    source: str | Rows
    """Text (the prompt of a language model), or rows of numbers `(R, F)` for a model that reads features."""
    prefix: str = ""
    """Words that the translation begins with. The last word is complete: the search adds no letters to it."""
    must: tuple[str, ...] = ()
    """Terms that the translation must contain as whole words."""
    must_not: tuple[str, ...] = ()
    """Terms that the translation must not contain.

    The search blocks the sequence of tokens into which the tokenizer splits a term, even at the beginning of a longer
    word. It does not block other sequences of tokens with the same spelling; `terms.unmet_constraints` checks for these
    afterwards.
    """
    in_order: bool = False
    """Whether the terms in `must` have to appear in the given order."""
    tags: str = ""
    """Special tokens to put before the source, separated by spaces; see `SplitFiles.tags`."""
    languages: tuple[str, str] = ("", "")
    """Source and target language, for imported multilingual models; empty strings select the model's defaults."""
    place: str = ""
    """Location of the line, such as "line 3", for messages."""

    @property
    def text(self) -> str:
        """The source as text; the model must read text."""
        assert isinstance(self.source, str), "the source is not text"
        return self.source

    @classmethod
    def from_line(cls, line: "InputLine", place: str = "a line") -> "Request":
        """Wraps a line in a `Request` without constraints; `place` is the line's location, for messages.

        A line that is already a `Request` keeps its constraints, and its location if it has one.
        """
        if isinstance(line, Request):
            return line if line.place else replace(line, place=place)
        return cls(line, place=place)

    @classmethod
    def from_tsv(cls, line: str, place: str) -> "Request":
        """Parses SOURCE TAB PREFIX; without a tab, the whole line is the source. Strips spaces around the prefix."""
        source, _, prefix = line.partition("\t")
        if "\t" in prefix:
            raise DataError(f"{place}: more than one tab; expected SOURCE TAB PREFIX")
        return cls(source, prefix.strip(), place=place)

    @classmethod
    def from_json(cls, line: str, place: str) -> "Request":
        """Parses a JSON object with a "source" and, optionally, "prefix", "must", "must_not" and "in_order".

        A blank line becomes a request with an empty source. Line breaks in the source become spaces. The prefix is used
        as given, including spaces around it. Tags and languages are set for a whole run, not for individual lines.
        """
        if not line.strip():
            return cls("", place=place)
        record = parse_record(line, place)
        _check_fields(record, place)
        return cls(
            source=" ".join(record["source"].splitlines()),
            prefix=record.get("prefix", ""),
            must=tuple(record.get("must", ())),
            must_not=tuple(record.get("must_not", ())),
            in_order=record.get("in_order", False),
            place=place,
        )


InputLine: TypeAlias = str | Rows | Request
"""A line to translate: text or rows of numbers `(R, F)`, with or without constraints."""


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


_JSON_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "source": (_is_string, "a string"),
    "prefix": (_is_string, "a string"),
    "must": (is_list_of_strings, "a list of strings"),
    "must_not": (is_list_of_strings, "a list of strings"),
    "in_order": (_is_boolean, "true or false"),
}
"""The fields of a JSON request: for each, a function that checks its value, and a description of valid values.

`Request.from_json` reads the same fields; keep the two in sync.
"""


def _check_fields(record: Mapping[str, Any], place: str) -> None:
    """Raises a DataError if a JSON request has no source, an unknown field, or a field with an invalid value."""
    for key, value in record.items():
        if key not in _JSON_FIELDS:
            raise DataError(f"{place}: unknown field {key!r}; expected {', '.join(_JSON_FIELDS)}")
        is_valid, description = _JSON_FIELDS[key]
        if not is_valid(value):
            raise DataError(f"{place}: field {key!r} is not {description}")
    if "source" not in record:
        raise DataError(f"{place}: the field 'source' is missing; add it")
