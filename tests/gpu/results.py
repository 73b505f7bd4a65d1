"""The file to which every part of a slot appends what it found, and the table made of it.

python -m tests.gpu.results begin  FILE DEVICE                  what the machine is; exit code 2 without the device
python -m tests.gpu.results pytest FILE PART XML                what a run of pytest said
python -m tests.gpu.results ended  FILE PART CODE SECONDS LOG   how a part ended
python -m tests.gpu.results table  FILE                         the table; exit code 1 if something does not hold
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import torch

from nmtkit import console
from nmtkit.core import device
from nmtkit.core.errors import NmtkitError
from nmtkit.experiment.bench import spread
from tests.bench import machine

SHOWN = 10
"""Failed tests of a part that are listed one by one."""
OUT_OF_TIME = {124, 137}
"""Exit codes of `timeout`."""


@dataclass(frozen=True)
class Row:
    """One thing that was looked at."""

    part: str
    name: str
    holds: bool | None
    """None where nothing was claimed, only measured."""
    figure: str
    seconds: float
    values: dict[str, Any] = field(default_factory=dict)
    """The figures as numbers."""


class Results:
    """One part's door to the file. Each row is written at once, so that a part that is stopped keeps what it had."""

    def __init__(self, path: Path, part: str) -> None:
        self.path = path
        self.part = part
        self._since = time.monotonic()

    def add(self, name: str, holds: bool | None, figure: str, **values: Any) -> None:
        """Appends a row; its seconds are those since the row before."""
        now = time.monotonic()
        append(self.path, Row(self.part, name, holds, figure, now - self._since, values))
        self._since = now
        mark = {True: "holds", False: "DOES NOT HOLD", None: "measured"}[holds]
        console.say(f"{self.part}, {name}: {mark}: {figure}")


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def append(path: Path, row: Row) -> None:
    content = read(path)
    content["rows"].append(asdict(row))
    write(path, content)


@dataclass(frozen=True)
class Given:
    """What every part is told."""

    place: torch.device
    quick: bool
    """Sizes that a CPU can do; the figures mean little then."""
    results: Results
    scratch: Path
    """A folder for whatever the part writes."""
    rest: argparse.Namespace
    """Arguments of its own."""


def given(part: str, about: str, add: Callable[[argparse.ArgumentParser], None] = lambda parser: None) -> Given:
    """Reads the arguments that every part takes, and what `add` adds; the part is called after `--part`, if given."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", default="cuda:0", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small enough for a CPU")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="begun by tests.gpu.results")
    parser.add_argument("--part", default=part, help="what the part is called in the file (default: %(default)s)")
    add(parser)
    rest = parser.parse_args()
    place = device.choose(rest.device)
    scratch = rest.results.parent / f"scratch-{rest.part}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return Given(place, rest.quick, Results(rest.results, rest.part), scratch, rest)


def middle(values: list[float], unit: str, digits: int = 0) -> str:
    """The median, and the least and the most beside it."""
    return f"{median(values):,.{digits}f} {unit} ({spread(values, digits)})"


def begin(path: Path, name: str) -> int:
    """Begins a file anew."""
    try:
        place = device.choose(name)
    except NmtkitError as fault:
        console.say(f"error: {fault}", stderr=True)
        return 2
    device.prepare(place)
    facts = machine.facts(torch.get_num_threads(), place)
    write(path, {"begun": time.strftime("%Y-%m-%d %H:%M:%S %z"), "machine": facts, "rows": []})
    console.table("machine", ["what", "value"], list(facts.items()))
    return 0


def from_pytest(path: Path, part: str, report: Path) -> None:
    """A row for all tests together, and one for each of the first that failed."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # pytest wrote it a moment ago
    bad, skipped = [], []
    for case in cases:
        trouble = case.find("failure") if case.find("failure") is not None else case.find("error")
        if trouble is not None:
            bad.append((case, trouble))
        elif (skip := case.find("skipped")) is not None:
            skipped.append(skip.get("message", ""))
    passed = len(cases) - len(bad) - len(skipped)
    figure = f"{passed} passed, {len(bad)} failed, {len(skipped)} skipped"
    if skipped:
        figure += f" ({', '.join(sorted(set(skipped)))})"
    seconds = sum(float(case.get("time", 0)) for case in cases)
    holds = None if not passed and not bad else not bad
    append(path, Row(part, "tests", holds, figure, seconds, {"passed": passed, "failed": len(bad)}))
    for case, trouble in bad[:SHOWN]:
        message = trouble.get("message", "").splitlines() or ["failed"]
        append(path, Row(part, str(case.get("name")), False, message[0][:100], float(case.get("time", 0))))


def ended(path: Path, part: str, code: int, seconds: float, log: Path) -> None:
    """A row that says whether the part came to its end, with the last line of its log where it did not."""
    figure = "came to its end"
    if code in OUT_OF_TIME:
        figure = "stopped: out of time"
    elif code:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        figure = f"exit code {code}: {last[:100]}"
    append(path, Row(part, "the whole part", code == 0, figure, seconds, {"exit code": code}))


def table(path: Path) -> int:
    """Shows all rows; gives the exit code."""
    content = read(path)
    rows = [Row(**row) for row in content["rows"]]
    words = {True: "yes", False: "NO", None: "-"}
    cells = [[row.part, row.name, words[row.holds], row.figure, f"{row.seconds:.1f}"] for row in rows]
    about = content["machine"]
    console.table(
        f"{about.get('device', about['processor'])}, torch {about['torch']}",
        ["part", "what", "holds", "figure", "seconds"],
        cells,
    )
    bad = [row for row in rows if row.holds is False]
    held = sum(row.holds is True for row in rows)
    console.say(f"{held} hold, {len(bad)} do not, {len(rows) - held - len(bad)} only measured; all figures: {path}")
    return 1 if bad else 0


def main() -> int:
    what, path, *rest = sys.argv[1:]
    file = Path(path)
    if what == "begin":
        return begin(file, rest[0])
    if what == "pytest":
        from_pytest(file, rest[0], Path(rest[1]))
    elif what == "ended":
        ended(file, rest[0], int(rest[1]), float(rest[2]), Path(rest[3]))
    elif what == "table":
        return table(file)
    else:
        raise SystemExit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
