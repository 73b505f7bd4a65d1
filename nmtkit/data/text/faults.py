"""All kinds of faults of a corpus with their remedies, and locations of faults."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Severity = Literal["error", "warning", "note"]
"""error: training cannot use the files, or would learn from wrongly paired lines. warning: pairs that are likely faulty
or that inflate scores. note: nothing to mend."""
RowIndices: TypeAlias = NDArray[np.int64]
"""Indices of pairs in a block."""

CONTEXT_CHARACTERS = 24
"""Characters shown before a fault."""
EXCERPT_CHARACTERS = 100
"""Characters shown of a line."""


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault: name in JSON and logs, title for tables, and remedy as a sentence."""

    name: str
    severity: Severity
    title: str
    remedy: str
    drops: bool = False
    """Whether `--fix` drops such pairs."""
    mends: bool = False
    """Whether `--fix` repairs such lines."""
    counted: str = ""
    """Its name in the report of preprocessing, if counted there."""


@dataclass(frozen=True)
class FaultLocation:
    """The location of a fault; line and byte count from 1."""

    file: str
    line: int
    byte: int | None = None
    text: str = ""
    """An excerpt."""


@dataclass(frozen=True)
class BlockFaults:
    """One kind of fault in some pairs of a block, with the location in each."""

    kind: FaultKind
    rows: RowIndices
    place: Callable[[int], FaultLocation]


@dataclass(frozen=True)
class FileFault:
    """A fault of a whole file, or of two files that do not match."""

    kind: FaultKind
    place: FaultLocation
    message: str
    """The error message; empty if the file can still be used."""
    count: int = 1
    """Number of lines with the fault."""
    counts: tuple[int, int] | None = None
    """Line counts of source and target if they differ; then `other` is the target's file."""
    other: str = ""


def excerpt(text: str, place: int = 0, width: int = EXCERPT_CHARACTERS) -> str:
    """The part of a text around a character, at most `width` characters, with "…" where it is cut."""
    start = max(0, min(place - CONTEXT_CHARACTERS, len(text) - width))
    if start < 3:
        start = 0
    cut = text[start : start + width]
    return ("…" if start else "") + cut + ("…" if start + width < len(text) else "")


# A table, a line or two for each kind.
# fmt: off
# Errors: the files cannot be used as they are.
MISSING = FaultKind("missing", "error", "file cannot be read", "Name a file that is there and may be read.")
COMPRESSION = FaultKind("compression", "error", "broken compressed file",
    "Download or compress the file again; the text after this place is lost.")
BINARY = FaultKind("binary", "error", "file is not text",
    "Name a file of text; save a document as plain text first.")
COLUMN = FaultKind("column", "error", "column or language cannot be read",
    "Name a column that the file has, as FILE#COLUMN, or correct the file.")
UTF16 = FaultKind("utf-16", "error", "file is UTF-16 or UTF-32, not UTF-8",
    "Convert the file to UTF-8, or name its encoding with --encoding.", mends=True)
ENCODING = FaultKind("encoding", "error", "line is not UTF-8",
    "Convert the file to UTF-8, or name its encoding with --encoding.", drops=True)
NUL = FaultKind("nul", "error", "NUL byte in a line",
    "Take the NUL bytes out; many of them mean another encoding.", mends=True)
LINE_COUNTS = FaultKind("line-counts", "error", "files differ in their number of lines",
    "Find the missing or extra line near this place; all pairs after it are wrong.")
NO_LINES = FaultKind("no-lines", "error", "no lines at all",
    "Name files that have text; if these should, fetch or write them again.")
SHIFT = FaultKind("shift", "error", "lines are paired with the wrong neighbours",
    "Look at the lines near the place given: one side has a line more there, and has one less further on. How many "
    "pairs lie between is an estimate.")
JSON = FaultKind("json", "error", "line is not an example in JSON",
    "Mend the line, or set src_field and tgt_field.", drops=True)
FEATURES = FaultKind("features", "error", "file of features cannot be used",
    "Save an array of float16 or float32 with `numpy.save`, or one for each example with `numpy.savez`.")
STORY = FaultKind("story", "error", "file is not a story",
    "Leave the file out, or put the missing highlights in.", drops=True)

# Warnings: pairs that are likely faulty, or that flatter the results.
SEPARATOR = FaultKind("separator", "warning", "line separator inside of a line",
    "Put a space there: other programs see two lines, so that line numbers no longer agree.", mends=True)
LINE_ENDS = FaultKind("line-ends", "warning", r"some lines end in \r\n, others in \n",
    r"Let all lines end in \n.", mends=True)
