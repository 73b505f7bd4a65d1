"""Tokenized examples on disk, memory-mapped.

A split consists of a few flat files and a manifest. The manifest is written last: without it there is no store.

    NAME.json         manifest: number of examples, size and checksum of each file, fingerprint of the settings
    NAME.src.ids      all source ids concatenated, excluding EOS (uint16 if they fit, else int32)
    NAME.src.offsets  beginning of each source, and end of the last one: n+1 numbers, int64
    NAME.tgt.ids, NAME.tgt.offsets                   targets
    NAME.src_extended.ids, NAME.tgt_extended.ids     ids in the extended target vocabulary, for models that copy
    NAME.alignment.ids, NAME.alignment.offsets       links between tokens: source position, target position, ...
    NAME.src.text, NAME.src.text.offsets             text in UTF-8, if stored (also for tgt)
    NAME.labels.ids, NAME.labels.offsets             labels: one per example, or one per source token
    NAME.features, NAME.features.offsets             features, in the data type of the input; offsets count rows

For columns whose items are rows (features, and labels of examples, which are rows of width 1), the manifest also
contains the data type and the width.

A large split consists of several such sets, the shards NAME-0000, NAME-0001, ...; NAME.json contains their number.
"""

import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmtkit.core.errors import DataError
from nmtkit.core.files import bytes_checksum, with_checksum, write_errors, write_json
from nmtkit.data.batches.shards import (
    VERSION,
    Ids,
    RaggedArray,
    Shard,
    column_files,
    manifest_path,
    read_manifest,
)

SHARD_EXAMPLES = 500_000
"""Number of examples after which a shard is complete."""
SHARD_SIZE = 1 << 25
"""Total number of ids and bytes of text after which a shard is complete even if it has fewer examples."""


def _shard_name(name: str, number: int) -> str:
    return f"{name}-{number:04}"


