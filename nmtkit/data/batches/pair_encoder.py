"""Turns checked text into the columns of a store: token ids, extended ids, links between tokens, labels."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from nmtkit.core.columns import ColumnType
from nmtkit.core.errors import DataError
from nmtkit.data.batches.shards import Counts, RaggedArray, row_lengths
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import DataConfig
from nmtkit.data.text.hashes import Mask
from nmtkit.data.tokenizers.languages import in_direction
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import UNK, LabelVocabulary, split_labels
from nmtkit.data.tokenizers.words import token_links, token_spans

UNLIMITED = sys.maxsize
"""Value of `PairEncoder.truncation_limit` if texts are not truncated."""


@dataclass(frozen=True)
class TextChunk:
    """The n examples of a block that the checker has kept, without the block's other data.

    It contains only what a worker process needs to encode the examples, so that little data is sent to the worker.
    """

    line_numbers: Counts
    """Line number of each example, `(n,)`."""
    texts: Mapping[str, Sequence[str]]
    """Texts by column, "src" or "tgt"."""
    annotations: Mapping[str, Sequence[Any]]
    """Optional columns of the block: any of "labels", "links", "src_words" and "tgt_words"."""
    label_places: Sequence[str]
    """File and line number of each example's labels, for messages; empty without labels."""
    tags: Sequence[tuple[str, ...]]
    """Tags before each source; an empty tuple for a source without tags."""
    languages: tuple[str, str] = ("", "")
    """Source and target language of all examples, for the language tokens of an imported multilingual model."""

    @classmethod
    def from_block(cls, block: Block, keep: Mask) -> "TextChunk":
        """Selects the examples for which `keep`, `(rows,)`, is True."""
        rows = np.flatnonzero(keep).tolist()

        def select(column: Sequence[Any]) -> Sequence[Any]:
            if len(rows) == len(keep):
                return column
            return [column[row] for row in rows]

        texts = {side: select(side_texts) for side, side_texts in block.texts.items()}
        annotations = {}
        for name in ("labels", "src_words", "tgt_words"):
            column = block.columns.get(name)
            if column is not None:
                annotations[name] = select(column)
        if block.links is not None:
            annotations["links"] = select(block.links)
        label_places = []
        if "labels" in block.columns:
            label_places = [block.place("labels", row) for row in rows]
        tags: list[tuple[str, ...]] = [()] * len(rows)
        if block.tags:
            tags_by_file = [tuple(file_tags.split()) for file_tags in block.tags]
            tags = [tags_by_file[file] for file in block.files[keep].tolist()]
        languages = ("", "")
        if block.languages and len(block):
            # All examples of a block have the same languages.
            languages = block.languages[int(block.files[0])]
        return cls(
            line_numbers=block.lines[keep],
            texts=texts,
            annotations=annotations,
            label_places=label_places,
            tags=tags,
            languages=languages,
        )

    @property
    def n_characters(self) -> int:
        """Number of characters in all texts."""
        all_texts = chain.from_iterable(self.texts.values())
        return sum(map(len, all_texts))


@dataclass(frozen=True)
class EncodedChunk:
    """n encoded examples, ready to be stored."""

    n_tokens: Mapping[str, Counts]
    """Number of tokens in each text *before* truncation, by side, `(n,)`; shows which texts are over-long."""
    n_unknown: Mapping[str, Counts]
    """Number of unknown tokens in each text *after* truncation, by side, `(n,)`."""
    columns: Mapping[str, RaggedArray]
    """Columns of the store; see `nmtkit.data.batches.store`."""


