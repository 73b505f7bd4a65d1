"""The file to which every part of a slot appends its results, and the table made of it.

python -m tests.gpu.results begin  FILE DEVICE                  what the machine is; exit code 2 without the device
python -m tests.gpu.results pytest FILE PART XML                what a run of pytest said
python -m tests.gpu.results ended  FILE PART CODE SECONDS LOG   how a part ended
python -m tests.gpu.results table  FILE                         the table; exit code 1 if something does not hold
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from nmtkit import console
from nmtkit.core import device
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_write_text
from tests.bench import machine

SHOWN = 10
"""Failed tests of a part that are listed one by one."""
OUT_OF_TIME = {124, 137}
"""Exit codes of `timeout`."""


@dataclass(frozen=True)
class Row:
    """One result."""

    part: str
    name: str
    holds: bool | None
    """None where nothing was claimed, only measured."""
    figure: str
    seconds: float
    values: dict[str, Any] = field(default_factory=dict)
    """The figures as numbers."""


class Results:
    """The results of one part. Each row is written at once, so that a part that is stopped keeps what it had."""

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
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, content: dict[str, Any]) -> None:
    atomic_write_text(path, json.dumps(content, indent=1, default=str) + "\n")


def append(path: Path, row: Row) -> None:
    content = read(path)
    content["rows"].append(asdict(row))
    write(path, content)


@dataclass(frozen=True)
class Part:
    """What every part is given."""

    place: torch.device
    quick: bool
    """Sizes that a CPU can do; the figures mean little then."""
    results: Results
    scratch: Path
    """A folder for whatever the part writes."""
    options: argparse.Namespace


def start(name: str, about: str, add: Callable[[argparse.ArgumentParser], None] = lambda parser: None) -> Part:
    """Reads the arguments that every part takes, and those that `add` adds."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", default="cuda:0", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small enough for a CPU")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="begun by tests.gpu.results")
    parser.add_argument("--part", default=name, help="the part's name in the file (default: %(default)s)")
    add(parser)
    options = parser.parse_args()
    place = device.choose(options.device)
    scratch = options.results.parent / f"scratch-{options.part}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return Part(place, options.quick, Results(options.results, options.part), scratch, options)


def begin(path: Path, name: str) -> int:
    """Begins a file."""
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
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    outcomes = [(case, next(iter([*case.iter("failure"), *case.iter("error")]), None)) for case in cases]
    failed = [(case, fault) for case, fault in outcomes if fault is not None]
    reasons = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    passed = len(cases) - len(failed) - len(reasons)
    figure = f"{passed} passed, {len(failed)} failed, {len(reasons)} skipped"
    figure += f" ({', '.join(sorted(set(reasons)))})" if reasons else ""
    seconds = sum(float(case.get("time", 0)) for case in cases)
    holds = not failed if passed or failed else None
    append(path, Row(part, "tests", holds, figure, seconds, {"passed": passed, "failed": len(failed)}))
    for case, fault in failed[:SHOWN]:
        message = fault.get("message", "").splitlines() or ["failed"]
        append(path, Row(part, str(case.get("name")), False, message[0][:100], float(case.get("time", 0))))


def ended(path: Path, part: str, code: int, seconds: float, log: Path) -> None:
    """A row that says whether the part came to its end, with the last line of its log where it did not."""
    figure = "stopped: out of time" if code in OUT_OF_TIME else "came to its end"
    if code and code not in OUT_OF_TIME:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        figure = f"exit code {code}: {lines[-1][:100] if lines else 'it said nothing'}"
    append(path, Row(part, "the whole part", code == 0, figure, seconds, {"exit code": code}))


def table(path: Path) -> int:
    """Shows all rows; gives the exit code."""
    content = read(path)
    rows = [Row(**row) for row in content["rows"]]
    words = {True: "yes", False: "NO", None: "-"}
    cells = [[row.part, row.name, words[row.holds], row.figure, f"{row.seconds:.1f}"] for row in rows]
    about = content["machine"]
    title = f"{about.get('device', about['processor'])}, torch {about['torch']}"
    console.table(title, ["part", "what", "holds", "figure", "seconds"], cells)
    held, failed = (sum(row.holds is answer for row in rows) for answer in (True, False))
    console.say(f"{held} hold, {failed} do not, {len(rows) - held - failed} only measured; all figures: {path}")
    return 1 if failed else 0


def main() -> int:
    match sys.argv[1:]:
        case ["begin", path, name]:
            return begin(Path(path), name)
        case ["pytest", path, part, report]:
            from_pytest(Path(path), part, Path(report))
        case ["ended", path, part, code, seconds, log]:
            ended(Path(path), part, int(code), float(seconds), Path(log))
        case ["table", path]:
            return table(Path(path))
        case _:
            raise SystemExit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
