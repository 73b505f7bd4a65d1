"""What a part of a slot is given, and the file to which all parts append their results."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmtkit.cli import terminal
from nmtkit.core.files import write_json

MARKS = {True: "holds", False: "DOES NOT HOLD", None: "measured"}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass
class Part:
    """A part of a slot. Each of its rows is written at once, so that a part that is stopped keeps what it had."""

    name: str
    place: torch.device
    out: Path
    """The folder of all results."""
    quick: bool = False
    """Sizes that a CPU can do; the figures mean little then."""
    run: Path | None = None
    """A trained run."""
    since: float = field(default_factory=time.monotonic)
    """When the row before was added."""

    @property
    def results(self) -> Path:
        return self.out / "results.json"

    @property
    def scratch(self) -> Path:
        """A folder for whatever the part writes."""
        folder = self.out / f"scratch-{self.name}"
        folder.mkdir(exist_ok=True)
        return folder

    def add(self, name: str, holds: bool | None, figure: str, **values: Any) -> None:
        """Appends a row; its seconds are those since the row before.

        Args:
            name: what the row is about.
            holds: None where nothing is claimed, only measured.
            figure: in words.
            **values: the figure as numbers.
        """
        now = time.monotonic()
        row = {
            "part": self.name,
            "name": name,
            "holds": holds,
            "figure": figure,
            "seconds": now - self.since,
        }
        content = read(self.results)
        content["rows"].append({**row, "values": values})
        write_json(self.results, content)
        self.since = now
        terminal.say(f"{self.name}, {name}: {MARKS[holds]}: {figure}")
