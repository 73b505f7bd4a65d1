"""What files of others hold, read so that nothing in them is run and nothing is believed before it is checked."""

import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError, DataError
from nmtkit.core.settings import parse_json
from nmtkit.core.wording import shortened
from nmtkit.training.tensor_files import opened

_MOST_BYTES = 1 << 28
"""Of a file that is not weights; the largest vocabularies have some MiB."""
_INDEX = "model.safetensors.index.json"
_WEIGHTS = ("model.safetensors", _INDEX, "pytorch_model.bin")
"""Files that may hold the weights, the first that is there."""


@dataclass(frozen=True)
class ForeignWeights:
    """The tensors of others, of which no number was read yet."""

    path: Path
    """What a message calls them."""
    shapes: dict[str, tuple[int, ...]]
    """By name; the files hold so many numbers."""
    read: Callable[[str], Tensor]
    """Reads one of them."""

    @classmethod
    def of(cls, path: Path, tensors: Mapping[str, Tensor]) -> "ForeignWeights":
        """Those that are read already."""
        return cls(path, {key: tuple(one.shape) for key, one in tensors.items()}, tensors.__getitem__)

    def tensor(self, name: str) -> Tensor:
        """One of them in float32.

        Raises:
            CheckpointError: it does not hold numbers that are all finite.
        """
        found = self.read(name)
        if not found.is_floating_point() or not bool(torch.isfinite(found).all()):
            raise CheckpointError(f"{self.path}: {shortened(repr(name))} holds what is no finite number; get it again")
        return found.float().contiguous()


def read_foreign(folder: Path, name: str) -> bytes:
    """A file of a folder.

    Raises:
        CheckpointError: it is not there, no file, or too large to be one of these.
    """
    path = folder / name
    if not path.is_file():  # a pipe would be waited for
        there = "is no file" if path.exists() else "is missing"
        raise CheckpointError(f"{path}: {there}, and the model cannot be read without it; download the whole folder")
    if path.stat().st_size > _MOST_BYTES:
        raise CheckpointError(f"{path}: more than {_MOST_BYTES >> 20} MiB, so it is not what its name says")
    return path.read_bytes()


def read_foreign_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder.

    Raises:
        CheckpointError: as `read_foreign`, or it is not an object.
    """
    path = folder / name
    try:
        found = parse_json(read_foreign(folder, name), str(path))
    except DataError as fault:
        raise CheckpointError(str(fault)) from fault
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds a {type(found).__name__}, not an object of keys and values")
    return found


@contextmanager
def foreign_weights(folder: Path) -> Iterator[ForeignWeights]:
    """The weights of a folder: safetensors, in one file or several, or a `.bin` file of tensors alone.

    Raises:
        CheckpointError: there are none, they are damaged, leave the folder, or hold more than tensors.
    """
    name = next((name for name in _WEIGHTS if (folder / name).exists()), None)
    if name is None:
        raise CheckpointError(
            f"{folder}: no weights: none of {', '.join(_WEIGHTS)} is there; download the whole folder"
        )
    if name.endswith(".bin"):
        tensors = named_tensors(folder / name, unpickled(folder / name))
        yield ForeignWeights.of(folder / name, tensors)
        return
    with ExitStack() as stack:
        where: dict[str, Any] = {}
        for path in _parts(folder) if name == _INDEX else [folder / name]:
            try:
                file = stack.enter_context(opened(path))
                where |= dict.fromkeys(file.keys(), file)
            except CheckpointError as fault:
                raise CheckpointError(f"{path}: {fault}") from fault
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key, file in where.items()}
        yield ForeignWeights(folder / name, shapes, lambda key: where[key].get_tensor(key))


def _parts(folder: Path) -> list[Path]:
    """The files that the index names; they lie beside it."""
    named = read_foreign_json(folder, _INDEX).get("weight_map")
    files = {str(one) for one in named.values()} if isinstance(named, dict) else set()
    outside = [one for one in sorted(files) if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", one)]
    if outside or not files:
        what = f"names {shortened(repr(outside[0]))}, which is no file beside it" if outside else "names no files"
        raise CheckpointError(f"{folder / _INDEX}: {what}; nothing was read")
    return [folder / one for one in sorted(files)]


def unpickled(path: Path, allowed: Sequence[type] = (), remedy: str = "take a model.safetensors") -> Any:
    """What a file holds that `torch.save` wrote. Of its pickle nothing runs but what makes tensors and plain values.

    Args:
        path: the file.
        allowed: classes of which it may hold objects; they do nothing when they are made.
        remedy: what to do where it holds more.

    Raises:
        CheckpointError: it is damaged, or holds more.
    """
    try:
        if not path.is_file():
            raise ValueError("not a file")
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                    raise ValueError("it is compressed, which torch.save never does")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.serialization.safe_globals([*allowed]):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as fault:  # a pickle that was made to do harm may raise anything
        said = shortened(" ".join(str(fault).split()), 200)
        raise CheckpointError(
            f"{path}: damaged, or holds more than tensors; nothing of it was run ({said}); {remedy}"
        ) from fault


def named_tensors(path: Path, found: Any, remedy: str = "take a model.safetensors") -> dict[str, Tensor]:
    """What was unpickled, if it is tensors with names that have the numbers that their shapes say.

    Raises:
        CheckpointError: it is not.
    """
    if not isinstance(found, dict) or not all(type(key) is str and type(one) is Tensor for key, one in found.items()):
        raise CheckpointError(f"{path}: holds other things than tensors with names; {remedy}")
    for name, one in found.items():
        plain = one.layout == torch.strided and one.device.type == "cpu" and not one.is_quantized
        if not plain or one.nbytes > one.untyped_storage().nbytes():
            raise CheckpointError(f"{path}: {shortened(repr(name))} has not as many numbers as its shape says")
    return found
