"""Lines in another language than their side, and in the same script: told by function words.

What is known of languages is a few dozen of their most frequent words each; what belongs to a side is learned from a
sample of it. A line is doubted if its words are likelier in one of those languages than in its side, and if function
words that are rare on its side say so.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nmtkit.diagnosis.characters import DIGIT, Text, classes
from nmtkit.diagnosis.function_words import FUNCTION_WORDS

BUCKETS = 1 << 18
"""Words are counted by a hash of so many values."""
FEW_LINES = 300
"""From fewer lines nothing is learned."""
ONCE = 2
"""A word that a sample shows in no more lines may be there by a foreign line: it says nothing for the side."""
UNKNOWN, FREQUENT = 1e-5, 0.008
"""How probable a word is that a side does not know, and a function word of a language, among the words of a line."""
SIGN = float(np.log(FREQUENT / UNKNOWN))
"""What a function word speaks for its language, in nats, where the side does not know it."""
RARE = 1e-3
"""A function word that has a smaller part of a side's words is none of its own language."""
FEWEST_WORDS, FEWEST_SIGNS = 4, 2
"""The words that a line must have, and how many must be function words that are rare on its side."""
SURE = -5.0
"""Log-odds (in nats) from which a line is doubted; words that neither the side nor the list knows speak for neither."""


_FACTOR = 0x9E3779B1
"""Of the hash; it is odd, so that it has an inverse."""


@cache
def _small_letters() -> NDArray[np.uint32]:
    """For every code point 0, or of a letter the code point of the small one."""
    table = np.where((classes() > 0) & (classes() < DIGIT), np.arange(0x110000, dtype=np.uint32), np.uint32(0))
    for code in np.flatnonzero(table[:0x2000]).tolist():
        small = chr(code).lower()
        table[code] = ord(small) if len(small) == 1 else code
    return table


@cache
def _powers(factor: int, bits: int) -> NDArray[np.uint32]:
    return np.cumprod(np.full(1 << bits, factor, dtype=np.uint32), dtype=np.uint32)


def _words(text: Text) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The hash of each word, `(w,)`, in small letters, and the line that it stands in; a word is a run of letters."""
    letters = _small_letters()[text.codes]
    inside = letters > 0
    inside[1:] &= ~inside[:-1].copy()
    begins = np.flatnonzero(inside)
    if not len(begins):
        return np.empty(0, dtype=np.uint32), begins
    # Each letter counts by its place in the text, which the place where its word begins takes back.
    bits = len(letters).bit_length()
    hashes = np.add.reduceat(letters * _powers(_FACTOR, bits)[: len(letters)], begins, dtype=np.uint32)
    hashes *= _powers(pow(_FACTOR, -1, 1 << 32), bits)[begins]
    hashes ^= hashes >> np.uint32(15)
    counts = np.diff(np.searchsorted(begins, text.starts), append=len(begins))
    return hashes * np.uint32(0x85EBCA77) >> np.uint32(14), np.repeat(np.arange(len(counts)), counts)


def _once_a_line(hashes: NDArray[np.uint32], lines: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same without what stands in a line before."""
    places = np.unique(lines * BUCKETS + hashes)
    return places % BUCKETS, places // BUCKETS


@dataclass(frozen=True)
class OwnWords:
    """The words of one side, against those of other languages."""

    odds: NDArray[np.float32]
    """`(BUCKETS,)`: what a word that is none of a language's own speaks for that language, in nats; never above 0."""
    languages: NDArray[np.uint32]
    """`(BUCKETS,)`: of which languages a word is a function word, a bit for each; never of the side's own."""
    rare: NDArray[np.bool_]
    """`(BUCKETS,)`: which words are rare on this side; none of one letter, for that may be a sign or an initial."""

    @classmethod
    def learn(cls, texts: list[Text]) -> "OwnWords | None":
        """Learns from a sample of a side; None if it is too small."""
        if sum(len(text.lines) for text in texts) < FEW_LINES:
            return None
        counts = np.zeros(BUCKETS)
        for text in texts:
            counts += np.bincount(_once_a_line(*_words(text))[0], minlength=BUCKETS)
        shares = np.maximum(counts - ONCE, 0) / max(1.0, counts.sum())
        lists = [np.unique(_words(Text.of(words.split()))[0]) for words in FUNCTION_WORDS.values()]
        own = int(np.argmax([shares[words].sum() for words in lists]))  # the side's language, or the one most like it
        languages = np.zeros(BUCKETS, dtype=np.uint32)
        for number, words in enumerate(lists):
            if number != own:
                languages[words] |= np.uint32(1 << number)
        rare = shares < RARE
        rare[
            _words(Text.of([word for words in FUNCTION_WORDS.values() for word in words.split() if len(word) < 2]))[0]
        ] = 0
        odds = np.log(UNKNOWN / np.maximum(shares, UNKNOWN)).astype(np.float32)
        return cls(odds, languages, rare)

    def foreign(self, text: Text) -> NDArray[np.bool_]:
        """For each line, whether it is in another language."""
        hashes, lines = _words(text)
        count = len(text.lines)
        odds = np.bincount(lines, self.odds[hashes], minlength=count)
        found = np.bincount(lines, minlength=count) >= FEWEST_WORDS
        # Most lines are not doubted even if all that is in any list were of one language.
        listed = np.flatnonzero(self.languages[hashes])
        found &= odds + SIGN * np.bincount(lines[listed], minlength=count) > SURE
        doubted = np.flatnonzero(found)
        listed = listed[found[lines[listed]]]
        hashes, lines, odds = hashes[listed], np.searchsorted(doubted, lines[listed]), odds[doubted]
        sure = np.zeros(len(doubted), dtype=bool)
        for number in range(len(FUNCTION_WORDS)):
            of_language = self.languages[hashes] & np.uint32(1 << number) > 0
            signs = of_language & self.rare[hashes]
            different = np.bincount(_once_a_line(hashes[signs], lines[signs])[1], minlength=len(doubted))
            in_language = odds + SIGN * np.bincount(lines[of_language], minlength=len(doubted)) > SURE
            sure |= in_language & (different >= FEWEST_SIGNS)
        found[doubted] = sure
        return found
