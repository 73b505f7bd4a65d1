"""The checkpoint folder of a training.

    last.safetensors               everything that training needs to go on as if it had never stopped
    weights-00012000.safetensors   the weights alone, as evaluated at that update (averaged ones if there is an EMA)
    kept.json                      which of these there are, with the metric's value at each

A tied weight is saved once, under its first name.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.core.files import verify_checksum, with_checksum
from nmtkit.core.settings import Field, Settings, field_validator, parse
from nmtkit.training.tensor_files import (
    Header,
    name_file_in_errors,
    open_checkpoint,
    open_tensors,
    read_tensors,
    sibling_checkpoints,
    write_file,
    write_tensors,
)
from nmtkit.training.weights import read_weights


class StateMetadata(Settings):
    """What a training state says beside its tensors."""

    update: int = Field(ge=0, le=10**12)
    """After which update it was saved."""
    seconds: float = Field(ge=0)
    """Training time up to there."""
    used: float = Field(ge=0)
    """The same at the end of the last update."""
    validating: float = Field(ge=0)
    """What the last validation took."""
    lr: list[float] = Field(min_length=2, max_length=2)
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
        if not all(type(given.get(key)) is int and given[key] >= 0 for key in ("epoch", "examples")):
            raise ValueError("`epoch` and `examples` must be numbers from 0")
        return given


@dataclass(frozen=True)
class KeptWeights:
    """One kept weights file."""

    update: int
    """After which update."""
    value: float
    """What the metric was."""


@dataclass(frozen=True)
class RetentionPolicy:
    """Which weights of a training are kept."""

    metric: str
    """What decides."""
    higher_is_better: bool = True
    """Its direction."""
    best: int = 1
    """How many of the best files stay."""
    recent: int = 0
    """How many of the newest files stay, whatever their value."""


@dataclass(frozen=True)
class _Index:
    """What `kept.json` says."""

    metric: str | None = None
    higher_is_better: bool = True
    kept: list[KeptWeights] = field(default_factory=list)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "_Index":
        """The index in a file; whatever is odd in it raises a ValueError, TypeError or KeyError."""
        kept = [KeptWeights(**entry) for entry in content["kept"]]
        for entry in kept:
            if type(entry.update) is not int or type(entry.value) not in (int, float) or math.isnan(entry.value):
                raise ValueError("an entry is not an update and a value")
        return cls(content["metric"], bool(content["higher_is_better"]), kept)


class CheckpointManager:
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

    def save_last(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replaces the full state: tensors under WEIGHTS, EMA and OPTIMIZER, everything else as JSON."""
        write_tensors(self.last, tensors, {**facts, "kind": "state"}, self.vocabulary)

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Reads what `save_last` wrote.

        Raises:
            CheckpointError: there is no such file, it is damaged, a number in it is not finite, or it was trained with
                another vocabulary.
        """
        with self._open_last() as (file, header):
            header.require_vocabulary(self.vocabulary)
            return read_tensors(file, header), header.facts

    def read_metadata(self) -> dict[str, Any]:
        """The facts alone of what `save_last` wrote, those of `StateMetadata`: where training stands."""
        with self._open_last() as (_, header):
            try:
                return parse(StateMetadata, header.facts, "its training state").model_dump()
            except RecipeError as fault:
                raise CheckpointError("; ".join(str(fault).splitlines())) from fault

    @contextlib.contextmanager
    def _open_last(self) -> Iterator[tuple[Any, "Header"]]:
        if not os.path.lexists(self.last):
            raise CheckpointError(f"{self.last}: not found, so there is nothing to resume; train without --resume")
        with self.name_last_in_errors(), open_tensors(self.last) as file:
            header = Header.of(file)
            if not header.is_state:
                raise CheckpointError("holds weights but no training state; it cannot be resumed from")
            yield file, header

    def name_last_in_errors(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the message of a fault names the state's file, and what is left of the run."""
        left = sibling_checkpoints(self.last)
        use = f"; the weights that are there can still be used (--checkpoint FILE): {left}" if left else ""
        return name_file_in_errors(self.last, f"copy the file again, or train anew in another folder (--run DIR){use}")

    def kept(self) -> list[KeptWeights]:
        """The kept weights files, oldest first."""
        return self._read_index().kept

    def best(self) -> list[Path]:
        """The kept weights files, best first; of equal ones the older is better."""
        index = self._read_index()
        sign = -1 if index.higher_is_better else 1
        return [self.weights_path(entry.update) for entry in sorted(index.kept, key=lambda kept: sign * kept.value)]

    def recent(self) -> list[Path]:
        """The kept weights files, newest first."""
        return [self.weights_path(entry.update) for entry in reversed(self.kept())]

    def verify_kept(self) -> None:
        """Reads the kept weights once, before training goes on: it will choose among them at its end."""
        for path in self.recent():
            try:
                read_weights(path, self.vocabulary)
            except CheckpointError as fault:
                raise CheckpointError(f"{fault}; to go on without it, delete it and {self._index_path}") from fault

    def keep(self, weights: Mapping[str, Tensor], update: int, value: float, keeping: RetentionPolicy) -> Path | None:
        """Saves weights if they are among the best or the newest, and removes those that no longer are.

        Entries of this or a later update, which a resumed training repeats, are replaced. `value` is that of the metric
        that decides.

        Returns:
            The file, or None if it is not among them.
        """
        known, metric, higher_is_better = self._read_index(), keeping.metric, keeping.higher_is_better
        same = known.metric == metric and known.higher_is_better == higher_is_better
        entries = [entry for entry in known.kept if entry.update < update] if same else []
        entries.append(KeptWeights(update, value))
        sign = -1 if higher_is_better else 1
        staying = {e.update for e in sorted(entries, key=lambda e: sign * e.value)[: keeping.best]}
        staying |= {e.update for e in entries[-keeping.recent :]} if keeping.recent else set()
        entries = [e for e in entries if e.update in staying]
        path = self.weights_path(update) if update in staying else None
        if path is not None:
            of_it = {"update": update, "value": value, "metric": metric, "higher_is_better": higher_is_better}
            write_tensors(path, weights, {**of_it, "kind": "weights"}, self.vocabulary)
        text = json.dumps(with_checksum(asdict(_Index(metric, higher_is_better, entries))), indent=1)
        write_file(self._index_path, lambda place: place.write_text(text, encoding="utf-8"))
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
            return _Index.of(verify_checksum(json.loads(self._index_path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
            raise CheckpointError(
                f"{self._index_path}: cannot read it ({fault}); delete it, and the list of kept weights is made anew "
                "from the files"
            ) from fault

    def _index_of_heads(self) -> _Index:
        """The index from the headers of the weights files, if `kept.json` is missing."""
        heads = []
        for path in sorted(self.folder.glob("weights-*.safetensors")):
            with open_checkpoint(path) as (_, header):
                heads.append(header.facts)
        ours = [header for header in heads if {"update", "value", "metric", "higher_is_better"} <= header.keys()]
        if not ours:
            return _Index()
        metric, higher_is_better = ours[-1]["metric"], ours[-1]["higher_is_better"]
        same = [
            header for header in ours if (header["metric"], header["higher_is_better"]) == (metric, higher_is_better)
        ]
        return _Index(metric, higher_is_better, [KeptWeights(header["update"], header["value"]) for header in same])
