"""How texts are named, on the command line and in recipes: FILE#COLUMN, and the encoding of each file."""

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from nmtkit.core.errors import NmtkitError

STDIN = "standard input"
"""Name of standard input in messages."""
COMPRESSED_ENDS = (".gz", ".bz2", ".xz", ".zst")
"""Ends of the names that compressed files usually have."""
JSON_COLUMN_ENDS = (".jsonl", ".json", ".ndjson")
_PLAIN_TABLE_ENDS = (".tsv", ".tab", ".csv", ".txt")


def without_compression_end(name: str) -> str:
    """The name of a file without the end that says how it is compressed."""
    for end in COMPRESSED_ENDS:
        name = name.removesuffix(end)
    return name


def split_reference(path: str) -> tuple[str, str]:
    """The file and the column that FILE#COLUMN names; the column is empty for a whole file."""
    file, mark, column = path.rpartition("#")
    if not mark or not file or not column or os.path.exists(path):
        return path, ""
    ends = (*_PLAIN_TABLE_ENDS, *JSON_COLUMN_ENDS, ".tmx")
    if os.path.exists(file) or without_compression_end(file.lower()).endswith(ends):
        return file, column
    return path, ""


def text_path(path: str) -> str:
    """The file of FILE#COLUMN."""
    return split_reference(path)[0]


def is_tmx(file: str) -> bool:
    """Whether a file has the name of a TMX file."""
    return without_compression_end(file.lower()).endswith(".tmx")


# ------------------------------------------------------------------------------------------------------------ encodings


def require_encoding(name: str) -> str:
    """The name itself; NmtkitError if Python has no text encoding of this name."""
    try:
        "a".encode(name)
        codecs.getincrementaldecoder(name)
    except (LookupError, ValueError, TypeError) as fault:
        raise NmtkitError(
            f"unknown encoding {name!r}; common ones are cp1252, iso8859-2, cp1251, koi8-r, shift_jis, gb18030, big5 "
            "and utf-16 (all names: https://docs.python.org/3/library/codecs.html#standard-encodings)"
        ) from fault
    return name


def is_utf8(name: str) -> bool:
    """Whether a name is one of UTF-8."""
    return codecs.lookup(name).name in ("utf-8", "utf-8-sig")


def parse_encodings(given: Iterable[str]) -> dict[str, str]:
    """The values of `--encoding` as encodings by absolute path; the key "" holds the encoding of all other files.

    A value is NAME, or FILE=NAME.
    """
    encodings: dict[str, str] = {}
    for value in given:
        file, separator, name = value.rpartition("=")
        if separator and not os.path.exists(file):
            raise NmtkitError(
                f"--encoding {value}: there is no file {file}; for standard input, pass --encoding NAME without a file"
            )
        key = os.path.abspath(file) if separator else ""
        if encodings.setdefault(key, require_encoding(name)) != name:
            text = file if separator else "all text"
            raise NmtkitError(f"--encoding: both {encodings[key]} and {name} are named for {text}; give one of them")
    return encodings


_given: dict[str, str] = {}
"""The encodings that the current command was given, as `parse_encodings` returns them."""


@contextmanager
def reading_as(encodings: Mapping[str, str]) -> Iterator[None]:
    """Reads all text inside the block in these encodings, unless a reader is given another.

    This is a setting of the whole process, since commands read ahead in threads.
    """
    before = dict(_given)
    _given.clear()
    _given.update(encodings)
    try:
        yield
    finally:
        _given.clear()
        _given.update(before)


def given_encoding(path: str) -> str:
    """The encoding that the command was given for a file; empty for UTF-8."""
    if not _given:
        return ""
    return _given.get(os.path.abspath(path), _given.get("", ""))


def has_given_encoding() -> bool:
    """Whether the command was given an encoding."""
    return bool(_given)
