"""Files of soft alignments, written pair by pair."""

import io
import json
import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.alignments import SoftAlignment
from nmtkit.errors import DataError
from nmtkit.files import replacing, writing


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
        self._count = 0
        self._text: TextIO | None = None
        self._archive: zipfile.ZipFile | None = None
        self._opened = ExitStack()

    def __enter__(self) -> "SoftWriter":
        with writing(self._path), ExitStack() as opened:
            beside = opened.enter_context(replacing(self._path))
            if self._path.suffix == ".json":
                self._text = opened.enter_context(beside.open("w", encoding="utf-8"))
                self._text.write("[")
            else:
                self._archive = opened.enter_context(zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED))
            self._opened = opened.pop_all()
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
        if kind is None:
            with writing(self._path), self._opened:
                if self._text is not None:
                    self._text.write("\n]\n")
        else:
            with suppress(OSError):
                self._opened.__exit__(kind, fault, traceback)


def _rounded(alignment: SoftAlignment) -> list[list[float]]:
    return [[round(weight, 6) for weight in row] for row in alignment.weights.tolist()]
