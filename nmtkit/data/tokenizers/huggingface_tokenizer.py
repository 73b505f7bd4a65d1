"""Runs the tokenizers of public models with Hugging Face's `tokenizers` library: byte-level BPE, WordPiece and others.

Our vocabulary begins with PAD, UNK, BOS and EOS, followed by the other special tokens, so its ids differ from those of
the public model. The name of a token that begins a word starts with "▁", whatever mark the public model uses.
"""

import copy
import json
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from nmtkit.core.errors import CheckpointError, NmtkitError, RecipeError, shorten
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer, TokenizerConfig
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, RESTORE_HINT, SPECIALS, UNK, Vocabulary

Affixes = Mapping[Any, Mapping[Any, Sequence[str]]]
"""Special tokens by side and place; see `TokenizerConfig.affixes`. The keys have the type Any, because they are
literals in the settings and strings elsewhere."""
LANGUAGE = "<language>"
"""Placeholder in `TokenizerConfig.affixes` for a language that has not been chosen yet."""
LANGUAGE_TOKEN = re.compile(r"__[a-z]{2,3}__|[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")
"""Matches the token of a language: __de__ in M2M100, de_DE in mBART, deu_Latn in NLLB."""

_TAG = re.compile(r">>(\S+?)<<\s*")
SENTINEL = re.compile(r"<extra_id_\d+>")
"""Matches T5's mask tokens, which input texts may contain and which are removed from outputs."""
_MARKS_AFTER_SPACE = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""Strings from which the option `clean_up_tokenization_spaces` of `transformers` removes the space, in this order."""


def library() -> Any:
    """Imports and returns the library `tokenizers`; raises an NmtkitError if it is not installed."""
    # The library's threads are turned off, because large corpora are encoded by several processes.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError as fault:
        raise NmtkitError(
            "the library that tokenizes text for this model is not installed; run pip install 'nmtkit[huggingface]'"
        ) from fault
    return tokenizers


def missing_language_message(side: str, names: Sequence[str]) -> str:
    """Returns a message that asks for the language of a text column; `names` lists the model's languages."""
    if side == "src":
        role = "source"
        option = "--from"
        usual_names = ("eng_Latn", "en_XX", "__en__")
    else:
        role = "target"
        option = "--to"
        usual_names = ("fra_Latn", "fr_XX", "__fr__")
    example = next((name for name in usual_names if name in names), names[0])
    count = f"{len(names)} languages; {option} list prints them"
    return f"specify the {role} language, for example {option} {example} ({count})"


