"""Unknown words of translations, replaced by the source word that the attention points to.

As Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation", do it: where the model
writes the unknown word, take the source word of the largest attention weight, its translation by a dictionary if it has
one, else the word itself. Which word that is, `UnknownReplacer` says more exactly.
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
    """One unknown word of a translation, and what was written in its place."""

    token: int
    """Which of the translation's tokens, from 0."""
    source_token: int
    """Which of the source's tokens was pointed to, from 0."""
    source_word: str
    written: str
    """The dictionary's translation of it, or the word itself."""


class UnknownReplacer:
    """Writes source words in place of unknown words.

    Which source word: attention often spreads to the full stop, to the end of the sentence and to neighbours, so

    1. the end of the sentence never counts, and punctuation that the vocabulary knows counts only if there is nothing
       else;
    2. among the others the most attended word is taken,
    3. but an unknown source word is preferred, the most attended of them, if it has at least `MIN_UNKNOWN_SHARE` of
       that weight: what the model had no word for is mostly what it could not read either.

    The pieces of a word count together. A word is copied whole, without the punctuation around it. Of a word with
    unknown pieces only the most attended of these is copied, if it has at least `MIN_UNKNOWN_SHARE` of the largest
    weight in the word: the other pieces gave the model no reason to write the unknown word. The dictionary has
    translations of source words, spelled as in the text.
    """

    def __init__(self, tokenizers: Tokenizers, dictionary: Mapping[str, str] | None = None) -> None:
        self._tokenizers = tokenizers
        # Keys go through the tokenizer as the source does: it may write them in lower case, or normalize them.
        src, self._dictionary = tokenizers.src, dict[str, str]()
        for word, other in (dictionary or {}).items():
            key = src.join(src.tokens(word)).removeprefix(src.config.source_prefix)
            if self._dictionary.setdefault(key, other) != other:
                raise DataError(f"dictionary: {word!r} is {key!r} to the model, which has two translations; leave one")

    def replace(
        self, line: str, tokens: Sequence[str], attention: NDArray[Any], tags: int = 0
    ) -> tuple[str, list[Replacement]]:
        """The text of a translation with T tokens, its unknown words replaced, and what was replaced, in order.

        The attention is at least `(T,S)` for S source tokens, of which so many `tags` come before the line; what goes
        beyond (EOS) is not looked at. It may have fewer columns: then only so many tokens were read.
        """
        tgt = self._tokenizers.tgt
        # A word tokenizer marks it as the beginning of a word.
        unknown = {SPECIALS[UNK], WORD_START + SPECIALS[UNK]}
        places = [number for number, token in enumerate(tokens) if token in unknown]
        source = _SourceWords(self._tokenizers.src, line, attention.shape[1] - tags) if places else None
        if source is None or not source.tokens:
            return tgt.join(tokens), []
        written = list(tokens)
        replaced = []
        for place in places:
            first = tags + source.first
            token, word = source.pointed_to(attention[place, first : first + len(source.tokens)])
            replacement = self._dictionary.get(word, word)
            written[place] = tokens[place].replace(SPECIALS[UNK], replacement)
            replaced.append(Replacement(place, first + token, word, replacement))
        return tgt.join(written), replaced


class _SourceWords:
    """A source line: its tokens by their own spelling, and the words that they make up.

    An imported tokenizer puts a prefix before a line and tokens of languages around it. They are left out; the number
    of tokens before the line is kept.
    """

    def __init__(self, tokenizer: Tokenizer, line: str, limit: int) -> None:
        tokens, marks = tokenizer.tokens(line)[:limit], set[str]()
        if tokenizer.config.is_imported:
            marks = {tokenizer.tag(line), *tokenizer.vocabulary.specials, SPECIALS[EOS]}
        if tokenizer.config.source_prefix:  # no word of the line
            prefix = tokenizer.tokens("")
            marked = [number < len(prefix) or token in marks for number, token in enumerate(tokens)]
        else:
            marked = [token in marks for token in tokens]
        self.tokens = [token for token, is_mark in zip(tokens, marked, strict=True) if not is_mark]
        self.first = marked.index(False) if False in marked else 0
        self._unknown = np.array([number == UNK for number in tokenizer.vocabulary.text_ids(self.tokens)], dtype=bool)
        # A word tokenizer's tokens are words each.
        each = [range(place, place + 1) for place in range(len(self.tokens))]
        self._words = each if tokenizer.config.cuts_words else word_spans(self.tokens)

    def pointed_to(self, weights: NDArray[Any]) -> tuple[int, str]:
        """The token and the word that the weights `(S,)` point to; see `UnknownReplacer`."""
        scores = {number: float(weights[word].sum()) for number, word in enumerate(self._words)}
        unknown = {number for number, word in enumerate(self._words) if self._unknown[word].any()}
        allowed = [number for number in scores if number in unknown or any(map(str.isalnum, self._spelled(number)))]
        best = max(allowed or scores, key=lambda number: scores[number])
        rare = max(unknown, key=lambda number: scores[number], default=best)
        if scores[rare] >= MIN_UNKNOWN_SHARE * scores[best]:
            best = rare
        attended = self._most(self._words[best], weights)
        if best in unknown:
            piece = self._most((token for token in self._words[best] if self._unknown[token]), weights)
            if weights[piece] >= MIN_UNKNOWN_SHARE * weights[attended]:
                return piece, self.tokens[piece].replace(WORD_START, "")
        word = self._spelled(best)
        inner = [number for number, character in enumerate(word) if unicodedata.category(character)[0] not in "PS"]
        return attended, word[inner[0] : inner[-1] + 1] if inner else word  # without punctuation around it

    @staticmethod
    def _most(tokens: Iterable[int], weights: NDArray[Any]) -> int:
        return max(tokens, key=lambda token: float(weights[token]))

    def _spelled(self, word: int) -> str:
        return "".join(self.tokens[token] for token in self._words[word]).replace(WORD_START, "")
