"""Random order of an epoch's examples; large epochs are split into parts to keep memory independent of corpus size."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nmtkit.data.batches.batch import Numbers

BLOCK = 8192
"""Number of neighbouring examples that stay together when an epoch is divided into parts. Much smaller blocks would map
many more pages, because the kernel maps 64 KiB at a time."""


class EpochOrder:
    """The examples of all files in an order that depends only on `seed` and `epoch`.

    `sizes` holds the number of examples in each file, and `weights` the number of times each file appears in an epoch.

    An epoch of at most `window` examples forms a single part, which is shuffled as a whole. A larger epoch is cut into
    blocks of neighbouring examples, and the blocks are put in random order. A part then consists of several blocks with
    about `window` examples in total, or of a single block; its examples are shuffled together. The length of an
    order is the number of parts.

    Memory: 4 bytes per example of a part (8 if the corpus has more than two billion examples) and 32 bytes per block.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float], window: int, seed: int, epoch: int
    ) -> None:
        self._sizes = sizes
        self._weights = weights or [1.0] * len(sizes)
        self._seeds = (seed, epoch)
        self._rng = np.random.default_rng(self._seeds)
        self._dtype = np.int32 if sum(sizes) < 1 << 31 else np.int64
        self._parts: list[Numbers] | None = None
        """Blocks of each part, as indices into `_begins`, `_ends` and `_shares`; None if the epoch is a single part."""
        # `sizes` is shorter than `weights` if the last files have no examples.
        weighted_sizes = [size * weight for size, weight in zip(sizes, self._weights, strict=False)]
        epoch_size = sum(weighted_sizes)
        part_size = max(window, BLOCK)
        if epoch_size > part_size:
            n_parts = -int(-epoch_size // part_size)  # rounded up
            self._begins, self._ends, self._shares = self._cut_into_blocks()
            n_blocks = len(self._begins)
            blocks = self._rng.permutation(n_blocks)
            self._parts = np.array_split(blocks, n_parts)

    def __len__(self) -> int:
        return 1 if self._parts is None else len(self._parts)

    def part(self, number: int) -> tuple[Numbers, "np.random.Generator"]:
        """Returns the examples of a part in random order, and the generator for all other randomness in the part."""
        if self._parts is None:
            return self._whole(), self._rng
        # Add 1, because NumPy treats the seed (seed, epoch, 0) the same as (seed, epoch), the seed of the epoch itself.
        rng = np.random.default_rng((*self._seeds, number + 1))
        blocks = self._parts[number]  # (K,)
        begins = self._begins[blocks]  # (K,)
        counts = self._ends[blocks] - begins  # (K,)
        shares = self._shares[blocks]  # (K,)
        # Concatenate the blocks: position p of the part holds example p - position of its block + begin of its block.
        positions = np.cumsum(counts) - counts  # (K,)
        order = np.repeat((begins - positions).astype(self._dtype), counts)  # (n,)
        order += np.arange(len(order), dtype=self._dtype)
        if (shares < 1).any():
            draws = rng.random(len(order), dtype=np.float32)  # (n,)
            is_taken = draws < np.repeat(shares, counts)  # (n,)
            order = order[is_taken]
        rng.shuffle(order)
        return order, rng

    def _cut_into_blocks(self) -> tuple[Numbers, Numbers, npt.NDArray[np.float32]]:
        """Returns the beginning, end and share of each block, `(K,)` each.

        For a file of weight 2.3, each block occurs three times: twice with share 1, and once with share 0.3, that is,
        with only this fraction of its examples.
        """
        begins: list[Numbers] = []
        ends: list[Numbers] = []
        shares = []
        file_begins = np.cumsum([0, *self._sizes])
        for file_begin, size, weight in zip(file_begins, self._sizes, self._weights, strict=False):
            file_blocks = file_begin + np.arange(0, size, BLOCK)
            file_shares = [1.0] * int(weight)
            fraction = weight % 1
            if fraction > 0:
                file_shares.append(fraction)
            for share in file_shares:
                begins.append(file_blocks)
                ends.append(np.minimum(file_blocks + BLOCK, file_begin + size))
                shares.append(np.full(len(file_blocks), share, dtype=np.float32))
        return np.concatenate(begins), np.concatenate(ends), np.concatenate(shares)

    def _whole(self) -> Numbers:
        """Returns all examples of the epoch in random order, as a single part."""
        n_examples = sum(self._sizes)
        examples: Numbers = np.arange(n_examples, dtype=self._dtype)
        files = np.split(examples, np.cumsum(self._sizes))
        repeated: list[Numbers] = []
        for file, weight in zip(files, self._weights, strict=False):
            repeated += [file] * int(weight)
            fraction = weight % 1
            if fraction > 0:
                is_taken = self._rng.random(len(file)) < fraction
                repeated.append(file[is_taken])
        order = np.concatenate(repeated)
        if len(order) == 0:
            # All weights are so small that no example was chosen, but an epoch must have at least one batch.
            order = self._rng.integers(0, n_examples, size=1, dtype=order.dtype)
        self._rng.shuffle(order)
        return order
