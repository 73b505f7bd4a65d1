"""Linear maps for inference: packed for fp32 on a CPU, padded in 16 bits; y = x W^T + b.

A model has one precision as a whole. In fp32 on a CPU its linear maps become `PackedLinear`, which has the same sums in
less time. In fp16 (CUDA) and bf16 (CUDA, or a CPU with instructions for it) the whole model is cast. Letters: M rows,
I input size, O output size.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError

Precision = Literal["fp32", "fp16", "bf16"]
"""The precision of a model at inference."""
PrecisionChoice = Literal["auto", "fp32", "fp16", "bf16"]
"""The precision as an option; `auto` depends on device and model."""

MIN_PACKED_PRODUCTS = 1 << 24
"""Multiplications (M*I*O) from which a product with packed weights is faster, its longer call included."""
LARGE_MAP = 1 << 20
"""Weights (I*O) from which it is faster for any number of rows: reading the weights takes most of the time."""
MIN_OUTPUTS = 16
"""Maps to fewer numbers, such as gates, are left alone."""


class UnpackedLinear(nn.Linear):
    """A linear map whose matrix is read by other code as well, so that it is never packed or padded."""


class PackedLinear(nn.Module):
    """A linear map in float32 for inference on a CPU.

    `F.linear` lays the weights out anew for every product. oneDNN can keep them in the layout that its kernels read;
    that costs memory for a second copy of the weights, which is made when a product first gains by it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.out_features, linear.in_features
        self.weight = linear.weight.detach()  # (O,I)
        self.bias = None if linear.bias is None else linear.bias.detach()  # (O,)

    @cached_property
    def packed(self) -> Tensor:
        """The weights in oneDNN's layout. Only oneDNN can read this tensor; other operators read beyond its end."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())
        return packed

    def forward(self, inputs: Tensor) -> Tensor:
        """`(...,I)` to `(...,O)`."""
        rows = inputs.numel() // self.in_features
        size = self.weight.numel()
        if size < LARGE_MAP and rows * size < MIN_PACKED_PRODUCTS:
            return F.linear(inputs, self.weight, self.bias)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return result


class PaddedLinear(nn.Module):
    """A linear map with rows of zeros below its matrix, to a multiple of `ROWS`, as tensor cores are fastest with."""

    ROWS = 64

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.out_features, linear.in_features
        missing = -linear.out_features % self.ROWS
        self.weight = F.pad(linear.weight.detach(), (0, 0, 0, missing))
        self.bias = None if linear.bias is None else F.pad(linear.bias.detach(), (0, missing))

    def forward(self, inputs: Tensor) -> Tensor:
        """`(...,I)` to `(...,O)`, a view."""
        return F.linear(inputs, self.weight, self.bias)[..., : self.out_features]


@runtime_checkable
class Finalizable(Protocol):
    """A module that computes once, before inference, what does not depend on its input."""

    def finalize(self, precision: Precision) -> None:
        """Computes it; the module is converted to `precision` next, and can no longer be trained."""


def supported_precisions(device: torch.device) -> list[Precision]:
    """Returns the precisions that a device computes by instructions of its own, float32 first."""
    if device.type == "cuda":
        return ["fp32", "fp16", "bf16"]
    if device.type == "cpu" and _has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ["fp32", "bf16"]
    return ["fp32"]


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call, no-any-return]  # torch does not type it


@torch.no_grad()
def prepare_for_inference(model: nn.Module, precision: Precision, read_by_rows: Collection[nn.Module] = ()) -> None:
    """Converts a model in evaluation mode, on its final device, to a precision, in place: it can no longer be trained.

    Maps `read_by_rows` (by a shortlist) are not packed. A model without such a map is in the collection itself.

    Raises:
        RecipeError: the device does not support the precision.
    """
    device = next(model.parameters()).device
    if precision not in supported_precisions(device):
        supported = " or ".join(supported_precisions(device))
        raise RecipeError(f"precision {precision}: not supported here on {device.type}; take {supported}, or auto")
    for module in list(model.modules()):
        if isinstance(module, Finalizable):
            module.finalize("fp32" if read_by_rows else precision)
    if precision == "fp16":
        cast_to_16_bits(model, torch.float16)
    elif precision == "bf16":
        cast_to_16_bits(model, torch.bfloat16)
    elif device.type == "cpu" and _has_onednn():
        _pack_maps(model, read_by_rows)


def _pack_maps(model: nn.Module, read_by_rows: Collection[nn.Module]) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child not in read_by_rows and child.out_features >= MIN_OUTPUTS:
                setattr(module, name, PackedLinear(child))


def pack_weights(model: nn.Module) -> None:
    """Packs the weights of all packed maps now, so that processes forked from this one share them."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            _ = module.packed


@torch.no_grad()
def cast_to_16_bits(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts a model to 16 bits, and pads its large matrices; see `PaddedLinear`."""
    model.to(dtype)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.out_features > PaddedLinear.ROWS and child.out_features % 8:
                setattr(module, name, PaddedLinear(child))