BOM = FaultKind("bom", "warning", "byte-order mark in the middle of a file",
    "Take it out; it is left where files were put together.", mends=True)
CONTROL = FaultKind("control", "warning", "control character",
    "Take it out; no reader sees it, but a model learns it.", mends=True)
REPLACED = FaultKind("replaced", "warning", "replacement character U+FFFD",
    "Fetch the text again: an earlier conversion has lost a character here.", drops=True)
MOJIBAKE = FaultKind("mojibake", "warning", "UTF-8 that was read in another encoding",
    "Read the original as UTF-8; `--fix` turns such characters back.", mends=True)
EMPTY = FaultKind("empty", "warning", "empty side",
    "Leave the pair out; training does so by itself.", drops=True, counted="empty side")
IDENTICAL = FaultKind("identical", "warning", "both sides are the same",
    "Leave the pair out: it teaches to copy the source.", drops=True)
DUPLICATE = FaultKind("duplicate", "warning", "pair occurred before",
    "Keep the first only (in training: `data.drop_duplicates: true`).", drops=True, counted="duplicate")
IN_TRAIN = FaultKind("in-train", "warning", "pair is also in train",
    "Take the pair out of train: a model that has seen the answer scores too well.", counted="pair also in train")
SRC_IN_TRAIN = FaultKind("src-in-train", "warning", "source is also in train, but not the pair",
    "Take such pairs out of train where scores are to show what is new to the model.", counted="source also in train")
IN_VALID = FaultKind("in-valid", "warning", "pair is also in valid",
    "Take the pair out of valid if the sets are your own: what was chosen by valid scores too well on it. `--fix` "
    "leaves both sets as they are, so that scores can be compared with those of others.")
HELD_OUT = FaultKind("held-out", "warning", "pair is also in valid or test",
    "Take it out of train: a model that has seen the answer scores too well.", drops=True)
RATIO = FaultKind("ratio", "warning", "one side is far longer than the other",
    "Leave the pair out: it is hardly a translation.", drops=True)
LENGTH = FaultKind("length", "warning", "line is far longer than the others",
    "See whether lines were joined; leave such pairs out.", drops=True)
SCRIPT = FaultKind("script", "warning", "line is in another script than its side",
    "Leave the pair out: it is in another language.", drops=True)
FOREIGN = FaultKind("foreign", "warning", "line is in another language than its side",
    "Look at the line; leave the pair out if it is in another language.", drops=True)
SWAPPED = FaultKind("swapped", "warning", "sides seem to be swapped",
    "Swap the two lines, or leave the pair out.", drops=True)
SWAPPED_FILES = FaultKind("swapped-files", "error", "source and target of this split are swapped, compared with train",
    "Name the files the other way round.")
LANGUAGE = FaultKind("language", "warning", "line is in the language of the other side",
    "Leave the pair out: both sides are in one language.", drops=True)
SHORT_TARGET = FaultKind("short-target", "warning", "target is nearly empty though the source is long",
    "Leave the pair out: it teaches to say nothing.", drops=True)

# Notes: worth knowing.
FORMAT = FaultKind("format", "warning", "file does not look like lines of plain text",
    "Extract its text, or name its columns or languages as FILE#COLUMN.")
MARKUP = FaultKind("markup", "note", "markup or entities such as &amp; or <br>",
    "Take markup out or turn entities into characters, in all splits and in what is to be translated.")
PIECES = FaultKind("pieces", "note", "marks of subwords (@@ or \N{LOWER ONE EIGHTH BLOCK})",
    "Join the subwords again: the tokenizer that is learned here cuts by itself.")
UNCLEAR_LANGUAGE = FaultKind("unclear-language", "note", "language of a side is not clear",
    "Look at the text of this side: it may be mixed, or in a language that is not recognized. Lines in other languages "
    "were not looked for there.")
UNSEEN = FaultKind("unseen-character", "note", "characters that train never shows",
    "The model cannot know them: they become unknown tokens. See whether they belong there, or add text that has them.")
OVER_LONG = FaultKind("over-long", "note", "longer than data.max_length",
    "The recipe's data.over_long says what becomes of them: drop leaves them out of train, truncate cuts them. Raise "
    "data.max_length if they are good.", counted="over-long")
TOKEN_RATIO = FaultKind("token-ratio", "note", "more uneven than data.max_ratio",
    "Training leaves them out, as the recipe says: raise data.max_ratio if they are good.", counted="length ratio")
# fmt: on

UNREADABLE = (MISSING, COMPRESSION, BINARY, COLUMN, UTF16, ENCODING, LINE_COUNTS, JSON, STORY, FEATURES)
"""Faults after which training cannot read the text to its end."""
