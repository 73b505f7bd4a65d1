"""Runs the parts of a slot in turn, each in a process of its own; `slot.sh` says how and prepares Python."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from nmtkit.cli import terminal
from nmtkit.cli.training.bench import show_machine
from nmtkit.core import device
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import write_json
from tests.tools.bench import machine

from . import ceilings, decoding, demo, kernels, peers, training
from .checks import run_doctor, run_tests
from .results import MARKS, Part, read

ROOT = Path(__file__).parents[3]
OUT_OF_TIME = {124, 137}
"""Exit codes of `timeout`."""

# Name of a part -> the seconds that it may take, and what it does.
PARTS: dict[str, tuple[int, Callable[[Part], None]]] = {
    "doctor": (60, run_doctor),
    "ceilings": (60, ceilings.main),
    "contracts": (150, partial(run_tests, arguments=["tests/contracts"])),
    "cuda-tests": (120, partial(run_tests, arguments=["tests", "--ignore=tests/contracts"])),
    "decoding": (300, decoding.main),
    "peers": (180, peers.main),
    "training": (150, training.main),
    "demo": (240, demo.main),
    "kernels": (90, kernels.main),
}


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "tests/tools/gpu/slot.sh", description="Its head says how it is used."
    )
    parser.add_argument("--device", default="cuda:0", metavar="NAME")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs/gpu-slot", metavar="FOLDER", help="for the results"
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="NAME,NAME,...")
    parser.add_argument(
        "--run", type=Path, metavar="FOLDER", help="a trained run, beside other engines too"
    )
    parser.add_argument("--quick", action="store_true", help="small enough for a CPU")
    # in this process, of a slot begun
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    for name in options.only.split(","):
        if name not in PARTS:
            parser.error(f"--only: there is no part {name}; there are: {' '.join(PARTS)}")
    return options


def begin(out: Path, place: torch.device) -> Path:
    """Empties the folder of what an earlier slot left, and begins the file of results."""
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.json"
    if not results.exists() and any(out.iterdir()):
        raise NmtkitError(
            f"{out} holds other things than an earlier slot; name another folder with --out"
        )
    for log in out.glob("*.log"):
        log.unlink()
    for folder in (*out.glob("scratch-*"), out / "captions"):
        shutil.rmtree(folder, ignore_errors=True)
    device.prepare(place)
    facts = machine.facts(torch.get_num_threads(), place)
    write_json(
        results, {"begun": time.strftime("%Y-%m-%d %H:%M:%S %z"), "machine": facts, "rows": []}
    )
    show_machine(facts)
    return results


def run_limited(words: list[str], part: Part, limit: int) -> None:
    """Runs a command that does a part. How it ended is a row, with the last line of its log where it failed."""
    terminal.say(f"--- {part.name}, at most {limit} seconds")
    log = part.out / f"{part.name}.log"
    words = ["timeout", "--signal=INT", "--kill-after=20", str(limit), *words]
    with (
        log.open("wb") as output,
        subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            code = process.wait()
        finally:
            process.terminate()  # after Ctrl-C; `timeout` passes it on
    figure = "stopped: out of time" if code in OUT_OF_TIME else "came to its end"
    if code and code not in OUT_OF_TIME:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        figure = f"exit code {code}: {lines[-1][:100] if lines else 'it said nothing'}"
    for row in read(part.results)["rows"]:
        if row["part"] == part.name:
            terminal.say(f"{part.name}, {row['name']}: {MARKS[row['holds']]}: {row['figure']}")
    part.add("the whole part", code == 0, figure, **{"exit code": code})


def show(results: Path) -> int:
    """Shows all rows; gives the exit code."""
    content = read(results)
    rows, about = content["rows"], content["machine"]
    words = {True: "yes", False: "NO", None: "-"}
    cells = [
        [row["part"], row["name"], words[row["holds"]], row["figure"], f"{row['seconds']:.1f}"]
        for row in rows
    ]
    terminal.table(
        f"{about['device']}, torch {about['torch']}",
        ["part", "what", "holds", "figure", "seconds"],
        cells,
    )
    held, failed = (sum(row["holds"] is answer for row in rows) for answer in (True, False))
    terminal.say(
        f"{held} hold, {failed} do not, {len(rows) - held - failed} only measured; all figures: {results}"
    )
    return 1 if failed else 0


def main(words: list[str]) -> int:
    options = parse(words)
    out, run = options.out.resolve(), options.run and options.run.resolve()
    try:
        place = device.choose(options.device)
        results = out / "results.json" if options.here else begin(out, place)
    except NmtkitError as fault:
        terminal.say(f"error: {fault}", stderr=True)
        return 2
    for name in (name for name in PARTS if name in options.only.split(",")):
        limit, do = PARTS[name]
        part = Part(name, place, out, options.quick, run)
        if options.here:
            os.chdir(ROOT)
            device.prepare(place)  # as nmtkit's own commands do
            do(part)
        else:
            command = [sys.executable, "-m", "tests.tools.gpu", *words, "--only", name, "--here"]
            run_limited(command, part, 3 * limit if options.quick else limit)  # a CPU may be slow
    return 0 if options.here else show(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
