"""Tapes: the operations that a function made on a CPU, repeated on and into the same tensors, without the function.

Operations on a few numbers are repeated by NumPy, which calls them in half the time, where its results are the same.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

R = TypeVar("R")
Play = Callable[[], object]

_FEW = 4096  # operations whose result has no more numbers are repeated by NumPy
_FEWEST = 64  # of more numbers NumPy is slow to find a sum or the largest
_CHANGES_SHAPES = {torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_READS = ("_local_scalar_dense", "equal", "is_nonzero")
_NARROW = (torch.float16, torch.bfloat16)
_UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide}
_UFUNCS |= {"eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
_UFUNCS |= {name: getattr(np, name) for name in ("bitwise_and", "bitwise_or", "floor_divide", "remainder")}
_copy: Callable[..., object] = np.copyto


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


class _Call:
    """An operation, its arguments, and the tensors that it returned; `function` is torch's own where it has one.

    torch's own Python functions are called in a third of the time.
    """

    def __init__(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.func, self.args, self.kwargs, self.is_mutable = func, args, kwargs, func._schema.is_mutable
        self.made, self.given = list(_tensors(result)), list(_tensors((args, tuple(kwargs.values()))))
        library, _, self.name = func._schema.name.partition("::")
        owner: Any = torch._C._VariableFunctions
        if self.is_mutable:  # in place, or a variant with `out`
            owner = Tensor if self.name.endswith("_") else None
        self.function = getattr(owner, self.name, func) if library == "aten" else func


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
        self.calls.append(_Call(func, args, kwargs or {}, result))
        return result


class Tape(list[Play]):
    """Operations that are repeated one by one."""

    nbytes = 0
    """How much memory their results take."""


def record(once: Callable[[], R], tensors: Callable[[R], list[Tensor]]) -> tuple[R, Tape | None]:
    """What `once` returns, and its operations; None if numbers decide them. The `tensors` of the result are read."""
    with _OpRecorder() as notes:
        result = once()
    calls = notes.calls
    if any(call.name in _READS or _CHANGES_SHAPES & set(call.func.tags) for call in calls):
        return result, None
    read = {id(one) for one in [*tensors(result), *(one for call in calls for one in call.given)]}
    written = {_memory(one) for call in calls if call.func._schema.is_mutable for one in call.given}
    tape = Tape(play for call in calls if (play := _again(call, read, written)) is not None)
    own = {_memory(one): one for call in calls for one in call.made if _memory(one) not in map(_memory, call.given)}
    tape.nbytes = sum(one.untyped_storage().nbytes() for one in own.values() if one.layout == torch.strided)
    return result, tape


def play(tape: Sequence[Play]) -> None:
    """Repeats the operations; infinite numbers are no reason to warn."""
    with np.errstate(all="ignore"):
        for operation in tape:
            operation()


def _again(call: _Call, read: Container[int], written: Container[int]) -> Play | None:
    """Repeats an operation and keeps its results in place; None where nothing need be done: a view, a constant."""
    args, kwargs, made, given = call.args, call.kwargs, call.made, {_memory(one) for one in call.given}
    is_random = torch.Tag.nondeterministic_seeded in call.func.tags
    if not call.is_mutable:
        if all(id(one) not in read or _memory(one) in given for one in made):
            return None
        if not (given or is_random or any(_memory(one) in written for one in made)):
            return None
    if not is_random and (quick := _by_numpy(call)) is not None:
        return quick
    again = partial(call.function, *args, **kwargs)
    if call.is_mutable:
        return again
    spare = tuple(one.new_empty(0) for one in made)  # of any other size torch warns if the result has another shape
    with suppress(TypeError, RuntimeError):  # it takes no `out`
        again(out=spare if len(made) > 1 else spare[0])
        if all(one.shape == other.shape for one, other in zip(spare, made, strict=True)):
            return partial(again, out=tuple(made) if len(made) > 1 else made[0])
    return partial(_put, [one if id(one) in read else None for one in made], again)


def _memory(tensor: Tensor) -> int:
    """The address of a tensor's numbers; -1 for weights that only oneDNN can read."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else -1


def _put(places: Sequence[Tensor | None], make: Callable[[], Any]) -> None:
    results = make()
    for place, one in zip(places, results if isinstance(results, (tuple, list)) else [results], strict=True):
        if place is not None:
            place.copy_(one)


def _by_numpy(call: _Call) -> Play | None:
    """A small operation by NumPy; None where NumPy has another result, or none."""
    name, args, tensors = call.name.removesuffix("_"), call.args, [*call.made, *call.given]
    is_known = (name in _UFUNCS or call.name in _OTHERS) and call.made[0].numel() <= _FEW
    if not is_known or any(one.layout != torch.strided or one.dtype in _NARROW for one in tensors):
        return None
    if name in _UFUNCS:  # only where torch, too, computes in the type of what is given
        is_float, kinds = call.given[0].is_floating_point(), {one.dtype for one in call.given}
        is_wide = len(kinds) > 1 or (not is_float and any(isinstance(one, float) for one in args))
        if is_wide or call.kwargs or len(args) > 2 or name in (("floor_divide", "remainder") if is_float else ("div",)):
            return None

    def into(result: Tensor) -> Play | None:
        out, *own = (one.detach().numpy() if isinstance(one, Tensor) else one for one in (result, *args))
        return partial(_UFUNCS[name], *own, out) if name in _UFUNCS else _OTHERS[call.name](out, *own)

    spare, before = call.made[0].clone(), call.made[0].clone()
    if (trial := into(spare)) is not None:
        with suppress(TypeError, ValueError), np.errstate(all="ignore"):
            trial()
            if torch.equal(spare, call.function(before if call.is_mutable else args[0], *args[1:], **call.kwargs)):
                return into(call.made[0])
    return None


def _reduced(ufunc: np.ufunc, out: Any, one: Any, axis: Any) -> Play | None:
    return partial(ufunc.reduce, one, axis, None, out) if one.size <= _FEWEST else None


def _take(out: Any, one: Any, at: Any, axis: int | None) -> Play | None:
    # NumPy first copies what is not contiguous: of overlapping windows over the logits, 64 times the logits.
    return partial(one.take, at, axis, out, "clip") if one.flags.c_contiguous else None


_OTHERS: dict[str, Callable[..., Play | None]] = {
    "clone": lambda out, one, *_: partial(_copy, out, one),
    "copy_": lambda out, one, other, *_: partial(_copy, out, other),
    "fill_": lambda out, one, value: partial(_copy, out, value),
    "clamp": lambda out, one, low=None, high=None: None if low is not None else partial(np.minimum, one, high, out=out),
    "sum": lambda out, one, axis=(), *_: _reduced(np.add, out, one, tuple(axis)) if one.dtype == bool else None,
    "all": lambda out, one, axis=(), *_: _reduced(np.logical_and, out, one, axis),
    "amax": lambda out, one, axis=(), *_: _reduced(np.maximum, out, one, tuple(axis)),
    "masked_fill": lambda out, one, where, value: lambda: (_copy(out, one), _copy(out, value, where=where)),
    "masked_fill_": lambda out, one, where, value: partial(_copy, out, value, where=where),
    "embedding": lambda out, table, at, *_: _take(out, table, at, 0),
    "index_select": lambda out, one, axis, at: _take(out, one, at, axis),
    "gather": lambda out, one, axis, at: _take(out, one, at, None) if one.shape[:-1] == (axis,) else None,
}