class _File:
    """A flat file that is written under a temporary name; computes its size and checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115  # stays open; `StoreWriter` closes it
        self.size = 0
        """Number of bytes written."""
        self.checksum = 0

    def write(self, numbers: Ids) -> None:
        data = numbers.tobytes()
        self._file.write(data)
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def publish(self, path: Path, durable: bool) -> None:
        self._file.flush()
        if durable:
            os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._path, path)

    def discard(self) -> None:
        # If the disk is full, closing fails as well, because it flushes the buffer.
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class StoreMetadata:
    """Facts about a store that its manifest contains; the field names are the keys there."""

    fingerprint: str = ""
    """Fingerprint of the settings."""
    tgt_size: int
    """Size of the target vocabulary, V."""
    vocabulary: str = ""
    """Checksum of the vocabulary; "" if unknown."""


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """Writes one split, in a `with` statement.

    Files have temporary names at first. A store with one shard is published when the `with` block ends without an
    error; after an error, an older store remains unchanged. If there are several shards, an older store is removed as
    soon as the first shard is complete.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: npt.DTypeLike,
        metadata: StoreMetadata,
        n_shards: int = 0,
    ) -> None:
        """Prepares the first shard; its files are created when examples are added.

        Args:
            folder: folder of the store.
            name: name of the split.
            dtype: data type of the ids.
            metadata: saved in the manifest.
            n_shards: number of shards that an interrupted write has completed.
        """
        self._folder = folder
        self._name = name
        self._dtype = np.dtype(dtype)
        self._metadata = asdict(metadata)
        self.n_shards = n_shards
        """Number of complete shards."""
        self._start_shard()

    def _start_shard(self) -> None:
        self._files: dict[str, _File] = {}
        self._length = 0
        """Number of examples in the shard."""
        self._size = 0
        """Number of ids and bytes of text in the shard."""
        self._n_truncated: dict[str, int] = {}
        """Number of truncated texts by side."""
        self._examples_per_file: list[int] = []
        """Number of examples from each file of the split."""
        self._layouts: dict[str, dict[str, str | int]] = {}
        """Data type and width of the columns whose items are rows."""

    @property
    def full(self) -> bool:
        """Whether the current shard is complete."""
        return self._length >= SHARD_EXAMPLES or self._size >= SHARD_SIZE

    def add(
        self,
        columns: Mapping[str, RaggedArray],
        examples_per_file: Sequence[int] = (),
        n_truncated: Mapping[str, int] | None = None,
        features: Iterable[Ids] = (),
    ) -> None:
        """Appends examples; all calls must have the same columns.

        Args:
            columns: rows of each column; the module's docstring lists the names.
            examples_per_file: number of these examples from each file of the split.
            n_truncated: number of truncated texts by side.
            features: features `(R, F)` of each example; read and written one example at a time.
        """
        with write_errors(self._folder):
            for column, rows in columns.items():
                self._append(column, rows)
            for example in features:
                self._append("features", RaggedArray(np.array([len(example)]), example))
        if columns:
            self._length += max(len(rows.counts) for rows in columns.values())
        else:
            self._length += sum(examples_per_file)
        counts_of_files = zip_longest(self._examples_per_file, examples_per_file, fillvalue=0)
        self._examples_per_file = [sum(counts) for counts in counts_of_files]
        if n_truncated is not None:
            for side, count in n_truncated.items():
                self._n_truncated[side] = self._n_truncated.get(side, 0) + count

    def _append(self, column: str, rows: RaggedArray) -> None:
        values_file, offsets_file = column_files(column)
        offsets = self._file(offsets_file)
        values = self._file(values_file)
        dtype = self._dtype
        width = 1
        if column.endswith(".text"):
            dtype = np.dtype(np.uint8)
        if rows.flat.ndim == 2:
            dtype = rows.flat.dtype
            width = rows.flat.shape[1]
            self._layouts[column] = {"dtype": dtype.str, "width": width}
        if offsets.size == 0:
            offsets.write(np.zeros(1, dtype="<i8"))
        n_items = values.size // (dtype.itemsize * width)
        offsets.write(n_items + np.cumsum(rows.counts, dtype="<i8"))
        values.write(rows.flat.astype(dtype, copy=False))
        self._size += rows.flat.size

    def _file(self, name: str) -> "_File":
        if name not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary_path = self._folder / f"{self._name}.{name}.new"
            self._files[name] = _File(temporary_path)
        return self._files[name]

    def end_shard(self) -> None:
        """Publishes the examples added since the last call as a shard."""
        manifest = manifest_path(self._folder, self._name)
        shard = _shard_name(self._name, self.n_shards)
        with write_errors(self._folder):
            manifest.unlink(missing_ok=True)  # the manifest of an older store
            self._publish(shard, durable=True)
        self.n_shards += 1
        self._start_shard()

    def _publish(self, name: str, durable: bool) -> None:
        """Renames the files and writes the manifest; with `durable`, these survive a power failure."""
        manifest = manifest_path(self._folder, name)
        # Remove the old manifest first, so that a manifest never describes the files of a different store.
        manifest.unlink(missing_ok=True)
        for suffix, file in self._files.items():
            file.publish(self._folder / f"{name}.{suffix}", durable)
        content: dict[str, Any] = {
            "version": VERSION,
            "examples": self._length,
            "dtype": self._dtype.str,
        }
        content |= self._metadata
        content["cut"] = self._n_truncated
        content["by_file"] = self._examples_per_file
        if self._layouts:
            content["columns"] = self._layouts
        content["files"] = {}
        for suffix, file in self._files.items():
            content["files"][suffix] = {"size": file.size, "crc32": file.checksum}
        write_json(manifest, with_checksum(content), durable)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                with write_errors(self._folder):
                    self._finish()
        finally:
            for file in self._files.values():
                file.discard()

    def _finish(self) -> None:
        if self.n_shards == 0:
            self._publish(self._name, durable=False)
        else:
            if self._length:
                self.end_shard()
            manifest = {"version": VERSION, **self._metadata, "shards": self.n_shards}
            write_json(
                manifest_path(self._folder, self._name), with_checksum(manifest), durable=True
            )
        self._remove_stale_files()

    def _remove_stale_files(self) -> None:
        """Removes files left by an older store with the same name or by an interrupted write."""
        current = {self._name}
        if self.n_shards:
            current = {_shard_name(self._name, number) for number in range(self.n_shards)}
        shard_prefix = f"{self._name}-"
        for path in self._folder.iterdir():
            stem, _, suffix = path.name.partition(".")
            is_shard = stem.startswith(shard_prefix) and stem.removeprefix(shard_prefix).isdigit()
            belongs_to_store = stem == self._name or is_shard
            is_manifest = path.name == f"{self._name}.json"
            is_stale = stem not in current or suffix.endswith(".new")
            if belongs_to_store and is_stale and not is_manifest:
                path.unlink()


