"""The examination of a corpus: every check over every block of every split, in one pass."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from nmtkit.corpus import faults
from nmtkit.corpus.blocks import Block
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.faults import HELD_OUT, Fault, FaultKind, RowIndices
from nmtkit.corpus.hashes import HashLookup, HashSet, Mask, PairHashes
from nmtkit.corpus.reading import SplitReader
from nmtkit.diagnosis.characters import TextArrays, find_odd_characters
from nmtkit.diagnosis.findings import EXAMPLES, Diagnosis, Finding, SplitDiagnosis
from nmtkit.diagnosis.misalignment import ShiftDetector, first_mismatch
from nmtkit.diagnosis.norms import Norms, examine_pairs, first_texts, learn_norms


def examine(
    splits: Mapping[str, SplitFiles],
    monolingual: bool = False,
    duplicates: bool = True,
    progress: Callable[[int], object] = lambda count: None,
    see: Callable[[Block], object] = lambda block: None,
) -> Diagnosis:
    """Examines all splits of a corpus, each in one reading.

    Args:
        splits: their files by name; "train", or the first if there is none of that name, is what the others are
            compared with.
        monolingual: whether both sides are in one language, as a summary and its article are.
        duplicates: whether to look for pairs that occur twice, in one split or in two of them, which takes up to 16
            bytes of memory for each pair of train.
        progress: is told, now and then, how many bytes of the files have been read since the last time.
        see: is given every block of pairs before it is examined: for whoever wants something else of the same reading.
    """
    diagnosis = Diagnosis()
    for _ in examine_blocks(splits, diagnosis, monolingual, duplicates, progress, see):
        pass
    return diagnosis


def examine_blocks(
    splits: Mapping[str, SplitFiles],
    diagnosis: Diagnosis,
    monolingual: bool = False,
    duplicates: bool = True,
    progress: Callable[[int], object] = lambda count: None,
    see: Callable[[Block], object] = lambda block: None,
) -> Iterator[Block]:
    """As `examine`, and gives every block of pairs with the faults that were found in it, for those who mend them.

    The blocks of a split come in the order of its files and hold every line once; the split that the others are
    compared with comes last. Pairs of it that are in others have the fault `faults.HELD_OUT` in their block, and count
    as faults of the others in the diagnosis, which is complete when the last block has been given. `see` may change
    the text.
    """
    start = time.monotonic()
    for name in splits:
        diagnosis.splits[name] = SplitDiagnosis(name)
    main = "train" if "train" in splits else next(iter(splits))
    readers = {
        name: SplitReader(name, files, lambda path: lambda data: progress(len(data))) for name, files in splits.items()
    }
    usual = learn_norms(readers[main])
    if monolingual:
        usual = replace(usual, languages=None)
    overlap = Overlap(main) if duplicates else None
    for name in sorted(splits, key=lambda name: name == main):
        norms = usual
        if name != main and usual.are_swapped(first_texts(readers[name])):
            first = next(SplitReader(name, splits[name]).peek(0))
            diagnosis.splits[name].find(faults.SWAPPED_FILES, first.pair(0))
            norms = usual.swapped()
        yield from _examined(readers[name], diagnosis.splits[name], norms, monolingual, overlap, see)
    if overlap is not None:
        for name, files in splits.items():
            overlap.note(diagnosis.splits[name], SplitReader(name, files))
    diagnosis.seconds = time.monotonic() - start


def _examined(
    reader: SplitReader,
    split: SplitDiagnosis,
    norms: Norms,
    summaries: bool,
    overlap: "Overlap | None",
    see: Callable[[Block], object],
) -> Iterator[Block]:
    """The blocks of a split, with their faults; as of `examine_blocks`."""
    shifts = ShiftDetector()
    for block in reader:
        if not isinstance(block, Block):
            split.find(block.kind, first_mismatch(block) if block.counts else block.place, block.count)
            continue
        see(block)
        src, tgt = TextArrays.of(block.src), None if block.tgt is None else TextArrays.of(block.tgt)
        split.count(src, tgt)
        for side, text in (("src", src), ("tgt", tgt)):
            if text is not None:
                find_odd_characters(block, side, text)
        if tgt is not None and block.src_file != block.tgt_file:
            shifts.see(block, src, tgt)
        usable = examine_pairs(block, src, tgt, norms, summaries)
        if overlap is not None:
            overlap.see(block, usable)
        _count(block, split)
        yield block
    parted = {place.file for place in split.findings.get(faults.LINE_COUNTS.name, Finding(faults.LINE_COUNTS)).places}
    for place, count in shifts.found.values():
        if place.file not in parted:
            split.find(faults.SHIFT, place, count)


def _count(block: Block, split: SplitDiagnosis) -> None:
    """Counts the faults of a block in the findings of its split: a pair once for each kind, by their lines."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in block.faults:
        if fault.kind is not HELD_OUT:  # that is counted where it does harm: in the split that is to be measured by
            by_kind.setdefault(fault.kind.name, []).append(fault)
    for name, found in by_kind.items():
        finding = split.findings.setdefault(name, Finding(found[0].kind))
        rows = np.unique(np.concatenate([fault.rows for fault in found]))
        finding.count += len(rows)
        for row in rows[: EXAMPLES - len(finding.places)].tolist():
            finding.places.append(next(fault.place(row) for fault in found if row in fault.rows))