@dataclass(frozen=True)
class PairEncoder:
    """Encodes the examples of one split; a picklable function from `TextChunk` to `EncodedChunk`."""

    split: str
    """Name of the split. Links between words are encoded only for train."""
    tokenizers: Tokenizers
    config: DataConfig
    """Length limits, for truncation; the `PairChecker` of the text has the same settings."""
    stores_text: bool = False
    """Whether to store the text as well, for references and for tokenizers that sample."""
    stores_extended_ids: bool = False
    """Whether to store extended ids as well, for models that copy."""
    label_type: ColumnType | None = None
    """Type of the label column: "label" for one label per example, "labels" for one per token."""

    @property
    def dtype(self) -> str:
        """Data type of all stored integers: token ids, extended ids, label ids, and positions in links."""
        if self.stores_extended_ids:
            # Extended ids exceed the vocabulary size by up to the number of tokens in a source.
            return "<i4"
        # Each size is one more than the largest id or position.
        sizes = [len(tokenizer.vocabulary) for tokenizer in self.tokenizers.values()]
        if self.tokenizers.labels is not None:
            sizes.append(len(self.tokenizers.labels))
        has_pairs = len(self.tokenizers) > 1
        if has_pairs:
            # Links consist of positions, which are below the limits if texts are truncated. Otherwise, positions in
            # over-long texts may be larger and overflow silently, but `PairChecker.check_lengths` drops pairs with
            # over-long texts from train, which is the only split with links.
            sizes.extend(self.config.limits)
        if max(sizes, default=0) <= 1 << 16:
            return "<u2"
        return "<i4"

    def truncation_limit(self, side: str) -> int:
        """Returns the length in tokens to which texts of a side, "src" or "tgt", are truncated, or `UNLIMITED`."""
        if self.config.truncation is None:
            return UNLIMITED
        src_limit, tgt_limit = self.config.truncation
        return src_limit if side == "src" else tgt_limit

    def __call__(self, chunk: TextChunk) -> EncodedChunk:
        """Encodes a chunk; raises a DataError for labels or links that do not match the text."""
        encoder = self
        if any(chunk.languages):
            source, target = chunk.languages
            tokenizers = in_direction(self.tokenizers, source or None, target or None)
            encoder = replace(self, tokenizers=tokenizers)
        return encoder._encode(chunk)

    def _encode(self, chunk: TextChunk) -> EncodedChunk:
        """Encodes a chunk with this encoder's tokenizers, without regard to the chunk's languages."""
        n_tokens = {}
        n_unknown = {}
        columns = {}
        for side in chunk.texts:
            rows = self._token_ids(chunk, side)
            n_tokens[side] = row_lengths(rows)  # (n,)
            limit = self.truncation_limit(side)
            rows = [row[:limit] for row in rows]
            unknown_counts = (row.count(UNK) for row in rows)
            n_unknown[side] = np.fromiter(unknown_counts, dtype=np.int64, count=len(rows))  # (n,)
            columns[side] = RaggedArray.from_rows(rows, self.dtype)
        if self.stores_extended_ids and "src" in chunk.texts:
            columns |= self._extended_ids(chunk)
        if self.split == "train" and "links" in chunk.annotations:
            columns["alignment"] = self._alignment(chunk, n_tokens)
        if self.stores_text:
            for side, texts in chunk.texts.items():
                columns[f"{side}.text"] = RaggedArray.from_texts(texts)
        if self.tokenizers.labels is not None and "labels" in chunk.annotations:
            columns["labels"] = self._labels(chunk, self.tokenizers.labels, n_tokens.get("src"))
        return EncodedChunk(n_tokens, n_unknown, columns)

    def _token_ids(self, chunk: TextChunk, side: str) -> list[list[int]]:
        """Returns the ids of each text on a side, with the tags before a source, without truncation."""
        rows = self.tokenizers[side].encode_many(chunk.texts[side])
        if side == "src" and any(chunk.tags):
            tag_ids = self._tag_ids(chunk, side)
            rows = [[*tags, *row] for tags, row in zip(tag_ids, rows, strict=True)]
        return rows

    def _tag_ids(self, chunk: TextChunk, side: str) -> list[list[int]]:
        """Returns the ids, in the vocabulary of a side, of the tags before each source."""
        vocabulary = self.tokenizers[side].vocabulary
        ids_by_tags = {tags: vocabulary.ids(tags) for tags in {*chunk.tags}}
        return [ids_by_tags[tags] for tags in chunk.tags]

    def _labels(
        self, chunk: TextChunk, vocabulary: LabelVocabulary, n_src_tokens: Counts | None
    ) -> RaggedArray:
        """Returns the label ids of each example.

        Args:
            chunk: the examples.
            vocabulary: the labels of train.
            n_src_tokens: number of tokens in each source before truncation, `(n,)`; None without sources.

        Raises:
            DataError: a label is unknown, or the number of token labels differs from the number of source tokens.
        """
        has_label_per_token = self.label_type == "labels"
        limit = self.truncation_limit("src")
        rows: list[list[int]] = []
        for index, line in enumerate(chunk.annotations["labels"]):
            place = chunk.label_places[index]
            labels = split_labels(line, self.label_type)
            if (
                has_label_per_token
                and n_src_tokens is not None
                and len(labels) != n_src_tokens[index]
            ):
                raise DataError(
                    f"{place}: there are {len(labels)} labels, but the source has {n_src_tokens[index]} tokens; "
                    "write one label per token, and set tokenizer.kind to whitespace, so that each word in the file is "
                    "a token"
                )
            ids = vocabulary.encode(labels, place)
            rows.append(ids[:limit])  # labels of tokens belong to source tokens
        label_ids = RaggedArray.from_rows(rows, self.dtype)
        has_label_per_example = self.label_type == "label"
        if has_label_per_example:
            # An example's label is stored as a row of width 1, which distinguishes it from labels of tokens.
            return replace(label_ids, flat=label_ids.flat[:, None])
        return label_ids

    def _extended_ids(self, chunk: TextChunk) -> dict[str, RaggedArray]:
        """Returns the columns of extended ids for both sides (See et al. 2017, section 2.2).

        They correspond, position by position, to the rows of `_token_ids` after truncation.
        """
        vocabulary = self.tokenizers.tgt.vocabulary
        targets = chunk.texts.get("tgt")
        src_limit = self.truncation_limit("src")
        tgt_limit = self.truncation_limit("tgt")
        tag_ids = self._tag_ids(chunk, "tgt")
        src_rows = []
        tgt_rows = []
        for index, source in enumerate(chunk.texts["src"]):
            tags = tag_ids[index]
            src_tokens = self.tokenizers.src.tokens(source)
            # Unknown words in the truncated part cannot be copied and get no id.
            src_tokens = src_tokens[: max(0, src_limit - len(tags))]
            src_ids, oov = vocabulary.extend(src_tokens)
            # Truncated again, because the tags alone may exceed the limit.
            src_rows.append([*tags, *src_ids][:src_limit])
            if targets is not None:
                tgt_tokens = self.tokenizers.tgt.tokens(targets[index])
                tgt_ids = vocabulary.extended_target_ids(tgt_tokens[:tgt_limit], oov)
                tgt_rows.append(tgt_ids)
        columns = {"src_extended": RaggedArray.from_rows(src_rows, self.dtype)}
        if targets is not None:
            columns["tgt_extended"] = RaggedArray.from_rows(tgt_rows, self.dtype)
        return columns

    def _alignment(self, chunk: TextChunk, n_tokens: Mapping[str, Counts]) -> RaggedArray:
        """Returns the links between tokens that remain after truncation.

        The row of an example consists of the two positions of each link: source, target, source, target, ...

        Args:
            chunk: the examples.
            n_tokens: number of tokens in each text before truncation, by side, `(n,)`.

        Raises:
            DataError: a line with links has a different number of tokens from its separately tokenized words.
        """
        spans = {}
        for side, texts in chunk.texts.items():
            column = f"{side}_words"
            spans[side] = token_spans(
                tokenizer=self.tokenizers[side],
                lines=texts,
                segmented=chunk.annotations.get(column) or [None] * len(texts),
                places=[f"{self.split}, {column}, line {line}" for line in chunk.line_numbers],
            )
        src_limit = self.truncation_limit("src")
        tgt_limit = self.truncation_limit("tgt")
        rows = []
        for index, links in enumerate(chunk.annotations["links"]):
            src_spans = spans["src"][index]
            tgt_spans = spans["tgt"][index]
            n_tags = len(chunk.tags[index])
            if links:
                line = chunk.line_numbers[index]
                n_src_tokens = n_tokens["src"][index] - n_tags
                self._require_same_tokens(
                    src_spans, n_src_tokens, f"{self.split}, src, line {line}"
                )
                n_tgt_tokens = n_tokens["tgt"][index]
                self._require_same_tokens(
                    tgt_spans, n_tgt_tokens, f"{self.split}, tgt, line {line}"
                )
            positions = []
            for src_token, tgt_token in token_links(links, src_spans, tgt_spans):
                src_position = n_tags + src_token
                if src_position < src_limit and tgt_token < tgt_limit:
                    positions += [src_position, tgt_token]
            rows.append(positions)
        return RaggedArray.from_rows(rows, self.dtype)

    @staticmethod
    def _require_same_tokens(spans: Sequence[tuple[int, int]], n_tokens: int, place: str) -> None:
        """Raises a DataError about `place` if a line has more or fewer tokens than its separately tokenized words.

        The links of the line would then connect the wrong tokens.

        Args:
            spans: token ranges of the separately tokenized words.
            n_tokens: number of tokens in the line.
            place: location of the line, for the message.
        """
        n_word_tokens = max((end for _, end in spans), default=0)
        if n_word_tokens != n_tokens:
            raise DataError(
                f"{place}: the tokenizer does not split the line into the words that the alignment links refer to; "
                "separate the words with plain spaces"
            )
