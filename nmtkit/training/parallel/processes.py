"""The processes that torchrun or srun started: who is who, and small messages; alone, every function is a no-op."""

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
"""For small messages; for the meeting in which it is found who is missing; and for what the first process prepares."""

_TIMEOUT = timedelta(minutes=10)  # a process that sends no message for so long is taken to be missing
_TO_MEET = timedelta(minutes=1)  # for all who know that one is missing
_TO_PREPARE = timedelta(days=7)  # the others wait while the first one preprocesses
_VISIBLE_WITHIN = 30.0  # seconds; a file that another machine has written is not visible at once


def join(device: torch.device) -> torch.device:
    """Joins the processes that torchrun or srun started, if any; returns the device of this process."""
    if not {"WORLD_SIZE", "RANK"} <= os.environ.keys():  # a script of Slurm may set the first, and not the second
        os.environ.update(_slurm_environment())
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise TrainingError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {missing[0]} is not set: start the processes by torchrun "
            "or srun, or unset WORLD_SIZE to train with one alone"
        )
    if device.type == "cuda":
        if device.index:  # cuda:0 is the first one that there is, too
            raise TrainingError(
                f"--device {device}: each of several processes takes a GPU of its own; leave --device out, and name "
                "the GPUs by CUDA_VISIBLE_DEVICES"
            )
        local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not is_initialized():
        # Small facts travel between the CPUs, so that reading them does not wait for the GPU. NCCL ends a process
        # whose message does not come without a word, so the small ones, which come after it, must be missed before.
        try:
            store, number, count = next(rendezvous("env://", timeout=_TIMEOUT))
            # Over its restarts torchrun keeps one store, which has the addresses of processes that have ended.
            store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
            on_gpu: dict[str, Any] = {"timeout": 2 * _TIMEOUT, "device_id": device} if device.type == "cuda" else {}
            if on_gpu:  # which of its GPUs each sees, and whether it has one alone, no variable of Slurm says
                store.set(f"gpu {number}", str(torch.cuda.get_device_properties(device).uuid))
                if len({store.get(f"gpu {other}") for other in range(count)}) < count:
                    on_gpu = {}  # some share a GPU, which NCCL refuses: their gradients go by the CPU
            kind, given = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", {"timeout": _TIMEOUT, **on_gpu}
            dist.init_process_group(kind, store=store, rank=number, world_size=count, **given)
        except RuntimeError as fault:
            place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
            raise TrainingError(
                f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} does not find the others at {place} "
                f"({_first_line(fault)}); see whether all were started, and can reach that address"
            ) from fault
        waits = {"messages": _TIMEOUT, "meeting": 3 * _TO_MEET, "preparing": _TO_PREPARE}
        _groups.update({name: dist.new_group(backend="gloo", timeout=most) for name, most in waits.items()})
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
        _groups.clear()
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0. Process 0 evaluates, saves and speaks."""
    return dist.get_rank() if is_initialized() else 0


def size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if is_initialized() else 1


def all_reduce_sum(tensor: Tensor) -> None:
    """Replaces a tensor by its sum over all processes."""
    _all_reduce(tensor)


def sum_over_ranks(numbers: Sequence[int]) -> list[int]:
    """The sum of each number over all processes; one message for all of them."""
    return _all_reduce(torch.tensor(numbers), group=_groups.get("messages")).tolist()


def max_over_ranks(numbers: Sequence[float]) -> list[float]:
    """The largest of each number in any process; one message for all of them."""
    largest = torch.tensor(numbers, dtype=torch.float64)
    return _all_reduce(largest, op=dist.ReduceOp.MAX, group=_groups.get("messages")).tolist()


def _all_reduce(
    tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None
) -> Tensor:
    if is_initialized():
        with naming_who_is_missing():
            dist.all_reduce(tensor, op=op, group=group)
    return tensor


def broadcast_tensors(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by that of process 0."""
    if is_initialized():
        with naming_who_is_missing():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


def broadcast_object(value: T | None) -> T:
    """The value of process 0 in every process; the others pass None."""
    return cast(T, all_gather_objects(value)[0])