class Overlap:
    """Looks for pairs that occur twice: in one split; of valid and test in train; of test in valid.

    Memory: that of a `HashSet` for the pairs of train; some 40 bytes for each pair of the others.

    Args:
        train: the name of the split that all others are compared with, and must go by before.
    """

    def __init__(self, train: str) -> None:
        self._train = train
        self._seen: dict[str, HashSet] = {}
        self._held: dict[str, list[tuple[PairHashes, Mask]]] = {}  # of the other splits: all pairs, which are usable
        self._sought: dict[str, HashLookup] = {}  # by side, once train has begun

    def see(self, block: Block, usable: Mask) -> None:
        """Takes a block; `usable` says of each pair that both sides hold text."""
        rows, hashes, of_train = np.flatnonzero(usable), block.hashes(), block.split == self._train
        if not of_train:
            self._held.setdefault(block.split, []).append((hashes, usable))
        elif not self._sought:
            for split in self._held:
                for side, wanted in vars(self._whole(split)[0]).items():
                    self._sought.setdefault(side, HashLookup()).add(wanted)
        if of_train or block.tgt is not None:
            block.add(faults.DUPLICATE, rows[self._seen.setdefault(block.split, HashSet()).add(hashes.pairs[rows])])
        for side, sought in self._sought.items() if of_train else ():
            met = sought.lookup(getattr(hashes, side)[rows])
            if side == "pairs":
                block.add(HELD_OUT, rows[met])

    def note(self, split: SplitDiagnosis, reader: SplitReader) -> None:
        """Adds the pairs of a split that are in others to its findings, when all splits have gone by.

        The split is read again for their places, as far as is needed.
        """
        found = self._overlaps(split.name)
        for kind, rows in found.items():
            split.findings[kind.name] = Finding(kind, len(rows))
        wanted = {kind: rows[:EXAMPLES].tolist() for kind, rows in found.items()}
        last = max((rows[-1] for rows in wanted.values()), default=-1)
        for block in reader if found else ():
            if isinstance(block, Block):
                end = block.offset + len(block)
                for kind, rows in wanted.items():
                    here = [row - block.offset for row in rows if block.offset <= row < end]
                    split.findings[kind.name].places += map(block.pair, here)
                if end > last:
                    break

    def _overlaps(self, split: str) -> dict[FaultKind, RowIndices]:
        """The pairs of a split that are in train, and of test that are in valid; from 0 over all blocks."""
        if split not in self._held:
            return {}
        (hashes, usable), found = self._whole(split), dict[FaultKind, Mask]()
        if self._sought:
            pair, same_src, same_tgt = (
                self._sought[side].was_matched(getattr(hashes, side)) for side in ("pairs", "src", "tgt")
            )
            found |= {
                faults.IN_TRAIN: pair,
                faults.SRC_IN_TRAIN: same_src & ~pair,
                faults.TGT_IN_TRAIN: same_tgt & ~pair & ~same_src,
            }
        if split == "test" and "valid" in self._held:
            valid, of_use = self._whole("valid")
            pair, same_src = (np.isin(getattr(hashes, side), getattr(valid, side)[of_use]) for side in ("pairs", "src"))
            found |= {faults.IN_VALID: pair, faults.SRC_IN_VALID: same_src & ~pair}
        rows = {kind: np.flatnonzero(mask & usable) for kind, mask in found.items()}
        return {kind: some for kind, some in rows.items() if len(some)}

    def _whole(self, split: str) -> tuple[PairHashes, Mask]:
        parts, usable = zip(*self._held[split], strict=True)
        columns = (np.concatenate([getattr(part, side) for part in parts]) for side in ("pairs", "src", "tgt"))
        return PairHashes(*columns), np.concatenate(usable)
