"""Processes started by torchrun or srun: their ranks, and small messages between them. A single process sends none."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from nmtkit.core.errors import NmtkitError, TrainingError, shorten

T = TypeVar("T")

_groups: dict[str, dist.ProcessGroup] = {}
"""Groups that contain all processes, with different timeouts: `messages` for small messages; `meeting` to find out
which process is missing; `preparing` to wait for process 0's preparations."""

_TIMEOUT = timedelta(minutes=10)
"""A process that is silent for this long is considered missing."""
_TO_MEET = timedelta(minutes=1)
"""Timeout of the barrier at which the remaining processes find out which process is missing."""
_TO_PREPARE = timedelta(days=7)
"""Maximum time that the other processes wait while process 0 preprocesses."""
_VISIBLE_WITHIN = 30.0
"""Seconds within which a file written on another machine must become visible; network file systems cache folders."""


def join(device: torch.device) -> torch.device:
    """Joins the processes that torchrun or srun started, if any; returns this process's device."""
    if not {"WORLD_SIZE", "RANK"} <= os.environ.keys():  # scripts for Slurm may set only WORLD_SIZE
        os.environ.update(_slurm_environment())
    world_size = os.environ.get("WORLD_SIZE", "1")
    if int(world_size) == 1:
        return device
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise TrainingError(
            f"WORLD_SIZE is {world_size}, but {missing[0]} is not set; start the processes with torchrun or srun, or "
            "unset WORLD_SIZE to train with a single process"
        )
    if device.type == "cuda":
        if device.index:  # automatic selection returns index 0, too
            raise TrainingError(
                f"--device {device}: with more than one process, each process uses a different GPU; remove --device, "
                "and list the GPUs in CUDA_VISIBLE_DEVICES"
            )
        local_rank = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if is_initialized():
        return device
    try:
        _init_process_group(device)
    except RuntimeError as fault:
        address = os.environ.get("MASTER_ADDR", "?") + ":" + os.environ.get("MASTER_PORT", "?")
        raise TrainingError(
            f"process {os.environ['RANK']} of {world_size} cannot find the others at {address} "
            f"({_first_line(fault)}); check that all were started and can reach that address"
        ) from fault
    # Small messages are sent between CPUs, so that reading them does not wait for the GPU.
    _groups["messages"] = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    _groups["meeting"] = dist.new_group(backend="gloo", timeout=3 * _TO_MEET)
    _groups["preparing"] = dist.new_group(backend="gloo", timeout=_TO_PREPARE)
    return device


def _init_process_group(device: torch.device) -> None:
    store, rank, world_size = next(rendezvous("env://", timeout=_TIMEOUT))
    # torchrun keeps the store when it restarts, including the addresses of processes that have exited.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    store = PrefixStore(f"start {restart}", store)
    uses_nccl = False
    if device.type == "cuda":
        # NCCL refuses processes that share a GPU. Slurm does not reveal which GPUs each process sees, so the processes
        # compare the ids of their GPUs. If any two share a GPU, all gradients are summed on the CPU.
        gpu = torch.cuda.get_device_properties(device).uuid
        store.set(f"gpu {rank}", str(gpu))
        gpus = {store.get(f"gpu {other}") for other in range(world_size)}
        uses_nccl = len(gpus) == world_size
    if uses_nccl:
        # If a message times out, NCCL kills the process without an error message. NCCL's timeout is therefore twice as
        # long, so that one of the small messages that follow, sent by gloo, times out first.
        dist.init_process_group(
            "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=2 * _TIMEOUT,
            device_id=device,
        )
    else:
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT
        )


