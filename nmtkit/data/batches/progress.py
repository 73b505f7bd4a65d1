"""The progress of preprocessing, saved in a file so that an interrupted run can be resumed."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.core.files import bytes_checksum, write_json
from nmtkit.core.formats import parse_json
from nmtkit.data.batches.shards import VERSION
from nmtkit.data.text.checking import SplitReport


def input_fingerprint(settings: Mapping[str, Any], paths: Iterable[str]) -> str:
    """Returns a hash of the settings and of the path, size and modification time of each input file.

    Raises a DataError if a file is missing.
    """
    files = []
    try:
        for path in paths:
            status = os.stat(path)
            files.append((path, status.st_size, status.st_mtime_ns))
    except OSError as fault:
        raise DataError(f"{fault.filename}: cannot be read: {fault.strerror}") from fault
    content = json.dumps([VERSION, settings, files], sort_keys=True, ensure_ascii=False)
    return bytes_checksum(content.encode())


@dataclass
class PreprocessingProgress:
    """The complete shards of train, after which interrupted preprocessing resumes.

    The other splits are encoded from the beginning. The caller saves the first state as soon as the tokenizers are
    ready, and deletes the file when all splits are stored.
    """

    path: Path
    fingerprint: str
    """`input_fingerprint` of the run."""
    tokenizer: Mapping[str, str | int]
    """A copy of `DataReport.tokenizer`."""
    n_shards: int = 0
    """Number of complete shards of train."""
    n_read: int = 0
    """Number of pairs read for these shards."""
    report: Mapping[str, Any] | None = None
    """The report on these pairs, a `SplitReport` as a dictionary."""

    def complete_shard(self, n_shards: int, report: SplitReport) -> None:
        """Records that the first `n_shards` shards are complete, and saves the file."""
        self.n_shards = n_shards
        self.n_read = report.read
        self.report = asdict(report)
        self.save()

    def save(self) -> None:
        """Writes the progress to its file."""
        content = {
            "fingerprint": self.fingerprint,
            "tokenizer": self.tokenizer,
            "shards": self.n_shards,
            "read": self.n_read,
            "report": self.report,
        }
        write_json(self.path, content, durable=True)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "PreprocessingProgress | None":
        """Returns the progress of an interrupted run with the same fingerprint.

        Returns None if there is no such file, if it is damaged, or if its fingerprint differs.
        """
        try:
            content = parse_json(path.read_bytes(), path.name)
            progress = cls(
                path=path,
                fingerprint=content["fingerprint"],
                tokenizer=content["tokenizer"],
                n_shards=content["shards"],
                n_read=content["read"],
                report=content["report"],
            )
            if progress.report is not None:
                SplitReport.from_dict(progress.report)  # raises an error if the report is damaged
        except (OSError, DataError, TypeError, KeyError):
            return None
        if progress.fingerprint != fingerprint:
            return None
        return progress
