"""Kinds of faults that a corpus can have, with their remedies, and records that locate faults."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Severity = Literal["error", "warning", "note"]
"""error: the files are not ready for training. Only errors with `FaultKind.stops_reading` prevent training; the others
would lead to a bad model. warning: pairs are probably faulty, or inflate scores. note: worth knowing, but nothing needs
to be corrected."""
RowIndices: TypeAlias = NDArray[np.int64]
"""Indices of examples in a `nmtkit.data.text.blocks.Block`."""

CONTEXT_CHARACTERS = 24
"""Number of characters shown before the fault in an excerpt."""
EXCERPT_CHARACTERS = 100
"""Length of an excerpt, not counting the "…" at its ends."""


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault that files, lines or pairs can have."""

    name: str
    """Unique name in JSON reports and logs; it is part of the format, so it must not change."""
    severity: Severity
    title: str
    """Name in tables."""
    remedy: str
    """Advice to the user: one or more complete sentences."""
    fix_drops: bool = False
    """Whether `nmtkit check --fix` drops pairs with this fault from the training split. It keeps most of them in the
    other splits, see `nmtkit.datacheck.report.drops_pairs`; for other exceptions, see
    `nmtkit.datacheck.report.remedy_note`."""
    fix_repairs: bool = False
    """Whether `nmtkit check --fix` repairs lines with this fault; cannot be combined with `fix_drops`."""
    stops_reading: bool = False
    """Whether `nmtkit.data.text.reading.read_blocks` raises a DataError for a line or file with this fault. The readers
    decide this, so the flag must agree with them."""
    preprocessing_name: str = ""
    """Name of the fault in `nmtkit.data.text.checking.SplitReport.findings`. It must not change, because findings are
    stored. "" for faults that preprocessing does not count."""


@dataclass(frozen=True)
class FaultLocation:
    """Location of a fault, as shown in reports."""

    file: str
    line: int
    """Line number, counted from 1."""
    byte: int | None = None
    """Byte position in the line, counted from 1; None if it is not known."""
    text: str = ""
    """Excerpt of the line, or an explanation of the fault."""


@dataclass(frozen=True)
class BlockFaults:
    """The pairs of a block that have one kind of fault."""

    kind: FaultKind
    rows: RowIndices
    """Rows of the faulty pairs."""
    locate: Callable[[int], FaultLocation]
    """Returns the location of the fault in a row; called only for the few rows that a report shows."""


@dataclass(frozen=True)
class FileFault:
    """A fault of a whole file, or a mismatch between two files."""

    kind: FaultKind
    location: FaultLocation
    message: str
    """Message of the DataError that `nmtkit.data.text.reading.read_blocks` raises; "" if it ignores the fault."""
    n_lines: int = 1
    """Number of lines with the fault, or the difference between two files' line counts; 1 for other file faults."""
    line_counts: tuple[int, int] | None = None
    """Line counts of source and target if they differ; None for all other faults, including other columns with a
    different number of lines."""
    target_file: str = ""
    """Path of the target file if `line_counts` is set; `location` has the path of the source file."""


def excerpt(text: str, position: int = 0, width: int = EXCERPT_CHARACTERS) -> str:
    """Returns about `width` characters of a text around a position, with "…" where the text was cut.

    The excerpt normally begins `CONTEXT_CHARACTERS` characters before the position, so `width` must exceed this number
    by at least 3 unless the position is 0. The excerpt may be up to two characters longer than `width`, because "…"
    never replaces only one or two characters.
    """
    start = max(0, min(position - CONTEXT_CHARACTERS, len(text) - width))
    if start < 3:
        start = 0  # replacing one or two characters with "…" would hardly make the text shorter
    end = start + width
    if len(text) - end < 3:
        end = len(text)
    shown = text[start:end]
    if start > 0:
        shown = f"…{shown}"
    if end < len(text):
        shown = f"{shown}…"
    return shown


# --------------------------------------------------------------------------------------- errors: not ready for training

_error = partial(FaultKind, severity="error")

