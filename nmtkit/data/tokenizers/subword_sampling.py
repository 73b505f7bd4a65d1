"""Samples tokenizations of text with the pieces of a sentencepiece model.

sentencepiece can also sample, but even after `set_random_generator_seed` its draws differ between processes. Here all
draws come from the caller's generator, so a tokenization depends only on the text and the generator's seed.
"""

import math
import re
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from random import Random
from typing import NamedTuple

from typing_extensions import override

from nmtkit.data.tokenizers.vocabulary import UNK

_MAX_CACHED_WORDS = 200_000
"""The cache of words (about 250 bytes each) is cleared when it reaches this size."""
_MAX_CACHED_LATTICES = 50_000
"""The cache of lattices (about 1,000 bytes each) is cleared when it reaches this size."""
_SMALLEST_PROBABILITY = 2.0**-53
"""The resolution of `Random.random`, which returns multiples of this number."""
_MAX_GAP = 1 << 16
"""Maximum number of consecutive merges that are not skipped; words hardly ever have more merges."""
_UNKNOWN_PENALTY = 10.0
"""An unknown character scores this much lower than the least likely piece, as in sentencepiece."""

_WORDS = re.compile("▁[^▁]*|[^▁]+")
"""Matches the words of a normalized text. Only the beginning of a piece can be "▁", so no piece spans two words."""


def generator_for(*numbers: int) -> Random:
    """Returns a generator whose draws depend only on these numbers, each at least 0 and below 2**64.

    Different sequences of the same length give different seeds. `Random.random` returns the same numbers on every
    machine and in every version of Python.
    """
    seed = 0
    for number in numbers:
        seed = (seed << 64) + number
    return Random(seed)


