"""How far preprocessing has come: written after every shard, so that what was stopped goes on from there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.data.checking import SplitReport
from nmtkit.data.shards import write_manifest
from nmtkit.errors import DataError
from nmtkit.settings import parse_json


@dataclass
class Progress:
    """What of a preprocessing is complete. Only train has shards here: the other splits are done again."""

    path: Path
    """Its file; it is there from the moment when the tokenizer is ready until everything is."""
    fingerprint: str
    """Of the settings and files; see `nmtkit.data.store.fingerprint`."""
    tokenizer: Mapping[str, str | int]
    """What the report says of the tokenizer."""
    shards: int = 0
    """Shards of train that are complete."""
    read: int = 0
    """Pairs of the files that they are made of."""
    report: Mapping[str, Any] | None = None
    """The report of train up to there."""

    def shard_done(self, shards: int, read: int, report: SplitReport) -> None:
        """Notes that one more shard is complete, and writes it down.

        Raises:
            DataError: the file cannot be written.
        """
        self.shards, self.read, self.report = shards, read, report.as_dict()
        self.save()

    def forget_shards(self) -> None:
        """Begins with the first pair again; the tokenizer stays."""
        self.shards, self.read, self.report = 0, 0, None

    def save(self) -> None:
        """Writes the file.

        Raises:
            DataError: it cannot be written.
        """
        try:
            write_manifest(self.path, {key: value for key, value in vars(self).items() if key != "path"}, durable=True)
        except OSError as fault:
            raise DataError(f"{self.path}: cannot write it: {fault.strerror}") from fault

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "Progress | None":
        """What a preprocessing with that fingerprint left; None if there is none that was stopped."""
        try:
            content = parse_json(path.read_bytes(), path.name)
            progress = cls(path, **content)
            if progress.report is not None:
                SplitReport.from_dict(progress.report)
        except (OSError, DataError, TypeError, KeyError):
            return None
        return progress if progress.fingerprint == fingerprint else None
