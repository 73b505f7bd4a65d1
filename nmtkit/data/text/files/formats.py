"""Recognizes files that are not plain text with one sentence or text per line: documents, tables and markup.

Without this check, each line of such a file would be read as text, and a model would translate tags and time codes.
"""

import csv
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nmtkit.core.errors import shorten
from nmtkit.data.text.files.names import without_compression_end

DETECTION_LINES = 64
"""Number of lines at the beginning of a text from which its format is recognized."""
TABLE_ENDS = (".tsv", ".tab", ".csv")
"""File extensions of tables."""
_MIN_TABLE_ROWS = 4
"""Minimum number of rows for recognizing a table without one of these extensions."""

# ------------------------------------------------------------------------------------------------------- binary formats

_UNPACK = "Unpack it first."
_SAVE_AS_TEXT = "Save it as plain text in UTF-8 first."
_BINARY = {
    b"%PDF-": ("a PDF file", "Extract its text first, for example with pdftotext."),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": (
        "a document in an old Microsoft Office format (.doc, .xls)",
        _SAVE_AS_TEXT,
    ),
    b"\x89PNG\r\n": ("an image", "Use a text file."),
    b"\xff\xd8\xff": ("an image", "Use a text file."),
    b"GIF8": ("an image", "Use a text file."),
    b"\x93NUMPY": ("a NumPy array", "In a recipe, specify it with `features`."),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"Rar!\x1a\x07": ("a RAR archive", _UNPACK),
}
_ZIPPED = {
    b"word/": ("a Word document (.docx)", _SAVE_AS_TEXT),
    b"xl/": ("an Excel spreadsheet (.xlsx)", "Save it as CSV in UTF-8 first."),
    b"ppt/": ("a PowerPoint presentation (.pptx)", _SAVE_AS_TEXT),
    b"opendocument.spreadsheet": (
        "an OpenDocument spreadsheet (.ods)",
        "Save it as CSV in UTF-8 first.",
    ),
    b"opendocument": ("an OpenDocument file (.odt)", _SAVE_AS_TEXT),
    b"epub+zip": ("an EPUB book", "Convert it to plain text first."),
}


@dataclass(frozen=True)
class FileFormat:
    """Format of a file that is not plain text with one sentence or text per line."""

    title: str
    """Name with an article, such as "a PDF file"."""
    advice: str
    """Advice to the user, as a sentence."""


def binary_format(head: bytes) -> FileFormat | None:
    """Returns the binary format of a file that begins with these bytes; None if it may be text."""
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
_HTML_TAG = re.compile(
    r"</?(?:p|div|span|ul|ol|li|h[1-6]|table|tr|td|th|br|a|b|i|em|strong|img)(?:\s[^<>]*)?/?>", re.I
)
_XML_ELEMENT = re.compile(r"<([a-z][\w.:-]*)")
_TMX_LANGUAGE = re.compile(r"<tuv[^>]*\blang=[\"']([^\"']+)")
_THOUSANDS = re.compile(r"\d,\d{3}\b")
_NUMBER = re.compile(r"[\d.,:%+-]*")
_PLAIN_IN_SHELL = re.compile(r"[\w@%+=:,./#-]+")
_HEAD_WORDS = 3
_NOT_A_HEAD = re.compile(r"^[\d.,]+$|[.!?。！？]$")
_JSON_LIST = re.compile(r'\[\s*\{\s*"')
_JSON_KEY = re.compile(r'\{"[^"]*"\s*:')
_TABLE_RULE = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)+\|?\s*$")
_MARKUP = {"tmx": "a TMX translation memory", "xliff": "an XLIFF file", "html": "an HTML page"}
_NO_MARKUP = "Extract the text first, without the tags."


def text_format(lines: Sequence[str], name: str = "") -> FileFormat | None:
    """Returns the format of a file from its first lines; None if they look like plain text.

    `name` is the file name. Text with fewer than `_MIN_TABLE_ROWS` rows is recognized as a delimited table
    only if the name has one of the extensions in `TABLE_ENDS`.
    """
    head = [line for line in lines[:DETECTION_LINES] if line.strip()]
    if not head:
        return None
    return _json(head) or _marked_up(head, name) or _timed(head) or _table(head, name)


def _json(lines: list[str]) -> FileFormat | None:
    """Recognizes JSON that does not have one object per line: a list of objects, or objects that span several lines."""
    first_lines = "".join(line.strip() for line in lines[:3])
    beginning = first_lines.lstrip("\ufeff")
    if _JSON_LIST.match(beginning):
        return FileFormat(
            "a JSON list", "Write one object per line first: jq -c '.[]' FILE > FILE.jsonl."
        )
    if lines[0].strip("\ufeff ") == "{" and _JSON_KEY.match(beginning):
        return FileFormat(
            "JSON objects that span several lines",
            "Write one object per line first: jq -c . FILE > FILE.jsonl.",
        )
    return None


