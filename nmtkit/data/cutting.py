"""What is done with each part of a corpus by itself, so that many processes can do it: looking, cutting, encoding."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from nmtkit.data.alignments import Links
from nmtkit.data.checking import Lengths, TextFacts
from nmtkit.data.reading import Example
from nmtkit.data.shards import Ragged
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.vocabulary import UNK
from nmtkit.data.words import token_links, token_spans
from nmtkit.errors import DataError

_EXAMPLES = 4096
_CHARACTERS = 1 << 20
"""A chunk ends with so many examples or characters."""


@dataclass(frozen=True)
class Chunk:
    """Some examples that follow each other, column by column: what is cheap to send to another process."""

    lines: Lengths
    """Their lines, `(n,)`."""
    files: Lengths
    """Which of the files each is from, `(n,)`."""
    src: list[str]
    """Sources."""
    tgt: list[str | None]
    """Targets."""
    links: list[Links | None]
    """Links between words."""
    src_words: list[str | None]
    """Sources cut into words otherwise."""
    tgt_words: list[str | None]
    """Targets cut into words otherwise."""

    @classmethod
    def of(cls, examples: list[Example]) -> "Chunk":
        """From examples."""
        return cls(
            np.array([example.line for example in examples], dtype=np.int64),
            np.array([example.file for example in examples], dtype=np.int64),
            [example.src for example in examples],
            [example.tgt for example in examples],
            [example.links for example in examples],
            [example.src_words for example in examples],
            [example.tgt_words for example in examples],
        )

    @property
    def size(self) -> int:
        """Characters."""
        return sum(map(len, self.src)) + sum(len(text) for text in self.tgt if text is not None)


def chunked(examples: Iterable[Example]) -> Iterator[Chunk]:
    """Cuts a corpus into chunks; where, depends on nothing but the examples."""
    chunk: list[Example] = []
    characters = 0
    for example in examples:
        chunk.append(example)
        characters += len(example.src) + len(example.tgt or "")
        if len(chunk) == _EXAMPLES or characters >= _CHARACTERS:
            yield Chunk.of(chunk)
            chunk, characters = [], 0
    if chunk:
        yield Chunk.of(chunk)


def look(chunk: Chunk) -> TextFacts:
    """What the check must know of the text of a chunk."""
    return TextFacts.of(chunk.src, chunk.tgt, chunk.lines)


@dataclass(frozen=True)
class Cut:
    """A chunk of n examples, cut into tokens and ready to be stored."""

    facts: TextFacts
    """What the check must know of the text."""
    files: Lengths
    """Which of the files each is from, `(n,)`."""
    lengths: Mapping[str, Lengths]
    """By side, the tokens that each has, those that were cut off included, `(n,)`."""
    unknown: Mapping[str, Lengths]
    """By side, how many of the tokens that are left are unknown, `(n,)`."""
    columns: Mapping[str, Ragged]
    """What is stored; see `nmtkit.data.store`."""


@dataclass(frozen=True)
class Cutter:
    """Cuts the chunks of one split."""

    split: str
    """Its name, for messages; links are stored for train only."""
    tokenizers: TokenizerPair
    """Of both sides."""
    limits: Mapping[str, int | None]
    """By side, where it is cut, in tokens; None: nowhere."""
    dtype: str
    """Of the ids."""
    keep_text: bool
    """Also keep the raw text."""
    copying: bool
    """Also give extended ids."""

    def __call__(self, chunk: Chunk) -> Cut:
        """Cuts one chunk.

        Raises:
            DataError: some pairs have targets and some have none, or words given beside the text do not spell it.
        """
        targets = [text for text in chunk.tgt if text is not None]
        if targets and len(targets) != len(chunk.src):
            raise DataError(f"{self.split}: some pairs have a target and some have none")
        texts = {"src": chunk.src, "tgt": targets} if targets else {"src": chunk.src}
        lengths, unknown, columns = {}, {}, {}
        for side, lines in texts.items():
            rows = (self.tokenizers.src if side == "src" else self.tokenizers.tgt).encode_many(lines)
            lengths[side] = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
            limit = self.limits[side]
            columns[side] = Ragged.of(rows if limit is None else [row[:limit] for row in rows], self.dtype)
            unknown[side] = _count(columns[side], UNK)
        if self.copying:
            columns.update(self._extended(texts))
        if self.split == "train" and chunk.links[0] is not None:
            columns["alignment"] = self._alignment(chunk, targets)
        if self.keep_text:
            columns.update({f"{side}.text": Ragged.of_texts(lines) for side, lines in texts.items()})
        return Cut(look(chunk), chunk.files, lengths, unknown, columns)

    def _extended(self, texts: Mapping[str, list[str]]) -> dict[str, Ragged]:
        """Both sides in the extended target vocabulary of each example."""
        vocabulary = self.tokenizers.tgt.vocabulary
        ids: dict[str, list[list[int]]] = {f"{side}_extended": [] for side in texts}
        for number, source in enumerate(texts["src"]):
            extended, oov = vocabulary.extend(self.tokenizers.src.tokens(source)[: self.limits["src"]])
            ids["src_extended"].append(extended)
            if "tgt" in texts:
                tokens = self.tokenizers.tgt.tokens(texts["tgt"][number])[: self.limits["tgt"]]
                ids["tgt_extended"].append(vocabulary.extended_target_ids(tokens, oov))
        return {column: Ragged.of(rows, self.dtype) for column, rows in ids.items()}

    def _alignment(self, chunk: Chunk, targets: list[str]) -> Ragged:
        """The links between the tokens of each example, those of cut-off tokens left out, as one row of numbers."""
        places = [f"{self.split}, {{}}, line {line}" for line in chunk.lines]
        src_places, tgt_places = ([place.format(name) for place in places] for name in ("src_words", "tgt_words"))
        src = token_spans(self.tokenizers.src, chunk.src, chunk.src_words, src_places)
        tgt = token_spans(self.tokenizers.tgt, targets, chunk.tgt_words, tgt_places)
        src_limit, tgt_limit = (self.limits[side] or math.inf for side in ("src", "tgt"))
        rows = []
        for between, source, target in zip(chunk.links, src, tgt, strict=True):
            assert between is not None
            links = token_links(between, source, target)
            rows.append([at for s, t in links if s < src_limit and t < tgt_limit for at in (s, t)])
        return Ragged.of(rows, self.dtype)


def _count(rows: Ragged, number: int) -> Lengths:
    """How often a number stands in each row, `(n,)`."""
    until = np.concatenate([[0], np.cumsum(rows.flat == number)])
    ends = np.cumsum(rows.counts)
    counted: Lengths = until[ends] - until[ends - rows.counts]
    return counted
