"""The command: `make test-hostile`, or `python -m tests.tools.hostile.hunt --help`."""

import argparse
import atexit
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

from .oracle import SHARES, Findings, Room
from .runner import Runner

Task = tuple[str, int, int]
"""Family, number of cases, seed."""

room: Room
ending = ExitStack()
atexit.register(ending.close)


def begin() -> None:
    """Makes a room for the tasks of this process."""
    global room
    folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="nmtkit-hostile-"))
    room = Room(ending.enter_context(Runner()), Path(folder))


def hunt(task: Task) -> Findings:
    return room.hunt(*task)


def parts(count: int, seed: int, only: str | None, largest: int = 100) -> list[Task]:
    """The cases shared out to families, in parts with seeds of their own: who does which changes none."""
    tasks = []
    shares = {only: 1} if only else SHARES
    for name, share in shares.items():
        wanted = max(round(count * share / sum(shares.values())), 1)
        for number, start in enumerate(range(0, wanted, largest)):
            tasks.append((name, min(largest, wanted - start), seed * 1000 + number))
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.hostile.hunt",
        description="Thousands of hostile cases, each a process: odd recipes, settings, options, text, JSON lines, "
        "alignments, damaged run folders and states. All are judged alike, and none ends the others.",
    )
    parser.add_argument(
        "--cases", type=int, default=10_000, help="how many in all (default: 10,000)"
    )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="as printed by an earlier run"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument(
        "--only",
        choices=SHARES,
        metavar="FAMILY",
        help=f"one of {', '.join(SHARES)}, with all cases",
    )
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    begun = time.monotonic()
    todo = parts(given.cases, given.seed, given.only)
    found = {name: Findings() for name, _, _ in todo}
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), begin) as pool:
        for number, ((name, _, _), part) in enumerate(
            zip(todo, pool.map(hunt, todo), strict=True), start=1
        ):
            found[name].add(part)
            faults = "; ".join(part.faults) or "none"
            print(
                f"part {number} of {len(todo)}: {name}, {part.cases} cases, faults: {faults}",
                flush=True,
            )
    for name, one in found.items():
        print(f"\n{name}: {one}")
    cases, faults = (
        sum(one.cases for one in found.values()),
        sum(one.faults.total() for one in found.values()),
    )
    print(
        f"\nseed {given.seed}: {cases} cases in {time.monotonic() - begun:.0f} s, {faults} faults"
    )
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
