"""The language of a line, from its script, its character trigrams and its function words.

A sample of the corpus tells what belongs to each side. Scripts and trigrams tell the two sides apart without knowing
any language. Function words, a few dozen of the most frequent words of each language, reveal a third language in the
same script: a line is doubted if its words are likelier in that language than on its side, and if some of its function
words are rare on its side.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text.encodings import FUNCTION_WORDS
from nmtkit.data.text.scripts import SCRIPTS
from nmtkit.datacheck.characters import DIGIT, NEWLINE, TextArrays, character_classes

RUN_BUCKETS = 1 << 16
"""Runs of three characters are counted by a hash of so many values."""
MIN_SCRIPT_SHARE = 0.02
"""A script with at least this share of the letters of a side is one of its own."""
FEW_LETTERS, FEW_LATIN = 3, 25
"""The least letters of a foreign script: fewer are a symbol or an initial; fewer Latin ones are a name or a term."""
MIN_LINES = 300
"""The least lines that a language is learned from."""

# The two sides.
SURE, VERY_SURE = 12.0, 25.0
"""Log-odds (in nats) at which a line is in a language: together with the other line of its pair, and alone."""
CLEAR, VERY_CLEAR = 0.5, 0.65
"""The share of the median log-odds per character of a side that such a line must reach as well."""
MIN_CHARACTERS = 20
"""Characters; a shorter line tells little about its language."""
MIN_ACCURACY = 0.9
"""The share of a sample's lines that must be classified correctly before any line is doubted."""

# Other languages.
WORD_BUCKETS = 1 << 18
"""Words are counted by a hash of so many values."""
MAX_FOREIGN_LINES = 2
"""A word that a sample shows in no more lines may be from a foreign line, and is not known to the side."""
UNKNOWN, FREQUENT = 1e-5, 0.008
"""The probability of a word that a side does not know, and of a function word of a language."""
FUNCTION_WORD_ODDS = float(np.log(FREQUENT / UNKNOWN))
"""Log-odds of a function word for its language, in nats, where the side does not know it."""
MIN_WORD_SHARE = 1e-3
"""A function word with a smaller share of a side's words is not from its own language."""
MIN_WORDS, MIN_SIGNS = 4, 2
"""The words of a doubted line, and how many of them must be function words that are rare on its side."""
FOREIGN_ODDS = -5.0
"""Log-odds (in nats) from which a line is doubted; words that neither the side nor the list knows count for neither."""


def main_scripts(letters: dict[int, int]) -> frozenset[int]:
    """The scripts of a side, from the letters of a sample of it by the number of their script."""
    total = sum(letters.values())
    own = {script for script, count in letters.items() if count >= MIN_SCRIPT_SHARE * total}
    japanese = {SCRIPTS.index(name) for name in ("Han", "Hiragana", "Katakana")}
    return frozenset(own | japanese if own & japanese and len(own & japanese) > 1 else own)


