"""Recognizes files that are not plain text with one sentence or text per line: documents, tables, markup.

Every line of such a file could be read as text, and a model would translate tags and time codes without complaint.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nmtkit.corpus.names import without_compression_end

DETECTION_LINES = 64
"""The first lines of a text by which its format is recognized."""
TABLE_ENDS = (".tsv", ".tab", ".csv")
"""Ends of the names of tables."""
_MIN_TABLE_ROWS = 4
"""Rows needed to recognize a table whose name does not say so."""

# ------------------------------------------------------------------------------------------------------- binary formats

_UNPACK = "Unpack it first."
_SAVE_AS_TEXT = "Save it as plain text in UTF-8 first."
_BINARY = {
    b"%PDF-": ("a PDF file", "Extract its text first, for example with pdftotext."),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("a document of an old office program (.doc, .xls)", _SAVE_AS_TEXT),
    b"\x89PNG\r\n": ("a picture", "Name a text file."),
    b"\xff\xd8\xff": ("a picture", "Name a text file."),
    b"GIF8": ("a picture", "Name a text file."),
    b"\x93NUMPY": ("an array of numpy", "In a recipe, name it with `features`."),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"Rar!\x1a\x07": ("a RAR archive", _UNPACK),
}
_ZIPPED = {
    b"word/": ("a Word document (.docx)", _SAVE_AS_TEXT),
    b"xl/": ("an Excel table (.xlsx)", "Save it as CSV in UTF-8 first."),
    b"ppt/": ("a PowerPoint presentation (.pptx)", _SAVE_AS_TEXT),
    b"opendocument.spreadsheet": ("an OpenDocument table (.ods)", "Save it as CSV in UTF-8 first."),
    b"opendocument": ("an OpenDocument file (.odt)", _SAVE_AS_TEXT),
    b"epub+zip": ("an EPUB book", "Convert it to plain text first."),
}


@dataclass(frozen=True)
class FileFormat:
    """The format of a file that is not lines of plain text."""

    title: str
    """Such as "a PDF file"."""
    advice: str
    """The remedy, as a sentence."""


def binary_format(head: bytes) -> FileFormat | None:
    """The format of a file that begins with these bytes and is not text; None if it may be text."""
    for magic, (title, advice) in _BINARY.items():
        if head.startswith(magic):
            return FileFormat(title, advice)
    if not head.startswith(b"PK\x03\x04"):
        return None
    for name, (title, advice) in _ZIPPED.items():
        if name in head[:4096]:
            return FileFormat(title, advice)
    return FileFormat("a ZIP archive", _UNPACK)


# --------------------------------------------------------------------------------------------------------- text formats

_TIME = r"(?:\d+:)?\d\d:\d\d[,.]\d{3}"
_CUE = re.compile(rf"\s*{_TIME}\s+-->\s+{_TIME}")
_HTML_HEAD = re.compile(r"\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_HTML_TAG = re.compile(r"</?(?:p|div|span|ul|ol|li|h[1-6]|table|tr|td|th|br|a|b|i|em|strong|img)(?:\s[^<>]*)?/?>", re.I)
_XML_ROOT = re.compile(r"<([A-Za-z][\w.:-]*)")
_THOUSANDS = re.compile(r"\d,\d{3}\b")
_TABLE_RULE = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)+\|?\s*$")
_MARKUP = {"tmx": "a TMX translation memory", "xliff": "an XLIFF file", "html": "an HTML page"}
_NO_MARKUP = "Extract the text first, without its tags."


def text_format(lines: Sequence[str], name: str = "") -> FileFormat | None:
    """The format of the first lines of a file; None if they look like plain text.

    `name` is the name of the file, which helps to recognize short tables.
    """
    head = [line for line in lines[:DETECTION_LINES] if line.strip()]
    if not head:
        return None
    return _marked_up(head, name) or _timed(head) or _table(head, name)


def _marked_up(lines: list[str], name: str) -> FileFormat | None:
    first = lines[0].lstrip("\ufeff \t")
    if first.startswith("{\\rtf"):
        return FileFormat("an RTF document", _SAVE_AS_TEXT)
    if _HTML_HEAD.match(first):
        return FileFormat("an HTML page", _NO_MARKUP)
    if first.startswith(("<?xml", "<!DOCTYPE", "<tmx", "<xliff")):
        roots = [root.lower() for line in lines for root in _XML_ROOT.findall(line)]
        title = next((_MARKUP[root] for root in roots if root in _MARKUP), "an XML file")
        if "TMX" in title:
            return FileFormat(title, _tmx_advice(lines, name))
        return FileFormat(title, _NO_MARKUP)
    begins = sum(_HTML_TAG.match(line.lstrip()) is not None for line in lines)
    tags = sum(len(_HTML_TAG.findall(line)) for line in lines)
    if len(lines) > 2 and begins > len(lines) / 2 and tags > len(lines):
        return FileFormat("a part of an HTML page", _NO_MARKUP)
    return None


def _tmx_advice(lines: list[str], name: str) -> str:
    languages = dict.fromkeys(re.findall(r"<tuv[^>]*\blang=[\"']([^\"']+)", " ".join(lines)))
    found = list(languages)[:2] if len(languages) > 1 else ["en", "fr"]
    return f"Name its languages: {_column_names(name, found)}."


def _timed(lines: list[str]) -> FileFormat | None:
    advice = "Extract the lines of text first, without their numbers and times."
    if re.match(r"\ufeff?WEBVTT\b", lines[0]):
        return FileFormat("subtitles (WebVTT)", advice)
    cues = sum(_CUE.match(line) is not None for line in lines)
    numbers = sum(line.strip("\ufeff ").isdigit() for line in lines)
    if cues and numbers >= cues and cues + numbers >= len(lines) / 4:
        return FileFormat("subtitles (SRT)", advice)
    return None


def _table(lines: list[str], name: str) -> FileFormat | None:
    for before, line in pairwise(lines):
        if "|" in before and _TABLE_RULE.match(line):
            return FileFormat("Markdown with a table", "Write the cells as lines first, without the bars.")
    plain = without_compression_end(name.lower())
    if len(lines) < (1 if plain.endswith(TABLE_ENDS) else _MIN_TABLE_ROWS):
        return None
    columns = {line.count("\t") for line in lines}
    if len(columns) == 1 and columns != {0}:
        count = columns.pop() + 1
        return FileFormat(
            f"a table of {count} columns separated by tabs", f"Name its columns: {_numbered(name, count)}."
        )
    delimiter = delimiter_of(lines[0])
    rows = _csv_rows(lines, delimiter, strict=not plain.endswith(".csv"))
    widths = {len(row) for row in rows}
    if len(widths) == 1 and widths != {1}:
        sign = {",": "commas", ";": "semicolons", "\t": "tabs"}[delimiter]
        count = len(rows[0])
        title = f"a table of {count} columns separated by {sign} ({', '.join(rows[0])[:60]})"
        return FileFormat(title, f"Name its columns: {_numbered(name, count)}, or by their heads: {name}#NAME.")
    return None


def _csv_rows(lines: list[str], delimiter: str, strict: bool) -> list[list[str]]:
    """The rows of a table; empty if the text is not a table.

    If `strict`, a blank after a delimiter, or 1,000, is a sign of running text.
    """
    if strict and any(f"{delimiter} " in line or _THOUSANDS.search(line) for line in lines):
        return []
    try:
        rows = list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter, strict=True))
    except csv.Error:
        return []
    return rows[:-1] if len(lines) == DETECTION_LINES else rows


def delimiter_of(line: str) -> str:
    """The delimiter of a CSV file, by its first line: the most frequent of comma, semicolon and tab outside quotes."""
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(",;\t", key=unquoted.count)


def _numbered(name: str, count: int) -> str:
    return _column_names(name, [str(number) for number in range(1, min(count, 2) + 1)])


def _column_names(name: str, columns: list[str]) -> str:
    return " and ".join(f"{name or 'FILE'}#{column}" for column in columns)
