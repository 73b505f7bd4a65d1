"""Checks, encodes and stores the text of a split, shard by shard, in bounded memory."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.core.errors import DataError
from nmtkit.core.processes import ordered_map
from nmtkit.data.batches.pair_encoder import EncodedChunk, PairEncoder, TextChunk
from nmtkit.data.batches.progress import PreprocessingProgress
from nmtkit.data.batches.store import StoreMetadata, StoreWriter
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.checking import FilterDecisions, PairChecker, SplitReport
from nmtkit.data.text.hashes import Mask

SERIAL_CHARACTERS = 1 << 22
"""Number of characters that are encoded before worker processes are started. Encoding them takes about as long as
starting the workers."""


@dataclass(frozen=True)
class EncodedBlock:
    """A block, the examples in it that the checker has kept, and their encoded form."""

    block: Block
    decisions: FilterDecisions
    chunk: TextChunk
    encoded: EncodedChunk

    def check_and_count(self, split: str, checker: PairChecker) -> Mask:
        """Adds the block to the checker's report, and checks the lengths of its texts.

        Returns which examples of the chunk must be stored, `(n,)`. Must be called once for each block, in order.
        """
        encoded = self.encoded
        columns = encoded.columns
        line_numbers = self.chunk.line_numbers
        report = checker.add_to_report(split, self.decisions)
        is_stored = checker.check_lengths(split, line_numbers, encoded.n_tokens)  # (n,)
        report.kept += int(is_stored.sum())
        for side, n_unknown in encoded.n_unknown.items():
            stored_lengths = columns[side].counts[is_stored]  # (stored,)
            report.add_tokens(side, stored_lengths, n_unknown[is_stored])
        if "alignment" in columns:
            n_positions = int(columns["alignment"].counts[is_stored].sum())
            n_links = n_positions // 2  # a link consists of two positions
            report.links = (report.links or 0) + n_links
        return is_stored


def encode_blocks(
    blocks: Iterable[Block], encoder: PairEncoder, checker: PairChecker, processes: int = 1
) -> Generator[EncodedBlock, None, None]:
    """Checks and encodes the blocks of a split, in order. Close the generator if you do not exhaust it.

    The caller counts each block with `EncodedBlock.check_and_count`. The result does not depend on the number of
    processes.
    """
    # Chunks are read ahead of the results, so their blocks wait in a queue.
    waiting: deque[tuple[Block, FilterDecisions, TextChunk]] = deque()

    def chunks() -> Iterator[TextChunk]:
        for block in blocks:
            decisions = checker.judge(block)
            chunk = TextChunk.from_block(block, decisions.keep)
            waiting.append((block, decisions, chunk))
            yield chunk

    encoded_chunks = ordered_map(
        function=encoder,
        items=chunks(),
        processes=processes,
        size=lambda chunk: chunk.n_characters,
        serial_size=SERIAL_CHARACTERS,
        option="preprocess --workers",
    )
    with closing(encoded_chunks):
        for encoded in encoded_chunks:
            block, decisions, chunk = waiting.popleft()
            yield EncodedBlock(block=block, decisions=decisions, chunk=chunk, encoded=encoded)


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
    """Checks, encodes and stores the blocks of one split; returns the number of stored examples.

    Args:
        folder: folder of the store.
        blocks: all blocks of the split.
        encoder: encoder of this split.
        checker: the same checker for all splits, the first of which must be train; decides which pairs to drop, and
            fills the report.
        fingerprint: `input_fingerprint` of the run.
        processes: number of processes that encode text.
        progress: only for train: records the complete shards, which a resumed run does not write again.
        notify: receives a message after each shard.

    Raises:
        DataError: all pairs were dropped, or labels or links do not match the text.
    """
    split = encoder.split
    tokenizers = encoder.tokenizers
    if progress is not None and progress.report is not None:
        # Lazy: the checker judges the skipped pairs when `encode_blocks` reads them. They are not counted again,
        # because the report of the interrupted run already contains them.
        blocks = _skip_pairs(progress.n_read, blocks, checker)
        checker.report.splits[split] = SplitReport.from_dict(progress.report)
    report = checker.report.splits.setdefault(split, SplitReport())
    metadata = StoreMetadata(
        fingerprint=fingerprint,
        tgt_size=len(tokenizers.tgt.vocabulary) if "tgt" in tokenizers else 0,
        vocabulary=tokenizers.checksum,
    )
    writer = StoreWriter(
        folder=folder,
        name=split,
        dtype=encoder.dtype,
        metadata=metadata,
        n_shards=progress.n_shards if progress is not None else 0,
    )
    encoded_blocks = encode_blocks(blocks, encoder, checker, processes=processes)
    with writer, closing(encoded_blocks):
        for encoded_block in encoded_blocks:
            if writer.full:
                # The shard ends before the next block is counted, so that the report covers exactly the pairs of
                # complete shards. The last shard ends with `writer`.
                writer.end_shard()
                if progress is not None:
                    progress.complete_shard(writer.n_shards, report)
                notify(f"{split}: {report.read:,} pairs read, {report.kept:,} stored")
            is_stored = encoded_block.check_and_count(split, checker)  # (n,)
            _write(writer, encoded_block, is_stored=is_stored, encoder=encoder)
        if not report.kept:
            # Raised inside the `with` block of `writer`, so that an older store is kept.
            remedy = "check the files"
            if split == "train":
                remedy = "check max_length, max_ratio and the files themselves"
            raise DataError(f"{split}: no pair passed the checks ({report.read:,} read); {remedy}")
    return report.kept


def _write(
    writer: StoreWriter, encoded_block: EncodedBlock, is_stored: Mask, encoder: PairEncoder
) -> None:
    """Stores the examples of the block's chunk for which `is_stored`, `(n,)`, is True."""
    block = encoded_block.block
    encoded = encoded_block.encoded
    # Row numbers in the block; `is_stored` and all arrays of `encoded` are indexed by rows of the chunk instead.
    kept_rows = np.flatnonzero(encoded_block.decisions.keep)  # (n,)
    stored_rows = kept_rows[is_stored]  # (stored,)
    n_truncated = {}
    for side, n_tokens in encoded.n_tokens.items():
        is_truncated = n_tokens[is_stored] > encoder.truncation_limit(side)  # (stored,)
        n_truncated[side] = int(is_truncated.sum())
    features: Iterable[Any] = ()
    feature_rows = block.columns.get("features")
    if feature_rows:
        # A generator, so that only one example is in memory at a time.
        features = (feature_rows[row] for row in stored_rows)
    writer.add(
        columns={name: column.where(is_stored) for name, column in encoded.columns.items()},
        examples_per_file=np.bincount(block.files[stored_rows]).tolist(),
        n_truncated=n_truncated,
        features=features,
    )


def _skip_pairs(n_skipped: int, blocks: Iterable[Block], checker: PairChecker) -> Iterator[Block]:
    """Skips the first pairs of a split, but lets the checker judge them, so that it recognizes later duplicates."""
    for block in blocks:
        if block.offset >= n_skipped:
            yield block
            continue
        # Shards end between two blocks, but the blocks of this run may have different boundaries.
        n_skipped_here = min(n_skipped - block.offset, len(block))
        checker.judge(block.slice(0, n_skipped_here))
        if n_skipped_here < len(block):
            yield block.slice(n_skipped_here, len(block))
