"""Feature files: each example is a matrix `(R,F)` of numbers, usually read from the file only when needed.

R is the number of rows, F the number of features in a row. An image of height H and width W becomes a matrix `(H,3W)`
with the red, green and blue values of each pixel, from 0 to 255; `Inputs.of_features` scales them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.faults import FEATURES, FaultLocation, FileFault
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.text_file import BLOCK_LINES

Rows: TypeAlias = NDArray[Any]
"""Features of one example, `(R,F)`."""
_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
_SHAPES = (
    "the array in an .npy file must have the shape (examples, F) or (examples, R, F), and each array in an .npz file "
    "(R, F) or (F,); images must be uint8 arrays of shape (examples, height, width, 3) or, in an .npz file, also "
    "(height, width, 3)"
)


class FeaturesFile:
    """The examples of an .npy or .npz file, or of a list of images.

    `SplitReader` reads it like a `TextFile`, so both classes have `path`, `bom_length`, `n_lines`, `is_readable`,
    `fill`, `take`, `skip_rest` and `take_faults`. Here, a "line" is an example.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.bom_length = 0
        """Always 0, since the file has no byte-order mark."""
        self.n_lines = 0
        """Number of examples."""
        self.is_readable = True
        """False if the file could not be opened, or if its first example has a wrong shape or data type.

        NaN and infinity are found only by `read`, even in the first example.
        """
        self.layout = ""
        """Layout of the first example, which all others must share: number of features and data type, or image size.

        Used in messages and compared for equality, so it does not contain the number of rows. "" if there are no
        examples, or if the first one is invalid.
        """
        self._taken = 0
        self._new_faults: list[FileFault] = []
        self._content: Any = None
        self._keys: Sequence[Any] = ()
        try:
            self._content = _content_of(path)
            self._keys = self._keys_of(self._content)
            self.n_lines = len(self._keys)
            if self.n_lines:
                _, self.layout = self._rows_and_layout(0)
        except Exception as fault:
            # NumPy and zipfile raise many kinds of exceptions for damaged files.
            message = _opening_message(path, fault)
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
                raise DataError(f"{self.path}: the array has the shape {content.shape}; {_SHAPES}")
            return range(len(content))
        # Arrays named 0, 1, ... are read in numerical order (10 may come before 2 in the archive), others in the order
        # of the archive.
        names: list[str] = content.files
        numbers = [str(number) for number in range(len(names))]
        return numbers if set(numbers) == set(names) else names

    def _rows_and_layout(self, number: int) -> tuple[Rows, str]:
        """Returns the features of an example and their layout; does not read a memory-mapped file yet.

        Raises:
            DataError: the example cannot be read, or has a wrong shape or data type.
        """
        where = f"{self.path}, example {number + 1}"
        try:
            array = self._content[self._keys[number]]
            if isinstance(array, Path):
                array = _read_image(array)
            layout = _layout(array)  # fails for members of an .npz file that are not arrays
        except Exception as fault:  # NumPy, zipfile and Pillow raise many kinds of exceptions
            raise DataError(f"{where}: cannot be read: {fault}") from fault
        is_image = array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3
        rows: Rows
        if is_image and array.size:
            rows = array.reshape(len(array), -1)  # (H, 3W)
        else:
            rows = np.atleast_2d(array)
        if rows.dtype not in _DTYPES and not is_image:
            raise DataError(
                f"{where}: the data type is {rows.dtype}; save features as float16 or float32, and images as uint8 "
                "arrays of shape (examples, height, width, 3)"
            )
        if rows.ndim != 2 or not rows.size:
            raise DataError(
                f"{where}: the array has the shape {rows.shape}; {_SHAPES}, and no dimension may be 0"
            )
        return rows, layout

    def read(self, number: int) -> Rows:
        """Returns the features of an example, counted from 0.

        Raises:
            DataError: the features do not have the layout of the first example, are not finite, or cannot be read.
        """
        rows, layout = self._rows_and_layout(number)
        if layout != self.layout:
            raise DataError(
                f"{self.path}, example {number + 1} has {layout}, but earlier examples have {self.layout}"
            )
        is_finite = np.isfinite(rows).all(axis=1)  # (R,)
        if not is_finite.all():
            first_bad_row = int(is_finite.argmin()) + 1
            raise DataError(
                f"{self.path}, example {number + 1}, row {first_bad_row} contains NaN or infinity; correct the "
                "features, or remove the example"
            )
        return rows

    def fill(self, min_lines: int = 0) -> int:
        """Returns the number of examples for the next block; it is less than `min_lines` only at the end."""
        return min(self.n_lines - self._taken, max(min_lines, BLOCK_LINES))

    def take(self, count: int) -> "tuple[FeatureRows, list[int]]":
        """Returns up to `count` examples, and an empty list of faulty rows, because nothing has been read yet."""
        first = self._taken
        self._taken = min(self.n_lines, first + count)
        return FeatureRows(self, range(first, self._taken)), []

    def skip_rest(self) -> None:
        """Does nothing, because the number of examples is already known."""

    def take_faults(self) -> list[FileFault]:
        """Returns the faults of the whole file that were found since the last call."""
        faults = self._new_faults
        self._new_faults = []
        return faults


class FeatureRows(Sequence[Rows]):
    """Features of consecutive examples. Indexing reads an example from the file; slicing does not read anything."""

    def __init__(self, file: FeaturesFile, numbers: range) -> None:
        self._file = file
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FeatureRows(self._file, self._numbers[index])
        return self._file.read(self._numbers[index])


def _content_of(path: str) -> Any:
    """Returns an array with all examples, a mapping from names to arrays, or a list of image paths.

    An .npy file is memory-mapped. An .npz file cannot be memory-mapped: its arrays are read when they are needed,
    except that the only array in a file is read immediately, because it may contain all images.
    """
    if path.endswith(".txt"):
        return [Path(path).parent / line for line in read_lines(path)]
    content = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(content, np.ndarray) and len(content.files) == 1:
        only_array = content[content.files[0]]
        if only_array.ndim == 4:  # it contains all images of the file
            return only_array
    return content


def _opening_message(path: str, fault: Exception) -> str:
    if isinstance(fault, DataError):  # also an invalid first example
        return str(fault)
    if path.endswith(".txt"):
        return f"{path}: cannot read the list of images: {fault}"
    if isinstance(fault, ValueError) and not path.endswith((".npy", ".npz")):
        # NumPy's message for such a file is about pickles, which would not help the user.
        return f"{path}: cannot be read as .npy or .npz; for images, use a .txt file with one path per line"
    return f"{path}: cannot be read as .npy or .npz: {fault}"


def _read_image(path: Path) -> Rows:
    from PIL import Image  # imported here, because only images need it

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))  # (H, W, 3)


def _layout(array: Rows) -> str:
    if array.ndim == 3:  # (H, W, 3)
        return f"images of {array.shape[0]} x {array.shape[1]} pixels"
    return f"rows of {array.shape[-1]} {array.dtype.name} values"


def require_one_layout(splits: Iterable[SplitFiles]) -> None:
    """Raises a DataError if the first examples of feature files differ in layout.

    The layout is the number of features and the data type, or the size of images.
    """
    first_path = ""
    first_layout = ""
    for files in splits:
        for path in files.features:
            layout = FeaturesFile(path).layout
            if not layout:  # empty, or unreadable, which is reported when the examples are read
                continue
            if not first_layout:
                first_path = path
                first_layout = layout
            if layout != first_layout:
                raise DataError(
                    f"{first_path} has {first_layout}, but {path} has {layout}; all feature files in a "
                    "recipe must have the same layout"
                )
