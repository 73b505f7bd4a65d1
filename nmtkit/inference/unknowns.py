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

from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS, UNK
from nmtkit.data.tokenizers.words import display_word_spans

MIN_UNKNOWN_SHARE = 0.25
"""Share of the largest weight that an unknown word or piece needs in order to be preferred.

The share applies twice: among the words of a line (rule 3 of `UnknownReplacer`), and among the pieces of a word.
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
    """The text that replaces the unknown word: the translation in the dictionary, or else `source_word` itself."""


class UnknownReplacer:
    """Replaces unknown words with source words or their translations.

    Attention often spreads to the full stop, to EOS and to neighbouring words. The source word is therefore chosen as
    follows:

    1. EOS is ignored, and so are the tokens that an imported tokenizer adds to the line, such as language tokens, and
       sentinels. Known words without letters or digits are ignored unless there is nothing else.
    2. The most attended of the remaining words is chosen.
    3. The most attended *unknown* source word is preferred if it has at least `MIN_UNKNOWN_SHARE` of the chosen word's
       weight, since the model most likely has no translation for a word that is not in its source vocabulary. A single
       unknown piece makes a word unknown, but the weight of the whole word counts. So a word may be preferred although
       its unknown piece has little weight; the word is then copied as a whole.

    With a tokenizer of kind `word`, `whitespace` or `pieces`, each token is a word. With all other kinds, a word
    consists of the tokens from one word-start marker to the next, which are called its pieces. Its weight is the sum of
    their weights. Punctuation that is attached to a word, such as a bracket before it or a comma after it, is part of
    the word. So its weight counts for the word, and it may be the token that is reported as the source token. In
    scripts without spaces, each token is a word, and punctuation is part of the word before it.

    The text that is copied depends on the chosen word:

    - A word without unknown pieces is copied without the punctuation and symbols around it, so `$5` gives `5`.
    - If a word has unknown pieces, only the most attended of these is copied, because the model could not translate the
      unknown piece rather than the known ones. It is copied with all its characters. If each token is a word, the
      piece is the whole word, which may include punctuation with kind `whitespace` or `pieces`.
    - If the unknown piece has less than `MIN_UNKNOWN_SHARE` of the largest weight in the word, the word is copied as if
      it had no unknown pieces.

    The dictionary is searched first. An entry matches if it is contained in the word, or in the unknown piece that
    would be copied, and differs from it only in outer punctuation and symbols. The longest matching entry is used.

    Args:
        tokenizers: the model's tokenizers.
        dictionary: translations of source words, spelled as in the text; with kind `pieces`, the word-start marker may
            be omitted. An entry may include punctuation around the word, as in "U.S.", and then has precedence over an
            entry without it. Only single words and unknown pieces are looked up, so an entry for several words never
            matches; kind `word` also cuts "U.S." into several words. If an unknown piece is to be copied, an entry
            for its whole word does not match.

    Raises:
        DataError: the dictionary has different translations for words that the tokenizer maps to the same word.
    """

    def __init__(self, tokenizers: Tokenizers, dictionary: Mapping[str, str] | None = None) -> None:
        self._tokenizers = tokenizers
        self._dictionary: dict[str, str] = {}
        """Translations, keyed by the spelling that is looked up; see `_spelling`."""
        self._entries_by_bare_word: dict[str, list[str]] = {}
        """Maps a word without the punctuation around it to the entries that differ from it only in outer
        punctuation."""
        src = tokenizers.src
        if src.config.source_prefix:
            src = tokenizers.with_source_prefix("").src  # the prefix is not part of an entry
        for word, translation in (dictionary or {}).items():
            # The spelling is made from tokens, because the tokenizer may change the text, for example lowercase it.
            text_tokens = _text_tokens(src, word)
            entry = _spelling(src, text_tokens.values())
            if self._dictionary.setdefault(entry, translation) != translation:
                raise DataError(
                    f"dictionary: the model reads {word!r} as {entry!r}, which has two translations; remove one of them"
                )
        for entry in self._dictionary:
            bare_word = _without_punctuation_around(entry)
            self._entries_by_bare_word.setdefault(bare_word, []).append(entry)

    def replace(
        self, line: str, tokens: Sequence[str], attention: NDArray[Any], tags: int = 0
    ) -> tuple[str, list[Replacement]]:
        """Replaces the unknown words in a translation.

        Args:
            line: the source line; the tags that precede it are not part of it.
            tokens: T target tokens, in which unknown words are `<unk>`.
            attention: weights `(T, tags + L)`. The columns of the tags are followed by the columns of the first L
                tokens of the line, which are the tokens that the model has read: if it truncated the source, the line
                has more tokens. Callers leave out the column of the final EOS: if the source was truncated, it would
                be mistaken for the column of the first token that the model has not read. Rows after the last target
                token and columns after the last source token are ignored.
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
        n_read = attention.shape[1] - tags
        source_words = _SourceWords(self._tokenizers.src, line, n_read)
        if source_words.is_empty:
            return tgt.join(tokens), []
        new_tokens = list(tokens)
        replacements = []
        for position in positions:
            weights = attention[position, tags:]  # (L,)
            choice = source_words.choose(weights)
            entry = self._longest_entry(choice.spelling)
            if entry is None:
                source_word = choice.copied
                written = choice.copied
            else:
                source_word = entry
                written = self._dictionary[entry]
            new_tokens[position] = tokens[position].replace(SPECIALS[UNK], written)
            replacement = Replacement(
                token=position,
                source_token=tags + choice.line_token,
                source_word=source_word,
                written=written,
            )
            replacements.append(replacement)
        return tgt.join(new_tokens), replacements

    def _longest_entry(self, spelling: str) -> str | None:
        """Returns the longest dictionary entry within `spelling` that differs from it only in outer punctuation."""
        entries = self._entries_by_bare_word.get(_without_punctuation_around(spelling), [])
        contained = [entry for entry in entries if entry in spelling]
        return max(contained, key=len, default=None)


