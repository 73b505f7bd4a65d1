"""Whether two runs were made by one training, bit for bit; and waiting for an update of a training."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.commands import logged


def logged_without_times(run: Path) -> list[dict[str, Any]]:
    timing = {"seconds", "tokens_per_second", "valid_seconds"}
    return [
        {key: value for key, value in record.items() if key not in timing} for record in logged(run)
    ]


def differences(run: Path, other: Path) -> list[str]:
    """In which of weights, states, log and translations two runs differ; times in the log may."""
    states, others = (
        {
            path.relative_to(one): load_file(path)
            for path in (one / "checkpoints").rglob("*.safetensors")
        }
        for one in (run, other)
    )
    if states.keys() != others.keys():
        return ["other checkpoints"]
    found = [
        f"{name}: other tensors" for name in sorted(states) if not _same(states[name], others[name])
    ]
    if logged_without_times(run) != logged_without_times(other):
        found.append("metrics.jsonl: other lines")
    outputs = [
        path.read_bytes() if path.exists() else None
        for path in (run / "test.out", other / "test.out")
    ]
    return found if outputs[0] == outputs[1] else [*found, "test.out: other lines"]


def _same(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    def content(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
        return tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes()

    return tensors.keys() == others.keys() and all(
        content(tensors[name]) == content(others[name]) for name in tensors
    )


def wait_for_update(run: Path, update: int, is_running: Callable[[], bool]) -> None:
    """Until `metrics.jsonl` tells of that update."""
    path = run / "metrics.jsonl"
    for _ in range(12_000):
        if path.exists() and f'"update": {update},' in path.read_text(encoding="utf-8"):
            return
        assert is_running(), "it ended before"
        time.sleep(0.01)
    raise AssertionError("no update")
