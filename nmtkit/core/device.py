"""Which device the work runs on, and the few process-wide switches that make a CPU fast."""

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
"""What torch chose when it was loaded: one thread a core, or what OMP_NUM_THREADS says."""


def available() -> list[str]:
    """The devices that `choose` accepts here, best first."""
    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def choose(name: str = "auto") -> torch.device:
    """The device of that name; `auto` takes the first CUDA device, else the CPU."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    names = available()
    if name not in names and not (name == "cuda" and "cuda:0" in names):
        raise NmtkitError(f"no such device: {name!r}; here there is: {', '.join(names)} (`nmtkit doctor` says why)")
    return torch.device(name)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for it: to CUDA only pinned memory is copied beside its work."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=device.type != "cpu")


def read_clock(device: torch.device) -> float:
    """Seconds on a clock that is read once the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def describe(device: torch.device) -> str:
    """The device in words, e.g. `cuda:0 (NVIDIA H200)` or `cpu (2 threads)`."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type != "cpu":
        return str(device)
    count = torch.get_num_threads()
    return f"{device} ({count} thread{'s' if count > 1 else ''})"


def cpu_threads() -> int:
    """CPU threads that torch uses by default: one for each core that this process may use."""
    return _limited_by_cores(_TORCH_THREADS)


def _limited_by_cores(threads: int) -> int:
    """Unless the user has set the number of threads."""
    return threads if "OMP_NUM_THREADS" in os.environ else min(threads, available_cores())


def _glibc() -> ctypes.CDLL | None:
    with suppress(OSError):
        return ctypes.CDLL("libc.so.6") if sys.platform.startswith("linux") else None
    return None


def tune_malloc() -> None:
    """Tells glibc, where there is one, to keep freed blocks: from the kernel each costs many page faults."""
    if library := _glibc():
        mmap_max, trim_threshold, top_pad = -4, -1, -2
        for option, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 64 << 20)):
            library.mallopt(option, value)


def trim_malloc() -> None:
    """Gives freed blocks back to the kernel: glibc puts no aligned block, as tensors are, into their gaps."""
    if library := _glibc():
        library.malloc_trim(0)


_KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Programs for one shape of a product that oneDNN, and torch for it, keep; by default 1,024 each. All layers of a
Transformer take about 50 for one shape of batch in bf16, each 0.25 MiB in each cache."""


def bound_kernel_caches() -> None:
    """Limits what oneDNN keeps of shapes; unless the user has, and before the first product that it computes.

    In training hardly two batches have one shape. What stays of each lies between the tensors of the next, so that the
    gaps do not suffice for theirs.
    """
    for name, capacity in _KERNEL_CACHES.items():
        os.environ.setdefault(name, capacity)


_threads_requested = False
"""Whether `prepare` was last called with a number of threads."""


def prepare(
    device: torch.device, matmul_precision: MatmulPrecision | Literal["auto"] = "highest", threads: int | None = None
) -> None:
    """Sets the process up for work on `device`.

    With a `matmul_precision` below `highest` float32 products may use tf32 or bf16 inside, on CUDA those of cuDNN's
    recurrent layers as well. `auto` is `highest`. Without `threads` torch's number stays, as far as there are cores.
    """
    global _threads_requested
    _threads_requested = threads is not None
    torch.set_float32_matmul_precision("highest" if matmul_precision == "auto" else matmul_precision)
    torch.backends.cudnn.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    torch.set_num_threads(threads or _limited_by_cores(torch.get_num_threads()))
    if device.type == "cpu":
        tune_malloc()
    elif device.type == "cuda":
        # cuDNN plans its attention anew for each shape, which takes as long as several updates.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if device.index is not None:
            torch.cuda.set_device(device)  # streams, graphs and Triton's programs are those of the current device


FEW_LINES = 16
"""Fewer lines than this are computed by one thread: see `threads_for`."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Has torch compute in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def threads_for(lines: int) -> AbstractContextManager[None]:
    """Uses one thread for a few lines, else all threads. A number of threads that `prepare` was asked for stays.

    The products of a step over a few lines are so small that two threads gain little on an idle machine. On a busy one
    each product waits until every thread has had a core, and the step takes many times as long.
    """
    return one_thread() if lines < FEW_LINES and not _threads_requested else nullcontext()


_IN_THREADS = threading.Event()
"""Set once threads have computed side by side, or another one than the first."""


def note_thread() -> None:
    """Says that this thread computes."""
    if threading.current_thread() is not threading.main_thread():
        _IN_THREADS.set()


def use_one_thread() -> None:
    """For a thread that computes beside others."""
    _IN_THREADS.set()
    torch.set_num_threads(1)


def can_fork() -> bool:
    """Whether a fork of this process can compute, with one core; on Linux only.

    Not once threads have computed side by side: one of them may hold MKL's lock of memory during the fork. For this no
    fork begins in another thread than the first, or beside threads of the program that calls nmtkit, daemons left out.
    """
    first = threading.main_thread()
    alone = threading.current_thread() is first and all(one is first or one.daemon for one in threading.enumerate())
    may_have_children = not multiprocessing.current_process().daemon
    return sys.platform.startswith("linux") and alone and may_have_children and not _IN_THREADS.is_set()


def map_batches(function: Callable[[Item], None], batches: Iterable[Item], device: torch.device) -> None:
    """Calls `function` on every batch; on a CPU on several small ones at a time, each with one core."""
    batches = list(batches)
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(batches) < 2:
        for batch in batches:
            function(batch)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=use_one_thread) as pool:
            list(pool.map(function, batches))
    finally:
        torch.set_num_threads(threads)
