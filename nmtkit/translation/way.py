"""How a search goes over a machine: how exact, how much at a time, one on every core or one on all."""

from dataclasses import dataclass

import torch

from nmtkit import device as devices

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Padded source tokens that a batch holds where nothing was measured. A CPU is busy with few rows and its caches
overflow with many; a GPU wants all it can get."""


@dataclass(frozen=True)
class SearchWay:
    """One way to search."""

    matmul_precision: devices.MatmulPrecision
    """torch's float32 matrix product setting."""
    batch_tokens: int
    """Padded source tokens in a batch."""
    one_a_core: bool
    """On a CPU: as many searches at a time as there are cores, not one that takes all of them."""

    def __str__(self) -> str:
        cores = "one search a core" if self.one_a_core else "all cores one search"
        return f"{self.matmul_precision}, batches of {self.batch_tokens}, {cores}"


def usual(device: torch.device) -> SearchWay:
    """The way where nothing was measured: exact."""
    return SearchWay("highest", BATCH_TOKENS.get(device.type, 4096), device.type == "cpu")
