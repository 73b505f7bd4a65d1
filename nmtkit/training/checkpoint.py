"""Checkpoints: safetensors files with JSON in them, never pickle, written so that a crash loses nothing.

A run's checkpoint folder holds

    last.safetensors               everything that training needs to go on as if it had never stopped
    weights-00012000.safetensors   the weights alone, as evaluated at that update (averaged ones if there is an EMA)
    kept.json                      which of these there are, with the metric's value at each

A tied weight is saved once, under its first name. Every file is written beside its place, forced to the disk, and
then moved into place in one stroke.

The head of a file holds its facts as JSON under one key, in one order, so that files of equal contents are equal. Among
them is whether it is a state or weights, the checksum of every tensor, that of the vocabulary, and that of the facts
themselves; they are compared wherever the file is read. Files of earlier versions have no checksums: there a state is
what has facts.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nmtkit import sums
from nmtkit.data.workers import cores
from nmtkit.errors import CheckpointError, RecipeError, require_replaceable
from nmtkit.settings import Field, Settings, field_validator, parse

WEIGHTS, EMA, OPTIMIZER = "weights/", "ema/", "optimizer/"
"""How the names in `last.safetensors` begin; the file also has the facts as JSON in its head."""

_FACTS = "facts"

_THREADS = 8
"""The most threads that look at tensors; more would not get them from memory any quicker."""

_LISTED = 5
"""So many files are named where a message says which there are."""

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The types that weights may be kept in."""


class StateFacts(Settings):
    """What a training state says beside its tensors."""

    update: int = Field(ge=0, le=10**12)
    """After which update it was saved."""
    seconds: float = Field(ge=0)
    """Training time up to there."""
    used: float | None = Field(default=None, ge=0)
    """The same at the end of the last update; states of earlier versions do not know it, nor the next two."""
    validating: float = Field(default=0.0, ge=0)
    """What the last validation took."""
    lr: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """The learning rate of the last update, and the highest of all."""
    optimizer: str
    """Its name."""
    best_metric: list[str | bool] = Field(min_length=2, max_length=2)
    """The metric that decides, and whether higher is better."""
    validations: list[list[Any]]
    """Update and score of each."""
    stream: dict[str, Any]
    """Where the training data stand."""
    random: list[dict[str, Any]] = Field(min_length=1)
    """The random states of every process."""

    @field_validator("validations")
    @classmethod
    def _validations(cls, given: list[list[Any]]) -> list[list[Any]]:
        for entry in given:
            whole = len(entry) == 2 and type(entry[0]) is int and type(entry[1]) in (int, float)
            if not whole or math.isnan(entry[1]):
                raise ValueError("each must be an update and a score")
        return given

    @field_validator("stream")
    @classmethod
    def _stream(cls, given: dict[str, Any]) -> dict[str, Any]:
        if not all(type(given.get(key)) is int and given[key] >= 0 for key in ("epoch", "batch")):
            raise ValueError("`epoch` and `batch` must be numbers from 0")
        return given


@dataclass(frozen=True)
class Kept:
    """One kept weights file."""

    update: int
    """After which update."""
    value: float
    """What the metric was."""


@dataclass(frozen=True)
class _Index:
    """What `kept.json` says."""

    metric: str | None = None
    higher_is_better: bool = True
    kept: list[Kept] = field(default_factory=list)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "_Index":
        """The index in a file; whatever is odd in it raises a ValueError, TypeError or KeyError."""
        kept = [Kept(**entry) for entry in content["kept"]]
        for entry in kept:
            if type(entry.update) is not int or type(entry.value) not in (int, float) or math.isnan(entry.value):
                raise ValueError("an entry is not an update and a value")
        return cls(content["metric"], bool(content["higher_is_better"]), kept)


