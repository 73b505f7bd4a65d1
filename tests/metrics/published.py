"""The folder of outputs whose scores were published; it is no part of nmtkit."""

import gzip
import os
from pathlib import Path

import pytest

DATA = (
    Path(os.environ.get("NMTKIT_DATA", Path(__file__).parents[3] / "shared" / "data"))
    / "metric-outputs"
)
needs_outputs = pytest.mark.skipif(
    not DATA.is_dir(),
    reason=f"no folder {DATA}; name the folder that holds metric-outputs in NMTKIT_DATA",
)


def lines(name: str) -> list[str]:
    """A text file under DATA."""
    with gzip.open(DATA / name, "rt", encoding="utf-8", newline="\n") as stream:
        return [line.rstrip("\n") for line in stream]