MISSING = _error(
    "missing",
    title="file cannot be read",
    remedy="Specify a file that exists and can be read.",
    stops_reading=True,
)
COMPRESSION = _error(
    "compression",
    title="broken compressed file",
    remedy="Download or compress the file again; the text from here on is lost.",
    stops_reading=True,
)
BINARY = _error(
    "binary",
    title="file is not text",
    remedy="Use a text file; save a document as plain text first.",
    stops_reading=True,
)
COLUMN = _error(
    "column",
    title="column or language cannot be read",
    remedy="Specify an existing column, as FILE#COLUMN, or correct the file.",
    stops_reading=True,
)
UTF16 = _error(
    "utf-16",
    title="file is UTF-16 or UTF-32, not UTF-8",
    remedy="Convert the file to UTF-8, or specify its encoding with --encoding.",
    fix_repairs=True,
    stops_reading=True,
)
ENCODING = _error(
    "encoding",
    title="line is not UTF-8",
    remedy="Convert the file to UTF-8, or specify its encoding with --encoding.",
    fix_drops=True,
    stops_reading=True,
)
NUL = _error(
    "nul",
    title="NUL byte in a line",
    remedy="Remove the NUL bytes; if there are many, the text probably has a different encoding.",
    fix_repairs=True,
)
LINE_COUNTS = _error(
    "line-counts",
    title="files have different numbers of lines",
    remedy="Find the missing or extra line near this place; all pairs after it are wrong.",
    stops_reading=True,
)
NO_LINES = _error(
    "no-lines",
    title="file has no lines",
    remedy="Use files that contain text. If these should not be empty, download or create them again.",
)
SHIFT = _error(
    "shift",
    title="source and target lines are misaligned",
    remedy="Check the lines near this place: one side has an extra line here and lacks a line further on. The number "
    "of wrong pairs is an estimate.",
)
SWAPPED_FILES = _error(
    "swapped-files",
    title="source and target are swapped compared with train",
    remedy="Specify the files in the opposite order.",
)
JSON = _error(
    "json",
    title="line is not a valid JSON example",
    remedy="Correct the line, or set src_field and tgt_field.",
    fix_drops=True,
    stops_reading=True,
)
FEATURES = _error(
    "features",
    title="feature file cannot be used",
    remedy="Save a float16 or float32 array with `numpy.save`, or one array per example with `numpy.savez`.",
    stops_reading=True,
)
STORY = _error(
    "story",
    title="file is not a story",
    remedy="Remove the file, or add the missing summary (lines after @highlight).",
    fix_drops=True,
    stops_reading=True,
)

# ---------------------------------------------------------- warnings: pairs that are probably faulty, or inflate scores

_warning = partial(FaultKind, severity="warning")

SEPARATOR = _warning(
    "separator",
    title="line separator inside a line",
    remedy="Replace it with a space: other programs see two lines here, so their line counts differ.",
    fix_repairs=True,
)
LINE_ENDS = _warning(
    "line-ends",
    title=r"some lines end in \r\n, others in \n",
    remedy=r"End all lines with \n.",
    fix_repairs=True,
)
BOM = _warning(
    "bom",
    title="byte-order mark in the middle of a file",
    remedy="Remove it; it is left over from joining files.",
    fix_repairs=True,
)
CONTROL = _warning(
    "control",
    title="control character",
    remedy="Remove it: readers do not see it, but a model learns it.",
    fix_repairs=True,
)
REPLACED = _warning(
    "replaced",
    title="replacement character U+FFFD",
    remedy="Download the text again: a character was lost here in an earlier conversion.",
    fix_drops=True,
)
MOJIBAKE = _warning(
    "mojibake",
    title="UTF-8 text decoded with the wrong encoding",
    remedy="Decode the original as UTF-8; `--fix` restores such characters.",
    fix_repairs=True,
)
EMPTY = _warning(
    "empty",
    title="empty side",
    remedy="Leave the pair out; training skips it anyway.",
    fix_drops=True,
    preprocessing_name="empty side",
)
IDENTICAL = _warning(
    "identical",
    title="both sides are the same",
    remedy="Leave the pair out: it teaches the model to copy the source.",
    fix_drops=True,
)
DUPLICATE = _warning(
    "duplicate",
    title="pair occurs earlier in the split",
    remedy="Keep only the first occurrence (in training: `data.drop_duplicates: true`).",
    fix_drops=True,
    preprocessing_name="duplicate",
)

