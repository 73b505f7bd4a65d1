"""What is normal in a corpus: learned from a sample of it, so that each pair can be told from the usual ones."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.reading import SplitReader
from nmtkit.diagnosis.characters import TextArrays
from nmtkit.diagnosis.foreign import OwnWords
from nmtkit.diagnosis.language import TELLING, Languages, own_scripts

SAMPLE = 20_000
"""Pairs of a sample, about."""
SAMPLE_CHARACTERS = 8_000_000
"""Characters of a sample of long texts, about."""
FEW_PAIRS = 50
"""From fewer pairs nothing is learned about lengths."""
SOFTENING = 15
"""Characters that are added to both sides before they are compared: "Yes." may well be 10 characters elsewhere."""
LEAST_FACTOR = 3.5
"""A side must be so many times longer than usual, compared with the other, to be far too long."""
SPREADS = 6.0
"""And so many times further from the middle than most pairs are."""
OUTER_FACTOR = 12.0
"""Where nothing could be learned, a side so many times longer than the other is too long."""
LENGTH_FACTOR = 6
"""A line is far too long if it is so many times longer than all but one of a thousand lines..."""
LEAST_LENGTH = 1000
"""...and has at least so many characters."""
FEW_SWAPPED = 10
"""Fewer swapped pairs do not make two swapped files."""


@dataclass(frozen=True)
class Norms:
    """What is normal in a corpus of translations or summaries."""

    languages: Languages | None
    """How to tell its sides apart, if that could be learned."""
    src_scripts: frozenset[int]
    """The scripts of the sources; empty if there is too little to tell by."""
    tgt_scripts: frozenset[int]
    """The scripts of the targets."""
    src_words: OwnWords | None
    """How to tell other languages from that of the sources, if enough could be learned."""
    tgt_words: OwnWords | None
    """The same of the targets."""
    ratio: float
    """The median of the log of target over source in (softened) characters."""
    spread: float
    """How far from it a pair may be."""
    src_longest: int
    """Characters of a source above which it is far too long."""
    tgt_longest: int
    """The same of a target."""

    def far_ratio(self, src: TextArrays, tgt: TextArrays) -> NDArray[np.bool_]:
        """For each pair, whether one side is far longer than the other, compared with what is usual."""
        return np.abs(log_ratios(src, tgt) - self.ratio) > self.spread

    def are_swapped(self, texts: Iterable[tuple[TextArrays, TextArrays | None]]) -> bool:
        """Whether most lines of another split, or of a sample of it, are in the language of the other side."""
        swapped = lines = 0
        for src, tgt in texts:
            if self.languages is not None and tgt is not None:
                long = (src.lengths >= TELLING) & (tgt.lengths >= TELLING)
                swapped += int((self.languages.doubts(src, tgt)[0] & long).sum())
                lines += int(long.sum())
        return swapped >= FEW_SWAPPED and swapped > lines / 2

    def turned(self) -> "Norms":
        """What is normal where source and target are swapped throughout; that is told once, not for each line."""
        return Norms(
            languages=None,
            src_scripts=self.tgt_scripts,
            tgt_scripts=self.src_scripts,
            src_words=self.tgt_words,
            tgt_words=self.src_words,
            ratio=-self.ratio,
            spread=self.spread,
            src_longest=self.tgt_longest,
            tgt_longest=self.src_longest,
        )


def log_ratios(src: TextArrays, tgt: TextArrays) -> NDArray[np.float64]:
    """`(n,)`: log of target over source, in softened characters."""
    return np.log((tgt.lengths + SOFTENING) / (src.lengths + SOFTENING))


def first_texts(reader: SplitReader) -> Iterator[tuple[TextArrays, TextArrays | None]]:
    """The first pairs of each file of a split, `SAMPLE` in all or fewer long ones; only those that can be read."""
    for part in range(reader.parts):
        left, characters = (max(1, most // reader.parts) for most in (SAMPLE, SAMPLE_CHARACTERS))
        for block in reader.ahead(part):
            rows = [row for row in islice(range(len(block)), left) if row not in block.unread]
            left -= len(block)
            src = TextArrays.of([block.src[row] for row in rows])
            tgt = None if block.tgt is None else TextArrays.of([block.tgt[row] for row in rows])
            yield src, tgt
            characters -= len(src.codes) + (len(tgt.codes) if tgt is not None else 0)
            if left <= 0 or characters <= 0:
                break


def learn_norms(reader: SplitReader) -> Norms:
    """Learns from the first pairs of each file of a split."""
    texts = list(first_texts(reader))
    pairs = [(src, tgt) for src, tgt in texts if tgt is not None]
    ratios = np.concatenate(
        [np.empty(0), *(log_ratios(src, tgt)[(src.words > 0) & (tgt.words > 0)] for src, tgt in pairs)]
    )
    ratio, spread = 0.0, np.log(OUTER_FACTOR)
    if len(ratios) >= FEW_PAIRS:
        ratio = float(np.median(ratios))
        usual = 1.4826 * float(np.median(np.abs(ratios - ratio)))  # the standard deviation, were they normal
        spread = max(np.log(LEAST_FACTOR), SPREADS * usual)
    return Norms(
        languages=Languages.learn(pairs),
        src_scripts=_scripts([src for src, _ in texts]),
        tgt_scripts=_scripts([tgt for _, tgt in pairs]),
        src_words=OwnWords.learn([src for src, _ in texts]),
        tgt_words=OwnWords.learn([tgt for _, tgt in pairs]),
        ratio=ratio,
        spread=float(spread),
        src_longest=_longest([src for src, _ in texts]),
        tgt_longest=_longest([tgt for _, tgt in pairs]),
    )


def _scripts(texts: list[TextArrays]) -> frozenset[int]:
    letters = Counter[int]()
    for text in texts:
        letters.update({script: int(counts.sum()) for script, counts in text.letters.items()})
    enough = sum(len(text.lines) for text in texts) >= FEW_PAIRS
    return own_scripts(dict(letters)) if enough else frozenset()


def _longest(texts: list[TextArrays]) -> int:
    lengths = np.concatenate([np.zeros(1, dtype=np.int64), *(text.lengths for text in texts)])
    enough = len(lengths) > FEW_PAIRS
    most = float(np.quantile(lengths, 0.999)) if enough else 0.0
    return max(LEAST_LENGTH, round(LENGTH_FACTOR * most)) if enough else 10 * LEAST_LENGTH
