"""Reproducible training: the random states of a process, and deterministic kernels."""

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
    """Returns all random states as JSON values; the state of a CUDA device is included."""
    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    mersenne_twister = numpy_state["state"]
    states = {
        "python": [version, list(numbers), gauss],
        "numpy": [mersenne_twister["key"].tolist(), int(mersenne_twister["pos"])],
        "numpy_gauss": [int(numpy_state["has_gauss"]), float(numpy_state["gauss"])],
        "torch": _to_hex(torch.get_rng_state()),
    }
    if device.type == "cuda":
        states["cuda"] = _to_hex(torch.cuda.get_rng_state(device))
    return states


def set_rng_states(states: dict[str, Any], device: torch.device) -> None:
    """Restores states from `get_rng_states`. A CUDA state is skipped if `device` is not a CUDA device."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    key, position = states["numpy"]
    has_gauss, numpy_gauss = states["numpy_gauss"]
    key_array = np.array(key, dtype=np.uint32)
    np.random.set_state(("MT19937", key_array, position, has_gauss, numpy_gauss))
    torch.set_rng_state(_from_hex(states["torch"]))
    if device.type == "cuda" and "cuda" in states:
        cuda_state = _from_hex(states["cuda"])
        torch.cuda.set_rng_state(cuda_state, device)


def _to_hex(state: torch.Tensor) -> str:
    """Returns a tensor of bytes as hexadecimal digits."""
    return bytes(state.tolist()).hex()


def _from_hex(digits: str) -> torch.Tensor:
    """Returns hexadecimal digits as a tensor of bytes."""
    return torch.tensor(list(bytes.fromhex(digits)), dtype=torch.uint8)


@contextmanager
def fork_rng(device: torch.device) -> Iterator[None]:
    """Restores the random states at the end, so that draws inside the context do not change later ones."""
    states = get_rng_states(device)
    try:
        yield
    finally:
        set_rng_states(states, device)


def require_cublas_workspace() -> None:
    """Makes cuBLAS deterministic, which is possible only before CUDA is initialized."""
    workspace = os.environ.get(_WORKSPACE)
    if workspace in (":4096:8", ":16:8"):
        return
    if workspace is not None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types here
        raise TrainingError(
            f"training.deterministic: the environment variable {_WORKSPACE} must be :4096:8 before CUDA is "
            f"initialized; set {_WORKSPACE}=:4096:8 and run the command again"
        )
    os.environ[_WORKSPACE] = ":4096:8"


@contextmanager
def deterministic(device: torch.device, wanted: bool) -> Iterator[None]:
    """Makes CUDA computations reproducible bit for bit if `wanted`; CPU computations always are.

    torch warns if an operation has no deterministic kernel. Fused attention is switched off, because it sums gradients
    in an arbitrary order.
    """
    if not wanted or device.type != "cuda":
        yield
        return
    require_cublas_workspace()
    cudnn = torch.backends.cudnn
    algorithms_before = torch.are_deterministic_algorithms_enabled()
    warn_only_before = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn_deterministic_before = cudnn.deterministic
    cudnn_benchmark_before = cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        cudnn.deterministic = True
        cudnn.benchmark = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(algorithms_before, warn_only=warn_only_before)
        cudnn.deterministic = cudnn_deterministic_before
        cudnn.benchmark = cudnn_benchmark_before
