"""The examination of a corpus: every check over every block of every split, in one pass."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from nmtkit.data.blocks import Block
from nmtkit.data.corpus import Files
from nmtkit.data.faults import HELD_OUT, LINE_COUNTS, SHIFT, SWAPPED_FILES, Fault
from nmtkit.data.reading import SplitReader
from nmtkit.data.text import Watch
from nmtkit.diagnosis.characters import TextArrays
from nmtkit.diagnosis.findings import EXAMPLES, Diagnosis, Finding, SplitDiagnosis
from nmtkit.diagnosis.misalignment import ShiftWatch, where_they_part
from nmtkit.diagnosis.norms import Norms, first_texts, learn_norms
from nmtkit.diagnosis.oddities import find_oddities
from nmtkit.diagnosis.overlap import Overlap, note_overlaps
from nmtkit.diagnosis.pairs import examine_pairs


@dataclass(frozen=True)
class ExamineOptions:
    """How a corpus is examined."""

    in_one_language: bool = False
    """Whether both sides are in one language, as a summary and its article are."""
    duplicates: bool = True
    """Whether to look for pairs that occur twice, in one split or in two of them, which takes up to 16 bytes of
    memory for each pair of train."""


def examine(
    splits: Mapping[str, Files],
    options: ExamineOptions,
    progress: Callable[[int], None] | None = None,
    see: Callable[[Block], None] | None = None,
) -> Diagnosis:
    """Examines all splits of a corpus, each in one reading.

    Args:
        splits: their files by name; "train", or the first if there is none of that name, is what the others are
            compared with.
        options: how.
        progress: is told, now and then, how many bytes of the files have been read since the last time.
        see: is given every block of pairs before it is examined: for whoever wants something else of the same reading.
    """
    diagnosis = Diagnosis()
    for _ in verdicts(splits, options, diagnosis, progress, see):
        pass
    return diagnosis


def verdicts(
    splits: Mapping[str, Files],
    options: ExamineOptions,
    diagnosis: Diagnosis,
    progress: Callable[[int], None] | None = None,
    see: Callable[[Block], None] | None = None,
) -> Iterator[Block]:
    """As `examine`, and gives every block of pairs with the faults that were found in it, for those who mend them.

    The blocks of a split come in the order of its files and hold every line once; the split that the others are
    compared with comes last. Pairs of it that are in others have the fault `faults.HELD_OUT` in their block, and count
    as faults of the others in the diagnosis.

    Args:
        splits: as in `examine`.
        options: as in `examine`.
        diagnosis: is filled; complete when the last block has been given.
        progress: as in `examine`.
        see: as in `examine`; it may change the text.
    """
    start = time.monotonic()
    for name in splits:
        diagnosis.splits[name] = SplitDiagnosis(name)
    main = "train" if "train" in splits else next(iter(splits))
    readers = {name: SplitReader(name, files, _told(progress)) for name, files in splits.items()}
    usual = learn_norms(readers[main])
    if options.in_one_language:
        usual = replace(usual, languages=None)
    overlap = Overlap() if options.duplicates else None
    examiner = _Examiner(options.in_one_language, overlap, see)
    for name in sorted(splits, key=lambda name: name == main):
        norms = usual
        if name != main and usual.are_swapped(first_texts(readers[name])):
            first = next(SplitReader(name, splits[name]).ahead(0))
            diagnosis.splits[name].find(SWAPPED_FILES, first.pair(0))
            norms = usual.turned()
        yield from examiner.blocks(readers[name], diagnosis.splits[name], norms, is_main=name == main)
    if overlap is not None:
        for name, files in splits.items():
            note_overlaps(overlap.overlaps(name), diagnosis.splits[name], SplitReader(name, files))
    diagnosis.seconds = time.monotonic() - start


def _told(progress: Callable[[int], None] | None) -> Watch | None:
    if progress is None:
        return None
    told = progress
    return lambda path: lambda data: told(len(data))


@dataclass(frozen=True)
class _Examiner:
    """Examines the blocks of one split after the other."""

    summaries: bool
    """Whether targets are summaries of their sources."""
    overlap: Overlap | None
    """Looks for pairs that occur twice."""
    see: Callable[[Block], None] | None
    """Is given every block before it is examined."""

    def blocks(self, reader: SplitReader, split: SplitDiagnosis, norms: Norms, is_main: bool) -> Iterator[Block]:
        """The blocks of a split, with their faults."""
        watch = ShiftWatch()
        for block in reader:
            if not isinstance(block, Block):
                split.find(block.kind, where_they_part(block) if block.counts else block.place, block.count)
                continue
            if self.see is not None:
                self.see(block)
            src, tgt = TextArrays.of(block.src), None if block.tgt is None else TextArrays.of(block.tgt)
            split.count(src, tgt)
            for side, text in (("src", src), ("tgt", tgt)):
                if text is not None:
                    find_oddities(block, side, text)
            if tgt is not None and block.src_file != block.tgt_file:
                watch.see(block, src, tgt)
            usable = examine_pairs(block, src, tgt, norms, self.summaries)
            if self.overlap is not None:
                (self.overlap.train if is_main else self.overlap.other)(block, usable)
            _note(block, split)
            yield block
        parted = {place.file for place in split.findings.get(LINE_COUNTS.name, Finding(LINE_COUNTS)).places}
        for place, count in watch.found.values():
            if place.file not in parted:
                split.find(SHIFT, place, count)


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
