"""Memory-mapped flat files of tokenized examples and their manifest, which form a store or one of its shards."""

import errno
import zlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nmtkit.core.errors import DataError
from nmtkit.core.files import verify_checksum
from nmtkit.core.formats import parse_json

Ids: TypeAlias = npt.NDArray[Any]
"""Token ids, or the values of other columns."""
Counts: TypeAlias = npt.NDArray[np.int64]

VERSION = 1
"""Version of the storage format; text stored in a different version must be preprocessed again."""


def row_lengths(rows: Sequence[Sized]) -> Counts:
    """Returns the length of each row, `(n,)`."""
    return np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))


@dataclass(frozen=True)
class RaggedArray:
    """n concatenated rows of different lengths, with C items in total."""

    counts: Counts
    """Number of items in each row, `(n,)`."""
    flat: Ids
    """All items `(C,)`, or `(C, width)` if each item is itself a row of numbers."""

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], dtype: npt.DTypeLike) -> "RaggedArray":
        """Concatenates rows of numbers."""
        counts = row_lengths(rows)  # (n,)
        n_items = int(counts.sum())
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=n_items)  # (C,)
        return cls(counts, flat.astype(dtype))

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> "RaggedArray":
        """Concatenates the UTF-8 bytes of texts."""
        encoded = [text.encode("utf-8") for text in texts]
        flat = np.frombuffer(b"".join(encoded), dtype=np.uint8)  # (C,)
        return cls(row_lengths(encoded), flat)

    def where(self, keep: npt.NDArray[np.bool_]) -> "RaggedArray":
        """Returns the rows for which `keep`, `(n,)`, is True."""
        if keep.all():
            return self
        is_kept_item = np.repeat(keep, self.counts)  # (C,)
        return RaggedArray(self.counts[keep], self.flat[is_kept_item])


def column_files(column: str) -> tuple[str, str]:
    """Returns the file suffixes of a column's values and offsets."""
    if column.endswith(".text") or column == "features":
        return column, f"{column}.offsets"
    return f"{column}.ids", f"{column}.offsets"


def manifest_path(folder: Path, name: str) -> Path:
    """Returns the path of the manifest of a store or shard."""
    return folder / f"{name}.json"


def read_manifest(folder: Path, name: str) -> dict[str, Any]:
    """Reads a manifest; raises a DataError if it is missing, damaged or of a different version."""
    path = manifest_path(folder, name)
    try:
        if path.exists() and not path.is_file():  # reading a named pipe would block
            raise OSError(errno.EINVAL, "not a file")
        manifest = parse_json(path.read_bytes(), path.name)
        if manifest["version"] == VERSION:
            return verify_checksum(manifest)
    except OSError as fault:
        raise DataError(
            f"{path}: no preprocessed data found ({fault.strerror}); run `nmtkit preprocess`"
        ) from fault
    except (DataError, ValueError, KeyError, TypeError) as fault:
        raise DataError(f"{path}: damaged ({fault}); preprocess again") from fault
    raise DataError(f"{path}: written by a different version of nmtkit; preprocess again")


