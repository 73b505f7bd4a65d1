"""What the figures were measured on, and whether anybody else was using it."""

import os
import platform
from pathlib import Path

import torch

from nmtkit import console, device

CPU_PRESSURE = Path("/proc/pressure/cpu")
QUIET = 5.0
"""Per cent of the last ten seconds in which some process waited for a core; above it the machine is not quiet."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pressure() -> float | None:
    """The average of the last ten seconds in per cent; None where the kernel does not say."""
    try:
        words = CPU_PRESSURE.read_text(encoding="ascii").split()
    except OSError:
        return None
    return float(words[1].removeprefix("avg10="))


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def facts(threads: int) -> dict[str, object]:
    return {
        "processor": processor(),
        "cores": cores(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "freed memory kept": device.keep_memory_in_heap(),
    }


class Watch:
    """Looks at the pressure before each part of the work, and shouts when somebody else is working here."""

    def __init__(self) -> None:
        self.seen: dict[str, float | None] = {}

    def look(self, when: str) -> None:
        now = self.seen[when] = pressure()
        if now is None:
            console.say(f"{when}: {CPU_PRESSURE} is not there: whether the machine is quiet is not known", stderr=True)
        elif now > QUIET:
            console.say(
                f"!!! NOT QUIET {when}: processes waited for a core in {now:.0f}% of the last 10 seconds. "
                "The figures are too low and the ratios uncertain.",
                stderr=True,
            )
