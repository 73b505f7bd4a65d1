"""The random states of a process: seeding, reading and restoring them, so that a resumed training repeats nothing."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seeds Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def read_states(device: torch.device) -> dict[str, Any]:
    """All random states as plain JSON values; the device's own is included where it is a CUDA device."""
    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    states = {
        "python": [version, list(numbers), gauss],
        "numpy": [numpy_state["state"]["key"].tolist(), int(numpy_state["state"]["pos"])],
        "numpy_gauss": [int(numpy_state["has_gauss"]), float(numpy_state["gauss"])],
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
    }
    if device.type == "cuda":
        states["cuda"] = bytes(torch.cuda.get_rng_state(device).tolist()).hex()
    return states


def restore_states(states: dict[str, Any], device: torch.device) -> None:
    """Puts back what `read_states` gave. A CUDA state is skipped where the device is not a CUDA device."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    (key, position), (has_gauss, value) = states["numpy"], states["numpy_gauss"]
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, has_gauss, value))
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(states["torch"])), dtype=torch.uint8))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(torch.tensor(list(bytes.fromhex(states["cuda"])), dtype=torch.uint8), device)


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Whatever random numbers are drawn inside, those drawn after it are the same."""
    states = read_states(device)
    try:
        yield
    finally:
        restore_states(states, device)
