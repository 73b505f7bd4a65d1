"""64-bit hashes of lines, and sets of them for whole corpora."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class PairHashes(NamedTuple):
    """Hashes `(n,)` of pairs and of their sources.

    Valid within this process only, since Python's hashes are salted. Among 100 million pairs a collision occurs in one
    of some thousand corpora.
    """

    pairs: Hashes
    src: Hashes

    @classmethod
    def from_texts(cls, src: Sequence[str], tgt: Sequence[str] | None) -> "PairHashes":
        """Hashes sources, with their targets if there are any."""
        sources = _hashes(src)
        targets = np.zeros_like(sources) if tgt is None else _hashes(tgt)
        # Both are random numbers of 64 bits, so that two different pairs hardly ever have the same sum.
        return cls(sources * np.uint64(0x9E3779B97F4A7C15) + targets * np.uint64(0xC2B2AE3D27D4EB4F), sources)


def _hashes(lines: Sequence[str]) -> Hashes:
    # Python keeps the 64-bit hash of a text with the text, and it is many times faster than those of hashlib.
    return np.fromiter(map(hash, lines), dtype=np.int64, count=len(lines)).view(np.uint64)


class SoughtHashes:
    """Hashes to look up in train, and whether each was found there."""

    def __init__(self) -> None:
        self._added: list[Hashes] = []
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)
        self._met: Mask = np.empty(0, dtype=bool)

    def add(self, hashes: Hashes) -> None:
        """Adds hashes; before the first lookup."""
        self._added.append(hashes)

    def lookup(self, hashes: Hashes) -> Mask:
        """Looks up hashes of train; whether each is known, `(n,)`."""
        if self._added:
            self._hashes, self._added = np.unique(np.concatenate(self._added)), []
            self._met = np.zeros(len(self._hashes), dtype=bool)
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        known: Mask = self._hashes[place] == hashes
        self._met[place[known]] = True
        return known

    def was_matched(self, hashes: Hashes) -> Mask:
        """`(n,)`: whether each hash was found in train."""
        return np.isin(hashes, self._hashes[self._met])


class HashSet:
    """A set of 64-bit hashes: 8 bytes a member, about 20 at the moments when it grows.

    The members are in sorted runs, each at most a quarter as long as the one before (a log-structured merge).

    A set of at most so many members (`most`) leaves out hashes from a bound on, which halves whenever there are more.
    """

    def __init__(self, most: int | None = None) -> None:
        self._runs: list[Hashes] = []
        self._most = most
        self.one_in = 1
        """The share of hashes that are looked at, the smallest ones: one in so many."""

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: Hashes) -> Mask:
        """Adds hashes; `(n,)`: whether each was a member already, or came earlier in this call.

        False for those that are left out.
        """
        unique, first = np.unique(hashes, return_index=True)
        repeats = np.ones(len(hashes), dtype=bool)
        if self.one_in > 1:
            repeats = hashes <= self._bound
            unique, first = self._within(unique), first[: len(self._within(unique))]
        old = np.zeros(len(unique), dtype=bool)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, unique), len(run) - 1)
            old |= run[place] == unique
        repeats[first[~old]] = False
        run = unique[~old]
        while self._runs and len(self._runs[-1]) < 4 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # which merges what is already in order
        if len(run):
            self._runs.append(run)
        while self._most is not None and len(self) > self._most:
            self.one_in *= 2
            self._runs = [self._within(run).copy() for run in self._runs]
        return repeats

    @property
    def _bound(self) -> np.uint64:
        return np.uint64((1 << 64) // self.one_in - 1)

    def _within(self, run: Hashes) -> Hashes:
        """The part of a sorted run that is looked at."""
        return run[: np.searchsorted(run, self._bound, side="right")]
