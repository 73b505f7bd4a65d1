"""Which pairs are for training, validation and test: decided by their group's name alone, the same everywhere."""

import hashlib
import heapq
from collections.abc import Callable

from nmtkit.corpora.readers import Pair


def place_of(group: str) -> float:
    """Where a group stands between 0 and 1: spread evenly over all groups, and always the same for the same name."""
    digest = hashlib.sha256(group.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_of(group: str, valid: float, test: float) -> str:
    """The split of a group: "train", "valid" or "test".

    It depends on the group's name and the shares alone, not on the order or number of the others: when a corpus grows,
    what was for testing stays for testing.

    Args:
        group: its name.
        valid: the share of all groups that goes to validation, from 0 to 1.
        test: the same for test.
    """
    place = place_of(group)
    if place < test:
        return "test"
    return "valid" if place < test + valid else "train"


class Divider:
    """Divides pairs into splits, whole groups only; train is passed on at once, the others are held until the end.

    With `at_most`, the groups of a split that stand foremost are kept, as many as fit, and the others go to train:
    again by their names alone, so that they come from everywhere in the corpus and its order does not matter.

    Args:
        valid: the share of the groups that goes to validation.
        test: the share that goes to the test set.
        at_most: the most pairs of each; None: no limit.
        train: takes the pairs for training.
    """

    def __init__(self, valid: float, test: float, at_most: int | None, train: Callable[[Pair], None]) -> None:
        self._train = train
        self._at_most = at_most
        self._first = {"test": 0.0, "valid": test}
        self._end = {"test": test, "valid": test + valid}
        self._groups: dict[str, dict[str, list[tuple[int, Pair]]]] = {"test": {}, "valid": {}}
        self._last: dict[str, list[tuple[float, str]]] = {"test": [], "valid": []}  # heaps, the hindmost group on top
        self._held = {"test": 0, "valid": 0}
        self._count = 0

    def add(self, pair: Pair) -> None:
        """Gives a pair its split."""
        self._count += 1
        group = pair.group or pair.src
        place = place_of(group)
        for name in ("test", "valid"):
            if self._first[name] <= place < self._end[name]:
                self._hold(name, group, place, pair)
                return
        self._train(pair)

    def _hold(self, name: str, group: str, place: float, pair: Pair) -> None:
        groups = self._groups[name]
        if group not in groups:
            groups[group] = []
            heapq.heappush(self._last[name], (-place, group))
        groups[group].append((self._count, pair))
        self._held[name] += 1
        while self._at_most is not None and self._held[name] > self._at_most:
            before, hindmost = heapq.heappop(self._last[name])
            self._end[name] = -before  # later pairs of this group are for training too
            given_up = groups.pop(hindmost)
            self._held[name] -= len(given_up)
            for _, one in given_up:
                self._train(one)

    def held(self, name: str) -> list[Pair]:
        """The pairs of "valid" or "test", in the order in which they came."""
        numbered = [item for items in self._groups[name].values() for item in items]
        return [pair for _, pair in sorted(numbered, key=lambda item: item[0])]
