"""What has come of a file so far, on disk, and which version of which file it is a part of."""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nmtkit.errors import DataError
from nmtkit.settings import parse_json

CHUNK = 1 << 18
"""Bytes that are read at once."""


@dataclass(frozen=True)
class Version:
    """What a server says of a file, by which a part is known to belong to it."""

    url: str
    """Its address."""
    etag: str = ""
    """The server's mark of this version; one that promises only likeness does not count."""
    modified: str = ""
    """When it was changed, in the server's words."""
    total: int | None = None
    """Its bytes, if the server says."""

    @property
    def condition(self) -> str:
        """What `If-Range` may say of it; empty if nothing."""
        return self.etag or self.modified


class Part:
    """What has come of a file so far, on disk."""

    def __init__(self, target: Path, url: str) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".part")
        self._facts = target.with_name(target.name + ".part.json")
        self.version = Version(url)
        with suppress(OSError, DataError, TypeError):
            known = Version(**parse_json(self._facts.read_bytes(), str(self._facts)))
            if known.url == url:
                self.version = known
                return
        self.forget()

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, version: Version) -> None:
        """Starts afresh with a version of the file."""
        self.forget()
        self.version = version
        self._facts.write_text(json.dumps(asdict(version)), encoding="utf-8")

    def forget(self) -> None:
        """Deletes what is there."""
        self.path.unlink(missing_ok=True)
        self._facts.unlink(missing_ok=True)
        self.version = Version(self.version.url)

    def finish(self) -> None:
        """Gives the whole file its name."""
        os.replace(self.path, self.target)
        self._facts.unlink(missing_ok=True)


def require_room(path: Path, count: int) -> None:
    """Raises a DataError where a file of so many bytes more does not fit beside `path`."""
    free = shutil.disk_usage(path.parent).free
    if count > free:
        raise DataError(f"{path.parent}: {count:,} bytes are to be downloaded, and {free:,} are free; make room")


def sum_so_far(path: Path) -> "hashlib._Hash":
    """The SHA-256 sum of a file, to be gone on with; that of nothing where there is no file."""
    digest = hashlib.sha256()
    with suppress(FileNotFoundError), open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest


def file_sum(path: Path) -> str:
    """The SHA-256 sum of a file, as hexadecimal digits."""
    return sum_so_far(path).hexdigest()
