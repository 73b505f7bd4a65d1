"""Reads one column of a file: a column in a table, a language in a TMX file, or a field in a JSONL file.

Wherever a text file is expected, `FILE#COLUMN` refers to such a column: pairs.csv#English, pairs.tsv#2, memory.tmx#fr,
data.jsonl#translation.en. Each column is read separately, in one pass and in constant memory. The nth texts of all
columns belong together.
"""

import csv
import html.entities
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any
from xml.parsers import expat

from nmtkit.core.errors import DataError, shorten
from nmtkit.data.text.files.formats import delimiter_of
from nmtkit.data.text.files.json_records import parse_record, text_of
from nmtkit.data.text.files.names import JSON_COLUMN_ENDS, without_compression_end

_TMX_CHUNK = 1 << 16
_TMX_CODES = ("bpt", "ept", "it", "ph", "ut")
"""Inline TMX elements that contain formatting codes instead of text. In contrast, the content of `hi` is text."""
_UNITS_TO_SEE = 1000
"""If the language does not occur in about this many units at the beginning of a TMX file, reading fails."""
_MAX_CELL = 1 << 24  # characters


_ENDS_WITHOUT_COLUMNS = (".srt", ".vtt", ".sub", ".html", ".htm", ".xml", ".xlf", ".xliff", ".md")
"""Extensions of subtitle and markup files, which would otherwise be read as tables with a single column."""


def read_column(lines: Iterable[str], file: str, column: str) -> Iterator[str]:
    """Yields the texts in one column of a table, or in one field of a JSONL file.

    A column is specified by its name in the first row or, if the file has no header, by its number, counted from 1. A
    missing cell counts as empty text. Newlines in a cell become spaces.

    Args:
        lines: lines of the file.
        file: name of the file; its extension determines the format.
        column: name or number of the column, or name of the field.

    Raises:
        DataError: there is no such column or field, or the file is damaged.
    """
    name = without_compression_end(file.lower())
    if name.endswith(_ENDS_WITHOUT_COLUMNS):
        raise DataError(
            f"{file}#{column}: files of this kind have no columns; extract the lines of text first"
        )
    if name.endswith(JSON_COLUMN_ENDS):
        return _json_fields(lines, file, column)
    rows = _rows(lines, file, is_csv=name.endswith(".csv"))
    return _cells(rows, file, column)


