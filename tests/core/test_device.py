"""Choosing a device; how threads wait."""

import os
import threading
import time
from collections.abc import Callable

import pytest
import torch

from nmtkit.core import device
from nmtkit.core.errors import NmtkitError

CPU = torch.device("cpu")


def test_auto_takes_cuda_where_there_is_one_and_there_is_always_a_cpu() -> None:
    assert device.choose("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device.choose("cpu") == CPU
    assert device.available()[-1] == "cpu"


@pytest.mark.parametrize("name", ["cuda:77", "warp", "cpu:x", ""])
def test_what_is_not_there_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(NmtkitError, match=r"no such device.*here there is:.*cpu"):
        device.choose(name)


@pytest.mark.parametrize(("own", "left"), [(1, 1), (2, 2), (3, 2)])
def test_threads_that_a_program_has_set_stay(monkeypatch: pytest.MonkeyPatch, own: int, left: int) -> None:
    """As far as there are cores; with OMP_NUM_THREADS in any case."""
    monkeypatch.setattr(device, "_TORCH_THREADS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    torch.set_num_threads(own)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    device.prepare(CPU)
    assert torch.get_num_threads() == own
    monkeypatch.delenv("OMP_NUM_THREADS")
    device.prepare(CPU)
    assert torch.get_num_threads() == left


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("before", [True, False])
def test_prepare_sets_threads_and_the_precision_of_products_and_of_recurrent_layers(
    monkeypatch: pytest.MonkeyPatch, precision: device.MatmulPrecision, before: bool
) -> None:
    """On CUDA they are cuDNN's, which has a switch of its own."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    device.prepare(CPU, precision, threads=1)
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == (precision, 1)
    assert torch.backends.cudnn.allow_tf32 == (precision != "highest")


def test_caches_of_kernels_are_bounded_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    device.bound_kernel_caches()
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert int(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) < 1024
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_more_threads_are_there_than_cores(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """However few of them the process itself takes; counted as by libgomp, which then lets none spin."""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("this kernel does not list threads")
    cores = 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    torch.set_num_threads(threads)
    torch.ones(1 << 20).add_(1)
    before, release = set(os.listdir("/proc/self/task")), threading.Event()
    holder = threading.Thread(target=device._hold_team, args=(release,), daemon=True)

    def count() -> int:
        """One, and of both teams all but the first."""
        return 1 + (threads - 1) + len(set(os.listdir("/proc/self/task")) - before - {str(holder.native_id)})

    holder.start()
    assert waited_for(lambda: count() == threads + cores - 1)
    assert threads == 1 or count() > cores
    assert torch.get_num_threads() == threads
    release.set()
    assert waited_for(lambda: count() == threads)


def waited_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 120
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


class Kernel:
    """A process of two threads, of which one has to wait for its core as long as a test says."""

    def __init__(self) -> None:
        self.times = {"1": (0, 0), "2": (0, 0)}

    def pass_by(self, share: float) -> None:
        self.times = {thread: (ran + 1000, waited) for thread, (ran, waited) in self.times.items()}
        ran, waited = self.times["2"]
        self.times["2"] = (ran, waited + round(2000 * share / (1 - share)))

    def read(self) -> dict[str, tuple[int, int]]:
        return dict(self.times)


def test_threads_do_not_spin_while_something_else_wants_the_cores() -> None:
    kernel = Kernel()
    guard = device.SpinGuard(kernel.read)

    def look(share: float) -> bool:
        kernel.pass_by(share)
        guard.look()
        return guard.holds

    before = threading.active_count()
    assert not look(0.0)
    assert not look(0.08)
    assert look(0.3)
    assert look(0.0), "not at the first quiet look"
    assert threading.active_count() == before + 1
    assert look(0.05)  # not quiet: the count begins again
    assert all(look(0.0) for _ in range(device.SpinGuard.LOOKS - 1))
    assert not look(0.0)
    assert look(0.5)


def test_the_kernel_tells_how_long_threads_ran_and_waited() -> None:
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not count it")
    before = device._thread_times()
    assert sum(range(2_000_000)) > 0
    after = device._thread_times()
    (own,) = (thread for thread in before if thread == str(threading.get_native_id()))
    assert after[own][0] > before[own][0] > 0