class Checkpoints:
    """The checkpoint folder of one run.

    Args:
        folder: made on the first save.
        vocabulary: the checksum of the run's vocabulary, which is written into every file; a state that says another
            one is refused. Empty: it is not known.
    """

    def __init__(self, folder: Path, vocabulary: str = "") -> None:
        self.folder = folder
        self.vocabulary = vocabulary

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
        _write_tensors(self.last, tensors, {**facts, "kind": "state"}, self.vocabulary)
        return self.last

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Reads what `save_last` wrote.

        Raises:
            CheckpointError: there is no such file, it is damaged, a number in it is not finite, or it was trained with
                another vocabulary.
        """
        with self._opened_last() as (file, head):
            head.require_vocabulary(self.vocabulary)
            return _read_tensors(file, head), head.facts

    def read_facts(self) -> dict[str, Any]:
        """The facts alone of what `save_last` wrote, those of `StateFacts`: where training stands.

        Raises:
            CheckpointError: there is no such file, it is damaged, or a fact is not what it should be.
        """
        with self._opened_last() as (_, head):
            try:
                return parse(StateFacts, head.facts, "its training state").model_dump()
            except RecipeError as fault:
                raise CheckpointError("; ".join(str(fault).splitlines())) from fault

    @contextlib.contextmanager
    def _opened_last(self) -> Iterator[tuple[Any, "_Head"]]:
        if not os.path.lexists(self.last):
            raise CheckpointError(f"{self.last}: not found, so there is nothing to resume; train without --resume")
        with self.blamed_on_last(), _opened(self.last) as file:
            head = _Head.of(file)
            if not head.is_state:
                raise CheckpointError("holds weights but no training state; it cannot be resumed from")
            yield file, head

    def blamed_on_last(self) -> contextlib.AbstractContextManager[None]:
        """A fault that shows inside is one of the state: the message names its file, and what is left of the run."""
        left = _others(self.last)
        use = f"; the weights that are there can still be used (--weights FILE): {left}" if left else ""
        return _blamed(self.last, f"copy the file again, or train anew in another folder (--run DIR){use}")

    def kept(self) -> list[Kept]:
        """The kept weights files, oldest first.

        Raises:
            CheckpointError: the list cannot be read.
        """
        return self._read_index().kept

    def best(self) -> list[Path]:
        """The kept weights files, best first; of equal ones the older is better."""
        index = self._read_index()
        sign = -1 if index.higher_is_better else 1
        return [self.weights_path(entry.update) for entry in sorted(index.kept, key=lambda kept: sign * kept.value)]

    def recent(self) -> list[Path]:
        """The kept weights files, newest first."""
        return [self.weights_path(entry.update) for entry in reversed(self.kept())]

    def check_kept(self) -> None:
        """Reads the kept weights once, before a training goes on that will choose among them at its end.

        Raises:
            CheckpointError: as `read_weights`.
        """
        for path in self.recent():
            try:
                read_weights(path, self.vocabulary)
            except CheckpointError as fault:
                raise CheckpointError(f"{fault}; to go on without it, delete it and {self._index_path}") from fault

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
        same = known.metric == metric and known.higher_is_better == higher_is_better
        entries = [entry for entry in known.kept if entry.update < update] if same else []
        entries.append(Kept(update, value))
        sign = -1 if higher_is_better else 1
        staying = {e.update for e in sorted(entries, key=lambda e: sign * e.value)[:keep_best]}
        staying |= {e.update for e in entries[-keep_recent:]} if keep_recent else set()
        entries = [e for e in entries if e.update in staying]
        path = self.weights_path(update) if update in staying else None
        if path is not None:
            of_it = {"update": update, "value": value, "metric": metric, "higher_is_better": higher_is_better}
            _write_tensors(path, weights, {**of_it, "kind": "weights"}, self.vocabulary)
        text = json.dumps(sums.signed(asdict(_Index(metric, higher_is_better, entries))), indent=1)
        _write(self._index_path, lambda place: place.write_text(text, encoding="utf-8"))
        for old in self.folder.glob("weights-*.safetensors"):
            if old not in {self.weights_path(entry.update) for entry in entries}:
                old.unlink()
        return path

    @property
    def _index_path(self) -> Path:
        return self.folder / "kept.json"

    def _read_index(self) -> _Index:
        if not os.path.lexists(self._index_path):
            return self._index_of_heads()
        try:
            if not self._index_path.is_file():
                raise OSError("not a file")
            return _Index.of(sums.verified(json.loads(self._index_path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
            raise CheckpointError(
                f"{self._index_path}: cannot read it ({fault}); delete it, and the list of kept weights is made anew "
                "from the files"
            ) from fault

    def _index_of_heads(self) -> _Index:
        """What the weights files themselves say, where the list is not there; those of earlier versions say nothing."""
        heads = []
        for path in sorted(self.folder.glob("weights-*.safetensors")):
            with _opened_weights(path) as (_, head):
                heads.append(head.facts)
        ours = [head for head in heads if {"update", "value", "metric", "higher_is_better"} <= head.keys()]
        if not ours:
            return _Index()
        metric, higher_is_better = ours[-1]["metric"], ours[-1]["higher_is_better"]
        same = [head for head in ours if (head["metric"], head["higher_is_better"]) == (metric, higher_is_better)]
        return _Index(metric, higher_is_better, [Kept(head["update"], head["value"]) for head in same])


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


def save_weights(path: Path, weights: Mapping[str, Tensor], vocabulary: str = "") -> None:
    """Writes weights to a file of their own, with the checksum of their vocabulary, if it is known.

    Raises:
        CheckpointError: it cannot be written; what was there before is untouched.
    """
    _write_tensors(path, weights, {"kind": "weights"}, vocabulary)


def read_weights(path: Path, vocabulary: str = "") -> dict[str, Tensor]:
    """Reads the weights in a checkpoint of either kind, onto the CPU; of a full state the averaged ones, if it has any.

    Args:
        path: of the file.
        vocabulary: the checksum of the vocabulary that they are to be used with; empty: any.

    Raises:
        CheckpointError: the file is missing or damaged, a number in it is not finite, or it was trained with another
            vocabulary.
    """
    with _opened_weights(path) as (file, head):
        head.require_vocabulary(vocabulary)
        if not head.is_state:
            return _read_tensors(file, head)
        # Buffers have no average, so the averages are laid over the weights.
        found = _read_tensors(file, head, (WEIGHTS, EMA))
        return under(WEIGHTS, found) | under(EMA, found)


def vocabulary_of(path: Path) -> str:
    """The checksum of the vocabulary that a checkpoint was trained with; empty if it does not say.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    with _opened_weights(path) as (_, head):
        return head.vocabulary


