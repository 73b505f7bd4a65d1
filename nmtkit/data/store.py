"""Tokenized examples on disk, read through the operating system's page cache: memory does not grow with the corpus.

A split is a few flat files and one small JSON file, the manifest, that is written last: without it there is no store.

    NAME.json         the manifest: how many examples, every file's size and checksum, a fingerprint of the settings
    NAME.src.ids      all source ids one after the other, without EOS (uint16 where they fit, else int32)
    NAME.src.offsets  where each source begins, and the end of the last: n+1 numbers, int64
    NAME.tgt.ids, NAME.tgt.offsets                   the same for targets
    NAME.src_extended.ids, NAME.tgt_extended.ids     ids in the extended target vocabulary, for models that copy
    NAME.alignment.ids, NAME.alignment.offsets       links between tokens where there are any: source position, target
                                                     position, source position, ...
    NAME.src.text, NAME.src.text.offsets             raw text, UTF-8, where it is kept (also for tgt)

A large split is several such sets, shards, called NAME-0000, NAME-0001, ..., each complete; NAME.json says how many.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, zip_longest
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from nmtkit.core.errors import DataError
from nmtkit.core.files import with_checksum
from nmtkit.data.shards import (
    VERSION,
    Ids,
    RaggedArray,
    Shard,
    ShardWriter,
    manifest_path,
    read_manifest,
    write_manifest,
)

SHARD_EXAMPLES = 500_000
SHARD_SIZE = 1 << 25
"""A shard is complete when it has so many examples, or so many ids and bytes of text."""


def _shard_name(name: str, number: int) -> str:
    return f"{name}-{number:04}"


class StoreWriter:
    """Writes one split, some examples at a time; to be used in a `with` statement.

    Everything has temporary names at first. A store of one shard takes its place when the block ends without a fault; a
    fault leaves an older store of that name as it was. The first complete shard of several removes an older store.

    The manifest keeps V (`tgt_size`), the fingerprint and the checksum of the vocabulary, empty if it is not known.
    Writing goes on after so many `shards`.

    Raises:
        DataError: the folder cannot be written.
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
        """How many are complete."""
        self._begin()

    def _begin(self) -> None:
        self._shard = ShardWriter(self._folder, self._name, self._dtype)
        self._cut: dict[str, int] = {}
        self._by_file: list[int] = []

    def __enter__(self) -> "StoreWriter":
        return self

    @property
    def full(self) -> bool:
        """Whether the shard is large enough."""
        return self._shard.length >= SHARD_EXAMPLES or self._shard.size >= SHARD_SIZE

    def add(
        self,
        columns: Mapping[str, RaggedArray],
        by_file: Iterable[int] = (),
        cut: Mapping[str, int] | None = None,
    ) -> None:
        """Appends some examples; every call gives the same columns.

        The columns are "src", "tgt", "src_extended", "tgt_extended" (ids), "alignment" (links), "src.text", "tgt.text".
        `by_file` says how many of them come from each file of the split, `cut` by side how many were cut to be stored.
        """
        try:
            self._shard.add(columns)
        except OSError as fault:
            raise self._unwritable(fault) from fault
        self._by_file = [sum(pair) for pair in zip_longest(self._by_file, by_file, fillvalue=0)]
        for side, count in (cut or {}).items():
            self._cut[side] = self._cut.get(side, 0) + count

    def end_shard(self) -> None:
        """Publishes what was added as a shard that stays, whatever happens from now on."""
        try:
            manifest_path(self._folder, self._name).unlink(missing_ok=True)
            self._publish(_shard_name(self._name, self.shards), durable=True)
        except OSError as fault:
            raise self._unwritable(fault) from fault
        self.shards += 1
        self._begin()

    def _publish(self, name: str, durable: bool) -> None:
        self._shard.publish(name, {**self._facts, "cut": self._cut, "by_file": self._by_file}, durable)

    def _unwritable(self, fault: OSError) -> DataError:
        return DataError(f"{self._folder}: cannot write the data there: {fault.strerror}")

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                return
            if not self.shards:
                self._publish(self._name, durable=False)
            else:
                if self._shard.length:
                    self.end_shard()
                manifest = {"version": VERSION, **self._facts, "shards": self.shards}
                write_manifest(manifest_path(self._folder, self._name), with_checksum(manifest), durable=True)
            self._sweep()
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            self._shard.discard()

    def _sweep(self) -> None:
        """Removes the files of an earlier store of that name, and of a writing that was killed."""
        kept = {_shard_name(self._name, number) for number in range(self.shards)} or {self._name}
        for path in self._folder.iterdir():
            stem, _, rest = path.name.partition(".")
            own = stem == self._name or (stem.startswith(f"{self._name}-") and stem[len(self._name) + 1 :].isdigit())
            manifest = stem == self._name and rest == "json"
            if own and not manifest and (stem not in kept or rest.endswith(".new")):
                path.unlink()


