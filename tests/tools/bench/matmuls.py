"""The roofline of a job: its matrix products alone, of the same shapes and as often, in bare torch.

What a decoding run or an update computes is recorded once, operator by operator. Then its products are computed again
with nothing between them. No arrangement of the rest can be faster than that. The operands of a frequent product stay
in the caches, so the roofline is a little low.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from nmtkit.core import device as devices
from nmtkit.experiment.bench import read_clock

_LEFT_FACTOR = {
    **dict.fromkeys(
        ("mm", "bmm", "mv", "linear", "mkldnn_linear", "_linear_pointwise", "_int_mm"), 0
    ),
    **dict.fromkeys(
        ("qlinear_pointwise", "linear_dynamic", "linear_dynamic_fp16", "linear_relu_dynamic"), 0
    ),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"), 1),
}
"""Operators that are one product, with the position of its left factor among the arguments."""
_ATTENTION = "_scaled_dot_product"
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
"""Layers of cells in one operator."""


@dataclass(frozen=True)
class TensorSpec:
    """What is needed to make a tensor like a recorded one."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, leaf: Any) -> Any:
        """Packed weights and the like, which are not strided, are kept themselves."""
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_quantized:
            return leaf
        return cls(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)

    def zeros(self) -> Tensor:
        room = 1 + sum(
            (length - 1) * step for length, step in zip(self.size, self.stride, strict=True)
        )
        return torch.zeros(max(room, 0), dtype=self.dtype, device=self.device).as_strided(
            self.size, self.stride
        )


@dataclass(frozen=True)
class Product:
    """An operator with operands of some shapes."""

    operator: Any
    leaves: tuple[Any, ...]
    """Its arguments, dense tensors as `TensorSpec`."""
    structure: Any = field(hash=False)  # torch 2.6 cannot hash it
    flops: int
    bytes: int
    """Of its operands and its result."""

    @torch.no_grad()
    def seconds(self, count: int, device: torch.device) -> float:
        """Computes it so many times."""
        if not count:
            return 0.0
        leaves = [leaf.zeros() if isinstance(leaf, TensorSpec) else leaf for leaf in self.leaves]
        arguments, keywords = tree_unflatten(leaves, self.structure)
        begun = read_clock(device)
        for _ in range(count):
            self.operator(*arguments, **keywords)
        return read_clock(device) - begun


class MatmulTrace:
    """The products of a job, and how often each was computed."""

    def __init__(self) -> None:
        self.counts: Counter[Product] = Counter()

    @property
    def gflop(self) -> float:
        """Floating-point operations in 10^9; a multiplication and an addition are two."""
        return sum(product.flops * count for product, count in self.counts.items()) / 1e9

    @property
    def gigabytes(self) -> float:
        """What the products read and write in 10^9 bytes, if there were no caches."""
        return sum(product.bytes * count for product, count in self.counts.items()) / 1e9

    def record(self, job: Callable[[], object]) -> None:
        """Does the job in this thread, and counts its products."""
        with _Recorder(self.counts):
            job()

    def seconds(self, device: torch.device, threads: int = 1) -> float:
        """The time of all products; `threads` share them, each on one core, or one thread uses all cores."""
        taken: list[float] = []

        def compute(part: Mapping[Product, int]) -> None:
            taken.append(sum(product.seconds(count, device) for product, count in part.items()))

        parts = [
            {
                product: count // threads + (number < count % threads)
                for product, count in self.counts.items()
            }
            for number in range(threads)
        ]
        devices.map_batches(compute, parts, device)
        return max(taken)


class _Recorder(TorchDispatchMode):
    """Counts the products among the operators that are called in this thread."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would load its compiler to keep it out, which takes as long as torch itself."""
        return False

    def __init__(self, counts: Counter[Product]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if flops := _flops(func, args, result):
            leaves, structure = tree_flatten((args, dict(kwargs or {})))
            tensors = [
                leaf for leaf in (*leaves, *tree_flatten(result)[0]) if isinstance(leaf, Tensor)
            ]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self._counts[
                Product(func, tuple(map(TensorSpec.of, leaves)), structure, flops, size)
            ] += 1
        return result


def _flops(operator: Any, arguments: Sequence[Any], result: Any) -> int:
    """Those of a product; 0 for any other operator."""
    name = operator._schema.name.rpartition("::")[2].rstrip("_")
    if name in _LEFT_FACTOR:
        return int(2 * result.numel() * arguments[_LEFT_FACTOR[name]].shape[-1])
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    backward = name.endswith("backward")
    if name.startswith(_ATTENTION):
        query, keys, values = tensors[backward : 3 + backward]
        forward = (
            2
            * query.numel()
            // query.shape[-1]
            * keys.shape[-2]
            * (query.shape[-1] + values.shape[-1])
        )
        return int(forward * (2.5 if backward else 1))  # five products to the forward's two
    if name.startswith(_RECURRENT):
        steps = tensors[0].numel() // tensors[0].shape[-1]
        weights = arguments[1] if isinstance(arguments[1], list | tuple) else tensors[1:3]
        return (
            2
            * steps
            * sum(one.numel() for one in weights if one.dim() == 2)
            * (2 if backward else 1)
        )
    return 0