def load_weights(model: nn.Module, path: Path, vocabulary: str = "") -> None:
    """Fills the model with the weights in a checkpoint of either kind.

    Raises:
        CheckpointError: as `read_weights`; or they are of a model of another shape.
    """
    fill_weights(model, read_weights(path, vocabulary), path)


def fill_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Fills the model in place, so that tied weights stay tied and every address stays the same.

    Args:
        model: on any device.
        weights: as `weights_of` or `read_weights` gives them.
        path: where they are from, for messages.

    Raises:
        CheckpointError: a weight is missing, of another shape or kind of number, or one that the model does not have.
    """
    own = weights_of(model)
    _require_fitting(own, weights, path)
    _fill(own, weights)


def fill_known(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> tuple[list[str], list[str]]:
    """Fills the model in place with those weights that it has, for a model of which parts were added or taken away.

    Args:
        model: on any device.
        weights: as `read_weights` gives them.
        path: where they are from, for messages.

    Returns:
        The names of the model's weights that are not among those given, and of those given that it does not have.

    Raises:
        CheckpointError: a weight that both have is of another shape or kind of number.
    """
    own = weights_of(model)
    both = {name: tensor for name, tensor in own.items() if name in weights}
    given = {name: weights[name] for name in both}
    _require_fitting(both, given, path)
    _fill(both, given)
    return [name for name in own if name not in weights], [name for name in weights if name not in own]


def _fill(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def _require_fitting(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    faults = [f"{name!r} is missing" for name in own if name not in weights]
    faults += [f"{name!r} is not in the model" for name in weights if name not in own]
    for name, wanted in own.items():
        given = weights.get(name, wanted)
        if given.shape != wanted.shape:
            faults.append(f"{name!r} has shape {list(given.shape)}, the model wants {list(wanted.shape)}")
        elif _kind(given) != _kind(wanted):
            faults.append(f"{name!r} holds {_type(given)}, the model wants {_type(wanted)}")
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(
            f"{path}: the checkpoint is of another model: {'; '.join(faults[:3])}{more}; "
            "use the recipe it was trained with"
        )


def _kind(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.dtype == torch.bool


def _type(tensor: Tensor) -> str:
    return f"numbers of type {str(tensor.dtype).removeprefix('torch.')}"


def average(paths: Sequence[Path], model: nn.Module | None = None, vocabulary: str = "") -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, added up in float64, in the type of the first.

    Tensors that are not floating-point are taken from the first.

    Args:
        paths: of the files.
        model: that the average must fit; None: any.
        vocabulary: as `read_weights` takes it.

    Raises:
        CheckpointError: no file is given, one cannot be read (see `read_weights`), or they are not of one model.
    """
    if not paths:
        raise CheckpointError("there are no checkpoints to average")
    first = read_weights(paths[0], vocabulary)
    if not any(tensor.is_floating_point() for tensor in first.values()):
        raise CheckpointError(f"{paths[0]}: holds no weights that can be averaged; name other checkpoints")
    if model is not None:
        _require_fitting(weights_of(model), first, paths[0])
    total = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read_weights(path, vocabulary)
        if {name: (tensor.shape, _kind(tensor)) for name, tensor in weights.items()} != {
            name: (tensor.shape, _kind(tensor)) for name, tensor in first.items()
        }:
            raise CheckpointError(f"{path}: of another model than {paths[0]}; average checkpoints of one run only")
        for name, tensor in weights.items():
            total[name] += tensor.double()
    return {
        name: (total[name] / len(paths)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }


@dataclass(frozen=True)
class _Head:
    """What a file says of itself."""

    facts: dict[str, Any]
    """But for the next three."""
    is_state: bool
    """Or weights alone."""
    vocabulary: str
    """The checksum of the vocabulary; empty if the file does not know it."""
    sums: Mapping[str, str] | None
    """The checksum of every tensor; None in files of earlier versions."""

    @classmethod
    def of(cls, file: Any) -> "_Head":
        """The head of an open file.

        Raises:
            ValueError: it is damaged.
        """
        text = (file.metadata() or {}).get(_FACTS)
        if text is None:
            return cls({}, False, "", None)
        facts = json.loads(text)
        if not isinstance(facts, dict) or ("tensors" in facts) != (sums.SUM in facts):
            raise ValueError("its facts are not what they should be")
        facts = sums.verified(facts)
        known = facts.pop("tensors", None)
        return cls(facts, facts.pop("kind", "state") == "state", facts.pop("vocabulary", ""), known)

    def require_vocabulary(self, vocabulary: str) -> None:
        """Makes sure that the file is of this vocabulary, where both are known."""
        if vocabulary and self.vocabulary and vocabulary != self.vocabulary:
            raise CheckpointError(
                "trained with another vocabulary than it is to be used with, so they are of different runs"
            )


def _read_tensors(file: Any, head: _Head, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors of an open file whose names begin so; they are as they were written, and finite."""
    names = list(file.keys())  # the file is no mapping: it cannot be gone through by itself
    if head.sums is not None and head.sums.keys() != set(names):
        raise ValueError("it has other tensors than were written")
    found = {name: file.get_tensor(name) for name in names if name.startswith(prefixes)}
    of_found = {} if head.sums is None else _sums_of(found)
    for name, tensor in found.items():
        if head.sums is not None and of_found[name] != head.sums[name]:
            raise ValueError(f"{name!r} is not as it was written: its checksum is another")
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in _FLOATS):
            raise CheckpointError(f"{name!r} holds {_type(tensor)}, which no model has")
        if not _is_finite(tensor):
            raise CheckpointError(f"{name!r} holds a number that is not finite (NaN or infinity)")
    return found


def _sums_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The checksum of each, as quick as numbers come from memory: quicker to several threads than to one."""

    def of_one(tensor: Tensor) -> str:
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        return sums.of_array(data, f"{tensor.dtype} {list(tensor.shape)}")

    with ThreadPoolExecutor(min(cores(), _THREADS)) as pool:
        return dict(zip(tensors, pool.map(of_one, tensors.values()), strict=True))


def _is_finite(tensor: Tensor) -> bool:
    # One sum is much quicker than to look at each number; where it is too large itself, they are looked at.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


@contextlib.contextmanager
def _blamed(path: Path, remedy: str) -> Iterator[None]:
    """A fault that shows inside is one of this file: the message names it, and the remedy."""
    try:
        yield
    except CheckpointError as fault:
        raise CheckpointError(f"{path}: {str(fault).removeprefix(f'{path}: ')}; {remedy}") from fault


def _others(path: Path) -> str:
    """The names of the checkpoints beside one."""
    names = sorted(other.name for other in path.parent.glob("*.safetensors") if other.name != path.name)
    return ", ".join(names[-_LISTED:]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


@contextlib.contextmanager
def _opened_weights(path: Path) -> Iterator[tuple[Any, _Head]]:
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: not found; name a checkpoint file, or train first")
    others = _others(path)
    there = f" (there are: {others})" if others else ""
    with _blamed(path, f"use another checkpoint{there}, or copy the file again"), _opened(path) as file:
        yield file, _Head.of(file)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise CheckpointError("not a file that can be read")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, ValueError, RecursionError) as fault:
        raise CheckpointError(f"damaged or cut short ({fault})") from fault


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], vocabulary: str) -> None:
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    known = {"vocabulary": vocabulary} if vocabulary else {}
    signed = sums.signed({**facts, **known, "tensors": _sums_of(ready)})
    _write(path, lambda place: save_file(ready, place, {_FACTS: json.dumps(signed, sort_keys=True)}))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place, forces it to the disk and moves it into place in one stroke."""
    require_replaceable(path, CheckpointError)
    beside = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        beside.touch()
        mode = beside.stat().st_mode  # as the umask says; safetensors makes a file that nobody else may read
        write(beside)
        beside.chmod(mode)
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
