"""Finds the module in which numbers first become NaN or infinite, to explain why training stopped."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def locate_non_finite(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Runs the model by calling `forward`, and names the first module that returns NaN or infinity, as a sentence.

    Minus infinity does not count: it is the logarithm of a probability that is 0.
    """
    culprits: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if culprits or _is_finite(output):
                return
            kind = type(module).__name__
            culprit = f"module {name} ({kind})"
            if not _is_finite(list(module.parameters())):
                culprit += ", whose weights are not finite themselves"
            culprits.append(culprit)

        return hook

    handles = []
    for name, module in model.named_modules():
        if name:  # the whole model has the empty name
            handles.append(module.register_forward_hook(make_hook(name)))
    try:
        with torch.no_grad():
            result = forward()
    finally:
        for handle in handles:
            handle.remove()
    if culprits:
        return f"the first numbers that are not finite come out of {culprits[0]}"
    if not _is_finite(result):
        return (
            "all modules return finite numbers, but what the model computes from them is not finite"
        )
    return "all modules return finite numbers; the loss or the gradient exceeds what the type of numbers can hold"


def _is_finite(value: Any) -> bool:
    """Returns whether a tensor, or every tensor in nested tuples, lists and dataclasses, has no NaN and no infinity."""
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, (tuple, list)):
        return all(_is_finite(item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    is_bad = value.isnan() | value.isposinf()
    return not bool(is_bad.any())
