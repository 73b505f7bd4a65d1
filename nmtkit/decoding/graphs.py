"""Captures the decoding steps of a batch with a fixed number of slots as CUDA graphs, and replays them.

A GPU executes a step of a small model faster than Python can launch its operations; a graph launches all of them at
once. The operations are replayed on fixed memory addresses, without any Python code. The tensors of the batch therefore
never move in memory, every step copies its results back into them, and each number of positions to read requires its
own graph.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from nmtkit.core.device import send
from nmtkit.decoding.beam_search import BeamSearch, StepResult
from nmtkit.decoding.rules import INFINITY
from nmtkit.decoding.scorers import LengthPenalty
from nmtkit.decoding.search_state import SearchState, pad_history

LENGTH_STEP = 16
"""The number of positions that a step reads is rounded up to a multiple of this value, so that few graphs suffice."""
PATIENCE = 50
"""Number of eager steps before a graph is captured; a capture takes about as long as this many steps."""
WARM_UP = 2
"""Number of trial steps before a capture, in which libraries allocate their workspaces."""
MAX_SHAPES = 4
"""Number of idle `CapturedSteps` that an engine keeps, each with its own memory."""


class CapturedSteps:
    """Takes the steps of a batch with a fixed number of slots and positions, and captures them once that pays off.

    Args:
        search: the search.
        first_state: the state of the batch's first sentences after their first step.
        slots: number of slots.
        length: number of positions.
        at_once: whether to capture a graph at the first step that reads a certain number of positions, rather than
            after `PATIENCE` such steps.
    """

    def __init__(
        self, search: BeamSearch, first_state: SearchState, slots: int, length: int, at_once: bool
    ) -> None:
        self.state = with_capacity(first_state, slots, length, search.length_penalty)
        self.replayed = 0
        """Number of steps that replayed a graph."""
        self._search = search
        self._length = length
        self._patience = 0 if at_once else PATIENCE
        self._n_steps: Counter[int] = Counter()
        """Number of steps so far, keyed by the number of positions that they read."""
        self._captures: dict[int, Callable[[], StepResult]] = {}
        """Functions that replay captured steps, keyed by the number of positions that a step reads."""

    def free_slots(self) -> None:
        """Frees all slots, so that new sentences can be inserted."""
        self.state.sentences.done.fill_(True)

    def step(self, n_positions: int) -> StepResult:
        """Takes one step, which reads `n_positions` positions for the sentence that is furthest along."""
        needed_length = n_positions + 1  # the step also advances each sentence to its next position
        n_multiples = -(-needed_length // LENGTH_STEP)  # rounded up
        read_length = min(n_multiples * LENGTH_STEP, self._length)
        cache = self.state.cache
        if read_length < cache.length:
            # Sentences at later positions are done, but every sentence must be at a position that the step reads.
            cache.position.clamp_(max=read_length - 1)
        cache.length = read_length
        self._n_steps[read_length] += 1
        if self._n_steps[read_length] <= self._patience:
            return self._step_in_place()
        if read_length in self._captures:
            self.replayed += 1
            return self._captures[read_length]()
        replay, result = capture_cuda_graph(self._step_in_place, self._trial_step)
        self._captures[read_length] = replay
        return result

    def _step_in_place(self) -> StepResult:
        """Takes a step, and copies everything that it changed into the tensors of the state."""
        next_state = self.state.shallow_copy()
        result = self._search.step(next_state)
        for tensor, new_tensor in zip(
            self.state.mutable_tensors(), next_state.mutable_tensors(), strict=True
        ):
            if tensor is not new_tensor:
                tensor.copy_(new_tensor)
        return result

    def _trial_step(self) -> StepResult:
        """Takes the same step without changing the state, except for cache entries, which the real step overwrites."""
        return self._search.step(self.state.shallow_copy())


def with_capacity(
    state: SearchState, slots: int, length: int, length_penalty: LengthPenalty
) -> SearchState:
    """Returns a copy of a state with a fixed number of slots and positions, whose tensors never change their size.

    The sentences of the state occupy the first slots. The other slots contain copies of the last sentence that are
    marked as done.
    """
    scores = state.sentences.scores
    device = scores.device
    n_sentences = len(scores)
    rows = torch.arange(slots, device=device).clamp(max=n_sentences - 1)  # (slots,)
    sentences = state.sentences.select(rows)
    sentences.done[n_sentences:] = True
    sentences.scores[n_sentences:] = -INFINITY
    hypotheses = state.hypotheses.select(state.hypothesis_rows(rows))
    history = hypotheses.history
    if history is not None:
        hypotheses = replace(hypotheses, history=pad_history(history, length))
    cache = copy(state.cache)
    cache.select(rows)
    cache.fix_length(length)
    # Sentences that are inserted later may be longer than those of this state.
    lengths = torch.arange(1, length + 1)  # (length,)
    divisors = length_penalty.divisors(lengths).to(state.divisors.dtype)  # (length,)
    divisors = send(divisors, device)  # (length,)
    return replace(
        state, sentences=sentences, hypotheses=hypotheses, cache=cache, divisors=divisors
    )


def supports_cuda_graphs(device: torch.device) -> bool:
    """Returns whether steps on a device can be captured as CUDA graphs."""
    return device.type == "cuda" and torch.cuda.is_available()


def find_obstacle(device: torch.device, with_shortlist: bool) -> str:
    """Returns why the steps of a search cannot be captured as CUDA graphs, or "" if they can."""
    if with_shortlist:
        return (
            "steps with a shortlist cannot be captured as CUDA graphs, because the size of the output layer "
            "changes from batch to batch"
        )
    if not supports_cuda_graphs(device):
        return f"CUDA graphs require a CUDA device, but the model is on {device}"
    return ""


_replay_lock = threading.RLock()
"""Lock that a thread holds while it replays a graph and copies the result, because all graphs share the memory for
intermediate results."""


def capture_cuda_graph(
    step: Callable[[], StepResult], trial: Callable[[], object]
) -> tuple[Callable[[], StepResult], StepResult]:
    """Captures a step as a graph, and takes this step.

    Args:
        step: function that takes the step.
        trial: function that computes the same step as a warm-up. The step overwrites everything that the trial writes.

    Returns:
        A function that replays the step, and the result of the step that was taken.
    """
    with _replay_lock:
        pool, stream, _ = _capture_resources(torch.cuda.current_device())
        with _on_stream(stream):
            for _ in range(WARM_UP):
                trial()
        graph = torch.cuda.CUDAGraph()
        # "thread_local", since other threads may read results or search at the same time. In this mode only calls by
        # this thread can invalidate the capture.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            captured_result = step()

    def replay() -> StepResult:
        with _replay_lock:
            graph.replay()
            return captured_result.mapped(torch.clone)

    result = replay()  # capturing does not execute the step
    return replay, result


@contextmanager
def _on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Switches to `stream`, whose work runs after all earlier work and before all later work of the current stream."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@cache
def _capture_resources(device: int) -> tuple[Any, torch.cuda.Stream, torch.cuda.CUDAGraph]:
    """Returns the memory pool and the stream that all captures use, and a graph that keeps the pool alive.

    A pool is freed together with its last graph.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types for streams
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.graph(keeper, pool=pool, stream=stream, capture_error_mode="thread_local"):
        torch.zeros(1, device=f"cuda:{device}")
    return pool, stream, keeper
