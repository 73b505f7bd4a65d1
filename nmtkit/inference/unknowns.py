"""Replaces unknown words in translations with source words, which are chosen by their attention weights.

Based on Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation". In the paper, an
unknown word that the model generates is replaced with the dictionary's translation of the source word with the largest
attention weight, or with this source word itself if the dictionary lacks it. Here the source word is chosen by the
rules of `UnknownReplacer`, so it does not always have the largest weight.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS, UNK
from nmtkit.data.tokenizers.words import display_word_spans

MIN_UNKNOWN_SHARE = 0.25
"""Share of the largest weight that an unknown word or piece needs in order to be preferred; chosen by hand.

The share applies to the words of a line (rule 3 of `UnknownReplacer`) and to the pieces of a word (rule 4).
"""
_FIRST_PLACEHOLDER = 0xF0000
"""First of the private-use characters that stand for replacements while tokens are joined; no vocabulary
should contain them."""


@dataclass(frozen=True)
class Replacement:
    """An unknown word in a translation, and the word that replaces it."""

    token: int
    """Index of the unknown word among the translation's tokens."""
    source_token: int
    """Index of the chosen unknown piece, or of the most attended piece of the chosen word, among `src_tokens`."""
    source_word: str
    """The dictionary entry that was found (see `_join_pieces` for its spelling), or else the word or unknown piece that
    is copied."""
    written: str
    """The text that replaces the unknown word: the translation in the dictionary, or else `source_word`. If the target
    tokenizer is of kind `pieces`, it has a word-start marker exactly if the chosen word or piece has one."""


