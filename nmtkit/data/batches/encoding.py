"""Checks, encodes and stores text, shard by shard; an interrupted run continues after its last shard."""

import json
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.core.columns import ColumnType
from nmtkit.core.errors import DataError
from nmtkit.core.files import bytes_checksum, write_json
from nmtkit.core.formats import parse_json
from nmtkit.core.processes import ordered_map
from nmtkit.data.batches.shards import VERSION, RaggedArray
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
"""Characters that are encoded before worker processes start, which takes about as long."""


@dataclass(frozen=True)
class TextChunk:
    """What is encoded of the examples of a block: cheap to send to another process."""

    lines: Lengths
    """Line numbers, `(n,)`."""
    texts: Mapping[str, Sequence[str]]
    """By column."""
    columns: Mapping[str, Sequence[Any]]
    """"labels", "links", "src_words" and "tgt_words", where there are any."""
    places: Sequence[str]
    """Where the labels of each stand, for messages."""
    tags: Sequence[str] = ()
    """The tags before each source, if there are any."""
    languages: tuple[str, str] = ("", "")
    """The languages of sources and targets, for the tokens of an imported multilingual model."""

    @classmethod
    def of(cls, block: Block, keep: Mask) -> "TextChunk":
        """The pairs of a block where `keep`, `(n,)`, is true."""
        rows = np.flatnonzero(keep).tolist()

        def kept(columns: Mapping[str, Sequence[Any] | None]) -> dict[str, Sequence[Any]]:
            there = {name: column for name, column in columns.items() if column is not None}
            return there if keep.all() else {name: [one[row] for row in rows] for name, one in there.items()}

        columns = {name: block.columns.get(name) for name in ("labels", "src_words", "tgt_words")}
        places = [block.place("labels", row) for row in rows] if "labels" in block.columns else []
        tags = [block.tags[file] for file in block.files[keep].tolist()] if block.tags else []
        languages = ("", "")
        if block.languages and len(block):
            languages = block.languages[int(block.files[0])]  # the same in the whole block
        further = kept({**columns, "links": block.links})
        return cls(block.lines[keep], kept(block.texts), further, places, tags, languages)

    @property
    def size(self) -> int:
        """Characters."""
        return sum(len(text) for lines in self.texts.values() for text in lines)


@dataclass(frozen=True)
class EncodedChunk:
    """n examples as they are stored."""

    lengths: Mapping[str, Lengths]
    """Tokens of each side before truncation, `(n,)`."""
    unknown: Mapping[str, Lengths]
    """Unknown tokens of each side after truncation, `(n,)`."""
    columns: Mapping[str, RaggedArray]
    """See `nmtkit.data.batches.store`."""


