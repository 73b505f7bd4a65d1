"""Running text in blocks of so many tokens: documents one after the other, each with its EOS."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from nmtkit.data.batches.batch import Batch, Numbers, Targets
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream, Corruption, corrupted, length_batches
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD


class RunningText:
    """Documents, `read` by number, of these `lengths` without EOS, in blocks; see `BatchConfig.block_tokens`.

    A document of n tokens is n+1 positions of the text: its tokens and EOS, each predicted from the one before it; the
    first is predicted from BOS. The blocks together have every position once.
    """

    def __init__(self, lengths: Numbers, read: Callable[[int], Sequence[int] | Numbers], config: BatchConfig) -> None:
        assert config.block_tokens is not None
        self._document, self._config = read, config
        self._ends = np.cumsum(lengths + 1, dtype=np.int64)
        ends = self._ends[-1:] if config.across_documents else self._ends
        sizes = np.diff(ends, prepend=0)  # of what is cut by itself
        counts = -(-sizes // config.block_tokens)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._bounds = np.append(np.repeat(ends - sizes, counts) + number * config.block_tokens, ends[-1])

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._bounds) - 1

    @property
    def size(self) -> int:
        """Positions in all blocks."""
        return int(self._bounds[-1])

    def widths(self, blocks: Numbers) -> Numbers:
        """Positions in each of these blocks."""
        widths: Numbers = self._bounds[blocks + 1] - self._bounds[blocks]
        return widths

    def batches(self, blocks: Numbers) -> list[Numbers]:
        """Cuts blocks into batches: whole ones, then shorter ones by their lengths."""
        widths = self.widths(blocks)
        whole = widths == self._config.block_tokens
        return [
            blocks[chosen][rows]
            for chosen in (whole, ~whole)
            for rows in length_batches(widths[chosen], widths[chosen], self._config)
        ]

    def load(self, blocks: Numbers) -> Batch:
        """The batch of these blocks; targets are all that it has."""
        begins, widths = self._bounds[blocks], self.widths(blocks)
        mask = np.arange(widths.max()) < widths[:, None]  # (B,T)
        pieces = []
        places = np.searchsorted(self._ends, begins, side="right")  # the documents that they begin in
        for begin, end, place in zip(begins.tolist(), (begins + widths).tolist(), places.tolist(), strict=True):
            while begin < end:
                stop = min(end, int(self._ends[place]))
                pieces.append(self._read(place, begin, stop))
                begin, place = stop, place + 1
        shifted, ids = np.full(mask.shape, PAD, dtype=np.int64), np.full(mask.shape, PAD, dtype=np.int64)
        shifted[mask] = np.concatenate([tokens[:-1] for tokens in pieces])
        ids[mask] = np.concatenate([tokens[1:] for tokens in pieces])
        wanted = torch.from_numpy(ids)
        return Batch(targets=Targets(torch.from_numpy(shifted), wanted, wanted, torch.from_numpy(mask)))

    def _read(self, place: int, begin: int, end: int) -> Numbers:
        """The tokens of a document at some positions of the text, and the one before them."""
        row = self._document(place)
        first = int(self._ends[place]) - len(row) - 1
        begin, end = begin - first, end - first
        tokens = np.full(end - begin + 1, EOS, dtype=np.int64)
        tokens[0] = BOS
        found = row[max(begin - 1, 0) : end]
        tokens[int(begin == 0) :][: len(found)] = found
        return tokens


def blocks_in_order(store: Store, config: BatchConfig, corrupt: Corruption | None = None) -> Iterator[Batch]:
    """All documents of a store once, in blocks, in a fixed order; corrupted in the same way every time."""
    text = RunningText(store.lengths("tgt"), partial(store.ids, "tgt"), config)
    for number, blocks in enumerate(text.batches(np.arange(len(text)))):
        yield corrupted(text.load(blocks), corrupt, number)


class BlockStream(BatchStream):
    """Training batches of blocks: a `BatchStream` whose members are blocks of running text.

    Each epoch puts the documents in a new random order, cuts them, and takes the blocks in random order. Memory: 20
    bytes for a document, and 16 for a block, of a part of the epoch.
    """

    @property
    @override
    def identity(self) -> str:
        return f"{super().identity} in blocks"

    @override
    def _start_part(self, part: int, order: Numbers, draw: "np.random.Generator") -> tuple[Any, Numbers, int]:
        store = self._store
        text = RunningText(store.lengths("tgt", order), lambda n: store.ids("tgt", int(order[n])), self._config)
        return text, draw.permutation(len(text)), text.size

    @override
    def _batches_of_window(
        self, text: RunningText, begin: int, window: Numbers, draw: "np.random.Generator"
    ) -> list[Any]:
        return [(text, blocks) for blocks in text.batches(window)]

    @override
    def _size(self, members: tuple[RunningText, Numbers]) -> int:
        """As in `BatchStream`, in tokens: so an epoch goes on with blocks of another size."""
        text, blocks = members
        return int(text.widths(blocks).sum())

    @override
    def _load(self, members: tuple[RunningText, Numbers]) -> Batch:
        text, blocks = members
        return text.load(blocks)
