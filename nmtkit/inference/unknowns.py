"""Replaces unknown words in translations with the source words that the attention points to.

Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation": if the model generates the
unknown word, find the source word with the largest attention weight, and write its translation from a dictionary, or
the source word itself if it is not in the dictionary. `UnknownReplacer` describes how the source word is chosen.
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
"""An unknown source word is preferred if it has at least this share of the most attended word's weight."""


@dataclass(frozen=True)
class Replacement:
    """An unknown word in a translation, and the word that replaces it."""

    token: int
    """Index of the unknown word among the translation's tokens."""
    source_token: int
    """Index of the source token that the attention points to."""
    source_word: str
    written: str
    """Translation of the source word from the dictionary, or the source word itself."""


class UnknownReplacer:
    """Replaces unknown words with source words or their translations.

    Attention often spreads to the full stop, to EOS and to neighbouring words. The source word is therefore chosen as
    follows:

    1. EOS is ignored. Punctuation in the vocabulary is ignored unless there is nothing else.
    2. The most attended of the remaining words is chosen.
    3. The most attended *unknown* source word is preferred if it has at least `MIN_UNKNOWN_SHARE` of the chosen word's
       weight, since the model most likely has no translation for a word that is not in its source vocabulary.

    The weight of a word is the sum over its pieces. A word is copied as a whole, without the punctuation around it. If
    it has unknown pieces, only the most attended of these is copied, provided that this piece has at least
    `MIN_UNKNOWN_SHARE` of the largest weight in the word: known pieces are no reason to generate the unknown word.

    Args:
        tokenizers: the model's tokenizers.
        dictionary: translations of source words; the source words are spelled as in the text.

    Raises:
        DataError: the dictionary has different translations for words that the tokenizer maps to the same word.
    """

    def __init__(self, tokenizers: Tokenizers, dictionary: Mapping[str, str] | None = None) -> None:
        self._tokenizers = tokenizers
        self._dictionary: dict[str, str] = {}
        src = tokenizers.src
        for word, translation in (dictionary or {}).items():
            # Look-ups use words joined from tokens, which the tokenizer may have changed, e.g. to lower case.
            key = src.join(src.tokens(word)).removeprefix(src.config.source_prefix)
            if self._dictionary.setdefault(key, translation) != translation:
                raise DataError(
                    f"dictionary: {word!r} is {key!r} to the model, which has two translations; remove one of them"
                )

    def replace(
        self, line: str, tokens: Sequence[str], attention: NDArray[Any], tags: int = 0
    ) -> tuple[str, list[Replacement]]:
        """Replaces the unknown words in a translation.

        Args:
            line: the source line.
            tokens: T target tokens.
            attention: weights `(T, S)`. The first `tags` columns belong to tags. If the model truncated the source,
                there are fewer columns than source tokens. Rows and columns after the last token are ignored.
            tags: number of tags before the line.

        Returns:
            The text of the translation, and the replacements in text order.
        """
        tgt = self._tokenizers.tgt
        # Some tokenizers add the word-start marker to the unknown word.
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
    """The words and tokens of a source line, of which at most `limit` tokens are used.

    Leaves out the affixes of an imported tokenizer, such as a prefix or language tokens. `first` is the number of
    affix tokens before the line.
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
        """Returns the index of the token, and the word, to which the weights `(S,)` point; see `UnknownReplacer`."""
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
        chosen = max(
            allowed_words, key=word_weights.__getitem__
        )  # the first one if several are equal
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
    """Strips punctuation and symbols from both ends of a word, unless the word consists of nothing else."""
    inner = [
        index
        for index, character in enumerate(word)
        if unicodedata.category(character)[0] not in "PS"
    ]
    return word[inner[0] : inner[-1] + 1] if inner else word
