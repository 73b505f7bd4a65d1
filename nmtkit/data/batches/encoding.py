"""Checks, encodes and stores text, shard by shard; an interrupted run continues after its last complete shard."""

import json
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.core.columns import ColumnType
from nmtkit.core.errors import DataError
from nmtkit.core.files import bytes_checksum, write_json
from nmtkit.core.formats import parse_json
from nmtkit.core.processes import ordered_map
from nmtkit.data.batches.shards import VERSION, RaggedArray, row_lengths
from nmtkit.data.batches.store import StoreWriter
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.checking import FilterDecisions, Lengths, PairChecker, SplitReport
from nmtkit.data.text.config import DataConfig
from nmtkit.data.text.hashes import Mask
from nmtkit.data.tokenizers.languages import in_direction
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import UNK, LabelVocabulary, split_labels
from nmtkit.data.tokenizers.words import token_links, token_spans

SERIAL_CHARACTERS = 1 << 22
"""Number of characters to encode before starting worker processes; encoding them takes about as long as the start."""


@dataclass(frozen=True)
class TextChunk:
    """The n examples of a block that are encoded, without anything else, so that they are cheap to send to a worker."""

    lines: Lengths
    """Line number of each example, `(n,)`."""
    texts: Mapping[str, Sequence[str]]
    """Texts by column."""
    columns: Mapping[str, Sequence[Any]]
    """Optional columns of the block: any of "labels", "links", "src_words" and "tgt_words"."""
    label_places: Sequence[str]
    """File and line number of each example's labels, for messages; empty without labels."""
    tags: Sequence[str] = ()
    """Tags before each source; empty without tags."""
    languages: tuple[str, str] = ("", "")
    """Source and target language of all examples, for the language tokens of an imported multilingual model."""

    @classmethod
    def from_block(cls, block: Block, keep: Mask) -> "TextChunk":
        """Selects the examples for which `keep`, `(rows of the block,)`, is True."""
        rows = np.flatnonzero(keep).tolist()

        def select(column: Sequence[Any]) -> Sequence[Any]:
            if len(rows) == len(keep):
                return column
            return [column[row] for row in rows]

        texts = {name: select(lines) for name, lines in block.texts.items()}
        columns = {}
        for name in ("labels", "src_words", "tgt_words"):
            column = block.columns.get(name)
            if column is not None:
                columns[name] = select(column)
        if block.links is not None:
            columns["links"] = select(block.links)
        label_places = []
        if "labels" in block.columns:
            label_places = [block.place("labels", row) for row in rows]
        tags = []
        if block.tags:
            tags = [block.tags[file] for file in block.files[keep].tolist()]
        languages = ("", "")
        if block.languages and len(block):
            # All examples of a block have the same languages.
            languages = block.languages[int(block.files[0])]
        return cls(
            lines=block.lines[keep],
            texts=texts,
            columns=columns,
            label_places=label_places,
            tags=tags,
            languages=languages,
        )

    @property
    def size(self) -> int:
        """Number of characters in all texts."""
        all_texts = chain.from_iterable(self.texts.values())
        return sum(map(len, all_texts))


@dataclass(frozen=True)
class EncodedChunk:
    """n encoded examples, ready to be stored."""

    lengths: Mapping[str, Lengths]
    """Number of tokens in each text before truncation, by side, `(n,)`."""
    unknown: Mapping[str, Lengths]
    """Number of unknown tokens in each text after truncation, by side, `(n,)`."""
    columns: Mapping[str, RaggedArray]
    """Columns of the store; see `nmtkit.data.batches.store`."""


