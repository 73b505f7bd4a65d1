"""Statistics of a corpus, used to choose presets."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from nmtkit.core.errors import DataError
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.scripts import EAST_ASIAN, script_shares, unspaced_runs, unspaced_script

MAX_SAMPLE_CHARACTERS = 500_000
"""Approximate size of the sample stored for each side, which shows how large a vocabulary the text supports."""


@dataclass(frozen=True)
class SideStatistics:
    """Statistics of one side."""

    words: int
    """Number of words, estimated from the number of characters if words are not separated by white space."""
    distinct_words: int
    """Number of distinct words or, in text without spaces, of distinct character bigrams. Counting stops at about
    200,000."""
    characters: int
    """Number of distinct characters after normalization."""
    frequent_characters: int
    """Smallest number of distinct characters that together make up 99.95% of the text."""
    spaced: bool
    """Whether words are separated by white space."""
    length: int
    """The 95th percentile of the number of words per line."""
    sample: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The first lines of the text, or all lines if it is small."""


@dataclass(frozen=True)
class CorpusStatistics:
    """Statistics of a corpus."""

    pairs: int
    """Number of pairs without an empty side."""
    src: SideStatistics
    tgt: SideStatistics
    joint: SideStatistics
    """Statistics of both sides as one text, for a joint vocabulary."""
    one_script: bool
    """Whether both sides use the same script, so that a joint vocabulary makes sense."""
    one_text: bool = False
    """Whether an example is a single text; if so, this text is counted on both sides."""
    held_out: int = 0
    """Number of pairs held out for validation and testing; they are not included in `pairs`."""

    @property
    def amount(self) -> str:
        """Number of pairs and words, for messages."""
        if self.one_text:
            return f"{self.pairs:,} texts with {self.tgt.words:,} words in total"
        return f"{self.pairs:,} pairs with {self.src.words:,} source and {self.tgt.words:,} target words"


class _Side:
    """Counts one side in bounded memory."""

    max_types = 200_000

    def __init__(self) -> None:
        self.words = 0
        self.letters = 0
        self.types: set[str] = set()
        self.characters: Counter[str] = Counter()  # in sampled lines
        self.lengths: Counter[int] = Counter()  # of sampled lines, in words
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
        if len(self.types) < self.max_types:
            self._add_types(line, words)

    def _add_types(self, line: str, words: list[str]) -> None:
        if not unspaced_runs(line):
            self.types.update(words)
            return
        for word in words:
            runs = unspaced_runs(word)
            if not runs:
                self.types.add(word)
            for run in runs:
                self.types.update(first + second for first, second in pairwise(run))


def _side_statistics(*sides: _Side) -> SideStatistics:
    """Returns the statistics of one side, or of both sides as one text."""
    words = 0
    letters = 0
    types: set[str] = set()
    lengths = Counter[int]()
    characters = Counter[str]()
    sample: list[str] = []
    for side in sides:
        words += side.words
        letters += side.letters
        types |= side.types
        lengths += side.lengths
        characters += side.characters
        sample += side.sample
    for character in [*characters]:
        if character.isspace():
            del characters[character]
    script = unspaced_script(characters)
    sorted_lengths = sorted(lengths)
    lines_by_length = [lengths[length] for length in sorted_lengths]
    usual_length = sorted_lengths[_count_for_share(lines_by_length, 0.95) - 1]
    if script:
        # Words have about 1.7 characters in Chinese and Japanese, and about 4 (with vowel signs) in Thai and Khmer.
        characters_per_word = 1.7 if script in EAST_ASIAN else 4.0
        usual_length = round(usual_length * letters / max(words, 1) / characters_per_word)
        words = round(letters / characters_per_word)
    character_counts = [count for _, count in characters.most_common()]
    return SideStatistics(
        words=words,
        distinct_words=len(types),
        characters=len(characters),
        frequent_characters=_count_for_share(character_counts, 0.9995),
        spaced=not script,
        length=usual_length,
        sample=tuple(sample),
    )


def _count_for_share(counts: list[int], share: float) -> int:
    """Returns how many of the first counts are needed to make up this share of their sum."""
    if not counts:
        return 0
    sums = list(accumulate(counts))
    return bisect_left(sums, share * sums[-1]) + 1


class CorpusCounter:
    """Gathers the statistics of a corpus, pair by pair.

    All words are counted. In a large corpus, distinct words, characters and lengths are counted only in a sample.
    """

    _all_up_to = 100_000

    def __init__(self) -> None:
        self.pairs = 0
        self._src = _Side()
        self._tgt = _Side()

    def add(self, src: str, tgt: str) -> None:
        """Counts a pair; ignores pairs with an empty side."""
        if not src.strip() or not tgt.strip():
            return
        # Samples all of the first 100,000 pairs, then every other pair up to 200,000, every third up to 300,000, ...
        sampling_step = 1 + self.pairs // self._all_up_to
        is_sampled = self.pairs % sampling_step == 0
        self.pairs += 1
        self._src.add(src, is_sampled)
        self._tgt.add(tgt, is_sampled)

    def statistics(self, one_text: bool = False) -> CorpusStatistics:
        """Returns the statistics; raises a DataError if no pair was counted."""
        if not self.pairs:
            raise DataError(
                "no pair has text on both sides; nothing can be learned from these files"
            )
        src_shares = script_shares(self._src.characters)
        tgt_shares = script_shares(self._tgt.characters)
        overlap = 1.0  # a text without letters fits any script
        if src_shares and tgt_shares:
            overlap = sum(
                min(share, tgt_shares.get(script, 0.0)) for script, share in src_shares.items()
            )
        return CorpusStatistics(
            pairs=self.pairs,
            src=_side_statistics(self._src),
            tgt=_side_statistics(self._tgt),
            joint=_side_statistics(self._src, self._tgt),
            one_script=overlap >= 0.5,
            one_text=one_text,
        )
