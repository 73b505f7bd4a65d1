"""Transformer layers in training: compiled, or with their insides computed twice to spare memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nmtkit.core.errors import TrainingError
from nmtkit.models.abilities import transformer_layers
from nmtkit.models.base import Model
from nmtkit.training.config import TrainingConfig

KEYS = ("activation_checkpointing", "compile", "shard")
"""The settings of training that are of Transformer layers."""


def prepare_layers(model: Model, config: TrainingConfig, device: torch.device) -> None:
    """Does with the model's layers what the config says; the names of weights stay.

    Checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost") puts the generator back before a
    layer is computed again, so that dropout is the same.
    """
    if config.compile:
        _require_compiler(device)
    for layer in transformer_layers(model):
        own = forward = layer.forward
        if config.compile:
            forward = torch.compile(forward, dynamic=True)
        if config.activation_checkpointing:
            forward = partial(checkpoint, forward, use_reentrant=False)
        if forward is not own:
            layer.forward = partial(_forward, (own, forward))


def _forward(
    ways: tuple[Callable[..., Any], Callable[..., Any]],
    states: Tensor,
    memory: Any = None,
    cache: Any = None,
    shown: slice | None = None,
    bias: Tensor | None = None,
) -> Any:
    """A layer, with the arguments of a decoder's; an encoder's has its mask in place of the memory, and no more.

    It goes the first of the two ways, its own, where nothing is learned, or a step writes into a cache.
    """
    more = (cache, shown, bias)
    given = (states, memory) if all(one is None for one in more) else (states, memory, *more)
    return ways[torch.is_grad_enabled() and cache is None](*given)


def _require_compiler(device: torch.device) -> None:
    try:
        torch.compile(torch.nn.functional.gelu)(torch.zeros(8, device=device))
    except RuntimeError as fault:
        reason = str(fault).strip().partition("\n")[0]
        raise TrainingError(
            f"training.compile: torch cannot compile here ({type(fault).__name__}: {reason}); on a CPU it needs g++, "
            "and torch in a path without blanks, on CUDA Triton and a C compiler; or leave training.compile out"
        ) from fault
