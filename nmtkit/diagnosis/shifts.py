"""Lines that are paired with the wrong neighbours: one side has a line more, and all pairs behind it are wrong.

Two lines that belong together are of like length, end in the same mark and hold the same numbers and names. None of
that says much about one pair; over a window of pairs it does, where it can be compared with what a shift by a few lines
would give. All scores are log-likelihood ratios in nats: two lines that belong together against two that do not.
"""

from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nmtkit.diagnosis.characters import DIGIT, Text

_MARKS = ("?\uff1f\u061f", "!\uff01", ".\u3002\u2026\u0964", ":\uff1a", ",\uff0c\u3001")
_DIGIT_WEIGHTS = np.array(
    [40503, 12983, 60013, 25189, 7919, 51407, 33331, 18013, 45007, 56093, *[1] * 6], dtype=np.int64
)
_BITS = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)
SAME_MARK = 0.9
"""How often the last mark of two lines that belong together is of the same kind."""
SAME_NUMBERS, OTHER_NUMBERS = 4.0, -1.0
"""What equal and different numbers say, in nats."""
SAME_NAME = 0.8
"""What a word in common says, in nats."""
MOST_NAMES = 4
"""More words in common say no more."""
NAME = 5
"""Words from this length on are compared, by their first letters: names, and words that the languages share."""


@dataclass(frozen=True)
class Features:
    """What n lines are compared by."""

    lengths: NDArray[np.float64]
    """`(n,)`: log of their (softened) characters."""
    marks: NDArray[np.int8]
    """`(n,)`: the kind of the mark they end in; 0 for none."""
    numbers: NDArray[np.int64]
    """`(n,)`: a sum over their digits; 0 for none."""
    names: NDArray[np.uint64]
    """`(n,)`: a bit for the hash of each longer word; 0 if that was not asked for."""

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, text: Text, names: bool = False) -> "Features":
        """Of some lines; with `names` also what takes longer."""
        last = text.codes[np.maximum(text.starts + text.lengths - 1, 0)]
        marks = np.zeros(len(last), dtype=np.int8)
        for number, signs in enumerate(_MARKS, start=1):
            marks[np.isin(last, [ord(sign) for sign in signs])] = number
        numbers = np.zeros(len(last), dtype=np.int64)
        digits = np.flatnonzero(text.kinds == DIGIT)
        np.add.at(numbers, text.line_of(digits), _DIGIT_WEIGHTS[text.codes[digits] & 15])
        bits = np.zeros(len(last), dtype=np.uint64)
        if names:
            bits = np.array([_bits(line) for line in text.lines], dtype=np.uint64)
        return cls(np.log(text.lengths + 15.0), marks, numbers, bits)

    def part(self, start: int, end: int) -> "Features":
        """Some of the lines."""
        return Features(self.lengths[start:end], self.marks[start:end], self.numbers[start:end], self.names[start:end])

    def then(self, other: "Features") -> "Features":
        """These lines, and others behind them."""
        return Features(
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.marks, other.marks]),
            np.concatenate([self.numbers, other.numbers]),
            np.concatenate([self.names, other.names]),
        )


def _bits(line: str) -> int:
    bits = 0
    for word in line.split():
        if len(word) >= NAME:
            bits |= 1 << (crc32(word[: NAME - 1].lower().encode("utf-8", "surrogatepass")) & 63)
    return bits


@dataclass(frozen=True)
class Likeness:
    """How alike two lines are, as far as they speak for belonging together."""

    ratio: float
    """The usual log of target over source in characters."""
    near: float
    """The standard deviation of the ratio where two lines belong together."""
    far: float
    """The same where they do not."""
    marks: NDArray[np.float64]
    """What an equal mark of each kind says, in nats; the last is for marks that differ."""

    @classmethod
    def learn(cls, src: Features, tgt: Features) -> "Likeness":
        """Learns from lines of both sides; it does not matter whether they belong together."""
        far = max(0.1, float(np.hypot(src.lengths.std(), tgt.lengths.std())))
        shares = (np.bincount(tgt.marks, minlength=len(_MARKS) + 1) + 1) / (len(tgt) + len(_MARKS) + 1)
        differ = np.log((1 - SAME_MARK) / (1 - (shares**2).sum()))
        marks = np.append(np.log(SAME_MARK / shares), differ)
        return cls(float(tgt.lengths.mean() - src.lengths.mean()), min(0.3, 0.6 * far), far, marks)

    def scores(self, src: Features, tgt: Features) -> NDArray[np.float64]:
        """`(n,)`: what each pair says for belonging together, in nats."""
        apart = (tgt.lengths - src.lengths - self.ratio) ** 2
        scores: NDArray[np.float64] = np.maximum(
            -4.0, np.log(self.far / self.near) + apart / 2 * (self.far**-2 - self.near**-2)
        )
        scores += self.marks[np.where(src.marks == tgt.marks, tgt.marks, len(_MARKS) + 1)]
        numbered = (src.numbers > 0) | (tgt.numbers > 0)
        scores += numbered * np.where(src.numbers == tgt.numbers, SAME_NUMBERS, OTHER_NUMBERS)
        common = _BITS[(src.names & tgt.names).view(np.uint8)].reshape(len(scores), 8).sum(axis=1)
        scores += SAME_NAME * np.minimum(common, MOST_NAMES)
        return scores


def shifted_scores(
    likeness: Likeness, src: Features, tgt: Features, first: int, count: int, shift: int
) -> NDArray[np.float64]:
    """`(count,)`: scores of source lines with the target lines that stand `shift` lines further on; 0 if there is none.

    Args:
        likeness: how to compare.
        src: source lines.
        tgt: target lines; the lines of equal index are those that are paired.
        first: the first source line.
        count: how many.
        shift: how far.
    """
    start, end = max(first, -shift), min(first + count, len(tgt) - shift)
    scores = np.zeros(count)
    if start < end:
        scores[start - first : end - first] = likeness.scores(
            src.part(start, end), tgt.part(start + shift, end + shift)
        )
    return scores


def windows(scores: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The sum of the scores of each window; as many as fit in."""
    total: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(scores)])
    return total[window:] - total[:-window]


def first_shifted(plain: NDArray[np.float64], shifted: NDArray[np.float64], start: int, window: int) -> int:
    """The line, from 0, from which on a shift is better, near a window that shows it."""
    begin, end = max(0, start - window), min(len(plain), start + window)
    total = np.concatenate([[0.0], np.cumsum(plain[begin:end] - shifted[begin:end])])
    return begin + int(total.argmax())