class Shard:
    """The files of a store or shard, mapped when they are first read.

    Raises a DataError if a file is missing, truncated or damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        manifest = read_manifest(folder, name)
        try:
            self.fingerprint: str = manifest["fingerprint"]
            self.tgt_size: int = manifest["tgt_size"]
            self.vocabulary: str = manifest["vocabulary"]
            self.n_truncated: dict[str, int] = manifest["cut"]
            """Number of truncated texts by side."""
            self.examples_per_file: list[int] = manifest["by_file"]
            """Number of examples from each file of the split."""
            self._length: int = manifest["examples"]
            self._dtype = np.dtype(manifest["dtype"])
            self._files: dict[str, dict[str, int]] = manifest["files"]
            """Size and checksum of each file."""
            self._layouts: dict[str, tuple[np.dtype[Any], int]] = {}
            """Data type and width of the files whose items are rows."""
            for column, layout in manifest.get("columns", {}).items():
                values, _ = column_files(column)
                dtype = np.dtype(layout["dtype"])
                self._layouts[values] = (dtype, int(layout["width"]))
            self._array = cache(self._map)
            """Returns the items of a file; the first call for a file maps it."""
            for file in self._files:
                self._check_size(file)
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise DataError(
                f"{manifest_path(folder, name)}: damaged ({fault}); preprocess again"
            ) from fault

    def _path(self, file: str) -> Path:
        return self.folder / f"{self.name}.{file}"

    def _check_size(self, file: str) -> None:
        path = self._path(file)
        expected = self._files[file]["size"]
        try:
            size = path.stat().st_size
        except OSError as fault:
            raise DataError(f"{path}: missing ({fault.strerror}); preprocess again") from fault
        if size != expected:
            raise DataError(f"{path}: has {size} bytes instead of {expected}; preprocess again")

    def _map(self, file: str) -> Ids:
        dtype = self._dtype
        width = None
        if file in self._layouts:
            dtype, width = self._layouts[file]
        elif file.endswith("offsets"):
            dtype = np.dtype("<i8")
        elif file.endswith("text"):
            dtype = np.dtype("u1")
        if self._files[file]["size"] == 0:
            flat = np.zeros(0, dtype=dtype)  # an empty file cannot be mapped
        else:
            mapped = np.memmap(self._path(file), dtype=dtype, mode="r")
            # A plain array that shares the memory, because slicing an `np.memmap` is slow.
            flat = np.asarray(mapped)
        if width is not None:
            return flat.reshape(-1, width)
        return flat

    def check_offsets(self) -> None:
        """Reads all offsets; raises a DataError if they are inconsistent with the values."""
        for file in self._files:
            if not file.endswith(".offsets"):
                continue
            column = file.removesuffix(".offsets")
            values, _ = column_files(column)
            offsets = self._array(file)
            n_items = len(self._array(values))
            is_complete = len(offsets) == self._length + 1
            if not is_complete or offsets[0] != 0 or offsets[-1] != n_items:
                raise DataError(f"{self._path(file)}: damaged; preprocess again")
            self.lengths(column)

    def release(self) -> None:
        """Releases the memory of all data read so far, except for rows that are still in use."""
        self._array.cache_clear()

    @property
    def content(self) -> list[tuple[str, int, int]]:
        """Name, size and checksum of each file, sorted by name."""
        content = []
        for file, facts in self._files.items():
            content.append((file, facts["size"], facts["crc32"]))
        return sorted(content)

    def check(self) -> None:
        """Verifies the checksums of all files; raises a DataError if one differs."""
        for name, expected in self._files.items():
            checksum = 0
            with open(self._path(name), "rb") as file:
                while block := file.read(1 << 20):
                    checksum = zlib.crc32(block, checksum)
            if checksum != expected["crc32"]:
                raise DataError(
                    f"{self._path(name)}: damaged (checksum mismatch); preprocess again"
                )

    def __len__(self) -> int:
        return self._length

    def has(self, column: str) -> bool:
        """Returns whether the shard has this column."""
        values, _ = column_files(column)
        return values in self._files

    def lengths(self, column: str, rows: Ids | None = None) -> npt.NDArray[np.int32]:
        """Returns the lengths `(n,)` of these rows of a column, or of all rows.

        Raises a DataError if a length is negative.
        """
        _, offsets_file = column_files(column)
        offsets = self._array(offsets_file)
        if rows is None:
            lengths = np.diff(offsets)
        else:
            # `offsets[1:]` is a view, so this needs no second index array `rows + 1`.
            lengths = offsets[1:][rows] - offsets[rows]
        if len(lengths) and lengths.min() < 0:
            raise DataError(f"{self._path(offsets_file)}: damaged; preprocess again")
        return lengths.astype(np.int32)

    def row(self, column: str, number: int) -> Ids:
        """Returns one row of a column as a read-only view."""
        values_file, offsets_file = column_files(column)
        offsets = self._array(offsets_file)
        return self._array(values_file)[offsets[number] : offsets[number + 1]]
