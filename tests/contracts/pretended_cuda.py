"""A CUDA device that is only pretended, so that what would go wrong on a GPU is found on any machine.

Every tensor is a CPU tensor, with true numbers and true gradients. A tensor is *there*, on the pretended device, if its
storage was noted: because `take` or `.to("cuda")` put it there, because it was made with `device="cuda"`, or because it
was computed from what is there. Code that asks for `.device` or `.is_cuda` is told so, and takes its way for GPUs.

What the real device would not do is a `Fault`, raised at once. What it would do only after everything queued before has
been computed is noted in `waits`. Autocast for CUDA is played by that for CPUs, which has nearly the same lists; the
differences that matter here are played too: what torch computes in float32 there, and recurrent layers.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import nmtkit

CUDA = torch.device("cuda:0")
PACKAGE = os.path.join(Path(nmtkit.__file__).parent, "")
"""The package's own folder, with a slash at its end: the checkout around it may have the package's name too."""

WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Of operations whose result, or its size, the CPU must read: item, nonzero, masked_select, unique, equal, ..."""
WAITING = {torch.ops.aten.multinomial.default}
"""Besides: torch 2.4 reads two numbers back in it."""
MAY_MIX = {torch.ops.aten.copy_.default, torch.ops.aten._pack_padded_sequence.default}
"""Take a tensor from either side: a copy, and packing, which wants the lengths on the CPU."""
IN_FLOAT32 = {
    "softmax",
    "log_softmax",
    "layer_norm",
    "normalize",
    "norm",
    "softplus",
    "sum",
    "prod",
    "cumsum",
    "exp",
}
IN_FLOAT32 |= {"log", "pow", "__pow__"}
"""Functions that autocast computes in float32 on CUDA, but not on a CPU: those of torch's list that models use."""


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in lists, tuples and dictionaries of any depth; `tree_leaves` of torch takes far longer."""
    tensors: list[Tensor] = []
    _gather(value, tensors)
    return tensors


def _gather(value: Any, tensors: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            _gather(one, tensors)


class Fault(AssertionError):
    """What a real CUDA device would refuse, or do otherwise than it seems."""


class PretendedCuda(TorchDispatchMode):
    """Which tensors are there, and what every operation does with them."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        """`function of nmtkit: what it waited by`, in order."""
        self.works_there = False
        """Whether a function of torch is at work whose first tensor is there."""
        # Held, so that no storage is freed and its address given to another.
        self._there: dict[int, torch.UntypedStorage] = {}
        self._pinned: dict[int, torch.UntypedStorage] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would load its compiler to be kept out of it, and ask it in every call."""
        return False

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor is there."""
        return tensor.untyped_storage()._cdata in self._there

    def put(self, tensor: Tensor) -> Tensor:
        """Notes that the tensor, and all that shares its storage, is there."""
        storage = tensor.untyped_storage()
        self._there[storage._cdata] = storage
        return tensor

    def pin(self, tensor: Tensor) -> Tensor:
        """A copy in memory of the CPU from which the device copies by itself."""
        storage = (copy := tensor.clone()).untyped_storage()
        self._pinned[storage._cdata] = storage
        return copy

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the tensor is such a copy."""
        return tensor.untyped_storage()._cdata in self._pinned

    def take(self, model: nn.Module) -> None:
        """Puts a model there."""
        for tensor in [*model.parameters(), *model.buffers()]:
            self.put(tensor)

    def bring_back(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU."""
        copy = tensor.clone()
        self._there.pop(copy.untyped_storage()._cdata, None)
        return copy

    def wait(self, by: str) -> None:
        """Notes that the CPU waits for the device."""
        frame = sys._getframe(1)
        while frame.f_back is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        self.waits.append(f"{frame.f_code.co_name}: {by}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation, those of backward included."""
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        here = [tensor for tensor in given if not self.has(tensor)]
        involved = len(here) < len(given)
        if involved:
            if any(tensor.dim() for tensor in here) and func not in MAY_MIX:
                raise Fault(f"{func}: a tensor of the CPU among those of the device")
            if waits_for(func, args):
                self.wait(str(func))
            if func is torch.ops.aten.copy_.default and not self.has(args[0]):
                self.wait("copy to the CPU")
        result = func(*args, **kwargs)
        results = tensors_in(result)
        # A function of what is there, and backward, begin their results on the device as well.
        in_backward = torch._C._current_graph_task_id() != -1
        begun = (
            not given
            and results
            and (in_backward or (self.works_there and results[0].is_floating_point()))
        )
        if involved or begun:
            if func is torch.ops.aten._pack_padded_sequence.default:
                results = results[:1]  # how many rows each step has is for the CPU
            if func is torch.ops.aten.copy_.default:
                results = []  # stays where it is
            for tensor in results:
                self.put(tensor)
        return result


def waits_for(func: Any, args: Any) -> bool:
    """Whether the CPU must read a number before it can go on."""
    if func is torch.ops.aten.index.Tensor:  # by a mask: its places must be counted
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    # one number needs no count
    if func in (torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default):
        return args[2].dim() > 0 and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
    return _reads_a_number(func)


@cache
def _reads_a_number(func: Any) -> bool:
    return func in WAITING or bool(WAITING_TAGS & set(func.tags))


class _Answers(TorchFunctionMode):
    """What Python code is told about tensors that are there, and what it may ask of them."""

    def __init__(self, cuda: PretendedCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every call of a function or method of torch, and every look at an attribute of a tensor."""
        cuda, kwargs = self.cuda, dict(kwargs or {})
        name = getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        there = first is not None and cuda.has(first)
        if name == "__get__" and there:  # of an attribute
            answers = {"device": CUDA, "is_cuda": True, "is_cpu": False}
            return answers.get(func.__self__.__name__, func(*args))
        if name in ("to", "cpu", "cuda") and first is not None:
            return self._moved(func, name, first, args[1:], kwargs)
        if name == "pin_memory" and first is not None:
            return cuda.pin(first)
        if there and name == "numpy":
            raise Fault("numpy: of a tensor on the device")
        if there and name == "tolist":
            cuda.wait(name)
        if name in ("lstm", "gru") and cuda.has(tensors_in(args)[0]):
            _check_recurrent(args, kwargs)
        if name in IN_FLOAT32 and there and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_widened, (args, kwargs))
        if "device" in kwargs and torch.device(kwargs["device"] or "cpu").type == "cuda":
            return cuda.put(func(*args, **{**kwargs, "device": "cpu"}))
        before, cuda.works_there = cuda.works_there, there
        try:
            return func(*args, **kwargs)
        finally:
            cuda.works_there = before

    def _moved(
        self, func: Any, name: str, tensor: Tensor, args: Any, kwargs: dict[str, Any]
    ) -> Tensor:
        """`tensor.to(...)`, `.cpu()` or `.cuda()`."""
        cuda, there = self.cuda, self.cuda.has(tensor)
        given = [*args, *kwargs.values()]
        target = there
        for value in given:
            if isinstance(value, Tensor):
                target = cuda.has(value)
            elif isinstance(value, (str, torch.device)):
                target = torch.device(value).type == "cuda"
        target = {"cpu": False, "cuda": True}.get(name, target)
        types = [value.dtype if isinstance(value, Tensor) else value for value in given]
        for dtype in types:
            if isinstance(dtype, torch.dtype):
                tensor = tensor.to(dtype)
        if target == there:
            return tensor
        if not target:
            cuda.wait("copy to the CPU")
            return cuda.bring_back(tensor)
        if tensor.dim() and not (kwargs.get("non_blocking") and cuda.is_pinned(tensor)):
            cuda.wait("blocking copy to the device")
        return cuda.put(tensor.clone())


def _check_recurrent(args: Any, kwargs: Any) -> None:
    """What cuDNN and autocast make of torch's recurrent layers."""
    if torch.is_autocast_enabled("cpu"):
        raise Fault(
            "a recurrent layer under autocast: on CUDA torch runs it in float16, whatever type was asked for"
        )
    if len({leaf.dtype for leaf in tensors_in((args, kwargs)) if leaf.is_floating_point()}) > 1:
        raise Fault("a recurrent layer whose inputs, state and weights differ in type")
    if "hx" in kwargs:
        state = kwargs["hx"]
    else:
        # Packed sequences have the sizes of their steps as the second argument.
        is_packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
        state = args[2 if is_packed else 1]
    if not all(tensor.is_contiguous() for tensor in tensors_in(state)):
        raise Fault("a recurrent layer with a state that is not contiguous")


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


@contextmanager
def pretended_cuda() -> Iterator[PretendedCuda]:
    """Inside there is a CUDA device."""
    autocast: Callable[..., Any] = torch.autocast

    def played(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    cuda = PretendedCuda()
    with mock.patch.object(torch, "autocast", played), cuda, _Answers(cuda):
        yield cuda
