"""64-bit hashes of lines, and sets of them for whole corpora."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

SEGMENT = 1 << 17
"""The size of a new segment; merging needs as much memory again for one segment only."""
RECENT = 4
"""Runs are merged into the segments when they have more than this part of the members (1 in RECENT)."""


@dataclass(frozen=True)
class PairHashes:
    """Hashes `(n,)` of pairs, sources and targets (0 without targets).

    Valid within this process only, since Python's hashes are salted. Among 100 million pairs a collision occurs in one
    of some thousand corpora.
    """

    pairs: Hashes
    src: Hashes
    tgt: Hashes

    @classmethod
    def of(cls, src: Sequence[str], tgt: Sequence[str] | None) -> "PairHashes":
        """Hashes sources and targets."""
        sources = _hashes(src)
        targets = np.zeros_like(sources) if tgt is None else _hashes(tgt)
        # Both are random numbers of 64 bits, so that two different pairs hardly ever have the same sum.
        both = sources * np.uint64(0x9E3779B97F4A7C15) + targets * np.uint64(0xC2B2AE3D27D4EB4F)
        return cls(both, sources, targets)


def _hashes(lines: Sequence[str]) -> Hashes:
    # Python keeps the 64-bit hash of a text with the text, and it is many times faster than those of hashlib.
    return np.fromiter(map(hash, lines), dtype=np.int64, count=len(lines)).view(np.uint64)


class HashLookup:
    """Hashes to look up in train, and whether each was found there."""

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)
        self._met: Mask = np.empty(0, dtype=bool)

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, hashes: Hashes) -> None:
        """Adds hashes; before the first lookup."""
        self._hashes = np.union1d(self._hashes, hashes)
        self._met = np.zeros(len(self._hashes), dtype=bool)

    def lookup(self, hashes: Hashes) -> Mask:
        """Looks up hashes of train; whether each is known, `(n,)`."""
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
    """A set of 64-bit hashes: 8 bytes a member, never more than 16, also while it grows.

    Most members are in segments: sorted arrays of about `SEGMENT` members, in order. Recent ones are in sorted runs,
    each at most a quarter as long as the one before. Large runs are merged into the segments, one after the other.
    """

    def __init__(self) -> None:
        self._segments: list[Hashes] = []
        self._starts: Hashes = np.empty(0, dtype=np.uint64)  # the first member of each segment
        self._runs: list[Hashes] = []
        self._settled = 0

    def __len__(self) -> int:
        return self._settled + sum(map(len, self._runs))

    def add(self, hashes: Hashes) -> Mask:
        """Adds hashes; `(n,)`: whether each was a member already, or came earlier in this call."""
        unique, first = np.unique(hashes, return_index=True)
        old = self._contains_sorted(unique)
        new = np.zeros(len(hashes), dtype=bool)
        new[first[~old]] = True
        run = unique[~old]
        while self._runs and len(run) and len(self._runs[-1]) < 4 * len(run):
            run = _merged(self._runs.pop(), run)
        if len(run):
            self._runs.append(run)
        if sum(map(len, self._runs)) > max(SEGMENT, self._settled // RECENT):
            self._settle()
        return ~new

    def _contains_sorted(self, hashes: Hashes) -> Mask:
        """Membership of sorted hashes."""
        found = np.zeros(len(hashes), dtype=bool)
        for run in self._runs:
            found |= _among(hashes, run)
        # A hash belongs to the last segment that does not begin behind it; the first takes what is before all.
        cuts = [0, *np.searchsorted(hashes, self._starts[1:]).tolist(), len(hashes)]
        for segment, (start, end) in zip(self._segments, pairwise(cuts), strict=False):
            if start < end:
                found[start:end] |= _among(hashes[start:end], segment)
        return found

    def _settle(self) -> None:
        """Merges the runs into the segments."""
        run = self._runs.pop()
        while self._runs:
            run = _merged(self._runs.pop(), run)
        self._settled += len(run)
        segments = self._segments or [np.empty(0, dtype=np.uint64)]
        cuts = [0, *np.searchsorted(run, self._starts[1:]).tolist(), len(run)]
        self._segments = []
        segments.reverse()  # to let go of each as soon as it is merged
        for start, end in pairwise(cuts):
            whole = _merged(segments.pop(), run[start:end])
            count = -(-len(whole) // SEGMENT)
            # Copies, for a view would keep the whole from being freed.
            self._segments += [whole] if count == 1 else [part.copy() for part in np.array_split(whole, count)]
        self._starts = np.array([segment[0] for segment in self._segments], dtype=np.uint64)


def _among(hashes: Hashes, members: Hashes) -> Mask:
    """Membership in a sorted array that is not empty."""
    place = np.searchsorted(members, hashes)
    found: Mask = members[np.minimum(place, len(members) - 1)] == hashes
    return found


def _merged(one: Hashes, other: Hashes) -> Hashes:
    both = np.concatenate([one, other])
    both.sort(kind="stable")  # which merges what is already in order
    return both
