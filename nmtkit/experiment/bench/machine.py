"""What figures were measured on, the clock and the memory, and whether anybody else was using the machine."""

import importlib.metadata
import multiprocessing
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from nmtkit.autotune.found import processor
from nmtkit.core import device
from nmtkit.core.processes import available_cores

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
    """Versions, processor, device, threads, by what a table calls them."""
    found = {
        **{name: _version(name) for name in ("nmtkit", "torch", *PEERS)},
        "python": platform.python_version(),
        "processor": processor(),
        "cores": available_cores(),
        "threads": threads,
        "device": device.describe(place),
    }
    return found | (_cuda_facts(place) if place.type == "cuda" else {})


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


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


def now(place: torch.device) -> float:
    """Seconds on a clock that is read once the device has done all that it was given."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    elif place.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def forget_peak(place: torch.device) -> None:
    """From now on `peak_mib` means the time from now on; a process on a CPU forgets on Linux only."""
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    else:
        device.trim_malloc()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak becomes what there is now


def peak_mib(place: torch.device) -> float:
    """The most memory since `forget_peak`: of tensors on a CUDA device, elsewhere of the whole process."""
    if place.type == "cuda":
        return torch.cuda.max_memory_allocated(place) / (1 << 20)
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        if found:
            return int(found[1]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


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


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The least and the most of some figures, to stand beside their median."""
    return f"{min(values):,.{digits}f}-{max(values):,.{digits}f}"


class Watch:
    """Looks at the pressure before each part of the work, and tells when somebody else is working here."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.seen: dict[str, float | None] = {}
        self._notify = notify

    def look(self, when: str) -> None:
        """Looks once; `when` is what the message calls this moment."""
        now = self.seen[when] = pressure()
        if now is None:
            self._notify(f"{when}: {CPU_PRESSURE} is not there: whether the machine is quiet is not known")
        elif now > QUIET:
            self._notify(
                f"!!! NOT QUIET {when}: processes waited for a core in {now:.0f}% of the last 10 seconds. "
                "The figures are too low and the ratios uncertain."
            )
