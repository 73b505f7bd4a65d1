"""Steps that are called off on the device: by torch's fused kernels on a CPU everywhere, on CUDA where it is."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtkit.training import optimizers
from nmtkit.training.optimizers import (
    OptimizerConfig,
    build_optimizer,
    read_state,
    restore_state,
    skippable_step,
)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]
FUSED: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "sgd", "lr": 0.5},
    {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.01},
]


def after(config: OptimizerConfig, device: str, steps: str) -> dict[str, Tensor]:
    """Weights and running means after steps that are good or, for `-`, called off; half way with a new optimizer."""
    draw = torch.Generator().manual_seed(1)
    weights = {
        name: nn.Parameter(torch.randn(3, 2, generator=draw).to(device))
        for name in ("first", "second")
    }
    optimizer, gradient = (
        build_optimizer(config, weights),
        torch.randn(3, 2, generator=draw).to(device),
    )
    for number, step in enumerate(steps):
        if number == len(steps) // 2:
            state, optimizer = read_state(optimizer, weights), build_optimizer(config, weights)
            restore_state(optimizer, weights, state)
        for weight in weights.values():
            weight.grad = gradient * (float("nan") if step == "-" else 1.0)
        bad = torch.tensor(step == "-", device=device)
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            skippable_step(bad, optimizer, config.lr)
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    return {
        **{name: weight.detach().cpu() for name, weight in weights.items()},
        **read_state(optimizer, weights),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", FUSED, ids=str)
def test_a_step_that_is_called_off_leaves_no_trace(
    settings: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OptimizerConfig(**settings)
    plain = after(config, "cpu", "++++")
    if device == "cpu":
        monkeypatch.setattr(optimizers, "_is_on_cuda", lambda groups: True)
    skipped = after(config, device, "-++--++-")
    assert skipped.keys() >= plain.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(skipped[name].cpu(), expected)
