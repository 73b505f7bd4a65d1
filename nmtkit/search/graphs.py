"""A bank of fixed slots whose steps are recorded once, and then repeated without the Python between their operations.

A GPU works through a step of a small model faster than Python can ask for it: a CUDA graph asks once for all of it. On
a CPU a step of one sentence takes as long in Python as in its operations: a tape makes the same operations, and nothing
else. Both repeat operations, not Python: so the tensors of the bank stay where they are, every step writes what it made
of them back, and one recording serves only the steps that read as many positions.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtkit.search.beam import StepResult
from nmtkit.search.decoding_batch import DecodingBatch

LENGTH_STEP = 16
"""Recorded steps read a multiple of so many positions."""
PATIENCE = 50
"""A graph takes about as long to record as so many steps: by then one would have paid. A tape pays with the second."""
WARM_UP = 2
MOST_SHAPES = {"cpu": 16, "cuda": 4}
"""Banks of fixed slots that are kept, each with its memory."""

Captured = tuple[Callable[[], StepResult], StepResult]
"""How to make a step again, and what it found when it was recorded."""


class CapturedBatch:
    """The steps of a bank, recorded.

    Args:
        fresh: its first sentences, after their first step.
        slots: how many sentences it has room for.
        places: the most positions that any sentence of its width may need.
        at_once: whether to record every graph before its first step; else once it has paid.
    """

    def __init__(self, fresh: DecodingBatch, slots: int, places: int, at_once: bool) -> None:
        self._places = self.room(places)
        self.bank = fresh.in_slots(slots, self._places)
        self.replayed = 0
        """Steps that were made by a recording."""
        self._patience = 0 if at_once else PATIENCE
        self._made: Counter[int] = Counter()  # steps by how many positions they read
        self._recorded: dict[int, Callable[[], StepResult]] = {}

    @staticmethod
    def room(places: int) -> int:
        """For how many positions it needs room: a step reads one more than it must."""
        return places + 1

    def fill(self, fresh: DecodingBatch) -> None:
        """Begins anew with other sentences."""
        self.bank.sentences.done.fill_(True)
        self.bank.put(torch.arange(len(fresh.scores), device=fresh.scores.device), fresh)

    def step(self, need_attention: bool, places: int) -> StepResult:
        """Makes one step; `places` is the position, from 1, of the sentence that has come farthest."""
        extent = min(-(-(places + 1) // LENGTH_STEP) * LENGTH_STEP, self._places)
        if extent < self.bank.cache.length:  # those that had come farther are done
            self.bank.cache.position.clamp_(max=extent - 1)
        self.bank.cache.length = extent
        self._made[extent] += 1

        def once() -> StepResult:
            after = self.bank.copied()
            record = after.step(need_attention)
            for kept, new in zip(self.bank.changing(), after.changing(), strict=True):
                if kept is not new:
                    kept.copy_(new)
            return record

        if self._made[extent] <= self._patience:
            return once()
        if extent in self._recorded:
            self.replayed += 1
            return self._recorded[extent]()
        if supports_cuda_graphs(self.bank.scores.device):
            self._recorded[extent], record = capture_cuda_graph(once, lambda: self.bank.copied().step(need_attention))
        else:
            self._recorded[extent], record = trace_ops(once)
        return record


class GraphCache:
    """Banks of fixed slots that no search uses now, with what was recorded of them, by slots and columns."""

    def __init__(self) -> None:
        self._replays: dict[tuple[int, int], CapturedBatch] = {}

    @property
    def replayed(self) -> int:
        """Steps that were made by their recordings."""
        return sum(replay.replayed for replay in self._replays.values())

    def take(self, slots: int, width: int) -> CapturedBatch | None:
        """One of this shape, if there is one: until it is kept again nobody else finds it."""
        return self._replays.pop((slots, width), None)

    def keep(self, replay: CapturedBatch | None, width: int) -> None:
        """Keeps it, if there is one; those that have not been used for the longest time go."""
        if replay is not None:
            self._replays[len(replay.bank.scores), width] = replay
            while len(self._replays) > MOST_SHAPES[replay.bank.scores.device.type]:
                self._replays.pop(next(iter(self._replays)), None)  # searches in several threads keep theirs here


def supports_cuda_graphs(device: torch.device) -> bool:
    """Whether steps on a device can be CUDA graphs."""
    return device.type == "cuda" and torch.cuda.is_available()


def capture_cuda_graph(once: Callable[[], StepResult], trial: Callable[[], object]) -> Captured:
    """A step as a CUDA graph; `trial` computes the same, and what it writes the step itself writes again."""
    for _ in range(WARM_UP):
        trial()
    # All graphs share what memory they need in between, since no two of them run at one time.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        record = once()

    def again() -> StepResult:
        graph.replay()
        return record.mapped(torch.clone)

    return again, again()


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


_Call = tuple[OpOverload, Sequence[Any], dict[str, Any], list[Tensor]]
"""An operation, what it was given, and the tensors that it made."""


class _OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Keeps all operations, with what they were given and what they made."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep its compiler out torch would load it, which takes as long as torch itself."""
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
    """How to make an operation again so that what it made stays where it is; None where nothing need be made: a view.

    By torch's own function if it has one, which Python calls in a third of the time.
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
    """Where a tensor's numbers are; weights that only oneDNN can read are nowhere."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else -1


def _put(places: Sequence[Tensor | None], make: Callable[[], Any]) -> None:
    """Makes something, and puts it in its places."""
    found = make()
    for place, one in zip(places, found if isinstance(found, (tuple, list)) else [found], strict=True):
        if place is not None:
            place.copy_(one)


def trace_ops(once: Callable[[], StepResult]) -> Captured:
    """A step as a tape: its operations again, each of the same tensors and into the same tensors."""
    with _OpRecorder() as notes:
        record = once()
    values = [record.tensors(), *([args, kwargs] for _, args, kwargs, _ in notes.calls)]
    read = {id(one) for one in tree_leaves(values) if isinstance(one, Tensor)}
    tape = [play for call in notes.calls if (play := _again(call, read)) is not None]

    def again() -> StepResult:
        for play in tape:
            play()
        return record.mapped(torch.clone)

    return again, record.mapped(torch.clone)