def in_foreign_script(text: TextArrays, own: frozenset[int]) -> NDArray[np.bool_]:
    """For each line, whether most of its letters are of a script that its side does not have; False without any."""
    foreign = np.zeros(len(text.lines), dtype=bool)
    if not own:
        return foreign
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
    """`(RUN_BUCKETS,)`: log-odds of a run of three characters, source against target, in nats."""
    src_median: float
    """The median log-odds of a character of a source line; above 0."""
    tgt_median: float
    """The same of a target line; below 0."""

    @classmethod
    def learn(cls, texts: list[tuple[TextArrays, TextArrays]]) -> "Languages | None":
        """Learns from a sample; None if there are too few lines, or if the sides are too similar."""
        sides = [[line for pair in texts for line in pair[side].lines] for side in (0, 1)]
        if len(sides[0]) < MIN_LINES:
            return None
        # Learned from every other line, and measured on the rest.
        shares = []
        for lines in sides:
            counts = np.bincount(_runs(TextArrays.of(lines[::2])), minlength=RUN_BUCKETS) + 0.5
            shares.append(np.log(counts / counts.sum()))
        learned = cls((shares[0] - shares[1]).astype(np.float32), 0.0, 0.0)
        medians = []
        for lines, sign in zip(sides, (1, -1), strict=True):
            text = TextArrays.of(lines[1::2])
            long = text.lengths >= MIN_CHARACTERS
            scores = learned.scores(text)[long]
            if len(scores) < MIN_LINES // 4 or (scores * sign > 0).mean() < MIN_ACCURACY:
                return None
            medians.append(float(np.median(scores / text.lengths[long])))
        return cls(learned.odds, medians[0], medians[1])

    def scores(self, text: TextArrays) -> NDArray[np.float64]:
        """`(n,)`: the log-odds of each line, in nats; above 0 it is more likely a source, below 0 a target."""
        weights = np.zeros(len(text.codes), dtype=np.float32)
        weights[1:-1] = self.odds[_runs(text)]
        weights[text.kinds == NEWLINE] = 0
        return np.add.reduceat(weights, text.starts, dtype=np.float64)

    def doubts(
        self, src: TextArrays, tgt: TextArrays
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """For each pair, whether its sides are swapped; whether both are in the target language; in the source's."""
        src_scores, tgt_scores = self.scores(src), self.scores(tgt)
        src_share = src_scores / (self.tgt_median * np.maximum(src.lengths, 1))
        tgt_share = tgt_scores / (self.src_median * np.maximum(tgt.lengths, 1))
        swapped = (src_scores < -SURE) & (src_share > CLEAR) & (tgt_scores > SURE) & (tgt_share > CLEAR)
        src_wrong = (src_scores < -VERY_SURE) & (src_share > VERY_CLEAR) & ~swapped
        tgt_wrong = (tgt_scores > VERY_SURE) & (tgt_share > VERY_CLEAR) & ~swapped
        return swapped, src_wrong, tgt_wrong


_FACTOR = 0x9E3779B1  # of the hash; it is odd, so that it has an inverse


@cache
def _small_letters() -> NDArray[np.uint32]:
    """The code point of the small letter for every letter, 0 for other characters."""
    classes = character_classes()
    table = np.where((classes > 0) & (classes < DIGIT), np.arange(0x110000, dtype=np.uint32), np.uint32(0))
    for code in np.flatnonzero(table[:0x2000]).tolist():
        small = chr(code).lower()
        table[code] = ord(small) if len(small) == 1 else code
    return table


@cache
def _powers(factor: int, bits: int) -> NDArray[np.uint32]:
    return np.cumprod(np.full(1 << bits, factor, dtype=np.uint32), dtype=np.uint32)


def _words(text: TextArrays) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The hash of each word, `(w,)`, in small letters, and its line; a word is a run of letters."""
    letters = _small_letters()[text.codes]
    inside = letters > 0
    inside[1:] &= ~inside[:-1].copy()
    begins = np.flatnonzero(inside)
    if not len(begins):
        return np.empty(0, dtype=np.uint32), begins
    # The factor of a letter depends on its place in the text; the inverse factor of the word's place undoes that.
    bits = len(letters).bit_length()
    hashes = np.add.reduceat(letters * _powers(_FACTOR, bits)[: len(letters)], begins, dtype=np.uint32)
    hashes *= _powers(pow(_FACTOR, -1, 1 << 32), bits)[begins]
    hashes ^= hashes >> np.uint32(15)
    counts = np.diff(np.searchsorted(begins, text.starts), append=len(begins))
    return hashes * np.uint32(0x85EBCA77) >> np.uint32(14), np.repeat(np.arange(len(counts)), counts)


def _once_a_line(hashes: NDArray[np.uint32], lines: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The words and their lines, each word once a line."""
    places = np.unique(lines * WORD_BUCKETS + hashes)
    return places % WORD_BUCKETS, places // WORD_BUCKETS


@dataclass(frozen=True)
class KnownWords:
    """The words of one side, against those of other languages."""

    odds: NDArray[np.float32]
    """`(WORD_BUCKETS,)`: log-odds of a word for a language that does not list it, in nats; at most 0."""
    languages: NDArray[np.uint32]
    """`(WORD_BUCKETS,)`: a bit for each other language that has the word as a function word."""
    rare: NDArray[np.bool_]
    """`(WORD_BUCKETS,)`: which words of several letters are rare on this side."""

    @classmethod
    def learn(cls, texts: list[TextArrays]) -> "KnownWords | None":
        """Learns from a sample of a side; None if it is too small."""
        if sum(len(text.lines) for text in texts) < MIN_LINES:
            return None
        counts = np.zeros(WORD_BUCKETS)
        for text in texts:
            counts += np.bincount(_once_a_line(*_words(text))[0], minlength=WORD_BUCKETS)
        shares = np.maximum(counts - MAX_FOREIGN_LINES, 0) / max(1.0, counts.sum())
        lists = [np.unique(_words(TextArrays.of(words))[0]) for words in FUNCTION_WORDS.values()]
        own = int(np.argmax([shares[words].sum() for words in lists]))  # the side's language, or the one most like it
        languages = np.zeros(WORD_BUCKETS, dtype=np.uint32)
        for number, words in enumerate(lists):
            if number != own:
                languages[words] |= np.uint32(1 << number)
        rare = shares < MIN_WORD_SHARE
        letters = [word for words in FUNCTION_WORDS.values() for word in words if len(word) == 1]
        rare[_words(TextArrays.of(letters))[0]] = False
        odds = np.log(UNKNOWN / np.maximum(shares, UNKNOWN)).astype(np.float32)
        return cls(odds, languages, rare)

    def foreign(self, text: TextArrays) -> NDArray[np.bool_]:
        """For each line, whether it is in another language."""
        hashes, lines = _words(text)
        count = len(text.lines)
        odds = np.bincount(lines, self.odds[hashes], minlength=count)
        foreign = np.bincount(lines, minlength=count) >= MIN_WORDS
        # Most lines are not doubted even if all their listed words were of one language.
        listed = np.flatnonzero(self.languages[hashes])
        foreign &= odds + FUNCTION_WORD_ODDS * np.bincount(lines[listed], minlength=count) > FOREIGN_ODDS
        doubted = np.flatnonzero(foreign)
        listed = listed[foreign[lines[listed]]]
        hashes, lines, odds = hashes[listed], np.searchsorted(doubted, lines[listed]), odds[doubted]
        sure = np.zeros(len(doubted), dtype=bool)
        for number in range(len(FUNCTION_WORDS)):
            of_language = self.languages[hashes] & np.uint32(1 << number) > 0
            signs = of_language & self.rare[hashes]
            different = np.bincount(_once_a_line(hashes[signs], lines[signs])[1], minlength=len(doubted))
            in_language = (
                odds + FUNCTION_WORD_ODDS * np.bincount(lines[of_language], minlength=len(doubted)) > FOREIGN_ODDS
            )
            sure |= in_language & (different >= MIN_SIGNS)
        foreign[doubted] = sure
        return foreign
