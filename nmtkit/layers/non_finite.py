"""Where numbers that are not finite begin: what a user needs to know of a training that was stopped by them."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def where_they_begin(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """The first module that makes NaN or infinity when `forward` runs the model, in words.

    Minus infinity is not counted: it is the logarithm of a probability that is 0.
    """
    found: list[str] = []

    def look_at(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if not found and not _finite(output):
                weights = "" if _finite([*module.parameters()]) else ", whose weights are not finite themselves"
                found.append(f"module {name} ({type(module).__name__}){weights}")

        return hook

    hooks = [module.register_forward_hook(look_at(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            result = forward()
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"the first numbers that are not finite come out of {found[0]}"
    if not _finite(result):
        return "all modules give finite numbers, but what is made of them is not finite"
    return "all modules give finite numbers; the loss or the gradient exceeds what the type of numbers can hold"


def _finite(value: Any) -> bool:
    """Of a tensor, or of all tensors that tuples, lists and dataclasses hold."""
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, (tuple, list)):
        return all(map(_finite, value))
    is_number = isinstance(value, Tensor) and value.is_floating_point()
    return not is_number or not bool((value.isnan() | value.isposinf()).any())
