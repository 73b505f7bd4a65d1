"""How long `nmtkit check` and `nmtkit preprocess` take and how much memory they need, for corpora of several sizes."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nmtkit import console
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


def measure(lines: int, folder: Path, workers: int) -> dict[str, Any]:
    """Makes a corpus, checks and preprocesses it, and begins an epoch; see `measured` for the figures of a command.

    Raises:
        NmtkitError: a command failed, or the arrays are damaged.
    """
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
    words = [sys.executable, "-m", "tests.bench.measured", str(usage), *command]
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
