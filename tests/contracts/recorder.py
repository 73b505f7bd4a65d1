"""What a CUDA graph does, on a CPU: the operations of a function, repeated on the same addresses with the same numbers.

It refuses what a graph cannot record: an operation whose result, or its size, the program must read.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.decoding.beam_search import StepResult
from tests.contracts.pretended_cuda import tensors_in, waits_for


class Recorder(TorchDispatchMode):
    """Records while the function runs; then puts back what it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, dict[str, Any], Any]] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """See `PretendedCuda`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not waits_for(func, args), (
            f"{func} cannot be recorded: the program must read its result"
        )
        kwargs = kwargs or {}
        given = [leaf.untyped_storage() for leaf in tensors_in((args, kwargs))]
        if func._schema.is_mutable:
            for storage in given:
                if storage._cdata not in self._made and storage.data_ptr() not in self._before:
                    self._before[storage.data_ptr()] = storage, storage.clone()
        result = func(*args, **kwargs)
        pointers = {storage.data_ptr() for storage in given}
        for leaf in tensors_in(result):
            if leaf.untyped_storage().data_ptr() not in pointers:
                self._made.add(leaf.untyped_storage()._cdata)
        self.calls.append((func, args, kwargs, result))
        return result

    def put_back(self) -> None:
        """Makes what was there before as it was."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def replay(self) -> None:
        """Does it all again: to the same tensors, with results at the same places."""
        for func, args, kwargs, result in self.calls:
            for old, new in zip(tensors_in(result), tensors_in(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def capture_cuda_graph(
    once: Callable[[], StepResult], trial: Callable[[], object]
) -> tuple[Callable[[], StepResult], StepResult]:
    """In place of `nmtkit.decoding.graphs.capture_cuda_graph`."""
    trial()
    with Recorder() as recorder:
        result = once()
    recorder.put_back()

    def again() -> StepResult:
        recorder.replay()
        return result.mapped(torch.clone)

    return again, again()
