"""The interface of tokenizers, and the tokenizers that use sentencepiece (bpe, unigram, char) or whole words.

Except for the kind `pieces`, they mark the beginning of a word with "▁" (U+2581): joining the pieces and replacing each
mark with a space restores the text. A mark in the text itself counts as white space.
"""

import io
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from random import Random
from typing import Any, Literal

import sentencepiece
from typing_extensions import override

from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.settings import Field, Settings, model_validator, parse
from nmtkit.data.text.normalization import DEFAULT, Normalization, normalize, separate_words
from nmtkit.data.text.sentences import split_sentences
from nmtkit.data.tokenizers.sentencepiece_rules import with_space_rules
from nmtkit.data.tokenizers.subword_sampling import (
    BpeDropout,
    SubwordSampler,
    UnigramSampler,
    generator_for,
)
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, RESTORE_HINT, SPECIALS, UNK, Vocabulary

_INVISIBLE = frozenset({PAD, BOS, EOS})
"""Ids that `Tokenizer.pieces` leaves out."""
WORD_START = "▁"
"""Marks the first piece of a word."""

MAX_VOCAB_SIZE = 100_000_000
TRAIN_LINES = 200_000
"""Maximum number of pairs of a corpus on which a tokenizer is trained. They are spread evenly over the corpus. Files
contribute in proportion to their weights."""


