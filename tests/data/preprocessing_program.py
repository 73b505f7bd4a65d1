"""A program that stores a corpus and stops itself at an exact place, by a signal that leaves it no time."""

import json
import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from nmtkit.data.batches import encoding, store
from nmtkit.data.batches.progress import PreprocessingProgress
from nmtkit.data.batches.store import Store, StoreWriter
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.checking import SplitReport
from tests.data.stored import blocks_of, checker, write_store


def preprocess(folder: Path, place: str, processes: int) -> None:
    """Stores what `folder` holds as `given`, or goes on with it, and writes to `told` what was there and the report.

    It stops itself at `place`.
    """
    store.SHARD_EXAMPLES, encoding.SERIAL_CHARACTERS = 150, 1
    settings, pairs, tokenizers = pickle.loads((folder / "given").read_bytes())

    def end(now: str) -> None:
        if now == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def read() -> Iterator[Example]:
        for pair in pairs:
            end(f"line {pair.line}")
            yield pair

    def noted(self: PreprocessingProgress, shards: int, report: SplitReport) -> None:
        end(f"shard {shards} is there")
        note(self, shards, report)
        end(f"shard {shards} is noted")

    def swept(self: StoreWriter) -> None:
        end("all is there")
        sweep(self)

    note, PreprocessingProgress.complete_shard = PreprocessingProgress.complete_shard, noted
    sweep, StoreWriter._remove_stale_files = StoreWriter._remove_stale_files, swept

    data, path = folder / "data", folder / "data" / "progress.json"
    before = PreprocessingProgress.load(path, "mark")
    going_on = before.n_read if before else 0
    if before is None:
        before = PreprocessingProgress(path, "mark", {"kind": "bpe"})
        before.save()
    if not Store.has_shards(data, "train", "mark", before.n_shards):
        before = PreprocessingProgress(path, "mark", before.tokenizer)
    check = checker(**settings)
    for block in blocks_of(pairs[20:23], "valid"):
        check.register(block)
    write_store(
        data, "train", read(), tokenizers, check, True, False, "mark", processes, before, size=60
    )
    write_store(data, "valid", pairs[20:23], tokenizers, check, True, False, "mark")
    path.unlink()
    (folder / "told").write_text(json.dumps([going_on, asdict(check.report)]))
