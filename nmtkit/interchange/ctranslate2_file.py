"""Reads CTranslate2's `model.bin` with numpy: no code is run, and every length is checked against the file's size.

Its binary version 6, little-endian (`python/ctranslate2/specs/model_spec.py` writes it):

    u32 version, text specification, u32 revision
    u32 count of variables; of each: text name, u8 rank, u32 dimensions, u8 type, u32 bytes, the numbers
    u32 count of aliases; of each: text alias, text name

A text is a u16 length and UTF-8 that ends in a zero byte, which the length counts. An integer matrix Q has scales s,
one for each row or one for all, and stands for Q / s.
"""

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.wording import shorten
from nmtkit.interchange.external_files import ExternalWeights

_VERSION, _SPECIFICATION, _REVISION = 6, "TransformerSpec", 7
_TYPES = {"float32": "<f4", "int8": "<i1", "int16": "<i2", "int32": "<i4", "float16": "<f2", "bfloat16": "<u2"}
"""Number types in the order of their codes, with numpy's types."""
_WHOLE = ("int8", "int16", "int32")


@dataclass(frozen=True)
class CTranslate2File:
    """The content of a file; aliases are names like others."""

    weights: ExternalWeights
    """Vectors and matrices; integer ones divided by their scales, which are left out."""
    scalars: dict[str, int | float]
    """Settings of the model; whole numbers and flags are `int`."""
    quantized: str
    """Type of the integer matrices; empty if there are none."""


@dataclass(frozen=True)
class _Variable:
    shape: tuple[int, ...]
    kind: str
    content: int
    """Offset of its numbers in the file."""

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * np.dtype(_TYPES[self.kind]).itemsize


class _Reader:
    """Reads a file in sequence, never beyond its end."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._size = path.stat().st_size

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what}; it is damaged or cut: download it again")

    def bytes(self, count: int) -> bytes:
        found = self._file.read(count) if count <= self._size - self._file.tell() else b""
        if len(found) != count:
            raise self.fault(f"ends within {count:,} bytes at byte {self._file.tell():,}")
        return found

    def number(self, kind: str) -> int:
        found: int = struct.unpack(f"<{kind}", self.bytes(struct.calcsize(f"<{kind}")))[0]
        return found

    def text(self) -> str:
        raw = self.bytes(self.number("H"))
        try:
            found = raw[:-1].decode("utf-8")
        except UnicodeDecodeError:
            found = "\0"
        if not raw.endswith(b"\0") or "\0" in found:
            raise self.fault(f"holds no name in UTF-8 before byte {self._file.tell():,}")
        return found

    def variable(self, name: str) -> _Variable:
        shape = tuple(self.number("I") for _ in range(self.number("B")))
        kind, size = self.number("B"), self.number("I")
        if kind >= len(_TYPES):
            raise self.fault(f"{shorten(repr(name))} has numbers of type {kind}, and the types are 0 to 5")
        found = _Variable(shape, [*_TYPES][kind], self._file.tell())
        if size != found.size:
            of = shorten(str([*shape]))
            raise self.fault(f"{shorten(repr(name))} of shape {of} would have {found.size:,} bytes, not {size:,}")
        if size > self._size - found.content:
            raise self.fault(f"ends within {shorten(repr(name))}")
        self._file.seek(size, 1)
        return found

    def floats(self, one: _Variable) -> Tensor:
        self._file.seek(one.content)
        raw = np.frombuffer(self.bytes(one.size), _TYPES[one.kind])
        if one.kind == "bfloat16":  # the upper half of a float32
            raw = (raw.astype("<u4") << 16).view("<f4")
        return torch.from_numpy(raw.astype(np.float32)).reshape(one.shape)

    def end(self) -> None:
        if self._file.tell() != self._size:
            raise self.fault(f"has {self._size - self._file.tell():,} bytes behind its end")


@contextmanager
def open_ctranslate2(path: Path) -> Iterator[CTranslate2File]:
    """The file at `path`; numbers are read when they are needed."""
    if not path.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{path}: missing, or no file; name the folder that CTranslate2's converter wrote")
    with path.open("rb") as file:
        reader = _Reader(file, path)
        _require_known(reader, path)
        found = _variables(reader)
        scales = {f"{name}_scale" for name, one in found.items() if one.shape and one.kind in _WHOLE}
        for name, one in found.items():
            scale = found.get(f"{name}_scale")
            if one.shape and one.kind in _WHOLE and (scale is None or scale.shape not in ((), one.shape[:1])):
                raise CheckpointError(
                    f"{path}: {shorten(repr(name))} holds {one.kind} numbers without a scale for each row, which is "
                    "not supported; convert with another --quantization"
                )

        def read(name: str) -> Tensor:
            one = found[name]
            numbers = reader.floats(one)
            if one.kind not in _WHOLE:
                return numbers
            scale = reader.floats(found[f"{name}_scale"]).reshape(-1, *[1] * (len(one.shape) - 1))
            return numbers / scale

        shapes = {name: one.shape for name, one in found.items() if one.shape and name not in scales}
        numbers = {name: one for name, one in found.items() if not one.shape and name not in scales}
        kinds = {found[name].kind for name in shapes} & {*_WHOLE}
        yield CTranslate2File(
            ExternalWeights(path, shapes, read),
            {name: (int if one.kind in _WHOLE else float)(reader.floats(one)) for name, one in numbers.items()},
            min(kinds, default=""),
        )


def _require_known(reader: _Reader, path: Path) -> None:
    version = reader.number("I")
    if version != _VERSION:
        raise CheckpointError(
            f"{path}: of binary version {version}, not {_VERSION}; convert the model with CTranslate2 3 or 4"
        )
    specification, revision = reader.text(), reader.number("I")
    if specification != _SPECIFICATION or revision != _REVISION:
        raise CheckpointError(
            f"{path}: a {shorten(specification)} of revision {revision} is not supported; supported: {_SPECIFICATION} "
            f"of revision {_REVISION}, an encoder and a decoder"
        )


def _variables(reader: _Reader) -> dict[str, _Variable]:
    """All variables by name; an alias of a matrix has its scales too."""
    found: dict[str, _Variable] = {}

    def add(name: str, one: _Variable) -> None:
        if name in found:
            raise reader.fault(f"{shorten(repr(name))} is defined twice")
        found[name] = one

    for _ in range(reader.number("I")):
        name = reader.text()
        add(name, reader.variable(name))
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in found:
            raise reader.fault(f"{shorten(repr(alias))} stands for {shorten(repr(name))}, which is missing")
        add(alias, found[name])
        if f"{name}_scale" in found:
            add(f"{alias}_scale", found[f"{name}_scale"])
    reader.end()
    return found
