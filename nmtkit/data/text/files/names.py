"""Names of text files on the command line and in recipes, such as FILE#COLUMN, and the encodings of these files."""

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from nmtkit.core.errors import NmtkitError

STDIN = "standard input"
"""Name of standard input in messages."""
COMPRESSED_ENDS = (".gz", ".bz2", ".xz", ".zst")
"""Usual file extensions of compressed files."""
JSON_COLUMN_ENDS = (".jsonl", ".json", ".ndjson")
_PLAIN_TABLE_ENDS = (".tsv", ".tab", ".csv", ".txt")


def without_compression_end(name: str) -> str:
    """Removes the extensions of compressed files, such as .gz, from a file name."""
    for end in COMPRESSED_ENDS:
        name = name.removesuffix(end)
    return name


def split_reference(path: str) -> tuple[str, str]:
    """Returns the file and the column of FILE#COLUMN; the column is "" for a whole file."""
    file, _, column = path.rpartition("#")
    if not file or not column or os.path.exists(path):
        return path, ""
    endings = (*_PLAIN_TABLE_ENDS, *JSON_COLUMN_ENDS, ".tmx")
    if os.path.exists(file) or without_compression_end(file.lower()).endswith(endings):
        return file, column
    return path, ""


def text_path(path: str) -> str:
    """Returns FILE for FILE#COLUMN, and other paths unchanged."""
    file, _ = split_reference(path)
    return file


def is_tmx(file: str) -> bool:
    """Returns whether a file is a TMX file, judging by its name."""
    return without_compression_end(file.lower()).endswith(".tmx")


# ------------------------------------------------------------------------------------------------------------ encodings


def require_encoding(name: str) -> str:
    """Returns the name unchanged; raises an NmtkitError if Python has no text encoding by this name."""
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
    """Returns whether this is one of the names of UTF-8."""
    return codecs.lookup(name).name in ("utf-8", "utf-8-sig")


def parse_encodings(values: Iterable[str]) -> dict[str, str]:
    """Parses the values of `--encoding`: NAME, or FILE=NAME.

    Returns a mapping from absolute paths to encodings; the key "" holds the encoding of all other files.
    """
    encodings: dict[str, str] = {}
    for value in values:
        file, separator, name = value.rpartition("=")
        if separator and not os.path.exists(file):
            raise NmtkitError(
                f"--encoding {value}: there is no file {file}; for standard input, pass --encoding NAME without a file"
            )
        key = os.path.abspath(file) if separator else ""
        if encodings.setdefault(key, require_encoding(name)) != name:
            text = file if separator else "all text"
            raise NmtkitError(
                f"--encoding: both {encodings[key]} and {name} are specified for {text}; specify only one of them"
            )
    return encodings


_option_encodings: dict[str, str] = {}
"""Encodings that the current command's options specify, as returned by `parse_encodings`."""


@contextmanager
def reading_as(encodings: Mapping[str, str]) -> Iterator[None]:
    """Makes these encodings the default for all text that is read in the `with` block.

    The default is global because commands read ahead in threads.
    """
    before = dict(_option_encodings)
    _option_encodings.clear()
    _option_encodings.update(encodings)
    try:
        yield
    finally:
        _option_encodings.clear()
        _option_encodings.update(before)


def option_encoding(path: str) -> str:
    """Returns the encoding that the command's options specify for a file or for `STDIN`; "" for UTF-8."""
    if not _option_encodings:
        return ""
    default = _option_encodings.get("", "")
    return _option_encodings.get(os.path.abspath(path), default)


def has_option_encoding() -> bool:
    """Returns whether the command's options specify any encoding."""
    return bool(_option_encodings)
