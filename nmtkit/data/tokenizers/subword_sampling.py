"""Sampled tokenizations of text with the pieces of a sentencepiece model.

sentencepiece can sample too, but even after `set_random_generator_seed` its draws differ between processes. Here all
draws come from a generator that the caller passes, so a tokenization depends only on the text and on the seed of that
generator.
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
"""The cache of words, about 250 bytes each, is cleared when it reaches this size."""
_MAX_CACHED_LATTICES = 50_000
"""The cache of lattices, about 1,000 bytes each, is cleared when it reaches this size."""
_SMALLEST_PROBABILITY = 2.0**-53
"""Resolution of `Random.random`, which returns multiples of this number."""
_MAX_GAP = 1 << 16
"""Runs of merges without a skipped one are counted up to this length; few words have more merges."""
_UNKNOWN_PENALTY = 10.0
"""Difference between the scores of the least likely piece and of an unknown character, as in sentencepiece."""

_WORDS = re.compile("▁[^▁]*|[^▁]+")
"""The words of a normalized text. Pieces contain "▁" only as their first character, so no piece crosses a word."""


def generator_for(*numbers: int) -> Random:
    """Returns a generator whose draws depend on these numbers only, each at least 0 and below 2**64.

    Different sequences of the same length have different seeds. `Random.random` gives equal numbers on all machines and
    in all versions of Python.
    """
    seed = 0
    for number in numbers:
        seed = (seed << 64) + number
    return Random(seed)


class SubwordSampler(ABC):
    """Samples tokenizations of normalized text; `ids` are those of the pieces that may occur in a text."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def sample(self, normalized: str, draw: Callable[[], float]) -> list[int]:
        """Returns the ids of a sampled tokenization; `draw` gives uniform numbers from 0 to below 1."""
        ids: list[int] = []
        for word in _WORDS.findall(normalized):
            ids += self._sample_word(word, draw)
        if UNK in ids:
            return _without_repeated_unknowns(ids)
        return ids

    @abstractmethod
    def _sample_word(self, word: str, draw: Callable[[], float]) -> Sequence[int]:
        """Returns the ids of a word, with an UNK for each unknown character."""


def _without_repeated_unknowns(ids: Sequence[int]) -> list[int]:
    """Joins neighbouring unknown characters to one UNK, as sentencepiece does."""
    joined: list[int] = []
    for number in ids:
        if number != UNK or not joined or joined[-1] != UNK:
            joined.append(number)
    return joined


class _MergedWord(NamedTuple):
    """The tokenization of a word without dropout, and the number of merges that lead to it."""

    ids: list[int]
    merges: int


class BpeDropout(SubwordSampler):
    """BPE-dropout (Provilkov et al. 2020, section 3.2): each merge is skipped with probability `dropout`.

    As in sentencepiece, a skipped merge is not tried a second time unless a neighbour has changed. The next merge is
    the one with the highest score, and the leftmost of equal ones.
    """

    def __init__(self, scores: Mapping[str, float], ids: Mapping[str, int], dropout: float) -> None:
        super().__init__(ids)
        self._costs = {piece: -score for piece, score in scores.items()}
        self._words: dict[str, _MergedWord] = {}
        # The number of merges before the next skipped one is geometrically distributed. `_gap_bounds[n]` is the
        # probability of at most n, so a bisection draws the number. It is computed by products, because logarithms may
        # differ in the last digit between machines.
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
        """Merges characters to pieces; returns the pieces and the number of merges that were tried.

        The merge with number `next_skipped` is skipped, and `draw` decides which of the merges after it are.
        """
        pieces = list(word)
        # costs[i] is the cost of merging pieces i and i+1; infinite if they make no piece, or if the merge was skipped.
        costs = [self._costs.get(left + right, math.inf) for left, right in pairwise(pieces)]
        tried = 0
        while costs:
            lowest = min(costs)
            if lowest == math.inf:
                break
            place = costs.index(lowest)
            if tried == next_skipped and draw is not None:
                costs[place] = math.inf
                tried += 1
                next_skipped = tried + bisect_right(self._gap_bounds, draw())
                continue
            tried += 1
            merged = pieces[place] + pieces[place + 1]
            pieces[place] = merged
            del pieces[place + 1]
            del costs[place]
            if place > 0:
                with_left = pieces[place - 1] + merged
                costs[place - 1] = self._costs.get(with_left, math.inf)
            if place < len(costs):
                with_right = merged + pieces[place + 1]
                costs[place] = self._costs.get(with_right, math.inf)
        return pieces, tried


class _Lattice(NamedTuple):
    """All pieces that occur in a word, ordered by the position at which they begin."""

    firsts: list[int]
    """The index of the first piece that begins at each position; the last entry is the number of pieces."""
    bounds: "array[float]"
    """Cumulative probabilities of the pieces that begin at the same position."""
    ids: "array[int]"
    """The id of each piece."""
    ends: "array[int]"
    """The position after each piece."""


class UnigramSampler(SubwordSampler):
    """Subword regularization (Kudo 2018, section 3.3), over all tokenizations of a word.

    The weight of a tokenization x is P(x)**alpha. Pieces are drawn from left to right; the probability of a piece is
    its share in the weight of all tokenizations of the rest of the word.
    """

    def __init__(self, scores: Mapping[str, float], ids: Mapping[str, int], alpha: float) -> None:
        super().__init__(ids)
        self._scores = {piece: alpha * score for piece, score in scores.items()}
        lowest_score = min(scores.values(), default=0.0)
        unknown_score = lowest_score - _UNKNOWN_PENALTY
        self._unknown_score = alpha * unknown_score
        self._max_length = max(map(len, scores), default=1)
        """Characters of the longest piece."""
        self._lattices: dict[str, _Lattice] = {}
        """A cache by word."""

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
            chosen = bisect_right(bounds, draw(), firsts[position], firsts[position + 1])
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
            bounds[-1] = 1.0  # above every draw, however the sum was rounded
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
        """Returns id, end and score of each piece that begins at a position; an unknown character counts as a piece."""
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
