"""Tokenized examples on disk, memory-mapped.

A split is a few flat files and a manifest, which is written last: without it there is no store.

    NAME.json         the manifest: number of examples, size and checksum of each file, a fingerprint of the settings
    NAME.src.ids      all source ids concatenated, without EOS (uint16 if they fit, else int32)
    NAME.src.offsets  where each source begins, and the end of the last: n+1 numbers, int64
    NAME.tgt.ids, NAME.tgt.offsets                   targets
    NAME.src_extended.ids, NAME.tgt_extended.ids     ids in the extended target vocabulary, for models that copy
    NAME.alignment.ids, NAME.alignment.offsets       links between tokens: source position, target position, ...
    NAME.src.text, NAME.src.text.offsets             text in UTF-8, if stored (also for tgt)
    NAME.labels.ids, NAME.labels.offsets             labels: one for each example, or one for each source token
    NAME.features, NAME.features.offsets             features as they are given, float16 or float32; offsets count rows

Where a column consists of rows (features; labels of examples, which are rows of one), the manifest has their type and
width.

A large split has several such sets, shards, called NAME-0000, NAME-0001, ...; NAME.json has their number.
"""

import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from itertools import accumulate, zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmtkit.core.errors import DataError
from nmtkit.core.files import bytes_checksum, with_checksum, write_errors, write_json
from nmtkit.data.batches.shards import VERSION, Ids, RaggedArray, Shard, column_files, manifest_path, read_manifest

SHARD_EXAMPLES = 500_000
SHARD_SIZE = 1 << 25
"""The size of a shard: so many examples, or so many ids and bytes of text."""


def _shard_name(name: str, number: int) -> str:
    return f"{name}-{number:04}"


