"""Finds misaligned lines: one side has an extra line, so all pairs after it are wrong.

Corresponding lines have similar lengths, end in the same punctuation mark and contain the same
numbers. This is weak evidence for one pair but strong evidence for a window of pairs, compared with
the pairs that a shift by a few lines would produce. All scores are log-likelihood ratios in nats
between lines that correspond and lines that do not.
"""

from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text.faults import FaultLocation, FileFault, RowIndices, excerpt
from nmtkit.data.text.files.text_file import BLOCK_LINES, read_lines_lenient
from nmtkit.datacheck.characters import DIGIT, TextArrays

_MARKS = ("?\uff1f\u061f", "!\uff01", ".\u3002\u2026\u0964", ":\uff1a", ",\uff0c\u3001")
_DIGIT_WEIGHTS = np.array(
    [40503, 12983, 60013, 25189, 7919, 51407, 33331, 18013, 45007, 56093, *[1] * 6], np.int64
)
SAME_MARK_RATE = 0.9
"""Probability that corresponding lines end in the same kind of mark."""
SAME_NUMBERS, OTHER_NUMBERS = 4.0, -1.0
"""Scores of equal and different numbers in nats."""

# For files with the same number of lines.
WINDOWS, SURE_WITHIN = (48, 256), 30.0
"""Number of pairs per window, and the margin in nats by which a shift must score better over a window."""
SHIFTS = (-3, -2, -1, 1, 2, 3)
"""The shifts that are tried."""

# For files with different numbers of lines.
MAX_SHIFT = 8
"""Maximum distance of a tried shift from zero, or from the difference between the line counts."""
MAX_DIFFERENCE = 100_000
"""Maximum difference between line counts that is tried; more lines are unlikely to be missing in one place."""
WINDOW, LASTING, SURE = 64, 1024, 15.0
"""Number of pairs in a window, number of pairs after the window, and the margin in nats required over
either span. In sorted files, a shift may score better over a window alone, because neighbouring lines are similar.
"""
MIN_GAIN = 6.0
"""Margin in nats required of a shift from some line to the end if no window is conclusive."""
LINE_WIDTH = 60
"""Maximum number of characters of a line to show."""


Features: TypeAlias = NDArray[np.float64]
"""`(n,3)`: features of n lines: log of the (smoothed) number of characters, kind of the final mark (0 if
there is none), and a weighted sum of the digits (0 if there are none).
"""


def line_features(text: TextArrays) -> Features:
    """Returns the features of lines."""
    last = text.codes[np.maximum(text.starts + text.lengths - 1, 0)]
    marks = np.zeros(len(last))
    for number, signs in enumerate(_MARKS, start=1):
        marks[np.isin(last, [ord(sign) for sign in signs])] = number
    numbers = np.zeros(len(last))
    digits = np.flatnonzero(text.kinds == DIGIT)
    np.add.at(numbers, text.line_of(digits), _DIGIT_WEIGHTS[text.codes[digits] & 15])
    return np.array([np.log(text.lengths + 15.0), marks, numbers]).T


@dataclass(frozen=True)
class PairScorer:
    """Scores how likely two lines are to correspond."""

    ratio: float
    """Mean log ratio of target to source characters."""
    near: float
    """Standard deviation of the log ratio for corresponding lines."""
    far: float
    """Standard deviation of the log ratio for lines that do not correspond."""
    marks: NDArray[np.float64]
    """Score in nats of equal marks of each kind, followed by the score of different marks."""

    @classmethod
    def learn(cls, src: Features, tgt: Features) -> "PairScorer":
        """Learns from lines of both sides, which need not correspond."""
        (src_lengths, *_), (tgt_lengths, tgt_marks, _) = src.T, tgt.T
        far = max(0.1, float(np.hypot(src_lengths.std(), tgt_lengths.std())))
        shares = (np.bincount(tgt_marks.astype(int), minlength=len(_MARKS) + 1) + 1) / (
            len(tgt) + len(_MARKS) + 1
        )
        differ = np.log((1 - SAME_MARK_RATE) / (1 - (shares**2).sum()))
        marks = np.append(np.log(SAME_MARK_RATE / shares), differ)
        return cls(float(tgt_lengths.mean() - src_lengths.mean()), min(0.3, 0.6 * far), far, marks)

    def scores(self, src: Features, tgt: Features) -> NDArray[np.float64]:
        """Returns the score of each pair in nats, `(n,)`."""
        (src_lengths, src_marks, src_numbers), (tgt_lengths, tgt_marks, tgt_numbers) = src.T, tgt.T
        apart = (tgt_lengths - src_lengths - self.ratio) ** 2
        scores: NDArray[np.float64] = np.maximum(
            -4.0, np.log(self.far / self.near) + apart / 2 * (self.far**-2 - self.near**-2)
        )
        scores += self.marks[
            np.where(src_marks == tgt_marks, tgt_marks, len(_MARKS) + 1).astype(int)
        ]
        numbered = (src_numbers > 0) | (tgt_numbers > 0)
        scores += numbered * np.where(src_numbers == tgt_numbers, SAME_NUMBERS, OTHER_NUMBERS)
        return scores