class UnknownReplacer:
    """Replaces unknown words with source words or their translations.

    In the ordinary case, the source word with the largest attention weight is copied without the punctuation around
    it. If the dictionary has a translation of this word, the translation is used instead.

    Attention often spreads to the full stop, to EOS and to neighbouring words, so these rules are applied in order:

    1. Ignored tokens. Tags before the line, T5's sentinels and tokens that imported tokenizers add are ignored, and the
       caller leaves out the final EOS. Known words without a letter or digit are ignored unless there is nothing else.
    2. Most attended word. Of the remaining words, the one with the largest weight is chosen.
    3. Unknown words. The most attended *unknown* word is preferred if it has at least `MIN_UNKNOWN_SHARE` of this
       weight. The model most likely cannot translate a word outside its source vocabulary.
    4. Word or piece. Usually the whole word is used. If some of its pieces are unknown, only the most attended unknown
       piece is used, because the model failed to translate this piece and not the known ones. But if this piece has
       less than `MIN_UNKNOWN_SHARE` of the largest weight in the word, the whole word is used.
    5. Dictionary. The word or piece is looked up. An entry matches if the text is the entry with punctuation around it
       that rule 6 would remove: the entry `U.S.` matches `(U.S.),`, but `5` does not match `-5`. The longest matching
       entry is used, or the first of the dictionary if several have the same length, such as `(no` and `no)` for the
       word `(no)`. The translation is inserted without the punctuation that only the source word has.
    6. Copying. If no entry matches, a whole word is copied without the punctuation and symbols around it: `(dog).`
       gives `dog`. The signs of a number remain: `(-5%).` gives `-5%`. Names lose their symbols, too: `C++` gives `C`,
       unless the dictionary has an entry `C++`. An unknown piece is copied with its punctuation, because the tokenizer
       did not separate it: in tokenized text (kind `whitespace`), an abbreviation such as `U.S.` is a single token.

    With a tokenizer of kind `word`, `whitespace` or `pieces`, each token is a word, and is its only piece. With all
    other kinds, a word begins at a word-start marker, and its tokens are its pieces. They include punctuation that is
    attached to the word, such as a bracket before it or a comma after it; but imported WordPiece tokenizers mark
    punctuation as a separate word. In scripts without spaces, each token is a word, and punctuation is part of the word
    before it (see `display_word_spans`). The weight of a word is the sum of the weights of its pieces. A word is
    unknown if at least one of its pieces is.

    For example, let `ë` be the only unknown token of this source:

        token    ▁Zo   ë     ▁sleep  s     .     EOS
        weight   0.1   0.1   0.3     0.1   0.2   0.2

    The words are `Zoë` with the weight 0.2 and `sleeps.` with the weight 0.6. Rule 2 chooses `sleeps.`, but rule 3
    prefers `Zoë`, because 0.2 is at least 0.25 * 0.6. Rule 4 uses the piece `ë`, because 0.1 is at least 0.25 * 0.1,
    so an entry `ë` matches, and an entry `Zoë` does not. Without a matching entry, only `ë` is copied. If the weights
    of `▁Zo` and `ë` were 0.18 and 0.02, the word `Zoë` would be looked up and copied as a whole.

    A copy is spelled as the tokenizer reads the source: it is lowercase if the tokenizer lowercases text, and
    normalized if the tokenizer normalizes it. Only Hugging Face tokenizers keep the original spelling of unknown
    pieces; pieces that are single bytes of a character are copied by their names. With kind `word` and imported
    WordPiece tokenizers, the sign of a number is a separate word, so it is not copied with the number.

    Args:
        tokenizers: the tokenizers of the model: `src` tokenizes each line again, so it must have the languages with
            which the line was encoded, and `tgt` joins the tokens of the translation.
        dictionary: translations of source words, spelled as in the text. With kind `pieces`, both sides consist of
            pieces, and the first word-start marker may be omitted; further words of a translation need it. An entry may
            include punctuation around the word, as in "U.S.", and then has precedence over an entry without it. Only
            single words and unknown pieces are looked up, so an entry for several words never matches, nor does one of
            several tokens in a script without spaces; kind `word` also cuts "U.S." into several words.

    Raises:
        DataError: the dictionary has different translations for words that the tokenizer maps to the same word.
    """

    def __init__(self, tokenizers: Tokenizers, dictionary: Mapping[str, str] | None = None) -> None:
        self._tokenizers = tokenizers
        self._dictionary: dict[str, str] = {}
        """Translations, keyed by the entry without word-start markers; see `_join_pieces`."""
        self._entries_by_bare_word: dict[str, list[str]] = {}
        """Maps a word without the punctuation around it to the entries that differ from it only in outer
        punctuation."""
        src = tokenizers.src
        if src.config.source_prefix:
            # After the prefix, an entry might be split into other tokens than the same word in the middle of a line.
            src = tokenizers.with_source_prefix("").src
        first_spellings: dict[str, str] = {}
        for word, translation in (dictionary or {}).items():
            # An entry is made from tokens, because the tokenizer may change the text, for example lowercase it.
            text_tokens = _text_tokens(src, word)
            entry = _join_pieces(src, text_tokens.values())
            first_spelling = first_spellings.setdefault(entry, word)
            first_translation = self._dictionary.setdefault(entry, translation)
            if translation != first_translation:
                raise DataError(
                    f"dictionary: {first_spelling!r} and {word!r} are the same word for the model, but have the "
                    f"translations {first_translation!r} and {translation!r}; remove one of them"
                )
        for entry in self._dictionary:
            bare_word = _without_punctuation_around(entry)
            self._entries_by_bare_word.setdefault(bare_word, []).append(entry)

    def with_tokenizers(self, tokenizers: Tokenizers) -> "UnknownReplacer":
        """Returns a copy for sources in other languages, whose tokenizers differ only in their language tokens."""
        replacer = copy(self)
        replacer._tokenizers = tokenizers
        return replacer

    def replace_unknowns(
        self, line: str, tokens: Sequence[str], attention: NDArray[Any], n_tags: int = 0
    ) -> tuple[str, list[Replacement]]:
        """Replaces the unknown words in a translation.

        If the translation has unknown words, the line is tokenized again, so it is tokenized once for each hypothesis
        of an n-best list.

        Args:
            line: the source line; the tags that precede it are not part of it.
            tokens: T target tokens, in which unknown words are `<unk>`, or `▁<unk>` with the kinds `word`, `whitespace`
                and `wordpiece`.
            attention: weights `(T', n_tags + L)` with T' >= T, as in `Translation.attention` but without the column of
                EOS. Row t belongs to token t; further rows, such as that of EOS, are ignored. The columns of the tags
                are followed by the columns of the first L tokens of the line, which are the tokens that the model has
                read: if it truncated the source, the line has more tokens.
            n_tags: number of special tokens that `TextModel.encode_sources` put before the line. A language tag that is
                part of the line, such as `>>fr<<`, is not counted.

        Returns:
            The text of the translation, and the replacements in text order.
        """
        assert len(tokens) <= len(attention), "each token needs a row of attention"
        assert 0 <= n_tags <= attention.shape[1], "each tag needs a column of attention"
        tgt = self._tokenizers.tgt
        # The kinds `word`, `whitespace` and `wordpiece` add the word-start marker to the unknown word.
        unk_tokens = {SPECIALS[UNK], WORD_START + SPECIALS[UNK]}
        positions = [position for position, token in enumerate(tokens) if token in unk_tokens]
        if not positions:
            return tgt.join(tokens), []
        n_read = attention.shape[1] - n_tags
        source_words = _SourceWords(self._tokenizers.src, line, n_read)
        if source_words.is_empty:
            return tgt.join(tokens), []
        # The tokens are joined with placeholders, because `join` would read a replacement as a token: a byte-level
        # tokenizer, for example, would decode its letters as bytes.
        joined_tokens = list(tokens)
        written_by_placeholder: dict[int, str] = {}
        replacements = []
        for position in positions:
            weights = attention[position, n_tags:]  # (L,)
            choice = source_words.choose(weights)
            entry = self._longest_entry(choice.lookup_text)
            source_word = choice.copied_text if entry is None else entry
            written = choice.copied_text if entry is None else self._dictionary[entry]
            placeholder = chr(_FIRST_PLACEHOLDER + position)
            if tgt.config.kind == "pieces":
                # Here `<unk>` represents a piece with or without a marker, and `tgt.join` keeps all markers.
                marker = WORD_START if choice.has_word_start else ""
                written = marker + written.removeprefix(WORD_START)
                joined_tokens[position] = placeholder
            else:
                # Known limitation: most tokenizers with word-start markers (sentencepiece, Marian, Hugging Face) split
                # an unknown word into "▁" and "<unk>", so the model usually generates a lone "▁" first. If it does
                # not, the replacement is attached to the preceding piece: "▁the", "<unk>" gives "theZoë".
                joined_tokens[position] = tokens[position].replace(SPECIALS[UNK], placeholder)
            written_by_placeholder[ord(placeholder)] = written
            replacement = Replacement(
                token=position,
                source_token=n_tags + choice.token_index,
                source_word=source_word,
                written=written,
            )
            replacements.append(replacement)
        text = tgt.join(joined_tokens).translate(written_by_placeholder)
        return text, replacements

    def _longest_entry(self, text: str) -> str | None:
        """Applies rule 5 of `UnknownReplacer`: returns the longest dictionary entry for a word or unknown piece."""
        bare_word = _without_punctuation_around(text)
        entries = self._entries_by_bare_word.get(bare_word, [])
        contained = [entry for entry in entries if entry in text]
        # `max` returns the first entry if several have the same length.
        return max(contained, key=len, default=None)


