"""Captures the decoding steps of a batch with fixed slots, and replays them: a CUDA graph on GPUs, a tape on CPUs.

A GPU works through a step of a small model faster than Python can launch it, and on a CPU a step of one sentence takes
as long in Python as in its operations. Both captures repeat operations, not Python: so the tensors of the batch stay
where they are, every step copies its results back into them, and one capture serves only the steps that read as many
positions.
"""

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtkit.search.beam import LoggedStep
from nmtkit.search.decoding_batch import DecodingBatch

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


_Call = tuple[OpOverload, Sequence[Any], dict[str, Any], list[Tensor]]
"""An operation, its arguments, and the tensors that it returned."""


class _OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Records all operations, their arguments and results."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would load its compiler to keep it out, which takes as long as torch itself."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else [result]
        self.calls.append((func, args, kwargs or {}, [one for one in made if isinstance(one, Tensor)]))
        return result


def _again(call: _Call, read: Container[int]) -> Callable[[], Any] | None:
    """Repeats an operation and keeps its results in place; None where nothing need be done: a view.

    Prefers torch's own Python function, which is called in a third of the time.
    """
    func, args, kwargs, made = call
    library, _, name = func._schema.name.partition("::")
    if func._schema.is_mutable:
        in_place = library == "aten" and name.endswith("_") and hasattr(Tensor, name)  # else it is a variant with `out`
        return partial(getattr(Tensor, name) if in_place else func, *args, **kwargs)
    given = {_memory(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
    if all(id(one) not in read or _memory(one) in given for one in made):
        return None
    function = getattr(torch._C._VariableFunctions, name, func) if library == "aten" else func
    spare = tuple(map(torch.clone, made))
    try:
        function(*args, **kwargs, out=spare if len(made) > 1 else spare[0])
    except (TypeError, RuntimeError):  # it takes no `out`
        return partial(_put, [one if id(one) in read else None for one in made], partial(function, *args, **kwargs))
    return partial(function, *args, **kwargs, out=tuple(made) if len(made) > 1 else made[0])


def _memory(tensor: Tensor) -> int:
    """The address of a tensor's numbers; -1 for weights that only oneDNN can read."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else -1


def _put(places: Sequence[Tensor | None], make: Callable[[], Any]) -> None:
    """Copies the results of `make` to their places."""
    results = make()
    for place, one in zip(places, results if isinstance(results, (tuple, list)) else [results], strict=True):
        if place is not None:
            place.copy_(one)


def trace_ops(once: Callable[[], LoggedStep]) -> Captured:
    """A step as a tape: its operations, each on and into the same tensors; computed anew where sizes may change."""
    with _OpRecorder() as notes:
        result = once()
    if any(torch.Tag.dynamic_output_shape in call[0].tags for call in notes.calls):
        return once, result
    values = [result.tensors(), *([args, kwargs] for _, args, kwargs, _ in notes.calls)]
    read = {id(one) for one in tree_leaves(values) if isinstance(one, Tensor)}
    tape = [play for call in notes.calls if (play := _again(call, read)) is not None]

    def again() -> LoggedStep:
        for play in tape:
            play()
        return result.mapped(torch.clone)

    return again, result.mapped(torch.clone)
