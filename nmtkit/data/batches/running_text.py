"""Running text in blocks of a fixed number of tokens: concatenated documents, each followed by EOS.

A block here is a range of positions in this text, unlike the blocks in `nmtkit.data.text.blocks`, which are parts of a
corpus. Shapes: B blocks, T tokens in the longest block.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from typing_extensions import override

from nmtkit.data.batches.batch import Batch, Numbers, Targets
from nmtkit.data.batches.batch_stream import (
    BatchConfig,
    BatchStream,
    Corruption,
    EpochPart,
    corrupted,
    length_batches,
)
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD


class RunningText:
    """Documents cut into blocks of `BatchConfig.block_tokens` tokens; the length is the number of blocks.

    A document of n tokens occupies n+1 positions of the text, for its tokens and EOS. Each position belongs to exactly
    one block. The model's input at a position is the token before it, and BOS at the first position of a document. A
    block that begins within a document therefore has the last token of the preceding block as its first input.
    """

    def __init__(
        self,
        lengths: Numbers,
        read_document: Callable[[int], Sequence[int] | Numbers],
        config: BatchConfig,
    ) -> None:
        """Determines where blocks begin.

        Args:
            lengths: length of each document, excluding EOS, `(documents,)`.
            read_document: returns the ids of the document with this number.
            config: size of the blocks.
        """
        block_tokens = config.block_tokens
        assert block_tokens is not None
        self._read_document = read_document
        self._config = config
        # The position after the EOS of each document.
        self._ends = np.cumsum(lengths + 1, dtype=np.int64)  # (documents,)
        # A stretch is a part of the text that is cut into blocks separately: the whole text or a single document.
        stretch_ends = self._ends
        if config.across_documents:
            stretch_ends = self._ends[-1:]
        sizes = np.diff(stretch_ends, prepend=0)  # (stretches,)
        n_blocks = -(-sizes // block_tokens)  # (stretches,), rounded up
        first_blocks = np.cumsum(n_blocks) - n_blocks  # (stretches,): number of the first block
        block_numbers = np.arange(n_blocks.sum())  # (blocks,)
        number_in_stretch = block_numbers - np.repeat(first_blocks, n_blocks)  # (blocks,)
        stretch_begins = np.repeat(stretch_ends - sizes, n_blocks)  # (blocks,)
        begins = stretch_begins + number_in_stretch * block_tokens  # (blocks,)
        # Each block ends where the next one begins.
        self._bounds = np.append(begins, stretch_ends[-1])  # (blocks + 1,)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def size(self) -> int:
        """Total number of positions in all blocks."""
        return int(self._bounds[-1])

    def widths(self, blocks: Numbers) -> Numbers:
        """Returns the number of positions in each of these blocks, `(n,)`."""
        widths: Numbers = self._bounds[blocks + 1] - self._bounds[blocks]
        return widths

    def batches(self, blocks: Numbers) -> list[Numbers]:
        """Groups blocks into batches: first the full blocks, then the shorter ones, sorted by length.

        Full blocks form separate batches, which are never padded.
        """
        is_full = self.widths(blocks) == self._config.block_tokens  # (n,)
        batches = []
        for group in (blocks[is_full], blocks[~is_full]):
            widths = self.widths(group)
            for rows in length_batches(widths, widths, self._config):
                batches.append(group[rows])
        return batches

    def load(self, blocks: Numbers) -> Batch:
        """Returns a batch of these blocks, `(B,)`; it has only targets."""
        begins = self._bounds[blocks]  # (B,)
        widths = self.widths(blocks)  # (B,)
        ends = begins + widths  # (B,)
        # The document in which each block begins.
        first_documents = np.searchsorted(self._ends, begins, side="right")  # (B,)
        inputs = []
        targets = []
        for begin, end, document in zip(
            begins.tolist(), ends.tolist(), first_documents.tolist(), strict=True
        ):
            # A block consists of pieces of consecutive documents.
            while begin < end:
                stop = min(end, int(self._ends[document]))
                tokens = self._piece(document, begin, stop)
                inputs.append(tokens[:-1])
                targets.append(tokens[1:])
                begin = stop
                document += 1
        mask = np.arange(widths.max()) < widths[:, None]  # (B, T)
        shifted = np.full(mask.shape, PAD, dtype=np.int64)  # (B, T)
        ids = np.full(mask.shape, PAD, dtype=np.int64)  # (B, T)
        # Assigning through a boolean mask fills positions in row-major order, that is, block by block, which matches
        # the order of the concatenated pieces.
        shifted[mask] = np.concatenate(inputs)
        ids[mask] = np.concatenate(targets)
        target_ids = torch.from_numpy(ids)  # (B, T)
        return Batch(
            targets=Targets(
                shifted=torch.from_numpy(shifted),
                ids=target_ids,
                extended=target_ids,  # the same, because there is no source to copy from
                mask=torch.from_numpy(mask),
            )
        )

    def _piece(self, document: int, begin: int, end: int) -> Numbers:
        """Returns a document's tokens at text positions `begin` to `end - 1`, preceded by the token before them.

        For example, all positions of the document a b c give BOS a b c EOS, and its last two positions give b c EOS.
        """
        ids = self._read_document(document)
        # Position p of a document has token p, and its last position has EOS.
        document_begin = int(self._ends[document]) - len(ids) - 1
        first = begin - document_begin
        end_in_document = end - document_begin
        tokens = np.full(end - begin + 1, EOS, dtype=np.int64)
        if first == 0:
            tokens[0] = BOS
            body = ids[:end_in_document]
            tokens[1 : 1 + len(body)] = body
        else:
            body = ids[first - 1 : end_in_document]
            tokens[: len(body)] = body
        # If the piece includes the last position, the slice is one token shorter, and the last token remains EOS.
        return tokens


def blocks_in_order(
    store: Store, config: BatchConfig, corrupt: Corruption | None = None
) -> Iterator[Batch]:
    """Yields batches of blocks that cover each document of a store once; order and corruption never change."""
    text = RunningText(store.lengths("tgt"), partial(store.ids, "tgt"), config)
    for number, blocks in enumerate(text.batches(np.arange(len(text)))):
        yield corrupted(text.load(blocks), corrupt, seeds=(number,))


class _BlockMembers(NamedTuple):
    """The members of a batch: blocks of a running text."""

    text: RunningText
    blocks: Numbers


class BlockStream(BatchStream):
    """A `BatchStream` whose items are blocks of running text.

    Each epoch puts the documents in a new random order. Each part of an epoch is cut into blocks separately, and its
    blocks are shuffled. Documents are not truncated; `limits` has no effect. Memory: 20 bytes per document and 16 bytes
    per block in a part of the epoch, and temporarily more while the blocks are determined.
    """

    @property
    @override
    def identity(self) -> str:
        return f"{super().identity} in blocks"

    @override
    def _start_part(self, part: int, order: Numbers, rng: "np.random.Generator") -> EpochPart:
        store = self._store

        def read_document(document: int) -> Numbers:
            return store.ids("tgt", int(order[document]))

        text = RunningText(store.lengths("tgt", order), read_document, self._config)
        blocks = rng.permutation(len(text))
        return EpochPart(context=text, items=blocks, length=text.size)

    @override
    def _batches_of_window(
        self, context: RunningText, begin: int, window: Numbers, rng: "np.random.Generator"
    ) -> list[Any]:
        return [_BlockMembers(context, blocks) for blocks in context.batches(window)]

    @override
    def _length(self, members: _BlockMembers) -> int:
        """Returns the number of tokens in the batch.

        The position in an epoch is counted in tokens rather than blocks, so a run can resume at the same point with a
        different block size; only the order of the blocks differs.
        """
        widths = members.text.widths(members.blocks)
        return int(widths.sum())

    @override
    def _load(self, members: _BlockMembers) -> Batch:
        return members.text.load(members.blocks)
