"""`python -m tests.bench.measured FILE ARGUMENTS...`: runs `nmtkit ARGUMENTS`, and writes what it took to FILE."""

import json
import re
import resource
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from nmtkit.cli import main

OFTEN = 0.2
"""Seconds between two looks at the memory."""


def peak(process: str) -> float:
    """The most memory that a process has had since it began its program, in MiB. Linux only."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0


def watch(largest: dict[str, float]) -> None:
    """Keeps the peak of every child. `getrusage` cannot tell: it counts what a child was before its program began."""
    while True:
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # threads and processes come and go
                for child in (task / "children").read_text(encoding="ascii").split():
                    largest[child] = peak(child)
        time.sleep(OFTEN)


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def measured(output: Path, arguments: list[str]) -> None:
    begun = time.monotonic()
    largest: dict[str, float] = {}
    threading.Thread(target=watch, args=(largest,), daemon=True).start()
    sys.argv = ["nmtkit", *arguments]
    try:
        main()
    finally:
        figures = {
            "seconds": time.monotonic() - begun,
            "cpu": cpu(resource.RUSAGE_SELF) + cpu(resource.RUSAGE_CHILDREN),
            "own_cpu": cpu(resource.RUSAGE_SELF),
            "memory": peak("self"),
            "of_worker": max(largest.values(), default=0.0),
        }
        output.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    measured(Path(sys.argv[1]), sys.argv[2:])