class Store:
    """One tokenized split on disk, in one or more shards; see `Store.open`."""

    def __init__(self, folder: Path, name: str, shards: list[Shard]) -> None:
        first_shard = shards[0]
        self.folder = folder
        self.name = name
        self.fingerprint = first_shard.fingerprint
        self.tgt_size = first_shard.tgt_size
        self._shards = shards
        self._starts = [0, *accumulate(map(len, shards))]
        """Index of the first example of each shard, followed by the total number of examples."""

    @classmethod
    def open(cls, folder: Path, name: str) -> "Store":
        """Opens a store; raises a DataError for a file that is missing, truncated or damaged."""
        manifest = read_manifest(folder, name)
        if "shards" not in manifest:
            shard = Shard(folder, name)
            # The offsets of several shards are too large to be read now, so they are checked when they are used.
            shard.check_offsets()
            return cls(folder, name, [shard])
        n_shards = manifest["shards"]
        if type(n_shards) is not int or n_shards < 1:
            raise DataError(
                f"{manifest_path(folder, name)}: damaged (number of shards); preprocess again"
            )
        shards = [Shard(folder, _shard_name(name, number)) for number in range(n_shards)]
        for shard in shards:
            if shard.fingerprint != manifest.get("fingerprint"):
                raise DataError(
                    f"{manifest_path(folder, shard.name)}: does not belong to {name}.json; preprocess again"
                )
        return cls(folder, name, shards)

    @staticmethod
    def is_current(
        folder: Path, name: str, fingerprint: str, notify: Callable[[str], None] = lambda text: None
    ) -> bool:
        """Returns whether there is an intact store with this fingerprint; reads the whole store and reports damage."""
        try:
            store = Store.open(folder, name)
            if store.fingerprint != fingerprint:
                return False
            store.check()
        except DataError as fault:
            if manifest_path(folder, name).exists():
                notify(f"{fault} (doing so now)")
            return False
        return True

    @staticmethod
    def has_shards(folder: Path, name: str, fingerprint: str, count: int) -> bool:
        """Returns whether the first `count` shards of an interrupted write are intact; reads all of them."""
        try:
            shards = [Shard(folder, _shard_name(name, number)) for number in range(count)]
            for shard in shards:
                shard.check()
        except DataError:
            return False
        return all(shard.fingerprint == fingerprint for shard in shards)

    def require_vocabulary(self, vocabulary: str) -> None:
        """Raises a DataError if the ids are known to come from a different vocabulary."""
        for shard in self._shards:
            if shard.vocabulary not in ("", vocabulary):
                raise DataError(
                    f"{self.folder}: {self.name} was preprocessed with a vocabulary that differs from the current "
                    "vocabulary of the run; restore the original vocabulary, or remove this folder and preprocess again"
                )

    def check(self) -> None:
        """Verifies the checksums of all files; raises a DataError if one differs."""
        for shard in self._shards:
            shard.check()

    def release(self) -> None:
        """Releases the memory of all data read so far."""
        for shard in self._shards:
            shard.release()

    @cached_property
    def identity(self) -> str:
        """Hash of the examples and their order."""
        files_by_shard = [shard.content for shard in self._shards]
        return bytes_checksum(json.dumps(files_by_shard).encode())

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def examples_per_file(self) -> list[int]:
        """Number of examples from each file of the split; examples from the same file are consecutive."""
        counts_by_shard = [shard.examples_per_file for shard in self._shards]
        return [sum(counts) for counts in zip_longest(*counts_by_shard, fillvalue=0)]

    def has(self, column: str) -> bool:
        """Returns whether the store has a column, such as "src", "tgt_extended", "labels" or "features"."""
        return self._shards[0].has(column)

    def lengths(self, column: str, numbers: Ids | None = None) -> npt.NDArray[np.int32]:
        """Returns the number of ids (excluding EOS) or feature rows in each of these examples, or in all, `(n,)`."""
        if numbers is None:
            return np.concatenate([shard.lengths(column) for shard in self._shards])
        # In ascending order, the numbers in each shard form a contiguous slice.
        order = np.argsort(numbers)  # (n,)
        ascending = numbers[order]  # (n,)
        bounds = np.searchsorted(ascending, self._starts)  # (shards + 1,)
        lengths = np.empty(len(numbers), dtype=np.int32)  # (n,)
        for position, shard in enumerate(self._shards):
            begin = bounds[position]
            end = bounds[position + 1]
            if begin < end:
                rows = ascending[begin:end] - self._starts[position]
                lengths[order[begin:end]] = shard.lengths(column, rows)
        return lengths

    def count_longer(self, side: str, limit: int) -> int:
        """Returns how many examples had more than `limit` tokens on a side, "src" or "tgt", before truncation."""
        longer = 0
        for shard in self._shards:
            longer += int((shard.lengths(side) > limit).sum())
            shard.release()
        if longer:
            # Truncated texts are already counted, because they are the longest stored texts.
            return longer
        # All stored texts are within the limit, so only truncated texts can have been longer.
        return sum(shard.n_truncated.get(side, 0) for shard in self._shards)

    def ids(self, column: str, number: int) -> Ids:
        """Returns the ids of one example as a read-only view.

        The label of an example has shape `(1, 1)`; features have shape `(R, F)`.
        """
        position = bisect_right(self._starts, number) - 1
        return self._shards[position].row(column, number - self._starts[position])

    def text(self, side: str, number: int) -> str:
        """Returns the text of one example on a side, "src" or "tgt"."""
        return self.ids(f"{side}.text", number).tobytes().decode("utf-8")
