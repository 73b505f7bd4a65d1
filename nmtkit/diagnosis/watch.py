"""The watch for shifted lines in files of equally many lines: a line is missing here, and another one further on."""

import numpy as np
from numpy.typing import NDArray

from nmtkit.diagnosis.blocks import Block
from nmtkit.diagnosis.characters import Text
from nmtkit.diagnosis.findings import Place
from nmtkit.diagnosis.shifts import Features, Likeness, shifted_scores, windows

WINDOWS = (48, 256)
"""So many pairs are looked at together."""
SURE = 30.0
"""Nats by which a shift must be better than none over a window."""
NEAR = (-3, -2, -1, 1, 2, 3)
"""The shifts that are tried."""


class ShiftWatch:
    """Looks for windows of a pair of files in which the lines are shifted. The blocks must come in their order."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], tuple[Place, int]] = {}
        """By source and target file: where it begins, and about how many pairs of the files are shifted."""
        self._files = ("", "")
        self._tail: tuple[Features, Features, Block] | None = None
        self._end = 0

    def see(self, block: Block, src: Text, tgt: Text) -> None:
        """Takes the next block."""
        src_features, tgt_features, before = Features.of(src), Features.of(tgt), None
        if self._files == (block.src_file, block.tgt_file) and block.first > 1 and self._tail is not None:
            src_tail, tgt_tail, before = self._tail
            src_features, tgt_features = src_tail.then(src_features), tgt_tail.then(tgt_features)
        else:
            self._files, self._end = (block.src_file, block.tgt_file), 0
        first = block.first - (len(src_features) - len(block))
        shifted = first + np.flatnonzero(_shifted(src_features, tgt_features))
        if len(shifted):
            place, pairs = self.found.get(self._files, (None, 0))
            if place is None:
                there = block if shifted[0] >= block.first or before is None else before
                place = there.pair(max(0, min(int(shifted[0]) - there.first, len(there) - 1)))
            self.found[self._files] = place, pairs + int((shifted > self._end).sum())
            self._end = max(self._end, int(shifted[-1]))
        keep = max(0, len(src_features) - max(WINDOWS) - max(NEAR))
        self._tail = src_features.part(keep, len(src_features)), tgt_features.part(keep, len(src_features)), block


def _shifted(src: Features, tgt: Features) -> NDArray[np.bool_]:
    """For each pair, whether it seems to be shifted."""
    likeness, count = Likeness.learn(src, tgt), len(src)
    plain = shifted_scores(likeness, src, tgt, 0, count, 0)
    others = [shifted_scores(likeness, src, tgt, 0, count, shift) for shift in NEAR]
    shifted = np.zeros(count, dtype=bool)
    for window in WINDOWS:
        if count < window:
            continue
        better = np.array([gains(plain, other, window) for other in others])
        starts = np.flatnonzero(better.max(axis=0) > SURE)
        best = better.argmax(axis=0)[starts]
        # Windows that follow each other and show the same shift are one stretch; its edges hold good pairs as well.
        cuts = np.flatnonzero((np.diff(starts) > 1) | (np.diff(best) != 0)) + 1
        for stretch, which in zip(np.split(starts, cuts), np.split(best, cuts), strict=True):
            if len(stretch):
                start, end = int(stretch[0]), int(stretch[-1]) + window
                low, high = _best_stretch((others[which[0]] - plain)[start:end])
                shifted[start + low : start + high] = True
    return shifted


def _best_stretch(scores: NDArray[np.float64]) -> tuple[int, int]:
    """Where the stretch with the greatest sum begins and ends."""
    total = np.concatenate([[0.0], np.cumsum(scores)])
    end = int((total - np.minimum.accumulate(total)).argmax())
    return int(total[: end + 1].argmin()), end


def gains(plain: NDArray[np.float64], shifted: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """How much better a shift is over each window, in nats; 0 where the shifted lines do not belong together either."""
    after = windows(shifted, window)
    return np.where(after > SURE / 2, after - windows(plain, window), 0.0)
