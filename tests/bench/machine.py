"""What figures were measured on, CPU time and memory of workers, and whether another program was using the machine."""

import multiprocessing
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from nmtkit.experiment.bench import library_version, machine_facts

CPU_PRESSURE = Path("/proc/pressure/cpu")
QUIET = 5.0
"""Per cent of the last ten seconds in which some process waited for a core; above it the machine is not quiet."""
PEERS = ("transformers", "ctranslate2")
"""Libraries of other engines, whose versions are named."""


def pressure() -> float | None:
    """The average of the last ten seconds in per cent; None where the kernel does not say."""
    try:
        words = CPU_PRESSURE.read_text(encoding="ascii").split()
    except OSError:
        return None
    return float(words[1].removeprefix("avg10="))


def facts(threads: int, place: torch.device) -> dict[str, object]:
    """`machine_facts`, with the versions of other engines and what a GPU is allowed to do."""
    found = machine_facts(threads, place) | {name: library_version(name) for name in PEERS}
    return found | (_cuda_facts(place) if place.type == "cuda" else {})


def _cuda_facts(place: torch.device) -> dict[str, object]:
    about = torch.cuda.get_device_properties(place)
    free, whole = torch.cuda.mem_get_info(place)
    found: dict[str, object] = {
        "compute capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "device memory, MiB": whole >> 20,
        "of it taken before": whole - free >> 20,
        "CUDA of torch": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }
    asked = ["driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu"]
    program = shutil.which("nvidia-smi")
    if program is None:
        return found | {"clocks": "not known: there is no nvidia-smi"}
    chosen = f"--id=GPU-{about.uuid}" if hasattr(about, "uuid") else f"--id={place.index or 0}"
    words = [program, chosen, f"--query-gpu={','.join(asked)}", "--format=csv,noheader"]
    told = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    if told.returncode:
        return found | {"clocks": f"not known: {told.stdout.strip() or told.stderr.strip()}"}
    return found | dict(zip(asked, told.stdout.strip().split(", "), strict=False))


def cpu_seconds() -> float:
    """What this process has computed, and its workers, those that are no more and those that are there."""
    return sum(os.times()[:4]) + sum(map(_cpu_seconds_of, multiprocessing.active_children()))


def _cpu_seconds_of(worker: BaseProcess) -> float:
    """What a process has computed; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{worker.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of_workers_mib() -> float:
    """What the workers of this process have had of their own since they were forked, at most."""
    return sum(map(_own_mib, multiprocessing.active_children()))


def _own_mib(worker: BaseProcess) -> float:
    """What a process has for itself, of which it gives nothing back while it works; 0 where the system does not say."""
    try:
        found = Path(f"/proc/{worker.pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return sum(map(int, re.findall(r"^Private_\w+:\s+(\d+) kB", found, re.MULTILINE))) / 1024


class Watch:
    """Looks at the pressure before each part of the work, and tells when somebody else is working here."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.seen: dict[str, float | None] = {}
        self._notify = notify

    def look(self, when: str) -> None:
        """Looks once; `when` is what the message calls this moment."""
        share = self.seen[when] = pressure()
        if share is None:
            self._notify(f"{when}: {CPU_PRESSURE} is not there: whether the machine is quiet is not known")
        elif share > QUIET:
            self._notify(
                f"!!! NOT QUIET {when}: processes waited for a core in {share:.0f}% of the last 10 seconds. "
                "The figures are too low and the ratios uncertain."
            )
