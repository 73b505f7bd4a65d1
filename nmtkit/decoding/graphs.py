"""Captures the decoding steps of a batch with fixed slots, and replays them: a CUDA graph on GPUs, a tape on CPUs.

A GPU works through a step of a small model faster than Python can launch it, and on a CPU a step of one sentence takes
as long in Python as in its operations. Both captures repeat operations, not Python: so the tensors of the batch stay
where they are, every step copies its results back into them, and one capture serves only the steps that read as many
positions.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from nmtkit.decoding.beam import LoggedStep
from nmtkit.decoding.decoding_batch import DecodingBatch
from nmtkit.layers import tapes

LENGTH_STEP = 16
"""Captured steps read a multiple of so many positions."""
PATIENCE = 50
"""Capturing a CUDA graph costs about as much as so many steps, so it begins after them; a tape pays at once."""
WARM_UP = 2
MAX_SHAPES = {"cpu": 16, "cuda": 4}
"""Captured batches that are kept, each with its memory."""

Captured = tuple[Callable[[], LoggedStep], LoggedStep]
"""A function that replays a step, and the result of the step that was captured."""


class CapturedBatch:
    """A decoding batch with room for so many sentences and positions, and the captures of its steps.

    It begins with `fresh` sentences, after their first step. Each kind of step is captured the first time if `at_once`,
    else after `PATIENCE` of them.
    """

    def __init__(self, fresh: DecodingBatch, slots: int, length: int, at_once: bool) -> None:
        self._length = length
        self.decoding = fresh.in_slots(slots, length)
        self.replayed = 0
        """Steps that replayed a capture."""
        self._patience = 0 if at_once else PATIENCE
        self._made: Counter[int] = Counter()  # steps by how many positions they read
        self._captures: dict[int, Callable[[], LoggedStep]] = {}

    def fill(self, fresh: DecodingBatch) -> None:
        """Begins anew with other sentences."""
        done = self.decoding.sentences.done.fill_(True)
        self.decoding.insert(torch.arange(len(fresh.limits), device=done.device), fresh)

    def step(self, need_attention: bool, length: int) -> LoggedStep:
        """Makes one step; `length` counts the positions of the sentence that has come farthest."""
        extent = min(-(-(length + 1) // LENGTH_STEP) * LENGTH_STEP, self._length)
        if extent < self.decoding.cache.length:  # sentences that had come farther are done
            self.decoding.cache.position.clamp_(max=extent - 1)
        self.decoding.cache.length = extent
        self._made[extent] += 1

        def once() -> LoggedStep:
            after = self.decoding.shallow_copy()
            result = after.step(need_attention)
            for kept, new in zip(self.decoding.changing(), after.changing(), strict=True):
                if kept is not new:
                    kept.copy_(new)
            return result

        if self._made[extent] <= self._patience:
            return once()
        if extent in self._captures:
            self.replayed += 1
            return self._captures[extent]()
        if supports_cuda_graphs(self.decoding.sentences.done.device):
            self._captures[extent], result = capture_cuda_graph(
                once, lambda: self.decoding.shallow_copy().step(need_attention)
            )
        else:
            self._captures[extent], result = trace_ops(once)
        return result


def supports_cuda_graphs(device: torch.device) -> bool:
    """Whether steps on a device can be captured as CUDA graphs."""
    return device.type == "cuda" and torch.cuda.is_available()


_turn = threading.RLock()
"""All graphs share the memory of intermediate results: a thread that replays one reads its result before the next."""


def capture_cuda_graph(once: Callable[[], LoggedStep], trial: Callable[[], object]) -> Captured:
    """A step as a CUDA graph; `trial` computes the same, and the step overwrites what it wrote."""
    with _turn:
        pool, stream, _ = _capturing_on(torch.cuda.current_device())
        with _aside(stream):
            for _ in range(WARM_UP):
                trial()
        graph = torch.cuda.CUDAGraph()
        # Threads that read or search go on meanwhile, so only this one is kept from what would spoil the capture.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = once()

    def again() -> LoggedStep:
        with _turn:
            graph.replay()
            return result.mapped(torch.clone)

    return again, again()


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
    pool, stream, keeper = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    with torch.cuda.graph(keeper, pool=pool, stream=stream, capture_error_mode="thread_local"):
        torch.zeros(1, device=f"cuda:{device}")
    return pool, stream, keeper


def trace_ops(once: Callable[[], LoggedStep]) -> Captured:
    """A step as a tape; computed anew where sizes may change."""
    result, tape = tapes.record(once, LoggedStep.tensors)
    if tape is None:
        return once, result

    def again() -> LoggedStep:
        tapes.play(tape)
        return result.mapped(torch.clone)

    return again, result.mapped(torch.clone)
