"""Which language a line is in, as far as the corpus itself can tell: by its script, and by its runs of three letters.

Nothing is known about any language. What belongs to a side is learned from a sample of the corpus, in which most lines
are taken to be right.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text import SCRIPTS
from nmtkit.diagnosis.characters import NEWLINE, TextArrays

BUCKETS = 1 << 16
"""Runs of three characters are counted by a hash of so many values."""
OWN_SHARE = 0.02
"""A script with at least this share of the letters of a side is one of its own."""
FEW_LETTERS = 3
"""Fewer letters of another script are a symbol or an initial."""
FEW_LATIN = 25
"""The same for Latin on a side that is not Latin: names and terms are longer, and every script stands beside them."""
FEW_LINES = 300
"""Fewer lines teach nothing about a language."""
SURE, VERY_SURE = 12.0, 25.0
"""Log-odds (in nats) at which a line speaks for a language: together with the other line of its pair, and alone."""
CLEAR, VERY_CLEAR = 0.5, 0.65
"""The part of the usual log-odds of a side, for each character, that such a line must reach as well."""
TELLING = 20
"""Shorter lines do not tell much about a language."""
SEPARABLE = 0.9
"""The share of a sample's lines that must be told right before any line is doubted."""


def own_scripts(letters: dict[int, int]) -> frozenset[int]:
    """The scripts of a side.

    Args:
        letters: letters of a sample of it, by the number of their script.
    """
    total = sum(letters.values())
    own = {script for script, count in letters.items() if count >= OWN_SHARE * total}
    japanese = {SCRIPTS.index(name) for name in ("Han", "Hiragana", "Katakana")}
    return frozenset(own | japanese if own & japanese and len(own & japanese) > 1 else own)


def in_other_script(text: TextArrays, own: frozenset[int]) -> NDArray[np.bool_]:
    """For each line, whether most of its letters are of a script that is not one of its side's own, if any is known."""
    if not own:
        return np.zeros(len(text.lines), dtype=bool)
    foreign = np.zeros(len(text.lines), dtype=bool)
    ours = sum((text.letters[script] for script in own if script in text.letters), start=np.zeros_like(text.lengths))
    for script, letters in text.letters.items():
        if script not in own:
            least, times = (FEW_LATIN, 10) if SCRIPTS[script] == "Latin" else (FEW_LETTERS, 3)
            foreign |= (letters >= least) & (letters > times * ours)
    return foreign


def _runs(text: TextArrays) -> NDArray[np.uint16]:
    """`(c - 2,)`: the hash of each run of three characters."""
    codes = text.codes
    mixed: NDArray[np.uint32] = codes[:-2] * np.uint32(0x9E3779B1)
    mixed += codes[1:-1] * np.uint32(0x85EBCA77)
    mixed += codes[2:] * np.uint32(0xC2B2AE3D)
    mixed >>= np.uint32(16)
    return mixed.astype(np.uint16)


@dataclass(frozen=True)
class Languages:
    """How to tell the two sides of a corpus apart."""

    odds: NDArray[np.float32]
    """`(BUCKETS,)`: log-odds of a run of three characters, source against target, in nats."""
    src_usual: float
    """The median log-odds of a character of a source line; above 0."""
    tgt_usual: float
    """The same of a target line; below 0."""

    @classmethod
    def learn(cls, texts: list[tuple[TextArrays, TextArrays]]) -> "Languages | None":
        """Learns from a sample; None if there are too few lines, or if the sides cannot be told apart."""
        sides = [[line for pair in texts for line in pair[side].lines] for side in (0, 1)]
        if len(sides[0]) < FEW_LINES:
            return None
        # Learned from every other line, measured on the rest: what was learned by heart would look right.
        shares = []
        for lines in sides:
            counts = np.bincount(_runs(TextArrays.of(lines[::2])), minlength=BUCKETS) + 0.5
            shares.append(np.log(counts / counts.sum()))
        learned = cls((shares[0] - shares[1]).astype(np.float32), 0.0, 0.0)
        usual = []
        for lines, sign in zip(sides, (1, -1), strict=True):
            text = TextArrays.of(lines[1::2])
            long = text.lengths >= TELLING
            scores = learned.scores(text)[long]
            if len(scores) < FEW_LINES // 4 or (scores * sign > 0).mean() < SEPARABLE:
                return None
            usual.append(float(np.median(scores / text.lengths[long])))
        return cls(learned.odds, usual[0], usual[1])

    def scores(self, text: TextArrays) -> NDArray[np.float64]:
        """`(n,)`: the log-odds of each line, in nats: above 0 it is rather a source, below 0 rather a target."""
        weights = np.zeros(len(text.codes), dtype=np.float32)
        weights[1:-1] = self.odds[_runs(text)]
        weights[text.kinds == NEWLINE] = 0
        return np.add.reduceat(weights, text.starts, dtype=np.float64)

    def doubts(
        self, src: TextArrays, tgt: TextArrays
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """For each pair, whether its sides are swapped; its source is in the targets' language; the reverse."""
        src_scores, tgt_scores = self.scores(src), self.scores(tgt)
        src_share = src_scores / (self.tgt_usual * np.maximum(src.lengths, 1))
        tgt_share = tgt_scores / (self.src_usual * np.maximum(tgt.lengths, 1))
        swapped = (src_scores < -SURE) & (src_share > CLEAR) & (tgt_scores > SURE) & (tgt_share > CLEAR)
        src_wrong = (src_scores < -VERY_SURE) & (src_share > VERY_CLEAR) & ~swapped
        tgt_wrong = (tgt_scores > VERY_SURE) & (tgt_share > VERY_CLEAR) & ~swapped
        return swapped, src_wrong, tgt_wrong
