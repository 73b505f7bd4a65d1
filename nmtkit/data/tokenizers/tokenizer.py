"""Tokenizers: sentencepiece (bpe, unigram, char) and words.

In all of them "▁" (U+2581) marks the beginning of a word: joining pieces and turning every mark into a space restores
the text. In raw text the mark itself counts as white space.
"""

import io
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, islice
from random import Random
from typing import Any, Literal

import sentencepiece
from typing_extensions import override

from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.settings import Field, Settings, model_validator, parse
from nmtkit.data.text.files.lines import split_sentences
from nmtkit.data.text.normalization import DEFAULT, Normalization, normalize, separate_words
from nmtkit.data.tokenizers.sentencepiece_model import with_space_rules
from nmtkit.data.tokenizers.subword_sampling import BpeDropout, SubwordSampler, UnigramSampler, generator_for
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, RESTORE_HINT, SPECIALS, UNK, Vocabulary

WORD_START = "▁"
"""Marks the first piece of a word."""

MAX_VOCAB_SIZE = 100_000_000
TRAIN_LINES = 200_000
"""A vocabulary is learned from at most this many pairs, spread evenly over the corpus, and at most 134 million
characters. Files with weights have shares by weight."""


class TokenizerConfig(Settings):
    """Tokenization of text."""

    kind: Literal["bpe", "unigram", "char", "wordpiece", "word", "whitespace", "pieces", "marian", "huggingface"] = (
        "bpe"
    )
    """bpe or unigram (subwords, by sentencepiece), char (characters), wordpiece (as in GNMT), word (words and
    punctuation), whitespace or pieces (already tokenized text; by sentencepiece); marian and huggingface: of imported
    models only."""
    vocab_size: int = Field(default=8000, ge=5, le=MAX_VOCAB_SIZE)
    """Tokens of each vocabulary, with all special ones. It has fewer if the text has no more words or subwords."""
    tgt_vocab_size: int | None = Field(default=None, ge=5, le=MAX_VOCAB_SIZE)
    """Size of the target vocabulary if the sides have a vocabulary each. Default: vocab_size."""
    joint: bool = True
    """One vocabulary for both sides, learned on both. false: one vocabulary a side."""
    sampling: float = Field(default=0.0, ge=0.0, le=1.0)
    """Sample tokenizations of training text; 0 is off. bpe: the probability of skipping a merge (BPE-dropout; 0.1 is
    usual). unigram: how sharply likely tokenizations are preferred (alpha of subword regularization; 0.2 is usual).
    Draws depend on `seed`, epoch and example only."""
    sentences: bool = False
    """End every sentence of a text in EOS, for models that read documents. Sentences are cut at newlines if a text has
    any, else at white space behind ".", "!" or "?"."""
    lowercase: bool = False
    """Lowercase all text."""
    normalization: Normalization = DEFAULT
    """nfkc_numbers: unify compatible characters (full-width letters, ligatures), but keep superscripts, subscripts,
    fractions and enclosed numbers, and the joiners of Persian and Indic scripts. nfkc: all of NFKC, which turns 10⁵
    into 105 and 2½ into 21⁄2. none: keep the text. White space always separates words."""
    min_frequency: int = Field(default=1, ge=1)
    """word, whitespace and pieces only: rarer words become unknown."""
    character_coverage: float = Field(default=1.0, gt=0.0, le=1.0)
    """bpe, unigram, char: the share of characters that have tokens; below 1 the rarest are unknown."""
    specials: list[str] = Field(default_factory=list)
    """Further special tokens, such as <mask>: ids 4, 5, ... in their order. No text is cut into them."""
    sentinels: int = Field(default=0, ge=0, le=10_000)
    """How many more follow them: <extra_id_0>, <extra_id_1>, ..., for the objective span_corruption. T5 has 100."""
    affixes: dict[Literal["src", "tgt"], dict[Literal["before", "after", "start"], list[str]]] = Field(
        default_factory=dict
    )
    """huggingface only: special tokens before and after the texts of a side, such as `{src: {before: [de_DE]}}`; BOS
    and EOS are always added. `start` is the language that BOS represents. <language> is the place of a language
    that is not chosen yet: `src_lang` and `tgt_lang` of the corpora choose it."""
    source_prefix: str = ""
    """huggingface only: text before every source, such as "summarize: ", by which T5 knows its task."""
    columns: dict[Literal["src", "tgt"], dict[str, Any]] = Field(default_factory=dict)
    """Settings of single texts, laid over these, such as `{tgt: {kind: word, vocab_size: 500}}`. Two texts need joint:
    false."""

    @model_validator(mode="after")
    def _fits(self) -> "TokenizerConfig":
        if self.sampling > 0 and self.kind not in ("bpe", "unigram"):
            raise ValueError(f"sampling: kind {self.kind} has one way to cut a text; use bpe or unigram, or sampling 0")
        if self.min_frequency > 1 and not self.cuts_words:
            raise ValueError("min_frequency: only word, whitespace and pieces count words; subwords take vocab_size")
        if self.tgt_vocab_size is not None and self.joint:
            raise ValueError("tgt_vocab_size: with joint there is one vocabulary for both sides; set joint to false")
        taken = [*SPECIALS, *self.special_tokens]
        if len({*taken}) < len(taken) or any(WORD_START in name or [name] != name.split() for name in taken):
            raise ValueError(f"specials: names must be distinct, not {' '.join(SPECIALS)}, and without white space")
        if self.special_tokens and (self.kind == "marian" or self.vocab_size <= len(taken)):
            raise ValueError(f"specials: with {len(taken)} in all vocab_size must be larger, and kind not marian")
        if self.affixes and self.kind != "huggingface":
            raise ValueError("affixes: only tokenizers of kind huggingface have them")
        if self.source_prefix and self.kind != "huggingface":
            raise ValueError(
                "source_prefix: only tokenizers of kind huggingface have one; put the prefix into the text instead"
            )
        for name in self.columns:
            self.for_column(name)
        return self

    def for_column(self, name: str) -> "TokenizerConfig":
        """The settings of one text; RecipeError if its own are not valid."""
        own: dict[str, Any] = dict(self.columns).get(name, {})  # type: ignore[call-overload]
        for key in own:
            if key in ("columns", "joint", "tgt_vocab_size"):
                raise RecipeError(
                    f"`tokenizer.columns.{name}.{key}` applies to all texts; move it from `columns` to `tokenizer`"
                )
        size = (name == "tgt" and self.tgt_vocab_size) or self.vocab_size
        values = {**self.model_dump(exclude={"columns", "tgt_vocab_size"}), "vocab_size": size, **own}
        return parse(TokenizerConfig, values, f"tokenizer.columns.{name}")

    @property
    def is_imported(self) -> bool:
        """Whether it comes with a model of another toolkit, and has a vocabulary beside its file."""
        return self.kind in ("marian", "huggingface")

    @property
    def special_tokens(self) -> list[str]:
        """The special tokens beside the first four, in the order of their ids."""
        return [*self.specials, *(f"<extra_id_{number}>" for number in range(self.sentinels))]

    @property
    def cuts_words(self) -> bool:
        """Whether tokens are words of a vocabulary, without a model."""
        return self.kind in ("word", "whitespace", "pieces")