def _json_fields(lines: Iterable[str], file: str, field: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.lstrip("\ufeff ").startswith("["):
            raise DataError(
                f"{file}: this is a JSON list. Write one object per line first: jq -c '.[]' {file}"
            )
        if not line.strip():
            yield ""
            continue
        where = f"{file}, line {number}"
        record = parse_record(line, where)
        yield text_of(record, field, where=where, remedy="specify a different one as FILE#FIELD")


def _rows(lines: Iterable[str], file: str, is_csv: bool) -> Iterator[list[str]]:
    if not is_csv:  # tab-separated tables have no quoting: a quotation mark is part of the text
        for line in lines:
            yield line.split("\t")
        return
    remaining = iter(lines)
    first = next(remaining, None)
    if first is None:
        return
    csv.field_size_limit(_MAX_CELL)
    complete_lines = (f"{line}\n" for line in chain([first], remaining))
    reader = csv.reader(complete_lines, delimiter=delimiter_of(first), strict=True)
    try:
        yield from reader
    except csv.Error as fault:
        raise DataError(
            f"{file}, line {reader.line_num}: not valid CSV ({fault}); correct the quotation marks"
        ) from fault


def _cells(rows: Iterator[list[str]], file: str, column: str) -> Iterator[str]:
    first = next(rows, None)
    if first is None:
        return
    if column.isdecimal():
        index = int(column) - 1
        if not 0 <= index < len(first):
            columns = f"{len(first)} columns" if len(first) != 1 else "1 column"
            raise DataError(f"{file}: there is no column {column}; the first row has {columns}")
        yield _one_line(first[index])
    elif column in first:
        index = first.index(column)
    else:
        heads = shorten(", ".join(first))
        raise DataError(
            f"{file}: there is no column {column!r} in the first row ({heads}); use one of these names or, if the file "
            f"has no header, a number from 1 to {len(first)}"
        )
    for row in rows:
        text = row[index] if index < len(row) else ""
        yield _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if "\n" in text else text


# ------------------------------------------------------------------------------------------------------------------ TMX


class _TmxReader:
    """Collects the texts in one language while a TMX file is parsed; rejects entity declarations."""

    def __init__(self, file: str, language: str, encoding: str | None) -> None:
        self.file = file
        self.texts: list[str] = []
        self.languages: dict[str, None] = {}
        self.has_language = False  # whether any unit had text in the requested language
        self.units = 0
        self._language = language.lower().replace("_", "-")
        self._variants: dict[str, str] = {}  # texts of the current translation unit by language
        self._variant = ""  # language of the current text
        self._text: list[str] | None = None  # parts of the current text; None outside segments
        self._codes = 0  # nesting depth of elements in `_TMX_CODES`
        self.parser = expat.ParserCreate(encoding)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.SkippedEntityHandler = self._skipped
        self.parser.EntityDeclHandler = self._refuse_entity

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self._variants = {}
        elif name == "tuv":
            self._variant = attributes.get("xml:lang", attributes.get("lang", ""))
        elif name == "seg":
            self._text = []
        elif name in _TMX_CODES:
            self._codes += 1
            if name == "ph" and self._text is not None:  # `ph` often represents a line break
                self._text.append(" ")

    def _end(self, name: str) -> None:
        if name in _TMX_CODES:
            self._codes -= 1
        elif name == "seg" and self._text is not None:
            language = self._variant.lower().replace("_", "-")
            words = "".join(self._text).split()
            self._variants.setdefault(language, " ".join(words))
            self.languages.setdefault(self._variant)
            self._text = None
        elif name == "tu":
            self.units += 1
            self.texts.append(self._chosen())

    def _chosen(self) -> str:
        """Returns the current unit's text in the requested language; en also matches en-US if there is no plain en."""
        if self._language in self._variants:
            self.has_language = True
            return self._variants[self._language]
        for language, text in self._variants.items():
            if language.startswith(f"{self._language}-"):
                self.has_language = True
                return text
        return ""

    def _characters(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            self._characters(html.entities.html5.get(f"{name};", ""))

    def _refuse_entity(self, name: str, *_: Any) -> None:
        raise DataError(
            f"{self.file}: declares the entity {name!r}, but entity declarations are not supported; remove the "
            f"declaration and replace each `&{name};` with its text"
        )

    def require_language(self) -> None:
        """Raises a DataError if there were translation units, but none of them had text in the language."""
        if self.units and not self.has_language:
            languages = ", ".join(self.languages) or "none"
            raise DataError(
                f"{self.file}: there is no text in the language {self._language!r}; languages in this file: "
                f"{languages}"
            )


def read_tmx(stream: Any, file: str, language: str, encoding: str | None = None) -> Iterator[str]:
    """Yields the texts in one language of a TMX file, one per translation unit; "" if a unit has none.

    `encoding` is the encoding of the bytes. By default, it is the encoding in the XML declaration.

    Raises:
        DataError: the file is not valid XML, or contains no text in the language.
    """
    reader = _TmxReader(file, language, encoding)
    while True:
        data = stream.read1(_TMX_CHUNK)
        try:
            reader.parser.Parse(data, not data)
        except expat.ExpatError as fault:
            raise DataError(
                f"{file}, line {fault.lineno}: not valid XML ({expat.ErrorString(fault.code)})"
            ) from fault
        if reader.units >= _UNITS_TO_SEE or not data:
            reader.require_language()
        yield from reader.texts
        reader.texts = []
        if not data:
            return
