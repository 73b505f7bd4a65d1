"""The examples of an epoch in random order; those of a large corpus in parts, so that memory does not grow with it."""

from collections.abc import Sequence

import numpy as np

from nmtkit.data.batches.batch import Numbers

BLOCK = 8192
"""Neighbours that come together into a part: much less would map much more, for the kernel maps 64 KiB at a time."""


class EpochOrder:
    """The examples of all files, of these sizes, repeated by `weights`, in an order that seed and epoch alone decide.

    An epoch of at most `window` examples is one part, shuffled as a whole. A larger one is cut into blocks of
    neighbours. The blocks come in random order, and the examples of as many as hold about `window`, or of one, are
    shuffled together: a part. Memory: 4 bytes for an example of a part, and 32 for a block; 8 in place of 4 where the
    corpus has more than two thousand million examples.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], window: int, seed: int, epoch: int) -> None:
        self._sizes, self._weights, self._place = sizes, weights or [1.0] * len(sizes), (seed, epoch)
        self._dtype = np.int32 if sum(sizes) < 1 << 31 else np.int64
        self._draw = np.random.default_rng(self._place)
        expected = sum(size * weight for size, weight in zip(sizes, self._weights, strict=False))
        self._parts = None if expected <= max(window, BLOCK) else self._cut(-int(-expected // max(window, BLOCK)))

    def __len__(self) -> int:
        """The number of parts."""
        return 1 if self._parts is None else len(self._parts)

    def part(self, number: int) -> tuple[Numbers, "np.random.Generator"]:
        """The examples of a part in their order, and what draws whatever else is random in it."""
        if self._parts is None:
            return self._whole(), self._draw
        draw = np.random.default_rng((*self._place, number + 1))  # a zero at the end would be the epoch's own seed
        chosen = self._parts[number]
        counts, shares = self._ends[chosen] - self._begins[chosen], self._shares[chosen]
        order = np.repeat((self._begins[chosen] - np.cumsum(counts) + counts).astype(self._dtype), counts)
        order += np.arange(len(order), dtype=self._dtype)
        if (shares < 1).any():
            order = order[draw.random(len(order), dtype=np.float32) < np.repeat(shares, counts)]
        draw.shuffle(order)
        return order, draw

    def _cut(self, parts: int) -> list[Numbers]:
        """The blocks of each part; a block of which a share comes, once more, is one of its own."""
        begins, ends, shares = [], [], []
        for begin, size, weight in zip(np.cumsum([0, *self._sizes]), self._sizes, self._weights, strict=False):
            blocks = begin + np.arange(0, size, BLOCK)
            for share in [1.0] * int(weight) + [weight % 1] * (weight % 1 > 0):
                begins.append(blocks)
                ends.append(np.minimum(blocks + BLOCK, begin + size))
                shares.append(np.full(len(blocks), share, dtype=np.float32))
        self._begins, self._ends, self._shares = map(np.concatenate, (begins, ends, shares))
        return np.array_split(self._draw.permutation(len(self._begins)), parts)

    def _whole(self) -> Numbers:
        count, draw = sum(self._sizes), self._draw
        order: Numbers = np.arange(count, dtype=self._dtype)
        parts: list[Numbers] = []
        for weight, whole in zip(self._weights, np.split(order, np.cumsum(self._sizes)), strict=False):
            parts += [whole] * int(weight)
            if fraction := weight % 1:
                parts.append(whole[draw.random(len(whole)) < fraction])
        order = np.concatenate(parts)
        if not len(order):  # where all weights are small, and an epoch has at least one batch
            order = draw.integers(0, count, size=1, dtype=order.dtype)
        draw.shuffle(order)
        return order
