"""WordPiece, and the merges of which subwords are made.

Schuster and Nakajima 2012, "Japanese and Korean Voice Search", section 3, and Wu et al. 2016, section 4.1: a vocabulary
begins with all characters. It grows by the two neighbours that, joined, raise the likelihood of the text most. A word
is cut into the longest tokens that there are, from its left. BPE (Sennrich et al. 2016, Algorithm 1) joins the most
frequent neighbours instead.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from typing_extensions import override

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary

Pair = tuple[str, str]


class Merges:
    """Words as symbols, at first their characters, and how often two of them are neighbours."""

    def __init__(self, words: Mapping[str, int]) -> None:
        self.words = [([*word], count) for word, count in words.items()]
        """The symbols of each word, and how often it occurs."""
        self._symbols: dict[str, int] = {}
        self._pairs: dict[Pair, int] = {}
        self._places: list[set[int]] = []
        # By number of a symbol: how often it occurs. By number of a pair: its two symbols, and how often it occurs.
        self._single, self._sides, self._together = np.zeros(64), np.zeros((64, 2), np.int64), np.zeros(64)
        for number in range(len(self.words)):
            self._count(number, 1)

    def _count(self, number: int, sign: int) -> None:
        """Adds the symbols and neighbours of a word, or takes them away."""
        symbols, count = self.words[number]
        for symbol in symbols:
            row = self._symbols.setdefault(symbol, len(self._symbols))
            self._single = _with_row(self._single, row)
            self._single[row] += sign * count
        for pair in pairwise(symbols):
            row = self._pairs.setdefault(pair, len(self._pairs))
            if row == len(self._places):
                self._places.append(set())
                self._sides, self._together = _with_row(self._sides, row), _with_row(self._together, row)
                self._sides[row] = [self._symbols[symbol] for symbol in pair]
            self._together[row] += sign * count
            self._places[row].add(number)

    def count(self, pair: Pair) -> int:
        """How often two symbols are neighbours."""
        return int(self._together[self._pairs[pair]]) if pair in self._pairs else 0

    def join(self, pair: Pair) -> list[int]:
        """Makes two neighbours one symbol everywhere; gives the numbers of the words that have them."""
        changed = []
        for number in sorted(self._places[self._pairs[pair]]):
            symbols, count = self.words[number]
            joined: list[str] = []
            for symbol in symbols:
                if joined and (joined[-1], symbol) == pair:
                    joined[-1] += symbol
                else:
                    joined.append(symbol)
            if len(joined) < len(symbols):
                self._count(number, -1)
                self.words[number] = (joined, count)
                self._count(number, 1)
                changed.append(number)
        return changed

    def most_likely(self) -> Pair | None:
        """The neighbours a, b that raise the likelihood most, by `c(ab) log(c(ab) N / (c(a) c(b)))`; None if none do.

        c are counts of N symbols. Of equal ones it is the first that was seen.
        """
        if not self._pairs:
            return None
        together, sides = self._together[: len(self._pairs)], self._sides[: len(self._pairs)]
        apart = np.maximum(self._single[sides].prod(-1), 1)
        gains = together * np.log(np.maximum(together * self._single.sum() / apart, 1))
        best = int(gains.argmax())
        return [*self._pairs][best] if gains[best] > 0 else None


def _with_row(array: "np.ndarray[Any, Any]", row: int) -> "np.ndarray[Any, Any]":
    """An array that has the row, all new ones zero."""
    return array if row < len(array) else np.concatenate([array, np.zeros_like(array)])


class WordPieceTokenizer(WordTokenizer):
    """Words and punctuation as kind word has them, cut into tokens; one that cannot be cut is unknown as a whole."""

    @classmethod
    @override
    def learn(cls, config: TokenizerConfig, lines: Sequence[str], what: str = "text") -> "WordPieceTokenizer":
        """The vocabulary's order is that of the merges; RecipeError if it is too small for all characters."""
        specials = [*SPECIALS, *config.special_tokens]
        cutter = cls(config, Vocabulary(specials, config.special_tokens))
        words = Counter(word for line in lines for word in WordTokenizer.tokens(cutter, line))
        if not words:
            raise DataError(f"tokenizer: no words to learn from: the {what} is empty")
        tokens = sorted({*"".join(words)})
        room = config.vocab_size - len(specials)
        if room < len(tokens):
            raise RecipeError(
                f"tokenizer.vocab_size: {config.vocab_size} is too small for this {what}: every character needs a "
                f"token; use at least {len(specials) + len(tokens)}"
            )
        merges, learned = Merges(words), dict.fromkeys(tokens)
        while len(learned) < room and (pair := merges.most_likely()) is not None:
            merges.join(pair)
            learned["".join(pair)] = None  # in two ways one token may come about
        return cls(config, Vocabulary([*specials, *learned], config.special_tokens))

    @override
    def tokens(self, text: str) -> list[str]:
        return [token for word in super().tokens(text) for token in self._cut(word)]

    def _cut(self, word: str) -> list[str]:
        """The longest tokens from the left: Wu et al. 2016, section 4.1; the word itself where one is missing."""
        tokens, begin = [], 0
        while begin < len(word):
            ends = range(len(word), begin, -1)
            end = next((end for end in ends if word[begin:end] in self.vocabulary), None)
            if end is None:
                return [word]
            tokens.append(word[begin:end])
            begin = end
        return tokens


@dataclass(frozen=True)
class Merge:
    """A step of a tokenizer's learning."""

    pair: Pair
    count: int
    """How often the two were neighbours."""
    words: list[list[str]]
    """The four most frequent words that they are in, as they are cut behind it."""


def replay(tokenizer: Tokenizer, text: Iterable[str]) -> Iterator[Merge]:
    """The merges of a tokenizer of kind bpe or wordpiece, in their order, in a text; RecipeError for other kinds.

    A token that no two symbols of the text give is passed over.
    """
    if tokenizer.config.kind not in ("bpe", "wordpiece"):
        raise RecipeError(f"tokenizer.kind: {tokenizer.config.kind} has no merges; take bpe or wordpiece")
    words = Counter(WORD_START + word for line in text for word in tokenizer.prepared(line).split())
    merges = Merges(words)
    for token in tokenizer.vocabulary.tokens[tokenizer.vocabulary.n_specials :]:
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pair = max(pairs, key=merges.count, default=None)
        if pair is not None and (count := merges.count(pair)):
            changed = sorted((merges.words[number] for number in merges.join(pair)), key=lambda word: -word[1])
            yield Merge(pair, count, [symbols for symbols, _ in changed[:4]])
