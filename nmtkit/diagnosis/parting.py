"""Where two files part that should be line-aligned and have different numbers of lines."""

import numpy as np
from numpy.typing import NDArray

from nmtkit.diagnosis.characters import Text
from nmtkit.diagnosis.encodings import excerpt
from nmtkit.diagnosis.findings import Place
from nmtkit.diagnosis.lines import ROWS, TextFile
from nmtkit.diagnosis.shifts import Features, Likeness, first_shifted, shifted_scores

NEARBY = 8
"""Shifts by so many lines are tried, around none and around the difference of the counts."""
MOST = 100_000
"""A greater difference of the counts is tried as none: that much is not missing in one place."""
WINDOW = 64
"""Pairs that are looked at together."""
LASTING = 1024
"""A shift must be better over so many pairs behind the window, too: in sorted files like lines stand side by side."""
SURE = 15.0
"""Nats by which a shift must be better than none over a window, and over the pairs behind it."""
BETTER = 6.0
"""If no window is so clear: nats by which it must be better from some line up to the end."""
WIDTH = 60
"""Characters that are shown of each line."""


class _Tape:
    """A file of which a stretch of lines is held, by what they are compared by."""

    def __init__(self, path: str) -> None:
        self._file = TextFile(path, None, None)
        self.start = 0
        """The first line that is held, from 0."""
        self.features = Features.of(Text.of([])).part(0, 0)

    def reach(self, end: int) -> None:
        """Reads on until the line before `end` is held, or the file has ended."""
        while self.start + len(self.features) < end and (count := self._file.fill()):
            lines, _ = self._file.take(min(count, ROWS))
            self.features = self.features.then(Features.of(Text.of(lines), names=True))

    def leave(self, start: int) -> None:
        """Lets go of the lines before `start`."""
        self.features = self.features.part(max(0, start - self.start), len(self.features))
        self.start = max(start, self.start)


def where_they_part(src_path: str, tgt_path: str, src_count: int, tgt_count: int) -> Place:
    """The line from which on two files no longer belong together, as far as it can be told.

    Both are read again, with a stretch of lines in memory that is as long as the difference of the counts.

    Args:
        src_path: one file.
        tgt_path: the other.
        src_count: its lines.
        tgt_count: the other's lines.
    """
    line, sure = _first_shifted(src_path, tgt_path, src_count, tgt_count)
    counts = f"{src_count:,} lines here, {tgt_count:,} in {tgt_path}"
    if line is None:
        line = min(src_count, tgt_count)
        return Place(src_path, line + 1, text=f"{counts}; up to the end of the shorter one they may belong together")
    src, tgt = (excerpt(_line(path, line), width=WIDTH) for path in (src_path, tgt_path))
    how = "" if sure else "perhaps "
    return Place(src_path, line + 1, text=f"{counts}; they part {how}near line {line + 1:,}: {src} ||| {tgt}")


def _line(path: str, number: int) -> str:
    """A line of a file, from 0."""
    file = TextFile(path, None, None)
    while count := file.fill():
        lines, _ = file.take(count)
        if number < count:
            return lines[number]
        number -= count
    return ""


def _shifts(difference: int) -> list[int]:
    around = {0, difference if abs(difference) <= MOST else 0}
    return sorted({centre + near for centre in around for near in range(-NEARBY, NEARBY + 1)} - {0})


def _first_shifted(src_path: str, tgt_path: str, src_count: int, tgt_count: int) -> tuple[int | None, bool]:
    """The line, from 0, from which on a shift is better than none, and whether that is sure."""
    src, tgt = _Tape(src_path), _Tape(tgt_path)
    difference = tgt_count - src_count
    shifts = _shifts(difference)
    low, high = min(shifts), max(shifts)
    likeness: Likeness | None = None
    ahead = best = 0.0  # of no shift over the whole difference, summed up to here; and the most of it so far
    best_line = 0
    for first in range(0, src_count, ROWS):
        last = min(src_count, first + ROWS + WINDOW + LASTING)
        src.reach(last)
        tgt.reach(last + high)
        src.leave(first - WINDOW)
        tgt.leave(first - WINDOW + low)
        likeness = likeness or Likeness.learn(src.features, tgt.features)
        begin = src.start
        plain, *others = (
            shifted_scores(likeness, src.features, tgt.features, 0, last - begin, shift + begin - tgt.start)
            for shift in [0, *shifts]
        )
        found = [_first_lasting(plain, shifted) for shifted in others]
        start = min((place for place in found if place is not None), default=None)
        if start is not None:
            # Several shifts may be better there, if they are much alike.
            best_shift = max(others, key=lambda shifted: float((shifted - plain)[start : start + LASTING].sum()))
            return begin + first_shifted(plain, best_shift, start, WINDOW), True
        if difference in shifts:
            here = slice(first - begin, min(src_count, first + ROWS) - begin)
            sums = ahead + np.cumsum(plain[here] - others[shifts.index(difference)][here])
            if len(sums) and sums.max() > best:
                best, best_line = float(sums.max()), first + int(sums.argmax()) + 1
            ahead = float(sums[-1])
    # From the best line on the shift by the whole difference is better by so much.
    return (best_line, False) if best - ahead > BETTER and best_line < min(src_count, tgt_count) else (None, False)


def _first_lasting(plain: NDArray[np.float64], shifted: NDArray[np.float64]) -> int | None:
    """The first pair of the first window in which a shift is better, and behind which it stays better."""
    total = np.concatenate([[0.0], np.cumsum(shifted - plain)])
    starts = np.arange(max(0, len(plain) - WINDOW + 1))
    after = starts + WINDOW
    later = np.minimum(after + LASTING, len(plain))
    lasting = (total[later] - total[after] > SURE) | (later - after < WINDOW)
    found = np.flatnonzero((total[after] - total[starts] > SURE) & lasting)
    return int(found[0]) if len(found) else None
