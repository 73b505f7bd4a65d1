"""The floor of a work: its matrix products alone, of the same shapes and as often, in bare torch.

What a decoding run or an update computes is recorded once, operator by operator. Then the products among them are
computed again, with nothing between them, and the time that they take is what no arrangement of the rest can go below.
The operands of a product that comes often stay in the caches, so that the floor is a little low.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from nmtkit.core import device as devices
from nmtkit.experiment.bench import read_clock

_FIRST = {
    **dict.fromkeys(("mm", "bmm", "mv", "linear", "mkldnn_linear", "_linear_pointwise", "_int_mm"), 0),
    **dict.fromkeys(("qlinear_pointwise", "linear_dynamic", "linear_dynamic_fp16", "linear_relu_dynamic"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"), 1),
}
"""Operators that are one product: where among their arguments the left factor stands."""
_ATTENTION = "_scaled_dot_product"
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
"""Layers of cells in one operator."""


@dataclass(frozen=True)
class Product:
    """An operator with operands of some shapes."""

    operator: Any
    leaves: tuple[Any, ...]
    """Its arguments; in the place of a dense tensor what is needed to make one like it."""
    structure: Any = field(hash=False)  # torch 2.6 cannot hash it
    flops: int
    bytes: int
    """Of its operands and its result."""


@dataclass(frozen=True)
class _Like:
    """What is needed to make a tensor like one that was seen."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self) -> Tensor:
        room = 1 + sum((length - 1) * step for length, step in zip(self.size, self.stride, strict=True))
        return torch.zeros(max(room, 0), dtype=self.dtype, device=self.device).as_strided(self.size, self.stride)


class Products:
    """The products that were recorded, with how often each was computed."""

    def __init__(self) -> None:
        self.counts: Counter[Product] = Counter()

    @property
    def gflop(self) -> float:
        """Floating-point operations, a multiplication and an addition being two, in 10^9."""
        return sum(product.flops * count for product, count in self.counts.items()) / 1e9

    @property
    def gigabytes(self) -> float:
        """What the products read and write, in 10^9 bytes, were there no caches."""
        return sum(product.bytes * count for product, count in self.counts.items()) / 1e9

    def record(self, work: Callable[[], object]) -> None:
        """Does the work in this thread, and counts its products."""
        with _Recorder(self.counts):
            work()

    def seconds(self, device: torch.device, at_a_time: int = 1) -> float:
        """The time of all of them.

        Args:
            device: where they are computed.
            at_a_time: so many threads share them, each with one core to itself; 1: one after the other on all cores.
        """
        taken: list[float] = []
        lock = Lock()

        def work(part: Mapping[Product, int]) -> None:
            spent = sum(_seconds_of(product, count, device) for product, count in part.items())
            with lock:
                taken.append(spent)

        parts = [
            {product: count // at_a_time + (number < count % at_a_time) for product, count in self.counts.items()}
            for number in range(at_a_time)
        ]
        devices.map_batches(work, parts, device)
        return max(taken) if at_a_time > 1 else sum(taken)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Counts the products among the operators that are called in this thread."""

    def __init__(self, counts: Counter[Product]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flops = _flops(func, args, result)
        if flops:
            leaves, structure = tree_flatten((args, dict(kwargs or {})))
            tensors = [leaf for leaf in (*leaves, *tree_flatten(result)[0]) if isinstance(leaf, Tensor)]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self._counts[Product(func, tuple(map(_seen, leaves)), structure, flops, size)] += 1
        return result


def _seen(leaf: Any) -> Any:
    """A tensor is not kept, unless it is laid out in a way of its own, as packed weights are."""
    if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_quantized:
        return leaf
    return _Like(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)


def _flops(operator: Any, arguments: Sequence[Any], result: Any) -> int:
    """Those of a product; 0 for any other operator."""
    name = operator._schema.name.rpartition("::")[2].rstrip("_")
    if name in _FIRST:
        return int(2 * result.numel() * arguments[_FIRST[name]].shape[-1])
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    if name.startswith(_ATTENTION):
        backward = name.endswith("backward")
        query, keys, values = tensors[backward : 3 + backward]
        forward = 2 * query.numel() // query.shape[-1] * keys.shape[-2] * (query.shape[-1] + values.shape[-1])
        return int(forward * (2.5 if backward else 1))  # five products to the forward's two
    if name.startswith(_RECURRENT):
        steps = tensors[0].numel() // tensors[0].shape[-1]
        weights = arguments[1] if isinstance(arguments[1], list | tuple) else tensors[1:3]
        maps = sum(one.numel() for one in weights if one.dim() == 2)
        return 2 * steps * maps * (2 if name.endswith("backward") else 1)
    return 0


@torch.no_grad()
def _seconds_of(product: Product, count: int, device: torch.device) -> float:
    """Computes it so many times."""
    if not count:
        return 0.0
    leaves = [leaf.made() if isinstance(leaf, _Like) else leaf for leaf in product.leaves]
    arguments, keywords = tree_unflatten(leaves, product.structure)
    begun = read_clock(device)
    for _ in range(count):
        product.operator(*arguments, **keywords)
    return read_clock(device) - begun