def _marked_up(lines: list[str], name: str) -> FileFormat | None:
    first = lines[0].lstrip("\ufeff \t")
    if first.startswith("{\\rtf"):
        return FileFormat("an RTF document", _SAVE_AS_TEXT)
    if _HTML_HEAD.match(first):
        return FileFormat("an HTML page", _NO_MARKUP)
    if first.startswith(("<?xml", "<!DOCTYPE", "<tmx", "<xliff")):
        elements = _XML_ELEMENT.findall("\n".join(lines).lower())
        kind = next((element for element in elements if element in _MARKUP), None)
        if kind == "tmx":
            return FileFormat(_MARKUP[kind], _tmx_advice(lines, name))
        return FileFormat(_MARKUP[kind] if kind else "an XML file", _NO_MARKUP)
    lines_with_tag_first = sum(_HTML_TAG.match(line.lstrip()) is not None for line in lines)
    tags = sum(len(_HTML_TAG.findall(line)) for line in lines)
    if len(lines) > 2 and lines_with_tag_first > len(lines) / 2 and tags > len(lines):
        return FileFormat("part of an HTML page", _NO_MARKUP)
    return None


def _tmx_advice(lines: list[str], name: str) -> str:
    languages = _TMX_LANGUAGE.findall(" ".join(lines))
    examples = list(dict.fromkeys(languages))[:2]
    if len(examples) < 2:
        examples = ["en", "fr"]
    return f"Specify its languages as {_column_names(name, examples)}."


def _timed(lines: list[str]) -> FileFormat | None:
    advice = "Extract the lines of text first, without numbers and times."
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
            return FileFormat("Markdown with a table", "Extract the text in its cells first.")
    plain_name = without_compression_end(name.lower())
    if len(lines) < _MIN_TABLE_ROWS and not plain_name.endswith(TABLE_ENDS):
        return None
    tab_counts = {line.count("\t") for line in lines}
    if len(tab_counts) == 1 and tab_counts != {0}:
        return _table_format([line.split("\t") for line in lines], "tabs", name)
    delimiter = delimiter_of(lines[0])
    rows = _csv_rows(lines, delimiter, strict=not plain_name.endswith(".csv"))
    widths = {len(row) for row in rows}
    if len(widths) == 1 and widths != {1}:
        separators = {",": "commas", ";": "semicolons", "\t": "tabs"}[delimiter]
        return _table_format(rows, separators, name)
    return None


def _table_format(rows: list[list[str]], separators: str, name: str) -> FileFormat:
    """Describes a table; the advice refers to two text columns by number and, if the first row is a header, by name."""
    first_row = [cell.strip("\ufeff ") for cell in rows[0]]
    title = f"a table with {len(first_row)} columns separated by {separators}"
    numbers = []
    heads = []
    for column, head in enumerate(first_row):
        if not _is_numeric(column, rows):
            numbers.append(str(column + 1))
            heads.append(head)
    if not numbers:
        numbers = ["1"]
        heads = [first_row[0]]
    by_number = _column_names(name, numbers[:2])
    if not _looks_like_heads(first_row):
        return FileFormat(title, f"Specify its columns as {by_number}.")
    title += f" ({shorten(', '.join(first_row))})"
    by_head = _column_names(name, heads[:2])
    return FileFormat(
        title,
        f"Specify its columns as {by_head} or, if the first row is not a header, {by_number}.",
    )


def _is_numeric(column: int, rows: list[list[str]]) -> bool:
    """Returns whether all cells in a column are numbers, ignoring the first row."""
    cells = [row[column] for row in rows[1:]]
    return bool(cells) and all(_NUMBER.fullmatch(cell.strip()) for cell in cells)


def _looks_like_heads(cells: list[str]) -> bool:
    """Returns whether a first row looks like a header: its cells are distinct, short, and not numbers or sentences."""
    if len(set(cells)) < len(cells) or not all(cells):
        return False
    most_words = max(len(cell.split()) for cell in cells)
    if most_words > _HEAD_WORDS:
        return False
    return not any(_NOT_A_HEAD.search(cell) for cell in cells)


def _csv_rows(lines: list[str], delimiter: str, strict: bool) -> list[list[str]]:
    """Returns the rows of a table; an empty list if the text is not a table.

    If `strict` is set, a space after a delimiter or a number such as 1,000 counts as evidence of running text.
    """
    if strict:
        for line in lines:
            if f"{delimiter} " in line or _THOUSANDS.search(line):
                return []
    complete_lines = [f"{line}\n" for line in lines]
    try:
        rows = list(csv.reader(complete_lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return []
    if len(lines) == DETECTION_LINES:
        return rows[:-1]  # the last row may continue beyond these lines
    return rows


def delimiter_of(line: str) -> str:
    """Returns whichever of comma, semicolon and tab occurs most often outside quotes in a line of a CSV file."""
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(",;\t", key=unquoted.count)


def _column_names(name: str, columns: list[str]) -> str:
    """Returns FILE#COLUMN for each column, quoted for the shell and joined by "and"."""
    references = []
    for column in columns:
        reference = f"{name or 'FILE'}#{column}"
        if not _PLAIN_IN_SHELL.fullmatch(reference):
            reference = shlex.quote(reference)
        references.append(reference)
    return " and ".join(references)
