"""The kinds of faults in a corpus, with their remedies, and the locations of faults."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Severity = Literal["error", "warning", "note"]
"""error: training cannot use the files, or lines are paired wrongly. warning: pairs are probably faulty, or inflate
scores. note: nothing needs to be corrected."""
RowIndices: TypeAlias = NDArray[np.int64]
"""Rows of a block."""

CONTEXT_CHARACTERS = 24
"""Number of characters shown before the fault in an excerpt."""
EXCERPT_CHARACTERS = 100
"""Maximum length of an excerpt."""


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault that files, lines or pairs can have."""

    name: str
    """Name in JSON and logs."""
    severity: Severity
    title: str
    """Name in tables."""
    remedy: str
    """Advice to the user, as a sentence."""
    drops: bool = False
    """Whether `--fix` drops such pairs."""
    mends: bool = False
    """Whether `--fix` repairs such lines."""
    counted: str = ""
    """Name in the report of preprocessing; "" for faults that preprocessing does not count."""


@dataclass(frozen=True)
class FaultLocation:
    """Location of a fault."""

    file: str
    line: int
    """Line number, counted from 1."""
    byte: int | None = None
    """Byte position in the line, counted from 1; None if it is not known."""
    text: str = ""
    """Excerpt of the line, or an explanation."""


@dataclass(frozen=True)
class BlockFaults:
    """A kind of fault in a block, with the pairs that have it."""

    kind: FaultKind
    rows: RowIndices
    """Rows of the faulty pairs."""
    place: Callable[[int], FaultLocation]
    """Returns the location of the fault in a row."""


@dataclass(frozen=True)
class FileFault:
    """A fault of a whole file, or of two files that do not fit together."""

    kind: FaultKind
    place: FaultLocation
    message: str
    """Error message; "" if the file can still be used."""
    count: int = 1
    """Number of lines with the fault."""
    counts: tuple[int, int] | None = None
    """Line counts of source and target if they differ."""
    other: str = ""
    """The target file if the line counts differ."""


def excerpt(text: str, position: int = 0, width: int = EXCERPT_CHARACTERS) -> str:
    """Returns up to `width` characters of a text around a position, with "…" where the text was cut."""
    start = max(0, min(position - CONTEXT_CHARACTERS, len(text) - width))
    if start < 3:
        start = 0  # "…" would hardly be shorter than the one or two characters it replaces
    end = start + width
    shown = text[start:end]
    if start > 0:
        shown = f"…{shown}"
    if end < len(text):
        shown = f"{shown}…"
    return shown


# A table with a few lines per kind, hence not formatted.
# fmt: off
# Errors: the files cannot be used as they are.
MISSING = FaultKind("missing", "error", "file cannot be read", "Name a file that exists and can be read.")
COMPRESSION = FaultKind("compression", "error", "broken compressed file",
    "Download or compress the file again; the text from here on is lost.")
BINARY = FaultKind("binary", "error", "file is not text",
    "Name a text file; save a document as plain text first.")
COLUMN = FaultKind("column", "error", "column or language cannot be read",
    "Name a column that the file has, as FILE#COLUMN, or correct the file.")
UTF16 = FaultKind("utf-16", "error", "file is UTF-16 or UTF-32, not UTF-8",
    "Convert the file to UTF-8, or name its encoding with --encoding.", mends=True)
ENCODING = FaultKind("encoding", "error", "line is not UTF-8",
    "Convert the file to UTF-8, or name its encoding with --encoding.", drops=True)
NUL = FaultKind("nul", "error", "NUL byte in a line",
    "Remove the NUL bytes; if there are many, the text is in another encoding.", mends=True)
LINE_COUNTS = FaultKind("line-counts", "error", "files differ in their number of lines",
    "Find the missing or extra line near this place; all pairs after it are wrong.")
NO_LINES = FaultKind("no-lines", "error", "no lines at all",
    "Name files that contain text; if these should, download or write them again.")
SHIFT = FaultKind("shift", "error", "lines are paired with the wrong neighbours",
    "Check the lines near this place: one side has an extra line here, and lacks a line further on. The number of "
    "pairs in between is an estimate.")
JSON = FaultKind("json", "error", "line is not an example in JSON",
    "Correct the line, or set src_field and tgt_field.", drops=True)
FEATURES = FaultKind("features", "error", "file of features cannot be used",
    "Save an array of float16 or float32 with `numpy.save`, or one for each example with `numpy.savez`.")
STORY = FaultKind("story", "error", "file is not a story",
    "Leave the file out, or add the missing highlights.", drops=True)

# Warnings: pairs that are probably faulty, or that inflate scores.
SEPARATOR = FaultKind("separator", "warning", "line separator inside of a line",
    "Replace it by a space: other programs read two lines, so that line numbers no longer agree.", mends=True)