@dataclass(frozen=True)
class PairEncoder:
    """Encodes the examples of one split. Links are stored only for train."""

    split: str
    tokenizers: Tokenizers
    config: DataConfig
    keep_text: bool = False
    """Whether to store the text as well, for references and for tokenizers that sample."""
    copying: bool = False
    """Whether to store extended ids as well, for models that copy."""
    label_type: ColumnType | None = None
    """Type of the label column: "label" for one label per example, "labels" for one per token."""

    @property
    def dtype(self) -> str:
        """Data type of all stored ids, including labels and link positions."""
        n_labels = 0 if self.tokenizers.labels is None else len(self.tokenizers.labels)
        sizes = [n_labels]
        for tokenizer in self.tokenizers.values():
            sizes.append(len(tokenizer.vocabulary))
        if len(self.tokenizers) > 1:
            sizes += self.config.limits  # a link consists of two positions in the texts
        # Each size is one more than the largest id, so 16 bits suffice up to a size of 2^16. Extended ids exceed the
        # vocabulary by up to the number of tokens in a source, so they always get 32 bits.
        if max(sizes) <= 1 << 16 and not self.copying:
            return "<u2"
        return "<i4"

    def limit(self, side: str) -> int | None:
        """Returns the length to which texts of a side, "src" or "tgt", are truncated; None without truncation."""
        if self.config.truncation is None:
            return None
        src_limit, tgt_limit = self.config.truncation
        return src_limit if side == "src" else tgt_limit

    def __call__(self, chunk: TextChunk) -> EncodedChunk:
        """Encodes a chunk; raises a DataError for labels or links that do not fit the text."""
        if any(chunk.languages):
            # Call a copy of this encoder whose tokenizers have the chunk's languages; the chunk without languages
            # does not enter this branch again.
            source, target = chunk.languages
            tokenizers = in_direction(self.tokenizers, source or None, target or None)
            encoder = replace(self, tokenizers=tokenizers)
            return encoder(replace(chunk, languages=("", "")))
        lengths = {}
        unknown = {}
        columns = {}
        for side, lines in chunk.texts.items():
            rows = self.tokenizers[side].encode_many(lines)
            if side == "src" and chunk.tags:
                tag_ids = self._tag_ids(chunk, side)
                rows = [[*tags, *row] for tags, row in zip(tag_ids, rows, strict=True)]
            lengths[side] = row_lengths(rows)  # (n,)
            limit = self.limit(side)
            if limit is not None:
                rows = [row[:limit] for row in rows]
            columns[side] = RaggedArray.from_rows(rows, self.dtype)
            unknown_counts = (row.count(UNK) for row in rows)
            unknown[side] = np.fromiter(unknown_counts, dtype=np.int64, count=len(rows))  # (n,)
        if self.copying and "src" in chunk.texts:
            columns |= self._extended(chunk)
        if self.split == "train" and "links" in chunk.columns:
            columns["alignment"] = self._alignment(chunk, lengths)
        if self.keep_text:
            for side, lines in chunk.texts.items():
                columns[f"{side}.text"] = RaggedArray.from_texts(lines)
        if self.tokenizers.labels is not None and "labels" in chunk.columns:
            columns["labels"] = self._labels(chunk, self.tokenizers.labels, lengths.get("src"))
        return EncodedChunk(lengths, unknown, columns)

    def _labels(
        self, chunk: TextChunk, vocabulary: LabelVocabulary, src_lengths: Lengths | None
    ) -> RaggedArray:
        """Returns the label ids of each example.

        Args:
            chunk: the examples.
            vocabulary: the labels of train.
            src_lengths: number of tokens in each source, `(n,)`; None without sources.

        Raises:
            DataError: a label is unknown, or labels of tokens do not match the number of source tokens.
        """
        has_label_per_token = self.label_type == "labels"
        rows: list[list[int]] = []
        for row, line in enumerate(chunk.columns["labels"]):
            place = chunk.label_places[row]
            labels = split_labels(line, self.label_type)
            if has_label_per_token and src_lengths is not None and len(labels) != src_lengths[row]:
                raise DataError(
                    f"{place}: {len(labels)} labels, but src has {src_lengths[row]} tokens there; write a label for "
                    "each token, and set tokenizer.kind to whitespace, so that tokens are the words in the file"
                )
            ids = vocabulary.encode(labels, place)
            rows.append(ids[: self.limit("src")])
        array = RaggedArray.from_rows(rows, self.dtype)
        has_label_per_example = self.label_type == "label"
        if has_label_per_example:
            # An example's label is stored as a row of width 1, which distinguishes it from labels of tokens.
            return replace(array, flat=array.flat[:, None])
        return array

    def _tag_ids(self, chunk: TextChunk, side: str) -> list[list[int]]:
        """Returns the ids of the tags before each source in one side's vocabulary; empty without tags."""
        vocabulary = self.tokenizers[side].vocabulary
        ids_by_tags = {tags: vocabulary.ids(tags.split()) for tags in {*chunk.tags}}
        return [ids_by_tags[tags] for tags in chunk.tags]

    def _extended(self, chunk: TextChunk) -> dict[str, RaggedArray]:
        """Returns the columns of extended ids for both sides (See et al. 2017, section 2.2)."""
        vocabulary = self.tokenizers.tgt.vocabulary
        sources = chunk.texts["src"]
        targets = chunk.texts.get("tgt")
        src_limit = self.limit("src")
        tgt_limit = self.limit("tgt")
        tag_ids = self._tag_ids(chunk, "tgt") or [[]] * len(sources)
        src_rows = []
        tgt_rows = []
        for number, (source, tags) in enumerate(zip(sources, tag_ids, strict=True)):
            src_tokens = self.tokenizers.src.tokens(source)
            if src_limit is not None:
                # Unknown words in the truncated part cannot be copied and get no id.
                src_tokens = src_tokens[: max(0, src_limit - len(tags))]
            src_ids, oov = vocabulary.extend(src_tokens)
            src_rows.append([*tags, *src_ids][:src_limit])
            if targets is not None:
                tgt_tokens = self.tokenizers.tgt.tokens(targets[number])
                tgt_ids = vocabulary.extended_target_ids(tgt_tokens[:tgt_limit], oov)
                tgt_rows.append(tgt_ids)
        columns = {"src_extended": RaggedArray.from_rows(src_rows, self.dtype)}
        if targets is not None:
            columns["tgt_extended"] = RaggedArray.from_rows(tgt_rows, self.dtype)
        return columns

    def _alignment(self, chunk: TextChunk, lengths: Mapping[str, Lengths]) -> RaggedArray:
        """Returns the links between tokens after truncation, as one flat row per example: source, target, source, ...

        `lengths` has the number of tokens in each text before truncation, by side, `(n,)`. Raises a DataError if a line
        is tokenized differently from its separate words, because links would then connect the wrong tokens.
        """
        spans = {}
        for side, texts in chunk.texts.items():
            words = f"{side}_words"
            segmented = chunk.columns.get(words) or [None] * len(texts)
            places = [f"{self.split}, {words}, line {line}" for line in chunk.lines]
            spans[side] = token_spans(
                tokenizer=self.tokenizers[side], lines=texts, segmented=segmented, places=places
            )
        src_limit = self.limit("src") or math.inf
        tgt_limit = self.limit("tgt") or math.inf
        rows = []
        for number, links in enumerate(chunk.columns["links"]):
            n_tags = 0
            if chunk.tags:
                n_tags = len(chunk.tags[number].split())
            if links:
                for side, offset in (("src", n_tags), ("tgt", 0)):
                    ends = [end for _, end in spans[side][number]]
                    n_tokens = max(ends, default=0)
                    if lengths[side][number] != offset + n_tokens:
                        raise DataError(
                            f"{self.split}, {side}, line {chunk.lines[number]}: the tokenizer cuts it into other words "
                            "than those that the links count; separate its words with plain spaces"
                        )
            row = []
            src_spans = spans["src"][number]
            tgt_spans = spans["tgt"][number]
            for src_token, tgt_token in token_links(links, src_spans, tgt_spans):
                src_position = n_tags + src_token
                if src_position < src_limit and tgt_token < tgt_limit:
                    row += [src_position, tgt_token]
            rows.append(row)
        return RaggedArray.from_rows(rows, self.dtype)


