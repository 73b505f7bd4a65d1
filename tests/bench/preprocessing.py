"""How long `nmtkit check` and `nmtkit preprocess` take and how much memory they need, for corpora of several sizes."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from nmtkit import console
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batch import BatchConfig, BatchStream
from nmtkit.data.store import Store

from .made_text import write_pairs

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
FAR = 1 << 40
"""The number of the first sentence of the validation set: no training set is so long."""


@dataclass(frozen=True)
class Row:
    """One corpus."""

    lines: int
    """Pairs."""
    check_seconds: float
    """From the start of `check` to its end."""
    check_cpu: float
    """CPU seconds of `check`."""
    check_memory: float
    """The most memory of `check`, in MiB."""
    seconds: float
    """From the start of `preprocess` to its end, checking the text and learning the tokenizer included."""
    cpu: float
    """CPU seconds of all processes."""
    own_cpu: float
    """CPU seconds of the process that reads, checks and writes (and learns the tokenizer)."""
    memory: float
    """The most memory of that process, in MiB."""
    of_worker: float
    """The most memory of the largest other process, in MiB; 0 if there was none."""
    first_batch: float
    """Seconds from opening the data to the first batch of an epoch."""


def measure(lines: int, folder: Path, processes: int) -> Row:
    """Makes a corpus, checks and preprocesses it, and begins an epoch.

    Raises:
        NmtkitError: a command failed, or the arrays are damaged.
    """
    folder.mkdir()
    write_pairs(folder / "train.src", folder / "train.tgt", lines)
    write_pairs(folder / "valid.src", folder / "valid.tgt", HELD_OUT, first=FAR)
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    files = [str(folder / name) for name in ("train.src", "train.tgt", "valid.src", "valid.tgt")]
    check = _used(folder, ["check", *files[:2], "--valid", *files[2:]])
    used = _used(
        folder, ["preprocess", str(folder / "recipe.yaml"), "--run", str(folder / "run"), "--workers", str(processes)]
    )
    begun = time.monotonic()
    store = Store.open(folder / "run" / "data", "train")
    next(BatchStream(store, BatchConfig(), seed=1))
    first_batch = time.monotonic() - begun
    store.check()
    checked = {"check_seconds": check["seconds"], "check_cpu": check["cpu"], "check_memory": check["memory"]}
    return Row(lines=lines, first_batch=first_batch, **checked, **used)


def _used(folder: Path, command: list[str]) -> dict[str, float]:
    """What a command took.

    Raises:
        NmtkitError: it failed.
    """
    words = [sys.executable, "-m", "tests.bench.measured", str(folder / "usage.json"), *command]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise NmtkitError(done.stderr.decode("utf-8", "replace"))
    used: dict[str, float] = json.loads((folder / "usage.json").read_text(encoding="utf-8"))
    return used


def show(rows: list[Row], processes: int) -> None:
    """The rows as two tables in Markdown."""
    _table(["pairs, `check`", "seconds", "pairs/s", "CPU us/pair", "MiB"])
    for row in rows:
        speed, each = f"{row.lines / row.check_seconds:,.0f}", f"{row.check_cpu / row.lines * 1e6:.1f}"
        _line([f"{row.lines:,}", f"{row.check_seconds:.1f}", speed, each, f"{row.check_memory:.0f}"])
    console.say(f"\n{processes} workers\n")
    head = ["pairs, `preprocess`", "seconds", "pairs/s", "CPU us/pair", "of it parent", "MiB parent", "MiB worker"]
    _table([*head, "first batch s"])
    for row in rows:
        speed = f"{row.lines / row.seconds:,.0f}"
        each = [f"{cpu / row.lines * 1e6:.0f}" for cpu in (row.cpu, row.own_cpu)]
        memory = [f"{row.memory:.0f}", f"{row.of_worker:.0f}"]
        cells = [f"{row.lines:,}", f"{row.seconds:.1f}", speed, *each, *memory, f"{row.first_batch:.2f}"]
        _line(cells)


def _table(head: list[str]) -> None:
    _line(head)
    console.say("|" + "---:|" * len(head))


def _line(cells: list[str]) -> None:
    console.say("| " + " | ".join(cells) + " |")
