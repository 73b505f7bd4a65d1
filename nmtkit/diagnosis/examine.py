"""The examination of a corpus: every check over every block of every split, in one pass."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from nmtkit.data.corpus import Files
from nmtkit.diagnosis import statistics
from nmtkit.diagnosis.blocks import Block, Fault, read_blocks
from nmtkit.diagnosis.characters import Text
from nmtkit.diagnosis.findings import EXAMPLES, Diagnosis, Finding, SplitDiagnosis
from nmtkit.diagnosis.kinds import HELD_OUT, LINE_COUNTS, SHIFT, SWAPPED_FILES
from nmtkit.diagnosis.norms import learn, sample
from nmtkit.diagnosis.oddities import find_oddities
from nmtkit.diagnosis.pairs import examine_pairs
from nmtkit.diagnosis.repeats import Repeats, note_overlaps
from nmtkit.diagnosis.watch import ShiftWatch
from nmtkit.task import TASKS


@dataclass(frozen=True)
class ExamineOptions:
    """How a corpus is examined."""

    task: str = "translation"
    """Summaries are shorter than their sources and in the same language, so that other rules hold."""
    duplicates: bool = True
    """Whether to look for pairs that occur twice, in one split or in two of them, which takes up to 16 bytes of
    memory for each pair of train."""


def examine(
    splits: Mapping[str, Files], options: ExamineOptions, progress: Callable[[int], None] | None = None
) -> Diagnosis:
    """Examines all splits of a corpus.

    Args:
        splits: their files by name; "train", or the first if there is none of that name, is what the others are
            compared with.
        options: how.
        progress: is told, now and then, how many bytes of the files have been read since the last time.
    """
    diagnosis = Diagnosis()
    for _ in verdicts(splits, options, diagnosis, progress):
        pass
    return diagnosis


def verdicts(
    splits: Mapping[str, Files],
    options: ExamineOptions,
    diagnosis: Diagnosis,
    progress: Callable[[int], None] | None = None,
    prepare: Callable[[Block], None] | None = None,
) -> Iterator[Block]:
    """As `examine`, and gives every block of pairs with the faults that were found in it, for those who mend them.

    The blocks of a split come in the order of its files and hold every line once; the split that the others are
    compared with comes last. Pairs of it that are in others have the fault `kinds.HELD_OUT` in their block, and count
    as faults of the others in the diagnosis.

    Args:
        splits: as in `examine`.
        options: as in `examine`.
        diagnosis: is filled; complete when the last block has been given.
        progress: as in `examine`.
        prepare: is given every block before it is examined, and may change its text.
    """
    start = time.monotonic()
    for name in splits:
        diagnosis.splits[name] = SplitDiagnosis(name)
    main = "train" if "train" in splits else next(iter(splits))
    usual = learn(main, splits[main])
    summaries = TASKS.get(options.task).in_one_language
    if summaries:  # both sides are in one language
        usual = replace(usual, languages=None)
    repeats = Repeats() if options.duplicates else None
    for name in sorted(splits, key=lambda name: name == main):
        split, norms = diagnosis.splits[name], usual
        if name != main and usual.are_swapped(sample(name, splits[name])):
            split.find(SWAPPED_FILES, next(read_blocks(name, splits[name], None, None)).pair(0))
            norms = usual.turned()
        watch = ShiftWatch()
        for block in read_blocks(name, splits[name], split.find, progress):
            if prepare is not None:
                prepare(block)
            src, tgt = Text.of(block.src), None if block.tgt is None else Text.of(block.tgt)
            statistics.count(split, src, tgt)
            for side, text in (("src", src), ("tgt", tgt)):
                if text is not None:
                    find_oddities(block, side, text)
            if tgt is not None and block.src_file != block.tgt_file:
                watch.see(block, src, tgt)
            usable = examine_pairs(block, src, tgt, norms, summaries)
            if repeats is not None:
                (repeats.train if name == main else repeats.other)(block, usable)
            _note(block, split)
            yield block
        parted = {place.file for place in split.findings.get(LINE_COUNTS.name, Finding(LINE_COUNTS)).places}
        for place, count in watch.found.values():
            if place.file not in parted:
                split.find(SHIFT, place, count)
    if repeats is not None:
        for name in splits:
            blocks = read_blocks(name, splits[name], None, None)
            note_overlaps(repeats.overlaps(name), diagnosis.splits[name], blocks)
    diagnosis.seconds = time.monotonic() - start


def _note(block: Block, split: SplitDiagnosis) -> None:
    """Counts the faults of a block in the findings of its split: a pair once for each kind, by their lines."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in block.faults:
        if fault.kind is not HELD_OUT:  # that is counted where it does harm: in the split that is to be measured by
            by_kind.setdefault(fault.kind.name, []).append(fault)
    for name, faults in by_kind.items():
        finding = split.findings.setdefault(name, Finding(faults[0].kind))
        rows = np.unique(np.concatenate([fault.rows for fault in faults]))
        finding.count += len(rows)
        for row in rows[: EXAMPLES - len(finding.places)].tolist():
            finding.places.append(next(fault.place(row) for fault in faults if row in fault.rows))