_Word = list[int]
"""A source word: the indices of its pieces among the line's tokens, without the tags before the line."""


@dataclass(frozen=True)
class _Choice:
    """The source word, or the unknown piece of one, that replaces an unknown target word."""

    token_index: int
    """Index of the piece, or of the most attended piece of the word, among the line's tokens."""
    has_word_start: bool
    """Whether the word or piece begins with a word-start marker, which the texts below do not have."""
    lookup_text: str
    """The text that is looked up in the dictionary, with punctuation."""
    copied_text: str
    """The text that is copied if the dictionary has no entry."""


class _SourceWords:
    """The words of a source line.

    The tokens are those that the source tokenizer returns for the line, and the model has read the same ones. They
    would differ with `tokenizer.sentences`, which puts EOS between sentences, but the schema of recipes rejects this
    key for tasks with a target.

    Args:
        tokenizer: the source tokenizer.
        line: the source line.
        n_read: L, the number of the line's tokens that the model has read; later tokens are not used. If the line was
            truncated inside a word, only the beginning of the word is copied.
    """

    def __init__(self, tokenizer: Tokenizer, line: str, n_read: int) -> None:
        assert not tokenizer.config.sentences
        self._tokenizer = tokenizer
        self._tokens = _text_tokens(tokenizer, line, n_read)
        """The tokens of the text by their indices."""
        ids = tokenizer.vocabulary.text_ids(self._tokens.values())
        self._unknown_indices = {
            token_index
            for token_index, token_id in zip(self._tokens, ids, strict=True)
            if token_id == UNK
        }
        """Indices of the tokens that are not in the vocabulary."""
        self._words = _cut_into_words(tokenizer, self._tokens)
        self._unknown_words: list[_Word] = []
        """The words with unknown tokens."""
        self._allowed_words: list[_Word] = []
        """The words that rule 1 of `UnknownReplacer` does not ignore."""
        # Ignore known words without a letter or digit (rule 1), unless there is nothing else. The other tokens that
        # rule 1 ignores are not among the tokens of the text.
        for word in self._words:
            is_unknown = not self._unknown_indices.isdisjoint(word)
            if is_unknown:
                self._unknown_words.append(word)
            if is_unknown or _has_letter_or_digit(self._text_of(word)):
                self._allowed_words.append(word)
        if not self._allowed_words:
            self._allowed_words = self._words

    @property
    def is_empty(self) -> bool:
        """Whether the line has no words."""
        return not self._words

    def choose(self, weights: NDArray[Any]) -> _Choice:
        """Applies rules 2 to 4 of `UnknownReplacer`, given the weights `(L,)` of the line's tokens."""

        def word_weight(word: _Word) -> float:
            return float(weights[word].sum())

        # Rule 2. `max` returns the first word if several have the same weight.
        chosen_word = max(self._allowed_words, key=word_weight)
        # Rule 3.
        if self._unknown_words:
            unknown_word = max(self._unknown_words, key=word_weight)
            if word_weight(unknown_word) >= MIN_UNKNOWN_SHARE * word_weight(chosen_word):
                chosen_word = unknown_word
        return self._word_or_piece(chosen_word, weights)

    def _word_or_piece(self, word: _Word, weights: NDArray[Any]) -> _Choice:
        """Applies rule 4 of `UnknownReplacer`: chooses between a word and its most attended unknown piece.

        Also prepares the copy for rule 6. `weights` `(L,)` are the weights of the line's tokens.
        """
        attended_index = max(word, key=weights.__getitem__)
        unknown_pieces = [index for index in word if index in self._unknown_indices]
        if unknown_pieces:
            unknown_index = max(unknown_pieces, key=weights.__getitem__)
            if weights[unknown_index] >= MIN_UNKNOWN_SHARE * weights[attended_index]:
                piece = self._text_of([unknown_index])
                return _Choice(
                    token_index=unknown_index,
                    has_word_start=self._tokens[unknown_index].startswith(WORD_START),
                    lookup_text=piece,
                    copied_text=piece,
                )
        text = self._text_of(word)
        return _Choice(
            token_index=attended_index,
            has_word_start=self._tokens[word[0]].startswith(WORD_START),
            lookup_text=text,
            copied_text=_without_punctuation_around(text),
        )

    def _text_of(self, token_indices: Iterable[int]) -> str:
        tokens = [self._tokens[token_index] for token_index in token_indices]
        return _join_pieces(self._tokenizer, tokens)


