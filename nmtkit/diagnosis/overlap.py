"""Pairs that occur twice, pairs of valid and test that are in train too, and pairs of test that are in valid."""

from dataclasses import dataclass

import numpy as np

from nmtkit.data.blocks import Block
from nmtkit.data.faults import (
    DUPLICATE,
    HELD_OUT,
    IN_TRAIN,
    IN_VALID,
    SRC_IN_TRAIN,
    SRC_IN_VALID,
    TGT_IN_TRAIN,
    Kind,
    Rows,
)
from nmtkit.data.hashes import Hashes, HashSet, Mask, PairHashes, Sought
from nmtkit.data.reading import SplitReader
from nmtkit.diagnosis.findings import EXAMPLES, Finding, SplitDiagnosis


@dataclass(frozen=True)
class _Held:
    """What is remembered of a split that is not train."""

    hashes: PairHashes
    """Of all its pairs."""
    usable: Mask
    """Whether both sides of a pair hold text."""


class Overlap:
    """Looks for pairs that occur twice. All other splits must go by before train, which they are compared with.

    Memory: that of a `HashSet` for the pairs of train; some 40 bytes for each pair of the others.
    """

    def __init__(self) -> None:
        self._seen: dict[str, HashSet] = {}
        self._held: dict[str, list[_Held]] = {}
        self._sought: dict[str, Sought] = {}
        self._has_train = False

    def other(self, block: Block, usable: Mask) -> None:
        """Takes a block of a split that is not train; `usable` says of each pair that both sides hold text."""
        hashes = block.hashes()
        self._held.setdefault(block.split, []).append(_Held(hashes, usable))
        if block.tgt is not None:
            self._duplicates(block, np.flatnonzero(usable), hashes.pairs)

    def train(self, block: Block, usable: Mask) -> None:
        """Takes a block of train."""
        if not self._has_train:
            self._has_train = True
            for split in self._held:
                for side, hashes in vars(self._whole(split).hashes).items():
                    self._sought.setdefault(side, Sought()).seek(hashes)
        rows, hashes = np.flatnonzero(usable), block.hashes()
        self._duplicates(block, rows, hashes.pairs)
        for side, sought in self._sought.items():
            met = sought.meet(getattr(hashes, side)[rows])
            if side == "pairs":
                block.add(HELD_OUT, rows[met])

    def _duplicates(self, block: Block, rows: Rows, hashes: Hashes) -> None:
        block.add(DUPLICATE, rows[self._seen.setdefault(block.split, HashSet()).add(hashes[rows])])

    def overlaps(self, split: str) -> dict[Kind, Rows]:
        """The pairs of a split that are in train, and of test that are in valid; ask when train is over.

        Pairs are counted from 0 over all blocks of the split.
        """
        if split not in self._held:
            return {}
        whole = self._whole(split)
        hashes, found = whole.hashes, dict[Kind, Mask]()
        if self._has_train:
            pair, same_src, same_tgt = (
                self._sought[side].was_met(getattr(hashes, side)) for side in ("pairs", "src", "tgt")
            )
            found |= {IN_TRAIN: pair, SRC_IN_TRAIN: same_src & ~pair, TGT_IN_TRAIN: same_tgt & ~pair & ~same_src}
        if split == "test" and "valid" in self._held:
            valid = self._whole("valid")
            pair = np.isin(hashes.pairs, valid.hashes.pairs[valid.usable])
            same_src = np.isin(hashes.src, valid.hashes.src[valid.usable])
            found |= {IN_VALID: pair, SRC_IN_VALID: same_src & ~pair}
        rows = {kind: np.flatnonzero(mask & whole.usable) for kind, mask in found.items()}
        return {kind: some for kind, some in rows.items() if len(some)}

    def _whole(self, split: str) -> _Held:
        """What is remembered of all pairs of a split."""
        held = self._held[split]
        columns = (np.concatenate([getattr(part.hashes, side) for part in held]) for side in ("pairs", "src", "tgt"))
        return _Held(PairHashes(*columns), np.concatenate([part.usable for part in held]))


def note_overlaps(found: dict[Kind, Rows], split: SplitDiagnosis, reader: SplitReader) -> None:
    """Puts pairs that are in other splits too into the findings of their split.

    Args:
        found: as `Overlap.overlaps` gives it.
        split: gets the findings.
        reader: of the split, which is read again for the places; only as far as is needed.
    """
    if not found:
        return
    wanted = {kind: rows[:EXAMPLES].tolist() for kind, rows in found.items()}
    for kind, rows in found.items():
        split.findings[kind.name] = Finding(kind, len(rows))
    last = max(rows[-1] for rows in wanted.values())
    for block in reader:
        if not isinstance(block, Block):
            continue
        before, end = block.before, block.before + len(block)
        for kind, rows in wanted.items():
            split.findings[kind.name].places += [block.pair(row - before) for row in rows if before <= row < end]
        if end > last:
            break
