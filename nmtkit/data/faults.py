"""All kinds of faults that a corpus can have, with what to do about each, and where one is.

Whoever reads, checks or examines a corpus tells its faults by these kinds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Severity = Literal["error", "warning", "note"]
"""error: training cannot use the files as they are, or would learn from wrongly paired lines. warning: pairs that are
likely faulty or that flatter the results. note: worth knowing, nothing to mend."""
Rows: TypeAlias = NDArray[np.int64]
"""Pairs of a block, by their place in it, from 0."""

AROUND = 24
"""Characters of a line that are shown before a fault."""
SHOWN = 100
"""Characters of a line that are shown in all."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    """A short word for JSON and logs: "encoding", "duplicate"."""
    severity: Severity
    """How bad it is."""
    title: str
    """What is wrong, in a few words for a table."""
    remedy: str
    """What to do about it, in a sentence."""
    drops: bool
    """Whether `--fix` leaves such lines out (or mends them, if False and `mends`)."""
    mends: bool = False
    """Whether `--fix` can put the line right and keep it."""
    counted: str = ""
    """What the report of preprocessing calls it, where that counts it."""


@dataclass(frozen=True)
class Place:
    """Where a fault is."""

    file: str
    """The file as it was named."""
    line: int
    """Its line, from 1."""
    byte: int | None = None
    """The byte of the line, from 1, where that is known."""
    text: str = ""
    """What stands there, shortened; or what it is compared with."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault in some pairs of a block."""

    kind: Kind
    """Which."""
    rows: Rows
    """The pairs that have it, by their place in the block."""
    place: Callable[[int], Place]
    """Where it is in such a pair."""


@dataclass(frozen=True)
class FileFault:
    """What is wrong with a whole file, or with two that do not fit."""

    kind: Kind
    """Which fault it is."""
    place: Place
    """Where it is."""
    message: str
    """What is told where the file cannot be used so; empty if it can."""
    count: int = 1
    """How many lines have it."""
    counts: tuple[int, int] | None = None
    """Of a source and its target that differ in their number of lines: these numbers."""
    other: str = ""
    """And the target's file."""


def excerpt(text: str, place: int = 0, width: int = SHOWN) -> str:
    """The part of a text around a place, at most `width` characters, with "…" where it was cut."""
    start = max(0, min(place - AROUND, len(text) - width))
    if start < 3:
        start = 0
    cut = text[start : start + width]
    return ("…" if start else "") + cut + ("…" if start + width < len(text) else "")


def _error(name: str, title: str, remedy: str, drops: bool = False, mends: bool = False) -> Kind:
    return Kind(name, "error", title, remedy, drops, mends)


def _warning(name: str, title: str, remedy: str, drops: bool = False, mends: bool = False, counted: str = "") -> Kind:
    return Kind(name, "warning", title, remedy, drops, mends, counted)


def _note(name: str, title: str, remedy: str, counted: str = "") -> Kind:
    return Kind(name, "note", title, remedy, drops=False, counted=counted)


# Errors: the files cannot be used as they are.
MISSING = _error("missing", "file cannot be read", "Name a file that is there and may be read.")
GZIP = _error("gzip", "broken gzip file", "Fetch or compress the file again; what lies behind the place is lost.")
UTF16 = _error("utf-16", "file is UTF-16, not UTF-8", "Convert the file, for example with `iconv -f UTF-16 -t UTF-8`.")
ENCODING = _error(
    "encoding", "line is not UTF-8", "Convert the file from the encoding it is in, or leave the lines out.", drops=True
)
NUL = _error("nul", "NUL byte in a line", "Take the NUL bytes out; many of them mean another encoding.", mends=True)
LINE_COUNTS = _error(
    "line-counts",
    "files differ in their number of lines",
    "Find the line that is missing or too much near the place given; all pairs behind it are wrong.",
)
SHIFT = _error(
    "shift",
    "lines are paired with the wrong neighbours",
    "Look at the lines near the place given: one side has a line more there, and has one less further on. How many "
    "pairs lie between is an estimate.",
)
JSON = _error("json", "line is not an example in JSON", "Mend the line, or set src_field and tgt_field.", drops=True)
STORY = _error("story", "file is no story", "Leave the file out, or put the missing highlights in.", drops=True)