def _text_tokens(tokenizer: Tokenizer, line: str, n_read: int | None = None) -> dict[int, str]:
    """Returns the tokens of a line's text, without special tokens, by their indices among all tokens of the line.

    Leaves out the tokens that an imported tokenizer adds to a line, which are the tokens of `source_prefix` and special
    tokens such as language tokens. T5's sentinels are left out, too, because they are special tokens. Since they may
    occur within a text, the indices need not be consecutive. Other tokenizers never find special tokens in a line.

    Args:
        tokenizer: the source tokenizer.
        line: a source line, or an entry of the dictionary.
        n_read: number of the line's tokens that the model has read, including tokens that are left out. Default: all.
    """
    tokens = tokenizer.tokens(line)
    if n_read is not None:
        assert n_read <= len(tokens), (
            "the attention has more columns than the line has tokens; is the column of EOS among them?"
        )
        tokens = tokens[:n_read]
    if not tokenizer.config.is_imported:
        return dict(enumerate(tokens))
    # mBART puts EOS before the language token at the end of a line. `specials` does not contain EOS.
    special_tokens = {*tokenizer.vocabulary.specials, SPECIALS[EOS]}
    if tokenizer.config.kind == "marian":
        # A Marian model's vocabulary does not record which of its tokens are language tags, so `specials` lacks them.
        tag = tokenizer.tag(line)
        if tag:
            special_tokens.add(tag)
    text_tokens = {
        index: token for index, token in enumerate(tokens) if token not in special_tokens
    }
    if not tokenizer.config.source_prefix:
        return text_tokens
    # An empty line has the tokens of the prefix.
    prefix_tokens = [token for token in tokenizer.tokens("") if token not in special_tokens]
    return _without_prefix(text_tokens, prefix_tokens)


