"""Cleaned copies of a corpus: what cannot be used is left out, what can be put right is, and every such pair is logged.

Nothing is guessed: a split with a fault that a human must decide about, such as files of different line counts, is not
written at all. Text is put right first and examined then, so that a pair that is a duplicate only once it is mended is
found as well.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from nmtkit.data.corpus import Files
from nmtkit.diagnosis import kinds
from nmtkit.diagnosis.characters import BOM, CONTROL, NUL, SEPARATOR, classes
from nmtkit.diagnosis.examine import ExamineOptions, verdicts
from nmtkit.diagnosis.findings import Diagnosis
from nmtkit.diagnosis.oddities import read_again
from nmtkit.diagnosis.report import short_names
from nmtkit.diagnosis.writer import MendedSplit, SplitWriter
from nmtkit.errors import NmtkitError

LOG = "dropped.jsonl"
"""The log, one JSON object for every pair that was left out or mended."""


def require_new(out: Path) -> None:
    """Makes sure that the folder can be written without touching anything that is there.

    Raises:
        NmtkitError: there is something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NmtkitError(f"{out}: there is something already, and nothing is overwritten; name another folder")


def mend(
    splits: Mapping[str, Files],
    options: ExamineOptions,
    out: Path,
    progress: Callable[[int], None] | None = None,
) -> dict[str, MendedSplit]:
    """Writes cleaned copies of all files, under their own names, into a new folder, which holds all of them or nothing.

    Memory does not grow with the corpus but as that of the examination does.

    Args:
        splits: the files by split.
        options: how they are examined.
        out: the folder; it is made.
        progress: as `examine` takes it.

    Returns:
        What became of each split.

    Raises:
        NmtkitError: there is something in the folder, it cannot be written, or a file of alignments is missing, broken
            or shorter than its text.
    """
    require_new(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.with_name(out.name + ".part")
    if work.exists():
        raise NmtkitError(f"{work}: left by a --fix that was stopped; remove it, or name another folder")
    try:
        work.mkdir()
        done = _written(splits, options, work, progress)
        os.replace(work, out)
    except OSError as fault:
        raise NmtkitError(f"{out}: cannot write there: {fault.strerror or fault}") from fault
    finally:
        if work.exists():
            shutil.rmtree(work)
    return done


def _written(
    splits: Mapping[str, Files], options: ExamineOptions, folder: Path, progress: Callable[[int], None] | None
) -> dict[str, MendedSplit]:
    names = _Names(path for files in splits.values() for path in files.paths())
    writers = {name: SplitWriter(name, files, folder, names.new, put_right) for name, files in splits.items()}
    diagnosis = Diagnosis()
    try:
        for block in verdicts(splits, options, diagnosis, progress, lambda block: writers[block.split].prepare(block)):
            writers[block.split].take(block)
        for name, writer in writers.items():
            writer.finish(diagnosis.splits[name])
    finally:
        for writer in writers.values():
            writer.close()
    with open(folder / LOG, "wb") as log:
        for writer in writers.values():
            if writer.log.exists():
                with open(writer.log, "rb") as part:
                    shutil.copyfileobj(part, log)
                writer.log.unlink()
    return {name: writer.done for name, writer in writers.items()}


class _Names:
    """New names of files, none of them twice.

    Args:
        paths: all old files; what their folders have in common is left out.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._short = short_names(paths)
        self._taken = {LOG}

    def new(self, path: str) -> str:
        """A name for a file; another one where the same file is named once more, for another split."""
        name = wanted = self._short.get(path, path)
        number = 1
        while name in self._taken:
            number += 1
            name = str(Path(wanted).with_name(f"{number}-{Path(wanted).name}"))
        self._taken.add(name)
        return name


# ------------------------------------------------------------------------------------------------------- putting right


_KINDS = {NUL: kinds.NUL, BOM: kinds.BOM, CONTROL: kinds.CONTROL, SEPARATOR: kinds.SEPARATOR}


@cache
def _table() -> dict[int, str]:
    """What becomes of characters that should not stand in a text: a space where they part words, else nothing."""
    codes = np.flatnonzero(np.isin(classes(), list(_KINDS))).tolist()
    return {code: " " if chr(code).isspace() else "" for code in codes}


@cache
def _odd() -> re.Pattern[str]:
    """Matches one such character."""
    return re.compile("[" + "".join(re.escape(chr(code)) for code in _table()) + "]")


def put_right(text: str) -> tuple[str, list[str]]:
    """A line put right, and by name the kinds of faults that it had; none if it stays as it is."""
    found = []
    while (again := read_again(text)) != text:  # what was read wrongly twice is read again twice
        text, found = again, [kinds.MOJIBAKE.name]
    odd = {_KINDS[int(classes()[ord(letter)])].name for letter in _odd().findall(text)}
    if odd:
        text = text.translate(_table()).strip()
    return text, found + sorted(odd)
