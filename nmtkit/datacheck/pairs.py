"""Finds faulty pairs: empty, identical, of unusual length, or in another script or language."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text import faults
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.faults import FaultKind
from nmtkit.data.text.hashes import Mask
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.reading import SplitReader
from nmtkit.datacheck.characters import TextArrays
from nmtkit.datacheck.language import Languages, in_foreign_script, main_scripts

SAMPLE_PAIRS, SAMPLE_CHARACTERS = 20_000, 8_000_000
"""Approximate size of a sample in pairs, and in characters for long texts."""
LANGUAGE_SAMPLE = 1000
"""Maximum number of pairs for learning languages."""
MIN_PAIRS = 50
"""Minimum number of pairs for learning anything."""
ADDED_CHARACTERS = 15
"""Number of characters added to both lengths before comparison: a translation of "Yes." may have 10 characters."""
MIN_RATIO_FACTOR, MAX_DEVIATIONS = 3.5, 6.0
"""A length ratio is a fault if it is off the median by more than this factor and this many standard deviations."""
MAX_RATIO = 12.0
"""Maximum length ratio if there are too few pairs to learn it."""
LENGTH_FACTOR, MIN_LENGTH = 6, 1000
"""A line is far too long if it exceeds the 99.9th percentile by this factor and has more than this
many characters.
"""
DEFAULT_LONGEST = 10 * MIN_LENGTH
"""Maximum characters per line if there are too few lines to learn it."""
MIN_IDENTICAL_WORDS = 3
"""Minimum number of words at which identical sides are a fault; shorter lines may be names, numbers or "OK"."""
LONG_SOURCE, SHORT_SHARE = 60, 0.15
"""A one-word target is nearly empty if its source has at least this many characters and the target less
than this share of the expected characters.
"""


@dataclass(frozen=True)
class UsualPairs:
    """Typical values of a corpus, learned from a sample; scripts and lengths by side, "src" and "tgt"."""

    scripts: dict[str, frozenset[int]]
    """Scripts of a side; empty if the sample is too small."""
    longest: dict[str, int]
    """Number of characters above which a line is far too long."""
    log_ratio: float
    """Median log ratio of target to source characters."""
    max_deviation: float
    """Maximum deviation of a pair's log ratio from the median."""
    languages: Languages | None
    """Languages of the sides; None if the sample is too small."""
    summaries: bool
    """Whether targets are summaries, which may be shorter by any factor."""

    @classmethod
    def learn(cls, sample: Mapping[str, TextArrays], summaries: bool) -> "UsualPairs":
        """Learns from the texts that `read_sample` returns."""
        scripts: dict[str, frozenset[int]] = {}
        longest: dict[str, int] = {}
        for side in ("src", "tgt"):
            scripts[side] = frozenset()
            longest[side] = DEFAULT_LONGEST
            text = sample.get(side)
            if text is None or len(text.lines) < MIN_PAIRS:
                continue
            letters = Counter(
                {script: int(counts.sum()) for script, counts in text.letters.items()}
            )
            scripts[side] = main_scripts(letters)
            longest[side] = max(
                MIN_LENGTH, round(LENGTH_FACTOR * float(np.quantile(text.lengths, 0.999)))
            )
        log_ratio = 0.0
        max_deviation = float(np.log(MAX_RATIO))
        if "tgt" in sample:
            src, tgt = sample["src"], sample["tgt"]
            log_ratios = _log_ratios(src, tgt)[(src.words > 0) & (tgt.words > 0)]
            if len(log_ratios) >= MIN_PAIRS:
                log_ratio = float(np.median(log_ratios))
                # Estimates the standard deviation from the median absolute deviation, which is robust to outliers.
                deviation = 1.4826 * float(np.median(np.abs(log_ratios - log_ratio)))
                max_deviation = max(float(np.log(MIN_RATIO_FACTOR)), MAX_DEVIATIONS * deviation)
        languages = None
        if len(sample["src"].lines) >= MIN_PAIRS:
            languages = Languages(thin_out(sample, LANGUAGE_SAMPLE))
        return cls(
            scripts=scripts,
            longest=longest,
            log_ratio=log_ratio,
            max_deviation=max_deviation,
            languages=languages,
            summaries=summaries,
        )


