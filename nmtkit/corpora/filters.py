"""Filters for the pairs of a corpus."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from nmtkit.corpora.catalogue import FilterConfig
from nmtkit.corpora.readers import Pair
from nmtkit.corpus.hashes import HashSet, PairHashes
from nmtkit.corpus.text import is_unspaced

CHUNK = 10_000
"""Pairs that are checked for duplicates at once."""
LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029\0]+")
"""Characters that some program takes for the end of a line or of a text."""
LONE_SURROGATES = re.compile(r"[\ud800-\udfff]")


class _LettersOnly(dict[int, str | None]):
    """A table for `str.translate` that keeps letters and combining marks only."""

    def __missing__(self, code: int) -> str | None:
        letter = chr(code)
        self[code] = letter if unicodedata.category(letter)[0] in "LM" else None
        return self[code]


_LETTERS = _LettersOnly()


def count_words(text: str, unspaced: bool = False) -> int:
    """The number of words: separated by white space, or half the characters if words are not separated."""
    return -(-sum(map(len, text.split())) // 2) if unspaced else len(text.split())


def letter_ratio(text: str) -> float:
    """The share of letters and marks in the characters that are not white space; 0 without any."""
    visible = "".join(text.split())
    return len(visible.translate(_LETTERS)) / len(visible) if visible else 0.0


class PairFilter:
    """Filters single pairs; `src` and `tgt` are the languages."""

    def __init__(self, config: FilterConfig, src: str, tgt: str) -> None:
        self._config = config
        self._unspaced = (is_unspaced(src), is_unspaced(tgt))
        least_tgt = config.min_words if config.min_tgt_words is None else config.min_tgt_words
        self._least = (max(config.min_words, 1), max(least_tgt, 1))
        self._most = (config.max_words, config.max_words if config.max_tgt_words is None else config.max_tgt_words)

    def rejection_reason(self, pair: Pair) -> str:
        """Why a pair is filtered out, in a few words; empty if it is kept."""
        config, sides = self._config, (pair.src, pair.tgt)
        counts = [count_words(text, unspaced) for text, unspaced in zip(sides, self._unspaced, strict=True)]
        if 0 in counts:
            return "an empty side"
        if any(count < least for count, least in zip(counts, self._least, strict=True)):
            return "too few words"
        if any(most is not None and count > most for count, most in zip(counts, self._most, strict=True)):
            return "too many words"
        if config.max_ratio is not None and max(counts) > config.max_ratio * min(counts):
            return "lengths too different"
        if config.min_letter_ratio and any(letter_ratio(text) < config.min_letter_ratio for text in sides):
            return "too few letters"
        if not config.keep_identical and pair.src == pair.tgt:
            return "both sides identical"
        return ""


def single_line(text: str) -> str:
    """The text stripped, on one line for every program; lone surrogates become U+FFFD."""
    return LONE_SURROGATES.sub("\ufffd", LINE_ENDS.sub(" ", text)).strip()


def filter_pairs(
    pairs: Iterable[Pair], config: FilterConfig, src: str, tgt: str, dropped: Counter[str]
) -> Iterator[Pair]:
    """Filters pairs and puts each text on one line; the corpus's own validation and test sets are not filtered.

    The counts of filtered pairs by reason are added to `dropped`; `src` and `tgt` are the languages.
    """
    judge = PairFilter(config, src, tgt)
    seen = HashSet()
    source = iter(pairs)
    while chunk := [
        replace(pair, src=single_line(pair.src), tgt=single_line(pair.tgt)) for pair in islice(source, CHUNK)
    ]:
        for pair, reason in zip(chunk, _reasons(chunk, config, judge, seen), strict=True):
            if reason:
                dropped[reason] += 1
            else:
                yield pair


def _reasons(chunk: Sequence[Pair], config: FilterConfig, judge: PairFilter, seen: HashSet) -> list[str]:
    """The rejection reason of each pair."""
    reasons = ["" if pair.split in ("valid", "test") else judge.rejection_reason(pair) for pair in chunk]
    if config.keep_duplicates:
        return reasons
    compared = [i for i, pair in enumerate(chunk) if not reasons[i] and pair.split not in ("valid", "test")]
    hashes = PairHashes.of([chunk[i].src for i in compared], [chunk[i].tgt for i in compared]).pairs
    for i in np.flatnonzero(seen.add(hashes)):
        reasons[compared[i]] = "duplicate"
    return reasons
