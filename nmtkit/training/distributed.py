"""Several processes as one training, under torchrun or srun; in a single process every function here is a no-op.

Each process adds up the gradients of its own batches, divided by the number of target tokens of all processes. The sum
over the processes is the gradient that a single process computes from the same batches.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmtkit.core.errors import NmtkitError

T = TypeVar("T")

_TIMEOUT = timedelta(hours=3)  # the other processes wait while the first one validates
_BUCKET_BYTES = 25 << 20  # of gradients in one message; a larger one has its own
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
    if not _is_initialized():
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
    if _is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0. Process 0 evaluates, saves and speaks."""
    return dist.get_rank() if _is_initialized() else 0


def size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _is_initialized() else 1


class GradientSum:
    """Replaces each gradient of an update by its sum over all processes, while backward still computes others.

    Messages have the gradients of several parameters, the last ones first, as backward comes to them. All processes
    send the same messages in the same order, for each waits until those before it are sent. (What torch has for it,
    DistributedDataParallel, takes an update to be one forward and one backward pass.)
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._buckets: list[list[nn.Parameter]] = []
        room = 0
        for parameter in reversed(parameters if _is_initialized() else []):
            room -= parameter.nbytes
            if room < 0:
                self._buckets.append([])
                room = _BUCKET_BYTES - parameter.nbytes
            self._buckets[-1].append(parameter)
        self._sent: list[tuple[Tensor, dist.Work | None]] = []

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Backward in this block is the last: the gradient of each parameter that it reaches is whole from there on.

        If it fails all may be done again: what was sent was whole, and stays so.
        """
        missing = [len(bucket) for bucket in self._buckets]

        def is_whole(number: int, _: Tensor) -> None:
            missing[number] -= 1
            while len(self._sent) < len(self._buckets) and not missing[len(self._sent)]:
                self._send()

        with ExitStack() as hooks:
            for number, bucket in enumerate(self._buckets):
                for one in bucket:
                    look = partial(is_whole, number)
                    hook = one.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]  # as torch has it
                    hooks.callback(hook.remove)
            yield

    def finish(self) -> None:
        """Sends the others, and waits for all."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for bucket, (flat, message) in zip(self._buckets, self._sent, strict=True):
            if message is not None:
                message.wait()
            for parameter, part in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
                parameter.grad = part.view_as(parameter)

    def _send(self) -> None:
        # What this process did not use another may have used.
        used = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._buckets[len(self._sent)]]
        flat = used[0].flatten() if len(used) == 1 else torch.cat([gradient.flatten() for gradient in used])
        self._sent.append((flat, dist.all_reduce(flat, async_op=True)))


def all_reduce_sum(tensor: Tensor) -> None:
    """Replaces a tensor by its sum over all processes."""
    if _is_initialized():
        dist.all_reduce(tensor)


def sum_over_ranks(numbers: Sequence[int]) -> list[int]:
    """The sum of each number over all processes; one message for all of them."""
    summed = torch.tensor(numbers)
    if _is_initialized():
        dist.all_reduce(summed)
    return summed.tolist()


def max_over_ranks(numbers: Sequence[float]) -> list[float]:
    """The largest of each number in any process; one message for all of them."""
    largest = torch.tensor(numbers, dtype=torch.float64)
    if _is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def broadcast_tensors(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by that of process 0."""
    if _is_initialized():
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
    if not _is_initialized():
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()