class TokenizerConfig(Settings):
    """Settings of the tokenizers."""

    kind: Literal[
        "bpe",
        "unigram",
        "char",
        "wordpiece",
        "word",
        "whitespace",
        "pieces",
        "marian",
        "huggingface",
    ] = "bpe"
    """Kind of tokenizer: bpe or unigram (subwords), char (characters), wordpiece (subwords as in GNMT), word (words and
    punctuation), whitespace (for text that is already tokenized) or pieces (for text that sentencepiece has already
    tokenized). marian and huggingface are for imported models only."""
    vocab_size: int = Field(default=8000, ge=5, le=MAX_VOCAB_SIZE)
    """Size of each vocabulary, including special tokens. A vocabulary is smaller if the text has too few words or
    subwords."""
    tgt_vocab_size: int | None = Field(default=None, ge=5, le=MAX_VOCAB_SIZE)
    """Size of the target vocabulary if each side has its own. Default: vocab_size."""
    joint: bool = True
    """Train one tokenizer on both sides together. false: one tokenizer per side."""
    sampling: float = Field(default=0.0, ge=0.0, le=1.0)
    """Sample tokenizations of training text; 0 turns this off. bpe: probability of skipping a merge (BPE-dropout;
    usually 0.1). unigram: how strongly to prefer likely tokenizations (alpha of subword regularization; usually 0.2).
    Samples depend only on `seed`, epoch and example."""
    sentences: bool = False
    """End each sentence of a text with EOS, for models that read documents. A text is split into sentences at tags
    such as <t> if it has any, otherwise at newlines or, if there are none, at white space after ".", "!" or "?"."""
    lowercase: bool = False
    """Lowercase all text."""
    normalization: Normalization = DEFAULT
    """nfkc_numbers: unify compatible characters (full-width letters, ligatures), but keep superscripts, subscripts,
    fractions, enclosed numbers, and the joiners of Persian and Indic scripts. nfkc: complete NFKC, which turns 10⁵ into
    105 and 2½ into 21⁄2. none: change only white space. White space always separates words."""
    min_frequency: int = Field(default=1, ge=1)
    """word, whitespace and pieces: minimum number of times that a word must occur in the training text to be in the
    vocabulary; rarer words become unknown."""
    character_coverage: float = Field(default=1.0, gt=0.0, le=1.0)
    """bpe, unigram and char: share of the training text that the characters in the vocabulary cover; rarer characters
    become unknown."""
    specials: list[str] = Field(default_factory=list)
    """Additional special tokens, such as <mask>, which get the ids 4, 5, ... in this order. They are never recognized
    in a text."""
    sentinels: int = Field(default=0, ge=0, le=10_000)
    """Number of special tokens <extra_id_0>, <extra_id_1>, ... after `specials`, which the objective span_corruption
    needs. T5 has 100."""
    affixes: dict[Literal["src", "tgt"], dict[Literal["before", "after", "start"], list[str]]] = (
        Field(default_factory=dict)
    )
    """Special tokens before and after each text on a side, such as `{src: {before: [de_DE]}}`; for huggingface only.
    BOS and EOS are added in any case. `start` is the language that BOS represents. <language> is a placeholder for a
    language that has not been chosen yet; a corpus chooses it with `src_lang` and `tgt_lang`."""
    source_prefix: str = ""
    """Text to put before each source, such as "summarize: ", which selects a T5 task; for huggingface only."""
    columns: dict[Literal["src", "tgt"], dict[str, Any]] = Field(default_factory=dict)
    """Settings for one text column that override the shared ones, such as `{tgt: {kind: word, vocab_size: 500}}`.
    If both sides are text, this requires `joint: false`."""

    @model_validator(mode="after")
    def _fits(self) -> "TokenizerConfig":
        if self.sampling > 0 and self.kind not in ("bpe", "unigram"):
            raise ValueError(
                f"sampling: a tokenizer of kind {self.kind} cannot sample tokenizations; use bpe or unigram, or set "
                "sampling to 0"
            )
        if self.min_frequency > 1 and not self.cuts_words:
            raise ValueError(
                "min_frequency: applies only to tokenizers of kind word, whitespace or pieces; for other kinds, set "
                "vocab_size instead"
            )
        if self.tgt_vocab_size is not None and self.joint:
            raise ValueError(
                "tgt_vocab_size: with `joint: true`, both sides share one vocabulary; set joint to false"
            )
        all_specials = [*SPECIALS, *self.special_tokens]
        has_repeated_names = len({*all_specials}) < len(all_specials)
        has_spaces = any([name] != name.replace(WORD_START, " ").split() for name in all_specials)
        if has_repeated_names or has_spaces:
            raise ValueError(
                f"specials: the names must be distinct, contain no white space, and differ from {' '.join(SPECIALS)}"
            )
        if self.special_tokens and (self.kind == "marian" or self.vocab_size <= len(all_specials)):
            raise ValueError(
                f"specials: vocab_size must be larger than the number of special tokens, {len(all_specials)}, "
                "and kind must not be marian"
            )
        remedies = {"affixes": "remove it", "source_prefix": "put the prefix into the text instead"}
        for key, remedy in remedies.items():
            if getattr(self, key) and self.kind != "huggingface":
                raise ValueError(
                    f"{key}: only tokenizers of kind huggingface have this setting; {remedy}"
                )
        for name in self.columns:
            self.for_column(name)
        return self

    def for_column(self, name: str) -> "TokenizerConfig":
        """Returns the settings of one text column; raises a RecipeError if its overrides in `columns` are invalid."""
        columns: Mapping[Any, dict[str, Any]] = self.columns
        overrides = columns.get(name, {})
        for key in overrides:
            if key in ("columns", "joint", "tgt_vocab_size"):
                raise RecipeError(
                    f"`tokenizer.columns.{name}.{key}` applies to all texts; move it from `columns` to `tokenizer`"
                )
        values = self.model_dump(exclude={"columns", "tgt_vocab_size"})
        if name == "tgt" and self.tgt_vocab_size is not None:
            values["vocab_size"] = self.tgt_vocab_size
        return parse(TokenizerConfig, values | overrides, f"tokenizer.columns.{name}")

    @property
    def is_imported(self) -> bool:
        """Whether the tokenizer comes from another toolkit's model; its vocabulary is in a separate file."""
        return self.kind in ("marian", "huggingface")

    @property
    def special_tokens(self) -> list[str]:
        """All special tokens except PAD, UNK, BOS and EOS, in the order of their ids."""
        sentinels = [f"<extra_id_{number}>" for number in range(self.sentinels)]
        return [*self.specials, *sentinels]

    @property
    def cuts_words(self) -> bool:
        """Whether tokens are whole words, so that the vocabulary alone defines the tokenizer."""
        return self.kind in ("word", "whitespace", "pieces")


