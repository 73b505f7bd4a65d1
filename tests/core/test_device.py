"""Choosing a device; how threads wait."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nmtkit.core import device
from nmtkit.core.errors import NmtkitError
from nmtkit.core.openmp import WAITING

CPU = torch.device("cpu")


def test_auto_takes_cuda_where_there_is_one_and_there_is_always_a_cpu() -> None:
    assert device.choose("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device.choose("cpu") == CPU
    assert device.available()[-1] == "cpu"


@pytest.mark.parametrize("name", ["cuda:77", "warp", "cpu:x", ""])
def test_what_is_not_there_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(NmtkitError, match=r"no such device.*this machine has:.*cpu"):
        device.choose(name)


@pytest.mark.parametrize(("own", "left"), [(1, 1), (2, 2), (3, 2)])
def test_threads_that_a_program_has_set_stay(
    monkeypatch: pytest.MonkeyPatch, own: int, left: int
) -> None:
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


@pytest.mark.parametrize("set_by_user", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_importing_nmtkit_limits_spinning_unless_the_user_chose(set_by_user: str) -> None:
    """In a process of its own, since a library reads these variables while it is loaded."""
    program = "import nmtkit, os; print(*[os.environ.get(name) for name in ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')])"
    empty = {name: value for name, value in os.environ.items() if name not in WAITING}

    def seen(environment: dict[str, str]) -> list[str]:
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    assert seen(empty) == [*WAITING.values()]
    chosen = seen(empty | {set_by_user: "7"})
    assert sorted(chosen) == ["7", "None"]


def test_few_lines_use_one_thread_unless_a_number_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    device.prepare(CPU)
    with device.threads_for(device.FEW_LINES - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with device.threads_for(device.FEW_LINES):
        assert torch.get_num_threads() == 2
    device.prepare(CPU, threads=3)
    with device.threads_for(1):
        assert torch.get_num_threads() == 3
    device.prepare(CPU)


def test_threads_that_limit_torch_at_once_leave_its_number_to_new_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    first_is_inside, second_is_inside, first_has_left = (threading.Event() for _ in range(3))

    def first() -> None:
        with device.one_thread():
            first_is_inside.set()
            second_is_inside.wait(10)
        first_has_left.set()

    def second() -> None:
        first_is_inside.wait(10)
        with device.one_thread():
            second_is_inside.set()
            first_has_left.wait(10)

    try:
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(first), pool.submit(second)]:
                done.result()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3
        with device.one_thread(), ThreadPoolExecutor(1) as pool:
            assert pool.submit(device.threads_without_limits).result() == 3
    finally:
        torch.set_num_threads(before)
