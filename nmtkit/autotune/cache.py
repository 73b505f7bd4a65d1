"""Settings that were measured on this machine, kept until they are cleared: the same workload runs in the same way.

There is a small file for each workload, in `nmtkit/settings` of $XDG_CACHE_HOME, else of ~/.cache. Its key is all that
decides how fast it is: the machine with its variables, torch, the model's shape, the batch's shape, the user's options.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from nmtkit.autotune.timing import GIVE_UP_RATIO
from nmtkit.core.device import cpu_threads, describe
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.files import atomic_path
from nmtkit.core.formats import parse_json
from nmtkit.core.processes import available_cores
from nmtkit.core.version import __version__
from nmtkit.models.base import ModelConfig
from nmtkit.runs.folder import user_cache

KEY_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "GOMP_SPINCOUNT", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"),
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA"),
)
"""Environment variables that change this machine's speed; part of the key."""
PLAN = "planned"
"""Part of the key of one plan to do a workload."""

AnyConfig = TypeVar("AnyConfig")


@dataclass(frozen=True)
class TuningResult(Generic[AnyConfig]):
    """The fastest configuration for a workload, and the timings behind it."""

    kind: str
    """Of work: training or search."""
    config: AnyConfig
    """The fastest, a dataclass of plain values."""
    unit: str
    """The unit of `speed`."""
    speeds: dict[str, float] = field(default_factory=dict)
    """The speed of every configuration that was measured: 0 where memory ran out, an upper bound where it was given
    up. Empty if nothing was measured."""
    rough_speed: float | None = None
    """The speed of the few updates which showed that the work is too short to be measured."""
    seconds: float = 0.0
    """What measuring took in all."""
    day: str = field(default_factory=lambda: date.today().isoformat())
    kept: bool = False
    """Whether it was found earlier."""
    lines: int = 0
    """The lines that every configuration of a search translated."""
    differing: dict[str, int] = field(default_factory=dict)
    """How many of the lines got another text, for each less exact configuration."""

    @property
    def speed(self) -> float | None:
        """That of the chosen configuration, if it was measured."""
        return self.speeds.get(str(self.config))

    def format_speed(self, config: str) -> str:
        """The speed of a configuration in words."""
        speed = self.speeds[config]
        given_up = GIVE_UP_RATIO * speed <= 1.001 * max(self.speeds.values())
        return f"{'at most ' if given_up else ''}{speed:,.0f}" if speed else "out of memory"

    def sentences(self) -> Iterator[str]:
        """The result in words: the fastest configuration, and how to use one whose texts differ.

        `nmtkit tune` shows all configurations.
        """
        if not self.speeds:
            return
        speed = f"{self.speed:,.0f} {self.unit}; " if self.speed else ""
        yield f"fastest {self.kind} here: {self.config} ({speed}`nmtkit tune` shows the others)"
        for config, count in self.differing.items():
            gain = self.speeds[config] / self.speed if self.speed else 0.0
            engine, _, precision = config.partition(",")[0].rpartition(" ")
            if (count and gain > 1) or (engine and gain):
                options = f"--engine {engine} " * bool(engine) + f"--precision {precision}"
                yield f"{options} would be {gain:.1f} times as quick; {count} of {self.lines} texts differ"


def cache_folder() -> Path:
    """The folder of the cached results."""
    return user_cache() / "settings"


def workload_key(kind: str, model: ModelConfig, device: torch.device) -> dict[str, Any]:
    """The part of every key: versions, machine and the model's shape. The kind of work adds its own."""
    return {
        "work": kind,
        "nmtkit": __version__,
        "torch": torch.__version__,
        "machine": machine(device),
        "model": {key: value for key, value in model.model_dump(mode="json").items() if "dropout" not in key},
    }


def machine(device: torch.device) -> dict[str, Any]:
    """What decides the speed of this machine: processor, cores, instructions, variables, device."""
    facts: dict[str, Any] = {"processor": processor(), "threads": cpu_threads()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    if device.type != "cpu":
        facts["device"] = describe(device)
    return facts | {name: os.environ[name] for name in KEY_VARIABLES if name in os.environ}


def processor() -> str:
    """The name of the processor."""
    with suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    return platform.processor() or platform.machine()


def machine_facts(threads: int, device: torch.device) -> dict[str, object]:
    """Versions, processor, device and threads by name."""
    return {
        "nmtkit": library_version("nmtkit"),
        "torch": str(torch.__version__),  # with its build, as 2.13.0+cu130, which the installed version may leave out
        "python": platform.python_version(),
        "processor": processor(),
        "cores": available_cores(),
        "threads": threads,
        "device": describe(device),
    }


def library_version(name: str) -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def get(key: Mapping[str, Any], config: Callable[..., AnyConfig]) -> TuningResult[AnyConfig] | None:
    """What `put` stored under this key, if its file is whole; `config` is the class of its configurations."""
    with suppress(TypeError, KeyError):
        values = (_read(_path(key)) or {})["result"]
        return TuningResult(**{**values, "config": config(**values["config"]), "kept": True})
    return None


def put(key: Mapping[str, Any], result: TuningResult[Any]) -> bool:
    """Stores a result over an earlier one; whether it could be written. If not, the workload is measured again."""
    with suppress(OSError, NmtkitError), atomic_path(_path(key), suffix=f".{os.getpid()}") as beside:
        beside.write_text(json.dumps({"key": key, "result": asdict(result)}, indent=1), encoding="utf-8")
        return True
    return False


def entries() -> list[dict[str, Any]]:
    """All measured results, the newest first: `key` and `result` of each."""
    with suppress(OSError):
        paths = sorted(cache_folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [entry for path in paths if (entry := _read(path)) is not None and PLAN not in entry["key"]]
    return []


def clear() -> int:
    """Forgets everything; how many measured workloads that were."""
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
        return entry if isinstance(entry["key"], dict) and isinstance(entry["result"], dict) else None
    return None
