"""Facts about this machine: processor, device and library versions."""

import importlib.metadata
import platform
from contextlib import suppress

import torch

from nmtkit.core.device import describe
from nmtkit.core.processes import available_cores


def processor() -> str:
    """Returns the name of the processor."""
    with (
        suppress(OSError, StopIteration),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file,
    ):
        return next(
            line.partition(":")[2].strip() for line in file if line.startswith("model name")
        )
    return platform.processor() or platform.machine()


def machine_facts(threads: int, device: torch.device) -> dict[str, object]:
    """Returns versions, processor, device and threads, by name."""
    return {
        "nmtkit": library_version("nmtkit"),
        "torch": str(
            torch.__version__
        ),  # includes the build, as in 2.13.0+cu130, which the version of the installed package may lack
        "python": platform.python_version(),
        "processor": processor(),
        "cores": available_cores(),
        "threads": threads,
        "device": describe(device),
    }


def library_version(name: str) -> str:
    """Returns the version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
