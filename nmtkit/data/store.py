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
"""

import hashlib
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nmtkit.data.corpus import Checker, Example
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.words import token_links, token_spans
from nmtkit.errors import DataError

Ids: TypeAlias = npt.NDArray[Any]
T = TypeVar("T")

VERSION = 1
_CHUNK = 4096
"""Examples handled at a time while writing."""


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


class _Column:
    """One flat file under a temporary name, its size and checksum kept while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(path.name + ".new")
        self.file: BinaryIO = open(self.temporary, "wb")  # noqa: SIM115  # closed by the writer that owns it
        self.size = 0
        self.checksum = 0

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)


class StoreWriter:
    """Writes one split, example by example; to be used in a `with` statement.

    Everything goes to temporary names and takes its place when the block ends without a fault; a fault leaves an older
    store of that name as it was.

    Args:
        folder: made if need be.
        name: the split's name.
        dtype: of the ids.
        tgt_size: V, kept in the manifest.
        fingerprint: kept in the manifest.

    Raises:
        DataError: the folder cannot be written.
    """

    def __init__(self, folder: Path, name: str, dtype: npt.DTypeLike, tgt_size: int, fingerprint: str = "") -> None:
        self._folder = folder
        self._name = name
        self._dtype = np.dtype(dtype)
        self._tgt_size = tgt_size
        self._fingerprint = fingerprint
        self._columns: dict[str, _Column] = {}
        self._ends: dict[str, int] = {}
        self._length = 0
        self.cut: Counter[str] = Counter()
        """By side, how many examples were longer than they are stored; kept in the manifest."""

    def __enter__(self) -> "StoreWriter":
        return self

    def add(
        self,
        ids: Mapping[str, Sequence[Sequence[int]]],
        texts: Mapping[str, Sequence[str]],
    ) -> None:
        """Appends some examples; every call gives the same columns.

        Args:
            ids: for "src", "tgt", "src_extended", "tgt_extended" the ids of each example; for "alignment" its links.
            texts: for "src", "tgt" the text of each example.
        """
        for name, rows in ids.items():
            lengths = [len(row) for row in rows]
            flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=sum(lengths))
            self._write(f"{name}.ids", flat.astype(self._dtype).tobytes())
            self._offsets(f"{name}.offsets", lengths)
        for name, lines in texts.items():
            encoded = [line.encode("utf-8") for line in lines]
            self._write(f"{name}.text", b"".join(encoded))
            self._offsets(f"{name}.text.offsets", [len(line) for line in encoded])
        self._length += len(ids["src"])

    def _offsets(self, name: str, lengths: Sequence[int]) -> None:
        if name not in self._ends:
            self._ends[name] = 0
            self._write(name, np.zeros(1, dtype="<i8").tobytes())
        ends = self._ends[name] + np.cumsum(lengths, dtype="<i8")
        if len(ends):
            self._ends[name] = int(ends[-1])
            self._write(name, ends.tobytes())

    def _write(self, name: str, data: bytes) -> None:
        try:
            if name not in self._columns:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._columns[name] = _Column(self._folder / f"{self._name}.{name}")
            self._columns[name].write(data)
        except OSError as fault:
            raise DataError(f"{self._folder}: cannot write the data there: {fault.strerror}") from fault

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for column in self._columns.values():
                column.file.close()
            if kind is None:
                self._publish()
        except OSError as error:
            raise DataError(f"{self._folder}: cannot write the data there: {error.strerror}") from error
        finally:
            for column in self._columns.values():
                column.temporary.unlink(missing_ok=True)

    def _publish(self) -> None:
        manifest = _manifest_path(self._folder, self._name)
        # The old manifest goes first: at no moment does one describe files that are not its own.
        manifest.unlink(missing_ok=True)
        for column in self._columns.values():
            os.replace(column.temporary, column.path)
        content = {
            "version": VERSION,
            "fingerprint": self._fingerprint,
            "examples": self._length,
            "dtype": self._dtype.str,
            "tgt_size": self._tgt_size,
            "cut": dict(self.cut),
            "files": {name: {"size": column.size, "crc32": column.checksum} for name, column in self._columns.items()},
        }
        temporary = manifest.with_name(manifest.name + ".new")
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, manifest)


def _manifest_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


