"""Pairs set aside for validation and test: evenly spread, and never with a source that training sees as well."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from nmtkit.data.corpus import Files
from nmtkit.data.reading import Example, read_pairs
from nmtkit.errors import DataError, writing

SHARE = 20
"""One in so many pairs is held out for each purpose ..."""
MOST = 1_000
"""... but no more different sources than this."""


@dataclass(frozen=True)
class HoldOut:
    """Which sources are held out.

    A source's place is a hash of its text alone, so equal sources stay together, however often and wherever they stand,
    and a pair that is added or taken away moves hardly another.
    """

    valid: int
    """Sources with places up to this are for validation ..."""
    test: int
    """... those up to this for the test, and all others for training."""

    @property
    def splits(self) -> tuple[str, ...]:
        """What is held out."""
        return ("valid", "test") if self.test > self.valid else ("valid",)

    def split_of(self, pair: Example) -> str:
        """The split of a pair: train, valid or test. One with an empty side, which measures nothing, stays in train."""
        if _is_empty(pair):
            return "train"
        place = _place(pair.src)
        return "valid" if place <= self.valid else "test" if place <= self.test else "train"


def draw(pairs: Iterable[Example], with_test: bool) -> HoldOut:
    """Chooses what is held out: one in `SHARE` pairs, for validation and as many for the test. Memory is flat.

    Args:
        pairs: all there are; read once.
        with_test: whether a test set is needed as well.

    Raises:
        DataError: there are too few different sources.
    """
    purposes = 2 if with_test else 1
    enough = (purposes + 1) * MOST  # sources known by then; those that are not held out are for training
    largest: list[int] = []  # a heap of the smallest places, turned negative so that the largest of them comes first
    known: set[int] = set()
    count = 0
    for pair in pairs:
        if _is_empty(pair):
            continue
        count += 1
        place = _place(pair.src)
        if place in known or (len(largest) == enough and place > -largest[0]):
            continue
        known.add(place)
        if len(largest) < enough:
            heapq.heappush(largest, -place)
        else:
            known.discard(-heapq.heappushpop(largest, -place))
    smallest = sorted(known)
    each = min(max(1, count // SHARE), MOST, len(smallest) // (purposes + 1))
    if not each:
        raise DataError(
            f"{len(smallest)} different source lines are too few to hold some out for validation; bring more text, or "
            "name files of their own with --valid-source and --valid-target"
        )
    return HoldOut(smallest[each - 1], smallest[purposes * each - 1])


def write(files: Files, hold_out: HoldOut, folder: Path, names: Sequence[str], ends: tuple[str, str]) -> Counter[str]:
    """Writes the pairs of every split as files of their own; gives the number of pairs of each split.

    Args:
        files: all pairs.
        hold_out: which are for validation and test.
        folder: where to; it is made.
        names: of the files for training, one for each corpus; those of the others are valid and test.
        ends: what follows the names of source and target files.

    Raises:
        DataError: as `read_pairs`.
        NmtkitError: they cannot be written.
    """
    counts: Counter[str] = Counter()
    with writing(folder), ExitStack() as opened:
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


def _place(src: str) -> int:
    """Where a source stands, from 0 to 2^64 - 1; case and the width of white space do not matter."""
    text = " ".join(src.casefold().split())
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")
