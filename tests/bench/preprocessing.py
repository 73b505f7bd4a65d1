"""How long `nmtkit check` and `nmtkit preprocess` take and how much memory they need, for corpora of several sizes.

`python -m tests.bench.preprocessing FILE ARGUMENTS...` runs `nmtkit ARGUMENTS`, and writes what it took to FILE.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmtkit import cli, console
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batch import BatchConfig, BatchStream
from nmtkit.data.store import Store

from .made_text import FAR, write_pairs

RECIPE = """\
name: preprocessing
data:
  train: {src: train.src, tgt: train.tgt}
  valid: {src: valid.src, tgt: valid.tgt}
tokenizer: {kind: bpe, vocab_size: 8000}
model: {kind: transformer}
training: {max_updates: 1}
"""
HELD_OUT = 1000
OFTEN = 0.2
"""Seconds between two looks at the memory."""


def measure(lines: int, folder: Path, workers: int) -> dict[str, Any]:
    """Makes a corpus, checks and preprocesses it, and begins an epoch; `run_measured` gives a command's figures."""
    folder.mkdir()
    write_pairs(folder / "train.src", folder / "train.tgt", lines)
    write_pairs(folder / "valid.src", folder / "valid.tgt", HELD_OUT, first=FAR)
    recipe, run = folder / "recipe.yaml", folder / "run"
    recipe.write_text(RECIPE, encoding="utf-8")
    train, valid = ([str(folder / f"{split}.{side}") for side in ("src", "tgt")] for split in ("train", "valid"))
    checked = _measured(folder, "check", *train, "--valid", *valid)
    preprocessed = _measured(folder, "preprocess", str(recipe), "--run", str(run), "--workers", str(workers))
    begun = time.monotonic()
    store = Store.open(run / "data", "train")
    next(BatchStream(store, BatchConfig(), seed=1))
    first_batch = time.monotonic() - begun
    store.check()
    return {"lines": lines, "check": checked, "preprocess": preprocessed, "first_batch_seconds": first_batch}


def _measured(folder: Path, *command: str) -> dict[str, float]:
    usage = folder / "usage.json"
    words = [sys.executable, "-m", "tests.bench.preprocessing", str(usage), *command]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise NmtkitError(done.stderr.decode("utf-8", "replace"))
    return json.loads(usage.read_text(encoding="utf-8"))


def show(corpora: list[dict[str, Any]], workers: int) -> None:
    for command in ("check", "preprocess"):
        rows = []
        for corpus in corpora:
            lines, used = corpus["lines"], corpus[command]
            microseconds = (f"{used[key] / lines * 1e6:.1f}" for key in ("cpu", "own_cpu"))
            memory = (f"{used[key]:.0f}" for key in ("memory", "of_worker"))
            speed = f"{used['seconds']:.1f}", f"{lines / used['seconds']:,.0f}"
            rows.append([f"{lines:,}", *speed, *microseconds, *memory, f"{corpus['first_batch_seconds']:.2f}"])
        columns = ["pairs", "seconds", "pairs/s", "CPU us/pair", "of it parent", "MiB parent", "MiB worker"]
        console.table(f"{command}, {workers} workers", [*columns, "first batch, s"], rows)


def run_measured(output: Path, arguments: list[str]) -> None:
    """Runs `nmtkit` here, and writes its seconds, those of processors, and its and its workers' memory in MiB."""
    begun = time.monotonic()
    largest: dict[str, float] = {}
    threading.Thread(target=_watch_children, args=(largest,), daemon=True).start()
    sys.argv = ["nmtkit", *arguments]
    try:
        cli.main()
    finally:
        cpu = os.times()
        figures = {
            "seconds": time.monotonic() - begun,
            "cpu": sum(cpu[:4]),
            "own_cpu": cpu.user + cpu.system,
            "memory": _peak_mib("self"),
            "of_worker": max(largest.values(), default=0.0),
        }
        output.write_text(json.dumps(figures), encoding="utf-8")


def _watch_children(largest: dict[str, float]) -> None:
    """Keeps the peak of every child. `getrusage` cannot tell: it counts what a child was before its program began."""
    while True:
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # threads and processes come and go
                for child in (task / "children").read_text(encoding="ascii").split():
                    largest[child] = _peak_mib(child)
        time.sleep(OFTEN)


def _peak_mib(process: str) -> float:
    """The most memory that a process has had since it began its program. Linux only."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    return int(peak[1]) / 1024 if peak else 0.0


if __name__ == "__main__":
    run_measured(Path(sys.argv[1]), sys.argv[2:])
