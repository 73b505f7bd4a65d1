"""The device for computations, and process-wide settings that make CPU computations fast."""

import ctypes
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Literal, TypeVar

import torch
from torch import Tensor

from nmtkit.core.errors import NmtkitError
from nmtkit.core.processes import available_cores

MatmulPrecision = Literal["highest", "high", "medium"]
Item = TypeVar("Item")

_TORCH_THREADS = torch.get_num_threads()
"""Torch's default number of threads: one per core, or the value of OMP_NUM_THREADS."""


def available() -> list[str]:
    """Returns the devices that `choose` accepts on this machine, best first."""
    names = (
        [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def choose(name: str = "auto") -> torch.device:
    """Returns the device with this name; `auto` is the first CUDA device, or the CPU if there is none."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    names = available()
    if name not in names and not (name == "cuda" and "cuda:0" in names):
        raise NmtkitError(
            f"no such device: {name!r}; this machine has: {', '.join(names)} (`nmtkit doctor` explains "
            "why)"
        )
    return torch.device(name)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device; a copy to CUDA goes through pinned memory and is asynchronous."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=device.type != "cpu")


def read_clock(device: torch.device) -> float:
    """Waits until the device has finished its queue, and returns the clock in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def describe(device: torch.device) -> str:
    """Describes the device, e.g. `cuda:0 (NVIDIA H200)` or `cpu (2 threads)`."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type != "cpu":
        return str(device)
    count = torch.get_num_threads()
    return f"{device} ({count} thread{'s' if count > 1 else ''})"


def cpu_threads() -> int:
    """Returns torch's default number of CPU threads: one per core that this process may use."""
    return _limited_by_cores(_TORCH_THREADS)


def _limited_by_cores(threads: int) -> int:
    """Limits a number of threads to the number of cores, unless the user has set OMP_NUM_THREADS."""
    return threads if "OMP_NUM_THREADS" in os.environ else min(threads, available_cores())


def _glibc() -> ctypes.CDLL | None:
    with suppress(OSError):
        return ctypes.CDLL("libc.so.6") if sys.platform.startswith("linux") else None
    return None


def tune_malloc() -> None:
    """Makes glibc, if present, keep freed blocks, because new blocks from the kernel cause many page faults."""
    if library := _glibc():
        mmap_max, trim_threshold, top_pad = -4, -1, -2
        for option, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 64 << 20)):
            library.mallopt(option, value)


def trim_malloc() -> None:
    """Returns freed blocks to the kernel, because glibc cannot reuse the gaps for aligned blocks (tensors)."""
    if library := _glibc():
        library.malloc_trim(0)


_KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Maximum number of compiled matrix products (one per shape) in oneDNN's cache and in torch's.

Both limits are 1,024 by default. A Transformer in bf16 needs about 50 of these products for one batch shape, and each
product takes 0.25 MiB in each cache.
"""


def bound_kernel_caches() -> None:
    """Limits both kernel caches unless the user has set a limit; must run before the first matrix product.

    In training, few batches have the same shape. Programs that are cached for one batch fragment the memory that the
    tensors of the next batch need.
    """
    for name, capacity in _KERNEL_CACHES.items():
        os.environ.setdefault(name, capacity)


_threads_requested = False
"""Whether the last call of `prepare` set a number of threads."""


def prepare(
    device: torch.device,
    matmul_precision: MatmulPrecision | Literal["auto"] = "highest",
    threads: int | None = None,
) -> None:
    """Sets up the process for computations on `device`.

    If `matmul_precision` is below `highest`, float32 matrix products may use tf32 or bf16 internally, including those
    of cuDNN's recurrent layers on CUDA. `auto` means `highest`. Without `threads`, torch's number of threads is kept,
    but limited to the number of cores.
    """
    global _threads_requested
    _threads_requested = threads is not None
    torch.set_float32_matmul_precision(
        "highest" if matmul_precision == "auto" else matmul_precision
    )
    torch.backends.cudnn.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    torch.set_num_threads(threads or _limited_by_cores(torch.get_num_threads()))
    if device.type == "cpu":
        tune_malloc()
    elif device.type == "cuda":
        # cuDNN plans its attention kernel anew for each shape, which takes as long as several updates.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if device.index is not None:
            torch.cuda.set_device(
                device
            )  # streams, graphs and Triton's programs belong to the current device


FEW_LINES = 16
"""Number of lines below which one thread is used; see `threads_for`."""


_limits_lock = threading.Lock()
_limits = 0
"""Number of running `restored_threads` blocks."""
_threads_without_limits = 0
"""Torch's number of threads before the first of the running `restored_threads` blocks began."""


@contextmanager
def restored_threads() -> Iterator[None]:
    """Allows the block to change torch's number of threads, and restores it afterwards.

    Each new thread inherits the number that another thread may have limited just then. So the number is saved for all
    blocks that run at the same time, not by each of them.
    """
    global _limits, _threads_without_limits
    with _limits_lock:
        if _limits == 0:
            _threads_without_limits = torch.get_num_threads()
        _limits += 1
    try:
        yield
    finally:
        with _limits_lock:
            _limits -= 1
            torch.set_num_threads(_threads_without_limits)


def threads_without_limits() -> int:
    """Returns torch's number of threads, disregarding the limits of `restored_threads` blocks in other threads."""
    with _limits_lock:
        return _threads_without_limits if _limits else torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread."""
    with restored_threads():
        torch.set_num_threads(1)
        yield


def threads_for(lines: int) -> AbstractContextManager[None]:
    """Uses one thread for few lines and all threads otherwise, unless `prepare` has set a number of threads.

    With a few lines, the matrix products of a step are so small that a second thread gains little
    on an idle machine. On a busy machine each product waits until every thread has had a core, so
    the step takes many times as long.
    """
    return one_thread() if lines < FEW_LINES and not _threads_requested else nullcontext()


_IN_THREADS = threading.Event()
"""Set once several threads, or any thread other than the main thread, have run computations."""


def note_thread() -> None:
    """Records that the current thread runs computations."""
    if threading.current_thread() is not threading.main_thread():
        _IN_THREADS.set()


def use_one_thread() -> None:
    """Prepares a thread that computes in parallel with others."""
    _IN_THREADS.set()
    torch.set_num_threads(1)


def can_fork() -> bool:
    """Returns whether a fork of this process can compute on one core (Linux only).

    It cannot if threads have computed in parallel before, because one of them may hold MKL's memory lock during the
    fork. For the same reason, no fork is started outside the main thread, or while the program that calls nmtkit runs
    other threads (except daemons).
    """
    first = threading.main_thread()
    alone = threading.current_thread() is first and all(
        one is first or one.daemon for one in threading.enumerate()
    )
    may_have_children = not multiprocessing.current_process().daemon
    return (
        sys.platform.startswith("linux")
        and alone
        and may_have_children
        and not _IN_THREADS.is_set()
    )


def map_batches(
    function: Callable[[Item], None], batches: Iterable[Item], device: torch.device
) -> None:
    """Calls `function` on every batch; on a CPU, small batches are computed in parallel."""
    batches = list(batches)
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(batches) < 2:
        for batch in batches:
            function(batch)
        return
    with restored_threads(), ThreadPoolExecutor(threads, initializer=use_one_thread) as pool:
        list(pool.map(function, batches))