class Store:
    """One tokenized split on disk, opened for reading. Build it with `Store.open`."""

    def __init__(self, folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.name = name
        self.fingerprint: str = manifest["fingerprint"]
        self.tgt_size: int = manifest["tgt_size"]
        self._length: int = manifest["examples"]
        self._cut: dict[str, int] = manifest.get("cut", {})
        self._dtype = np.dtype(manifest["dtype"])
        self._files: dict[str, dict[str, int]] = manifest["files"]
        self._arrays: dict[str, Ids] = {name: self._map(name) for name in self._files}
        for column in self._files:
            if column.endswith("offsets"):
                self._check_offsets(column)

    @classmethod
    def open(cls, folder: Path, name: str) -> "Store":
        """Opens what `StoreWriter` wrote.

        Raises:
            DataError: it is missing, cut short or damaged; the message names the file.
        """
        path = _manifest_path(folder, name)
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if manifest["version"] != VERSION:
                raise DataError(f"{path}: written by another version of nmtkit; preprocess again")
            return cls(folder, name, manifest)
        except OSError as fault:
            raise DataError(f"{path}: no preprocessed data there ({fault.strerror}); run preprocess") from fault
        except (ValueError, KeyError, TypeError) as fault:
            raise DataError(f"{path}: damaged ({fault}); preprocess again") from fault

    @staticmethod
    def is_current(folder: Path, name: str, fingerprint: str) -> bool:
        """Whether there is a whole store of that name with that fingerprint."""
        try:
            return Store.open(folder, name).fingerprint == fingerprint
        except DataError:
            return False

    def _path(self, column: str) -> Path:
        return self.folder / f"{self.name}.{column}"

    def _map(self, column: str) -> Ids:
        path = self._path(column)
        try:
            size = path.stat().st_size
        except OSError as fault:
            raise DataError(f"{path}: missing ({fault.strerror}); preprocess again") from fault
        if size != self._files[column]["size"]:
            raise DataError(f"{path}: {size} bytes, but {self._files[column]['size']} were written; preprocess again")
        dtype = "<i8" if column.endswith("offsets") else "u1" if column.endswith("text") else self._dtype
        # An empty file cannot be mapped.
        return np.memmap(path, dtype=dtype, mode="r") if size else np.zeros(0, dtype=dtype)

    def _check_offsets(self, column: str) -> None:
        offsets = self._arrays[column]
        flat = self._arrays[column.removesuffix(".offsets") + ("" if ".text." in column else ".ids")]
        whole = len(offsets) == self._length + 1 and offsets[0] == 0 and offsets[-1] == len(flat)
        if not whole or bool((np.diff(offsets) < 0).any()):
            raise DataError(f"{self._path(column)}: damaged; preprocess again")

    def check(self) -> None:
        """Reads everything once and compares checksums.

        Raises:
            DataError: a file is not as it was written.
        """
        for column, expected in self._files.items():
            checksum = 0
            with open(self._path(column), "rb") as file:
                while block := file.read(1 << 20):
                    checksum = zlib.crc32(block, checksum)
            if checksum != expected["crc32"]:
                raise DataError(f"{self._path(column)}: damaged (checksum); preprocess again")

    def __len__(self) -> int:
        return self._length

    def has(self, column: str) -> bool:
        """Whether there are such ids: "src", "tgt", "src_extended", "tgt_extended", "alignment"."""
        return f"{column}.ids" in self._files

    def has_text(self, side: str) -> bool:
        """Whether raw text of this side was kept."""
        return f"{side}.text" in self._files

    def lengths(self, column: str) -> npt.NDArray[np.int32]:
        """The number of ids of every example, `(n,)`; EOS not counted."""
        return np.diff(self._arrays[f"{column}.offsets"]).astype(np.int32)

    def longer(self, side: str, limit: int) -> int:
        """How many examples have more tokens than that on one side ("src" or "tgt"), those cut when stored included."""
        # What was cut to be stored is as long as the longest, so that it is counted here wherever anything is.
        return int((self.lengths(side) > limit).sum()) or self._cut.get(side, 0)

    def ids(self, column: str, number: int) -> Ids:
        """The ids of one example; a view of the file, not to be written."""
        offsets = self._arrays[f"{column}.offsets"]
        return self._arrays[f"{column}.ids"][offsets[number] : offsets[number + 1]]

    def src(self, number: int) -> Ids:
        """The source ids of one example, without EOS."""
        return self.ids("src", number)

    def tgt(self, number: int) -> Ids:
        """The target ids of one example, without EOS."""
        return self.ids("tgt", number)

    def text(self, side: str, number: int) -> str:
        """The raw text of one example ("src" or "tgt")."""
        offsets = self._arrays[f"{side}.text.offsets"]
        return self._arrays[f"{side}.text"][offsets[number] : offsets[number + 1]].tobytes().decode("utf-8")

    def texts(self, side: str) -> Iterator[str]:
        """The raw text of every example in order."""
        return (self.text(side, number) for number in range(len(self)))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cuts an iterable into lists of `size`; the last may be shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def write_store(
    folder: Path,
    name: str,
    examples: Iterable[Example],
    tokenizers: TokenizerPair,
    checker: Checker,
    keep_text: bool = False,
    copying: bool = False,
    fingerprint: str = "",
) -> int:
    """Checks, tokenizes and stores one split; memory does not grow with it.

    Args:
        folder: where to.
        name: "train" (checked and thinned out as the checker's settings say), "valid" or "test" (checked only).
        examples: the pairs; either all have targets or none has.
        tokenizers: of both sides.
        checker: the same one for all splits, train first; its report is filled.
        keep_text: also keep the raw text: for references, and for tokenizers that sample.
        copying: also store extended ids, for models that copy unknown words.
        fingerprint: kept in the manifest.

    Returns:
        The number of examples stored.

    Raises:
        DataError: the input is faulty, no example is left, or the folder cannot be written.
    """
    tgt_vocabulary = tokenizers.tgt.vocabulary
    largest = max(len(tokenizers.src.vocabulary), len(tgt_vocabulary), *checker.config.limits)  # limits: of positions
    # Extended ids may lie above the vocabulary by as many as a source has tokens.
    dtype = "<u2" if largest <= 1 << 16 and not copying else "<i4"
    stored = 0
    with StoreWriter(folder, name, dtype, len(tgt_vocabulary), fingerprint) as writer:
        for chunk in chunks(examples, _CHUNK):
            kept = [e for e, stays in zip(chunk, checker.texts(name, chunk), strict=True) if stays]
            ids, kept = _tokenized(name, kept, tokenizers, checker, writer.cut)
            if copying:
                ids.update(_extended(kept, tokenizers, checker))
            if name == "train" and kept and kept[0].links is not None:
                ids["alignment"] = _alignment(name, kept, tokenizers, checker)
            texts = {"src": [e.src for e in kept]} if keep_text else {}
            if keep_text and "tgt" in ids:
                texts["tgt"] = [e.tgt or "" for e in kept]
            writer.add(ids, texts)
            stored += len(kept)
        split = checker.report.splits.get(name)
        if not stored:
            read = split.read if split else 0
            raise DataError(
                f"{name}: no pair is left of {read}; look at max_length, max_ratio and the files themselves"
            )
    return stored


def _tokenized(
    name: str, kept: list[Example], tokenizers: TokenizerPair, checker: Checker, cut: Counter[str]
) -> tuple[dict[str, list[list[int]]], list[Example]]:
    """The ids of both sides, filtered by length, and the examples that stay; counts by side how many were cut."""
    ids = {"src": tokenizers.src.encode_many([e.src for e in kept])}
    targets = [e.tgt for e in kept if e.tgt is not None]
    if targets and len(targets) != len(kept):
        raise DataError(f"{name}: some pairs have a target and some have none")
    if targets or not kept:
        ids["tgt"] = tokenizers.tgt.encode_many(targets)
    lengths = {side: np.array([len(row) for row in rows], dtype=np.int64) for side, rows in ids.items()}
    lines = np.array([e.line for e in kept], dtype=np.int64)
    stays = checker.lengths(name, lines, lengths["src"], lengths.get("tgt"))
    for side, rows in ids.items():
        limit = checker.cut_at(side)
        cut[side] += sum(bool(good) and len(row) > (limit or math.inf) for row, good in zip(rows, stays, strict=True))
        ids[side] = [row[:limit] for row, good in zip(rows, stays, strict=True) if good]
    split = checker.report.splits[name]
    split.kept += int(stays.sum())
    for side, rows in ids.items():
        split.count(side, rows)
    return ids, [e for e, good in zip(kept, stays, strict=True) if good]


def _extended(kept: list[Example], tokenizers: TokenizerPair, checker: Checker) -> dict[str, list[list[int]]]:
    """Both sides in the extended target vocabulary of each example."""
    vocabulary = tokenizers.tgt.vocabulary
    ids: dict[str, list[list[int]]] = {"src_extended": [], "tgt_extended": []}
    for example in kept:
        extended, oov = vocabulary.extend(tokenizers.src.tokens(example.src)[: checker.cut_at("src")])
        ids["src_extended"].append(extended)
        if example.tgt is not None:
            tokens = tokenizers.tgt.tokens(example.tgt)[: checker.cut_at("tgt")]
            ids["tgt_extended"].append(vocabulary.extended_target_ids(tokens, oov))
    if kept and kept[0].tgt is None:
        del ids["tgt_extended"]
    return ids


def _alignment(name: str, kept: list[Example], tokenizers: TokenizerPair, checker: Checker) -> list[list[int]]:
    """The links between the tokens of each example, those of cut-off tokens left out, as one row of numbers."""
    places = [f"line {example.line}" for example in kept]
    src = token_spans(
        tokenizers.src,
        [example.src for example in kept],
        [example.src_words for example in kept],
        [f"{name}, src_words, {place}" for place in places],
    )
    tgt = token_spans(
        tokenizers.tgt,
        [example.tgt or "" for example in kept],
        [example.tgt_words for example in kept],
        [f"{name}, tgt_words, {place}" for place in places],
    )
    src_limit, tgt_limit = (checker.cut_at(side) or math.inf for side in ("src", "tgt"))
    rows = []
    for example, source, target in zip(kept, src, tgt, strict=True):
        assert example.links is not None
        links = token_links(example.links, source, target)
        rows.append([at for s, t in links if s < src_limit and t < tgt_limit for at in (s, t)])
    split = checker.report.splits[name]
    split.links = (split.links or 0) + sum(map(len, rows)) // 2
    return rows