# Overlap of splits. IN_TRAIN and SRC_IN_TRAIN are faults of valid and test, IN_VALID is a fault of test. A training
# pair that is equal to an IN_TRAIN pair has the fault HELD_OUT: `--fix` drops it, but reports do not count it again.
IN_TRAIN = _warning(
    "in-train",
    title="pair is also in train",
    remedy="Remove the pair from train: a model that has seen the answer gets inflated scores.",
    preprocessing_name="pair also in train",
)
SRC_IN_TRAIN = _warning(
    "src-in-train",
    title="source is also in train, but the pair is not",
    remedy="Remove such pairs from train if the scores are supposed to measure quality on unseen sources.",
    preprocessing_name="source also in train",
)
IN_VALID = _warning(
    "in-valid",
    title="pair is also in valid",
    remedy="If you made the sets yourself, remove the pair from valid: the checkpoint is chosen by its score on valid, "
    "so its test score on this pair is inflated. `--fix` changes neither set, so that scores remain comparable with "
    "published scores.",
)
HELD_OUT = _warning(
    "held-out",
    title="pair is also in valid or test",
    remedy="Remove the pair from train: a model that has seen the answer gets inflated scores.",
    fix_drops=True,
)

RATIO = _warning(
    "ratio",
    title="one side is far longer than the other",
    remedy="Leave the pair out: it is unlikely to be a translation.",
    fix_drops=True,
)
LENGTH = _warning(
    "length",
    title="line is far longer than other lines",
    remedy="Check whether lines were joined; leave such pairs out.",
    fix_drops=True,
)
OTHER_SCRIPT = _warning(
    "script",
    title="line is not in the script of its side",
    remedy="Leave the pair out: the line is in a different language.",
    fix_drops=True,
)
OTHER_SIDES_LANGUAGE = _warning(
    "language",
    title="line is in the language of the other side",
    remedy="Leave the pair out: both sides are in the same language.",
    fix_drops=True,
)
FOREIGN_LANGUAGE = _warning(
    "foreign",
    title="line is not in the language of its side",
    remedy="Check the line; leave the pair out if it is in a different language.",
    fix_drops=True,
)
SWAPPED = _warning(
    "swapped",
    title="sides seem to be swapped",
    remedy="Swap the two lines, or leave the pair out.",
    fix_drops=True,
)
SHORT_TARGET = _warning(
    "short-target",
    title="target is nearly empty although the source is long",
    remedy="Leave the pair out: it teaches the model to omit text.",
    fix_drops=True,
)
FORMAT = _warning(
    "format",
    title="file does not look like lines of plain text",
    remedy="Extract its text, or specify its columns or languages as FILE#COLUMN.",
)

# ------------------------------------------------------------------------------------------------- notes: worth knowing

_note = partial(FaultKind, severity="note")

MARKUP = _note(
    "markup",
    title="markup or entities such as &amp; or <br>",
    remedy="Remove markup and replace entities with characters, in all splits and in the text to be translated.",
)
PIECES = _note(
    "pieces",
    title="subword marks (@@ or \N{LOWER ONE EIGHTH BLOCK})",
    remedy="Join the subwords again: the model's tokenizer splits words itself.",
)
UNCLEAR_LANGUAGE = _note(
    "unclear-language",
    title="one side was not checked for lines in other languages",
    remedy="See the reason given for the file. If its text mixes languages, or is in a language that is not "
    "recognized, check it yourself.",
)
UNSEEN = _note(
    "unseen-character",
    title="characters that do not occur in train",
    remedy="Such characters become unknown tokens. Check whether they belong in the text, or add training text that "
    "contains them.",
)
OVER_LONG = _note(
    "over-long",
    title="longer than data.max_length",
    remedy="Training follows data.over_long: `drop` leaves such pairs out of train, `truncate` shortens them. If they "
    "are good, raise data.max_length.",
    preprocessing_name="over-long",
)
TOKEN_RATIO = _note(
    "token-ratio",
    title="length ratio exceeds data.max_ratio",
    remedy="Training leaves such pairs out. If they are good, raise data.max_ratio.",
    preprocessing_name="length ratio",
)
