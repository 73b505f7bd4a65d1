"""From text to a store: it is checked, encoded and written shard by shard, and gone on with where it was stopped."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.data.blocks import Block
from nmtkit.data.checking import Checker, SplitReport
from nmtkit.data.encoding import Encoder, encoded_blocks
from nmtkit.data.shards import VERSION, write_manifest
from nmtkit.data.store import StoreWriter
from nmtkit.errors import DataError
from nmtkit.settings import parse_json


def fingerprint(settings: Mapping[str, Any], paths: Iterable[str]) -> str:
    """A short text that changes when the settings or the input files (size or time of change) do.

    Raises:
        DataError: a file is missing.
    """
    files = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as fault:
            raise DataError(f"{path}: cannot read it: {fault.strerror}") from fault
        files.append((path, status.st_size, status.st_mtime_ns))
    text = json.dumps([VERSION, settings, files], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


class FileSums:
    """Takes the SHA-256 of files while they are read: a `Watch`."""

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}

    def __call__(self, path: str) -> Callable[[bytes], object]:
        """Begins with a file."""
        self._digests[path] = hashlib.sha256()
        return self._digests[path].update

    def of(self, paths: Iterable[str]) -> dict[str, str]:
        """The sum of each file; of a folder that of its stories, by name. What was not read on the way is read now.

        Raises:
            DataError: a file cannot be read.
        """
        try:
            return {path: self._of_file(path) for path in paths}
        except OSError as fault:
            raise DataError(f"{fault.filename}: cannot read it: {fault.strerror}") from fault

    def _of_file(self, path: str) -> str:
        files = sorted(Path(path).glob("*.story")) if os.path.isdir(path) else [Path(path)]
        total = hashlib.sha256()
        for file in files:
            total.update(file.name.encode() if len(files) > 1 else b"")
            if path in self._digests:
                total.update(self._digests[path].digest())
            else:
                with open(file, "rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()


@dataclass
class ShardProgress:
    """How far preprocessing has come. Only train has shards here: the other splits are done again.

    Its file is there from the moment when the tokenizer is ready until everything is.
    """

    path: Path
    fingerprint: str
    tokenizer: Mapping[str, str | int]
    """What the report says of it."""
    shards: int = 0
    """Shards of train that are complete, made of the first `read` pairs."""
    read: int = 0
    report: Mapping[str, Any] | None = None
    """Of train up to there."""

    def shard_done(self, shards: int, report: SplitReport) -> None:
        """Notes that one more shard is complete, and saves."""
        self.shards, self.read, self.report = shards, report.read, report.as_dict()
        self.save()

    def forget_shards(self) -> None:
        """Begins with the first pair again; the tokenizer stays."""
        self.shards, self.read, self.report = 0, 0, None

    def save(self) -> None:
        """Writes the file.

        Raises:
            DataError: it cannot be written.
        """
        try:
            write_manifest(self.path, {key: value for key, value in vars(self).items() if key != "path"}, durable=True)
        except OSError as fault:
            raise DataError(f"{self.path}: cannot write it: {fault.strerror}") from fault

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "ShardProgress | None":
        """What a preprocessing with that fingerprint left; None if there is none that was stopped."""
        try:
            content = parse_json(path.read_bytes(), path.name)
            progress = cls(path, **content)
            if progress.report is not None:
                SplitReport.from_dict(progress.report)
        except (OSError, DataError, TypeError, KeyError):
            return None
        return progress if progress.fingerprint == fingerprint else None


def fill_store(
    folder: Path,
    blocks: Iterable[Block],
    encoder: Encoder,
    checker: Checker,
    fingerprint: str = "",
    processes: int = 1,
    progress: ShardProgress | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> int:
    """Checks, encodes and stores the sound blocks of one split; memory does not grow with it.

    Train is thinned out as the checker's settings say, the other splits are checked only. One checker sees all splits,
    train first; its report is filled. Complete shards are noted in `progress`; those noted there are not done again.

    Returns:
        The number of examples stored.

    Raises:
        DataError: the input is faulty, no example is left, or the folder cannot be written.
    """
    name, tokenizers = encoder.split, encoder.tokenizers
    if progress is not None and progress.report is not None:
        blocks = _after(progress.read, blocks, checker)
        checker.report.splits[name] = SplitReport.from_dict(progress.report)
    split = checker.report.splits.setdefault(name, SplitReport())
    sizes = len(tokenizers.tgt.vocabulary), fingerprint, progress.shards if progress else 0
    with (
        StoreWriter(folder, name, encoder.dtype, *sizes, tokenizers.sum) as writer,
        closing(encoded_blocks(blocks, encoder, checker, processes)) as encoded,
    ):
        for done in encoded:
            if writer.full:
                writer.end_shard()
                if progress is not None:
                    progress.shard_done(writer.shards, split)
                notify(f"{name}: {split.read:,} pairs read, {split.kept:,} stored")
            stays, lengths = done.settle(name, checker), done.encoded.lengths
            over = {side: int((lengths[side][stays] > (encoder.limit(side) or np.inf)).sum()) for side in lengths}
            columns = {column: rows.where(stays) for column, rows in done.encoded.columns.items()}
            writer.add(columns, np.bincount(done.chunk.files[stays]).tolist(), over)
        if not split.kept:
            raise DataError(
                f"{name}: no pair is left of {split.read}; look at max_length, max_ratio and the files themselves"
            )
    return split.kept


def _after(count: int, blocks: Iterable[Block], checker: Checker) -> Iterator[Block]:
    """What comes after the first pairs; the checker sees those too, for it must know them to find what comes again."""
    for block in blocks:
        if block.before >= count:
            yield block
            continue
        checker.judge(block.part(0, count - block.before))
        if block.before + len(block) > count:
            yield block.part(count - block.before, len(block))
