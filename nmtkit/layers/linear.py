"""Linear layers for inference, y = x W^T + b: packed in fp32 on a CPU, padded in 16 bits.

All parts of a model have the same precision. In fp32 on a CPU, linear layers become `PackedLinear`, which computes the
same result faster. In fp16 (CUDA) and bf16 (CUDA, or a CPU with bf16 instructions) the whole model is cast.

Letters: M rows, I input size, O output size.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError

Precision = Literal["fp32", "fp16", "bf16"]
"""Precision of a model at inference."""
PrecisionChoice = Literal["auto", "fp32", "fp16", "bf16"]
"""Precision as an option; `auto` chooses by device and model."""

MIN_PACKED_PRODUCTS = 1 << 24
"""Multiplications (M*I*O) above which a product with packed weights is faster, despite the cost of its call."""
ALWAYS_PACKED_WEIGHTS = 1 << 20
"""Weights (I*O) above which packing is faster for any number of rows, since reading the weights takes most time."""
MIN_OUTPUTS = 16
"""Layers with fewer outputs, such as gates, are not packed."""


class UnpackedLinear(nn.Linear):
    """A linear layer that must not be packed or padded, because other code reads its matrix as well."""


class PackedLinear(nn.Module):
    """A linear layer in float32 for inference on a CPU.

    `F.linear` rearranges the weights for every product. oneDNN can store them in the layout that its kernels read. This
    takes memory for a second copy of the weights, which is made when it first makes a product faster.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.in_features = linear.in_features
        self.weight = linear.weight.detach()  # (O, I)
        self.bias = None
        if linear.bias is not None:
            self.bias = linear.bias.detach()  # (O,)

    @cached_property
    def packed(self) -> Tensor:
        """Weights in oneDNN's layout. Only oneDNN may read this tensor: other operators would read past its end."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())
        return packed

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps `(..., I)` to `(..., O)`."""
        rows = inputs.numel() // self.in_features
        weights = self.weight.numel()
        if weights < ALWAYS_PACKED_WEIGHTS and rows * weights < MIN_PACKED_PRODUCTS:
            return F.linear(inputs, self.weight, self.bias)
        # "none", [] and "" are an activation that oneDNN could also apply, its arguments and its algorithm.
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.packed, self.bias, "none", [], ""
        )
        return result


class PaddedLinear(nn.Module):
    """A linear layer with outputs padded to a multiple of `ROWS`, for which tensor cores are fastest."""

    ROWS = 64

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.in_features = linear.in_features
        missing = -linear.out_features % self.ROWS
        self.weight = F.pad(linear.weight.detach(), (0, 0, 0, missing))  # (O + missing, I)
        self.bias = None
        if linear.bias is not None:
            self.bias = F.pad(linear.bias.detach(), (0, missing))  # (O + missing,)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps `(..., I)` to `(..., O)`, a view of the padded result."""
        padded = F.linear(inputs, self.weight, self.bias)  # (..., O + missing)
        return padded[..., : self.out_features]


@runtime_checkable
class Finalizable(Protocol):
    """A module that precomputes, before inference, results that do not depend on its inputs."""

    def finalize(self, precision: Precision) -> None:
        """Prepares the module for inference. It is then converted to `precision` and can no longer be trained."""


def supported_precisions(device: torch.device) -> list[Precision]:
    """Returns the precisions that a device supports, fp32 first."""
    if device.type == "cuda":
        return ["fp32", "fp16", "bf16"]
    if device.type == "cpu" and _has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ["fp32", "bf16"]
    return ["fp32"]


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call, no-any-return]  # torch does not type it


@torch.no_grad()
def prepare_for_inference(
    model: nn.Module, precision: Precision, read_by_rows: Collection[nn.Module] = ()
) -> None:
    """Converts a model to a precision, in place. Afterwards it can no longer be trained.

    The model must be in evaluation mode and on its final device.

    Args:
        model: the model to change in place.
        precision: the new precision.
        read_by_rows: output layers that must not be packed, because a shortlist reads single rows of them. Contains the
            model instead of an output layer that is computed from other weights.

    Raises:
        RecipeError: the device does not support the precision.
    """
    device = next(model.parameters()).device
    supported = supported_precisions(device)
    if precision not in supported:
        choices = " or ".join(supported)
        raise RecipeError(
            f"precision {precision}: not supported here on {device.type}; take {choices}, or auto"
        )
    # Below fp32, a model replaces its computed output matrix by a linear layer, whose rows a shortlist could not read.
    final_precision = "fp32" if read_by_rows else precision
    for module in list(model.modules()):
        if isinstance(module, Finalizable):
            module.finalize(final_precision)
    if precision == "fp16":
        cast_to_16_bits(model, torch.float16)
    elif precision == "bf16":
        cast_to_16_bits(model, torch.bfloat16)
    elif device.type == "cpu" and _has_onednn():
        _pack_linear_layers(model, read_by_rows)


def _pack_linear_layers(model: nn.Module, excluded: Collection[nn.Module]) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Not isinstance: other code may read the matrix of a subclass.
            if type(child) is not nn.Linear:
                continue
            if child not in excluded and child.out_features >= MIN_OUTPUTS:
                setattr(module, name, PackedLinear(child))


def pack_weights(model: nn.Module) -> None:
    """Packs all packed layers' weights now, so that processes forked from this one share them."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            _ = module.packed  # a cached property, computed when first read


@torch.no_grad()
def cast_to_16_bits(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts a model to 16 bits and pads its large matrices; see `PaddedLinear`."""
    model.to(dtype)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Not isinstance: other code may read the matrix of a subclass.
            if type(child) is not nn.Linear:
                continue
            if child.out_features > PaddedLinear.ROWS and child.out_features % 8 != 0:
                setattr(module, name, PaddedLinear(child))
