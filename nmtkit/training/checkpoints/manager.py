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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.files import verify_checksum, with_checksum
from nmtkit.training.checkpoints import tensor_files
from nmtkit.training.checkpoints.tensor_files import TensorFileHeader
from nmtkit.training.checkpoints.weights import read_weights

NAMED_WEIGHTS = ("auto", "average", "best", "last")
"""The weights of a run that can be asked for by a word; a stage is called otherwise."""


class RetentionConfig(Protocol):
    """Which weights of a training are kept; `TrainingConfig` says what each setting means."""

    best_metric: str
    keep_best: int

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the metric are better."""

    @property
    def recent_to_keep(self) -> int:
        """How many of the newest are kept."""


def preference(score: float, loss: float | None, update: int) -> tuple[float, float, int]:
    """Sort key by which one checkpoint is better than another.

    A higher score is better; if scores are equal, the lower validation loss; if losses are equal too, the newer update.
    A loss of None or NaN is the worst.
    """
    if loss is None or math.isnan(loss):
        loss = math.inf
    return score, -loss, update


@dataclass(frozen=True)
class KeptCheckpoint:
    """The weights file of an update, the value of the metric that decides, and the validation loss."""

    update: int
    value: float
    loss: float | None = None
    """None if validation gave no loss, or in a folder of an earlier version."""


@dataclass(frozen=True)
class _Index:
    """What `kept.json` says."""

    metric: str | None = None
    higher_is_better: bool = True
    kept: list[KeptCheckpoint] = field(default_factory=list)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "_Index":
        kept = [KeptCheckpoint(**entry) for entry in content["kept"]]
        return cls(content["metric"], content["higher_is_better"], kept)

    def best_first(self) -> list[KeptCheckpoint]:
        sign = 1 if self.higher_is_better else -1
        return sorted(
            self.kept, key=lambda entry: preference(sign * entry.value, entry.loss, entry.update), reverse=True
        )


class CheckpointManager:
    """The checkpoint folder of one run, made on the first save.

    `vocabulary` is the checksum of the run's vocabulary, if it is known: it is written into every file and compared
    when a state is read.
    """

    def __init__(self, folder: Path, vocabulary: str = "") -> None:
        self.folder = folder
        self.vocabulary = vocabulary

    @property
    def last(self) -> Path:
        """The file of the full state, which may not exist yet."""
        return self.folder / "last.safetensors"

    def weights_path(self, update: int) -> Path:
        """The file of the weights of an update, if they were kept."""
        return self.folder / f"weights-{update:08d}.safetensors"

    def save_last(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replaces the full state: tensors under WEIGHTS, EMA and OPTIMIZER, everything else as JSON."""
        tensor_files.write_tensors(self.last, tensors, {**facts, "kind": "state"}, self.vocabulary)

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Reads what `save_last` wrote."""
        with self._open_last() as (file, header):
            header.require_vocabulary(self.vocabulary)
            return tensor_files.read_tensors(file, header), header.facts

    def read_metadata(self) -> dict[str, Any]:
        """The facts alone of what `save_last` wrote, e.g. `update` and `seconds`."""
        with self._open_last() as (_, header):
            return header.facts

    @contextlib.contextmanager
    def _open_last(self) -> Iterator[tuple[Any, TensorFileHeader]]:
        if not os.path.lexists(self.last):
            raise CheckpointError(f"{self.last}: not found, so there is nothing to resume; train without --resume")
        with self.name_last_in_errors(), tensor_files.open_tensors(self.last) as file:
            header = TensorFileHeader.of(file)
            if not header.is_state:
                raise CheckpointError("holds weights but no training state; it cannot be resumed from")
            yield file, header

    def name_last_in_errors(self) -> contextlib.AbstractContextManager[None]:
        """Inside, an error names the state's file, and what can be done without it."""
        remedy = "copy the file again, use other weights of its folder (--checkpoint FILE), or train anew (--run DIR)"
        return tensor_files.name_file_in_errors(self.last, remedy)

    def kept(self) -> list[KeptCheckpoint]:
        """The kept weights files, oldest first."""
        return self._read_index().kept

    def best(self) -> list[Path]:
        """The kept weights files, best first; see `preference`."""
        return [self.weights_path(entry.update) for entry in self._read_index().best_first()]

    def recent(self) -> list[Path]:
        """The kept weights files, newest first."""
        return [self.weights_path(entry.update) for entry in reversed(self.kept())]

    def verify_kept(self) -> None:
        """Reads the kept weights once, before a training that will choose among them goes on."""
        for path in self.recent():
            try:
                read_weights(path, self.vocabulary)
            except CheckpointError as fault:
                raise CheckpointError(f"{fault}; to go on without it, delete it and {self._index_path}") from fault

    def keep(
        self,
        weights: Mapping[str, Tensor],
        update: int,
        value: float,
        config: RetentionConfig,
        loss: float | None = None,
    ) -> None:
        """Saves weights if they are among the best or the newest, and removes those that no longer are.

        Entries of this or a later update, which a resumed training repeats, are replaced. `value` is the value of
        `config.best_metric`; the validation `loss` decides between equal values.
        """
        known, empty = self._read_index(), _Index(config.best_metric, config.higher_is_better)
        entries = [entry for entry in known.kept if entry.update < update] if replace(known, kept=[]) == empty else []
        entries.append(KeptCheckpoint(update, value, loss))
        newest = entries[-config.recent_to_keep :] if config.recent_to_keep else []
        staying = [*replace(empty, kept=entries).best_first()[: config.keep_best], *newest]
        index = replace(empty, kept=[entry for entry in entries if entry in staying])
        path, files = self.weights_path(update), [self.weights_path(entry.update) for entry in index.kept]
        if path in files:
            facts = {"metric": config.best_metric, "higher_is_better": config.higher_is_better, "kind": "weights"}
            facts |= {"update": update, "value": value, "loss": loss}
            tensor_files.write_tensors(path, weights, facts, self.vocabulary)
        text = json.dumps(with_checksum(asdict(index)), indent=1)
        tensor_files.write_file(self._index_path, lambda place: place.write_text(text, encoding="utf-8"))
        for old in self.folder.glob("weights-*.safetensors"):
            if old not in files:
                old.unlink()

    @property
    def _index_path(self) -> Path:
        return self.folder / "kept.json"

    def _read_index(self) -> _Index:
        if not os.path.lexists(self._index_path):
            return self._index_of_headers()
        try:
            if not self._index_path.is_file():
                raise OSError("not a file")
            return _Index.of(verify_checksum(json.loads(self._index_path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError) as fault:
            raise CheckpointError(
                f"{self._index_path}: cannot read it ({fault}); delete it, and the list of kept weights is rebuilt "
                "from the files"
            ) from fault

    def _index_of_headers(self) -> _Index:
        """The index from the headers of the weights files, if `kept.json` is missing."""
        index = _Index()
        for path in sorted(self.folder.glob("weights-*.safetensors")):
            with tensor_files.open_checkpoint(path) as (_, header):
                facts = header.facts
            if not {"update", "value", "metric", "higher_is_better"} <= facts.keys():
                continue
            if (index.metric, index.higher_is_better) != (facts["metric"], facts["higher_is_better"]):
                index = _Index(facts["metric"], facts["higher_is_better"])
            index.kept.append(KeptCheckpoint(facts["update"], facts["value"], facts.get("loss")))
        return index
