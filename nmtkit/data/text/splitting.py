"""Splits pairs into training, validation and test sets by a hash of their group.

A group, such as all pairs with the same source or from the same page, always ends up in a single set. The splits are
the same on every machine, do not depend on the order of the corpus, and hardly change when pairs are added.
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
from typing import Generic, TextIO, TypeVar

from nmtkit.core.errors import DataError
from nmtkit.core.files import write_errors
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.reading import read_pairs

HOLD_OUT_ONE_IN = 20
"""One in this many pairs is held out for validation, and the same number for testing."""
MAX_HELD_OUT = 1_000
"""Maximum number of distinct sources held out for validation; testing has the same limit."""

Item = TypeVar("Item")


def group_hash(group: str) -> int:
    """Returns a hash of a group's name, uniformly distributed from 0 to 2^64 - 1 and the same on every machine."""
    return int.from_bytes(hashlib.sha256(group.encode("utf-8")).digest()[:8], "big")


class BottomKSample(Generic[Item]):
    """Items of the groups with the smallest hashes (a bottom-k sample)."""

    def __init__(self) -> None:
        self.groups: dict[int, list[tuple[int, Item]]] = {}
        """Items of each group, by the group's hash; each item is paired with its position in the corpus."""
        self._negative_digests: list[
            int
        ] = []  # a heap; its smallest item is the largest hash, negated
        self.count = 0
        """Number of items."""
        self._next_number = itertools.count()

    def add(self, digest: int, item: Item) -> None:
        """Adds an item to the group with this hash; must be called in the order of the corpus."""
        if digest not in self.groups:
            self.groups[digest] = []
            heapq.heappush(self._negative_digests, -digest)
        self.groups[digest].append((next(self._next_number), item))
        self.count += 1

    def pop_largest(self) -> tuple[int, list[Item]]:
        """Removes the group with the largest hash; returns its hash and its items."""
        digest = -heapq.heappop(self._negative_digests)
        items = [item for _, item in self.groups.pop(digest)]
        self.count -= len(items)
        return digest, items

    def items(self) -> list[Item]:
        """Returns all items in the order of the corpus."""
        numbered_items = sorted(
            itertools.chain.from_iterable(self.groups.values()), key=itemgetter(0)
        )
        return [item for _, item in numbered_items]


# ---------------------------------------------------------------------------------------- splits of a given proportion


class Splitter(Generic[Item]):
    """Splits pairs by group: passes on training pairs immediately, and stores the others until the end.

    With hashes scaled to 0..1, the test set gets the hashes from 0 to its share, and the validation set gets the
    interval that follows. If either set exceeds `max_pairs` pairs, its groups with the largest hashes go to train.
    """

    def __init__(
        self, valid: float, test: float, max_pairs: int | None, train: Callable[[Item], None]
    ) -> None:
        self._train = train
        self._max_pairs = max_pairs
        # The interval of hashes that belongs to each split, scaled to 0..1.
        self._start = {"test": 0.0, "valid": test}
        self._end = {"test": test, "valid": test + valid}
        self.held_out: dict[str, BottomKSample[Item]] = {}
        """Pairs of the splits "test" and "valid"."""
        for name in self._start:
            self.held_out[name] = BottomKSample()

    def add(self, group: str, pair: Item) -> None:
        """Assigns a pair to the split of its group."""
        digest = group_hash(group)
        for name, sample in self.held_out.items():
            if self._start[name] <= digest / 2**64 < self._end[name]:
                sample.add(digest, pair)
                while self._max_pairs is not None and sample.count > self._max_pairs:
                    largest_digest, removed_pairs = sample.pop_largest()
                    # Later pairs of this group go to train as well.
                    self._end[name] = largest_digest / 2**64
                    for removed_pair in removed_pairs:
                        self._train(removed_pair)
                return
        self._train(pair)


# ----------------------------------------------------------------------------------------------------- held-out sources


@dataclass(frozen=True)
class HoldOut:
    """A rule that holds out sources from training. Pairs with equal sources are always in the same split.

    Sources with a hash up to `valid` are for validation; those with a larger hash up to `test` are for testing.
    """

    valid: int
    test: int
    train_digests: Collection[int] = ()
    """Hashes of sources that stay in the training set even though the hashes are small enough to be held out."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the held-out splits."""
        return ("valid", "test") if self.test > self.valid else ("valid",)

    def split_of(self, pair: Example) -> str:
        """Returns the split of a pair: "train", "valid" or "test". Pairs with an empty side belong to "train"."""
        digest = _source_digest(pair.src)
        if _is_empty(pair) or digest in self.train_digests or digest > self.test:
            return "train"
        return "valid" if digest <= self.valid else "test"


