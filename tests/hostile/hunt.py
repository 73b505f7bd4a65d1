"""The command: `make test-hostile`, or `python -m tests.hostile.hunt --help`."""

import argparse
import random
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from .oracle import SHARES, Found, Room
from .runner import Runner

Task = tuple[str, int, int]
"""Family, number of cases, seed."""


def work(tasks: "SimpleQueue[Task | None]", results: "SimpleQueue[tuple[str, Found]]") -> None:
    """Does tasks, in a room of its own, until there are no more."""
    with Runner() as runner, tempfile.TemporaryDirectory(prefix="nmtkit-hostile-") as folder:
        room = Room(runner, Path(folder))
        while task := tasks.get():
            results.put((task[0], room.hunt(*task)))


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
        prog="python -m tests.hostile.hunt",
        description="Thousands of hostile cases, each a process: odd recipes, settings, options, text, JSON lines, "
        "alignments, damaged run folders and states. All are judged alike, and none ends the others.",
    )
    parser.add_argument("--cases", type=int, default=10_000, help="how many in all (default: 10,000)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="as printed by an earlier run")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--only", choices=SHARES, metavar="FAMILY", help=f"one of {', '.join(SHARES)}, with all cases")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    begun = time.monotonic()
    context = get_context("spawn")
    tasks, results = context.SimpleQueue(), context.SimpleQueue()
    jobs = [context.Process(target=work, args=(tasks, results), daemon=True) for _ in range(given.jobs)]
    for job in jobs:
        job.start()
    todo = parts(given.cases, given.seed, given.only)
    for task in [*todo, *[None] * given.jobs]:
        tasks.put(task)
    found = {name: Found() for name, _, _ in todo}
    for number in range(len(todo)):
        while results.empty():
            if any(job.exitcode for job in jobs):
                raise SystemExit(f"a process failed after {number} of {len(todo)} parts: see above")
            time.sleep(0.1)
        name, part = results.get()
        found[name].add(part)
        told = "; ".join(part.faults)
        print(f"part {number + 1} of {len(todo)}: {name}, {part.cases} cases, faults: {told or 'none'}", flush=True)
    for job in jobs:
        job.join()
    for name, one in found.items():
        print(f"\n{name}: {one}")
    cases, faults = (
        sum(counts) for counts in ([f.cases for f in found.values()], [f.faults.total() for f in found.values()])
    )
    print(f"\nseed {given.seed}: {cases} cases in {time.monotonic() - begun:.0f} s, {faults} faults")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
