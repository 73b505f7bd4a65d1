"""WordPiece, and the merges by which subword vocabularies are learned.

Schuster and Nakajima 2012, "Japanese and Korean Voice Search", section 3, and Wu et al. 2016, section 4.1: the
vocabulary starts with all characters. Each step merges the pair of neighbouring symbols that increases the likelihood
of the text most. A word is split from left to right, always taking the longest matching token of the vocabulary. BPE
(Sennrich et al. 2016, Algorithm 1) merges the most frequent pair instead.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from typing_extensions import override

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary

Pair = tuple[str, str]


class Merges:
    """Words as sequences of symbols, initially characters, with counts of symbols and of pairs of neighbours.

    Symbols and pairs are numbered in the order in which they are first seen. Arrays are indexed by these numbers, and
    have spare rows at the end.
    """

    def __init__(self, words: Mapping[str, int]) -> None:
        self.words = [([*word], count) for word, count in words.items()]
        """Symbols and frequency of each word."""
        self._symbol_numbers: dict[str, int] = {}
        self._symbol_counts = np.zeros(64)
        self._pair_numbers: dict[Pair, int] = {}
        self._pair_counts = np.zeros(64)
        self._pair_symbols = np.zeros((64, 2), np.int64)
        """Numbers of the two symbols in each pair."""
        self._pair_words: list[set[int]] = []
        """Indices of the words that contain, or once contained, each pair."""
        for number in range(len(self.words)):
            self._count(number, 1)

    def _count(self, word_number: int, sign: int) -> None:
        """Adds the symbols and pairs of a word to the counts (sign 1), or subtracts them (sign -1)."""
        symbols, count = self.words[word_number]
        for symbol in symbols:
            number = self._symbol_numbers.setdefault(symbol, len(self._symbol_numbers))
            self._symbol_counts = _with_row(self._symbol_counts, number)
            self._symbol_counts[number] += sign * count
        for pair in pairwise(symbols):
            number = self._pair_numbers.setdefault(pair, len(self._pair_numbers))
            if number == len(self._pair_words):  # a new pair
                self._pair_words.append(set())
                self._pair_counts = _with_row(self._pair_counts, number)
                self._pair_symbols = _with_row(self._pair_symbols, number)
                self._pair_symbols[number] = [self._symbol_numbers[symbol] for symbol in pair]
            self._pair_counts[number] += sign * count
            self._pair_words[number].add(word_number)

    def count(self, pair: Pair) -> int:
        """Returns how often these two symbols are neighbours."""
        if pair not in self._pair_numbers:
            return 0
        return int(self._pair_counts[self._pair_numbers[pair]])

    def join(self, pair: Pair) -> list[int]:
        """Merges two neighbouring symbols into one in all words; returns the numbers of the changed words."""
        changed = []
        for number in sorted(self._pair_words[self._pair_numbers[pair]]):
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
        """Returns the pair a, b whose merge increases the likelihood most; None if no merge increases it.

        The gain is `c(ab) log(c(ab) N / (c(a) c(b)))`, where c are counts and N is the total count of symbols. Ties are
        broken in favour of the pair that was seen first.
        """
        n_pairs = len(self._pair_numbers)
        if n_pairs == 0:
            return None
        n_symbols = self._symbol_counts.sum()
        counts = self._pair_counts[:n_pairs]  # (P,)
        symbols = self._pair_symbols[:n_pairs]  # (P, 2)
        products = self._symbol_counts[symbols].prod(axis=-1)  # (P,)
        # Pairs that no longer occur may have a product or ratio of 0; the maximum with 1 makes their gain 0.
        products = np.maximum(products, 1)
        ratios = counts * n_symbols / products  # (P,)
        ratios = np.maximum(ratios, 1)
        gains = counts * np.log(ratios)  # (P,)
        best = int(gains.argmax())
        if gains[best] <= 0:
            return None
        return [*self._pair_numbers][best]


def _with_row(array: "np.ndarray[Any, Any]", row: int) -> "np.ndarray[Any, Any]":
    """Returns the array if it has this row; otherwise, a copy padded with zeros to twice the length."""
    if row < len(array):
        return array
    return np.concatenate([array, np.zeros_like(array)])


class WordPieceTokenizer(WordTokenizer):
    """Splits text into words and punctuation like a `word` tokenizer, and then splits these into subwords.

    A word that cannot be split into tokens of the vocabulary becomes unknown as a whole.
    """

    @classmethod
    @override
    def learn(
        cls, config: TokenizerConfig, lines: Sequence[str], what: str = "text"
    ) -> "WordPieceTokenizer":
        """Learns a vocabulary by merging symbols; raises a RecipeError if it is too small for all characters."""
        specials = [*SPECIALS, *config.special_tokens]
        # A tokenizer with an empty vocabulary can already split lines.
        splitter = cls(config, Vocabulary(specials, config.special_tokens))
        words: Counter[str] = Counter()
        for line in lines:
            words.update(WordTokenizer.tokens(splitter, line))
        if not words:
            raise DataError(f"tokenizer: there are no words to train on: the {what} is empty")
        characters = sorted(set("".join(words)))
        smallest_size = len(specials) + len(characters)
        if config.vocab_size < smallest_size:
            raise RecipeError(
                f"tokenizer.vocab_size: {config.vocab_size} is too small for this {what}: every character needs a "
                f"token; use at least {smallest_size}"
            )
        merges = Merges(words)
        # An ordered set: different pairs may give the same token.
        learned = dict.fromkeys(characters)
        while len(specials) + len(learned) < config.vocab_size:
            pair = merges.most_likely()
            if pair is None:
                break
            merges.join(pair)
            learned["".join(pair)] = None
        return cls(config, Vocabulary([*specials, *learned], config.special_tokens))

    @override
    def tokens(self, text: str) -> list[str]:
        words = super().tokens(text)
        return list(chain.from_iterable(map(self._cut, words)))

    def _cut(self, word: str) -> list[str]:
        """Splits a word from left to right, always taking the longest matching token (Wu et al. 2016, section 4.1).

        Returns the whole word if at some point no token matches the beginning of the rest.
        """
        tokens = []
        begin = 0
        while begin < len(word):
            longest_first = range(len(word), begin, -1)
            end = next((end for end in longest_first if word[begin:end] in self.vocabulary), None)
            if end is None:
                return [word]
            tokens.append(word[begin:end])
            begin = end
        return tokens


@dataclass(frozen=True)
class Merge:
    """One merge in the training of a tokenizer."""

    pair: Pair
    count: int
    """How often the two symbols were neighbours before the merge."""
    words: list[list[str]]
    """Symbols, after the merge, of the four most frequent words that contain the pair."""


def replay(tokenizer: Tokenizer, text: Iterable[str]) -> Iterator[Merge]:
    """Yields the merges of a `bpe` or `wordpiece` tokenizer, in order, as they apply to a text.

    Skips tokens that cannot be formed from two neighbouring symbols of the text. Raises a RecipeError for tokenizers of
    other kinds.
    """
    if tokenizer.config.kind not in ("bpe", "wordpiece"):
        raise RecipeError(
            f"tokenizer.kind: {tokenizer.config.kind} has no merges; use bpe or wordpiece"
        )
    words: Counter[str] = Counter()
    for line in text:
        line_words = tokenizer.prepared(line).split()
        words.update(WORD_START + word for word in line_words)
    merges = Merges(words)
    for token in tokenizer.vocabulary.tokens[tokenizer.vocabulary.n_specials :]:
        # The vocabulary does not record which two symbols formed the token, so assume the pair that is now the most
        # frequent one.
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        if not pairs:
            continue
        pair = max(pairs, key=merges.count)
        count = merges.count(pair)
        if count == 0:
            continue
        changed = [merges.words[number] for number in merges.join(pair)]
        changed.sort(key=lambda word: -word[1])  # the most frequent words first
        most_frequent = [symbols for symbols, _ in changed[:4]]
        yield Merge(pair=pair, count=count, words=most_frequent)