LINE_ENDS = FaultKind("line-ends", "warning", r"some lines end in \r\n, others in \n",
    r"End all lines with \n.", mends=True)
BOM = FaultKind("bom", "warning", "byte-order mark in the middle of a file",
    "Remove it; it is left over from joining files.", mends=True)
CONTROL = FaultKind("control", "warning", "control character",
    "Remove it: readers do not see it, but a model learns it.", mends=True)
REPLACED = FaultKind("replaced", "warning", "replacement character U+FFFD",
    "Download the text again: an earlier conversion has lost a character here.", drops=True)
MOJIBAKE = FaultKind("mojibake", "warning", "UTF-8 that was read in another encoding",
    "Read the original as UTF-8; `--fix` restores such characters.", mends=True)
EMPTY = FaultKind("empty", "warning", "empty side",
    "Leave the pair out; training does so anyway.", drops=True, counted="empty side")
IDENTICAL = FaultKind("identical", "warning", "both sides are the same",
    "Leave the pair out: it teaches to copy the source.", drops=True)
DUPLICATE = FaultKind("duplicate", "warning", "pair occurred before",
    "Keep only the first (in training: `data.drop_duplicates: true`).", drops=True, counted="duplicate")
IN_TRAIN = FaultKind("in-train", "warning", "pair is also in train",
    "Remove the pair from train: a model that has seen the answer scores too well.", counted="pair also in train")
SRC_IN_TRAIN = FaultKind("src-in-train", "warning", "source is also in train, but not the pair",
    "Remove such pairs from train if scores should be about sources that are new to the model.",
    counted="source also in train")
IN_VALID = FaultKind("in-valid", "warning", "pair is also in valid",
    "Remove the pair from valid if you made the sets: a checkpoint that was chosen by its score on valid scores too "
    "well on this pair. `--fix` changes neither set, so that scores remain comparable with published ones.")
HELD_OUT = FaultKind("held-out", "warning", "pair is also in valid or test",
    "Remove the pair from train: a model that has seen the answer scores too well.", drops=True)
RATIO = FaultKind("ratio", "warning", "one side is far longer than the other",
    "Leave the pair out: it is unlikely to be a translation.", drops=True)
LENGTH = FaultKind("length", "warning", "line is far longer than other lines",
    "Check whether lines were joined; leave such pairs out.", drops=True)
SCRIPT = FaultKind("script", "warning", "line is in another script than its side",
    "Leave the pair out: it is in another language.", drops=True)
FOREIGN = FaultKind("foreign", "warning", "line is in another language than its side",
    "Check the line; leave the pair out if it is in another language.", drops=True)
SWAPPED = FaultKind("swapped", "warning", "sides seem to be swapped",
    "Swap the two lines, or leave the pair out.", drops=True)
SWAPPED_FILES = FaultKind("swapped-files", "error", "source and target of this split are swapped, compared with train",
    "Name the files in the other order.")
LANGUAGE = FaultKind("language", "warning", "line is in the language of the other side",
    "Leave the pair out: both sides are in one language.", drops=True)
SHORT_TARGET = FaultKind("short-target", "warning", "target is nearly empty though the source is long",
    "Leave the pair out: it teaches to leave text out.", drops=True)

# Notes: worth knowing.
FORMAT = FaultKind("format", "warning", "file does not look like lines of plain text",
    "Extract its text, or name its columns or languages as FILE#COLUMN.")
MARKUP = FaultKind("markup", "note", "markup or entities such as &amp; or <br>",
    "Remove markup or replace entities by characters, in all splits and in the text to be translated.")
PIECES = FaultKind("pieces", "note", "marks of subwords (@@ or \N{LOWER ONE EIGHTH BLOCK})",
    "Join the subwords again: the tokenizer of the model cuts words itself.")
UNCLEAR_LANGUAGE = FaultKind("unclear-language", "note", "a side was not searched for lines in other languages",
    "The line below names the cause. If the side is mixed, or in a language that is not recognized, check its text.")
UNSEEN = FaultKind("unseen-character", "note", "characters that do not occur in train",
    "They become unknown tokens. Check whether they belong in the text, or add training text that has them.")
OVER_LONG = FaultKind("over-long", "note", "longer than data.max_length",
    "Training handles them as data.over_long says: drop leaves them out of train, truncate cuts them. Raise "
    "data.max_length if they are good.", counted="over-long")
TOKEN_RATIO = FaultKind("token-ratio", "note", "lengths differ by more than data.max_ratio",
    "Training leaves them out; raise data.max_ratio if they are good.", counted="length ratio")
# fmt: on

UNREADABLE = (
    MISSING,
    COMPRESSION,
    BINARY,
    COLUMN,
    UTF16,
    ENCODING,
    LINE_COUNTS,
    JSON,
    STORY,
    FEATURES,
)
"""Faults after which training cannot read the text to its end."""