def _slurm_environment() -> dict[str, str]:
    """Returns the variables that torchrun would set, based on srun's; empty if srun started only one process."""
    slurm = os.environ
    if int(slurm.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return {}
    # The first node in "node[07-09,12],other" is node07, and in "one,two" it is one.
    first_node = re.match(r"([^,\[]+)(?:\[(\d+))?", slurm["SLURM_STEP_NODELIST"])
    assert first_node is not None
    prefix, number = first_node.groups(default="")
    port = 20000 + int(slurm["SLURM_JOB_ID"]) % 10000
    return {
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        "RANK": slurm["SLURM_PROCID"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "MASTER_ADDR": slurm.get("MASTER_ADDR", prefix + number),
        "MASTER_PORT": slurm.get("MASTER_PORT", str(port)),
    }


def leave() -> None:
    """Leaves the group of processes that `join` joined."""
    if is_initialized():
        _groups.clear()
        dist.destroy_process_group()


def rank() -> int:
    """Returns this process's number, from 0. Only process 0 saves checkpoints and prints."""
    return dist.get_rank() if is_initialized() else 0


def size() -> int:
    """Returns the number of processes that train together."""
    return dist.get_world_size() if is_initialized() else 1


def all_reduce_sum(tensor: Tensor) -> None:
    """Replaces a tensor with its sum over all processes."""
    _all_reduce(tensor)


def sum_over_ranks(numbers: Sequence[int]) -> list[int]:
    """Returns the sum of each number over all processes, using a single message."""
    totals = torch.tensor(numbers)  # (n,)
    _all_reduce(totals, group=_groups.get("messages"))
    return totals.tolist()


def max_over_ranks(numbers: Sequence[float]) -> list[float]:
    """Returns the maximum of each number over all processes, using a single message."""
    maxima = torch.tensor(numbers, dtype=torch.float64)  # (n,)
    _all_reduce(maxima, op=dist.ReduceOp.MAX, group=_groups.get("messages"))
    return maxima.tolist()


def _all_reduce(
    tensor: Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    if is_initialized():
        with name_missing_process():
            dist.all_reduce(tensor, op=op, group=group)


def broadcast_tensors(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor with process 0's."""
    if is_initialized():
        with name_missing_process():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


def broadcast_object(value: T | None) -> T:
    """Returns process 0's value in every process; the others pass None."""
    return cast(T, all_gather_objects(value)[0])


def run_on_rank_zero(function: Callable[[], None], folder: Path | None = None) -> None:
    """Calls `function` in process 0 while the others wait; see `events_of_rank_zero`."""

    def events() -> Iterator[None]:
        function()
        yield

    for _ in events_of_rank_zero(events(), folder):
        continue


def events_of_rank_zero(events: Iterable[T], folder: Path | None = None) -> Iterator[T]:
    """Yields `events` in process 0 while the others wait, for days if necessary.

    If process 0 fails, all processes stop. `folder` is a folder that process 0 creates and every process needs; an
    NmtkitError is raised if a process does not see it.
    """
    fault: NmtkitError | None = None
    if rank() == 0:
        try:
            yield from events
        except NmtkitError as error:
            fault = error
    if is_initialized():
        with name_missing_process():
            dist.barrier(_groups.get("preparing"))
    failed = broadcast_object(fault is not None)
    if fault is not None:
        raise fault
    if failed:
        raise NmtkitError("process 0 failed to start; see its error message")
    if folder is not None and size() > 1:
        _require_shared_folder(folder)


def _require_shared_folder(folder: Path) -> None:
    """Checks that all processes see a new file that process 0 creates in the folder; removes the file afterwards."""
    name = f".seen-{time.time_ns()}"
    # Created before any other process looks, because network file systems remember for a while that a file is missing.
    if rank() == 0:
        (folder / name).touch()
    mark = folder / broadcast_object(name)
    deadline = time.monotonic() + _VISIBLE_WITHIN
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    visible = all_gather_objects(mark.exists())
    if rank() == 0:
        mark.unlink()
    if not all(visible):
        raise NmtkitError(
            f"{folder}: process 0 created this folder, but process {visible.index(False)} does not see it; "
            "put it on a file system that all machines share"
        )


def all_gather_objects(value: T) -> list[T]:
    """Returns the values of all processes, ordered by rank."""
    if not is_initialized():
        return [value]
    values: list[Any] = [None] * size()
    with name_missing_process():
        dist.all_gather_object(values, value, group=_groups.get("messages"))
    return values


def gather_dealt(items: Sequence[T]) -> list[T]:
    """Returns all items in order, given `all_items[rank() :: size()]` in each process."""
    items_by_rank = all_gather_objects(list(items))
    gathered: list[T] = []
    # Each turn has an item from each process. In the last turn, processes without an item are represented by None.
    for turn in zip_longest(*items_by_rank):
        gathered += [item for item in turn if item is not None]
    return gathered


@contextmanager
def name_missing_process() -> Iterator[None]:
    """Raises a TrainingError that names the missing process if a message sent inside the context fails or times out."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as fault:
        raise TrainingError(
            f"{_who_is_missing(fault)}, so training cannot continue; the error messages of the processes may show the "
            "cause. Resume from the last saved state, with any number of processes (torch: "
            f"{shorten(_first_line(fault))})"
        ) from fault


def _who_is_missing(fault: RuntimeError) -> str:
    if "imed out" in str(fault):
        return _who_is_late()
    # Sending fails if the receiver has exited; otherwise it succeeds, even if the receiver never reads the message. A
    # process that notices a missing peer also exits and would then look missing itself, so the first process to get
    # here stores its answer for all of them.
    time.sleep(0.5)
    ended: list[int] = []
    store = dist.distributed_c10d._get_default_store()
    for other in range(size()):
        try:
            if other != rank():
                dist.isend(torch.zeros(1), other, group=_groups.get("meeting"))
        except RuntimeError:
            ended.append(other)
    if 0 not in ended:  # without torchrun, process 0 hosts the store
        first_answer = store.compare_set("ended", "", json.dumps(ended))
        ended = json.loads(first_answer)
    if not ended:
        return "a message between processes failed"
    return f"{_process_names(ended)} exited"


def _who_is_late() -> str:
    late = f"did not answer within {_TIMEOUT / timedelta(minutes=1):g} minutes"
    try:
        # Process 0 gets an error with the ranks that do not arrive; the others get one if process 0 does not arrive.
        dist.monitored_barrier(_groups.get("meeting"), _TO_MEET, wait_all_ranks=True)
    except RuntimeError as absence:
        message = str(absence)
        failed_ranks = re.search(r"Ranks? ([\d, ]+) failed", message)
        if failed_ranks:
            ranks = [int(number) for number in failed_ranks[1].split(",")]
            return f"{_process_names(ranks)} {late}"
        if "imed out" in message:
            return f"process 0 {late}"
        return f"a process {late} (process 0's error message says which)"
    return f"all processes are running, but one {late}"


def _first_line(fault: RuntimeError) -> str:
    """Returns the first line of a torch message, without a leading source location such as `[file.cpp:123] `."""
    first_line = str(fault).splitlines()[0]
    return re.sub(r"^\[[^]]*] ", "", first_line)


def _process_names(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"processes {numbers}" if len(ranks) > 1 else f"process {numbers}"


def is_initialized() -> bool:
    """Returns whether this process has joined a group of processes."""
    return dist.is_available() and dist.is_initialized()
