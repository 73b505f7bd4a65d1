"""Unknown words of translations, replaced by the source word that the attention points to.

Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation": where the model writes the
unknown word, take the source word with the largest attention weight; write its translation from a dictionary, or the
word itself if the dictionary lacks it. `UnknownReplacer` describes how the source word is chosen.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS, UNK
from nmtkit.data.tokenizers.words import word_spans

MIN_UNKNOWN_SHARE = 0.25
"""An unknown source word is preferred to the most attended word if it has at least this share of its weight."""


@dataclass(frozen=True)
class Replacement:
    """An unknown word of a translation, and the word that replaces it."""

    token: int
    """Index of the unknown token in the translation."""
    source_token: int
    """Index of the source token that the attention points to."""
    source_word: str
    written: str
    """Translation of the source word from the dictionary, or the source word itself."""


class UnknownReplacer:
    """Replaces unknown words by source words.

    Attention often spreads to the full stop, to the end of the sentence and to neighbours. Therefore the source word is
    chosen as follows:

    1. The end of the sentence never counts. Punctuation that the vocabulary has counts only if there is nothing else.
    2. Of the other words, the most attended one is chosen.
    3. The most attended *unknown* source word is preferred if it has at least `MIN_UNKNOWN_SHARE` of that weight: the
       model most likely has no word for what it could not read.

    The weight of a word is the sum over its pieces. A word is copied whole, without the punctuation around it. If a
    word has unknown pieces, only the most attended one of them is copied, provided that it has at least
    `MIN_UNKNOWN_SHARE` of the largest weight in the word: the other pieces were no reason to write the unknown word.

    Args:
        tokenizers: the tokenizers of the model.
        dictionary: translations of source words, spelled as in the text.
    """

    def __init__(self, tokenizers: Tokenizers, dictionary: Mapping[str, str] | None = None) -> None:
        self._tokenizers = tokenizers
        self._dictionary: dict[str, str] = {}
        src = tokenizers.src
        for word, translation in (dictionary or {}).items():
            # The tokenizer may change a word, for instance to lower case, and source words come from its tokens.
            key = src.join(src.tokens(word)).removeprefix(src.config.source_prefix)
            if self._dictionary.setdefault(key, translation) != translation:
                raise DataError(
                    f"dictionary: {word!r} is {key!r} to the model, which has two translations; remove one of them"
                )

    def replace(
        self, line: str, tokens: Sequence[str], attention: NDArray[Any], tags: int = 0
    ) -> tuple[str, list[Replacement]]:
        """Replaces the unknown words of a translation.

        Args:
            line: the source line.
            tokens: T target tokens.
            attention: weights `(T, S)`. The first `tags` columns are tags. There may be fewer columns than source
                tokens if the model has not read all of them; rows and columns after the last token are ignored.
            tags: number of tags before the line.

        Returns:
            The text of the translation, and the replacements in their order.
        """
        tgt = self._tokenizers.tgt
        # A word tokenizer marks the unknown word as the beginning of a word.
        unknown_tokens = {SPECIALS[UNK], WORD_START + SPECIALS[UNK]}
        positions = [position for position, token in enumerate(tokens) if token in unknown_tokens]
        if not positions:
            return tgt.join(tokens), []
        source = _SourceWords(self._tokenizers.src, line, attention.shape[1] - tags)
        if not source.tokens:
            return tgt.join(tokens), []
        written = list(tokens)
        replacements = []
        first = tags + source.first  # column of the first token of the line
        for position in positions:
            weights = attention[position, first : first + len(source.tokens)]  # (S,)
            source_token, source_word = source.pointed_to(weights)
            replacement = self._dictionary.get(source_word, source_word)
            written[position] = tokens[position].replace(SPECIALS[UNK], replacement)
            replacements.append(
                Replacement(
                    token=position,
                    source_token=first + source_token,
                    source_word=source_word,
                    written=replacement,
                )
            )
        return tgt.join(written), replacements


class _SourceWords:
    """The words and tokens of a source line.

    Affixes of an imported tokenizer, such as a prefix or tokens of languages, are no words of the line: they are left
    out. `first` is the number of tokens before the line.
    """

    def __init__(self, tokenizer: Tokenizer, line: str, limit: int) -> None:
        tokens = tokenizer.tokens(line)[:limit]
        affixes: set[str] = set()
        if tokenizer.config.is_imported:
            affixes = {tokenizer.tag(line), *tokenizer.vocabulary.specials, SPECIALS[EOS]}
        prefix_length = len(tokenizer.tokens("")) if tokenizer.config.source_prefix else 0
        self.tokens: list[str] = []
        self.first = 0
        for number, token in enumerate(tokens):
            if number < prefix_length or token in affixes:
                continue
            if not self.tokens:
                self.first = number
            self.tokens.append(token)
        ids = tokenizer.vocabulary.text_ids(self.tokens)
        self._is_unknown = np.array([token_id == UNK for token_id in ids], dtype=bool)  # (S,)
        if tokenizer.config.cuts_words:  # each token is a word
            self._words = [range(number, number + 1) for number in range(len(self.tokens))]
        else:
            self._words = word_spans(self.tokens)

    def pointed_to(self, weights: NDArray[Any]) -> tuple[int, str]:
        """Returns the token and the word that the weights `(S,)` point to; see `UnknownReplacer`."""
        word_weights = [float(weights[word].sum()) for word in self._words]
        unknown_words = [
            number for number, word in enumerate(self._words) if self._is_unknown[word].any()
        ]
        allowed_words = []
        for number in range(len(self._words)):
            has_letters = any(map(str.isalnum, self._spelled(number)))
            if number in unknown_words or has_letters:
                allowed_words.append(number)
        if not allowed_words:
            allowed_words = list(range(len(self._words)))
        chosen = max(allowed_words, key=word_weights.__getitem__)  # the first of equal ones
        if unknown_words:
            best_unknown = max(unknown_words, key=word_weights.__getitem__)
            if word_weights[best_unknown] >= MIN_UNKNOWN_SHARE * word_weights[chosen]:
                chosen = best_unknown
        attended = self._most_attended(self._words[chosen], weights)
        if chosen in unknown_words:
            pieces = self._words[chosen]
            unknown_pieces = [piece for piece in pieces if self._is_unknown[piece]]
            piece = self._most_attended(unknown_pieces, weights)
            if weights[piece] >= MIN_UNKNOWN_SHARE * weights[attended]:
                return piece, self.tokens[piece].replace(WORD_START, "")
        return attended, _without_punctuation_around(self._spelled(chosen))

    @staticmethod
    def _most_attended(tokens: Iterable[int], weights: NDArray[Any]) -> int:
        return max(tokens, key=lambda token: float(weights[token]))

    def _spelled(self, word: int) -> str:
        return "".join(self.tokens[token] for token in self._words[word]).replace(WORD_START, "")


def _without_punctuation_around(word: str) -> str:
    """Returns a word without punctuation and symbols at its ends; all of it if it has nothing else."""
    inner = [
        index
        for index, character in enumerate(word)
        if unicodedata.category(character)[0] not in "PS"
    ]
    return word[inner[0] : inner[-1] + 1] if inner else word
