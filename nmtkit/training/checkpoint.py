"""Checkpoints: safetensors files with JSON in them, never pickle, written so that a crash loses nothing.

A run's checkpoint folder holds

    last.safetensors               everything that training needs to go on as if it had never stopped
    weights-00012000.safetensors   the weights alone, as evaluated at that update (averaged ones if there is an EMA)
    kept.json                      which of these there are, with the metric's value at each

A tied weight is saved once, under its first name. Every file is written beside its place, forced to the disk, and
then moved into place in one stroke.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nmtkit.errors import CheckpointError

WEIGHTS, EMA, OPTIMIZER = "weights/", "ema/", "optimizer/"
"""How the names in `last.safetensors` begin; the file also has the facts as JSON in its head."""

_FACTS = "facts"


@dataclass(frozen=True)
class Kept:
    """One kept weights file."""

    update: int
    """After which update."""
    value: float
    """What the metric was."""


class Checkpoints:
    """The checkpoint folder of one run.

    Args:
        folder: made on the first save.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def last(self) -> Path:
        """Where the full state is; the file may not exist yet."""
        return self.folder / "last.safetensors"

    def weights_path(self, update: int) -> Path:
        """Where the weights of an update are, if they were kept."""
        return self.folder / f"weights-{update:08d}.safetensors"

    def save_last(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Replaces the full state.

        Args:
            tensors: under names that begin with WEIGHTS, EMA or OPTIMIZER.
            facts: whatever else there is, as JSON values.

        Returns:
            The file.

        Raises:
            CheckpointError: it cannot be written; the state saved before is untouched.
        """
        _write_tensors(self.last, tensors, {_FACTS: json.dumps(facts)})
        return self.last

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Reads what `save_last` wrote.

        Raises:
            CheckpointError: there is no such file, or it is damaged.
        """
        facts = self.read_facts()
        with _opened(self.last) as file:
            names = list(file.keys())  # the file is no mapping: it cannot be gone through by itself
            return {name: file.get_tensor(name) for name in names}, facts

    def read_facts(self) -> dict[str, Any]:
        """The facts alone of what `save_last` wrote: where training stands.

        Raises:
            CheckpointError: there is no such file, or it is damaged.
        """
        if not self.last.exists():
            raise CheckpointError(f"{self.last}: not found, so there is nothing to resume; train without --resume")
        with _opened(self.last) as file:
            metadata = file.metadata() or {}
            if _FACTS not in metadata:
                raise CheckpointError(f"{self.last}: holds weights but no training state; it cannot be resumed from")
            facts: dict[str, Any] = json.loads(metadata[_FACTS])
            return facts

    def kept(self) -> list[Kept]:
        """The kept weights files, oldest first.

        Raises:
            CheckpointError: the list cannot be read.
        """
        return [Kept(**entry) for entry in self._read_index().get("kept", [])]

    def best(self) -> list[Path]:
        """The kept weights files, best first; of equal ones the older is better."""
        index = self._read_index()
        sign = -1 if index.get("higher_is_better", True) else 1
        return [self.weights_path(entry.update) for entry in sorted(self.kept(), key=lambda kept: sign * kept.value)]

    def recent(self) -> list[Path]:
        """The kept weights files, newest first."""
        return [self.weights_path(entry.update) for entry in reversed(self.kept())]

    def keep(
        self,
        weights: Mapping[str, Tensor],
        update: int,
        metric: str,
        value: float,
        higher_is_better: bool,
        keep_best: int,
        keep_recent: int,
    ) -> Path | None:
        """Saves weights if they are among the best or the newest, and removes those that no longer are.

        Args:
            weights: as `weights_of` gives them.
            update: after which update; entries of this or a later update (of an earlier course of the same training,
                which a resumed one repeats) are replaced.
            metric: the name of the metric that decides.
            value: its value.
            higher_is_better: its direction.
            keep_best: how many of the best files stay.
            keep_recent: how many of the newest files stay, whatever their value.

        Returns:
            The file, or None if it is not among them.

        Raises:
            CheckpointError: a file cannot be written; those before it are untouched.
        """
        known = self._read_index()
        same = known.get("metric") == metric and known.get("higher_is_better") == higher_is_better
        entries = [entry for entry in self.kept() if entry.update < update] if same else []
        entries.append(Kept(update, value))
        sign = -1 if higher_is_better else 1
        staying = {e.update for e in sorted(entries, key=lambda e: sign * e.value)[:keep_best]}
        staying |= {e.update for e in entries[-keep_recent:]} if keep_recent else set()
        entries = [e for e in entries if e.update in staying]
        path = self.weights_path(update) if update in staying else None
        if path is not None:
            _write_tensors(path, weights, {"update": str(update), metric: str(value)})
        index = {"metric": metric, "higher_is_better": higher_is_better, "kept": [asdict(e) for e in entries]}
        text = json.dumps(index, indent=1)
        _write(self._index_path, lambda place: place.write_text(text, encoding="utf-8"))
        for old in self.folder.glob("weights-*.safetensors"):
            if old not in {self.weights_path(entry.update) for entry in entries}:
                old.unlink()
        return path

    @property
    def _index_path(self) -> Path:
        return self.folder / "kept.json"

    def _read_index(self) -> dict[str, Any]:
        if not self._index_path.exists():
            return {}
        try:
            index: dict[str, Any] = json.loads(self._index_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as fault:
            raise CheckpointError(
                f"{self._index_path}: cannot read it ({fault}); delete it to start a new list of kept weights"
            ) from fault
        return index


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a full state whose names begin with WEIGHTS, EMA or OPTIMIZER, under the rest of their names."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights and persistent buffers of a model, not copied; a tied one once, under its first name."""
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes weights to a file of their own.

    Raises:
        CheckpointError: it cannot be written; what was there before is untouched.
    """
    _write_tensors(path, weights, {})


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads the weights in a checkpoint of either kind, onto the CPU; of a full state the averaged ones, if it has any.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    with _opened(path) as file:
        names = list(file.keys())
        if _FACTS not in (file.metadata() or {}):
            return {name: file.get_tensor(name) for name in names}
        weights = {name[len(WEIGHTS) :]: file.get_tensor(name) for name in names if name.startswith(WEIGHTS)}
        # Buffers have no average, so the averages are laid over the weights.
        weights |= {name[len(EMA) :]: file.get_tensor(name) for name in names if name.startswith(EMA)}
        return weights


def load_weights(model: nn.Module, path: Path) -> None:
    """Fills the model with the weights in a checkpoint of either kind.

    Raises:
        CheckpointError: the file is missing, damaged, or of a model of another shape.
    """
    fill_weights(model, read_weights(path), path)


def fill_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Fills the model in place, so that tied weights stay tied and every address stays the same.

    Args:
        model: on any device.
        weights: as `weights_of` or `read_weights` gives them.
        path: where they are from, for messages.

    Raises:
        CheckpointError: a weight is missing, of another shape, or one that the model does not have.
    """
    own = weights_of(model)
    faults = [f"{name!r} is missing" for name in own if name not in weights]
    faults += [f"{name!r} is not in the model" for name in weights if name not in own]
    _fill(own, weights, path, faults)


def fill_known(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> tuple[list[str], list[str]]:
    """Fills the model in place with those weights that it has, for a model of which parts were added or taken away.

    Args:
        model: on any device.
        weights: as `read_weights` gives them.
        path: where they are from, for messages.

    Returns:
        The names of the model's weights that are not among those given, and of those given that it does not have.

    Raises:
        CheckpointError: a weight that both have is of another shape.
    """
    own = weights_of(model)
    both = {name: tensor for name, tensor in own.items() if name in weights}
    _fill(both, weights, path, [])
    return [name for name in own if name not in weights], [name for name in weights if name not in own]


def _fill(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path, faults: list[str]) -> None:
    """Copies those weights that both have, unless there are faults or one has another shape."""
    both = [name for name in own if name in weights]
    faults += [
        f"{name!r} has shape {list(weights[name].shape)}, the model wants {list(own[name].shape)}"
        for name in both
        if weights[name].shape != own[name].shape
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(
            f"{path}: the checkpoint is of another model: {'; '.join(faults[:3])}{more}; "
            "use the recipe it was trained with"
        )
    with torch.no_grad():
        for name in both:
            own[name].copy_(weights[name])


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, added up in float64, in the type of the first.

    Tensors that are not floating-point are taken from the first.

    Raises:
        CheckpointError: no file is given, one is missing or damaged, or they are not of one model.
    """
    if not paths:
        raise CheckpointError("there are no checkpoints to average")
    first = read_weights(paths[0])
    sums = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read_weights(path)
        if {name: tensor.shape for name, tensor in weights.items()} != {n: t.shape for n, t in first.items()}:
            raise CheckpointError(f"{path}: of another model than {paths[0]}; average checkpoints of one run only")
        for name, tensor in weights.items():
            sums[name] += tensor.double()
    return {
        name: (sums[name] / len(paths)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: not found; name a checkpoint file, or train first")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, ValueError) as fault:
        raise CheckpointError(
            f"{path}: damaged or cut short ({fault}); use another checkpoint of the run, or copy the file again"
        ) from fault


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    ready = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    _write(path, lambda place: save_file(ready, place, metadata))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place, forces it to the disk and moves it into place in one stroke."""
    beside = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        _force_to_disk(beside)
        os.replace(beside, path)
        _force_to_disk(path.parent)
    except (OSError, SafetensorError) as fault:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise CheckpointError(
            f"{path}: cannot write it ({fault}); free some space there or name another folder; "
            "the checkpoints written before are untouched"
        ) from fault


def _force_to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