@dataclass(frozen=True)
class UncountedBlock:
    """An encoded block that has not been counted in the report yet."""

    block: Block
    decisions: FilterDecisions
    chunk: TextChunk
    encoded: EncodedChunk

    def add_to_report(self, split: str, checker: PairChecker) -> Mask:
        """Counts the block in the checker's report; returns which examples of the chunk are kept, `(n,)`."""
        encoded = self.encoded
        columns = encoded.columns
        report = checker.add_to_report(split, self.decisions)
        is_kept = checker.filter_by_length(split, self.chunk.lines, encoded.lengths)  # (n,)
        report.kept += int(is_kept.sum())
        for side, unknown in encoded.unknown.items():
            stored_lengths = columns[side].counts[is_kept]  # (kept,)
            report.add_tokens(side, stored_lengths, unknown[is_kept])
        if "alignment" in columns:
            n_positions = int(columns["alignment"].counts[is_kept].sum())
            report.links = (report.links or 0) + n_positions // 2
        return is_kept


def encode_blocks(
    blocks: Iterable[Block], encoder: PairEncoder, checker: PairChecker, processes: int = 1
) -> Generator[UncountedBlock, None, None]:
    """Checks and encodes the blocks of a split, in order. Close the generator if you do not exhaust it.

    The caller counts each block with `UncountedBlock.add_to_report`. The result does not depend on the number of
    processes.
    """
    # Chunks are read ahead of the results, so their blocks wait in a queue.
    checked: deque[tuple[Block, FilterDecisions, TextChunk]] = deque()

    def chunks() -> Iterator[TextChunk]:
        for block in blocks:
            decisions = checker.judge(block)
            chunk = TextChunk.from_block(block, decisions.keep)
            checked.append((block, decisions, chunk))
            yield chunk

    encoded_chunks = ordered_map(
        function=encoder,
        items=chunks(),
        processes=processes,
        size=lambda chunk: chunk.size,
        serial_size=SERIAL_CHARACTERS,
        option="preprocess --workers",
    )
    with closing(encoded_chunks):
        for encoded in encoded_chunks:
            block, decisions, chunk = checked.popleft()
            yield UncountedBlock(block, decisions, chunk, encoded)