@dataclass(frozen=True)
class _Choice:
    """The source word, or the unknown piece of one, that replaces an unknown target word."""

    line_token: int
    """Index of the most attended token of the word or piece, among the tokens of the line without tags."""
    spelling: str
    """Spelling with punctuation, which is looked up in the dictionary."""
    copied: str
    """The text that is copied if the dictionary has no entry."""


class _SourceWords:
    """The words of a source line.

    All indices of tokens refer to the tokens that the source tokenizer returns for the line; tags are not counted.

    Args:
        tokenizer: the source tokenizer.
        line: the source line.
        n_read: L, the number of the line's tokens that the model has read; later tokens are not used.
    """

    def __init__(self, tokenizer: Tokenizer, line: str, n_read: int) -> None:
        self._tokenizer = tokenizer
        self._text_tokens = _text_tokens(tokenizer, line, n_read)
        """The tokens of the text by their indices."""
        line_indices = list(self._text_tokens)
        tokens = list(self._text_tokens.values())
        ids = tokenizer.vocabulary.text_ids(tokens)
        self._unknown_tokens: set[int] = set()
        """Indices of the tokens that are not in the vocabulary."""
        for line_index, token_id in zip(line_indices, ids, strict=True):
            if token_id == UNK:
                self._unknown_tokens.add(line_index)
        self._words: list[list[int]] = []
        """For each word, the indices of its pieces."""
        if tokenizer.config.cuts_words:  # each token is a word
            self._words = [[line_index] for line_index in line_indices]
        else:
            for span in display_word_spans(tokens):
                self._words.append(line_indices[span.start : span.stop])

    @property
    def is_empty(self) -> bool:
        """Whether the line has no words."""
        return not self._words

    def choose(self, weights: NDArray[Any]) -> _Choice:
        """Chooses the word to which the weights `(L,)` of the line's tokens point; see `UnknownReplacer`."""
        # Words are identified by their indices in `self._words`, and pieces by their indices in the line.
        word_weights = [float(weights[piece_indices].sum()) for piece_indices in self._words]
        unknown_words = []
        for number, piece_indices in enumerate(self._words):
            if not self._unknown_tokens.isdisjoint(piece_indices):
                unknown_words.append(number)
        # Rule 1: known punctuation is ignored.
        allowed_words = []
        for number, piece_indices in enumerate(self._words):
            has_letters_or_digits = any(map(str.isalnum, self._spelling_of(piece_indices)))
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
        return self._choose_piece(self._words[chosen_word], weights)

    def _choose_piece(self, piece_indices: Sequence[int], weights: NDArray[Any]) -> _Choice:
        """Chooses between a whole word, given by the indices of its pieces, and its most attended unknown piece.

        `weights` `(L,)` are the weights of the line's tokens.
        """
        attended_piece = max(piece_indices, key=weights.__getitem__)
        unknown_pieces = [index for index in piece_indices if index in self._unknown_tokens]
        if unknown_pieces:
            unknown_piece = max(unknown_pieces, key=weights.__getitem__)
            if weights[unknown_piece] >= MIN_UNKNOWN_SHARE * weights[attended_piece]:
                spelling = self._spelling_of([unknown_piece])
                return _Choice(line_token=unknown_piece, spelling=spelling, copied=spelling)
        spelling = self._spelling_of(piece_indices)
        copied = _without_punctuation_around(spelling)
        return _Choice(line_token=attended_piece, spelling=spelling, copied=copied)

    def _spelling_of(self, piece_indices: Iterable[int]) -> str:
        tokens = [self._text_tokens[index] for index in piece_indices]
        return _spelling(self._tokenizer, tokens)


