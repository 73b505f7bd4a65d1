"""Replaces unknown words in translations with the source words that the attention points to.

Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation": if the model generates the
unknown word, find the source word with the largest attention weight, and replace the unknown word with the translation
of the source word from a dictionary, or with the source word itself if the dictionary lacks it. `UnknownReplacer`
describes how the source word is chosen.
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
from nmtkit.data.tokenizers.words import display_word_spans

MIN_UNKNOWN_SHARE = 0.25
"""An unknown source word is preferred if it has at least this share of the weight of the word chosen by rule 2.

Within a word, an unknown piece is preferred if it has at least this share of the most attended piece's weight.
"""


@dataclass(frozen=True)
class Replacement:
    """An unknown word in a translation, and the word that replaces it."""

    token: int
    """Index of the unknown word among the translation's tokens."""
    source_token: int
    """Index of the source token that the attention points to, among the translation's `src_tokens`."""
    source_word: str
    """The dictionary entry that was found, or else the source word, or unknown piece of a word, that is copied."""
    written: str
    """Translation of the source word from the dictionary, or the source word itself."""


class UnknownReplacer:
    """Replaces unknown words with source words or their translations.

    Attention often spreads to the full stop, to EOS and to neighbouring words. The source word is therefore chosen as
    follows:

    1. EOS is ignored: callers leave out its column. Known words without letters or digits are ignored unless there is
       nothing else. Tokenizers with subwords attach punctuation to the word before it, so its weight counts for that
       word, and it may be the token that is reported as the source token.
    2. The most attended of the remaining words is chosen.
    3. The most attended *unknown* source word is preferred if it has at least `MIN_UNKNOWN_SHARE` of the chosen word's
       weight, since the model most likely has no translation for a word that is not in its source vocabulary.

    The weight of a word is the sum over its pieces. In scripts without spaces, and with a tokenizer of kind `pieces`,
    each token counts as a word. A word is copied as a whole, without the word-start marker and without the punctuation
    and symbols around it, so `$5` gives `5`. If it has unknown pieces, only the most attended of these is copied,
    provided that this piece has at least `MIN_UNKNOWN_SHARE` of the largest weight in the word, because the model could
    not translate the unknown piece rather than the known ones. An unknown piece is copied as it is: with kind
    `whitespace`, this is the whole word with its punctuation.

    Args:
        tokenizers: the model's tokenizers.
        dictionary: translations of source words, spelled as in the text, or, with kind `pieces`, without the word-start
            marker. An entry may include punctuation around the word, as in "U.S.", and then has precedence over an
            entry without it. An entry that the tokenizer cuts into several words never matches; kind `word` also cuts
            "U.S." into several. If an unknown piece of a word is to be copied, the piece is looked up, not the word, so
            an entry for the whole word does not match then.

    Raises:
        DataError: the dictionary has different translations for words that the tokenizer maps to the same word.
    """

    def __init__(self, tokenizers: Tokenizers, dictionary: Mapping[str, str] | None = None) -> None:
        self._tokenizers = tokenizers
        self._dictionary: dict[str, str] = {}
        self._entries_by_bare_word: dict[str, list[str]] = {}
        """Maps a word without the punctuation around it to the entries that differ from it only in punctuation."""
        src = tokenizers.src
        for word, translation in (dictionary or {}).items():
            # Look-ups use words joined from tokens, which the tokenizer may have changed, e.g. to lower case.
            key = src.join(src.tokens(word)).removeprefix(src.config.source_prefix)
            if self._dictionary.setdefault(key, translation) != translation:
                raise DataError(
                    f"dictionary: the model reads {word!r} as {key!r}, which has two translations; remove one of them"
                )
        for key in self._dictionary:
            bare_word = _without_punctuation_around(key)
            self._entries_by_bare_word.setdefault(bare_word, []).append(key)

    def replace(
        self, line: str, tokens: Sequence[str], attention: NDArray[Any], tags: int = 0
    ) -> tuple[str, list[Replacement]]:
        """Replaces the unknown words in a translation.

        Args:
            line: the source line.
            tokens: T target tokens, in which unknown words are `<unk>`.
            attention: weights `(T, A)`, without the column of EOS. The first `tags` columns belong to tags. If the
                model truncated the source, there are fewer columns than source tokens. Rows and columns after the last
                token are ignored.
            tags: number of tags before the tokens of the line; a language tag within the line is not counted.

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
        new_tokens = list(tokens)
        replacements = []
        columns = [tags + position for position in source.positions]
        for position in positions:
            weights = attention[position, columns]  # (S,)
            source_token, spelling, source_word = source.pointed_to(weights)
            new_word = source_word
            entry = self._longest_entry(spelling)
            if entry is not None:
                source_word = entry
                new_word = self._dictionary[entry]
            new_tokens[position] = tokens[position].replace(SPECIALS[UNK], new_word)
            replacements.append(
                Replacement(
                    token=position,
                    source_token=columns[source_token],
                    source_word=source_word,
                    written=new_word,
                )
            )
        return tgt.join(new_tokens), replacements

    def _longest_entry(self, spelling: str) -> str | None:
        """Returns the longest dictionary entry that `spelling` contains and that lacks nothing but punctuation."""
        entries = self._entries_by_bare_word.get(_without_punctuation_around(spelling), [])
        contained = [entry for entry in entries if entry in spelling]
        return max(contained, key=len, default=None)


class _SourceWords:
    """The words and tokens of a source line, of which at most `limit` tokens are used.

    Leaves out affixes: tokens that an imported tokenizer adds to each line, such as a prefix or language tokens.
    S is the number of remaining tokens. `positions` has the index of each of them among all tokens of the line. The
    indices need not be consecutive, because T5's sentinels, which are special tokens, may occur within a text.
    """

    def __init__(self, tokenizer: Tokenizer, line: str, limit: int) -> None:
        tokens = tokenizer.tokens(line)[:limit]
        affixes: set[str] = set()
        if tokenizer.config.is_imported:
            affixes = {tokenizer.tag(line), *tokenizer.vocabulary.specials, SPECIALS[EOS]}
        prefix_length = 0
        if tokenizer.config.source_prefix:
            # An empty line has the tokens of the prefix. They may be followed by a token for the space at the end of
            # the prefix and by affixes, with which the text of another line does not begin. If the tokens begin with a
            # language tag, which the empty line lacks, the prefix is not found, and its words may be copied.
            for token, token_of_empty_line in zip(tokens, tokenizer.tokens(""), strict=False):
                if token != token_of_empty_line:
                    break
                prefix_length += 1
        self.positions: list[int] = []
        for position, token in enumerate(tokens):
            if position >= prefix_length and token not in affixes:
                self.positions.append(position)
        self.tokens = [tokens[position] for position in self.positions]
        ids = tokenizer.vocabulary.text_ids(self.tokens)
        self._is_unknown = np.array([token_id == UNK for token_id in ids], dtype=bool)  # (S,)
        if tokenizer.config.cuts_words:  # each token is a word
            self._words = [range(number, number + 1) for number in range(len(self.tokens))]
        else:
            self._words = display_word_spans(self.tokens)

    def pointed_to(self, weights: NDArray[Any]) -> tuple[int, str, str]:
        """Chooses the word to which the weights `(S,)` point; see the rules of `UnknownReplacer`.

        Returns:
            The index of the token, the spelling to look up in the dictionary, and the word to copy.
        """
        word_weights = [float(weights[word].sum()) for word in self._words]
        unknown_words = [
            number for number, word in enumerate(self._words) if self._is_unknown[word].any()
        ]
        # Rule 1: known punctuation is ignored.
        allowed_words = []
        for number in range(len(self._words)):
            has_letters_or_digits = any(map(str.isalnum, self._spelling(number)))
            if number in unknown_words or has_letters_or_digits:
                allowed_words.append(number)
        if not allowed_words:
            allowed_words = list(range(len(self._words)))
        # Rule 2. `max` returns the first word if several have the same weight.
        chosen_word = max(allowed_words, key=word_weights.__getitem__)
        # Rule 3.
        if unknown_words:
            best_unknown = max(unknown_words, key=word_weights.__getitem__)
            if word_weights[best_unknown] >= MIN_UNKNOWN_SHARE * word_weights[chosen_word]:
                chosen_word = best_unknown
        pieces = self._words[chosen_word]
        attended_piece = self._most_attended(pieces, weights)
        if chosen_word in unknown_words:
            unknown_pieces = [piece for piece in pieces if self._is_unknown[piece]]
            unknown_piece = self._most_attended(unknown_pieces, weights)
            if weights[unknown_piece] >= MIN_UNKNOWN_SHARE * weights[attended_piece]:
                spelling = self.tokens[unknown_piece].replace(WORD_START, "")
                return unknown_piece, spelling, spelling
        spelling = self._spelling(chosen_word)
        return attended_piece, spelling, _without_punctuation_around(spelling)

    @staticmethod
    def _most_attended(tokens: Iterable[int], weights: NDArray[Any]) -> int:
        return max(tokens, key=lambda token: float(weights[token]))

    def _spelling(self, word_number: int) -> str:
        pieces = [self.tokens[piece] for piece in self._words[word_number]]
        return "".join(pieces).replace(WORD_START, "")


def _without_punctuation_around(word: str) -> str:
    """Strips punctuation and symbols from both ends of a word, unless the word consists of nothing else."""
    inner = [
        index
        for index, character in enumerate(word)
        if unicodedata.category(character)[0] not in "PS"
    ]
    return word[inner[0] : inner[-1] + 1] if inner else word
