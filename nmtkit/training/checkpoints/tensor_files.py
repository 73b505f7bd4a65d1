"""Tensor files: safetensors with JSON metadata in the header, written so that a crash leaves no damaged file.

Every file is written under a temporary name, flushed to disk, and then renamed in one step.

The metadata is a JSON string under one key of the header. Its keys are sorted, so that files with equal contents are
identical. It includes the kind of file (state or weights) and checksums of every tensor, of the vocabulary and of the
metadata itself; all are verified whenever the file is read. Files from other programs have no such metadata.
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
"""Number of columns in a checksum; a prime number, so that swapped disk blocks affect different columns."""

_MAX_THREADS = 8
"""Maximum number of threads that compute checksums; more are not faster, because memory bandwidth is the limit."""

_WEIGHT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TensorFileHeader:
    """Metadata of a tensor file."""

    facts: dict[str, Any]
    """All metadata entries that have no field of their own below."""
    is_state: bool
    """Whether the file contains the full training state, not just weights."""
    vocabulary: str
    """Checksum of the vocabulary; empty if it is unknown."""
    checksums: Mapping[str, str] | None
    """Checksum of every tensor by name; None in a file from another program."""

    @classmethod
    def read(cls, file: Any) -> "TensorFileHeader":
        """Reads the header of an open file; raises a ValueError if it is damaged."""
        metadata = file.metadata() or {}
        if _FACTS not in metadata:
            return cls(facts={}, is_state=False, vocabulary="", checksums=None)
        facts = verify_checksum(json.loads(metadata[_FACTS]))
        checksums = facts.pop("tensors")
        kind = facts.pop("kind", "state")
        vocabulary = facts.pop("vocabulary", "")
        return cls(
            facts=facts, is_state=kind == "state", vocabulary=vocabulary, checksums=checksums
        )

    def require_vocabulary(self, vocabulary: str) -> None:
        """Raises a CheckpointError if both vocabularies' checksums are known and differ."""
        if vocabulary and self.vocabulary and vocabulary != self.vocabulary:
            raise CheckpointError(
                "trained with a different vocabulary, so it belongs to a different run"
            )


def read_tensors(
    file: Any, header: TensorFileHeader, prefixes: tuple[str, ...] = ("",)
) -> dict[str, Tensor]:
    """Reads the tensors of an open file whose names begin with one of the prefixes.

    Raises a ValueError if a checksum is wrong, and a CheckpointError if a tensor has a data type or values that no
    model can have.
    """
    names = list(file.keys())
    if header.checksums is not None and header.checksums.keys() != set(names):
        raise ValueError("it does not contain the tensors that were written")
    tensors = {name: file.get_tensor(name) for name in names if name.startswith(prefixes)}
    if header.checksums is not None:
        for name, checksum in _checksums(tensors).items():
            if checksum != header.checksums[name]:
                raise ValueError(f"{name!r} has changed since it was written (checksum mismatch)")
    for name, tensor in tensors.items():
        is_other_float = tensor.is_floating_point() and tensor.dtype not in _WEIGHT_TYPES
        if tensor.is_complex() or is_other_float:
            raise CheckpointError(f"{name!r} has the data type {tensor.dtype}, which no model uses")
        # Testing the sum is much faster than testing every element. A sum of finite elements can overflow, so the
        # elements are tested if the sum is not finite.
        is_finite = torch.isfinite(tensor.sum()) or torch.isfinite(tensor).all()
        if not is_finite:
            raise CheckpointError(f"{name!r} contains non-finite values (NaN or infinity)")
    return tensors


def _checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    def checksum(tensor: Tensor) -> str:
        data = tensor.reshape(-1).view(torch.uint8).numpy()  # (bytes,)
        kind = f"{tensor.dtype} {list(tensor.shape)}"
        return array_checksum(data, kind)

    with ThreadPoolExecutor(min(available_cores(), _MAX_THREADS)) as pool:
        checksums = pool.map(checksum, tensors.values())
        return dict(zip(tensors, checksums, strict=True))


def array_checksum(data: npt.NDArray[np.uint8], kind: str) -> str:
    """Computes a checksum of many bytes at memory speed, about ten times as fast as CRC-32.

    The bytes are read as 32-bit numbers in rows of 1021. The checksum is a hash of the column sums and of `kind`, which
    describes the meaning of the bytes. Any change within one number, or within numbers less than a row apart, changes
    the checksum.
    """
    row_bytes = 4 * _COLUMNS
    n_rows = len(data) // row_bytes
    end = n_rows * row_bytes
    rows = data[:end].view(np.uint32).reshape(n_rows, _COLUMNS)  # (n_rows, 1021)
    rest = data[end:]  # (n,), with n < row_bytes
    column_sums = np.add.reduce(rows, axis=0, dtype=np.uint32)  # (1021,), modulo 2^32
    content = kind.encode() + column_sums.tobytes() + rest.tobytes()
    return bytes_checksum(content)[:16]


@contextlib.contextmanager
def name_file_in_errors(path: Path, remedy: str) -> Iterator[None]:
    """Adds the path and the remedy to each CheckpointError raised inside the context."""
    try:
        yield
    except CheckpointError as fault:
        message = str(fault).removeprefix(f"{path}: ")
        raise CheckpointError(f"{path}: {message}; {remedy}") from fault


@contextlib.contextmanager
def open_checkpoint(path: Path) -> Iterator[tuple[Any, TensorFileHeader]]:
    """Opens a file with weights or a state; yields the file and its header."""
    if not os.path.lexists(path):
        raise CheckpointError(
            f"{path}: not found; pass an existing checkpoint file, or train first"
        )
    remedy = "use another checkpoint, or copy the file again"
    with name_file_in_errors(path, remedy), open_tensors(path) as file:
        yield file, TensorFileHeader.read(file)


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Opens a tensor file. Error messages do not contain the path; see `name_file_in_errors`."""
    if not path.is_file():
        raise CheckpointError("not a readable file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, ValueError, RecursionError) as fault:
        raise CheckpointError(f"damaged or truncated ({fault})") from fault


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], vocabulary: str
) -> None:
    """Writes a tensor file with metadata and with checksums of its contents."""
    cpu_tensors = _on_cpu(tensors)
    header = dict(facts)
    if vocabulary:
        header["vocabulary"] = vocabulary
    header["tensors"] = _checksums(cpu_tensors)
    metadata = {_FACTS: json.dumps(with_checksum(header), sort_keys=True)}
    write_file(path, lambda temporary: save_file(cpu_tensors, temporary, metadata))


def write_bare_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a tensor file without our metadata, as other libraries write and expect it."""
    cpu_tensors = _on_cpu(tensors)
    write_file(path, lambda temporary: save_file(cpu_tensors, temporary, {"format": "pt"}))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file under a temporary name, flushes it to disk, and renames it in one step."""
    try:
        with atomic_path(path, suffix=".partial", durable=True) as temporary:
            # safetensors creates files that only their owner can read, so the mode is copied from a file that Python
            # creates.
            temporary.touch()
            mode = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(mode)
    except (OSError, SafetensorError) as fault:
        raise CheckpointError(
            f"{path}: cannot be written ({fault}); free some space there or use another folder; "
            "earlier checkpoints are unchanged"
        ) from fault
