"""The checkpoint folder of a run.

    last.safetensors               everything that training needs to continue as if it had never stopped
    weights-00012000.safetensors   only the weights, as evaluated after that update (averaged if there is an EMA)
    kept.json                      index of these weights files, with the metric's value for each

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
"""Names that select weights of a run; a stage must not have any of these names."""


class RetentionConfig(Protocol):
    """Settings that determine which weights are kept; described in `TrainingConfig`."""

    best_metric: str
    keep_best: int

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def recent_to_keep(self) -> int:
        """Number of newest weights files that are kept."""


def preference(score: float, loss: float | None, update: int) -> tuple[float, float, int]:
    """Returns a sort key; better checkpoints have greater keys.

    A higher score is better. Ties are broken by the lower validation loss, then by the newer update; a loss of None or
    NaN counts as the worst.
    """
    if loss is None or math.isnan(loss):
        loss = math.inf
    return score, -loss, update


@dataclass(frozen=True)
class KeptCheckpoint:
    """A weights file in the index, with the results of its validation."""

    update: int
    value: float
    """Value of the metric that determines which checkpoints are kept."""
    loss: float | None = None
    """Validation loss; None if validation computed no loss, or if an earlier version of nmtkit wrote the index."""


@dataclass(frozen=True)
class _Index:
    """Contents of `kept.json`."""

    metric: str | None = None
    higher_is_better: bool = True
    checkpoints: list[KeptCheckpoint] = field(default_factory=list)
    """The kept checkpoints, oldest first."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "_Index":
        checkpoints = [KeptCheckpoint(**entry) for entry in content["kept"]]
        return cls(content["metric"], content["higher_is_better"], checkpoints)

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "kept": [asdict(checkpoint) for checkpoint in self.checkpoints],
        }

    def best_first(self) -> list[KeptCheckpoint]:
        sign = 1 if self.higher_is_better else -1

        def sort_key(entry: KeptCheckpoint) -> tuple[float, float, int]:
            return preference(sign * entry.value, entry.loss, entry.update)

        return sorted(self.checkpoints, key=sort_key, reverse=True)