def _shifted_scores(
    scorer: PairScorer, src: Features, tgt: Features, count: int, shift: int
) -> NDArray[np.float64]:
    """Scores the first `count` source lines against target lines shifted by `shift`, `(count,)`.

    Source line i is paired with target line i + `shift`; the score is 0 if there is no such line.
    """
    start, end = max(0, -shift), min(count, len(tgt) - shift)
    scores = np.zeros(count)
    if start < end:
        scores[start:end] = scorer.scores(src[start:end], tgt[start + shift : end + shift])
    return scores


def shifted_pairs(src_text: TextArrays, tgt_text: TextArrays) -> RowIndices:
    """Returns the pairs of a block in windows where a shift scores better."""
    src, tgt = line_features(src_text), line_features(tgt_text)
    scorer, count = PairScorer.learn(src, tgt), len(src)
    plain = _shifted_scores(scorer, src, tgt, count, 0)
    others = [_shifted_scores(scorer, src, tgt, count, shift) for shift in SHIFTS]
    shifted = np.zeros(count, dtype=bool)
    for window in WINDOWS:
        if count < window:
            continue
        better = np.array([_gains(plain, other, window) for other in others])
        starts = np.flatnonzero(better.max(axis=0) > SURE_WITHIN)
        best = better.argmax(axis=0)[starts]
        # Adjacent windows with the same shift form one stretch, whose ends also contain correct pairs.
        cuts = np.flatnonzero((np.diff(starts) > 1) | (np.diff(best) != 0)) + 1
        for stretch, which in zip(np.split(starts, cuts), np.split(best, cuts), strict=True):
            if len(stretch):
                start, end = int(stretch[0]), int(stretch[-1]) + window
                low, high = _best_stretch((others[which[0]] - plain)[start:end])
                shifted[start + low : start + high] = True
    return np.flatnonzero(shifted)


def _best_stretch(scores: NDArray[np.float64]) -> tuple[int, int]:
    """Returns the start and end of the span with the largest sum."""
    total = np.concatenate([[0.0], np.cumsum(scores)])
    end = int((total - np.minimum.accumulate(total)).argmax())
    return int(total[: end + 1].argmin()), end


def _gains(
    plain: NDArray[np.float64], shifted: NDArray[np.float64], window: int
) -> NDArray[np.float64]:
    """Returns each window's gain from a shift in nats; 0 if shifted lines do not correspond either."""
    total = np.concatenate([[[0.0], [0.0]], np.cumsum([shifted, plain], axis=1)], axis=1)
    after, before = total[:, window:] - total[:, :-window]
    return np.where(after > SURE_WITHIN / 2, after - before, 0.0)


class _Tape:
    """The features of a span of lines in a file."""

    def __init__(self, path: str) -> None:
        self._lines = read_lines_lenient(path)
        self.start = 0
        """First line of the span, counted from 0."""
        self.features = np.empty((0, 3))

    def move(self, start: int, end: int) -> None:
        """Reads up to line `end` (exclusive) or the end of the file, and drops lines before `start`."""
        while (missing := end - self.start - len(self.features)) > 0:
            lines = list(islice(self._lines, max(missing, BLOCK_LINES)))
            if not lines:
                break
            self.features = np.concatenate([self.features, line_features(TextArrays.of(lines))])
        self.features = self.features[max(0, start - self.start) :]
        self.start = max(start, self.start)


