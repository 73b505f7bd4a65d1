"""64-bit hashes of lines, and sets of such hashes for whole corpora."""

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

    They are valid only within this process, since Python salts its hashes. Among 100 million pairs, the probability of
    a collision is about 0.03%.
    """

    pairs: Hashes
    src: Hashes

    @classmethod
    def from_texts(cls, src: Sequence[str], tgt: Sequence[str] | None) -> "PairHashes":
        """Computes the hashes of sources and, if there are any, targets."""
        sources = _hashes(src)
        targets = np.zeros_like(sources) if tgt is None else _hashes(tgt)
        # Modulo 2^64. Without the factors, swapping source and target would not change the sum.
        pairs = sources * _SOURCE_FACTOR + targets * _TARGET_FACTOR
        return cls(pairs, sources)


def _hashes(lines: Sequence[str]) -> Hashes:
    # Python's 64-bit hash is many times faster than hashlib, and strings cache it.
    return np.fromiter(map(hash, lines), dtype=np.int64, count=len(lines)).view(np.uint64)


def _is_member(hashes: Hashes, sorted_members: Hashes) -> tuple[Mask, NDArray[np.intp]]:
    """Looks up hashes in a nonempty sorted array; returns whether each is a member, and at which index."""
    # The insertion point of a hash above all members is the length of the array, which is not a valid index.
    indices = np.minimum(np.searchsorted(sorted_members, hashes), len(sorted_members) - 1)
    return sorted_members[indices] == hashes, indices


class SoughtHashes:
    """Hashes of the valid and test splits, each with a mark that shows whether it also occurs in train."""

    def __init__(self) -> None:
        self._added: list[Hashes] = []
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)  # sorted, without repetitions
        self._was_matched: Mask = np.empty(0, dtype=bool)

    def add(self, hashes: Hashes) -> None:
        """Adds hashes of the valid or test split; all of them must be added before the first `mark_matches`."""
        self._added.append(hashes)

    def mark_matches(self, hashes: Hashes) -> Mask:
        """Marks the added hashes that occur in `hashes`, which come from the train split.

        Returns a mask `(n,)` of the items in `hashes` that are among the added hashes.
        """
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
        """Returns whether each of the given hashes, which must have been added, was found in train, `(n,)`."""
        return np.isin(hashes, self._hashes[self._was_matched])


class HashSet:
    """A set of 64-bit hashes that needs 8 bytes per member, and about 20 while it grows.

    The members are stored in sorted runs, each at most a quarter as long as the one before (a log-structured merge).

    With a limit of `max_size` members, the set is a sample: it ignores all hashes above a bound, and halves this bound
    whenever the limit is exceeded.
    """

    def __init__(self, max_size: int | None = None) -> None:
        self._runs: list[Hashes] = []
        self._max_size = max_size
        self.one_in = 1
        """The set is a sample of one in `one_in` hashes, namely the smallest ones; 1 means all hashes."""

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: Hashes) -> Mask:
        """Adds hashes; returns whether each of them was already a member or occurs earlier in `hashes`, `(n,)`.

        The result is False for hashes outside the sample.
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
        while self._max_size is not None and len(self) > self._max_size:
            self.one_in *= 2
            # A copy, because a slice would keep the whole run in memory.
            self._runs = [self._sampled_part(run).copy() for run in self._runs]
        return repeats

    @property
    def _bound(self) -> np.uint64:
        return np.uint64((1 << 64) // self.one_in - 1)

    def _sampled_part(self, sorted_hashes: Hashes) -> Hashes:
        """Returns the hashes of a sorted array that do not exceed the bound."""
        return sorted_hashes[: np.searchsorted(sorted_hashes, self._bound, side="right")]
