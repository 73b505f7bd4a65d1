"""Transformer layers in training: compiled, or recomputed in the backward pass to save memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nmtkit.core.errors import TrainingError
from nmtkit.models.abilities import transformer_layers
from nmtkit.models.base import Model
from nmtkit.training.config import TrainingConfig

LAYER_KEYS = ("activation_checkpointing", "compile", "shard")
"""Training settings that apply only to Transformer layers."""


def prepare_layers(model: Model, config: TrainingConfig, device: torch.device) -> None:
    """Wraps the forward pass of Transformer layers as configured; the names of weights do not change.

    Checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost") restores the random state before a
    layer is recomputed, so that dropout drops the same values.
    """
    if not config.compile and not config.activation_checkpointing:
        return
    if config.compile:
        _require_compiler(device)
    for layer in transformer_layers(model):
        plain = layer.forward
        wrapped = plain
        if config.compile:
            wrapped = torch.compile(wrapped, dynamic=True)
        if config.activation_checkpointing:
            wrapped = partial(checkpoint, wrapped, use_reentrant=False)
        layer.forward = _TrainingForward(plain, wrapped)


@dataclass(frozen=True)
class _TrainingForward:
    """Forward pass of a layer: the wrapped one in training, the plain one otherwise."""

    plain: Callable[..., Any]
    wrapped: Callable[..., Any]

    def __call__(
        self,
        states: Tensor,
        memory: Any = None,
        cache: Any = None,
        shown: slice | None = None,
        bias: Any = None,
    ) -> Any:
        """Takes the arguments of a decoder layer; an encoder layer gets only its states and, as `memory`, its mask."""
        # A layer that writes into a cache cannot be recomputed.
        is_training = torch.is_grad_enabled() and cache is None
        forward = self.wrapped if is_training else self.plain
        if cache is None and shown is None and bias is None:
            return forward(states, memory)
        return forward(states, memory, cache=cache, shown=shown, bias=bias)


def _require_compiler(device: torch.device) -> None:
    try:
        torch.compile(torch.nn.functional.gelu)(torch.zeros(8, device=device))
    except RuntimeError as fault:
        reason = str(fault).strip().partition("\n")[0]
        raise TrainingError(
            f"training.compile: torch cannot compile on this machine ({type(fault).__name__}: {reason}); install what "
            "it needs (on a CPU: g++, and torch in a path without spaces; with CUDA: Triton and a C compiler), or "
            "remove training.compile"
        ) from fault
