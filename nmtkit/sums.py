"""Checksums, by which a file shows that it is as it was written. They are against damage, not against forgery."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

SUM = "sum"
"""The key of the checksum among the values that it is of."""

_COLUMNS = 1021
"""A prime, so that blocks of a disk that changed places lie in other columns."""


def of_bytes(data: bytes) -> str:
    """The checksum of a small file."""
    return hashlib.sha256(data).hexdigest()[:32]


def of_array(data: npt.NDArray[np.uint8], kind: str) -> str:
    """The checksum of many bytes, at the speed of memory: about ten times that of CRC-32.

    The bytes are 32-bit numbers in rows of 1021; hashed are the sums of the columns. So any change within one number,
    or within numbers that stand less than a row apart, gives another checksum for certain, any other but by a chance of
    1 in 2^32.

    Args:
        data: `(n,)`.
        kind: what the bytes mean; another meaning gives another checksum.
    """
    row = 4 * _COLUMNS
    whole = len(data) // row * row
    columns = np.add.reduce(data[:whole].view(np.uint32).reshape(-1, _COLUMNS), axis=0, dtype=np.uint32)
    return of_bytes(kind.encode() + columns.tobytes() + data[whole:].tobytes())[:16]


def signed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values together with their checksum."""
    return {**facts, SUM: _of_facts(facts)}


def verified(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `signed` was given; values without a checksum, of an earlier version, as they are.

    Raises:
        ValueError: the values are not those that were signed.
    """
    plain = {key: value for key, value in facts.items() if key != SUM}
    if SUM in facts and facts[SUM] != _of_facts(plain):
        raise ValueError("it is not as it was written: its checksum is another")
    return plain


def _of_facts(facts: Mapping[str, Any]) -> str:
    return of_bytes(json.dumps(facts, sort_keys=True).encode())
