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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.interchange.external_files import ExternalWeights, unsupported

_VERSION, _SPECIFICATION, _REVISION = 6, "TransformerSpec", 7
_TYPES = {"float32": "<f4", "int8": "<i1", "int16": "<i2", "int32": "<i4", "float16": "<f2", "bfloat16": "<u2"}
"""Number types in the order of their codes, with numpy's types."""
_WHOLE = ("int8", "int16", "int32")


@dataclass(frozen=True)
class CTranslate2Model:
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
    content: npt.NDArray[np.uint8]
    """The bytes of the tensor, read from the file when they are needed."""

    @property
    def is_integer_matrix(self) -> bool:
        return bool(self.shape) and self.kind in _WHOLE

    def floats(self) -> Tensor:
        numbers = self.content.view(_TYPES[self.kind])
        if self.kind == "bfloat16":  # the upper half of a float32
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return torch.from_numpy(numbers.astype(np.float32)).reshape(self.shape)


class _Reader:
    """Reads a file in sequence, never beyond its end."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0
        self._content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}; it is damaged or cut: download it again")

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        if count > len(self._content) - self._at:
            raise self.fault(f"ends within {count:,} bytes at byte {self._at:,}")
        self._at += count
        return self._content[self._at - count : self._at]

    def number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self.bytes(struct.calcsize(f"<{kind}")).tobytes())[0])

    def text(self) -> str:
        raw = self.bytes(self.number("H")).tobytes()
        if not raw.endswith(b"\0") or b"\0" in raw[:-1]:
            raise self.fault(f"holds no name before byte {self._at:,}")
        return raw[:-1].decode("utf-8", "replace")

    def variable(self, name: str) -> _Variable:
        shape = tuple(self.number("I") for _ in range(self.number("B")))
        code, size = self.number("B"), self.number("I")
        if code >= len(_TYPES):
            raise self.fault(f"{shorten(repr(name))} has numbers of type {code}, and the types are 0 to 5")
        kind = [*_TYPES][code]
        expected = math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
        if size != expected:
            of = shorten(str([*shape]))
            raise self.fault(f"{shorten(repr(name))} of shape {of} would have {expected:,} bytes, not {size:,}")
        return _Variable(shape, kind, self.bytes(size))

    def end(self) -> None:
        if self._at != len(self._content):
            raise self.fault(f"has {len(self._content) - self._at:,} bytes behind its end")


def read_ctranslate2_file(path: Path) -> CTranslate2Model:
    """The content of `model.bin`; numbers are read when they are needed."""
    if not path.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{path}: missing, or no file; name the folder that CTranslate2's converter wrote")
    variables = _variables(_Reader(path))
    integers = {name for name, one in variables.items() if one.is_integer_matrix}
    for name in integers:
        scale = variables.get(f"{name}_scale")
        if scale is None or scale.shape not in ((), variables[name].shape[:1]):
            what = f"{shorten(repr(name))} holds {variables[name].kind} numbers without a scale for each row"
            raise unsupported(path, what, "convert with another --quantization")

    def read(name: str) -> Tensor:
        numbers = variables[name].floats()
        if name not in integers:
            return numbers
        return numbers / variables[f"{name}_scale"].floats().reshape(-1, *[1] * (numbers.dim() - 1))

    scales = {f"{name}_scale" for name in integers}
    kept = {name: one for name, one in variables.items() if name not in scales}
    shapes = {name: one.shape for name, one in kept.items() if one.shape}
    scalars = {
        name: (int if one.kind in _WHOLE else float)(one.floats()) for name, one in kept.items() if not one.shape
    }
    quantized = min((variables[name].kind for name in integers), default="")
    return CTranslate2Model(ExternalWeights(path, shapes, read), scalars, quantized)


def _variables(reader: _Reader) -> dict[str, _Variable]:
    """All variables by name; an alias of a matrix has its scales too."""
    version = reader.number("I")
    if version != _VERSION:
        remedy = "convert the model with CTranslate2 3 or 4"
        raise unsupported(reader.path, f"binary version {version}, not {_VERSION}", remedy)
    specification, revision = reader.text(), reader.number("I")
    if (specification, revision) != (_SPECIFICATION, _REVISION):
        remedy = f"supported: {_SPECIFICATION} of revision {_REVISION}, an encoder and a decoder"
        raise unsupported(reader.path, f"a {shorten(specification)} of revision {revision}", remedy)
    variables: dict[str, _Variable] = {}

    def add(name: str, one: _Variable) -> None:
        if name in variables:
            raise reader.fault(f"{shorten(repr(name))} is defined twice")
        variables[name] = one

    for _ in range(reader.number("I")):
        name = reader.text()
        add(name, reader.variable(name))
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in variables:
            raise reader.fault(f"{shorten(repr(alias))} stands for {shorten(repr(name))}, which is missing")
        add(alias, variables[name])
        if f"{name}_scale" in variables:
            add(f"{alias}_scale", variables[f"{name}_scale"])
    reader.end()
    return variables