def _without_prefix(text_tokens: dict[int, str], prefix_tokens: Sequence[str]) -> dict[int, str]:
    """Returns the tokens of a text after the tokens of its prefix.

    The last token of the prefix may be a lone "▁", for a space at the end. Before a text, this space is usually part of
    the text's first token instead, so the comparison stops at the first difference.
    """
    remaining = dict(text_tokens)
    for index, prefix_token in zip(text_tokens, prefix_tokens, strict=False):
        if text_tokens[index] != prefix_token:
            break
        del remaining[index]
    return remaining


def _cut_into_words(tokenizer: Tokenizer, text_tokens: Mapping[int, str]) -> list[_Word]:
    """Groups tokens, which are given by their indices, into words."""
    token_indices = list(text_tokens)
    if tokenizer.config.cuts_words:
        return [[token_index] for token_index in token_indices]
    spans = display_word_spans(list(text_tokens.values()))
    return [token_indices[span.start : span.stop] for span in spans]


def _join_pieces(tokenizer: Tokenizer, pieces: Iterable[str]) -> str:
    """Returns the text of the pieces, without word-start markers.

    Dictionary entries, words and unknown pieces must all be joined by this function, so that a word with the same
    tokens as an entry always has the same text. `Tokenizer.join` could give an entry another text than the same word in
    the source: a Hugging Face tokenizer keeps the markers of unknown tokens, and kind `pieces` keeps all markers.
    """
    separator = " " if tokenizer.config.kind == "pieces" else ""
    return separator.join(pieces).replace(WORD_START, " ").strip()


_SIGNS_BEFORE_DIGIT = "+-\N{MINUS SIGN}"
_SIGNS_AFTER_DIGIT = "%‰°"


def _has_letter_or_digit(word: str) -> bool:
    return any(map(str.isalnum, word))


def _without_punctuation_around(word: str) -> str:
    """Strips punctuation and symbols from both ends of a word, unless the word consists of nothing else.

    If the first remaining character is numeric, a plus, minus or currency sign directly before it remains; if the last
    one is, `%`, `‰`, `°` or a currency sign directly after it remains. Several signs remain as well, as in `-$5`.
    Without them, the number would have a different meaning. Rarer signs, such as the point of `.5` and `±`, are
    stripped.

    Combining marks also remain, although `_has_letter_or_digit` does not count them as letters.
    """
    inner = [
        index
        for index, character in enumerate(word)
        if unicodedata.category(character)[0] not in "PS"
    ]
    if not inner:
        return word
    begin = inner[0]
    if word[begin].isnumeric():
        while begin > 0 and _is_sign_or_currency(word[begin - 1], _SIGNS_BEFORE_DIGIT):
            begin -= 1
    end = inner[-1] + 1
    if word[end - 1].isnumeric():
        while end < len(word) and _is_sign_or_currency(word[end], _SIGNS_AFTER_DIGIT):
            end += 1
    return word[begin:end]


def _is_sign_or_currency(character: str, signs: str) -> bool:
    is_currency_sign = unicodedata.category(character) == "Sc"
    return is_currency_sign or character in signs
