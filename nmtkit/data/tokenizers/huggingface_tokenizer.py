"""Tokenizers of public models, by Hugging Face's library `tokenizers`: byte-level BPE, WordPiece, unigram and others.

A vocabulary here begins with PAD, UNK, BOS and EOS, then come the other special tokens. So every token has an id of its
own here, and its name begins with "▁" where a word begins, whatever the library writes.
"""

import copy
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from nmtkit.core.errors import CheckpointError, NmtkitError, RecipeError, shorten
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer, TokenizerConfig
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, RESTORE_HINT, SPECIALS, UNK, Vocabulary

LANGUAGE = "<language>"
"""In `TokenizerConfig.affixes`, the place of a language that is not chosen yet."""
LANGUAGE_TOKEN = re.compile(r"__[a-z]{2,3}__|[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")
"""The token of a language: M2M100 has __de__, mBART de_DE, and NLLB deu_Latn."""

_TAG = re.compile(r">>(\S+?)<<\s*")
SENTINEL = re.compile(r"<extra_id_\d+>")
"""A mark of T5's pretraining, which texts may contain, and which is left out of what a model writes."""
_CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What `clean_up_tokenization_spaces` replaces, in its order."""


def library() -> Any:
    """The library `tokenizers`; NmtkitError where it is not installed."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # large corpora are shared out to processes
    try:
        import tokenizers
    except ImportError as fault:
        raise NmtkitError(
            "the library that cuts text for this model is not installed; pip install 'nmtkit[huggingface]'"
        ) from fault
    return tokenizers


def missing_language_message(side: str, names: Sequence[str]) -> str:
    """Returns the sentence that asks for the language of a text column, of a model with these languages."""
    verb, option = ("read", "--from") if side == "src" else ("write", "--to")
    examples = ("eng_Latn", "en_XX", "__en__") if side == "src" else ("fra_Latn", "fr_XX", "__fr__")
    example = next((name for name in examples if name in names), names[0])
    return f"name the language to {verb}: {option} {example} ({len(names)} languages; {option} list prints them)"


