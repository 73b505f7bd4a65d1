"""Reads files from other toolkits safely: runs no code in them and checks every size before use."""

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
"""Size limit for files other than weights; the largest vocabularies have a few MiB."""
_INDEX_SUFFIX = ".index.json"
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True)
class ExternalWeights:
    """Named tensors from another toolkit, each read on demand."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]

    @classmethod
    def of_pickle(
        cls, path: Path, content: Any, remedy: str = "use a model.safetensors file"
    ) -> "ExternalWeights":
        """Returns the named tensors in a pickle, after checking that each has the values that its shape requires."""
        fault = f"{path}: contains objects other than named tensors; {remedy}"
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
                    f"{path}: {shorten(repr(name))} has fewer values than its shape requires"
                )
            shapes[name] = tuple(tensor.shape)
        return cls(path, shapes, content.__getitem__)

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor in float32; raises CheckpointError unless all its values are finite."""
        tensor = self.read(name)
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{self.path}: {shorten(repr(name))} is not a floating-point tensor, or contains "
                "NaN or infinity; download the file again"
            )
        return tensor.float().contiguous()


def read_file(path: Path) -> bytes:
    """Returns the content of a file; CheckpointError if it is missing, not a file, or too large."""
    if not path.is_file():  # reading from a pipe would block forever
        fault = "this is not a file" if path.exists() else "this file is missing"
        raise CheckpointError(f"{path}: {fault}, but the model needs it; download the whole folder")
    if path.stat().st_size > _MAX_BYTES:
        raise CheckpointError(
            f"{path}: this file is implausibly large (more than {_MAX_BYTES >> 20} MiB); download "
            "the folder again"
        )
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Like `read_file`, decoded as UTF-8."""
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError as fault:
        raise CheckpointError(
            f"{path}: not valid UTF-8 (byte {fault.start}); download the file again"
        ) from fault


def read_json(path: Path, kind: type[J]) -> J:
    """Like `read_file`, parsed as JSON; raises CheckpointError unless the value has this type."""
    try:
        content = parse_json(read_file(path), str(path))
    except DataError as fault:
        raise CheckpointError(str(fault)) from fault
    if not isinstance(content, kind):
        raise CheckpointError(
            f"{path}: contains a {type(content).__name__} instead of a {kind.__name__}"
        )
    return content


def unsupported(place: Path, what: str, remedy: str = "") -> CheckpointError:
    """Returns the error for a feature that nmtkit does not support; `what` names it as a noun phrase."""
    return CheckpointError(f"{place}: nmtkit does not support {what}{remedy and '; '}{remedy}")


def require_equal(place: Path, settings: Settings, names: Mapping[str, str]) -> None:
    """Rejects settings that differ from a related setting; `names` maps dotted names to the related ones."""
    for name, other in names.items():
        value, expected = attrgetter(name, other)(settings)
        if value != expected:
            raise unsupported(
                place, f"a `{name}` ({value}) that differs from `{other}` ({expected})"
            )


class ExternalSettings(Settings, extra="ignore"):
    """Settings of another toolkit's configuration; unknown keys are ignored, and null means the default."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        return {key: value for key, value in content.items() if value is not None}


def has_weights(folder: Path) -> bool:
    """Returns whether a folder has a weights file with a name that `transformers` uses."""
    return any((folder / name).exists() for name in _WEIGHT_FILES)


def read_weights(folder: Path) -> ExternalWeights:
    """Returns the weights in a folder: one or more safetensors files, or `.bin` files that contain only tensors.

    Tensors of safetensors files are read on demand.
    """
    path = next((folder / name for name in _WEIGHT_FILES if (folder / name).exists()), None)
    if path is None:
        raise CheckpointError(
            f"{folder}: contains no weights ({', '.join(_WEIGHT_FILES)}); download the whole folder"
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
            for name in file.keys():  # noqa: SIM118  # the file is not a mapping
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
    """Rejects weights that need more memory than is free."""
    free = free_memory()
    if needed > free:
        raise CheckpointError(
            f"{path}: the weights need {needed / 2**30:,.1f} GiB of memory, but only "
            f"{free / 2**30:,.1f} GiB are free; close other programs, or use a smaller model"
        )


def _shards(index: Path) -> list[Path]:
    """Returns the files that an index lists; all must be in its folder and have its format."""
    suffix = Path(index.name.removesuffix(_INDEX_SUFFIX)).suffix
    named = read_json(index, dict).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise CheckpointError(f"{index}: lists no weight files; download the file again")
    files = sorted({str(file) for file in named.values()})
    for file in files:
        if not re.fullmatch(rf"[\w-][\w.-]*{re.escape(suffix)}", file):
            raise CheckpointError(
                f"{index}: lists {shorten(repr(file))}, which is not a valid file name; nothing "
                "was read"
            )
    return [index.parent / file for file in files]


def load_pickle(
    path: Path, allowed: Sequence[type] = (), remedy: str = "use a model.safetensors file"
) -> Any:
    """Returns the content of a `torch.save` file; loads only tensors, plain values and `allowed` classes."""
    try:
        if not path.is_file():
            raise ValueError("this is not a file")
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                    raise ValueError(
                        "the file is compressed, but torch.save never compresses files"
                    )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.serialization.safe_globals([*allowed]):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as fault:  # a malicious pickle may raise anything
        reason = shorten(" ".join(str(fault).split()), 200)
        raise CheckpointError(
            f"{path}: damaged, or contains objects other than tensors; no code in it was run "
            f"({reason}); {remedy}"
        ) from fault
