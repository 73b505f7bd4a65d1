"""What a split is made of: histograms of lengths and ratios, letters by script."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from nmtkit.diagnosis.characters import SCRIPTS, Text
from nmtkit.diagnosis.findings import Side, SplitDiagnosis

MOST = 1000
"""The last key of a histogram of lengths; what is longer is counted there."""
MOST_RATIO = 50
"""The last key of the histogram of ratios, in tenths."""


def count(split: SplitDiagnosis, src: Text, tgt: Text | None) -> None:
    """Counts the lines of a block in the statistics of its split."""
    split.pairs += len(src.lines)
    _side(split.src, src)
    if tgt is not None:
        _side(split.tgt, tgt)
        both = (src.words > 0) & (tgt.words > 0)
        _count(split.ratios, np.minimum(tgt.words[both] * 10 // src.words[both], MOST_RATIO))


def _side(side: Side, text: Text) -> None:
    _count(side.words, np.minimum(text.words, MOST))
    _count(side.characters, np.minimum(text.lengths // 10, MOST))
    for script, letters in text.letters.items():
        side.scripts[SCRIPTS[script]] += int(letters.sum())


def _count(histogram: Counter[int], keys: NDArray[np.int64]) -> None:
    for key, number in enumerate(np.bincount(keys).tolist()):
        if number:
            histogram[key] += number