@lru_cache(maxsize=2)
def parse_tokenizer(content: str) -> Any:
    """The tokenizer in the text of a `tokenizer.json`; CheckpointError if there is none.

    No text is cut into its special tokens: "</s>" in a text is four characters. Added tokens that are not special in
    the file, such as T5's sentinels, are read.
    """
    try:
        tokenizer = library().Tokenizer.from_str(content)
    except NmtkitError:
        raise
    except Exception as fault:  # the library raises no narrower one
        raise CheckpointError(f"no tokenizer of Hugging Face, or damaged ({shorten(str(fault), 200)})") from fault
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the library over a vocabulary of our own; `column` is the text that it is for.

    Before each source comes the text `config.source_prefix`, and around each text the special tokens `config.affixes`.
    A text may begin with one, as in `>>de_DE<< Hallo`: it takes the place of the language among them, or else precedes
    the text. A text cannot be encoded while its language is not chosen.

    Tokens that share a row in the public model (such as BOS and EOS) have an id each here; see `shared_rows`.
    """

    suffix = ".json"

    def __init__(self, config: TokenizerConfig, content: bytes, vocabulary: Vocabulary, column: str = "tgt") -> None:
        super().__init__(config, vocabulary)
        self._content = content
        try:
            given = json.loads(content)
            self._tokenizer = parse_tokenizer(given["tokenizer"])
            theirs = np.array(given["ids"], dtype=np.int64)
            self._cleans_up = bool(given["clean_up"])
            if theirs.shape != (len(vocabulary),) or theirs.min() < 0:
                raise ValueError(f"{len(theirs)} ids for {len(vocabulary)} tokens")
        except (ValueError, KeyError, TypeError, OverflowError) as fault:
            raise CheckpointError(f"damaged ({fault!r}); {RESTORE_HINT}") from fault
        self._theirs = theirs
        self._ours = np.full(max(theirs.max() + 1, self._tokenizer.get_vocab_size()), UNK, dtype=np.int64)
        first = vocabulary.n_specials  # a text that spells a special token, as unigram would have it, is unknown
        self._ours[theirs[first:]] = np.arange(first, len(theirs))
        skipped = {*vocabulary.specials}
        for row, token in self._tokenizer.get_added_tokens_decoder().items():
            if token.special:
                skipped.add(token.content)
            elif token.content in vocabulary.specials:
                self._ours[row] = vocabulary.ids([token.content])[0]
        names = zip(vocabulary.tokens, map(self._tokenizer.id_to_token, theirs.tolist()), strict=True)
        self._spelled = {token: None if name in skipped else name for token, name in names}
        self._set_affixes(config, column)

    def _set_affixes(self, config: TokenizerConfig, column: str) -> None:
        self.config = config
        self._column = column
        affixes: dict[str, dict[str, list[str]]] = {
            str(side): {str(place): tokens for place, tokens in places.items()}
            for side, places in config.affixes.items()
        }
        around = affixes.get(column, {})
        self._before = [*around.get("before", [])]
        self._after = [*around.get("after", [])]
        self._starts = "start" in around
        self._prefix = config.source_prefix if column == "src" else ""
        start = affixes.get("tgt", {}).get("start", [])
        for name in (*self._before, *self._after, *start):
            if name != LANGUAGE and name not in self.vocabulary:
                raise CheckpointError(f"tokenizer.affixes: {name!r} is not a token of the vocabulary")
        self._start_is_open = around.get("start") == [LANGUAGE]
        if start and start != [LANGUAGE]:
            self._set_first_input(start[0])

    def _set_first_input(self, language: str) -> None:
        """Makes BOS, the decoder's first input, share the row of a language."""
        (number,) = self.vocabulary.ids([language])
        if self._theirs[BOS] == self._theirs[number]:
            return
        self._theirs = self._theirs.copy()
        self._theirs[BOS] = self._theirs[number]
        content = json.loads(self._content)
        self._content = self.pack(content["tokenizer"], self._theirs.tolist(), content["clean_up"])

    def with_config(self, config: TokenizerConfig, column: str) -> "HuggingFaceTokenizer":
        """Returns the same tokenizer with other affixes."""
        other = copy.copy(self)
        other._set_affixes(config, column)
        return other

    def first_tokens(self) -> list[str]:
        """Returns the special tokens that every text begins with, without an open language."""
        return [name for name in self._before if name != LANGUAGE]

    def public_names(self, tokens: Sequence[str]) -> list[str]:
        """Returns the names that tokens have in the public model, such as <s> for our <2>."""
        rows: list[int] = self._theirs[self.vocabulary.ids([*tokens])].tolist()
        return [self._tokenizer.id_to_token(row) for row in rows]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each token in the matrices of the public model `(V,)`."""
        return self._theirs

    def shared_rows(self) -> list[list[int]]:
        """Returns the ids of tokens that share a row in the public model, such as BOS and EOS."""
        ids_of_row: dict[int, list[int]] = {}
        for number, row in enumerate(self._theirs[: self.vocabulary.n_specials].tolist()):
            ids_of_row.setdefault(row, []).append(number)
        return [ids for ids in ids_of_row.values() if len(ids) > 1]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._tokenizer.encode_special_tokens = True  # which the library does not send to another process

    @classmethod
    def pack(cls, tokenizer: str, ids: Sequence[int], clean_up: bool) -> bytes:
        """The content of a file: the text of a `tokenizer.json`, its id of each of our tokens, and how it joins."""
        return json.dumps({"clean_up": clean_up, "ids": [*ids], "tokenizer": tokenizer}, ensure_ascii=False).encode()

    @property
    def languages(self) -> list[str]:
        """The special tokens that name languages, such as "de_DE", "deu_Latn" or "__de__"."""
        return [name for name in self.config.specials if LANGUAGE_TOKEN.fullmatch(name)]

    @override
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        tagged = [self._tagged(text) for text in texts]
        if self._start_is_open or any(LANGUAGE in (*before, *after) for before, _, after in tagged):
            raise RecipeError(missing_language_message(self._column, self.languages))
        prefixed = [self._prefix + text for _, text, _ in tagged]
        encoded = self._tokenizer.encode_batch_fast(prefixed, add_special_tokens=False)
        ids = self.vocabulary.ids
        return [
            [*ids(before), *self._ours[one.ids].tolist(), *ids(after)]
            for (before, _, after), one in zip(tagged, encoded, strict=True)
        ]

    @override
    def tokens(self, text: str) -> list[str]:
        before, text, after = self._tagged(text)
        text = self._prefix + text
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        tokens = self.vocabulary.tokens_of(self._ours[encoding.ids].tolist())
        for number, (token, (start, end)) in enumerate(zip(tokens, encoding.offsets, strict=True)):
            if token == SPECIALS[UNK] and text[start:end].strip():
                begins = not text[:start] or text[start - 1].isspace() or text[start].isspace()
                tokens[number] = WORD_START * begins + "".join(text[start:end].split())
        return [name for name in (*before, *tokens, *after) if name != LANGUAGE]

    @override
    def normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        form: str = text if normalizer is None else normalizer.normalize_str(text)
        return form

    @override
    def tag(self, text: str) -> str:
        return text.removesuffix(self._tagged(text)[1])

    def _tagged(self, text: str) -> tuple[list[str], str, list[str]]:
        """The special tokens before and after a text, and the text without its tag."""
        match = _TAG.match(text)
        names = [name for name in (match[1], f"__{match[1]}__") if name in self.config.specials] if match else []
        if not match or not names:
            return self._before, text, self._after
        places = {LANGUAGE, *self.languages}
        changed = [[names[0] if one in places else one for one in side] for side in (self._before, self._after)]
        extra = [] if names[0] in changed[0] + changed[1] or self._starts else names[:1]
        return [*extra, *changed[0]], text[match.end() :], changed[1]

    @override
    def pieces(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        inside = {
            *self.vocabulary.ids(name for name in (*self._before, *self._after) if name != LANGUAGE)
        }  # an end before the language, as in mBART
        return self.vocabulary.tokens_of((one for one in ids if one not in {PAD, BOS, EOS} - inside), oov)

    @override
    def join(self, pieces: Iterable[str]) -> str:
        """Joins as `transformers` does: without special tokens, with the white space that the pieces have."""
        spelled = [own for piece in pieces if (own := self._spelled.get(piece, piece)) is not None]
        decoder = self._tokenizer.decoder
        text: str = " ".join(spelled) if decoder is None else decoder.decode(spelled)
        for mark in _CLEANED if self._cleans_up else ():
            text = text.replace(mark, mark.strip())
        return text

    @override
    def content(self) -> bytes:
        return self._content
