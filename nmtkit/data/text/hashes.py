"""64-bit hashes of lines, and sets of them for whole corpora."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]

_SOURCE_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TARGET_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)


class PairHashes(NamedTuple):
    """Hashes `(n,)` of pairs and of their sources.

    Valid within this process only, since Python's hashes are salted. Among 100 million pairs, a collision occurs in one
    of some thousand corpora.
    """

    pairs: Hashes
    src: Hashes

    @classmethod
    def from_texts(cls, src: Sequence[str], tgt: Sequence[str] | None) -> "PairHashes":
        """Hashes sources, and their targets if there are any."""
        sources = _hashes(src)
        targets = np.zeros_like(sources) if tgt is None else _hashes(tgt)
        # Modulo 2^64. Without the factors, swapping source and target would not change the sum.
        pairs = sources * _SOURCE_FACTOR + targets * _TARGET_FACTOR
        return cls(pairs, sources)


def _hashes(lines: Sequence[str]) -> Hashes:
    # Python's 64-bit hash is many times faster than hashlib, and is stored with the string after the first call.
    return np.fromiter(map(hash, lines), dtype=np.int64, count=len(lines)).view(np.uint64)


def _is_member(hashes: Hashes, sorted_members: Hashes) -> tuple[Mask, NDArray[np.intp]]:
    """Looks up hashes in a sorted array that is not empty; returns whether each is there, and its index if it is."""
    # The insertion point of a hash above all members is the length of the array, which is not a valid index.
    indices = np.minimum(np.searchsorted(sorted_members, hashes), len(sorted_members) - 1)
    return sorted_members[indices] == hashes, indices


class SoughtHashes:
    """Hashes to look up in train, and whether each was found there."""

    def __init__(self) -> None:
        self._added: list[Hashes] = []
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)  # sorted, without repetitions
        self._was_matched: Mask = np.empty(0, dtype=bool)

    def add(self, hashes: Hashes) -> None:
        """Adds hashes; all must be added before the first lookup."""
        self._added.append(hashes)

    def lookup(self, hashes: Hashes) -> Mask:
        """Looks up hashes of train; returns whether each is among the added ones, `(n,)`."""
        if self._added:
            self._hashes = np.unique(np.concatenate(self._added))
            self._was_matched = np.zeros(len(self._hashes), dtype=bool)
            self._added = []
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        matches, indices = _is_member(hashes, self._hashes)
        self._was_matched[indices[matches]] = True
        return matches

    def was_matched(self, hashes: Hashes) -> Mask:
        """Returns whether each hash was found in train, `(n,)`."""
        return np.isin(hashes, self._hashes[self._was_matched])


class HashSet:
    """A set of 64-bit hashes that needs 8 bytes per member, and about 20 while it grows.

    The members are in sorted runs, each at most a quarter as long as the one before (a log-structured merge).

    With a limit of `most` members the set is a sample: it ignores all hashes above a bound, and the bound is halved
    whenever the set exceeds the limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self._runs: list[Hashes] = []
        self._most = most
        self.one_in = 1
        """One in this many hashes is sampled: the smallest. 1 if all are."""

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: Hashes) -> Mask:
        """Adds hashes; returns whether each was a member already or occurred earlier in this call, `(n,)`.

        The result is False for hashes outside of the sample.
        """
        unique, first_indices = np.unique(hashes, return_index=True)
        repeats = np.ones(len(hashes), dtype=bool)
        if self.one_in > 1:
            repeats = hashes <= self._bound
            unique = self._sampled_part(unique)
            first_indices = first_indices[: len(unique)]

        is_old = np.zeros(len(unique), dtype=bool)
        for run in self._runs:
            is_in_run, _ = _is_member(unique, run)
            is_old |= is_in_run
        repeats[first_indices[~is_old]] = False

        new_run = unique[~is_old]
        while self._runs and len(self._runs[-1]) < 4 * len(new_run):
            new_run = np.concatenate([self._runs.pop(), new_run])
            new_run.sort(kind="stable")  # timsort: merges two sorted halves in linear time
        if len(new_run):
            self._runs.append(new_run)
        while self._most is not None and len(self) > self._most:
            self.one_in *= 2
            # Copies, since a slice would keep the memory of the whole run.
            self._runs = [self._sampled_part(run).copy() for run in self._runs]
        return repeats

    @property
    def _bound(self) -> np.uint64:
        return np.uint64((1 << 64) // self.one_in - 1)

    def _sampled_part(self, sorted_hashes: Hashes) -> Hashes:
        """Returns the part of a sorted array that is up to the bound."""
        return sorted_hashes[: np.searchsorted(sorted_hashes, self._bound, side="right")]