class Tokenizer(ABC):
    """Tokenizes and detokenizes text."""

    suffix: str
    """Suffix of the tokenizer's file."""

    def __init__(self, config: TokenizerConfig, vocabulary: Vocabulary) -> None:
        self.config = config
        self.vocabulary = vocabulary

    def encode_many(self, texts: Sequence[str], seed: int | None = None) -> list[list[int]]:
        """Returns the ids of each text, without BOS or final EOS; with `config.sentences`, EOS separates sentences.

        Without a seed, each text gets its best tokenization. With a seed, tokenizations are sampled at the rate
        `config.sampling`; they depend only on the seed, the text and its index in `texts`.
        """
        if seed is not None:
            return [
                self.sample(text, generator_for(seed, position))
                for position, text in enumerate(texts)
            ]
        if not self.config.sentences:
            return self._encoded(texts)
        # Encode the sentences of all texts in one call, which is faster.
        sentences_by_text = [split_sentences(text) for text in texts]
        all_sentences = list(chain.from_iterable(sentences_by_text))
        encoded = iter(self._encoded(all_sentences))
        rows = []
        for sentences in sentences_by_text:
            ids_of_text = islice(encoded, len(sentences))
            rows.append(_with_ends(ids_of_text))
        return rows

    def sample(self, text: str, generator: Random) -> list[int]:
        """Returns the ids of a tokenization that `generator` samples at the rate `config.sampling`."""
        if not self.config.sentences:
            return self._sampled(text, generator)
        return _with_ends(self._sampled(sentence, generator) for sentence in split_sentences(text))

    @abstractmethod
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Implements `encode_many` without a seed, for texts that need not be split into sentences."""

    def _sampled(self, text: str, generator: Random) -> list[int]:
        """Implements `sample` for a text that need not be split into sentences."""
        raise AssertionError(f"a tokenizer of kind {self.config.kind} does not sample")

    @abstractmethod
    def tokens(self, text: str) -> list[str]:
        """Returns the tokens of a text; unknown tokens keep their spelling, for copying."""

    def tag(self, text: str) -> str:
        """Returns the language tag at the beginning of a text; "" if there is none or the tokenizer has no tags."""
        return ""

    @abstractmethod
    def content(self) -> bytes:
        """Returns the content of the tokenizer's file, without settings."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without BOS and EOS."""
        return self.encode_many([text])[0]

    def pieces(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        """Converts ids to tokens, without PAD, BOS and EOS; the ids V, V+1, ... stand for the words in `oov`."""
        visible = [number for number in ids if number not in _INVISIBLE]
        return self.vocabulary.tokens_of(visible, oov)

    def join(self, pieces: Iterable[str]) -> str:
        """Joins pieces to form a text."""
        if self.config.kind == "pieces":
            return " ".join(pieces)
        return "".join(pieces).replace(WORD_START, " ").strip()

    def decode(self, ids: Iterable[int], oov: Sequence[str] = ()) -> str:
        """Converts ids to a text, in which unknown words appear as <unk>."""
        return self.join(self.pieces(ids, oov))

    def prepared(self, text: str) -> str:
        """Returns the text that is split into tokens: lowercased and normalized according to the settings."""
        # Text is not lowercased by sentencepiece, because its case folding would also turn German "ß" into "ss".
        return text.lower() if self.config.lowercase else text

    def normalized(self, text: str) -> str:
        """Returns the form of the text that determines its tokens: texts with equal forms have the same tokens."""
        return self.prepared(text)


def _with_ends(sentences: Iterable[Sequence[int]]) -> list[int]:
    """Concatenates the ids of sentences, with EOS between them; skips empty sentences."""
    joined: list[int] = []
    for ids in sentences:
        if not ids:
            continue
        if joined:
            joined.append(EOS)
        joined += ids
    return joined


_LANGUAGE = re.compile(r">>\S+?<<")


class SentencePieceTokenizer(Tokenizer):
    """Tokenizes text into subwords or characters with a sentencepiece model; `model` is the content of its file.

    If there is a `table` (as in Marian models), this vocabulary rather than the model determines the ids, and a
    language tag such as `>>fr<<` may precede a text.
    """

    suffix = ".model"

    def __init__(
        self, config: TokenizerConfig, model: bytes, table: Vocabulary | None = None
    ) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as fault:
            raise CheckpointError(
                f"not a sentencepiece model, or damaged; {RESTORE_HINT}"
            ) from fault
        self._model = model
        n_pieces = self._processor.get_piece_size()
        piece_ids = list(range(n_pieces))
        self.model_pieces: list[str] = self._processor.id_to_piece(piece_ids)
        """The model's pieces in the order of the model's ids."""
        self._uses_table = table is not None
        self._sampler: SubwordSampler | None = None
        vocabulary = table
        if vocabulary is None:
            vocabulary = Vocabulary(self.model_pieces, config.special_tokens)
        super().__init__(config, vocabulary)

    @classmethod
    def learn(
        cls, config: TokenizerConfig, lines: Sequence[str], what: str = "text"
    ) -> "SentencePieceTokenizer":
        """Trains a model on lines; the result is the same on all machines.

        bpe: Sennrich et al. 2016, Algorithm 1. unigram: Kudo 2018, the language model of section 3.2.

        The vocabulary is smaller than `config.vocab_size` if the lines have too few subwords. `what` describes the
        lines in messages.
        """
        size = config.vocab_size
        while True:
            try:
                model = _train_model(config, lines, size)
            except RuntimeError as fault:
                # If there are too few subwords, sentencepiece reports the largest possible size.
                largest = _LARGEST_SIZE.search(str(fault))
                if largest is None or int(largest[1]) >= size:
                    raise _explained(config, what, str(fault)) from fault
                size = int(largest[1])
            else:
                return cls(config, model)

    @override
    def prepared(self, text: str) -> str:
        if self._uses_table:
            # Models from other toolkits normalize text themselves.
            return super().prepared(text)
        return _prepared(self.config, text)

    @override
    def normalized(self, text: str) -> str:
        form: str = self._processor.normalize(self.prepared(text))
        return form

    @override
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        if self._uses_table:
            return [self.vocabulary.ids(self.tokens(text)) for text in texts]
        texts = [self.prepared(text) for text in texts]
        if len(texts) == 1:  # encoding a list of texts would start a thread
            return [self._processor.encode(texts[0])]
        # One thread: large corpora are encoded by several processes, and small batches do not benefit from threads.
        encoded: list[list[int]] = self._processor.encode(texts, num_threads=1)
        return encoded

    @override
    def _sampled(self, text: str, generator: Random) -> list[int]:
        if self._sampler is None:
            self._sampler = self._new_sampler()
        return self._sampler.sample(self.normalized(text), generator.random)

    def _new_sampler(self) -> SubwordSampler:
        assert self.config.kind in ("bpe", "unigram"), (
            f"a tokenizer of kind {self.config.kind} does not sample"
        )
        processor = self._processor
        ids: dict[str, int] = {}
        scores: dict[str, float] = {}
        for number, piece in enumerate(self.model_pieces):
            if processor.is_control(number) or processor.is_unknown(number):
                continue
            ids[piece] = number
            scores[piece] = processor.get_score(number)
        if self.config.kind == "bpe":
            return BpeDropout(scores, ids, self.config.sampling)
        return UnigramSampler(scores, ids, self.config.sampling)

    @override
    def tokens(self, text: str) -> list[str]:
        tag = self.tag(text)
        plain_text = self.prepared(text)[len(tag) :]
        tokens: list[str] = self._processor.encode(plain_text, out_type=str)
        return [tag, *tokens] if tag else tokens

    @override
    def tag(self, text: str) -> str:
        match = _LANGUAGE.match(text) if self._uses_table else None
        return "" if match is None else match.group()

    @override
    def content(self) -> bytes:
        return self._model


def _train_model(config: TokenizerConfig, lines: Iterable[str], size: int) -> bytes:
    """Trains a sentencepiece model with `size` tokens, and returns the content of its file.

    Raises a RuntimeError if sentencepiece fails.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        # sentencepiece ignores lines with "▅", which it uses internally for unknown characters.
        sentence_iterator=(_training_line(config, line).replace("▅", " ") for line in lines),
        model_writer=model,
        model_type=config.kind,
        vocab_size=size,
        hard_vocab_limit=config.kind != "char",
        character_coverage=config.character_coverage,
        # sentencepiece has no equivalent of nfkc_numbers, so `_training_line` applies it.
        normalization_rule_name="nmt_nfkc" if config.normalization == "nfkc" else "identity",
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        # Fixed, because unigram sums its estimates per thread, so the result would otherwise depend on the machine.
        num_threads=4,
        # By default, lines of more than 4192 bytes would silently be skipped.
        max_sentence_length=1 << 24,
        minloglevel=2,
        control_symbols=config.special_tokens,
    )
    content = model.getvalue()
    if config.normalization == "none":
        return with_space_rules(content)
    return content


def _prepared(config: TokenizerConfig, text: str) -> str:
    """Prepares a text for sentencepiece, which normalizes it further unless the rules are nfkc_numbers."""
    if config.lowercase:
        text = text.lower()
    if config.normalization == "nfkc_numbers":
        return normalize(text.replace(WORD_START, " "), config.normalization)
    return separate_words(text)


def _training_line(config: TokenizerConfig, line: str) -> str:
    """Prepares a line on which a model is trained."""
    text = _prepared(config, line)
    if config.normalization == "none":
        # The rules for white space are added to the model only after it has been trained.
        return normalize(text, "none")
    return text


_LARGEST_SIZE = re.compile(r"Vocabulary size too high .*<= (\d+)")


def _explained(config: TokenizerConfig, what: str, fault: str) -> RecipeError | DataError:
    """Converts an error message from sentencepiece's trainer to an exception that explains the error."""
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", fault)
    if too_small is not None:
        return RecipeError(
            f"tokenizer.vocab_size: {config.vocab_size} is too small for this {what}: every character needs a token; "
            f"use at least {int(too_small[1]) + 1}, or a character_coverage below {config.character_coverage}"
        )
    if "sentences_.empty()" in fault or "all_chars_count" in fault:
        return DataError(
            f"tokenizer: there is no {what} to train on; the training files contain only empty lines"
        )
    return DataError(f"tokenizer: sentencepiece cannot be trained on this {what}: {fault}")


@cache
def _word() -> re.Pattern[str]:
    # Marks (accents, vowel signs) modify the letter before them, but `\w` does not match them.
    marks = ""
    for character in map(chr, range(0x300, 0x10000)):
        category = unicodedata.category(character)
        if category.startswith("M"):
            marks += character
    return re.compile(rf"\d+(?:[.,]\d+)+|[\w{marks}]+|[^\s]")


class WordTokenizer(Tokenizer):
    """Splits text into words, numbers and single punctuation marks.

    A run of letters (with their accents) and digits is a token, and so is a number with points or commas between its
    digits; any other character is a separate token. Joining restores the text except for the width of white space and
    for unknown words (an unknown token is separated by spaces). The kinds whitespace and pieces split only at white
    space.
    """

    suffix = ".vocab"

    @classmethod
    def learn(
        cls, config: TokenizerConfig, lines: Sequence[str], what: str = "text"
    ) -> "WordTokenizer":
        """Builds a vocabulary from the most frequent words in the lines; raises a DataError if there are none.

        `what` describes the lines in messages.
        """
        # A tokenizer with an empty vocabulary can already split lines.
        specials = [*SPECIALS, *config.special_tokens]
        splitter = cls(config, Vocabulary(specials, config.special_tokens))
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(splitter.tokens(line))
        vocabulary = Vocabulary.build(
            counts=counts,
            max_size=config.vocab_size,
            min_frequency=config.min_frequency,
            further=config.special_tokens,
        )
        if len(vocabulary) == vocabulary.n_specials:
            raise DataError(
                f"tokenizer: there are no words to train on: the {what} is empty, or min_frequency is too high"
            )
        return cls(config, vocabulary)

    @override
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.vocabulary.text_ids(self.tokens(text)) for text in texts]

    @override
    def prepared(self, text: str) -> str:
        if self.config.kind != "pieces":
            text = text.replace(WORD_START, " ")
        return normalize(super().prepared(text), self.config.normalization)

    @override
    def tokens(self, text: str) -> list[str]:
        kind = self.config.kind
        text = self.prepared(text)
        if kind == "pieces":
            return text.split()
        if kind == "whitespace":
            return [WORD_START + word for word in text.split()]
        tokens: list[str] = []
        for word in text.split():
            first = len(tokens)
            tokens += _word().findall(word)
            tokens[first] = WORD_START + tokens[first]
        return tokens

    @override
    def pieces(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        pieces = super().pieces(ids, oov)
        if self.config.kind == "pieces":
            return pieces
        separate_tokens = {SPECIALS[UNK], *self.config.special_tokens}
        for number, piece in enumerate(pieces):
            if piece in separate_tokens:
                pieces[number] = WORD_START + piece
        return pieces

    @override
    def join(self, pieces: Iterable[str]) -> str:
        if self.config.kind == "word":
            pieces = _with_word_starts(pieces)
        return super().join(pieces)

    @override
    def content(self) -> bytes:
        return self.vocabulary.content()


def _with_word_starts(pieces: Iterable[str]) -> list[str]:
    """Adds the word-start mark to tokens of a `word` tokenizer that would otherwise merge with the word before them.

    Tokenized text needs no such mark, but a model may generate "mid", "-", "year", "year". Without the mark, the text
    would be "mid-yearyear", with a word that the model did not generate.
    """
    marked: list[str] = []
    for piece in pieces:
        if marked and _would_merge(marked[-1], piece):
            marked.append(WORD_START + piece)
        else:
            marked.append(piece)
    return marked


def _would_merge(left: str, right: str) -> bool:
    """Returns whether joining two pieces produces a word that crosses the boundary between them."""
    boundary = len(left)
    words = _word().finditer(left + right)
    return any(word.start() < boundary < word.end() for word in words)