@dataclass(frozen=True)
class PairEncoder:
    """Encodes the examples of one split; links are stored for train only."""

    split: str
    tokenizers: Tokenizers
    config: DataConfig
    keep_text: bool = False
    """Also store the text, for references and for tokenizers that sample."""
    copying: bool = False
    """Also store extended ids, for models that copy."""
    label_type: ColumnType | None = None
    """What a line of labels is."""

    @property
    def dtype(self) -> str:
        """Data type of the ids."""
        sizes = [len(tokenizer.vocabulary) for tokenizer in self.tokenizers.values()]
        sizes.append(len(self.tokenizers.labels or ()))
        if len(self.tokenizers) > 1:  # links name positions
            sizes += self.config.limits
        # Extended ids may lie above the vocabulary by as many as a source has tokens.
        return "<u2" if max(sizes) <= 1 << 16 and not self.copying else "<i4"

    def limit(self, side: str) -> int | None:
        """The length to which a side ("src" or "tgt") is truncated; None without truncation."""
        return self.config.truncation[0 if side == "src" else 1] if self.config.truncation else None

    def __call__(self, chunk: TextChunk) -> EncodedChunk:
        """Encodes one chunk."""
        if any(chunk.languages):
            source, target = chunk.languages
            tokenizers = in_direction(self.tokenizers, source or None, target or None)
            return replace(self, tokenizers=tokenizers)(replace(chunk, languages=("", "")))
        lengths, unknown, columns = {}, {}, {}
        for side, lines in chunk.texts.items():
            rows = self.tokenizers[side].encode_many(lines)
            if side == "src" and chunk.tags:
                rows = [[*tags, *row] for tags, row in zip(self._tags(chunk, side), rows, strict=True)]
            lengths[side] = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
            if (limit := self.limit(side)) is not None:
                rows = [row[:limit] for row in rows]
            columns[side] = RaggedArray.of(rows, self.dtype)
            unknown[side] = np.fromiter((row.count(UNK) for row in rows), dtype=np.int64, count=len(rows))
        if self.copying and "src" in chunk.texts:
            columns.update(self._extended(chunk))
        if self.split == "train" and "links" in chunk.columns:
            columns["alignment"] = self._alignment(chunk, lengths)
        if self.keep_text:
            columns.update({f"{side}.text": RaggedArray.of_texts(lines) for side, lines in chunk.texts.items()})
        if self.tokenizers.labels is not None and "labels" in chunk.columns:
            columns["labels"] = self._labels(chunk, self.tokenizers.labels, lengths.get("src"))
        return EncodedChunk(lengths, unknown, columns)

    def _labels(self, chunk: TextChunk, vocabulary: LabelVocabulary, tokens: Lengths | None) -> RaggedArray:
        """The labels of each example, of which src has so many tokens `(n,)`; DataError for one that is wrong."""
        rows: list[list[int]] = []
        for line, place in zip(chunk.columns["labels"], chunk.places, strict=True):
            labels = split_labels(line, self.label_type)
            if self.label_type == "labels" and tokens is not None and len(labels) != tokens[len(rows)]:
                raise DataError(
                    f"{place}: {len(labels)} labels, but src has {tokens[len(rows)]} tokens there; write a label for "
                    "each token, and let tokenizer.kind: whitespace cut the words that the labels are for"
                )
            rows.append(vocabulary.encode(labels, place)[: self.limit("src")])
        ids = RaggedArray.of(rows, self.dtype)
        return replace(ids, flat=ids.flat[:, None]) if self.label_type == "label" else ids

    def _tags(self, chunk: TextChunk, side: str) -> list[list[int]]:
        """The ids of the tags before each source, in the vocabulary of a side."""
        vocabulary = self.tokenizers[side].vocabulary
        ids = {tags: vocabulary.ids(tags.split()) for tags in {*chunk.tags}}
        return [ids[tags] for tags in chunk.tags]

    def _extended(self, chunk: TextChunk) -> dict[str, RaggedArray]:
        """Extended ids of both sides."""
        vocabulary, texts = self.tokenizers.tgt.vocabulary, chunk.texts
        ids: dict[str, list[list[int]]] = {f"{side}_extended": [] for side in texts}
        tags = self._tags(chunk, "tgt") or [[]] * len(texts["src"])
        for number, source in enumerate(texts["src"]):
            room = None if (limit := self.limit("src")) is None else max(0, limit - len(tags[number]))
            extended, oov = vocabulary.extend(self.tokenizers.src.tokens(source)[:room])
            ids["src_extended"].append([*tags[number], *extended][:limit])
            if "tgt" in texts:
                tokens = self.tokenizers.tgt.tokens(texts["tgt"][number])[: self.limit("tgt")]
                ids["tgt_extended"].append(vocabulary.extended_target_ids(tokens, oov))
        return {column: RaggedArray.of(rows, self.dtype) for column, rows in ids.items()}

    def _alignment(self, chunk: TextChunk, lengths: Mapping[str, Lengths]) -> RaggedArray:
        """The links between the tokens of each example, after truncation; `lengths` are those of each side before it.

        DataError where a line is cut otherwise than its words, so that links would join other tokens.
        """
        spans = {
            side: token_spans(
                self.tokenizers[side],
                texts,
                chunk.columns.get(f"{side}_words") or [None] * len(texts),
                [f"{self.split}, {side}_words, line {line}" for line in chunk.lines],
            )
            for side, texts in chunk.texts.items()
        }
        src_limit, tgt_limit = (self.limit(side) or math.inf for side in ("src", "tgt"))
        rows = []
        for row, links in enumerate(chunk.columns["links"]):
            before = len(chunk.tags[row].split()) if chunk.tags else 0
            for side, tags in (("src", before), ("tgt", 0)) if links else ():
                if lengths[side][row] != tags + max((end for _, end in spans[side][row]), default=0):
                    raise DataError(
                        f"{self.split}, {side}, line {chunk.lines[row]}: the tokenizer cuts it into other words "
                        "than those that the links count; separate its words with plain spaces"
                    )
            tokens = [(s + before, t) for s, t in token_links(links, spans["src"][row], spans["tgt"][row])]
            rows.append([at for s, t in tokens if s < src_limit and t < tgt_limit for at in (s, t)])
        return RaggedArray.of(rows, self.dtype)


@dataclass(frozen=True)
class UncountedBlock:
    """An encoded block that is not counted in the report yet."""

    block: Block
    decisions: FilterDecisions
    chunk: TextChunk
    encoded: EncodedChunk

    def settle(self, split: str, checker: PairChecker) -> Mask:
        """Adds the block to the report; returns whether each pair is kept, `(n,)`."""
        report, encoded = checker.count(split, self.decisions), self.encoded
        stays = checker.lengths(split, self.chunk.lines, encoded.lengths)
        report.kept += int(stays.sum())
        for side, unknown in encoded.unknown.items():
            report.count(side, encoded.columns[side].counts[stays], unknown[stays])
        if "alignment" in encoded.columns:
            report.links = (report.links or 0) + int(encoded.columns["alignment"].counts[stays].sum()) // 2
        return stays


