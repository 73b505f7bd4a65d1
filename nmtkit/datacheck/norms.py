"""The norms of a corpus, learned from a sample, and the pairs that deviate from them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import eq

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text import faults
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.faults import FaultKind
from nmtkit.data.text.hashes import Mask
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.reading import SplitReader
from nmtkit.datacheck.characters import TextArrays
from nmtkit.datacheck.language import MIN_CHARACTERS, KnownWords, Languages, in_foreign_script, main_scripts

SAMPLE, SAMPLE_CHARACTERS = 20_000, 8_000_000
"""Size of a sample, about: in pairs, and in characters where texts are long."""
MIN_PAIRS = 50
"""The least pairs that lengths and scripts are learned from."""
ADDED_CHARACTERS = 15
"""Characters that are added to both sides before they are compared: "Yes." may well be 10 characters elsewhere."""
LEAST_FACTOR, SPREADS = 3.5, 6.0
"""A side is far too long if, compared with the other, it is so many times longer than usual, and so many standard
deviations away from the median."""
MAX_LENGTH_RATIO = 12.0
"""Where nothing could be learned, a side so many times longer than the other is too long."""
LENGTH_FACTOR, MIN_LENGTH = 6, 1000
"""A line is far too long if it is so many times longer than all but one of a thousand lines, and has so many
characters."""
MIN_SWAPPED = 10
"""The least swapped pairs that make two swapped files."""
MIN_IDENTICAL_WORDS = 3
"""The least words of two equal sides that are a fault: fewer may be names, numbers, "OK"."""
LONG_SOURCE, SHORT_SHARE = 60, 0.15
"""A target of one word is nearly empty if its source has so many characters, and it has less than this share of the
characters to be expected."""


@dataclass(frozen=True)
class SideNorms:
    """The norms of one side."""

    scripts: frozenset[int]
    """The scripts of the side; empty if the sample is too small."""
    words: KnownWords | None
    """To recognize other languages, if the sample is large enough."""
    longest: int
    """Characters above which a line is far too long."""

    @classmethod
    def learn(cls, texts: list[TextArrays]) -> "SideNorms":
        """Learns from a sample."""
        words = KnownWords.learn(texts)
        lengths = np.concatenate([np.zeros(1, dtype=np.int64), *(text.lengths for text in texts)])
        if len(lengths) <= MIN_PAIRS:
            return cls(frozenset(), words, 10 * MIN_LENGTH)
        letters = Counter[int]()
        for text in texts:
            letters.update({script: int(counts.sum()) for script, counts in text.letters.items()})
        longest = round(LENGTH_FACTOR * float(np.quantile(lengths, 0.999)))
        return cls(main_scripts(letters), words, max(MIN_LENGTH, longest))


@dataclass(frozen=True)
class Norms:
    """The norms of a corpus of translations or summaries."""

    languages: Languages | None
    """To tell its sides apart, if that could be learned."""
    src: SideNorms
    tgt: SideNorms
    ratio: float
    """The median of the log of target over source in (softened) characters."""
    spread: float
    """How far from it a pair may be."""

    def are_swapped(self, texts: Iterable[tuple[TextArrays, TextArrays | None]]) -> bool:
        """Whether most lines of another split, or of a sample of it, are in the language of the other side."""
        swapped = lines = 0
        for src, tgt in texts:
            if self.languages is not None and tgt is not None:
                long = (src.lengths >= MIN_CHARACTERS) & (tgt.lengths >= MIN_CHARACTERS)
                swapped += int((self.languages.doubts(src, tgt)[0] & long).sum())
                lines += int(long.sum())
        return swapped >= MIN_SWAPPED and swapped > lines / 2

    def swapped(self) -> "Norms":
        """The norms of files whose source and target are swapped throughout."""
        return replace(self, languages=None, src=self.tgt, tgt=self.src, ratio=-self.ratio)


def first_texts(reader: SplitReader) -> Iterator[tuple[TextArrays, TextArrays | None]]:
    """The first pairs of each file of a split, `SAMPLE` in all or fewer long ones; only those that can be read."""
    for part in range(reader.parts):
        left, characters = (max(1, most // reader.parts) for most in (SAMPLE, SAMPLE_CHARACTERS))
        for block in reader.peek(part):
            rows = [row for row in islice(range(len(block)), left) if row not in block.unreadable]
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
    logs = (_log_ratios(src, tgt)[(src.words > 0) & (tgt.words > 0)] for src, tgt in pairs)
    ratios = np.concatenate([np.empty(0), *logs])
    ratio, spread = 0.0, float(np.log(MAX_LENGTH_RATIO))
    if len(ratios) >= MIN_PAIRS:
        ratio = float(np.median(ratios))
        deviation = 1.4826 * float(np.median(np.abs(ratios - ratio)))  # as of a normal distribution
        spread = max(float(np.log(LEAST_FACTOR)), SPREADS * deviation)
    src, tgt = SideNorms.learn([src for src, _ in texts]), SideNorms.learn([tgt for _, tgt in pairs])
    return Norms(Languages.learn(pairs), src, tgt, ratio, spread)


def _log_ratios(src: TextArrays, tgt: TextArrays) -> NDArray[np.float64]:
    """`(n,)`: log of target over source, in softened characters."""
    return np.log((tgt.lengths + ADDED_CHARACTERS) / (src.lengths + ADDED_CHARACTERS))


def examine_pairs(block: Block, src: TextArrays, tgt: TextArrays | None, norms: Norms, summaries: bool) -> Mask:
    """Adds the faults of its pairs to a block: empty, identical, far too long, in the wrong language.

    `summaries` tells whether the targets are summaries of the sources. Returns for each pair whether it could be read
    and no side of it is empty.
    """

    def add(kind: FaultKind, mask: Mask, side: str = "") -> None:
        block.add(kind, np.flatnonzero(mask), partial(block.side, side) if side else None)

    empty = block.empty()
    add(faults.EMPTY, empty)
    usable = ~empty
    usable[list(block.unreadable)] = False

    sides = [("src", src, norms.src)] + ([] if tgt is None else [("tgt", tgt, norms.tgt)])
    other_script = {side: in_foreign_script(text, own.scripts) for side, text, own in sides}
    foreign = {side: own.words.foreign(text) if own.words else np.zeros_like(empty) for side, text, own in sides}
    too_long = src.lengths > norms.src.longest
    add(faults.LENGTH, too_long, "src")
    if tgt is not None:
        add(faults.LENGTH, (tgt.lengths > norms.tgt.longest) & ~too_long, "tgt")
        same = map(eq, map(comparable, block.src), map(comparable, block.tgt or []))
        identical = usable & np.fromiter(same, dtype=bool, count=len(block))
        add(faults.IDENTICAL, identical & (src.word_counts() >= MIN_IDENTICAL_WORDS) & (src.letter_counts() > 0))
        short = usable & ((tgt.letter_counts() + tgt.digits == 0) | (tgt.word_counts() <= 1))
        if not summaries:
            short &= (src.lengths >= LONG_SOURCE) & (tgt.lengths < SHORT_SHARE * np.exp(norms.ratio) * src.lengths)
        add(faults.SHORT_TARGET, short)
        if not summaries:
            add(faults.RATIO, usable & ~short & (np.abs(_log_ratios(src, tgt) - norms.ratio) > norms.spread))
        swapped, *wrong = (
            norms.languages.doubts(src, tgt) if norms.languages else [np.zeros(len(block), dtype=bool)] * 3
        )
        add(faults.SWAPPED, swapped)
        for side, in_others in zip(("src", "tgt"), wrong, strict=True):
            add(faults.LANGUAGE, in_others & ~identical & ~other_script[side], side)
            other_script[side] &= ~swapped
            foreign[side] &= ~(identical | swapped | in_others)
    for side, mask in other_script.items():
        add(faults.SCRIPT, mask & usable, side)
        add(faults.FOREIGN, foreign[side] & usable & ~mask, side)
    return usable
