"""Which device the work runs on, and the few process-wide switches that make a CPU fast."""

import atexit
import ctypes
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
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


WAITING_VARIABLE = "NMTKIT_WAITING"
"""The variable by which the command line says that it chose how OpenMP's threads wait, and not the user."""


class SpinGuard(threading.Thread):
    """Keeps OpenMP's threads from spinning while something else wants the cores.

    On a busy machine a thread that spins takes the core from the thread that it waits for: beside other trainings a
    small model was five times as slow. If threads had to wait for a core, an additional team makes libgomp manage more
    threads than there are cores; then none spins.

    `read_times` gives for each thread of the process by its number the nanoseconds it has run and waited to run.
    """

    PERIOD = 0.5
    """Seconds between two looks."""
    BUSY, FREE = 0.1, 0.03
    """Shares of waiting in waiting and running: above the first none spins, below the second all may again ..."""
    LOOKS = 20
    """... after so many looks."""

    def __init__(self, read_times: Callable[[], dict[str, tuple[int, int]]]) -> None:
        super().__init__(daemon=True, name="spin guard")
        self._read_times = read_times
        self._before = read_times()
        self._free_looks = 0
        self._release: threading.Event | None = None
        self._team: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def holds(self) -> bool:
        """Whether no thread spins."""
        return self._release is not None

    def run(self) -> None:
        """Looks, and acts, until the end."""
        while not self._ended.wait(self.PERIOD):
            self.look()

    def end(self) -> None:
        """Waits for its threads: Python aborts at its exit if one of them is within torch then."""
        self._ended.set()
        self.join()
        if self._release is not None and self._team is not None:
            self._release.set()
            self._team.join()

    def look(self) -> None:
        """One look at what happened since the last one."""
        before, now = self._before, self._read_times()
        self._before, both = now, now.keys() & before.keys()
        ran, waited = (sum(now[thread][kind] - before[thread][kind] for thread in both) for kind in (0, 1))
        share = waited / max(ran + waited, 1)
        self._free_looks = self._free_looks + 1 if share < self.FREE else 0
        if share > self.BUSY and self._release is None:
            self._release = threading.Event()
            self._team = threading.Thread(target=_hold_team, args=(self._release,), daemon=True)
            self._team.start()
        elif self._release is not None and self._free_looks >= self.LOOKS:
            self._release.set()
            self._release = None


def _hold_team(release: threading.Event) -> None:
    """Has OpenMP give this thread a team of as many threads as there are cores, until `release`."""
    before = torch.get_num_threads()
    # Of this thread and of ones to come, none of which has begun yet.
    torch.set_num_threads(available_cores())
    torch.ones(1 << 20).add_(1)
    torch.set_num_threads(before)
    release.wait()


def _thread_times() -> dict[str, tuple[int, int]]:
    """Nanoseconds that each thread of this process has run and waited for a core, of Linux only."""
    times = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError, ValueError), open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
            ran, waited, _ = map(int, file.read().split())
            times[thread] = ran, waited
    return times


@cache
def _start_spin_guard() -> None:
    with suppress(OSError):
        guard = SpinGuard(_thread_times)
        guard.start()
        atexit.register(guard.end)


def prepare(
    device: torch.device, matmul_precision: MatmulPrecision | Literal["auto"] = "highest", threads: int | None = None
) -> None:
    """Sets the process up for work on `device`.

    With a `matmul_precision` below `highest` float32 products may use tf32 or bf16 inside, on CUDA those of cuDNN's
    recurrent layers as well. `auto` is `highest`. Without `threads` torch's number stays, as far as there are cores.
    """
    torch.set_float32_matmul_precision("highest" if matmul_precision == "auto" else matmul_precision)
    torch.backends.cudnn.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    torch.set_num_threads(threads or _limited_by_cores(torch.get_num_threads()))
    if device.type == "cpu":
        tune_malloc()
        if torch.get_num_threads() > 1 and WAITING_VARIABLE in os.environ:
            _start_spin_guard()
    elif device.type == "cuda":
        # cuDNN plans its attention anew for each shape, which takes as long as several updates.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if device.index is not None:
            torch.cuda.set_device(device)  # streams, graphs and Triton's programs are those of the current device


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
    batches, threads = list(batches), torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(batches) < 2:
        for batch in batches:
            function(batch)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=use_one_thread) as pool:
            list(pool.map(function, batches))
    finally:
        torch.set_num_threads(threads)