class SubwordSampler(ABC):
    """Samples tokenizations of normalized text; `ids` maps the pieces that may occur in a text to their ids."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def sample(self, normalized: str, draw: Callable[[], float]) -> list[int]:
        """Returns the ids of a sampled tokenization; `draw` returns uniform random numbers in [0, 1)."""
        ids: list[int] = []
        for word in _WORDS.findall(normalized):
            ids += self._sample_word(word, draw)
        if UNK in ids:
            return _without_repeated_unknowns(ids)
        return ids

    @abstractmethod
    def _sample_word(self, word: str, draw: Callable[[], float]) -> Sequence[int]:
        """Returns the ids of a sampled tokenization of a word, with one UNK for each unknown character."""


def _without_repeated_unknowns(ids: Sequence[int]) -> list[int]:
    """Merges runs of unknown characters into a single UNK, as sentencepiece does."""
    joined: list[int] = []
    for number in ids:
        if number != UNK or not joined or joined[-1] != UNK:
            joined.append(number)
    return joined


class _MergedWord(NamedTuple):
    """The tokenization of a word without dropout, and the number of merges that produce it."""

    ids: list[int]
    merges: int


class BpeDropout(SubwordSampler):
    """BPE-dropout (Provilkov et al. 2020, section 3.2): each merge is skipped with probability `dropout`.

    As in sentencepiece, merges are tried in descending order of score, and ties are broken from left to right. A
    skipped merge is not tried again unless a neighbour changes.
    """

    def __init__(self, scores: Mapping[str, float], ids: Mapping[str, int], dropout: float) -> None:
        super().__init__(ids)
        self._costs = {piece: -score for piece, score in scores.items()}
        self._words: dict[str, _MergedWord] = {}
        # The number of merges before the next skipped merge is geometrically distributed. `_gap_bounds[n]` is the
        # probability that this number is at most n, so it is drawn by bisection. The bounds are computed as products,
        # because the last digit of logarithms may differ between machines.
        self._gap_bounds: list[float] = []
        no_skip_yet = 1.0
        while no_skip_yet > _SMALLEST_PROBABILITY and len(self._gap_bounds) < _MAX_GAP:
            no_skip_yet *= 1 - dropout
            self._gap_bounds.append(1 - no_skip_yet)

    @override
    def _sample_word(self, word: str, draw: Callable[[], float]) -> Sequence[int]:
        plain = self._words.get(word)
        if plain is None:
            pieces, merges = self._merge(word)
            plain = _MergedWord(self._ids_of(pieces), merges)
            if len(self._words) >= _MAX_CACHED_WORDS:
                self._words.clear()
            self._words[word] = plain
        first_skipped = bisect_right(self._gap_bounds, draw())
        if first_skipped >= plain.merges:
            return plain.ids
        pieces, _ = self._merge(word, first_skipped, draw)
        return self._ids_of(pieces)

    def _ids_of(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.get(piece, UNK) for piece in pieces]

    def _merge(
        self, word: str, next_skipped: int = -1, draw: Callable[[], float] | None = None
    ) -> tuple[list[str], int]:
        """Merges characters into pieces; returns the pieces and the number of merges that were tried.

        Merge number `next_skipped` is skipped, and `draw` determines which later merges are skipped. By default, no
        merge is skipped.
        """
        pieces = list(word)
        # costs[i] is the cost of merging pieces i and i+1; infinite if the result is no piece or the merge was skipped.
        costs = [self._costs.get(left + right, math.inf) for left, right in pairwise(pieces)]
        tried = 0
        while costs:
            lowest = min(costs)
            if lowest == math.inf:
                break
            index = costs.index(lowest)
            if tried == next_skipped and draw is not None:
                costs[index] = math.inf
                tried += 1
                next_skipped = tried + bisect_right(self._gap_bounds, draw())
                continue
            tried += 1
            merged = pieces[index] + pieces[index + 1]
            pieces[index] = merged
            del pieces[index + 1]
            del costs[index]
            if index > 0:
                with_left = pieces[index - 1] + merged
                costs[index - 1] = self._costs.get(with_left, math.inf)
            if index < len(costs):
                with_right = merged + pieces[index + 1]
                costs[index] = self._costs.get(with_right, math.inf)
        return pieces, tried


class _Lattice(NamedTuple):
    """All pieces that occur in a word, ordered by their first position."""

    firsts: list[int]
    """Index of the first piece that begins at each position; the last entry is the number of pieces."""
    bounds: "array[float]"
    """Cumulative probabilities of the pieces that begin at the same position."""
    ids: "array[int]"
    """Id of each piece."""
    ends: "array[int]"
    """Position after each piece."""


class UnigramSampler(SubwordSampler):
    """Subword regularization (Kudo 2018, section 3.3) over all tokenizations of a word.

    The weight of a tokenization x is P(x)**alpha. Pieces are drawn from left to right. The probability of a piece is
    the total weight of the tokenizations of the remaining word that begin with this piece, divided by the total weight
    of all tokenizations of the remaining word.
    """

    def __init__(self, scores: Mapping[str, float], ids: Mapping[str, int], alpha: float) -> None:
        super().__init__(ids)
        self._scores = {piece: alpha * score for piece, score in scores.items()}
        lowest_score = min(scores.values(), default=0.0)
        unknown_score = lowest_score - _UNKNOWN_PENALTY
        self._unknown_score = alpha * unknown_score
        self._max_length = max(map(len, scores), default=1)
        """Length of the longest piece in characters."""
        self._lattices: dict[str, _Lattice] = {}
        """Cache of lattices by word."""

    @override
    def _sample_word(self, word: str, draw: Callable[[], float]) -> Sequence[int]:
        lattice = self._lattices.get(word)
        if lattice is None:
            lattice = self._lattice(word)
            if len(self._lattices) >= _MAX_CACHED_LATTICES:
                self._lattices.clear()
            self._lattices[word] = lattice
        firsts, bounds, piece_ids, ends = lattice
        ids: list[int] = []
        position = 0
        while position < len(word):
            first = firsts[position]
            end = firsts[position + 1]
            chosen = bisect_right(bounds, draw(), lo=first, hi=end)
            ids.append(piece_ids[chosen])
            position = ends[chosen]
        return ids

    def _lattice(self, word: str) -> _Lattice:
        pieces = [self._pieces_at(position, word) for position in range(len(word))]
        # log_beta[i]: log of the sum of the weights of all tokenizations of word[i:], computed from right to left.
        log_beta = [0.0] * (len(word) + 1)
        bounds_at: list[list[float]] = []
        for position in reversed(range(len(word))):
            scores = [score + log_beta[end] for _, end, score in pieces[position]]
            highest = max(scores)
            weights = [math.exp(score - highest) for score in scores]
            total = math.fsum(weights)
            log_beta[position] = highest + math.log(total)
            bounds = [bound / total for bound in accumulate(weights)]
            bounds[-1] = 1.0  # above every draw, despite rounding
            bounds_at.append(bounds)
        bounds_at.reverse()
        all_pieces = list(chain.from_iterable(pieces))
        return _Lattice(
            firsts=[0, *accumulate(map(len, bounds_at))],
            bounds=array("d", chain.from_iterable(bounds_at)),
            ids=array("i", [number for number, _, _ in all_pieces]),
            ends=array("i", [end for _, end, _ in all_pieces]),
        )

    def _pieces_at(self, begin: int, word: str) -> list[tuple[int, int, float]]:
        """Returns id, end and score of each piece that begins at `begin`; an unknown character counts as a piece."""
        pieces: list[tuple[int, int, float]] = []
        last_end = min(begin + self._max_length, len(word))
        for end in range(begin + 1, last_end + 1):
            piece = word[begin:end]
            score = self._scores.get(piece)
            if score is not None:
                pieces.append((self._ids[piece], end, score))
            elif end == begin + 1:
                pieces.append((UNK, end, self._unknown_score))
        return pieces