# Warnings: pairs that are likely faulty, or that flatter the results.
SEPARATOR = _warning(
    "separator",
    "line separator inside of a line",
    "Put a space there: other programs see two lines, so that line numbers no longer agree.",
    mends=True,
)
LINE_ENDS = _warning("line-ends", r"some lines end in \r\n, others in \n", r"Let all lines end in \n.", mends=True)
BOM = _warning(
    "bom",
    "byte-order mark in the middle of a file",
    "Take it out; it is left where files were put together.",
    mends=True,
)
CONTROL = _warning("control", "control character", "Take it out; no reader sees it, but a model learns it.", mends=True)
REPLACED = _warning(
    "replaced",
    "replacement character U+FFFD",
    "Fetch the text again: an earlier conversion has lost a character here.",
    drops=True,
)
MOJIBAKE = _warning(
    "mojibake",
    "UTF-8 that was read in another encoding",
    "Read the original as UTF-8; `--fix` turns such characters back.",
    mends=True,
)
EMPTY = _warning(
    "empty", "empty side", "Leave the pair out; training does so by itself.", drops=True, counted="empty side"
)
IDENTICAL = _warning(
    "identical", "both sides are the same", "Leave the pair out: it teaches to copy the source.", drops=True
)
DUPLICATE = _warning(
    "duplicate",
    "pair occurred before",
    "Keep the first only (in training: `data.drop_duplicates: true`).",
    drops=True,
    counted="duplicate",
)
IN_TRAIN = _warning(
    "in-train",
    "pair is also in train",
    "Take the pair out of train: a model that has seen the answer scores too well.",
    counted="pair also in train",
)
SRC_IN_TRAIN = _warning(
    "src-in-train",
    "source is also in train, but not the pair",
    "Take such pairs out of train where scores are to show what is new to the model.",
    counted="source also in train",
)
TGT_IN_TRAIN = _note(
    "tgt-in-train",
    "target is also in train, but not the pair",
    "Short and common sentences do that; long ones should be taken out of train.",
)
IN_VALID = _warning(
    "in-valid",
    "pair is also in valid",
    "Take the pair out of valid if the sets are your own: what was chosen by valid scores too well on it. `--fix` "
    "leaves both sets as they are, so that scores can be compared with those of others.",
)
SRC_IN_VALID = _note(
    "src-in-valid",
    "source is also in valid, but not the pair",
    "Short and common sentences do that; `--fix` leaves both sets as they are.",
)
HELD_OUT = _warning(
    "held-out",
    "pair is also in valid or test",
    "Take it out of train: a model that has seen the answer scores too well.",
    drops=True,
)
RATIO = _warning(
    "ratio", "one side is far longer than the other", "Leave the pair out: it is hardly a translation.", drops=True
)
LENGTH = _warning(
    "length", "line is far longer than the others", "See whether lines were joined; leave such pairs out.", drops=True
)
SCRIPT = _warning(
    "script", "line is in another script than its side", "Leave the pair out: it is in another language.", drops=True
)
FOREIGN = _warning(
    "foreign",
    "line is in another language than its side",
    "Look at the line; leave the pair out if it is in another language.",
    drops=True,
)
SWAPPED = _warning("swapped", "sides seem to be swapped", "Swap the two lines, or leave the pair out.", drops=True)
SWAPPED_FILES = _error(
    "swapped-files",
    "source and target of this split are swapped, compared with train",
    "Name the files the other way round.",
)
LANGUAGE = _warning(
    "language",
    "line is in the language of the other side",
    "Leave the pair out: both sides are in one language.",
    drops=True,
)
SHORT_TARGET = _warning(
    "short-target",
    "target is nearly empty though the source is long",
    "Leave the pair out: it teaches to say nothing.",
    drops=True,
)

# Notes: worth knowing.
MARKUP = _note(
    "markup",
    "markup or entities such as &amp; or <br>",
    "Take markup out or turn entities into characters, in all splits and in what is to be translated.",
)
PIECES = _note(
    "pieces",
    "marks of subwords (@@ or \N{LOWER ONE EIGHTH BLOCK})",
    "Join the subwords again: the tokenizer that is learned here cuts by itself.",
)
UNSEEN = _note(
    "unseen-character",
    "characters that train never shows",
    "The model cannot know them: they become unknown tokens. See whether they belong there, or add text that has them.",
)
OVER_LONG = _note(
    "over-long",
    "longer than data.max_length",
    "The recipe's data.over_long says what becomes of them: drop leaves them out of train, truncate cuts them. Raise "
    "data.max_length if they are good.",
    counted="over-long",
)
TOKEN_RATIO = _note(
    "token-ratio",
    "more uneven than data.max_ratio",
    "Training leaves them out, as the recipe says: raise data.max_ratio if they are good.",
    counted="length ratio",
)

UNREADABLE = (MISSING, GZIP, UTF16, ENCODING, LINE_COUNTS, JSON, STORY)
"""Faults that keep a text from being read to its end for training."""
KINDS: dict[str, Kind] = {value.name: value for value in list(vars().values()) if isinstance(value, Kind)}
"""All of them, by name."""
