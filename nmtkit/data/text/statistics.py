"""Statistics of a corpus that presets depend on."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from nmtkit.core.errors import DataError
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.scripts import EAST_ASIAN, script_shares, unspaced_runs, unspaced_script

MAX_SAMPLE_CHARACTERS = 500_000
"""Characters of each side that are stored, to find out how large a vocabulary the text can fill."""


@dataclass(frozen=True)
class SideStatistics:
    """Statistics of one side."""

    words: int
    """Running words; estimated from characters if words are not separated by white space."""
    distinct_words: int
    """Word types, and types of two adjacent characters where no space separates words; counting stops at about
    200,000."""
    characters: int
    """Character types after normalization."""
    frequent_characters: int
    """Character types that make up 99.95 % of the text."""
    spaced: bool
    """Whether words are separated by white space."""
    length: int
    """The 95th percentile of the words in a line."""
    sample: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The first lines of the text; of a small text all of them."""


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
    held_out: int = 0
    """Pairs of the same text that are held out for validation and test, beside `pairs`."""

    @property
    def amount(self) -> str:
        """So many pairs of so many words, or texts."""
        if self.one_text:
            return f"{self.pairs:,} texts of {self.tgt.words:,} words"
        return f"{self.pairs:,} pairs of {self.src.words:,} and {self.tgt.words:,} words"


class _Side:
    """Counts one side in bounded memory."""

    most_words = 200_000

    def __init__(self) -> None:
        self.words = 0
        self.letters = 0
        self.distinct: set[str] = set()
        self.characters: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.sample: list[str] = []
        self._sample_characters = 0

    def add(self, line: str, sampled: bool) -> None:
        words = line.split()
        self.words += len(words)
        self.letters += sum(map(len, words))
        if not sampled:
            return
        self.lengths[len(words)] += 1
        self.characters.update(comparable(line))
        if self._sample_characters < MAX_SAMPLE_CHARACTERS:
            self.sample.append(line)
            self._sample_characters += len(line)
        if len(self.distinct) < self.most_words:
            self._add_types(line, words)

    def _add_types(self, line: str, words: list[str]) -> None:
        if not unspaced_runs(line):
            self.distinct.update(words)
            return
        for word in words:
            runs = unspaced_runs(word)
            if not runs:
                self.distinct.add(word)
            for run in runs:
                self.distinct.update(first + second for first, second in pairwise(run))


def _side_statistics(*sides: _Side) -> SideStatistics:
    words = sum(side.words for side in sides)
    letters = sum(side.letters for side in sides)
    lengths = sum((side.lengths for side in sides), Counter[int]())
    characters = sum((side.characters for side in sides), Counter[str]())
    for character in [*characters]:
        if character.isspace():
            del characters[character]
    shortest = sorted(lengths)
    length = shortest[_count_for_share([lengths[words_in_line] for words_in_line in shortest], 0.95) - 1]
    script = unspaced_script(characters)
    if script:
        # A word of Chinese or Japanese has about 1.7 characters, one of Thai or Khmer about 4 with its vowel signs.
        characters_per_word = 1.7 if script in EAST_ASIAN else 4.0
        length = round(length * letters / max(words, 1) / characters_per_word)
        words = round(letters / characters_per_word)
    return SideStatistics(
        words=words,
        distinct_words=len(set().union(*(side.distinct for side in sides))),
        characters=len(characters),
        frequent_characters=_count_for_share([count for _, count in characters.most_common()], 0.9995),
        spaced=not script,
        length=length,
        sample=tuple(line for side in sides for line in side.sample),
    )


def _count_for_share(counts: list[int], share: float) -> int:
    """How many of the first counts make up this share of all."""
    sums = list(accumulate(counts))
    return bisect_left(sums, share * sums[-1]) + 1 if sums else 0


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
        src, tgt = script_shares(self._src.characters), script_shares(self._tgt.characters)
        shared = sum(min(share, tgt.get(script, 0.0)) for script, share in src.items()) if src and tgt else 1.0
        return CorpusStatistics(
            self.pairs,
            _side_statistics(self._src),
            _side_statistics(self._tgt),
            _side_statistics(self._src, self._tgt),
            shared >= 0.5,
            one_text,
        )
