"""Caches the fastest settings measured on this machine, so that identical workloads run with identical settings.

Each workload has a small file in `nmtkit/settings` under $XDG_CACHE_HOME or ~/.cache. The key of a workload consists of
everything that determines the speed: the machine and its environment variables, torch, the model's shape, the batch's
shape, and the user's options.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from nmtkit.core.device import cpu_threads, describe
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.files import atomic_path, user_cache
from nmtkit.core.formats import parse_json
from nmtkit.core.machine import processor

KEY_VARIABLES = (
    *(
        "ATEN_CPU_CAPABILITY",
        "DNNL_MAX_CPU_ISA",
        "GOMP_SPINCOUNT",
        "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS",
    ),
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA"),
)
"""Environment variables that affect the speed; they are part of the key."""

AnyConfig = TypeVar("AnyConfig")


@dataclass(frozen=True)
class TuningResult(Generic[AnyConfig]):
    """The fastest configuration for a workload, and the measured speeds."""

    config: AnyConfig
    """The fastest configuration, a dataclass of plain values."""
    speeds: dict[str, float] = field(default_factory=dict)
    """Target tokens per second of each measured configuration, or 0 if it was too slow or ran out of memory. Empty if
    nothing was measured.
    """
    kept: bool = False
    """Whether the result comes from an earlier measurement."""

    @property
    def speed(self) -> float | None:
        """Speed of the chosen configuration, if measured."""
        return self.speeds.get(str(self.config))

    def __str__(self) -> str:
        return (
            f"fastest training settings: {self.config} ({self.speed or 0:,.0f} tokens/s; `nmtkit "
            "tune` also shows the others)"
        )


def cache_folder() -> Path:
    """Returns the folder of the cached results."""
    return user_cache() / "settings"


def machine(device: torch.device) -> dict[str, Any]:
    """Returns the properties that determine this machine's speed: CPU, cores, variables, device and so on."""
    facts: dict[str, Any] = {"processor": processor(), "threads": cpu_threads()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    if device.type != "cpu":
        facts["device"] = describe(device)
    for name in KEY_VARIABLES:
        if name in os.environ:
            facts[name] = os.environ[name]
    return facts


def get(key: Mapping[str, Any], config: Callable[..., AnyConfig]) -> TuningResult[AnyConfig] | None:
    """Returns the result that `put` stored under this key, or None if there is no valid file.

    `config` creates the configuration from its stored values.
    """
    with suppress(TypeError, KeyError):
        values = (_read(_path(key)) or {})["result"]
        return TuningResult(**{**values, "config": config(**values["config"]), "kept": True})
    return None


def put(key: Mapping[str, Any], result: TuningResult[Any]) -> bool:
    """Stores a result, replacing an earlier one; returns False if it cannot be written."""
    with (
        suppress(OSError, NmtkitError),
        atomic_path(_path(key), suffix=f".{os.getpid()}") as beside,
    ):
        beside.write_text(
            json.dumps({"key": key, "result": asdict(result)}, indent=1), encoding="utf-8"
        )
        return True
    return False


def entries() -> list[dict[str, Any]]:
    """Returns all measured results, each with its `key` and `result`."""
    found = []
    with suppress(OSError):
        for path in sorted(cache_folder().glob("*.json")):
            entry = _read(path)
            if entry is not None:
                found.append(entry)
    return found


def clear() -> int:
    """Deletes all results and returns their number."""
    count = len(entries())
    for path in cache_folder().glob("*.json"):
        path.unlink(missing_ok=True)
    return count


def _path(key: Mapping[str, Any]) -> Path:
    text = json.dumps(key, sort_keys=True).encode("utf-8")
    return cache_folder() / f"{hashlib.sha256(text).hexdigest()[:24]}.json"


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, DataError, KeyError, TypeError):
        entry = parse_json(path.read_bytes(), path.name)
        return (
            entry if isinstance(entry["key"], dict) and isinstance(entry["result"], dict) else None
        )
    return None
