"""Reads files of other toolkits safely: no code in them is run, and every size is checked before it is used."""

import math
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError, DataError, shorten
from nmtkit.core.formats import parse_json
from nmtkit.core.processes import free_memory
from nmtkit.core.settings import Settings, model_validator
from nmtkit.training.checkpoints.tensor_files import name_file_in_errors, open_tensors

J = TypeVar("J", dict[str, Any], list[Any])

_MAX_BYTES = 1 << 28
"""Size limit of a file other than weights; the largest vocabularies have some MiB."""
_INDEX_SUFFIX = ".index.json"
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True)
class ExternalWeights:
    """Named tensors of another toolkit, each read when it is needed."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]

    @classmethod
    def of_pickle(
        cls, path: Path, content: Any, remedy: str = "take a model.safetensors"
    ) -> "ExternalWeights":
        """Returns the content of a pickle, which must be named tensors, each with as many numbers as its shape says."""
        fault = f"{path}: holds other things than named tensors; {remedy}"
        if not isinstance(content, dict):
            raise CheckpointError(fault)
        shapes = {}
        for name, tensor in content.items():
            if type(name) is not str or type(tensor) is not Tensor:
                raise CheckpointError(fault)
            is_plain = (
                tensor.layout == torch.strided
                and tensor.device.type == "cpu"
                and not tensor.is_quantized
            )
            if not is_plain or tensor.nbytes > tensor.untyped_storage().nbytes():
                raise CheckpointError(
                    f"{path}: {shorten(repr(name))} has fewer numbers than its shape says"
                )
            shapes[name] = tuple(tensor.shape)
        return cls(path, shapes, content.__getitem__)

    def tensor(self, name: str) -> Tensor:
        """One tensor in float32; raises CheckpointError unless all its numbers are finite."""
        tensor = self.read(name)
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{self.path}: {shorten(repr(name))} contains NaN, infinity or no floating-point numbers; download "
                "the file again"
            )
        return tensor.float().contiguous()


def read_file(path: Path) -> bytes:
    """The content of a file other than weights; raises CheckpointError if it is missing, not a file, or too large."""
    if not path.is_file():  # reading a pipe would wait forever
        fault = "is not a file" if path.exists() else "is missing"
        raise CheckpointError(
            f"{path}: {fault}, and the model cannot be read without it; download the whole folder"
        )
    if path.stat().st_size > _MAX_BYTES:
        raise CheckpointError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, which no such file is")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """As `read_file`, in UTF-8."""
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError as fault:
        raise CheckpointError(
            f"{path}: not UTF-8 at byte {fault.start}; download it again"
        ) from fault


def read_json(path: Path, kind: type[J]) -> J:
    """As `read_file`, parsed as JSON; raises CheckpointError unless it holds a value of this kind."""
    try:
        content = parse_json(read_file(path), str(path))
    except DataError as fault:
        raise CheckpointError(str(fault)) from fault
    if not isinstance(content, kind):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not a {kind.__name__}")
    return content


def unsupported(place: Path, what: str, remedy: str = "") -> CheckpointError:
    """For a setting of another toolkit that has no counterpart here."""
    return CheckpointError(f"{place}: {what}, which is not supported{remedy and '; '}{remedy}")


def require_equal(place: Path, settings: Settings, names: Mapping[str, str]) -> None:
    """Refuses settings with another value than those beside them; names are dotted."""
    for name, other in names.items():
        value, expected = attrgetter(name, other)(settings)
        if value != expected:
            raise unsupported(place, f"{name}: {value} beside {other} {expected}")


class ExternalSettings(Settings, extra="ignore"):
    """Settings of another toolkit's configuration; other keys are ignored, and null stands for the default."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        return {key: value for key, value in content.items() if value is not None}


def has_weights(folder: Path) -> bool:
    """Whether a folder has a file of weights as `transformers` names them."""
    return any((folder / name).exists() for name in _WEIGHT_FILES)


def read_weights(folder: Path) -> ExternalWeights:
    """Returns the weights in a folder: safetensors or `.bin` files that hold only tensors, in one file or several.

    Tensors of safetensors stay in the file until they are asked for.
    """
    path = next((folder / name for name in _WEIGHT_FILES if (folder / name).exists()), None)
    if path is None:
        raise CheckpointError(
            f"{folder}: no weights ({', '.join(_WEIGHT_FILES)}); download the whole folder"
        )
    parts = _shards(path) if path.name.endswith(_INDEX_SUFFIX) else [path]
    if parts[0].suffix == ".bin":
        return _read_pickles(path, parts)
    return _open_safetensors(path, parts)


def _read_pickles(path: Path, parts: Sequence[Path]) -> ExternalWeights:
    sizes = [part.stat().st_size for part in parts if part.is_file()]
    _require_memory(path, sum(sizes))
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts:
        content = load_pickle(part)
        shapes.update(ExternalWeights.of_pickle(part, content).shapes)
        tensors.update(content)
    return ExternalWeights(path, shapes, tensors.__getitem__)


def _open_safetensors(path: Path, parts: Sequence[Path]) -> ExternalWeights:
    places: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts:
        with name_file_in_errors(part, "download it again"), open_tensors(part) as file:
            for name in file.keys():  # noqa: SIM118  # the file is no mapping
                places[name] = part
                shapes[name] = tuple(file.get_slice(name).get_shape())
    _require_memory(path, sum(4 * math.prod(shape) for shape in shapes.values()))

    def read(name: str) -> Tensor:
        with (
            name_file_in_errors(places[name], "download it again"),
            open_tensors(places[name]) as file,
        ):
            tensor: Tensor = file.get_tensor(name)
            return tensor

    return ExternalWeights(path, shapes, read)


def _require_memory(path: Path, needed: int) -> None:
    """Refuses weights that need more bytes than are free."""
    free = free_memory()
    if needed > free:
        raise CheckpointError(
            f"{path}: the weights need {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free; "
            "close other programs, or take a smaller model"
        )


def _shards(index: Path) -> list[Path]:
    """Returns the files that an index names, all of the kind that its name says and all beside it."""
    suffix = Path(index.name.removesuffix(_INDEX_SUFFIX)).suffix
    named = read_json(index, dict).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise CheckpointError(f"{index}: names no files; nothing was read")
    files = sorted({str(file) for file in named.values()})
    for file in files:
        if not re.fullmatch(rf"[\w-][\w.-]*{re.escape(suffix)}", file):
            raise CheckpointError(
                f"{index}: names {shorten(repr(file))}, but the folder has no such file; nothing was read"
            )
    return [index.parent / file for file in files]


def load_pickle(
    path: Path, allowed: Sequence[type] = (), remedy: str = "take a model.safetensors"
) -> Any:
    """The content of a file written by `torch.save`; only tensors, plain values and the `allowed` classes are made."""
    try:
        if not path.is_file():
            raise ValueError("not a file")
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                    raise ValueError("it is compressed, which torch.save never does")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.serialization.safe_globals([*allowed]):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as fault:  # a malicious pickle may raise anything
        reason = shorten(" ".join(str(fault).split()), 200)
        raise CheckpointError(
            f"{path}: damaged, or holds more than tensors; nothing of it was run ({reason}); {remedy}"
        ) from fault
