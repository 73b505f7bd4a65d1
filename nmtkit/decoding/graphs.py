"""Captures the decoding steps of a batch with fixed slots as CUDA graphs, and replays them.

A GPU works through a step of a small model faster than Python can launch its operations. A graph launches all of them
at once. It repeats operations, not Python: so the tensors of the batch stay where they are, every step copies its
results back into them, and one graph serves only the steps that read as many positions.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.search_state import SearchState

LENGTH_STEP = 16
"""Captured steps read a multiple of so many positions."""
PATIENCE = 50
"""Capturing a graph costs about as much as so many steps, so it begins after them."""
WARM_UP = 2
MAX_SHAPES = 4
"""Captured batches that are kept, each with its memory."""


class CapturedSteps:
    """The steps of a batch with room for so many sentences and positions.

    It begins with `fresh` sentences, after their first step. Steps that read a certain number of positions are captured
    the first time if `at_once`, else after `PATIENCE` of them.
    """

    def __init__(self, search: BeamSearch, fresh: SearchState, slots: int, length: int, at_once: bool) -> None:
        self.state = fresh.in_slots(slots, length, search.length_penalty)
        self.replayed = 0
        """Steps that replayed a capture."""
        self._search = search
        self._length = length
        self._patience = 0 if at_once else PATIENCE
        self._made: Counter[int] = Counter()  # steps by how many positions they read
        self._captures: dict[int, Callable[[], StepResult]] = {}

    def fill(self, fresh: SearchState) -> None:
        """Begins anew with other sentences."""
        assert len(fresh.divisors) <= len(self.state.divisors), "`BeamSearch.most_tokens` is too low"
        done = self.state.sentences.done.fill_(True)
        slots = torch.arange(len(fresh.limits), device=done.device)
        self.state.insert(slots, fresh, self._search.model)

    def step(self, length: int) -> StepResult:
        """Makes one step; `length` counts the positions of the sentence that has come farthest."""
        needed = length + 1  # the step also moves each sentence on to its next position
        rounded = -(-needed // LENGTH_STEP) * LENGTH_STEP
        extent = min(rounded, self._length)
        cache = self.state.cache
        if extent < cache.length:  # sentences that had come farther are done
            cache.position.clamp_(max=extent - 1)
        cache.length = extent
        self._made[extent] += 1
        if self._made[extent] <= self._patience:
            return self._step_in_place()
        if extent in self._captures:
            self.replayed += 1
            return self._captures[extent]()
        self._captures[extent], result = capture_cuda_graph(self._step_in_place, self._trial_step)
        return result

    def _step_in_place(self) -> StepResult:
        """A step that copies all that it changes into the tensors of the state."""
        after = self.state.shallow_copy()
        result = self._search.step(after)
        for kept, new in zip(self.state.changing(), after.changing(), strict=True):
            if kept is not new:
                kept.copy_(new)
        return result

    def _trial_step(self) -> StepResult:
        """The same step without its effect; it writes cache entries, which the step itself overwrites."""
        return self._search.step(self.state.shallow_copy())


def supports_cuda_graphs(device: torch.device) -> bool:
    """Returns whether steps on a device can be captured as CUDA graphs."""
    return device.type == "cuda" and torch.cuda.is_available()


_turn = threading.RLock()
"""All graphs share the memory of intermediate results: a thread that replays one reads its result before the next."""


def capture_cuda_graph(
    step: Callable[[], StepResult], trial: Callable[[], object]
) -> tuple[Callable[[], StepResult], StepResult]:
    """Captures a step; `trial` computes the same, and the step overwrites what it wrote.

    Returns:
        A function that replays the step, and the result of the step itself.
    """
    with _turn:
        pool, stream, _ = _capturing_on(torch.cuda.current_device())
        with _aside(stream):
            for _ in range(WARM_UP):
                trial()
        graph = torch.cuda.CUDAGraph()
        # Threads that read or search go on meanwhile, so only this one is kept from what would spoil the capture.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = step()

    def replay() -> StepResult:
        with _turn:
            graph.replay()
            return result.mapped(torch.clone)

    first = replay()  # capturing has not executed the step
    return replay, first


@contextmanager
def _aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """Works on another stream, after what was begun before and before what follows."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@cache
def _capturing_on(device: int) -> tuple[Any, torch.cuda.Stream, torch.cuda.CUDAGraph]:
    """The pool and the stream of all captures, and a graph that keeps the pool: it ends with the last graph in it."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch does not type it
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.graph(keeper, pool=pool, stream=stream, capture_error_mode="thread_local"):
        torch.zeros(1, device=f"cuda:{device}")
    return pool, stream, keeper