def encode_blocks(
    blocks: Iterable[Block], encoder: PairEncoder, checker: PairChecker, processes: int = 1
) -> Generator[UncountedBlock, None, None]:
    """Checks and encodes the blocks of a split, in order. To be closed if it is not read to its end.

    A block is counted in the report when it is settled. The result does not depend on the number of processes.
    """
    judged: deque[tuple[Block, FilterDecisions, TextChunk]] = deque()

    def chunks() -> Iterator[TextChunk]:
        for block in blocks:
            decisions = checker.judge(block)
            chunk = TextChunk.of(block, decisions.keep)
            judged.append((block, decisions, chunk))
            yield chunk

    with closing(
        ordered_map(encoder, chunks(), processes, lambda chunk: chunk.size, SERIAL_CHARACTERS, "preprocess --workers")
    ) as results:
        for encoded in results:
            yield UncountedBlock(*judged.popleft(), encoded)


def fingerprint(settings: Mapping[str, Any], paths: Iterable[str]) -> str:
    """A hash of the settings and of path, size and time of the input files; DataError if one is missing."""
    try:
        statuses = [(path, os.stat(path)) for path in paths]
    except OSError as fault:
        raise DataError(f"{fault.filename}: cannot read it: {fault.strerror}") from fault
    files = [(path, status.st_size, status.st_mtime_ns) for path, status in statuses]
    return bytes_checksum(json.dumps([VERSION, settings, files], sort_keys=True, ensure_ascii=False).encode())


@dataclass
class PreprocessingProgress:
    """The progress of preprocessing: shards of train. The other splits are encoded again.

    Its file exists from when the tokenizer is ready until everything is.
    """

    path: Path
    fingerprint: str
    tokenizer: Mapping[str, str | int]
    """Facts of the tokenizer, from the report."""
    shards: int = 0
    """Complete shards of train, which hold the first `read` pairs."""
    read: int = 0
    report: Mapping[str, Any] | None = None
    """The report of train so far."""

    def complete_shard(self, shards: int, report: SplitReport) -> None:
        """Records one more shard, and saves."""
        self.shards, self.read, self.report = shards, report.read, asdict(report)
        self.save()

    def save(self) -> None:
        """Writes the file."""
        write_json(self.path, {key: value for key, value in vars(self).items() if key != "path"}, durable=True)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "PreprocessingProgress | None":
        """The progress of an interrupted preprocessing with that fingerprint; None if there is none."""
        try:
            content = parse_json(path.read_bytes(), path.name)
            progress = cls(path, **content)
            if progress.report is not None:
                SplitReport.from_dict(progress.report)
        except (OSError, DataError, TypeError, KeyError):
            return None
        return progress if progress.fingerprint == fingerprint else None


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
    """Checks, encodes and stores the blocks of one split in bounded memory; returns the number of examples.

    One checker sees all splits, train first; it drops pairs of train and fills its report. Complete shards are recorded
    in `progress`; those recorded already are skipped.
    """
    name, tokenizers = encoder.split, encoder.tokenizers
    if progress is not None and progress.report is not None:
        blocks = _after(progress.read, blocks, checker)
        checker.report.splits[name] = SplitReport.from_dict(progress.report)
    split = checker.report.splits.setdefault(name, SplitReport())
    tgt_size = len(tokenizers.tgt.vocabulary) if "tgt" in tokenizers else 0
    sizes = tgt_size, fingerprint, progress.shards if progress else 0
    with (
        StoreWriter(folder, name, encoder.dtype, *sizes, tokenizers.checksum) as writer,
        closing(encode_blocks(blocks, encoder, checker, processes)) as encoded,
    ):
        for done in encoded:
            if writer.full:
                writer.end_shard()
                if progress is not None:
                    progress.complete_shard(writer.shards, split)
                notify(f"{name}: {split.read:,} pairs read, {split.kept:,} stored")
            stays, lengths = done.settle(name, checker), done.encoded.lengths
            over = {side: int((lengths[side][stays] > (encoder.limit(side) or np.inf)).sum()) for side in lengths}
            columns = {column: rows.where(stays) for column, rows in done.encoded.columns.items()}
            stored = np.flatnonzero(done.decisions.keep)[stays]
            rows = done.block.columns.get("features")
            features = map(rows.__getitem__, stored) if rows else ()
            writer.add(columns, np.bincount(done.block.files[stored]).tolist(), over, features)
        if not split.kept:
            raise DataError(
                f"{name}: no pair is left of {split.read}; look at max_length, max_ratio and the files themselves"
            )
    return split.kept


def _after(count: int, blocks: Iterable[Block], checker: PairChecker) -> Iterator[Block]:
    """The blocks after the first pairs; the checker sees those too, to find duplicates."""
    for block in blocks:
        if block.offset >= count:
            yield block
            continue
        checker.judge(block.slice(0, count - block.offset))
        if block.offset + len(block) > count:
            yield block.slice(count - block.offset, len(block))
