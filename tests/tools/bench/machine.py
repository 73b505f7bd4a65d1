"""The machine that figures were measured on: its parts, CPU time and memory of workers, other programs that run."""

import multiprocessing
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from nmtkit.core.machine import library_version, machine_facts

CPU_PRESSURE = Path("/proc/pressure/cpu")
QUIET = 5.0
"""Per cent of the last ten seconds in which some process waited for a core; above it the machine is not quiet."""
EXTERNAL_ENGINES = ("transformers", "ctranslate2")
CLOCKS = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.limit",
    "temperature.gpu",
)
"""What `nvidia-smi` knows of a GPU."""


def facts(threads: int, place: torch.device) -> dict[str, object]:
    """`machine_facts`, with the versions of other engines and what a GPU is allowed to do."""
    known = machine_facts(threads, place) | {
        name: library_version(name) for name in EXTERNAL_ENGINES
    }
    if place.type != "cuda":
        return known
    about = torch.cuda.get_device_properties(place)
    free, total = torch.cuda.mem_get_info(place)
    known |= {
        "compute capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "device memory, MiB": total >> 20,
        "of it taken before": total - free >> 20,
        "CUDA of torch": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
    }
    program = shutil.which("nvidia-smi")
    if program is None:
        return known | {"clocks": "unknown: there is no nvidia-smi"}
    gpu = f"--id=GPU-{about.uuid}" if hasattr(about, "uuid") else f"--id={place.index or 0}"
    words = [program, gpu, f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        return known | {"clocks": f"unknown: {done.stdout.strip() or done.stderr.strip()}"}
    return known | dict(zip(CLOCKS, done.stdout.strip().split(", "), strict=False))


def cpu_seconds() -> float:
    """CPU time of this process and of its workers, those that have ended and those that run."""
    ticks = (sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in _of_workers("stat"))
    return sum(os.times()[:4]) + sum(ticks) / os.sysconf("SC_CLK_TCK")


def peak_of_workers_mib() -> float:
    """Memory that the workers of this process have for themselves; they give nothing back while they work."""
    private = (
        re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.MULTILINE)
        for text in _of_workers("smaps_rollup")
    )
    return sum(sum(map(int, sizes)) for sizes in private) / 1024


def _of_workers(file: str) -> list[str]:
    """A file of `/proc` for every worker, where the system has it."""
    texts = []
    for worker in multiprocessing.active_children():
        with suppress(OSError):
            texts.append(Path(f"/proc/{worker.pid}/{file}").read_text(encoding="ascii"))
    return texts


def look_at_pressure(when: str, notify: Callable[[str], None]) -> float | None:
    """How busy the machine is, in per cent; warns where other programs run."""
    try:
        share = float(CPU_PRESSURE.read_text(encoding="ascii").split()[1].removeprefix("avg10="))
    except OSError:  # not every kernel says it
        notify(f"{when}: {CPU_PRESSURE} is not there: whether the machine is quiet is not known")
        return None
    if share > QUIET:
        notify(
            f"!!! NOT QUIET {when}: processes waited for a core in {share:.0f}% of the last 10 seconds. "
            "The figures are too low and the ratios uncertain."
        )
    return share