class _File:
    """A flat file under a temporary name, with its size and checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115  # closed by the writer that owns it
        self.size = 0
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
        with suppress(OSError):  # what is still held back finds no more room on a full disk than the rest did
            self._file.close()
        self._path.unlink(missing_ok=True)


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """Writes one split, in a `with` statement.

    Files have temporary names at first. A store of one shard is published when the block ends without a fault; a fault
    leaves an older store as it was. The first complete shard of several removes an older store.

    The manifest keeps V (`tgt_size`), the fingerprint and the checksum of the vocabulary, empty if unknown. `shards`
    are complete already.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: npt.DTypeLike,
        tgt_size: int,
        fingerprint: str = "",
        shards: int = 0,
        vocabulary: str = "",
    ) -> None:
        self._folder = folder
        self._name = name
        self._dtype = np.dtype(dtype)
        self._facts = {"fingerprint": fingerprint, "tgt_size": tgt_size, "vocabulary": vocabulary}
        self.shards = shards
        """Complete shards."""
        self._start_shard()

    def _start_shard(self) -> None:
        self._files: dict[str, _File] = {}
        self._length = self._size = 0  # examples; ids and bytes of text
        self._cut: dict[str, int] = {}
        self._by_file: list[int] = []
        self._columns: dict[str, dict[str, str | int]] = {}

    @property
    def full(self) -> bool:
        """Whether the shard is complete."""
        return self._length >= SHARD_EXAMPLES or self._size >= SHARD_SIZE

    def add(
        self,
        columns: Mapping[str, RaggedArray],
        by_file: Sequence[int] = (),
        cut: Mapping[str, int] | None = None,
        features: Iterable[Ids] = (),
    ) -> None:
        """Appends some examples; every call gives the same columns, called as in the head of this file.

        `by_file` says how many of them come from each file of the split, `cut` by side how many were cut to be stored.
        The `features` of each, `(R,F)`, are written one after the other.
        """
        with write_errors(self._folder):
            for column, rows in columns.items():
                self._append(column, rows)
            for one in features:
                self._append("features", RaggedArray(np.array([len(one)]), one))
        self._length += max((len(rows.counts) for rows in columns.values()), default=sum(by_file))
        self._by_file = [sum(pair) for pair in zip_longest(self._by_file, by_file, fillvalue=0)]
        for side, count in (cut or {}).items():
            self._cut[side] = self._cut.get(side, 0) + count

    def _append(self, column: str, rows: RaggedArray) -> None:
        ends, values = (self._file(name) for name in reversed(column_files(column)))
        dtype, width = np.dtype(np.uint8) if column.endswith(".text") else self._dtype, 1
        if rows.flat.ndim == 2:
            dtype, width = rows.flat.dtype, rows.flat.shape[1]
            self._columns[column] = {"dtype": dtype.str, "width": width}
        if not ends.size:
            ends.write(np.zeros(1, dtype="<i8"))
        ends.write(values.size // (dtype.itemsize * width) + np.cumsum(rows.counts, dtype="<i8"))
        values.write(rows.flat.astype(dtype, copy=False))
        self._size += rows.flat.size

    def _file(self, name: str) -> "_File":
        if name not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = _File(self._folder / f"{self._name}.{name}.new")
        return self._files[name]

    def end_shard(self) -> None:
        """Publishes the examples so far as a shard."""
        with write_errors(self._folder):
            manifest_path(self._folder, self._name).unlink(missing_ok=True)
            self._publish(_shard_name(self._name, self.shards), durable=True)
        self.shards += 1
        self._start_shard()

    def _publish(self, name: str, durable: bool) -> None:
        """Renames the files, and writes the manifest. `durable`: they survive a power cut."""
        manifest = manifest_path(self._folder, name)
        # The old manifest goes first: at no moment does one describe files that are not its own.
        manifest.unlink(missing_ok=True)
        for suffix, file in self._files.items():
            file.publish(self._folder / f"{name}.{suffix}", durable)
        content = {"version": VERSION, "examples": self._length, "dtype": self._dtype.str, **self._facts}
        content |= {"cut": self._cut, "by_file": self._by_file}
        content |= {"columns": self._columns} if self._columns else {}
        content["files"] = {suffix: {"size": one.size, "crc32": one.checksum} for suffix, one in self._files.items()}
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
        if not self.shards:
            self._publish(self._name, durable=False)
        else:
            if self._length:
                self.end_shard()
            manifest = {"version": VERSION, **self._facts, "shards": self.shards}
            write_json(manifest_path(self._folder, self._name), with_checksum(manifest), durable=True)
        self._sweep()

    def _sweep(self) -> None:
        """Removes the files of an older store of that name, and of an interrupted write."""
        kept = {_shard_name(self._name, number) for number in range(self.shards)} or {self._name}
        for path in self._folder.iterdir():
            stem, _, rest = path.name.partition(".")
            own = stem == self._name or (stem.startswith(f"{self._name}-") and stem[len(self._name) + 1 :].isdigit())
            is_manifest = path.name == f"{self._name}.json"
            if own and not is_manifest and (stem not in kept or rest.endswith(".new")):
                path.unlink()


class Store:
    """One tokenized split on disk; see `Store.open`."""

    def __init__(self, folder: Path, name: str, shards: list[Shard]) -> None:
        self.folder = folder
        self.name = name
        self.fingerprint = shards[0].fingerprint
        self.tgt_size = shards[0].tgt_size
        self._shards = shards
        self._starts = [0, *accumulate(map(len, shards))]

    @classmethod
    def open(cls, folder: Path, name: str) -> "Store":
        """Opens a store; DataError names a file that is missing, truncated or damaged."""
        manifest = read_manifest(folder, name)
        if "shards" not in manifest:
            shard = Shard(folder, name)
            shard.check_offsets()  # several shards are too many to read: their lengths are checked as they are needed
            return cls(folder, name, [shard])
        if type(manifest["shards"]) is not int or manifest["shards"] < 1:
            raise DataError(f"{manifest_path(folder, name)}: damaged (its number of shards); preprocess again")
        shards = [Shard(folder, _shard_name(name, number)) for number in range(manifest["shards"])]
        for shard in shards:
            if shard.fingerprint != manifest.get("fingerprint"):
                raise DataError(f"{manifest_path(folder, shard.name)}: not of this store; preprocess again")
        return cls(folder, name, shards)

    @staticmethod
    def is_current(
        folder: Path, name: str, fingerprint: str, notify: Callable[[str], None] = lambda text: None
    ) -> bool:
        """Whether there is a complete store with that fingerprint; reads it once, and notifies of damage."""
        try:
            store = Store.open(folder, name)
            if store.fingerprint != fingerprint:
                return False
            store.check()
        except DataError as fault:
            if manifest_path(folder, name).exists():
                notify(f"{fault}: this is done now")
            return False
        return True

    @staticmethod
    def has_shards(folder: Path, name: str, fingerprint: str, count: int) -> bool:
        """Whether the first shards of an interrupted store are complete; reads them once."""
        try:
            shards = [Shard(folder, _shard_name(name, number)) for number in range(count)]
            for shard in shards:
                shard.check()
        except DataError:
            return False
        return all(shard.fingerprint == fingerprint for shard in shards)

    def require_vocabulary(self, vocabulary: str) -> None:
        """DataError if the ids are of another vocabulary, as far as the store knows its own."""
        if any(shard.vocabulary not in ("", vocabulary) for shard in self._shards):
            raise DataError(
                f"{self.folder}: {self.name} was made with another vocabulary than the run has now; "
                "copy the right one again, or remove this folder and preprocess again"
            )

    def check(self) -> None:
        """Checks all shards."""
        for shard in self._shards:
            shard.check()

    def release(self) -> None:
        """Gives back the memory of what was read so far."""
        for shard in self._shards:
            shard.release()

    @cached_property
    def identity(self) -> str:
        """A hash of the examples and their order."""
        return bytes_checksum(json.dumps([shard.content for shard in self._shards]).encode())

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def by_file(self) -> list[int]:
        """Examples of each file of the split, which are consecutive."""
        return [sum(counts) for counts in zip_longest(*(shard.by_file for shard in self._shards), fillvalue=0)]

    def has(self, column: str) -> bool:
        """Whether there is a column, such as "src", "tgt_extended", "labels" or "features"."""
        return self._shards[0].has(column)

    def lengths(self, column: str, numbers: Ids | None = None) -> npt.NDArray[np.int32]:
        """The number of ids of these examples, or of all, `(n,)`, without EOS; of "features" the number of rows, R."""
        if numbers is None:
            return np.concatenate([shard.lengths(column) for shard in self._shards])
        order = np.argsort(numbers)
        rows, found = numbers[order], np.empty(len(numbers), dtype=np.int32)
        cuts = np.searchsorted(rows, self._starts)
        for shard, start, begin, end in zip(self._shards, self._starts, cuts, cuts[1:], strict=False):
            if begin < end:
                found[order[begin:end]] = shard.lengths(column, rows[begin:end] - start)
        return found

    def count_longer(self, side: str, limit: int) -> int:
        """Examples with more tokens on a side ("src" or "tgt"), truncated ones included."""
        # Nothing is longer than what was cut to be stored: where anything is over the limit, that is counted as well.
        longer = 0
        for shard in self._shards:
            longer += int((shard.lengths(side) > limit).sum())
            shard.release()
        return longer or sum(shard.cut.get(side, 0) for shard in self._shards)

    def ids(self, column: str, number: int) -> Ids:
        """The ids of one example; a read-only view. A label of an example is `(1,1)`, its features are `(R,F)`."""
        place = bisect_right(self._starts, number) - 1
        return self._shards[place].row(column, number - self._starts[place])

    def text(self, side: str, number: int) -> str:
        """The text of one example."""
        return self.ids(f"{side}.text", number).tobytes().decode("utf-8")
