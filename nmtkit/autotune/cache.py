"""What was once measured on this machine, kept until it is cleared: the same work is done in the same way again.

One small file for each work, in `nmtkit/settings` of $XDG_CACHE_HOME, else of ~/.cache. A work is known by all that
decides how quick it is: the machine with its variables, torch, the model's shape, the batch's shape, what was asked.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from nmtkit.autotune.timing import GIVEN_UP
from nmtkit.core.device import cpu_threads, describe
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.files import atomic_path
from nmtkit.core.formats import parse_json
from nmtkit.core.version import __version__
from nmtkit.models.base import ModelConfig
from nmtkit.runs.folder import user_cache

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
"""Environment variables that change this machine's speed; part of the cache key."""
PLAN = "planned"
"""Key of a work that is kept for one plan to do it: it was too short to be measured."""

AnyConfig = TypeVar("AnyConfig")


@dataclass(frozen=True)
class TuningResult(Generic[AnyConfig]):
    """The fastest configuration for a workload, and the timings behind it."""

    what: str
    """Training or search."""
    way: AnyConfig
    """The quickest, a dataclass of plain values."""
    unit: str
    """Of its speed."""
    speeds: dict[str, float] = field(default_factory=dict)
    """The speed of every way that was measured, 0 where memory ran out, and the most that it can be where it was given
    up; none where nothing was."""
    rough_speed: float | None = None
    """Where nothing was measured, for the work is short: the speed of the few updates that showed it."""
    seconds: float = 0.0
    """What measuring took in all."""
    is_noisy: bool = False
    """Whether the turns disagreed."""
    day: str = field(default_factory=lambda: date.today().isoformat())
    kept: bool = False
    """Whether it was found earlier."""
    lines: int = 0
    """Of a search: the lines that every way searched."""
    differing: dict[str, int] = field(default_factory=dict)
    """Of less exact ways to search: how many of them it gave another text."""

    @property
    def speed(self) -> float | None:
        """That of the chosen way, if it was measured."""
        return self.speeds.get(str(self.way))

    def told(self, way: str) -> str:
        """The speed of a way, for a person."""
        speed = self.speeds[way]
        slow = GIVEN_UP * speed <= 1.001 * max(self.speeds.values())
        return f"{'at most ' if slow else ''}{speed:,.0f}" if speed else "out of memory"

    def sentences(self) -> Iterator[str]:
        """What was found, for a person."""
        if not self.speeds:
            return
        ways = sorted(self.speeds, key=lambda way: -self.speeds[way])
        told = "; ".join(f"{way} {self.told(way)}" for way in ways)
        when = f"as found on {self.day}" if self.kept else f"measured in {self.seconds:.1f} s"
        yield f"{self.what} on this machine: {self.way}, {when} ({self.unit}: {told})"
        for way, count in self.differing.items():
            if count and self.speed and (gain := self.speeds[way] / self.speed) > 1:
                yield (
                    f"--precision {way.partition(',')[0]} would be {gain:.1f} times as quick; "
                    f"{count} of {self.lines} texts differ"
                )
        if self.is_noisy and not self.kept:
            yield (
                "warning: repeated measurements of one setting disagree, so another program keeps this machine busy; "
                "`nmtkit tune RECIPE` measures again and keeps the new result"
            )


def cache_folder() -> Path:
    """The folder of the cached results."""
    return user_cache() / "settings"


def workload_key(kind: str, model: ModelConfig, device: torch.device) -> dict[str, Any]:
    """What every finding is kept for: the versions, the machine, the model's shape; its kind of work adds to it."""
    return {
        "work": kind,
        "nmtkit": __version__,
        "torch": torch.__version__,
        "machine": machine(device),
        "model": {key: value for key, value in model.model_dump(mode="json").items() if "dropout" not in key},
    }


def machine(device: torch.device) -> dict[str, Any]:
    """This machine as far as it decides what is quick on the device: processor, cores, instructions, variables."""
    facts: dict[str, Any] = {"processor": processor(), "threads": cpu_threads()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    if device.type != "cpu":
        facts["device"] = describe(device)
    return facts | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def processor() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor() or platform.machine()


def _path(work: Mapping[str, Any]) -> Path:
    key = json.dumps(work, sort_keys=True).encode("utf-8")
    return cache_folder() / f"{hashlib.sha256(key).hexdigest()[:24]}.json"


def get(work: Mapping[str, Any], way: Callable[..., AnyConfig]) -> TuningResult[AnyConfig] | None:
    """What `put` was given for this work, if its file is whole; `way` is the class of its ways."""
    entry = _read(_path(work))
    if entry is None or entry["work"] != json.loads(json.dumps(work)):
        return None
    try:
        return replace(TuningResult(**{**entry["found"], "way": way(**entry["found"]["way"])}), kept=True)
    except TypeError:
        return None


def put(work: Mapping[str, Any], found: TuningResult[Any]) -> bool:
    """Keeps what was found for a work, over what was found before; whether it could be written.

    Where no file can be written the work is measured again next time, which is no reason to stop it.
    """
    try:
        with atomic_path(_path(work), suffix=f".{os.getpid()}") as beside:
            beside.write_text(json.dumps({"work": work, "found": asdict(found)}, indent=1), encoding="utf-8")
    except (OSError, NmtkitError):
        return False
    return True


def evict_plans(work: Mapping[str, Any]) -> None:
    """Forgets which plans to do this work were too short to be measured."""
    for path in cache_folder().glob("*.json"):
        entry = _read(path)
        if entry is not None and entry["work"].pop(PLAN, None) and entry["work"] == json.loads(json.dumps(work)):
            path.unlink(missing_ok=True)


def entries() -> list[dict[str, Any]]:
    """All that was found by measuring, the newest first: `work` and `found` of each."""
    try:
        paths = sorted(cache_folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [entry for path in paths if (entry := _read(path)) is not None and PLAN not in entry["work"]]


def clear() -> int:
    """Forgets everything; how many works that were."""
    paths = list(cache_folder().glob("*.json"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        entry = parse_json(path.read_bytes(), path.name)
        return entry if isinstance(entry["work"], dict) and isinstance(entry["found"], dict) else None
    except (OSError, DataError, KeyError, TypeError):
        return None
