"""Several processes as one training, under torchrun; in a single process every function here is a no-op.

Each process adds up the gradients of its own batches. They are divided by the number of target tokens that all of them
have together and then added up, so that an update is the one that a single process makes of the same batches.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nmtkit.errors import NmtkitError

T = TypeVar("T")

_PATIENCE = timedelta(hours=3)  # the other processes wait here while the first one validates


def join(device: torch.device) -> torch.device:
    """Joins the processes that torchrun started; does nothing where it started none, or where they are joined.

    Args:
        device: the device that was chosen.

    Returns:
        This process's device: the same, or the GPU of its local rank.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not _joined():
        # Small facts travel between the CPUs, so that reading them does not wait for the GPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    return device


def leave() -> None:
    """Leaves what `join` joined."""
    if _joined():
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0. Process 0 evaluates, saves and speaks."""
    return dist.get_rank() if _joined() else 0


def size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _joined() else 1


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by its sum over all processes; one message for all of them."""
    if not _joined():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def total(number: int) -> int:
    """The sum of this number over all processes."""
    if not _joined():
        return number
    summed = torch.tensor(number)
    dist.all_reduce(summed)
    return int(summed)


def wait_for_all() -> None:
    """Returns once every process has come here."""
    total(0)


def send_from_first(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by that of process 0."""
    if _joined():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def largest(numbers: Sequence[float]) -> list[float]:
    """Replaces each number by the largest that any process gives; one message for all of them."""
    if not _joined():
        return list(numbers)
    found = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return [float(number) for number in found]


def said_by_first(value: T | None) -> T:
    """The value that process 0 gives, in every process; the others give None."""
    said: list[Any] = [value]
    if _joined():
        dist.broadcast_object_list(said, 0)
    answer: T = said[0]
    return answer


def by_first(work: Callable[[], None]) -> None:
    """Process 0 does the work while the others wait; where it fails, none goes on.

    Raises:
        NmtkitError: as `work`; in the other processes, that process 0 failed.
    """
    fault: NmtkitError | None = None
    if rank() == 0:
        try:
            work()
        except NmtkitError as found:
            fault = found
    failed = said_by_first(fault is not None)
    if fault is not None:
        raise fault
    if failed:
        raise NmtkitError("process 0 could not begin; see its message")


def gathered(value: T) -> list[T]:
    """The values of all processes, in their order."""
    if not _joined():
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()
