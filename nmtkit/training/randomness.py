"""What makes a training repeat itself: the random states of a process, and sums in the same order every time."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmtkit.core.errors import TrainingError

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def seed_all(seed: int) -> None:
    """Seeds Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_rng_states(device: torch.device) -> dict[str, Any]:
    """All random states as plain JSON values, that of a CUDA device too."""
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


def set_rng_states(states: dict[str, Any], device: torch.device) -> None:
    """Puts back what `get_rng_states` gave. A CUDA state is skipped where the device is not a CUDA device."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    key, position = states["numpy"]
    has_gauss, value = states["numpy_gauss"]
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, has_gauss, value))
    torch.set_rng_state(_bytes_tensor(states["torch"]))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(_bytes_tensor(states["cuda"]), device)


def _bytes_tensor(text: str) -> torch.Tensor:
    """Bytes in hexadecimal digits as a tensor."""
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


@contextmanager
def fork_rng(device: torch.device) -> Iterator[None]:
    """Random numbers drawn inside do not change those drawn afterwards."""
    states = get_rng_states(device)
    try:
        yield
    finally:
        set_rng_states(states, device)


def require_cublas_workspace() -> None:
    """Tells cuBLAS to repeat its products exactly, which it must know before it starts."""
    given = os.environ.get(_WORKSPACE)
    if given in (":4096:8", ":16:8"):
        return
    if given is not None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        raise TrainingError(
            f"training.deterministic: on CUDA {_WORKSPACE} must be :4096:8 from the start; "
            f"begin again with {_WORKSPACE}=:4096:8 in the environment"
        )
    os.environ[_WORKSPACE] = ":4096:8"


@contextmanager
def deterministic(device: torch.device, wanted: bool) -> Iterator[None]:
    """Inside, the same work on a CUDA device gives the same numbers, bit for bit; on a CPU it does so anyway.

    torch warns where it has no such kernel. Its fused attention is not used, which adds up gradients in any order.
    """
    if not wanted or device.type != "cuda":
        yield
        return
    require_cublas_workspace()
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    of_cudnn = cudnn.deterministic, cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        cudnn.deterministic, cudnn.benchmark = True, False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = of_cudnn
