"""A set of hashes that is small enough for whole corpora: what has been seen before is known by 8 bytes a line."""

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

SEGMENT = 1 << 17
"""The most members of a segment when it is cut; merging needs as much memory again for one segment only."""

RECENT = 4
"""The recent members are merged into the segments when there is more than one of them for so many of the others."""


class HashSet:
    """A set of 64-bit hashes for whole corpora: 8 bytes a member, and never more than 16, also while it grows.

    Most members stand in segments: sorted arrays, one behind the other, of at most `SEGMENT` members or little more.
    The recent ones stand in sorted runs, each at most a quarter as long as the one before it. When the runs have grown
    to a part of the whole, they are merged into the segments, one segment after the other.
    """

    def __init__(self) -> None:
        self._segments: list[Hashes] = []
        self._starts: Hashes = np.empty(0, dtype=np.uint64)  # the first member of each segment
        self._runs: list[Hashes] = []
        self._settled = 0

    def __len__(self) -> int:
        return self._settled + sum(map(len, self._runs))

    def contains(self, hashes: Hashes) -> Mask:
        """For each hash, whether it is a member."""
        order = np.argsort(hashes, kind="stable")  # in order, so that neighbours are looked for in the same place
        found = np.empty(len(hashes), dtype=bool)
        found[order] = self._contains_sorted(hashes[order])
        return found

    def add(self, hashes: Hashes) -> Mask:
        """Makes the hashes members; for each, whether it was one already or stood earlier in the same call."""
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
        """As `contains`, for hashes in order."""
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
        """Moves the runs into the segments."""
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
    """For each hash, whether it is in a sorted array that is not empty."""
    place = np.searchsorted(members, hashes)
    found: Mask = members[np.minimum(place, len(members) - 1)] == hashes
    return found


def _merged(one: Hashes, other: Hashes) -> Hashes:
    """Two sorted arrays as one."""
    both = np.concatenate([one, other])
    both.sort(kind="stable")  # which merges what is already in order
    return both
