"""Checksums of the files of a corpus."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from nmtkit.core.errors import DataError


class FileChecksums:
    """Computes SHA-256 checksums of files while they are read: a `ByteObserver`."""

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}

    def __call__(self, path: str) -> Callable[[bytes], object]:
        """Starts a file."""
        self._digests[path] = hashlib.sha256()
        return self._digests[path].update

    def of(self, paths: Iterable[str]) -> dict[str, str]:
        """The checksum of each file, and of the stories in a folder; files not observed are read now."""
        try:
            return {path: self._of_file(path) for path in paths}
        except OSError as fault:
            raise DataError(f"{fault.filename}: cannot read it: {fault.strerror}") from fault

    def _of_file(self, path: str) -> str:
        files = sorted(Path(path).glob("*.story")) if os.path.isdir(path) else [Path(path)]
        total = hashlib.sha256()
        for file in files:
            total.update(file.name.encode() if len(files) > 1 else b"")
            if path in self._digests:
                total.update(self._digests[path].digest())
            else:
                with open(file, "rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()
