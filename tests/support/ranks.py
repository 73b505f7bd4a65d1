"""Real processes that talk over gloo on the CPU."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch

from nmtkit.training.parallel import processes

GIVEN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells a process."""


LOADED_ONCE = ["nmtkit.experiment.stages", "tests.support.begun_runs"]
"""What takes longest to load; each process is a copy of one that has loaded it, and done nothing else."""


def join_as(rank: int, port: int, size: int = 2) -> None:
    """Makes this process one of several."""
    values = (size, rank, rank, "127.0.0.1", port)
    os.environ.update({name: str(value) for name, value in zip(GIVEN, values, strict=True)})
    torch.set_num_threads(1)
    processes.join(torch.device("cpu"))


def start_two(function: Callable[[int, int, str], None], folder: Path) -> None:
    """Calls a function with rank, port and folder in two processes, which end well."""
    assert start(function, folder, 2) == [0, 0]


def start(function: Callable[[int, int, str], None], folder: Path, size: int) -> list[int | None]:
    """Calls a function with rank, port and folder in some processes; returns their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED_ONCE)
    processes = [
        context.Process(target=function, args=(rank, port, str(folder)), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]
