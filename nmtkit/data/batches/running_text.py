"""Running text in blocks of a fixed number of tokens: documents one after the other, each followed by EOS.

B blocks, T tokens of the longest of them.
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
    """Documents in blocks of `BatchConfig.block_tokens`.

    `lengths` are the documents' lengths without EOS, and `read` returns the ids of a document by its number.

    A document of n tokens has n+1 positions of the text: its tokens and EOS. Each token is predicted from the one
    before it, the first from BOS. Every position is in exactly one block.
    """

    # A block ends where the next one begins.
    def __init__(
        self, lengths: Numbers, read: Callable[[int], Sequence[int] | Numbers], config: BatchConfig
    ) -> None:
        block_tokens = config.block_tokens
        assert block_tokens is not None
        self._read_document = read
        self._config = config
        # The position after each EOS.
        self._ends = np.cumsum(lengths + 1, dtype=np.int64)  # (documents,)
        # A stretch is cut into blocks by itself: the whole text, or a document.
        stretch_ends = self._ends
        if config.across_documents:
            stretch_ends = self._ends[-1:]
        sizes = np.diff(stretch_ends, prepend=0)  # (stretches,)
        n_blocks = -(-sizes // block_tokens)  # (stretches,), rounded up
        first_blocks = np.cumsum(n_blocks) - n_blocks  # (stretches,): number of the first block
        number_in_stretch = np.arange(n_blocks.sum()) - np.repeat(
            first_blocks, n_blocks
        )  # (blocks,)
        begins = (
            np.repeat(stretch_ends - sizes, n_blocks) + number_in_stretch * block_tokens
        )  # (blocks,)
        self._bounds = np.append(begins, stretch_ends[-1])  # (blocks + 1,)

    def __len__(self) -> int:
        """Returns the number of blocks."""
        return len(self._bounds) - 1

    @property
    def size(self) -> int:
        """Number of positions in all blocks."""
        return int(self._bounds[-1])

    def widths(self, blocks: Numbers) -> Numbers:
        """Returns the number of positions in each of these blocks, `(n,)`."""
        widths: Numbers = self._bounds[blocks + 1] - self._bounds[blocks]
        return widths

    def batches(self, blocks: Numbers) -> list[Numbers]:
        """Cuts blocks into batches: first the full ones, then shorter ones sorted by length."""
        is_full = self.widths(blocks) == self._config.block_tokens  # (n,)
        batches = []
        for group in (blocks[is_full], blocks[~is_full]):
            widths = self.widths(group)
            for rows in length_batches(widths, widths, self._config):
                batches.append(group[rows])
        return batches

    def load(self, blocks: Numbers) -> Batch:
        """Returns the batch of these blocks `(B,)`, which has targets only."""
        begins = self._bounds[blocks]  # (B,)
        widths = self.widths(blocks)  # (B,)
        ends = begins + widths  # (B,)
        # The document a block begins in.
        first_documents = np.searchsorted(self._ends, begins, side="right")  # (B,)
        inputs = []
        targets = []
        for begin, end, document in zip(
            begins.tolist(), ends.tolist(), first_documents.tolist(), strict=True
        ):
            # A block is put together from pieces of consecutive documents.
            while begin < end:
                stop = min(end, int(self._ends[document]))
                tokens = self._read(document, begin, stop)
                inputs.append(tokens[:-1])
                targets.append(tokens[1:])
                begin = stop
                document += 1
        mask = np.arange(widths.max()) < widths[:, None]  # (B, T)
        shifted = np.full(mask.shape, PAD, dtype=np.int64)  # (B, T)
        ids = np.full(mask.shape, PAD, dtype=np.int64)  # (B, T)
        # A mask is filled block by block, from left to right: the order of the pieces.
        shifted[mask] = np.concatenate(inputs)
        ids[mask] = np.concatenate(targets)
        target_ids = torch.from_numpy(ids)  # (B, T)
        return Batch(
            targets=Targets(
                shifted=torch.from_numpy(shifted),
                ids=target_ids,
                extended=target_ids,
                mask=torch.from_numpy(mask),
            )
        )

    def _read(self, document: int, begin: int, end: int) -> Numbers:
        """Returns the tokens of a document at positions `begin` to `end` of the text, preceded by the token before.

        For example all positions of the document a b c give BOS a b c EOS, and the last two of them b c EOS.
        """
        ids = self._read_document(document)
        document_begin = int(self._ends[document]) - len(ids) - 1
        begin -= document_begin
        end -= document_begin
        tokens = np.full(end - begin + 1, EOS, dtype=np.int64)
        if begin == 0:
            tokens[0] = BOS
            body = ids[:end]
            tokens[1 : 1 + len(body)] = body
        else:
            body = ids[begin - 1 : end]
            tokens[: len(body)] = body
        # EOS stays in the last place if the piece ends after the last token of the document.
        return tokens


def blocks_in_order(
    store: Store, config: BatchConfig, corrupt: Corruption | None = None
) -> Iterator[Batch]:
    """Yields all documents of a store once, in blocks, in a fixed order; corrupted in the same way every time."""
    text = RunningText(store.lengths("tgt"), partial(store.ids, "tgt"), config)
    for number, blocks in enumerate(text.batches(np.arange(len(text)))):
        yield corrupted(text.load(blocks), corrupt, number)


class _BlockMembers(NamedTuple):
    """The members of a batch: some blocks of a text."""

    text: RunningText
    blocks: Numbers


class BlockStream(BatchStream):
    """Training batches of blocks: a `BatchStream` whose items are blocks of running text.

    Each epoch puts the documents in a new random order, cuts them into blocks, and takes the blocks in random order.
    Memory: 20 bytes per document and 16 bytes per block of a part of the epoch.
    """

    @property
    @override
    def identity(self) -> str:
        return f"{super().identity} in blocks"

    @override
    def _start_part(self, part: int, order: Numbers, rng: "np.random.Generator") -> EpochPart:
        store = self._store

        def read(document: int) -> Numbers:
            return store.ids("tgt", int(order[document]))

        text = RunningText(store.lengths("tgt", order), read, self._config)
        blocks = rng.permutation(len(text))
        return EpochPart(context=text, items=blocks, length=text.size)

    @override
    def _batches_of_window(
        self, context: RunningText, begin: int, window: Numbers, rng: "np.random.Generator"
    ) -> list[Any]:
        return [_BlockMembers(context, blocks) for blocks in context.batches(window)]

    @override
    def _length(self, members: _BlockMembers) -> int:
        """Returns the number of tokens, so that an epoch can continue with blocks of another size."""
        widths = members.text.widths(members.blocks)
        return int(widths.sum())

    @override
    def _load(self, members: _BlockMembers) -> Batch:
        return members.text.load(members.blocks)
