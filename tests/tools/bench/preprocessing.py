"""How long `nmtkit check` and `nmtkit preprocess` take and how much memory they need, for corpora of several sizes."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nmtkit.cli import terminal
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.store import Store

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
# The peak of a child counts what its parent had before its program began: the parent is a small one.
MEASURED = """\
import json, resource, subprocess, sys, time
begun = time.monotonic()
subprocess.run([sys.executable, "-m", "nmtkit", *sys.argv[1:]], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds, cpu = time.monotonic() - begun, used.ru_utime + used.ru_stime
print(json.dumps({"seconds": seconds, "cpu": cpu, "memory": used.ru_maxrss / 1024}))
"""


def measure(lines: int, folder: Path, workers: int) -> dict[str, Any]:
    """Makes a corpus, checks and preprocesses it, and begins an epoch."""
    folder.mkdir()
    write_pairs(folder / "train.src", folder / "train.tgt", lines)
    write_pairs(folder / "valid.src", folder / "valid.tgt", HELD_OUT, first=FAR)
    recipe, run = folder / "recipe.yaml", folder / "run"
    recipe.write_text(RECIPE, encoding="utf-8")
    train, valid = (
        [str(folder / f"{split}.{side}") for side in ("src", "tgt")] for split in ("train", "valid")
    )
    checked = _measured("check", *train, "--valid", *valid)
    preprocessed = _measured(
        "preprocess", str(recipe), "--run", str(run), "--workers", str(workers)
    )
    begun = time.monotonic()
    store = Store.open(run / "data", "train")
    next(BatchStream(store, BatchConfig(), seed=1))
    first_batch = time.monotonic() - begun
    store.check()
    return {
        "lines": lines,
        "check": checked,
        "preprocess": preprocessed,
        "first_batch_seconds": first_batch,
    }


def _measured(*command: str) -> dict[str, float]:
    """Seconds, those of processors, and the most memory that one of its processes had, in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NmtkitError(done.stderr)
    return json.loads(done.stdout)


def show(corpora: list[dict[str, Any]], workers: int) -> None:
    for command in ("check", "preprocess"):
        rows = []
        for corpus in corpora:
            lines, used = corpus["lines"], corpus[command]
            figures = (
                f"{used['seconds']:.1f}",
                f"{lines / used['seconds']:,.0f}",
                f"{used['cpu'] / lines * 1e6:.1f}",
            )
            rows.append(
                [
                    f"{lines:,}",
                    *figures,
                    f"{used['memory']:.0f}",
                    f"{corpus['first_batch_seconds']:.2f}",
                ]
            )
        columns = ["pairs", "seconds", "pairs/s", "CPU us/pair", "MiB", "first batch, s"]
        terminal.table(f"{command}, {workers} workers", columns, rows)
