"""Files of soft alignments, written pair by pair."""

import io
import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.alignments import SoftAlignment
from nmtkit.errors import DataError, require_replaceable, writing


class SoftWriter:
    """Writes weights between words as JSON or as numpy arrays; memory does not grow with their number.

    The file appears under its name when all is written: one that is there is whole.

    Args:
        path: ends in .json or .npz.

    Raises:
        DataError: it does not.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in (".json", ".npz"):
            raise DataError(f"{str(path)!r} must end in .json or .npz, for weights are written in one of these formats")
        self._path = path
        self._unfinished = path.with_name(path.name + ".unfinished")
        self._count = 0
        self._text: TextIO | None = None
        self._archive: zipfile.ZipFile | None = None

    def __enter__(self) -> "SoftWriter":
        require_replaceable(self._path)
        with writing(self._path):
            if self._path.suffix == ".json":
                self._text = self._unfinished.open("w", encoding="utf-8")
                self._text.write("[")
            else:
                self._archive = zipfile.ZipFile(self._unfinished, "w", zipfile.ZIP_DEFLATED)
        return self

    def add(self, alignment: SoftAlignment, reverse: SoftAlignment | None) -> None:
        """Writes the next pair, and what the other direction's model says of it.

        Raises:
            NmtkitError: the file cannot be written.
        """
        self._count += 1
        with writing(self._path):
            self._add(alignment, reverse)

    def _add(self, alignment: SoftAlignment, reverse: SoftAlignment | None) -> None:
        if self._text is not None:
            record = {"source": alignment.src_words, "target": alignment.tgt_words, "weights": _rounded(alignment)}
            if reverse is not None:
                record["reverse_weights"] = _rounded(reverse)
            self._text.write(",\n" if self._count > 1 else "\n")
            self._text.write(json.dumps(record, ensure_ascii=False))
        if self._archive is not None:
            self._add_array(str(self._count), alignment.weights)
            if reverse is not None:
                self._add_array(f"{self._count}.reverse", reverse.weights)

    def _add_array(self, name: str, weights: NDArray[np.float64]) -> None:
        assert self._archive is not None
        packed = io.BytesIO()
        np.save(packed, weights.astype(np.float32))
        self._archive.writestr(f"{name}.npy", packed.getvalue())

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with writing(self._path) if kind is None else suppress(OSError):
                if self._text is not None:
                    with self._text:
                        self._text.write("\n]\n")
                if self._archive is not None:
                    self._archive.close()
                if kind is None:
                    os.replace(self._unfinished, self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)


def _rounded(alignment: SoftAlignment) -> list[list[float]]:
    return [[round(weight, 6) for weight in row] for row in alignment.weights.tolist()]
