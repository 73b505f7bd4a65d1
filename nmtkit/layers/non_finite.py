"""Finds the first module whose output contains NaN or infinity, to explain why training stopped."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def locate_non_finite(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Calls `forward`, which runs the model; returns a sentence about the first module with a non-finite output.

    Minus infinity is allowed, since it is the logarithm of a probability of 0.
    """
    culprits: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if culprits or _is_finite(output):
                return
            kind = type(module).__name__
            culprit = f"module {name} ({kind})"
            if not _is_finite(list(module.parameters())):
                culprit += ", whose weights already contain NaN or infinity"
            culprits.append(culprit)

        return hook

    handles = []
    for name, module in model.named_modules():
        if name:  # the model itself has an empty name
            handles.append(module.register_forward_hook(make_hook(name)))
    try:
        with torch.no_grad():
            result = forward()
    finally:
        for handle in handles:
            handle.remove()
    if culprits:
        return f"NaN or infinity first appears in the output of {culprits[0]}"
    if not _is_finite(result):
        return "the outputs of all modules are finite, but the result that the model computes from them is not"
    return "the outputs of all modules are finite; the loss or a gradient is too large for its data type"


def _is_finite(value: Any) -> bool:
    """Returns whether all tensors in nested tuples, lists and dataclasses are free of NaN and plus infinity."""
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, (tuple, list)):
        return all(_is_finite(item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    is_bad = value.isnan() | value.isposinf()  # (...)
    return not bool(is_bad.any())
