"""A bank of fixed slots whose steps are CUDA graphs: the launches of a step are recorded once, and then repeated.

A GPU works through a step of a small model faster than Python can ask for it. A graph asks once for all of it. It
repeats addresses, not Python: so the tensors of the bank stay where they are, every step writes what it made of them
back, and one graph serves only the steps that read as many positions.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from nmtkit.search.bank import Bank
from nmtkit.search.choose import Record

EXTENT = 16
"""Graphs read a multiple of so many positions."""
PATIENCE = 50
"""A graph takes about as long to record as so many steps: by then one would have paid."""
WARM_UP = 2


class Replay:
    """The steps of a bank, recorded.

    Args:
        fresh: its first sentences, after their first step.
        slots: how many sentences it has room for.
        places: the most positions that any sentence of its width may need.
        at_once: whether to record every graph before its first step; else once it has paid.
    """

    def __init__(self, fresh: Bank, slots: int, places: int, at_once: bool) -> None:
        self._places = self.room(places)
        self.bank = fresh.in_slots(slots, self._places)
        self.replayed = 0
        """Steps that were made by a graph."""
        self._patience = 0 if at_once else PATIENCE
        self._made: Counter[int] = Counter()  # steps by how many positions they read
        self._graphs: dict[int, tuple[Callable[[], None], Record]] = {}

    @staticmethod
    def room(places: int) -> int:
        """For how many positions it needs room: a step reads one more than it must."""
        return places + 1

    def fill(self, fresh: Bank) -> None:
        """Begins anew with other sentences."""
        self.bank.sentences.done.fill_(True)
        self.bank.put(torch.arange(len(fresh.scores), device=fresh.scores.device), fresh)

    def step(self, need_attention: bool, places: int) -> Record:
        """Makes one step; `places` is the position, from 1, of the sentence that has come farthest."""
        extent = min(-(-(places + 1) // EXTENT) * EXTENT, self._places)
        if extent < self.bank.past.places:  # those that had come farther are done
            self.bank.past.position.clamp_(max=extent - 1)
        self.bank.past.places = extent
        self._made[extent] += 1

        def once() -> Record:
            after = self.bank.copied()
            record = after.step(need_attention)
            for kept, new in zip(self.bank.changing(), after.changing(), strict=True):
                if kept is not new:
                    kept.copy_(new)
            return record

        if self._made[extent] <= self._patience:
            return once()
        if extent not in self._graphs:
            for _ in range(WARM_UP):  # what it writes into the past, the step itself writes again
                self.bank.copied().step(need_attention)
            self._graphs[extent] = recorded(once)
        replay, record = self._graphs[extent]
        replay()
        self.replayed += 1
        return record.mapped(torch.clone)


def can_record(device: torch.device) -> bool:
    """Whether steps on a device can be recorded."""
    return device.type == "cuda" and torch.cuda.is_available()


def recorded(once: Callable[[], Record]) -> tuple[Callable[[], None], Record]:
    """The launches of a function as a graph, not yet made: how to make them, and where they put the result.

    All graphs share what memory they need in between, since no two of them run at one time.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        record = once()
    return graph.replay, record


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()