@lru_cache(maxsize=2)
def parse_tokenizer(content: str) -> Any:
    """Parses the text of a `tokenizer.json`; raises a CheckpointError if it is damaged.

    The tokenizer does not recognize special tokens in a text: "</s>" is tokenized as four characters. It does recognize
    added tokens that the file does not mark as special, such as T5's sentinels.
    """
    tokenizers = library()
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as fault:  # the library raises nothing more specific
        raise CheckpointError(
            f"not a Hugging Face tokenizer, or damaged ({shorten(str(fault), 200)})"
        ) from fault
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer from Hugging Face's `tokenizers` library with our vocabulary; `column` is its text column.

    Each source is preceded by the text `config.source_prefix`, and each text is enclosed in the special tokens
    `config.affixes`. A text may begin with a language tag, as in `>>de_DE<< Hallo`. The tag replaces the language among
    the affixes; if the affixes contain no language, the tag's token is put before the text. A text cannot be encoded
    before its language is chosen.

    Tokens that share an embedding row in the public model (such as BOS and EOS) have different ids here; see
    `shared_rows`.
    """

    suffix = ".json"

    def __init__(
        self, config: TokenizerConfig, content: bytes, vocabulary: Vocabulary, column: str = "tgt"
    ) -> None:
        super().__init__(config, vocabulary)
        self._content = content
        try:
            facts = json.loads(content)
            self._tokenizer = parse_tokenizer(facts["tokenizer"])
            public_ids = np.array(facts["ids"], dtype=np.int64)  # (V,)
            self._cleans_up = bool(facts["clean_up"])
            if public_ids.shape != (len(vocabulary),) or public_ids.min() < 0:
                raise ValueError(f"expected {len(vocabulary)} ids, none of them negative")
        except (ValueError, KeyError, TypeError, OverflowError) as fault:
            raise CheckpointError(f"damaged ({fault!r}); {RESTORE_HINT}") from fault
        self._public_ids = public_ids
        """The public model's id for each of our ids, `(V,)`."""
        # Our id for each public id. Special tokens become UNK, because a unigram tokenizer recognizes their names if
        # they occur in a text.
        n_public_ids = max(public_ids.max() + 1, self._tokenizer.get_vocab_size())
        self._our_ids = np.full(n_public_ids, UNK, dtype=np.int64)
        n_specials = vocabulary.n_specials
        self._our_ids[public_ids[n_specials:]] = np.arange(n_specials, len(public_ids))
        silent_names = {*vocabulary.specials}
        for public_id, token in self._tokenizer.get_added_tokens_decoder().items():
            if token.special:
                silent_names.add(token.content)
            elif token.content in vocabulary.specials:
                (self._our_ids[public_id],) = vocabulary.ids([token.content])
        self._spellings: dict[str, str | None] = {}
        """The public model's name for each of our tokens, which `join` uses; None for tokens without text."""
        for token, public_id in zip(vocabulary.tokens, public_ids.tolist(), strict=True):
            name = self._tokenizer.id_to_token(public_id)
            self._spellings[token] = None if name in silent_names else name
        self._set_affixes(config, column)

    def _set_affixes(self, config: TokenizerConfig, column: str) -> None:
        self.config = config
        self._column = column
        self._prefix = config.source_prefix if column == "src" else ""
        affixes: Affixes = config.affixes
        around = affixes.get(column, {})
        self._before = [*around.get("before", [])]
        self._after = [*around.get("after", [])]
        self._starts = "start" in around
        """Whether BOS represents the language of the text."""
        self._start_is_open = around.get("start") == [LANGUAGE]
        start = affixes.get("tgt", {}).get("start", [])
        for name in (*self._before, *self._after, *start):
            if name != LANGUAGE and name not in self.vocabulary:
                raise CheckpointError(
                    f"tokenizer.affixes: the token {name!r} is not in the vocabulary"
                )
        # Ids that `pieces` omits. EOS is kept if it is an affix, as in mBART, where it precedes the language.
        affix_ids = self.vocabulary.ids([*self._before, *self._after])
        self._hidden_ids = {PAD, BOS, EOS}.difference(affix_ids)
        if start and start != [LANGUAGE]:
            self._set_first_input(start[0])

    def _set_first_input(self, language: str) -> None:
        """Makes BOS, the decoder's first input, share the embedding row of a language."""
        (number,) = self.vocabulary.ids([language])
        if self._public_ids[BOS] == self._public_ids[number]:
            return
        self._public_ids = self._public_ids.copy()  # copies of this tokenizer share the array
        self._public_ids[BOS] = self._public_ids[number]
        facts = json.loads(self._content)
        ids = self._public_ids.tolist()
        self._content = self.pack(facts["tokenizer"], ids, facts["clean_up"])

    def with_config(self, config: TokenizerConfig, column: str) -> "HuggingFaceTokenizer":
        """Returns a copy of the tokenizer with the affixes of these settings."""
        other = copy.copy(self)
        other._set_affixes(config, column)
        return other

    def first_tokens(self) -> list[str]:
        """Returns the special tokens with which all texts begin, except for a language that has not been chosen yet."""
        return [name for name in self._before if name != LANGUAGE]

    def public_names(self, tokens: Sequence[str]) -> list[str]:
        """Returns the public model's names for our tokens, such as <s> for our <2>."""
        numbers = self.vocabulary.ids(tokens)
        return [
            self._tokenizer.id_to_token(public_id)
            for public_id in self._public_ids[numbers].tolist()
        ]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row of each token in the public model's embedding matrices, `(V,)`."""
        return self._public_ids

    def shared_rows(self) -> list[list[int]]:
        """Returns groups of ids, such as BOS and EOS, whose tokens share a row in the public model."""
        ids_of_row: dict[int, list[int]] = {}
        special_rows = self._public_ids[: self.vocabulary.n_specials].tolist()
        for number, row in enumerate(special_rows):
            ids_of_row.setdefault(row, []).append(number)
        return [ids for ids in ids_of_row.values() if len(ids) > 1]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # The library does not pickle this attribute.
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def pack(cls, tokenizer: str, ids: Sequence[int], clean_up: bool) -> bytes:
        """Returns the content of our file.

        Args:
            tokenizer: text of a `tokenizer.json`.
            ids: the public model's id for each of our ids.
            clean_up: whether joining removes spaces before punctuation marks.
        """
        facts = {"clean_up": clean_up, "ids": [*ids], "tokenizer": tokenizer}
        return json.dumps(facts, ensure_ascii=False).encode()

    @property
    def languages(self) -> list[str]:
        """The special tokens that name languages, such as "de_DE", "deu_Latn" or "__de__"."""
        return [name for name in self.config.specials if LANGUAGE_TOKEN.fullmatch(name)]

    @override
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        tagged_texts = [self._split_tag(text) for text in texts]
        for before, _, after in tagged_texts:
            if self._start_is_open or LANGUAGE in before or LANGUAGE in after:
                raise RecipeError(missing_language_message(self._column, self.languages))
        prefixed = [self._prefix + text for _, text, _ in tagged_texts]
        encodings = self._tokenizer.encode_batch_fast(prefixed, add_special_tokens=False)
        rows = []
        for (before, _, after), encoding in zip(tagged_texts, encodings, strict=True):
            row = self.vocabulary.ids(before)
            row += self._our_ids[encoding.ids].tolist()
            row += self.vocabulary.ids(after)
            rows.append(row)
        return rows

    @override
    def tokens(self, text: str) -> list[str]:
        before, text, after = self._split_tag(text)
        text = self._prefix + text
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        tokens = self.vocabulary.tokens_of(self._our_ids[encoding.ids].tolist())
        for number, (start, end) in enumerate(encoding.offsets):
            if tokens[number] != SPECIALS[UNK]:
                continue
            spelling = "".join(text[start:end].split())
            if not spelling:
                continue
            follows_space = start == 0 or text[start - 1].isspace()
            if follows_space or text[start].isspace():
                tokens[number] = WORD_START + spelling
            else:
                tokens[number] = spelling
        return [name for name in (*before, *tokens, *after) if name != LANGUAGE]

    @override
    def normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        if normalizer is None:
            return text
        form: str = normalizer.normalize_str(text)
        return form

    @override
    def tag(self, text: str) -> str:
        _, plain_text, _ = self._split_tag(text)
        return text.removesuffix(plain_text)

    def _split_tag(self, text: str) -> tuple[list[str], str, list[str]]:
        """Returns the special tokens before a text, the text without its tag, and the special tokens after the text."""
        match = _TAG.match(text)
        if match is None:
            return self._before, text, self._after
        name = match[1]
        if name not in self.config.specials:
            name = f"__{name}__"  # M2M100
        if name not in self.config.specials:
            return self._before, text, self._after
        languages = {LANGUAGE, *self.languages}
        before = _replaced(self._before, languages, name)
        after = _replaced(self._after, languages, name)
        if name not in before and name not in after and not self._starts:
            before = [name, *before]
        return before, text[match.end() :], after

    @override
    def pieces(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        visible = (number for number in ids if number not in self._hidden_ids)
        return self.vocabulary.tokens_of(visible, oov)

    @override
    def join(self, pieces: Iterable[str]) -> str:
        """Joins pieces as `transformers` does: drops special tokens and keeps the white space in the pieces."""
        spellings = []
        for piece in pieces:
            spelling = self._spellings.get(piece, piece)
            if spelling is not None:
                spellings.append(spelling)
        decoder = self._tokenizer.decoder
        text: str = " ".join(spellings) if decoder is None else decoder.decode(spellings)
        if self._cleans_up:
            for mark in _MARKS_AFTER_SPACE:
                text = text.replace(mark, mark.strip())
        return text

    @override
    def content(self) -> bytes:
        return self._content


def _replaced(names: Sequence[str], languages: Container[str], language: str) -> list[str]:
    """Returns special tokens in which `language` replaces all `languages`, which include the placeholder."""
    replaced = []
    for name in names:
        if name in languages:
            replaced.append(language)
        else:
            replaced.append(name)
    return replaced
