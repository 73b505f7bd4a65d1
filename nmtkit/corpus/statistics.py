"""Statistics of a corpus that presets depend on."""

import unicodedata
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from nmtkit.core.errors import DataError


@dataclass(frozen=True)
class SideStatistics:
    """Statistics of one side."""

    words: int
    """Running words; estimated from characters if words are not separated by white space."""
    distinct_words: int
    """Word types; counting stops at about 200,000."""
    characters: int
    """Character types after NFKC."""
    frequent_characters: int
    """Character types that make up 99.95 % of the text."""
    spaced: bool
    """Whether words are separated by white space."""
    length: int
    """The 95th percentile of the words in a line."""


@dataclass(frozen=True)
class CorpusStatistics:
    """Statistics of a corpus."""

    pairs: int
    """Pairs without an empty side."""
    src: SideStatistics
    tgt: SideStatistics
    both: SideStatistics
    """Both sides as one text, for a joint vocabulary."""
    one_script: bool
    """Whether both sides use the same script, so that a joint vocabulary fits."""
    one_text: bool = False
    """Whether an example is one text, which then stands on both sides."""

    @property
    def amount(self) -> str:
        """So many pairs of so many words, or texts."""
        if self.one_text:
            return f"{self.pairs:,} texts of {self.tgt.words:,} words"
        return f"{self.pairs:,} pairs of {self.src.words:,} and {self.tgt.words:,} words"


class _Side:
    """Counts one side in bounded memory."""

    most_words = 200_000
    characters_per_word = 1.7  # of Chinese, about; for text without white space

    def __init__(self) -> None:
        self.words = 0
        self.letters = 0
        self.distinct: set[str] = set()
        self.characters: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()

    def add(self, line: str, sampled: bool) -> None:
        words = line.split()
        self.words += len(words)
        self.letters += sum(map(len, words))
        if sampled:
            self.lengths[len(words)] += 1
            self.characters.update(unicodedata.normalize("NFKC", line))
            if len(self.distinct) < self.most_words:
                self.distinct.update(words)


def _side_statistics(*sides: _Side) -> SideStatistics:
    words, letters = sum(side.words for side in sides), sum(side.letters for side in sides)
    spaced = letters <= 12 * words
    lengths = sum((side.lengths for side in sides), Counter[int]())
    characters = sum((side.characters for side in sides), Counter[str]())
    for space in [one for one in characters if one.isspace()]:
        del characters[space]
    shortest = sorted(lengths)
    length = shortest[_count_for_share([lengths[one] for one in shortest], 0.95) - 1]
    return SideStatistics(
        words=words if spaced else round(letters / _Side.characters_per_word),
        distinct_words=len(set().union(*(side.distinct for side in sides))),
        characters=len(characters),
        frequent_characters=_count_for_share([count for _, count in characters.most_common()], 0.9995),
        spaced=spaced,
        length=length if spaced else round(length * letters / max(words, 1) / _Side.characters_per_word),
    )


def _count_for_share(counts: list[int], share: float) -> int:
    """How many of the first counts make up this share of all."""
    sums = list(accumulate(counts))
    return bisect_left(sums, share * sums[-1]) + 1 if sums else 0


def _scripts(characters: Counter[str]) -> dict[str, float]:
    """The share of each script."""
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            scripts[unicodedata.name(character, "").partition(" ")[0]] += count
    letters = scripts.total()
    return {script: count / letters for script, count in scripts.items()}


class CorpusCounter:
    """Counts a corpus pair by pair.

    All words are counted; types, characters and lengths are sampled from large corpora.
    """

    _all_up_to = 100_000

    def __init__(self) -> None:
        self.pairs = 0
        self._src = _Side()
        self._tgt = _Side()

    def add(self, src: str, tgt: str) -> None:
        """Counts a pair, unless a side is empty."""
        if not src.strip() or not tgt.strip():
            return
        sampled = self.pairs % (1 + self.pairs // self._all_up_to) == 0
        self.pairs += 1
        self._src.add(src, sampled)
        self._tgt.add(tgt, sampled)

    def statistics(self, one_text: bool = False) -> CorpusStatistics:
        """The statistics; DataError without any pair."""
        if not self.pairs:
            raise DataError("no pair has text on both sides; nothing can be learned from these files")
        src, tgt = _scripts(self._src.characters), _scripts(self._tgt.characters)
        shared = sum(min(share, tgt.get(script, 0.0)) for script, share in src.items()) if src and tgt else 1.0
        return CorpusStatistics(
            self.pairs,
            _side_statistics(self._src),
            _side_statistics(self._tgt),
            _side_statistics(self._src, self._tgt),
            shared >= 0.5,
            one_text,
        )