def choose_hold_out(
    pairs: Iterable[Example],
    with_test: bool,
    train: Callable[[Example], None],
    labelled: bool = False,
) -> HoldOut:
    """Chooses sources for validation that make up about one in `HOLD_OUT_ONE_IN` pairs, and as many for testing.

    Keeps the pairs of a few thousand sources in memory, however large the corpus is.

    Args:
        pairs: the corpus.
        with_test: whether to hold out a test set, too.
        train: called with each training pair, but not in the order of the corpus.
        labelled: whether targets are labels. If so, the first source of each label stays in the training set, so that
            it contains all labels.

    Raises:
        DataError: there are too few sources.
    """
    held_out_splits = 2 if with_test else 1
    max_candidates = (held_out_splits + 1) * MAX_HELD_OUT  # sources with the smallest hashes
    candidates = BottomKSample[Example]()
    end = 1 << 64  # candidates have smaller hashes; decreases while there are too many candidates
    pair_count = 0
    first_digests: dict[str, int] = {}  # hash of the first source by label
    for pair in pairs:
        if _is_empty(pair):
            train(pair)
            continue
        pair_count += 1
        digest = _source_digest(pair.src)
        if labelled:
            first_digests.setdefault(str(pair.tgt).strip(), digest)
        if digest >= end:
            train(pair)
            continue
        candidates.add(digest, pair)
        if len(candidates.groups) > max_candidates:
            end, removed_pairs = candidates.pop_largest()
            for removed_pair in removed_pairs:
                train(removed_pair)

    train_digests = frozenset(first_digests.values())
    digests = sorted(candidates.groups.keys() - train_digests)
    candidate_pairs = sum(len(candidates.groups[digest]) for digest in digests)
    pairs_per_split = max(1, pair_count // HOLD_OUT_ONE_IN)
    # The number of sources that have about `pairs_per_split` pairs, estimated from the candidates and rounded up.
    sources_per_split = -(-pairs_per_split * len(digests) // max(candidate_pairs, 1))
    sources_per_split = min(sources_per_split, MAX_HELD_OUT, len(digests) // (held_out_splits + 1))
    if not sources_per_split:
        exception = ""
        if labelled:
            exception = " (not counting the first line with each label, which stays in train)"
        raise DataError(
            f"{len(digests)} distinct source lines{exception} are too few to hold some out for validation; add more "
            "text, or provide validation files with --valid"
        )
    hold_out = HoldOut(
        valid=digests[sources_per_split - 1],
        test=digests[held_out_splits * sources_per_split - 1],
        train_digests=train_digests,
    )
    for pair in candidates.items():
        if hold_out.split_of(pair) == "train":
            train(pair)
    return hold_out


def pairs_to_split(files: SplitFiles) -> Iterator[Example]:
    """Yields the pairs of a corpus; if it has no sources, the targets replace them, because `HoldOut` needs sources."""
    has_sources = "src" in files.columns
    for pair in read_pairs(files):
        if has_sources:
            yield pair
        else:
            yield replace(pair, src=pair.tgt or "")


def write_splits(
    files: SplitFiles,
    hold_out: HoldOut,
    folder: Path,
    names: Sequence[str],
    suffixes: Sequence[str],
) -> Counter[str]:
    """Writes the pairs of each split into a new folder; returns the number of pairs by split.

    Args:
        files: the corpus.
        hold_out: decides which sources are for validation and testing.
        folder: the new folder.
        names: names of the training files without suffixes, one per file in the corpus. The other files are called
            valid and test.
        suffixes: suffixes of the source and target files; a single suffix if there are no sources.
    """
    counts: Counter[str] = Counter()
    with write_errors(folder), ExitStack() as opened:
        folder.mkdir(parents=True)
        outputs: dict[str, list[TextIO]] = {}
        for name in (*names, *hold_out.splits):
            outputs[name] = []
            for suffix in suffixes:
                path = folder / f"{name}.{suffix}"
                file = opened.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
                outputs[name].append(file)
        for pair in pairs_to_split(files):
            split = hold_out.split_of(pair)
            counts[split] += 1
            name = names[pair.file] if split == "train" else split
            texts = [pair.src, pair.tgt or ""]
            if len(suffixes) == 1:
                texts = [pair.tgt or ""]
            for output, text in zip(outputs[name], texts, strict=True):
                output.write(f"{text}\n")
    return counts


def _is_empty(pair: Example) -> bool:
    return not pair.src.strip() or not (pair.tgt or "").strip()


def _source_digest(src: str) -> int:
    """Returns the hash of a source, ignoring case and everything that `comparable` normalizes."""
    return group_hash(comparable(src).casefold())