def read_sample(reader: SplitReader) -> dict[str, TextArrays]:
    """Returns "src" and, if present, "tgt" of the first readable pairs in each file of a split."""
    lines: dict[str, list[str]] = {"src": []}
    for part in range(reader.parts):
        pairs_left = max(1, SAMPLE_PAIRS // reader.parts)
        characters_left = max(1, SAMPLE_CHARACTERS // reader.parts)
        for block in reader.peek(part):
            sides = {"src": block.src}
            if block.tgt is not None:
                sides["tgt"] = block.tgt
            rows = [
                row for row in islice(range(len(block)), pairs_left) if row not in block.unreadable
            ]
            for side, block_lines in sides.items():
                chosen = [block_lines[row] for row in rows]
                lines.setdefault(side, []).extend(chosen)
                characters_left -= sum(map(len, chosen))
            pairs_left -= len(block)
            if pairs_left <= 0 or characters_left <= 0:
                break
    return {side: TextArrays.of(side_lines) for side, side_lines in lines.items()}


def thin_out(sample: Mapping[str, TextArrays], most: int) -> dict[str, TextArrays]:
    """Thins out a sample evenly to at most `most` pairs."""
    step = max(1, math.ceil(len(sample["src"].lines) / most))
    return {side: TextArrays.of(text.lines[::step]) for side, text in sample.items()}


def _log_ratios(src: TextArrays, tgt: TextArrays) -> NDArray[np.float64]:
    """Returns the log ratios of target to source characters, `(n,)`."""
    return np.log((tgt.lengths + ADDED_CHARACTERS) / (src.lengths + ADDED_CHARACTERS))


def examine_pairs(
    block: Block, texts: Mapping[str, TextArrays], usual: UsualPairs, language_pairs: int
) -> Mask:
    """Adds the pairs' faults to a block.

    Args:
        block: the block that receives the faults.
        texts: the block's sides, "src" and optionally "tgt".
        usual: typical values of the corpus.
        language_pairs: number of leading pairs whose languages are examined.

    Returns:
        Whether each pair is readable and has no empty side, `(n,)`.
    """

    def add(kind: FaultKind, mask: Mask, side: str = "") -> None:
        block.add(kind, np.flatnonzero(mask), partial(block.side, side) if side else None)

    empty = block.empty()
    add(faults.EMPTY, empty)
    usable = ~empty
    usable[list(block.unreadable)] = False
    nothing = np.zeros_like(usable)

    too_long = {side: text.lengths > usual.longest[side] for side, text in texts.items()}
    add(faults.LENGTH, too_long["src"], "src")
    identical = nothing
    if block.tgt is not None:
        src, tgt = texts["src"], texts["tgt"]
        add(faults.LENGTH, too_long["tgt"] & ~too_long["src"], "tgt")

        equal = [comparable(a) == comparable(b) for a, b in zip(block.src, block.tgt, strict=True)]
        identical = usable & np.array(equal, dtype=bool)
        add(
            faults.IDENTICAL,
            identical & (src.word_counts() >= MIN_IDENTICAL_WORDS) & (src.letter_counts() > 0),
        )

        short = usable & ((tgt.letter_counts() + tgt.digits == 0) | (tgt.word_counts() <= 1))
        if not usual.summaries:
            expected_length = np.exp(usual.log_ratio) * src.lengths
            short &= (src.lengths >= LONG_SOURCE) & (tgt.lengths < SHORT_SHARE * expected_length)
            uneven = np.abs(_log_ratios(src, tgt) - usual.log_ratio) > usual.max_deviation
            add(faults.RATIO, usable & ~short & uneven)
        add(faults.SHORT_TARGET, short)

    swapped = nothing
    other_side = dict.fromkeys(texts, nothing)
    third = dict.fromkeys(texts, nothing)
    if usual.languages is not None:
        doubts = usual.languages.doubts(texts, language_pairs)
        swapped, other_side, third = doubts.swapped, doubts.other_side, doubts.third
    add(faults.SWAPPED, swapped)
    for side, text in texts.items():
        other_script = in_foreign_script(text, usual.scripts[side]) & ~swapped
        right_script = usable & ~identical & ~other_script
        add(faults.OTHER_SCRIPT, usable & other_script, side)
        add(faults.OTHER_SIDES_LANGUAGE, right_script & other_side[side], side)
        add(faults.FOREIGN_LANGUAGE, right_script & third[side], side)
    return usable
