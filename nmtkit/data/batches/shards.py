"""Flat files of tokenized examples and their manifest, memory-mapped: a whole store, or one shard of it."""

import errno
import zlib
from collections.abc import Sequence
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
Counts: TypeAlias = npt.NDArray[np.int64]

VERSION = 1


@dataclass(frozen=True)
class RaggedArray:
    """n rows of different lengths `(n,)`, concatenated in `flat`, which has a second axis where each item is a row."""

    counts: Counts
    flat: Ids

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: npt.DTypeLike) -> "RaggedArray":
        """Concatenates rows of numbers."""
        counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(counts.sum()))
        return cls(counts, flat.astype(dtype))

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "RaggedArray":
        """The UTF-8 bytes of texts."""
        encoded = [text.encode("utf-8") for text in texts]
        counts = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        return cls(counts, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def where(self, keep: npt.NDArray[np.bool_]) -> "RaggedArray":
        """The rows where `keep`, `(n,)`, is true."""
        return self if keep.all() else RaggedArray(self.counts[keep], self.flat[np.repeat(keep, self.counts)])


def column_files(column: str) -> tuple[str, str]:
    """The file suffixes of a column's values and offsets."""
    plain = column.endswith(".text") or column == "features"
    return column if plain else f"{column}.ids", f"{column}.offsets"


def manifest_path(folder: Path, name: str) -> Path:
    """The path of a manifest."""
    return folder / f"{name}.json"


def read_manifest(folder: Path, name: str) -> dict[str, Any]:
    """Reads a manifest; DataError if it is missing, damaged or of another version."""
    path = manifest_path(folder, name)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "not a file")
        manifest = parse_json(path.read_bytes(), path.name)
        if manifest["version"] == VERSION:
            return verify_checksum(manifest)
    except OSError as fault:
        raise DataError(f"{path}: no preprocessed data there ({fault.strerror}); run preprocess") from fault
    except (DataError, ValueError, KeyError, TypeError) as fault:
        raise DataError(f"{path}: damaged ({fault}); preprocess again") from fault
    raise DataError(f"{path}: written by another version of nmtkit; preprocess again")


class Shard:
    """One set of files, mapped when they are read. DataError names a file that is missing, truncated or damaged."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        manifest = read_manifest(folder, name)
        try:
            self.fingerprint: str = manifest["fingerprint"]
            self.tgt_size: int = manifest["tgt_size"]
            self.vocabulary: str = manifest["vocabulary"]
            self.cut: dict[str, int] = manifest["cut"]
            self.by_file: list[int] = manifest["by_file"]
            self._length: int = manifest["examples"]
            self._dtype = np.dtype(manifest["dtype"])
            self._files: dict[str, dict[str, int]] = manifest["files"]
            wide = manifest.get("columns", {})
            self._layouts: dict[str, tuple[np.dtype[Any], int]] = {
                column_files(column)[0]: (np.dtype(one["dtype"]), int(one["width"])) for column, one in wide.items()
            }
            self._array = cache(self._map)  # each is mapped when it is first asked for
            for file in self._files:
                self._check_size(file)
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise DataError(f"{manifest_path(folder, name)}: damaged ({fault}); preprocess again") from fault

    def _path(self, file: str) -> Path:
        return self.folder / f"{self.name}.{file}"

    def _check_size(self, file: str) -> None:
        path = self._path(file)
        try:
            size = path.stat().st_size
        except OSError as fault:
            raise DataError(f"{path}: missing ({fault.strerror}); preprocess again") from fault
        if size != self._files[file]["size"]:
            raise DataError(f"{path}: {size} bytes, but {self._files[file]['size']} were written; preprocess again")

    def _map(self, file: str) -> Ids:
        dtype = "<i8" if file.endswith("offsets") else "u1" if file.endswith("text") else self._dtype
        dtype, width = self._layouts.get(file, (dtype, None))
        # An empty file cannot be mapped. A plain array over the map, for slices of np.memmap itself are slow.
        flat = np.zeros(0, dtype=dtype)
        if self._files[file]["size"]:
            flat = np.asarray(np.memmap(self._path(file), dtype=dtype, mode="r"))
        return flat if width is None else flat.reshape(-1, width)

    def check_offsets(self) -> None:
        """Reads where each row begins; DataError if that cannot be."""
        for file in self._files:
            if file.endswith(".offsets"):
                offsets, column = self._array(file), file.removesuffix(".offsets")
                end = len(self._array(column_files(column)[0]))
                if len(offsets) != self._length + 1 or offsets[0] != 0 or offsets[-1] != end:
                    raise DataError(f"{self._path(file)}: damaged; preprocess again")
                self.lengths(column)

    def release(self) -> None:
        """Gives back the memory of what was read; rows that somebody holds stay."""
        self._array.cache_clear()

    @property
    def content(self) -> list[tuple[str, int, int]]:
        """Name, size and checksum of every file."""
        return sorted((file, known["size"], known["crc32"]) for file, known in self._files.items())

    def check(self) -> None:
        """Compares the checksums of all files; DataError if one differs."""
        for name, expected in self._files.items():
            checksum = 0
            with open(self._path(name), "rb") as file:
                while block := file.read(1 << 20):
                    checksum = zlib.crc32(block, checksum)
            if checksum != expected["crc32"]:
                raise DataError(f"{self._path(name)}: damaged (checksum); preprocess again")

    def __len__(self) -> int:
        return self._length

    def has(self, column: str) -> bool:
        """Whether there is a column."""
        return column_files(column)[0] in self._files

    def lengths(self, column: str, rows: Ids | None = None) -> npt.NDArray[np.int32]:
        """The lengths of some rows of a column, or of all, `(n,)`; DataError if there is a negative one."""
        file = column_files(column)[1]
        ends = self._array(file)
        lengths = np.diff(ends) if rows is None else ends[1:][rows] - ends[rows]
        if len(lengths) and lengths.min() < 0:
            raise DataError(f"{self._path(file)}: damaged; preprocess again")
        return lengths.astype(np.int32)

    def row(self, column: str, number: int) -> Ids:
        """One row of a column; a read-only view."""
        values, offsets = column_files(column)
        ends = self._array(offsets)
        return self._array(values)[ends[number] : ends[number + 1]]