class CheckpointManager:
    """The checkpoint folder of a run, which is created by the first save.

    `vocabulary` is the checksum of the run's vocabulary, if known. It is written into every file and checked whenever a
    state is read.
    """

    def __init__(self, folder: Path, vocabulary: str = "") -> None:
        self.folder = folder
        self.vocabulary = vocabulary

    @property
    def last(self) -> Path:
        """File with the full state, which may not exist yet."""
        return self.folder / "last.safetensors"

    def weights_path(self, update: int) -> Path:
        """Returns the path for the weights after an update."""
        return self.folder / f"weights-{update:08d}.safetensors"

    def save_last(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replaces the full state: tensors with the prefixes WEIGHTS, EMA and OPTIMIZER, and metadata as JSON."""
        tensor_files.write_tensors(
            self.last, tensors, facts={**facts, "kind": "state"}, vocabulary=self.vocabulary
        )

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Reads the tensors and metadata of the full state."""
        with self._open_last() as (file, header):
            header.require_vocabulary(self.vocabulary)
            return tensor_files.read_tensors(file, header), header.facts

    def read_metadata(self) -> dict[str, Any]:
        """Reads only the metadata of the full state, such as `update` and `seconds`."""
        with self._open_last() as (_, header):
            return header.facts

    @contextlib.contextmanager
    def _open_last(self) -> Iterator[tuple[Any, TensorFileHeader]]:
        if not os.path.lexists(self.last):
            raise CheckpointError(
                f"{self.last}: not found, so there is nothing to resume; train without --resume"
            )
        with self.name_last_in_errors(), tensor_files.open_tensors(self.last) as file:
            header = TensorFileHeader.read(file)
            if not header.is_state:
                raise CheckpointError(
                    "contains weights but no training state, so training cannot be resumed from it"
                )
            yield file, header

    def name_last_in_errors(self) -> contextlib.AbstractContextManager[None]:
        """Adds the path of the state and a remedy to each CheckpointError raised inside the context."""
        remedy = (
            "copy the file again, use other weights from its folder (--checkpoint FILE), "
            "or start a new run (--run DIR)"
        )
        return tensor_files.name_file_in_errors(self.last, remedy)

    def entries(self) -> list[KeptCheckpoint]:
        """Returns the kept checkpoints, oldest first."""
        return self._read_index().checkpoints

    def best(self) -> list[Path]:
        """Returns the kept weights files, best first; see `preference`."""
        return [self.weights_path(entry.update) for entry in self._read_index().best_first()]

    def recent(self) -> list[Path]:
        """Returns the kept weights files, newest first."""
        return [self.weights_path(entry.update) for entry in reversed(self.entries())]

    def verify_kept(self) -> None:
        """Checks that all kept weights can be read; called before resuming a run that will choose among them."""
        for path in self.recent():
            try:
                read_weights(path, self.vocabulary)
            except CheckpointError as fault:
                raise CheckpointError(
                    f"{fault}; to continue without this file, delete it and {self._index_path}"
                ) from fault

    def keep(
        self,
        weights: Mapping[str, Tensor],
        update: int,
        value: float,
        config: RetentionConfig,
        loss: float | None = None,
    ) -> None:
        """Saves weights if they are among the best or the newest, and removes files that no longer are.

        Existing entries for this update and later ones are discarded, because a resumed run repeats these updates.
        `value` is the value of `config.best_metric`; the validation `loss` breaks ties.
        """
        index = self._read_index()
        entries: list[KeptCheckpoint] = []
        # Values of different metrics cannot be compared.
        if index.metric == config.best_metric and index.higher_is_better == config.higher_is_better:
            entries = [entry for entry in index.checkpoints if entry.update < update]
        entries.append(KeptCheckpoint(update, value, loss))

        candidates = _Index(config.best_metric, config.higher_is_better, entries)
        best = candidates.best_first()[: config.keep_best]
        newest = entries[-config.recent_to_keep :] if config.recent_to_keep else []
        checkpoints = [entry for entry in entries if entry in best or entry in newest]
        index = replace(candidates, checkpoints=checkpoints)
        kept_paths = [self.weights_path(checkpoint.update) for checkpoint in checkpoints]
        path = self.weights_path(update)
        if path in kept_paths:
            facts = {
                "kind": "weights",
                "metric": config.best_metric,
                "higher_is_better": config.higher_is_better,
                "update": update,
                "value": value,
                "loss": loss,
            }
            tensor_files.write_tensors(path, weights, facts=facts, vocabulary=self.vocabulary)
        text = json.dumps(with_checksum(index.to_json()), indent=1)
        tensor_files.write_file(
            self._index_path, lambda temporary: temporary.write_text(text, encoding="utf-8")
        )
        for old_path in self.folder.glob("weights-*.safetensors"):
            if old_path not in kept_paths:
                old_path.unlink()

    @property
    def _index_path(self) -> Path:
        return self.folder / "kept.json"

    def _read_index(self) -> _Index:
        if not os.path.lexists(self._index_path):
            return self._index_of_headers()
        try:
            if not self._index_path.is_file():
                raise OSError("not a file")
            text = self._index_path.read_text(encoding="utf-8")
            content = verify_checksum(json.loads(text))
            return _Index.from_json(content)
        except (OSError, ValueError, RecursionError) as fault:
            raise CheckpointError(
                f"{self._index_path}: cannot be read ({fault}); delete it, and the list of kept weights will be "
                "rebuilt from the weights files"
            ) from fault

    def _index_of_headers(self) -> _Index:
        """Builds the index from the headers of the weights files, if `kept.json` is missing."""
        index = _Index()
        for path in sorted(self.folder.glob("weights-*.safetensors")):
            with tensor_files.open_checkpoint(path) as (_, header):
                facts = header.facts
            if not {"update", "value", "metric", "higher_is_better"} <= facts.keys():
                continue
            if (
                index.metric != facts["metric"]
                or index.higher_is_better != facts["higher_is_better"]
            ):
                # Values of different metrics cannot be compared, so the earlier files are left out.
                index = _Index(facts["metric"], facts["higher_is_better"])
            entry = KeptCheckpoint(
                update=facts["update"], value=facts["value"], loss=facts.get("loss")
            )
            index.checkpoints.append(entry)
        return index