class Store:
    """One tokenized split on disk, opened for reading. Build it with `Store.open`."""

    def __init__(self, folder: Path, name: str, shards: list[Shard]) -> None:
        self.folder = folder
        self.name = name
        self.fingerprint = shards[0].fingerprint
        self.tgt_size = shards[0].tgt_size
        self._shards = shards
        self._starts = [0, *accumulate(map(len, shards))]

    @classmethod
    def open(cls, folder: Path, name: str) -> "Store":
        """Opens what `StoreWriter` wrote.

        Raises:
            DataError: it is missing, cut short or damaged; the message names the file.
        """
        manifest = read_manifest(folder, name)
        if "shards" not in manifest:
            return cls(folder, name, [Shard(folder, name, manifest)])
        if type(manifest["shards"]) is not int or manifest["shards"] < 1:
            raise DataError(f"{manifest_path(folder, name)}: damaged (its number of shards); preprocess again")
        parts = [_shard_name(name, number) for number in range(manifest["shards"])]
        shards = [Shard(folder, part, read_manifest(folder, part)) for part in parts]
        for shard in shards:
            if shard.fingerprint != manifest.get("fingerprint"):
                raise DataError(f"{manifest_path(folder, shard.name)}: not of this store; preprocess again")
        return cls(folder, name, shards)

    @staticmethod
    def is_current(
        folder: Path, name: str, fingerprint: str, notify: Callable[[str], None] = lambda text: None
    ) -> bool:
        """Whether there is a whole store with that fingerprint; reads it once, and tells in a sentence of damage."""
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
        """Whether the first shards of a store that was not finished are there and whole; reads them once."""
        try:
            for number in range(count):
                part = _shard_name(name, number)
                shard = Shard(folder, part, read_manifest(folder, part))
                shard.check()
                if shard.fingerprint != fingerprint:
                    return False
        except DataError:
            return False
        return True

    def require_vocabulary(self, vocabulary: str) -> None:
        """Makes sure that the ids are those of this vocabulary, where the store knows its own.

        Raises:
            DataError: they are of another.
        """
        if any(shard.vocabulary not in ("", vocabulary) for shard in self._shards):
            raise DataError(
                f"{self.folder}: {self.name} was made with another vocabulary than the run has now; "
                "copy the right one again, or remove this folder and preprocess again"
            )

    def check(self) -> None:
        """Checks every shard, see `Shard.check`."""
        for shard in self._shards:
            shard.check()

    @property
    def identity(self) -> str:
        """A short text that is another for other examples, or for the same in another order."""
        content = json.dumps([shard.content for shard in self._shards])
        return hashlib.sha256(content.encode("utf-8")).hexdigest()[:32]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def by_file(self) -> list[int]:
        """How many examples come from each file of the split; those of a file are together, in the order of files."""
        return [sum(counts) for counts in zip_longest(*(shard.by_file for shard in self._shards), fillvalue=0)]

    def has(self, column: str) -> bool:
        """Whether there are such ids: "src", "tgt", "src_extended", "tgt_extended", "alignment"."""
        return self._shards[0].has(column)

    def has_text(self, side: str) -> bool:
        """Whether raw text of this side was kept."""
        return self._shards[0].has(f"{side}.text")

    def lengths(self, column: str) -> npt.NDArray[np.int32]:
        """The number of ids of every example, `(n,)`; EOS not counted."""
        return np.concatenate([shard.lengths(column) for shard in self._shards])

    def longer(self, side: str, limit: int) -> int:
        """How many examples have more tokens than that on one side ("src" or "tgt"), those cut when stored included."""
        # Nothing is longer than what was cut to be stored: where anything is over the limit, that is counted as well.
        return int((self.lengths(side) > limit).sum()) or sum(shard.cut.get(side, 0) for shard in self._shards)

    def ids(self, column: str, number: int) -> Ids:
        """The ids of one example; a view of the file, not to be written."""
        place = bisect_right(self._starts, number) - 1
        return self._shards[place].row(column, number - self._starts[place])

    def text(self, side: str, number: int) -> str:
        """The raw text of one example ("src" or "tgt")."""
        return self.ids(f"{side}.text", number).tobytes().decode("utf-8")