class Tokenizer(ABC):
    """Tokenizes and detokenizes text."""

    suffix: str
    """File suffix."""

    def __init__(self, config: TokenizerConfig, vocabulary: Vocabulary) -> None:
        self.config = config
        self.vocabulary = vocabulary

    def encode_many(self, texts: Sequence[str], seed: int | None = None) -> list[list[int]]:
        """The ids of each text, without BOS and without EOS at its end; EOS separates `config.sentences`.

        With a seed, tokenizations are sampled at the rate `config.sampling`. They depend on the seed, and on each text
        and its position among the texts, and are the same in every process. None: the best ones.
        """
        if seed is not None:
            return [self.sample(text, generator_for(seed, position)) for position, text in enumerate(texts)]
        if not self.config.sentences:
            return self._encoded(texts)
        sentences = [split_sentences(text) for text in texts]
        encoded = iter(self._encoded([*chain(*sentences)]))
        return [_with_ends(islice(encoded, len(of_text))) for of_text in sentences]

    def sample(self, text: str, generator: Random) -> list[int]:
        """Returns the ids of a tokenization that is sampled at the rate `config.sampling`.

        All draws come from `generator`.
        """
        if not self.config.sentences:
            return self._sampled(text, generator)
        return _with_ends(self._sampled(sentence, generator) for sentence in split_sentences(text))

    @abstractmethod
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_many` without a seed, each text as a whole."""

    def _sampled(self, text: str, generator: Random) -> list[int]:
        """As `sample`, the text as a whole."""
        raise AssertionError(f"a tokenizer of kind {self.config.kind} does not sample")

    @abstractmethod
    def tokens(self, text: str) -> list[str]:
        """The tokens of a text; unknown ones keep their spelling (for copying)."""

    def tag(self, text: str) -> str:
        """The tag of a language that begins a text, if it is read as one."""
        return ""

    @abstractmethod
    def content(self) -> bytes:
        """The content of its file, without settings."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        return self.encode_many([text])[0]

    def pieces(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        """The tokens of ids, without PAD, BOS and EOS; ids from V upwards are in `oov`."""
        return self.vocabulary.tokens_of((number for number in ids if number not in (PAD, BOS, EOS)), oov)

    def join(self, pieces: Iterable[str]) -> str:
        """Joins pieces to text."""
        return " ".join(pieces) if self.config.kind == "pieces" else "".join(pieces).replace(WORD_START, " ").strip()

    def decode(self, ids: Iterable[int], oov: Sequence[str] = ()) -> str:
        """The text of ids; unknown words are <unk>."""
        return self.join(self.pieces(ids, oov))

    def prepared(self, text: str) -> str:
        """The text in the form that is cut into tokens: lower-cased and normalized as the settings say."""
        # Not sentencepiece's own case folding, which would also write German "ß" as "ss".
        return text.lower() if self.config.lowercase else text

    def normalized(self, text: str) -> str:
        """The form of a text that the model sees: texts with the same form have the same tokens."""
        return self.prepared(text)


def _with_ends(sentences: Iterable[Sequence[int]]) -> list[int]:
    """Joins the ids of sentences, with EOS between them; empty sentences are left out."""
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
    """Subwords or characters by a sentencepiece model, `model` being the content of its file.

    With a `table`, as in Marian, the ids are of this vocabulary and not the model's own, and a language tag such as
    `>>fr<<` may precede the text.
    """

    suffix = ".model"

    def __init__(self, config: TokenizerConfig, model: bytes, table: Vocabulary | None = None) -> None:
        self._model, self._only_cuts = model, table is not None
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as fault:
            raise CheckpointError(f"not a sentencepiece model, or damaged; {RESTORE_HINT}") from fault
        self.own_pieces: list[str] = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        """The model's tokens by its own ids."""
        self._sampler: SubwordSampler | None = None
        super().__init__(config, Vocabulary(self.own_pieces, config.special_tokens) if table is None else table)

    @classmethod
    def learn(cls, config: TokenizerConfig, lines: Sequence[str], what: str = "text") -> "SentencePieceTokenizer":
        """Learns a model from lines, which messages call `what`; deterministic on all machines.

        The vocabulary is smaller than `config.vocab_size` if the lines have too few subwords.

        bpe: Sennrich et al. 2016, Algorithm 1. unigram: Kudo 2018, the language model of section 3.2.
        """
        size = config.vocab_size
        model = None
        while model is None:
            try:
                model = _learn_model(config, lines, size)
            except RuntimeError as fault:
                largest = _LARGEST_SIZE.search(str(fault))
                if largest is None or int(largest[1]) >= size:
                    raise _explained(config, what, str(fault)) from fault
                size = int(largest[1])
        return cls(config, model)

    @override
    def prepared(self, text: str) -> str:
        # Models of other toolkits read text as they do there.
        return super().prepared(text) if self._only_cuts else _prepared(self.config, text)

    @override
    def normalized(self, text: str) -> str:
        form: str = self._processor.normalize(self.prepared(text))
        return form

    @override
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        if self._only_cuts:
            return [self.vocabulary.ids(self.tokens(text)) for text in texts]
        texts = [self.prepared(text) for text in texts]
        if len(texts) == 1:  # without the thread that a list is given to
            return [self._processor.encode(texts[0])]
        # One thread: large corpora are shared out to processes, and small batches gain nothing by several.
        encoded: list[list[int]] = self._processor.encode(texts, num_threads=1)
        return encoded

    @override
    def _sampled(self, text: str, generator: Random) -> list[int]:
        if self._sampler is None:
            self._sampler = self._new_sampler()
        return self._sampler.sample(self._processor.normalize(self.prepared(text)), generator.random)

    def _new_sampler(self) -> SubwordSampler:
        assert self.config.kind in ("bpe", "unigram"), f"a tokenizer of kind {self.config.kind} does not sample"
        ids: dict[str, int] = {}
        scores: dict[str, float] = {}
        for number, piece in enumerate(self.own_pieces):
            if not self._processor.is_control(number) and not self._processor.is_unknown(number):
                ids[piece] = number
                scores[piece] = self._processor.get_score(number)
        sampler = BpeDropout if self.config.kind == "bpe" else UnigramSampler
        return sampler(scores, ids, self.config.sampling)

    @override
    def tokens(self, text: str) -> list[str]:
        text, tag = self.prepared(text), self.tag(text)
        tokens: list[str] = self._processor.encode(text[len(tag) :], out_type=str)
        return [tag, *tokens] if tag else tokens

    @override
    def tag(self, text: str) -> str:
        language = _LANGUAGE.match(text) if self._only_cuts else None
        return language.group() if language else ""

    @override
    def content(self) -> bytes:
        return self._model


def _learn_model(config: TokenizerConfig, lines: Iterable[str], size: int) -> bytes:
    """The content of a sentencepiece model with `size` tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        # Of a line with "▅", its own sign for what is unknown, it would learn nothing.
        sentence_iterator=(_learned_line(config, line).replace("▅", " ") for line in lines),
        model_writer=model,
        model_type=config.kind,
        vocab_size=size,
        hard_vocab_limit=config.kind != "char",
        character_coverage=config.character_coverage,
        # The rules of nfkc_numbers are not sentencepiece's: lines are normalized before it gets them.
        normalization_rule_name="nmt_nfkc" if config.normalization == "nfkc" else "identity",
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        # The estimates of unigram are summed up by thread: the number is fixed, so that no machine differs.
        num_threads=4,
        # Its default would leave out lines of more than 4192 bytes without a word.
        max_sentence_length=1 << 24,
        minloglevel=2,
        control_symbols=config.special_tokens,
    )
    content = model.getvalue()
    return with_space_rules(content) if config.normalization == "none" else content


def _prepared(config: TokenizerConfig, text: str) -> str:
    """The text that sentencepiece gets; it normalizes the text itself unless the rules are nfkc_numbers."""
    if config.lowercase:
        text = text.lower()
    if config.normalization == "nfkc_numbers":
        return normalize(text.replace(WORD_START, " "), config.normalization)
    return separate_words(text)


def _learned_line(config: TokenizerConfig, line: str) -> str:
    """The line that a model is learned from; the model's own rules for spaces are added afterwards."""
    text = _prepared(config, line)
    return normalize(text, "none") if config.normalization == "none" else text


_LARGEST_SIZE = re.compile(r"Vocabulary size too high .*<= (\d+)")


def _explained(config: TokenizerConfig, what: str, fault: str) -> RecipeError | DataError:
    """The error for what sentencepiece's trainer refused."""
    if too_small := re.search(r"smaller than required_chars\. \d+ vs (\d+)", fault):
        return RecipeError(
            f"tokenizer.vocab_size: {config.vocab_size} is too small for this {what}: every character needs a token; "
            f"use at least {int(too_small[1]) + 1}, or a character_coverage below {config.character_coverage}"
        )
    if "sentences_.empty()" in fault or "all_chars_count" in fault:
        return DataError(f"tokenizer: no {what} to learn from; the training files have only empty lines")
    return DataError(f"tokenizer: sentencepiece cannot learn from this {what}: {fault}")


@cache
def _word() -> re.Pattern[str]:
    # Marks (accents, vowel signs) belong to the letter before them, but `\w` does not match them.
    marks = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M"))
    return re.compile(rf"\d+(?:[.,]\d+)+|[\w{marks}]+|[^\s]")


class WordTokenizer(Tokenizer):
    """Words, numbers and single punctuation marks.

    Runs of letters and digits stay together (with their accents), and so do the digits of a number around a point or
    comma; every other character is a token. Joining restores the text, up to the width of white space and unknown words
    (an unknown token is a word of its own). Kinds whitespace and pieces split at white space only.
    """

    suffix = ".vocab"

    @classmethod
    def learn(cls, config: TokenizerConfig, lines: Sequence[str], what: str = "text") -> "WordTokenizer":
        """The most frequent words of the lines, which messages call `what`; DataError if there are none."""
        cutter = cls(config, Vocabulary([*SPECIALS, *config.special_tokens], config.special_tokens))
        counts = Counter(token for line in lines for token in cutter.tokens(line))
        vocabulary = Vocabulary.build(counts, config.vocab_size, config.min_frequency, config.special_tokens)
        if len(vocabulary) == vocabulary.n_specials:
            raise DataError(f"tokenizer: no words to learn from: the {what} is empty, or min_frequency too high")
        return cls(config, vocabulary)

    @override
    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        first = self.vocabulary.n_specials
        return [[n if n >= first else UNK for n in self.vocabulary.ids(self.tokens(one))] for one in texts]

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
        apart = (SPECIALS[UNK], *self.config.special_tokens)
        return [WORD_START + piece if piece in apart else piece for piece in pieces]

    @override
    def join(self, pieces: Iterable[str]) -> str:
        return super().join(_with_word_starts(pieces) if self.config.kind == "word" else pieces)

    @override
    def content(self) -> bytes:
        return self.vocabulary.content()


def _with_word_starts(pieces: Iterable[str]) -> list[str]:
    """The pieces of a text of kind word, where a word that follows another without a mark gets one.

    No text is cut in this way, but a model may write "mid", "-", "year", "year". Without a mark the text would be
    "mid-yearyear", a word that the model did not write.
    """
    marked: list[str] = []
    for piece in pieces:
        if marked and _is_cut_in_a_word(marked[-1], piece):
            piece = WORD_START + piece
        marked.append(piece)
    return marked


def _is_cut_in_a_word(before: str, piece: str) -> bool:
    """Whether a word crosses the boundary between two pieces when they are joined."""
    place = len(before)
    return any(word.start() < place < word.end() for word in _word().finditer(before + piece))
