"""Files of tensors: safetensors with JSON in their heads, never pickle, written so that a crash loses nothing.

Every file is written beside its place, forced to the disk, and then moved into place in one stroke.

The head of a file holds its facts as JSON under one key, in one order, so that files of equal contents are equal: its
kind (state or weights), and checksums of every tensor, of the vocabulary, and of the facts themselves, which are
compared wherever the file is read. Files of other programs have none of this.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.files import atomic_path, bytes_checksum, verify_checksum, with_checksum
from nmtkit.core.processes import available_cores

_FACTS = "facts"

_COLUMNS = 1021
"""A prime number, so that disk blocks that were swapped fall into other columns."""

_THREADS = 8
"""The most threads that read tensors; more would not get them from memory any quicker."""

_WEIGHT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TensorFileHeader:
    """Metadata of a file."""

    facts: dict[str, Any]
    """All but the following."""
    is_state: bool
    vocabulary: str
    """The checksum of the vocabulary; empty if it is not known."""
    sums: Mapping[str, str] | None
    """The checksum of every tensor; None in a file of another program."""

    @classmethod
    def of(cls, file: Any) -> "TensorFileHeader":
        """The head of an open file; one that is damaged raises a ValueError."""
        text = (file.metadata() or {}).get(_FACTS)
        if text is None:
            return cls({}, False, "", None)
        facts = verify_checksum(json.loads(text))
        sums = facts.pop("tensors")
        return cls(facts, facts.pop("kind", "state") == "state", facts.pop("vocabulary", ""), sums)

    def require_vocabulary(self, vocabulary: str) -> None:
        """Refuses a file of another vocabulary, if both are known."""
        if vocabulary and self.vocabulary and vocabulary != self.vocabulary:
            raise CheckpointError("trained with another vocabulary, so it is of another run")


def read_tensors(file: Any, header: TensorFileHeader, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors of an open file whose names begin with a prefix, after a check of checksums and finite numbers."""
    names = list(file.keys())  # the file is no mapping: it cannot be gone through by itself
    if header.sums is not None and header.sums.keys() != set(names):
        raise ValueError("it has other tensors than were written")
    tensors = {name: file.get_tensor(name) for name in names if name.startswith(prefixes)}
    sums = {} if header.sums is None else _checksums(tensors)
    for name, tensor in tensors.items():
        if header.sums is not None and sums[name] != header.sums[name]:
            raise ValueError(f"{name!r} is not as it was written: its checksum is another")
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in _WEIGHT_TYPES):
            raise CheckpointError(f"{name!r} holds numbers of type {tensor.dtype}, which no model has")
        # One sum is much quicker than to look at each number; where it is too large itself, they are looked at.
        if not (torch.isfinite(tensor.sum()) or torch.isfinite(tensor).all()):
            raise CheckpointError(f"{name!r} holds a number that is not finite (NaN or infinity)")
    return tensors


def _checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    def checksum(tensor: Tensor) -> str:
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        kind = f"{tensor.dtype} {list(tensor.shape)}"
        return array_checksum(data, kind)

    with ThreadPoolExecutor(min(available_cores(), _THREADS)) as pool:
        checksums = pool.map(checksum, tensors.values())
        return dict(zip(tensors, checksums, strict=True))


def array_checksum(data: npt.NDArray[np.uint8], kind: str) -> str:
    """Checksum of many bytes, at the speed of memory: about ten times as fast as CRC-32.

    The bytes are read as 32-bit numbers in rows of 1021. The checksum is a hash of the sums of the columns and of
    `kind`, the meaning of the bytes. Any change within one number, or within numbers less than a row apart, gives
    another checksum.
    """
    row_bytes = 4 * _COLUMNS
    whole = len(data) // row_bytes * row_bytes
    rows = data[:whole].view(np.uint32).reshape(-1, _COLUMNS)
    sums = np.add.reduce(rows, axis=0, dtype=np.uint32)
    rest = data[whole:]
    return bytes_checksum(kind.encode() + sums.tobytes() + rest.tobytes())[:16]


@contextlib.contextmanager
def name_file_in_errors(path: Path, remedy: str) -> Iterator[None]:
    """Inside, an error names this file and the remedy."""
    try:
        yield
    except CheckpointError as fault:
        raise CheckpointError(f"{path}: {str(fault).removeprefix(f'{path}: ')}; {remedy}") from fault


@contextlib.contextmanager
def open_checkpoint(path: Path) -> Iterator[tuple[Any, TensorFileHeader]]:
    """An open file of weights or of a state, and its head."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: not found; name a checkpoint file, or train first")
    with name_file_in_errors(path, "use another checkpoint, or copy the file again"), open_tensors(path) as file:
        yield file, TensorFileHeader.of(file)


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """An open file, which errors do not name."""
    if not path.is_file():
        raise CheckpointError("not a file that can be read")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, ValueError, RecursionError) as fault:
        raise CheckpointError(f"damaged or cut short ({fault})") from fault


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], vocabulary: str) -> None:
    """Writes a file with the checksums of all that is in it."""
    saved = _on_cpu(tensors)
    header = dict(facts)
    if vocabulary:
        header["vocabulary"] = vocabulary
    header["tensors"] = _checksums(saved)
    text = json.dumps(with_checksum(header), sort_keys=True)
    write_file(path, lambda place: save_file(saved, place, {_FACTS: text}))


def write_bare_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file without facts, as other libraries write and expect it."""
    write_file(path, lambda place: save_file(_on_cpu(tensors), place, {"format": "pt"}))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place, forces it to the disk and moves it into place in one stroke."""
    try:
        with atomic_path(path, suffix=".partial", durable=True) as beside:
            beside.touch()
            mode = beside.stat().st_mode  # as the umask says; safetensors makes a file that nobody else may read
            write(beside)
            beside.chmod(mode)
    except (OSError, SafetensorError) as fault:
        raise CheckpointError(
            f"{path}: cannot write it ({fault}); free some space there or name another folder; "
            "the checkpoints written before are untouched"
        ) from fault