def _text_tokens(tokenizer: Tokenizer, line: str, n_read: int | None = None) -> dict[int, str]:
    """Returns the tokens of a line's text, without sentinels, by their indices among all tokens of the line.

    Leaves out the tokens that an imported tokenizer adds to a line, which are the tokens of `source_prefix` and special
    tokens such as language tokens. T5's sentinels are left out, too, because they are special tokens. Since they may
    occur within a text, the indices need not be consecutive.

    Args:
        tokenizer: the source tokenizer.
        line: a source line, or an entry of the dictionary.
        n_read: number of the line's tokens that the model has read, including tokens that are left out. Default: all.
    """
    tokens = tokenizer.tokens(line)[:n_read]
    if not tokenizer.config.is_imported:
        return dict(enumerate(tokens))
    # mBART puts EOS before the language token at the end of a line. `specials` does not contain EOS.
    special_tokens = {*tokenizer.vocabulary.specials, SPECIALS[EOS]}
    if tokenizer.config.kind == "marian":
        # The vocabulary of a Marian model does not record which of its tokens are language tags.
        special_tokens.add(tokenizer.tag(line))
    text_tokens = {
        index: token for index, token in enumerate(tokens) if token not in special_tokens
    }
    if tokenizer.config.source_prefix:
        # An empty line has the tokens of the prefix. The last of these may be a lone "▁", for a space at the end of
        # the prefix. It is left out even if the text itself begins with a lone "▁".
        tokens_of_empty_line = tokenizer.tokens("")
        prefix_tokens = [token for token in tokens_of_empty_line if token not in special_tokens]
        for index, prefix_token in zip(list(text_tokens), prefix_tokens, strict=False):
            if text_tokens[index] != prefix_token:
                break
            del text_tokens[index]
    return text_tokens


def _spelling(tokenizer: Tokenizer, tokens: Iterable[str]) -> str:
    """Returns the text of the tokens, without word-start markers.

    Dictionary entries, words and unknown pieces must all be spelled by this function, so that an entry matches a word
    that has the same tokens. `Tokenizer.join` could spell an entry differently from the same word in the source: an
    imported tokenizer keeps the markers of unknown tokens, and kind `pieces` keeps all markers.
    """
    separator = " " if tokenizer.config.kind == "pieces" else ""
    return separator.join(tokens).replace(WORD_START, " ").strip()


def _without_punctuation_around(word: str) -> str:
    """Strips punctuation and symbols from both ends of a word, unless the word consists of nothing else."""
    inner = [
        index
        for index, character in enumerate(word)
        if unicodedata.category(character)[0] not in "PS"
    ]
    return word[inner[0] : inner[-1] + 1] if inner else word
