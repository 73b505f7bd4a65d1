"""The processes that torchrun or srun started: who is who, and small messages; alone, every function is a no-op."""

import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from nmtkit.core.errors import NmtkitError

T = TypeVar("T")

_TIMEOUT = timedelta(hours=3)  # the other processes wait while the first one validates
_VISIBLE_WITHIN = 30.0  # seconds; a file that another machine has written is not visible at once


def join(device: torch.device) -> torch.device:
    """Joins the processes that torchrun or srun started, if any; returns the device of this process."""
    if "WORLD_SIZE" not in os.environ:
        os.environ.update(_slurm_environment())
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if device.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not is_initialized():
        # Small facts travel between the CPUs, so that reading them does not wait for the GPU.
        if device.type == "cuda":
            dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_TIMEOUT, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=_TIMEOUT)
    return device


def _slurm_environment() -> dict[str, str]:
    """The variables that torchrun sets, from those of srun; none where srun did not start several processes."""
    given = os.environ
    if int(given.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return {}
    first_node = re.match(r"([^,\[]+)(?:\[(\d+))?", given["SLURM_STEP_NODELIST"])  # node[07-09,12],other
    assert first_node is not None
    return {
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
        "RANK": given["SLURM_PROCID"],
        "LOCAL_RANK": given["SLURM_LOCALID"],
        "MASTER_ADDR": given.get("MASTER_ADDR", "".join(part or "" for part in first_node.groups())),
        "MASTER_PORT": given.get("MASTER_PORT", str(20000 + int(given["SLURM_JOB_ID"]) % 10000)),
    }


def leave() -> None:
    """Leaves what `join` joined."""
    if is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0. Process 0 evaluates, saves and speaks."""
    return dist.get_rank() if is_initialized() else 0


def size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if is_initialized() else 1


def all_reduce_sum(tensor: Tensor) -> None:
    """Replaces a tensor by its sum over all processes."""
    if is_initialized():
        dist.all_reduce(tensor)


def sum_over_ranks(numbers: Sequence[int]) -> list[int]:
    """The sum of each number over all processes; one message for all of them."""
    summed = torch.tensor(numbers)
    if is_initialized():
        dist.all_reduce(summed)
    return summed.tolist()


def max_over_ranks(numbers: Sequence[float]) -> list[float]:
    """The largest of each number in any process; one message for all of them."""
    largest = torch.tensor(numbers, dtype=torch.float64)
    if is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def broadcast_tensors(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by that of process 0."""
    if is_initialized():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def broadcast_object(value: T | None) -> T:
    """The value of process 0 in every process; the others pass None."""
    return cast(T, all_gather_objects(value)[0])


def run_on_rank_zero(function: Callable[[], None], made: Path | None = None) -> None:
    """Process 0 calls `function` while the others wait; where it fails, none goes on.

    `made` is a file or folder that it leaves behind, and every process needs.
    """
    fault: NmtkitError | None = None
    if rank() == 0:
        try:
            function()
        except NmtkitError as raised:
            fault = raised
    failed = broadcast_object(fault is not None)
    if fault is not None:
        raise fault
    if failed:
        raise NmtkitError("process 0 could not begin; see its message")
    if made is None:
        return
    until = time.monotonic() + _VISIBLE_WITHIN
    while not made.exists() and time.monotonic() < until:
        time.sleep(0.5)
    visible = all_gather_objects(made.exists())
    if not all(visible):
        raise NmtkitError(
            f"{made}: process 0 made it, but process {visible.index(False)} does not see it: "
            "put it on a file system that all machines share"
        )


def all_gather_objects(value: T) -> list[T]:
    """The values of all processes, in their order."""
    if not is_initialized():
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def is_initialized() -> bool:
    """Whether this process has joined others."""
    return dist.is_available() and dist.is_initialized()
