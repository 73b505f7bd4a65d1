"""Pairs that occur twice, pairs of valid and test that are in train too, and pairs of test that are in valid."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.hashes import Hashes, HashSet
from nmtkit.diagnosis.blocks import Block, Rows
from nmtkit.diagnosis.findings import EXAMPLES, Finding, Kind, SplitDiagnosis
from nmtkit.diagnosis.kinds import (
    DUPLICATE,
    HELD_OUT,
    IN_TRAIN,
    IN_VALID,
    SRC_IN_TRAIN,
    SRC_IN_VALID,
    TGT_IN_TRAIN,
)

WHOLE, SRC, TGT = range(3)


def line_hashes(block: Block) -> tuple[Hashes, Hashes, Hashes]:
    """`(n,)` each: hashes of the pairs of a block, of their sources and of their targets; good within this process."""
    src = _hashes(block.src)
    tgt = np.zeros_like(src) if block.tgt is None else _hashes(block.tgt)
    # Both are random numbers of 64 bits, so that two different pairs hardly ever have the same sum.
    return src * np.uint64(0x9E3779B97F4A7C15) + tgt * np.uint64(0xC2B2AE3D27D4EB4F), src, tgt


def _hashes(lines: list[str]) -> Hashes:
    # Python's own hash of a text has 64 bits, is kept with the text, and is many times faster than those of hashlib.
    return np.fromiter(map(hash, lines), dtype=np.int64, count=len(lines)).view(np.uint64)


@dataclass
class _Known:
    """Hashes that are looked for in train, and which of them have been met."""

    hashes: Hashes
    met: NDArray[np.bool_]

    def meet(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Notes hashes of train; for each, whether it is looked for."""
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known: NDArray[np.bool_] = self.hashes[place] == hashes
        self.met[place[known]] = True
        return known

    def was_met(self, hashes: Hashes) -> NDArray[np.bool_]:
        """For each hash that is looked for, whether it has been met."""
        return self.met[np.searchsorted(self.hashes, hashes)]


class Repeats:
    """Looks for pairs that occur twice. All other splits must go by before train, which they are compared with.

    Memory: that of a `HashSet` for the pairs of train; some 40 bytes for each pair of the others.
    """

    def __init__(self) -> None:
        self._seen: dict[str, HashSet] = {}
        self._held: dict[str, list[tuple[Hashes, ...]]] = {}
        self._known: list[_Known] | None = None

    def other(self, block: Block, usable: NDArray[np.bool_]) -> None:
        """Takes a block of a split that is not train; `usable` says of each pair that both sides hold text."""
        hashes = line_hashes(block)
        self._held.setdefault(block.split, []).append((*hashes, usable.astype(np.uint64)))
        if block.tgt is not None:
            self._duplicates(block, np.flatnonzero(usable), hashes[WHOLE])

    def train(self, block: Block, usable: NDArray[np.bool_]) -> None:
        """Takes a block of train."""
        if self._known is None:
            self._known = [self._all(which) for which in (WHOLE, SRC, TGT)] if self._held else []
        rows = np.flatnonzero(usable)
        hashes = line_hashes(block)
        self._duplicates(block, rows, hashes[WHOLE])
        for which, known in enumerate(self._known):
            met = known.meet(hashes[which][rows])
            if which == WHOLE:
                block.add(HELD_OUT, rows[met])

    def _duplicates(self, block: Block, rows: Rows, hashes: Hashes) -> None:
        block.add(DUPLICATE, rows[self._seen.setdefault(block.split, HashSet()).add(hashes[rows])])

    def _all(self, which: int) -> _Known:
        hashes = np.unique(np.concatenate([part[which] for parts in self._held.values() for part in parts]))
        return _Known(hashes, np.zeros(len(hashes), dtype=bool))

    def overlaps(self, split: str) -> dict[Kind, Rows]:
        """The pairs of a split that are in train, and of test that are in valid; ask when train is over.

        Pairs are counted from 0 over all blocks of the split.
        """
        if split not in self._held:
            return {}
        whole, src, tgt, usable = self._columns(split)
        found: dict[Kind, NDArray[np.bool_]] = {}
        if self._known:
            known = self._known
            pair = known[WHOLE].was_met(whole)
            same_src = known[SRC].was_met(src) & ~pair
            same_tgt = known[TGT].was_met(tgt) & ~pair & ~same_src
            found |= {IN_TRAIN: pair, SRC_IN_TRAIN: same_src, TGT_IN_TRAIN: same_tgt}
        if split == "test" and "valid" in self._held:
            valid = self._columns("valid")
            there = valid[-1] > 0
            pair = np.isin(whole, valid[WHOLE][there])
            found |= {IN_VALID: pair, SRC_IN_VALID: np.isin(src, valid[SRC][there]) & ~pair}
        rows = {kind: np.flatnonzero(mask & (usable > 0)) for kind, mask in found.items()}
        return {kind: some for kind, some in rows.items() if len(some)}

    def _columns(self, split: str) -> list[Hashes]:
        """Of all pairs of a split: their hashes, those of their sources and targets, and whether they are usable."""
        return [np.concatenate(parts) for parts in zip(*self._held[split], strict=True)]


def note_overlaps(found: dict[Kind, Rows], split: SplitDiagnosis, blocks: Iterable[Block]) -> None:
    """Puts pairs that are in other splits too into the findings of their split.

    Args:
        found: as `Repeats.overlaps` gives it.
        split: gets the findings.
        blocks: all blocks of the split, read again for the places; only as many as are needed.
    """
    if not found:
        return
    wanted = {kind: rows[:EXAMPLES].tolist() for kind, rows in found.items()}
    for kind, rows in found.items():
        split.findings[kind.name] = Finding(kind, len(rows))
    before, last = 0, max((rows[-1] for rows in wanted.values()), default=-1)
    for block in blocks:
        for kind, rows in wanted.items():
            split.findings[kind.name].places += [
                block.pair(row - before) for row in rows if before <= row < before + len(block)
            ]
        before += len(block)
        if before > last:
            break