def run_on_rank_zero(function: Callable[[], None], made: Path | None = None) -> None:
    """Process 0 calls `function` while the others wait; see `events_of_rank_zero`."""

    def events() -> Iterator[None]:
        function()
        yield

    for _ in events_of_rank_zero(events(), made):
        continue


def events_of_rank_zero(events: Iterable[T], made: Path | None = None) -> Iterator[T]:
    """Process 0 yields `events` while the others wait, for days if need be; where it fails, none goes on.

    `made` is a folder that it leaves behind, and every process needs: the same one, and not its own of an earlier run.
    """
    fault: NmtkitError | None = None
    if rank() == 0:
        try:
            yield from events
        except NmtkitError as raised:
            fault = raised
    if is_initialized():
        with naming_who_is_missing():
            dist.barrier(_groups.get("preparing"))
    failed = broadcast_object(fault is not None)
    if fault is not None:
        raise fault
    if failed:
        raise NmtkitError("process 0 could not begin; see its message")
    if made is not None and size() > 1:
        _require_shared_folder(made)


def _require_shared_folder(made: Path) -> None:
    """Looks in all processes for a new file that the first one makes in a folder, and removes."""
    name = f".seen-{time.time_ns()}"
    if rank() == 0:  # before anybody looks, for other machines remember for a while what is not there
        (made / name).touch()
    mark = made / broadcast_object(name)
    until = time.monotonic() + _VISIBLE_WITHIN
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.5)
    visible = all_gather_objects(mark.exists())
    if rank() == 0:
        mark.unlink()
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
    with naming_who_is_missing():
        dist.all_gather_object(values, value, group=_groups.get("messages"))
    return values


def gather_dealt(own: Sequence[T]) -> list[T]:
    """All items in their order, of which each process gives those that it was dealt: `items[rank() :: size()]`."""
    return [one for turn in zip_longest(*all_gather_objects([*own])) for one in turn if one is not None]


@contextmanager
def naming_who_is_missing() -> Iterator[None]:
    """Inside, a message that does not come raises a TrainingError that names the process that should have sent it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as fault:
        raise TrainingError(
            f"{_who_is_missing(fault)}, and the others cannot go on; its own message may say why. The last saved state "
            f"can be resumed, with as many processes or another number (torch: {shorten(_first_line(fault))})"
        ) from fault


def _who_is_missing(fault: RuntimeError) -> str:
    if "imed out" not in str(fault):
        # To one who has ended nothing can be sent; to others it can, and they need not take it. They end, too, once
        # they know, so that the first ones leave word.
        time.sleep(0.5)
        ended: list[int] = []
        store = dist.distributed_c10d._get_default_store()
        for other in range(size()):
            try:
                if other != rank():
                    dist.isend(torch.zeros(1), other, group=_groups.get("meeting"))
            except RuntimeError:
                ended.append(other)
        if 0 not in ended:  # it may have ended with process 0, where it is not torchrun's
            ended = json.loads(store.compare_set("ended", "", json.dumps(ended)))
        return f"{_named(ended)} ended" if ended else "a message between processes failed"
    late = f"did not answer within {_TIMEOUT / timedelta(minutes=1):g} minutes"
    try:
        dist.monitored_barrier(_groups.get("meeting"), _TO_MEET, wait_all_ranks=True)
    except RuntimeError as absence:
        if found := re.search(r"Ranks? ([\d, ]+) failed", str(absence)):
            return f"{_named([int(number) for number in found[1].split(',')])} {late}"
        return f"process 0 {late}" if "imed out" in str(absence) else f"a process {late}: process 0 says which"
    return f"a message {late}"


def _first_line(fault: RuntimeError) -> str:
    return re.sub(r"^\[[^]]*] ", "", str(fault).splitlines()[0])  # without the place in a program


def _named(numbers: Sequence[int]) -> str:
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def is_initialized() -> bool:
    """Whether this process has joined others."""
    return dist.is_available() and dist.is_initialized()
