"""Which pairs are for training, validation and test: decided by the name of their group alone, the same everywhere.

A group, such as all pairs of one source or of one page, is not divided. Its place is a hash of its name. So the groups
of a split come from everywhere in the corpus, its order does not matter, and a new pair hardly moves another.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Generic, TypeVar

from nmtkit.core.errors import DataError
from nmtkit.core.files import write_errors
from nmtkit.corpus.blocks import Example
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs

SHARE = 20
"""One in so many pairs is held out for each purpose ..."""
MOST = 1_000
"""... but no more different sources than this."""

Item = TypeVar("Item")


def group_hash(group: str) -> int:
    """The place of a group, from 0 to 2^64 - 1: always the same for a name; those of all groups are spread evenly."""
    return int.from_bytes(hashlib.sha256(group.encode("utf-8")).digest()[:8], "big")


class BottomKSample(Generic[Item]):
    """Holds the items of the foremost groups, and gives back those of the hindmost when told to."""

    def __init__(self) -> None:
        self._groups: dict[int, list[tuple[int, Item]]] = {}
        self._last: list[int] = []  # a heap of places, turned negative, so that the hindmost comes first
        self.count = 0
        """Items that are held."""

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, place: int, number: int, item: Item) -> None:
        """Takes an item of the group at that place; items are numbered in their order."""
        if place not in self._groups:
            self._groups[place] = []
            heapq.heappush(self._last, -place)
        self._groups[place].append((number, item))
        self.count += 1

    def pop_largest(self) -> tuple[int, list[Item]]:
        """The place of the hindmost group and its items, which are held no longer."""
        place = -heapq.heappop(self._last)
        items = [item for _, item in self._groups.pop(place)]
        self.count -= len(items)
        return place, items

    def places(self) -> list[int]:
        """Of all groups, the foremost first."""
        return sorted(self._groups)

    def items(self) -> list[Item]:
        """All that is held, in the order of its numbers."""
        return [item for _, item in sorted(chain.from_iterable(self._groups.values()), key=itemgetter(0))]


# ---------------------------------------------------------------------------------------------- by shares of all groups


class Splitter(Generic[Item]):
    """Divides pairs into splits, whole groups only; train is passed on at once, the others are held until the end.

    Test takes the places up to its share of the groups, from 0 to 1, and validation those behind them. Each holds at
    most so many pairs: the foremost groups, as many as fit. The others go to train.
    """

    def __init__(self, valid: float, test: float, at_most: int | None, train: Callable[[Item], None]) -> None:
        self._train = train
        self._at_most = at_most
        self._first = {"test": 0.0, "valid": test}
        self._end = {"test": test, "valid": test + valid}
        self._held: dict[str, BottomKSample[Item]] = {"test": BottomKSample(), "valid": BottomKSample()}
        self._count = 0

    def add(self, group: str, pair: Item) -> None:
        """Gives a pair of a group its split."""
        self._count += 1
        place = group_hash(group)
        for name, held in self._held.items():
            if self._first[name] <= place / 2**64 < self._end[name]:
                held.add(place, self._count, pair)
                while self._at_most is not None and held.count > self._at_most:
                    hindmost, given_up = held.pop_largest()
                    self._end[name] = hindmost / 2**64  # later pairs of this group are for training too
                    for one in given_up:
                        self._train(one)
                return
        self._train(pair)

    def held(self, name: str) -> list[Item]:
        """The pairs of "valid" or "test", in the order in which they came."""
        return self._held[name].items()


# ------------------------------------------------------------------------------------------------ by numbers of sources


@dataclass(frozen=True)
class HoldOut:
    """Which sources are held out of training; equal ones stay together, however often and wherever they are.

    Sources with places up to `valid` are for validation, those up to `test` for the test, all others for training.
    """

    valid: int
    test: int

    @property
    def splits(self) -> tuple[str, ...]:
        """What is held out."""
        return ("valid", "test") if self.test > self.valid else ("valid",)

    def split_of(self, pair: Example) -> str:
        """The split of a pair: train, valid or test. One with an empty side, which measures nothing, stays in train."""
        if _is_empty(pair):
            return "train"
        place = _place_of_source(pair.src)
        return "valid" if place <= self.valid else "test" if place <= self.test else "train"


def choose_hold_out(pairs: Iterable[Example], with_test: bool, train: Callable[[Example], None]) -> HoldOut:
    """Chooses what is held out: one in `SHARE` pairs, for validation and as many for the test.

    Memory holds the pairs of some thousand sources, and does not grow with the corpus. All other pairs go to `train`,
    not in their order.

    Raises:
        DataError: there are too few different sources.
    """
    purposes = 2 if with_test else 1
    enough = (purposes + 1) * MOST  # sources known by then; those that are not held out are for training
    foremost = BottomKSample[Example]()
    end, count = 1 << 64, 0
    for pair in pairs:
        place = _place_of_source(pair.src)
        if place >= end or _is_empty(pair):
            count += not _is_empty(pair)
            train(pair)
            continue
        count += 1
        foremost.add(place, count, pair)
        if len(foremost) > enough:
            end, given_up = foremost.pop_largest()
            for one in given_up:
                train(one)
    places = foremost.places()
    each = min(max(1, count // SHARE), MOST, len(places) // (purposes + 1))
    if not each:
        raise DataError(
            f"{len(places)} different source lines are too few to hold some out for validation; bring more text, or "
            "name files of their own with --valid-source and --valid-target"
        )
    held = HoldOut(places[each - 1], places[purposes * each - 1])
    for pair in foremost.items():
        if held.split_of(pair) == "train":
            train(pair)
    return held


def write_splits(
    files: SplitFiles, hold_out: HoldOut, folder: Path, names: Sequence[str], ends: tuple[str, str]
) -> Counter[str]:
    """Writes the pairs of every split as files of their own into a new folder; gives the number of pairs of each split.

    The files of train are called as `names` says, one for each corpus, the others valid and test; `ends` follow.

    Raises:
        DataError: as `read_pairs`.
        NmtkitError: they cannot be written.
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
        for pair in read_pairs(files):
            split = hold_out.split_of(pair)
            counts[split] += 1
            name = names[pair.file] if split == "train" else split
            for output, text in zip(outputs[name], (pair.src, pair.tgt or ""), strict=True):
                output.write(text + "\n")
    return counts


def _is_empty(pair: Example) -> bool:
    return not pair.src.strip() or not (pair.tgt or "").strip()


def _place_of_source(src: str) -> int:
    """Case and the width of white space do not matter."""
    return group_hash(" ".join(src.casefold().split()))
