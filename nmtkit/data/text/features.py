"""Files of features: each example has rows of numbers `(R,F)`, which are read from the file when they are needed.

R is the number of rows, F the number of features in a row. A picture of H rows and W columns of pixels becomes rows
`(H,3W)`: red, green and blue of each pixel.
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
"""Features of an example, `(R,F)`."""
_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
_SHAPES = "an .npy file has the shape (examples, F) or (examples, R, F), an array of an .npz file (R, F) or (F,)"


class FeaturesFile:
    """The examples of a .npy or .npz file, or of a list of pictures, with the methods of a `TextFile`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.mark = 0
        """Length of the byte-order mark: none."""
        self.count = 0
        """Number of examples."""
        self.whole = True
        """Whether the file could be opened."""
        self.layout = ""
        """Number of features and type of the numbers, which are the same in all rows; "" without examples."""
        self._taken = 0
        self._new_faults: list[FileFault] = []
        try:
            self._content: Any = _open(path)
            self._keys: Sequence[Any] = self._keys_of(self._content)
            self.count = len(self._keys)
            if self.count:
                self._array(0)  # sets the layout, or shows that the file has other contents
        except Exception as fault:  # numpy and zipfile have many exceptions for damaged files
            message = f"{path}: cannot read it as .npy or .npz: {fault}"
            if isinstance(fault, DataError):
                message = str(fault)
            elif isinstance(fault, ValueError) and not path.endswith((".npy", ".npz")):
                # Here numpy's message is about pickled files, which does not help.
                message = (
                    f"{path}: cannot read it as .npy or .npz; "
                    "pictures are named in a .txt file, a path on each line"
                )
            self.whole = False
            self.count = 0
            self._new_faults.append(
                FileFault(FEATURES, FaultLocation(path, 1, text=message), message)
            )

    def _keys_of(self, content: Any) -> Sequence[Any]:
        """Returns the index or name of each example in the content of the file."""
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
        """Returns the features of an example; of a memory-mapped file, without reading them."""
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
            DataError: they have another layout than the first example, are not finite, or cannot be read.
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

    def fill(self, least: int = 0) -> int:
        """Returns the number of examples for the next block; fewer than `least` only at the end."""
        return min(self.count - self._taken, max(least, BLOCK_LINES))

    def take(self, count: int) -> "tuple[FeatureRows, list[int]]":
        """Returns the next examples; the list of faulty ones is empty, since they are not read yet."""
        first = self._taken
        self._taken = min(self.count, first + count)
        return FeatureRows(self, range(first, self._taken)), []

    def skip_rest(self) -> None:
        """Does nothing: the number of examples is known."""

    def new_faults(self) -> list[FileFault]:
        """Returns the faults of the whole file that were found since the last call."""
        faults = self._new_faults
        self._new_faults = []
        return faults


class FeatureRows(Sequence[Rows]):
    """Features of consecutive examples. Indexing reads an example from the file; slicing reads nothing."""

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
    """Returns all examples in one array, arrays by name, or a list of the paths of pictures."""
    if path.endswith(".txt"):
        return [Path(path).parent / line for line in read_lines(path)]
    content = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(content, np.ndarray) and len(content.files) == 1:
        only_array = content[content.files[0]]
        if only_array.ndim == 4:  # all pictures of the file
            return only_array
    return content


def _read_picture(path: Path) -> Rows:
    from PIL import Image  # here, since only pictures need it

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))  # (H, W, 3)


def _layout(array: Rows) -> str:
    if array.ndim == 3:
        return f"pictures of {array.shape[0]} x {array.shape[1]} pixels"
    return f"rows of {array.shape[-1]} numbers in {array.dtype.name}"


def require_one_layout(splits: Iterable[SplitFiles]) -> None:
    """Raises DataError if files of features differ in the number of features or the type of the numbers."""
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
