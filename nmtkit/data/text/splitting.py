"""Splits pairs into train, validation and test by a hash of their group: the same everywhere.

A group, such as all pairs of one source or one page, is never divided. The splits do not depend on the order of the
corpus, and new pairs hardly move others.
"""

import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Generic, TypeVar

from nmtkit.core.errors import DataError
from nmtkit.core.files import write_errors
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.reading import read_pairs

HOLD_OUT_ONE_IN = 20
MAX_HELD_OUT = 1_000
"""One pair in this many is held out for validation, and another for test, but no more than MAX_HELD_OUT different
sources."""

Item = TypeVar("Item")


def group_hash(group: str) -> int:
    """A hash of a group's name, uniform in 0 to 2^64 - 1 and the same everywhere."""
    return int.from_bytes(hashlib.sha256(group.encode("utf-8")).digest()[:8], "big")


class BottomKSample(Generic[Item]):
    """The items of the groups with the smallest hashes (a bottom-k sample)."""

    def __init__(self) -> None:
        self.groups: dict[int, list[tuple[int, Item]]] = {}
        """The items of each group by its hash, with their numbers in the order of the corpus."""
        self._heap: list[int] = []  # a heap of digests, turned negative, so that the largest comes first
        self.count = 0
        """Number of items."""
        self._order = itertools.count()

    def add(self, digest: int, item: Item) -> None:
        """Adds an item of a group, in the order of the corpus."""
        if digest not in self.groups:
            self.groups[digest] = []
            heapq.heappush(self._heap, -digest)
        self.groups[digest].append((next(self._order), item))
        self.count += 1

    def pop_largest(self) -> tuple[int, list[Item]]:
        """Removes the group with the largest hash; returns the hash and its items."""
        digest = -heapq.heappop(self._heap)
        items = [item for _, item in self.groups.pop(digest)]
        self.count -= len(items)
        return digest, items

    def items(self) -> list[Item]:
        """All items in the order of the corpus."""
        return [item for _, item in sorted(itertools.chain.from_iterable(self.groups.values()), key=itemgetter(0))]


# ---------------------------------------------------------------------------------------------- by shares of all groups


class Splitter(Generic[Item]):
    """Splits pairs, whole groups only; train is passed on at once, the others are kept until the end.

    Test gets the hashes from 0 to its share of the range, validation the next ones. Each keeps at most `max_pairs`
    pairs, those of the smallest hashes; the others go to train.
    """

    def __init__(self, valid: float, test: float, max_pairs: int | None, train: Callable[[Item], None]) -> None:
        self._train = train
        self._max_pairs = max_pairs
        self._first = {"test": 0.0, "valid": test}
        self._end = {"test": test, "valid": test + valid}
        self.held_out: dict[str, BottomKSample[Item]] = {"test": BottomKSample(), "valid": BottomKSample()}
        """The pairs of each, in the order of the corpus."""

    def add(self, group: str, pair: Item) -> None:
        """Assigns a pair of a group to its split."""
        digest = group_hash(group)
        for name, held in self.held_out.items():
            if self._first[name] <= digest / 2**64 < self._end[name]:
                held.add(digest, pair)
                while self._max_pairs is not None and held.count > self._max_pairs:
                    largest, removed = held.pop_largest()
                    self._end[name] = largest / 2**64  # later pairs of this group are for training too
                    for one in removed:
                        self._train(one)
                return
        self._train(pair)


# ------------------------------------------------------------------------------------------------ by numbers of sources


@dataclass(frozen=True)
class HoldOut:
    """Sources held out of training; equal ones stay together.

    Hashes up to `valid` are for validation, those up to `test` for test; all others, and those `kept`, for training.
    """

    valid: int
    test: int
    kept: Collection[int] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the held-out splits."""
        return ("valid", "test") if self.test > self.valid else ("valid",)

    def split_of(self, pair: Example) -> str:
        """The split of a pair: train, valid or test. Pairs with an empty side stay in train."""
        digest = _source_digest(pair.src)
        if _is_empty(pair) or digest in self.kept:
            return "train"
        return "valid" if digest <= self.valid else "test" if digest <= self.test else "train"


def choose_hold_out(
    pairs: Iterable[Example], with_test: bool, train: Callable[[Example], None], labelled: bool = False
) -> HoldOut:
    """Chooses what is held out: one in `HOLD_OUT_ONE_IN` pairs for validation, and as many for test.

    Memory holds the pairs of some thousand sources, however large the corpus. All other pairs go to `train`, in another
    order. Where targets are labels (`labelled`), train keeps the first source of each: it must know all of them.
    """
    purposes = 2 if with_test else 1
    enough = (purposes + 1) * MAX_HELD_OUT  # sources known by then; those that are not held out are for training
    smallest, first = BottomKSample[Example](), dict[str, int]()
    end, count = 1 << 64, 0
    for pair in pairs:
        digest, empty = _source_digest(pair.src), _is_empty(pair)
        count += not empty
        if labelled and not empty:
            first.setdefault(str(pair.tgt).strip(), digest)
        if digest >= end or empty:
            train(pair)
            continue
        smallest.add(digest, pair)
        if len(smallest.groups) > enough:
            end, removed = smallest.pop_largest()
            for one in removed:
                train(one)
    kept = frozenset(first.values())
    digests = sorted(smallest.groups.keys() - kept)
    wanted, known = max(1, count // HOLD_OUT_ONE_IN), sum(len(smallest.groups[one]) for one in digests)
    # Sources that have so many pairs, as far as those tell that are known.
    each = min(-(-wanted * len(digests) // max(known, 1)), MAX_HELD_OUT, len(digests) // (purposes + 1))
    if not each:
        raise DataError(
            f"{len(digests)} different source lines{' beside the first of each label' * labelled} are too few to hold "
            "some out for validation; bring more text, or name other files with --valid"
        )
    held = HoldOut(digests[each - 1], digests[purposes * each - 1], kept)
    for pair in smallest.items():
        if held.split_of(pair) == "train":
            train(pair)
    return held


def pairs_to_split(files: SplitFiles) -> Iterator[Example]:
    """The pairs of some files; a text without a source is its own."""
    pairs = read_pairs(files)
    return pairs if "src" in files.columns else (replace(pair, src=pair.tgt or "") for pair in pairs)


def write_splits(
    files: SplitFiles, hold_out: HoldOut, folder: Path, names: Sequence[str], ends: Sequence[str]
) -> Counter[str]:
    """Writes the pairs of each split into a new folder; returns their numbers.

    Train has a file for each name in `names`, the others are valid and test; `ends` are the file suffixes, of texts
    without a source one.
    """
    counts: Counter[str] = Counter()
    with write_errors(folder), ExitStack() as opened:
        folder.mkdir(parents=True)
        outputs = {
            name: [
                opened.enter_context(open(folder / f"{name}.{end}", "w", encoding="utf-8", newline="\n"))
                for end in ends
            ]
            for name in (*names, *hold_out.splits)
        }
        for pair in pairs_to_split(files):
            split = hold_out.split_of(pair)
            counts[split] += 1
            written = outputs[names[pair.file] if split == "train" else split]
            for file, text in zip(written, (pair.src, pair.tgt or "")[-len(ends) :], strict=True):
                file.write(f"{text}\n")
    return counts


def _is_empty(pair: Example) -> bool:
    return not pair.src.strip() or not (pair.tgt or "").strip()


def _source_digest(src: str) -> int:
    """Ignores case, white space and different characters for the same text; see `comparable`."""
    return group_hash(comparable(src).casefold())
