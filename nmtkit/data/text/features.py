"""Files of features: rows of numbers for each example, read when asked for; of a picture rows of pixels, `(H,3W)`."""

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
"""The features of an example, `(R,F)`."""
_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
_SHAPES = "an .npy file has the shape (examples, F) or (examples, R, F), an array of an .npz file (R, F) or (F,)"


class FeaturesFile:
    """The examples of one .npy or .npz file, with the methods of a `TextFile` that reading line by line needs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.mark = self.count = 0
        """The number of examples."""
        self.whole = True
        """Whether it could be opened."""
        self.layout = ""
        """What its rows are: F, and the type of the numbers; empty without examples."""
        self._taken = 0
        self._new_faults: list[FileFault] = []
        try:
            self._content: Any = _open(path)
            self._keys: Sequence[Any] = self._keys_of(self._content)
            self.count = len(self._keys)
            if self.count:
                self._array(0)
        except Exception as fault:  # numpy and zipfile have many kinds for what is damaged
            why = str(fault) if isinstance(fault, DataError) else f"{path}: cannot read it as .npy or .npz: {fault}"
            if isinstance(fault, ValueError) and not path.endswith((".npy", ".npz")):  # which numpy takes for pickled
                why = f"{path}: cannot read it as .npy or .npz; pictures are named in a .txt file, a path on each line"
            self.whole, self.count = False, 0
            self._new_faults.append(FileFault(FEATURES, FaultLocation(path, 1, text=why), why))

    def _keys_of(self, content: Any) -> Sequence[Any]:
        """By what `content` is indexed to get each example."""
        if not isinstance(content, (np.ndarray, list)):
            numbers = [str(number) for number in range(len(content.files))]
            return numbers if {*numbers} == {*content.files} else content.files
        if isinstance(content, np.ndarray) and content.ndim not in (2, 3, 4):
            raise DataError(f"{self.path}: an array of shape {content.shape}; {_SHAPES}")
        return range(len(content))

    def _array(self, number: int) -> Rows:
        """The features of an example, unread where the file is memory-mapped."""
        array = self._content[self._keys[number]]
        array = _picture(array) if isinstance(array, Path) else array
        is_picture = array.dtype == np.uint8 and array.shape[2:] == (3,)
        rows: Rows = array.reshape(len(array), -1) if is_picture else np.atleast_2d(array)
        where = f"{self.path}, example {number + 1}"
        if rows.dtype not in _DTYPES and not is_picture:
            pictures = "pictures as uint8 of shape (examples, height, width, 3)"
            raise DataError(f"{where}: numbers of type {rows.dtype}; save them as float16 or float32, {pictures}")
        if rows.ndim != 2 or not rows.size:
            raise DataError(f"{where}: an array of shape {rows.shape}; {_SHAPES}, none of them 0")
        if self.layout and _layout(array) != self.layout:
            raise DataError(f"{where}: {_layout(array)}, but before {self.layout}")
        self.layout = _layout(array)
        return rows

    def read(self, number: int) -> Rows:
        """The features of an example, counted from 0; DataError if they are of another kind or not finite."""
        try:
            rows = self._array(number)
        except DataError:
            raise
        except Exception as fault:
            raise DataError(f"{self.path}, example {number + 1}: cannot read it: {fault}") from fault
        if not (finite := np.isfinite(rows).all(1)).all():
            raise DataError(
                f"{self.path}, example {number + 1}, row {int(finite.argmin()) + 1}: a number that is not finite; "
                "mend the features or leave the example out"
            )
        return rows

    def fill(self, least: int = 0) -> int:
        """How many examples of a block are left."""
        return min(self.count - self._taken, max(least, BLOCK_LINES))

    def take(self, count: int) -> "tuple[FeatureRows, list[int]]":
        """The next examples; the list is empty, since faults show when one is read."""
        first, self._taken = self._taken, min(self.count, self._taken + count)
        return FeatureRows(self, range(first, self._taken)), []

    def skip_rest(self) -> None:
        """There is nothing to count."""

    def new_faults(self) -> list[FileFault]:
        """New faults of the whole file since the last call."""
        faults, self._new_faults = self._new_faults, []
        return faults


class FeatureRows(Sequence[Rows]):
    """The features of consecutive examples: each is read from the file when it is asked for."""

    def __init__(self, file: FeaturesFile, numbers: range) -> None:
        self._file = file
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return FeatureRows(self._file, self._numbers[at])
        return self._file.read(self._numbers[at])


def _open(path: str) -> Any:
    """All examples in one array, arrays by name, or the paths of pictures."""
    if path.endswith(".txt"):
        return [Path(path).parent / line for line in read_lines(path)]
    content = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(content, np.ndarray) and len(content.files) == 1 and content[content.files[0]].ndim == 4:
        return content[content.files[0]]
    return content


def _picture(path: Path) -> Rows:
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def _layout(array: Rows) -> str:
    if array.ndim == 3:
        return f"pictures of {array.shape[0]} x {array.shape[1]} pixels"
    return f"rows of {array.shape[-1]} numbers in {array.dtype.name}"


def require_one_layout(splits: Iterable[SplitFiles]) -> None:
    """DataError if files of features differ in the type or the number of the numbers in a row."""
    layouts = [(path, FeaturesFile(path).layout) for files in splits for path in files.features]
    known = [(path, layout) for path, layout in layouts if layout]
    for path, layout in known:
        if layout != known[0][1]:
            raise DataError(
                f"{known[0][0]} has {known[0][1]}, but {path} {layout}: all files of features of a recipe must be alike"
            )