def first_mismatch(fault: FileFault) -> FaultLocation:
    """Describes where a source and target with different line counts probably stop matching.

    Reads both files again. The number of lines held in memory grows with the difference between the
    line counts, not with the files.
    """
    assert fault.line_counts is not None
    src_path, tgt_path = fault.location.file, fault.target_file
    src_count, tgt_count = fault.line_counts
    line, sure = _first_shifted(src_path, tgt_path, src_count, tgt_count)
    text = f"{src_count:,} lines here, but {tgt_count:,} in {tgt_path}; "
    if line is None:
        line = min(src_count, tgt_count)
        text += "the lines may match up to the end of the shorter file"
    else:
        lines = (
            next(islice(read_lines_lenient(path), line, None), "") for path in (src_path, tgt_path)
        )
        pair = " ||| ".join(excerpt(text, width=LINE_WIDTH) for text in lines)
        text += f"the files {'' if sure else 'may '}diverge near line {line + 1:,}: {pair}"
    return FaultLocation(src_path, line + 1, text=text)


def _first_shifted(
    src_path: str, tgt_path: str, src_count: int, tgt_count: int
) -> tuple[int | None, bool]:
    """Returns the line (counted from 0) after which a shift scores better, and whether this is certain."""
    src, tgt = _Tape(src_path), _Tape(tgt_path)
    difference = tgt_count - src_count
    centres = {0, difference if abs(difference) <= MAX_DIFFERENCE else 0}
    shifts = sorted(
        {centre + near for centre in centres for near in range(-MAX_SHIFT, MAX_SHIFT + 1)} - {0}
    )
    low, high = min(shifts), max(shifts)
    scorer: PairScorer | None = None
    # by how much unshifted pairs score better than pairs shifted by the whole difference: sum so far, and its maximum
    ahead = best = 0.0
    best_line = 0
    for first in range(0, src_count if tgt_count else 0, BLOCK_LINES):
        last = min(src_count, first + BLOCK_LINES + WINDOW + LASTING)
        src.move(first - WINDOW, last)
        tgt.move(first - WINDOW + low, last + high)
        scorer = scorer or PairScorer.learn(src.features, tgt.features)
        begin = src.start
        plain, *others = (
            _shifted_scores(
                scorer, src.features, tgt.features, last - begin, shift + begin - tgt.start
            )
            for shift in [0, *shifts]
        )
        starts = [_first_lasting(plain, shifted) for shifted in others]
        start = min((place for place in starts if place is not None), default=None)
        if start is not None:
            # Several shifts may be better in this window if lines are similar.
            best_shift = max(
                others, key=lambda shifted: float((shifted - plain)[start : start + LASTING].sum())
            )
            # The line is near this window; before it, unshifted pairs score better.
            around = slice(max(0, start - WINDOW), start + WINDOW)
            better_until = np.concatenate([[0.0], np.cumsum((plain - best_shift)[around])])
            return begin + around.start + int(better_until.argmax()), True
        if difference in shifts:
            here = slice(first - begin, min(src_count, first + BLOCK_LINES) - begin)
            sums = ahead + np.cumsum(plain[here] - others[shifts.index(difference)][here])
            if len(sums) and sums.max() > best:
                best, best_line = float(sums.max()), first + int(sums.argmax()) + 1
            ahead = float(sums[-1])
    # From the best line on, the shift by the whole difference scores better by `best - ahead`.
    return (
        (best_line, False)
        if best - ahead > MIN_GAIN and best_line < min(src_count, tgt_count)
        else (None, False)
    )


def _first_lasting(plain: NDArray[np.float64], shifted: NDArray[np.float64]) -> int | None:
    """Returns the first pair of the first window from which on a shift scores better."""
    total = np.concatenate([[0.0], np.cumsum(shifted - plain)])
    starts = np.arange(max(0, len(plain) - WINDOW + 1))
    after = starts + WINDOW
    later = np.minimum(after + LASTING, len(plain))
    lasting = (total[later] - total[after] > SURE) | (later - after < WINDOW)
    first = np.flatnonzero((total[after] - total[starts] > SURE) & lasting)[:1]
    return int(first[0]) if len(first) else None