def fingerprint(settings: Mapping[str, Any], paths: Iterable[str]) -> str:
    """Returns a hash of the settings and of each input file's path, size and time; DataError if a file is missing."""
    files = []
    try:
        for path in paths:
            status = os.stat(path)
            files.append((path, status.st_size, status.st_mtime_ns))
    except OSError as fault:
        raise DataError(f"{fault.filename}: cannot read it: {fault.strerror}") from fault
    content = json.dumps([VERSION, settings, files], sort_keys=True, ensure_ascii=False)
    return bytes_checksum(content.encode())


@dataclass
class PreprocessingProgress:
    """The complete shards of train, saved in a file so that interrupted preprocessing can continue after them.

    The other splits are encoded again. The file exists from the moment when the tokenizer is ready until everything is
    stored.
    """

    path: Path
    fingerprint: str
    tokenizer: Mapping[str, str | int]
    """`DataReport.tokenizer`."""
    shards: int = 0
    """Number of complete shards of train."""
    read: int = 0
    """Number of pairs read for these shards."""
    report: Mapping[str, Any] | None = None
    """The report on these pairs, a `SplitReport` as a dictionary."""

    def complete_shard(self, shards: int, report: SplitReport) -> None:
        """Records that the first `shards` shards are complete, and saves the file."""
        self.shards = shards
        self.read = report.read
        self.report = asdict(report)
        self.save()

    def save(self) -> None:
        """Writes the progress to its file."""
        content = {key: value for key, value in vars(self).items() if key != "path"}
        write_json(self.path, content, durable=True)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "PreprocessingProgress | None":
        """Returns the progress of an interrupted run with that fingerprint, or None."""
        try:
            content = parse_json(path.read_bytes(), path.name)
            progress = cls(path, **content)
            if progress.report is not None:
                SplitReport.from_dict(progress.report)  # raises if the report is damaged
        except (OSError, DataError, TypeError, KeyError):
            return None
        if progress.fingerprint != fingerprint:
            return None
        return progress


def encode_split(
    folder: Path,
    blocks: Iterable[Block],
    encoder: PairEncoder,
    checker: PairChecker,
    fingerprint: str = "",
    processes: int = 1,
    progress: PreprocessingProgress | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> int:
    """Checks, encodes and stores the blocks of one split in bounded memory; returns the number of stored examples.

    Pass the same checker for all splits, train first; it decides which pairs to drop and fills the report. Complete
    shards are recorded in `progress`; shards that it already contains are skipped.
    """
    name = encoder.split
    tokenizers = encoder.tokenizers
    if progress is not None and progress.report is not None:
        blocks = _after(progress.read, blocks, checker)
        # The skipped pairs were counted when their shards were written.
        checker.report.splits[name] = SplitReport.from_dict(progress.report)
    report = checker.report.splits.setdefault(name, SplitReport())
    writer = StoreWriter(
        folder=folder,
        name=name,
        dtype=encoder.dtype,
        tgt_size=len(tokenizers.tgt.vocabulary) if "tgt" in tokenizers else 0,
        fingerprint=fingerprint,
        shards=progress.shards if progress is not None else 0,
        vocabulary=tokenizers.checksum,
    )
    with writer, closing(encode_blocks(blocks, encoder, checker, processes)) as encoded_blocks:
        for encoded_block in encoded_blocks:
            if writer.full:
                # Before the block is counted, so that `report.read` covers complete shards only.
                writer.end_shard()
                if progress is not None:
                    progress.complete_shard(writer.shards, report)
                notify(f"{name}: {report.read:,} pairs read, {report.kept:,} stored")
            is_kept = encoded_block.add_to_report(name, checker)  # (n,)
            encoded = encoded_block.encoded
            truncated = {}
            for side, lengths in encoded.lengths.items():
                limit = encoder.limit(side) or math.inf
                truncated[side] = int((lengths[is_kept] > limit).sum())
            block = encoded_block.block
            stored_rows = np.flatnonzero(encoded_block.decisions.keep)[is_kept]  # rows of the block
            features: Iterable[Any] = ()
            feature_rows = block.columns.get("features")
            if feature_rows:
                # lazy: one example in memory at a time
                features = map(feature_rows.__getitem__, stored_rows)
            writer.add(
                columns={column: rows.where(is_kept) for column, rows in encoded.columns.items()},
                by_file=np.bincount(block.files[stored_rows]).tolist(),
                truncated=truncated,
                features=features,
            )
        if not report.kept:
            raise DataError(
                f"{name}: no pair is left of {report.read}; check max_length, max_ratio and the files themselves"
            )
    return report.kept


def _after(n_read: int, blocks: Iterable[Block], checker: PairChecker) -> Iterator[Block]:
    """Skips the first `n_read` pairs, but shows them to the checker, so that it recognizes duplicates of them."""
    for block in blocks:
        if block.offset >= n_read:
            yield block
            continue
        n_skipped = n_read - block.offset
        checker.judge(block.slice(0, n_skipped))
        if n_skipped < len(block):
            yield block.slice(n_skipped, len(block))
