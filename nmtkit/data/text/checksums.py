"""SHA-256 checksums of input files, which let a resumed run detect that its text has changed."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from nmtkit.core.errors import DataError


class FileChecksums:
    """Computes checksums of files while they are read; used as a `ByteObserverFactory`.

    A file whose bytes are observed must be read to its end; otherwise its checksum covers only part of the file.
    """

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}

    def __call__(self, path: str) -> Callable[[bytes], object]:
        """Starts the checksum of a file; returns the observer that updates it."""
        self._digests[path] = hashlib.sha256()
        return self._digests[path].update

    def checksums_of(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns checksums by path; reads files that were not observed.

        A path is a file, or a folder of `.story` files. Its checksum is the SHA-256 hash of the digests of all its
        files (each preceded by the file's name if there are several), so even for a single file it differs from the
        output of `sha256sum`.

        Raises:
            DataError: a file cannot be read.
        """
        try:
            return {path: self._checksum(path) for path in paths}
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def _checksum(self, path: str) -> str:
        files = [Path(path)]
        if os.path.isdir(path):
            files = sorted(Path(path).glob("*.story"))
        total = hashlib.sha256()
        for file in files:
            if len(files) > 1:
                total.update(file.name.encode())
            if path in self._digests:  # never true for a folder: stories are not observed
                total.update(self._digests[path].digest())
                continue
            with open(file, "rb") as opened:
                total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()


def read_checksums(report: Path) -> dict[str, dict[str, str]]:
    """Reads the checksums, by split and path, from the JSON file of a `DataReport`; {} if the file cannot be read."""
    try:
        files: dict[str, dict[str, str]] = json.loads(report.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files
