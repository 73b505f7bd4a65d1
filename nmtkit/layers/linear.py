"""Linear layers for inference, y = x W^T + b: packed for fp32 on a CPU, padded for 16-bit types.

All parts of a model have the same precision. For fp32 on a CPU, linear layers are replaced with `PackedLinear`, which
computes the same result faster. For fp16 (CUDA) and bf16 (CUDA, or a CPU with bf16 instructions), the whole model is
cast, and some linear layers are replaced with `PaddedLinear`.

Notation: M rows, I input size, O output size.
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
"""Values of the precision option; `auto` chooses a precision that suits the device and the model."""

MIN_PACKED_PRODUCTS = 1 << 24
"""Minimum number of multiplications (M*I*O) at which a product with packed weights is faster, despite the overhead of
calling it."""
ALWAYS_PACKED_WEIGHTS = 1 << 20
"""Minimum number of weights (I*O) at which packing is faster for any number of rows, since most of the time is spent
reading the weights."""
MIN_OUTPUTS = 16
"""Minimum number of outputs for a layer to be packed; layers such as gates have fewer."""


class UnpackedLinear(nn.Linear):
    """A linear layer that must not be packed or padded, because other code reads its matrix as well."""


class PackedLinear(nn.Module):
    """A linear layer in float32 for inference on a CPU.

    `F.linear` rearranges the weights for every product, whereas oneDNN can store them in the layout that its kernels
    read. This layer therefore has a second, packed copy of the weights, which it creates for the first product that is
    faster with packed weights.
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
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())  # (O, I)
        return packed

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps `(..., I)` to `(..., O)`."""
        rows = inputs.numel() // self.in_features
        weights = self.weight.numel()
        if weights < ALWAYS_PACKED_WEIGHTS and rows * weights < MIN_PACKED_PRODUCTS:
            return F.linear(inputs, self.weight, self.bias)
        # oneDNN could also apply an activation: "none", [] and "" are its name, its arguments and its algorithm.
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.packed, self.bias, "none", [], ""
        )  # (..., O)
        return result


class PaddedLinear(nn.Module):
    """A linear layer whose outputs are padded to a multiple of `ROWS`, for which tensor cores are fastest."""

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
    """A module that, before inference, computes everything that does not depend on its inputs."""

    def finalize(self, precision: Precision) -> None:
        """Prepares the module for inference in `precision`; afterwards it can no longer be trained.

        The caller then converts the module to this precision.
        """


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
        read_by_rows: output layers that must not be packed, because a shortlist reads individual rows of their
            matrices. If an output layer is computed from other weights, `read_by_rows` contains the model instead.

    Raises:
        RecipeError: the device does not support the precision.
    """
    device = next(model.parameters()).device
    supported = supported_precisions(device)
    if precision not in supported:
        choices = " or ".join(supported)
        raise RecipeError(
            f"precision {precision} is not supported on this {device.type} device; use {choices}, or auto"
        )
    # If a shortlist reads the rows of a computed output matrix, the model keeps the matrix in any precision, and does
    # not replace it with a linear layer.
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
            # Not `isinstance`, which would include `UnpackedLinear`.
            if type(child) is not nn.Linear:
                continue
            if child not in excluded and child.out_features >= MIN_OUTPUTS:
                setattr(module, name, PackedLinear(child))


def pack_weights(model: nn.Module) -> None:
    """Packs the weights of all `PackedLinear` layers now, so that forked processes share them."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            _ = module.packed  # a cached property, computed when first read


@torch.no_grad()
def cast_to_16_bits(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts a model to 16 bits and pads its large matrices; see `PaddedLinear`."""
    model.to(dtype)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Not `isinstance`, which would include `UnpackedLinear`.
            if type(child) is not nn.Linear:
                continue
            if child.out_features > PaddedLinear.ROWS and child.out_features % 8 != 0:
                setattr(module, name, PaddedLinear(child))
