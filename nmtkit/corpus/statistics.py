"""How much text a corpus has, in the figures that settings depend on."""

import unicodedata
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from nmtkit.core.errors import DataError


@dataclass(frozen=True)
class SideStatistics:
    """How much text a side has."""

    words: int
    """Running words; an estimate by characters where white space does not separate words."""
    distinct_words: int
    """Different words, between white space; counting stops at some 200,000."""
    characters: int
    """Different characters, as the tokenizer sees them (NFKC)."""
    frequent_characters: int
    """The most frequent of these, which make up 99.95 % of the text."""
    spaced: bool
    """Whether white space separates words."""
    length: int
    """95 % of all lines have no more words."""


@dataclass(frozen=True)
class CorpusStatistics:
    """How much text a corpus has."""

    pairs: int
    """Pairs of which no side is empty."""
    src: SideStatistics
    tgt: SideStatistics
    both: SideStatistics
    """Both as one text, as a joint vocabulary sees it."""
    one_script: bool
    """Whether both sides are written in the same letters, so that one vocabulary can serve both."""


class _Side:
    """Counts one side, in memory that does not grow with the corpus."""

    most_words = 200_000
    characters_per_word = 1.7  # of Chinese, about; for text without white space

    def __init__(self) -> None:
        self.words = 0
        self.letters = 0
        self.distinct: set[str] = set()
        self.characters: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()

    def add(self, line: str, look: bool) -> None:
        words = line.split()
        self.words += len(words)
        self.letters += sum(map(len, words))
        if look:
            self.lengths[len(words)] += 1
            self.characters.update(unicodedata.normalize("NFKC", line))
            if len(self.distinct) < self.most_words:
                self.distinct.update(words)


def _text(*sides: _Side) -> SideStatistics:
    words, letters = sum(side.words for side in sides), sum(side.letters for side in sides)
    spaced = letters <= 12 * words
    lengths = sum((side.lengths for side in sides), Counter[int]())
    characters = sum((side.characters for side in sides), Counter[str]())
    for space in [one for one in characters if one.isspace()]:
        del characters[space]
    shortest = sorted(lengths)
    length = shortest[_enough([lengths[one] for one in shortest], 0.95) - 1]
    return SideStatistics(
        words=words if spaced else round(letters / _Side.characters_per_word),
        distinct_words=len(set().union(*(side.distinct for side in sides))),
        characters=len(characters),
        frequent_characters=_enough([count for _, count in characters.most_common()], 0.9995),
        spaced=spaced,
        length=length if spaced else round(length * letters / max(words, 1) / _Side.characters_per_word),
    )


def _enough(counts: list[int], share: float) -> int:
    """How many of the counts, from the first on, make up this share of all."""
    sums = list(accumulate(counts))
    return bisect_left(sums, share * sums[-1]) + 1 if sums else 0


def _scripts(characters: Counter[str]) -> dict[str, float]:
    """The share of each script in the letters of a side."""
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            scripts[unicodedata.name(character, "").partition(" ")[0]] += count
    letters = scripts.total()
    return {script: count / letters for script, count in scripts.items()}


class CorpusCounter:
    """Measures a corpus, pair by pair.

    All words are counted; kinds of words, characters and lengths are taken from every line of a small corpus, and from
    ever fewer of a large one.
    """

    _all_up_to = 100_000

    def __init__(self) -> None:
        self.pairs = 0
        self._src = _Side()
        self._tgt = _Side()

    def add(self, src: str, tgt: str) -> None:
        """Counts one pair; one with an empty side, which no training uses, does not count."""
        if not src.strip() or not tgt.strip():
            return
        look = self.pairs % (1 + self.pairs // self._all_up_to) == 0
        self.pairs += 1
        self._src.add(src, look)
        self._tgt.add(tgt, look)

    def size(self) -> CorpusStatistics:
        """What was counted; raises DataError if there was no pair."""
        if not self.pairs:
            raise DataError("there is no pair with text on both sides; nothing can be learned from these files")
        src, tgt = _scripts(self._src.characters), _scripts(self._tgt.characters)
        shared = sum(min(share, tgt.get(script, 0.0)) for script, share in src.items()) if src and tgt else 1.0
        return CorpusStatistics(
            self.pairs, _text(self._src), _text(self._tgt), _text(self._src, self._tgt), shared >= 0.5
        )
