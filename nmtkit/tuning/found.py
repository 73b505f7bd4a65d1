"""What was once measured on this machine, kept until it is cleared: the same work is done in the same way again.

One small file for each work, in `nmtkit/settings` of $XDG_CACHE_HOME, else of ~/.cache. A work is known by all that
decides how quick it is: the machine with its variables, torch, the model's shape, the batch's shape, what was asked.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nmtkit.device import cpu_threads, describe

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "GOMP_SPINCOUNT",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "ONEDNN_MAX_CPU_ISA",
)
"""Variables that make another machine of this one."""


def folder() -> Path:
    """Where the files are."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "nmtkit" / "settings"


def machine(device: torch.device) -> dict[str, Any]:
    """This machine as far as it decides what is quick on the device: processor, cores, instructions, variables."""
    facts: dict[str, Any] = {"processor": _processor(), "threads": cpu_threads()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    if device.type != "cpu":
        facts["device"] = describe(device)
    return facts | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _processor() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor() or platform.machine()


def _path(work: Mapping[str, Any]) -> Path:
    key = json.dumps(work, sort_keys=True).encode("utf-8")
    return folder() / f"{hashlib.sha256(key).hexdigest()[:24]}.json"


def look_up(work: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `keep` was given for this work; None where nothing was found yet, or the file is damaged."""
    entry = _read(_path(work))
    return entry["found"] if entry is not None and entry["work"] == json.loads(json.dumps(work)) else None


def keep(work: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Keeps what was found for a work, over what was found before; whether it could be written.

    Where no file can be written the work is measured again next time, which is no reason to stop it.
    """
    path = _path(work)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"work": work, "found": found}, indent=1), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        return False
    return True


def everything() -> list[dict[str, Any]]:
    """All that is kept, the newest first: `work` and `found` of each."""
    try:
        paths = sorted(folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [entry for path in paths if (entry := _read(path)) is not None]


def clear() -> int:
    """Forgets everything; how many works that were."""
    paths = list(folder().glob("*.json"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return entry if isinstance(entry["work"], dict) and isinstance(entry["found"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
