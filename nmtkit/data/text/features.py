"""Files of features: each example is a matrix `(R,F)` of numbers, read from the file only when it is needed.

R is the number of rows, F the number of features in a row. A picture of H x W pixels becomes a matrix `(H,3W)` with the
red, green and blue values of each pixel.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.faults import FEATURES, FaultLocation, FileFault
from nmtkit.data.text.files.lines import BLOCK_LINES, read_lines

Rows: TypeAlias = NDArray[Any]
"""Features of one example, `(R,F)`."""
_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
_SHAPES = "an .npy file has the shape (examples, F) or (examples, R, F), an array of an .npz file (R, F) or (F,)"


class FeaturesFile:
    """The examples of an .npy or .npz file, or of a list of pictures; has the reading methods of `TextFile`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bom_length = 0
        """Always 0: the file has no byte-order mark."""
        self.n_lines = 0
        """Number of examples."""
        self.is_readable = True
        """False if the file could not be opened."""
        self.layout = ""
        """Number of features and their data type, which all rows share, as a text; "" without examples."""
        self._taken = 0
        self._new_faults: list[FileFault] = []
        try:
            self._content: Any = _open(path)
            self._keys: Sequence[Any] = self._keys_of(self._content)
            self.n_lines = len(self._keys)
            if self.n_lines:
                self._array(0)  # sets the layout; raises if the file has other contents
        except (
            Exception
        ) as fault:  # numpy and zipfile raise many kinds of exceptions for damaged files
            message = f"{path}: cannot read it as .npy or .npz: {fault}"
            if isinstance(fault, DataError):
                message = str(fault)
            elif isinstance(fault, ValueError) and not path.endswith((".npy", ".npz")):
                # numpy's message for such a file is about pickles, which does not help.
                message = (
                    f"{path}: cannot read it as .npy or .npz; "
                    "pictures are named in a .txt file, a path on each line"
                )
            self.is_readable = False
            self.n_lines = 0
            self._new_faults.append(
                FileFault(FEATURES, FaultLocation(path, 1, text=message), message)
            )

    def _keys_of(self, content: Any) -> Sequence[Any]:
        """Returns the index or name of each example in the content."""
        if isinstance(content, list):
            return range(len(content))
        if isinstance(content, np.ndarray):
            if content.ndim not in (2, 3, 4):
                raise DataError(f"{self.path}: an array of shape {content.shape}; {_SHAPES}")
            return range(len(content))
        names: list[str] = content.files
        numbers = [str(number) for number in range(len(names))]
        return numbers if set(numbers) == set(names) else names

    def _array(self, number: int) -> Rows:
        """Returns the features of an example; does not read them yet if the file is memory-mapped."""
        array = self._content[self._keys[number]]
        if isinstance(array, Path):
            array = _read_picture(array)
        is_picture = array.dtype == np.uint8 and array.shape[2:] == (3,)
        rows: Rows
        if is_picture:
            rows = array.reshape(len(array), -1)  # (H, 3W)
        else:
            rows = np.atleast_2d(array)
        where = f"{self.path}, example {number + 1}"
        if rows.dtype not in _DTYPES and not is_picture:
            raise DataError(
                f"{where}: numbers of type {rows.dtype}; save them as float16 or float32, pictures as uint8 of shape "
                "(examples, height, width, 3)"
            )
        if rows.ndim != 2 or not rows.size:
            raise DataError(f"{where}: an array of shape {rows.shape}; {_SHAPES}, none of them 0")
        layout = _layout(array)
        if self.layout and layout != self.layout:
            raise DataError(f"{where}: {layout}, but before {self.layout}")
        self.layout = layout
        return rows

    def read(self, number: int) -> Rows:
        """Returns the features of an example, counted from 0.

        Raises:
            DataError: the features differ from the first example's layout, are not finite, or cannot be read.
        """
        try:
            rows = self._array(number)
        except DataError:
            raise
        except Exception as fault:
            raise DataError(
                f"{self.path}, example {number + 1}: cannot read it: {fault}"
            ) from fault
        is_finite = np.isfinite(rows).all(axis=1)  # (R,)
        if not is_finite.all():
            first_bad_row = int(is_finite.argmin()) + 1
            raise DataError(
                f"{self.path}, example {number + 1}, row {first_bad_row}: a number that is not finite; mend the "
                "features or leave the example out"
            )
        return rows

    def fill(self, min_lines: int = 0) -> int:
        """Returns the number of examples for the next block; fewer than `min_lines` only at the end."""
        return min(self.n_lines - self._taken, max(min_lines, BLOCK_LINES))

    def take(self, count: int) -> "tuple[FeatureRows, list[int]]":
        """Returns the next `count` examples and an empty list of faulty ones, because nothing is read yet."""
        first = self._taken
        self._taken = min(self.n_lines, first + count)
        return FeatureRows(self, range(first, self._taken)), []

    def skip_rest(self) -> None:
        """Does nothing: the number of examples is known."""

    def new_faults(self) -> list[FileFault]:
        """Returns the faults of the file as a whole that were found since the last call."""
        faults = self._new_faults
        self._new_faults = []
        return faults


class FeatureRows(Sequence[Rows]):
    """Features of consecutive examples. Indexing reads an example from the file; slicing does not."""

    def __init__(self, file: FeaturesFile, numbers: range) -> None:
        self._file = file
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FeatureRows(self._file, self._numbers[index])
        return self._file.read(self._numbers[index])


def _open(path: str) -> Any:
    """Returns an array with all examples, a mapping of arrays by name, or a list of picture paths."""
    if path.endswith(".txt"):
        return [Path(path).parent / line for line in read_lines(path)]
    content = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(content, np.ndarray) and len(content.files) == 1:
        only_array = content[content.files[0]]
        if only_array.ndim == 4:  # it contains all pictures of the file
            return only_array
    return content


def _read_picture(path: Path) -> Rows:
    from PIL import Image  # imported here because only pictures need it

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))  # (H, W, 3)


def _layout(array: Rows) -> str:
    if array.ndim == 3:
        return f"pictures of {array.shape[0]} x {array.shape[1]} pixels"
    return f"rows of {array.shape[-1]} numbers in {array.dtype.name}"


def require_one_layout(splits: Iterable[SplitFiles]) -> None:
    """Raises a DataError if files of features differ in the number of features or in the data type."""
    first_path = ""
    first_layout = ""
    for files in splits:
        for path in files.features:
            layout = FeaturesFile(path).layout
            if not layout:
                continue
            if not first_layout:
                first_path = path
                first_layout = layout
            if layout != first_layout:
                raise DataError(
                    f"{first_path} has {first_layout}, but {path} {layout}: all files of features of a recipe must be "
                    "alike"
                )
