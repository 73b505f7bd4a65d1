"""Small archives in the layouts that public corpora have, of text that was written for the tests."""

import gzip
import io
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.corpora.readers import Pair, Reader

Content: TypeAlias = str | bytes | Iterable[str]
"""Bytes, a text, or lines without line ends."""


def as_bytes(content: Content) -> bytes:
    """Bytes as they are, a text in UTF-8, or lines with line ends."""
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else "".join(f"{line}\n" for line in content)).encode()


def zipped(path: Path, members: Mapping[str, Content]) -> Path:
    """A zip archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, as_bytes(content))
    return path


def tarred(path: Path, members: Mapping[str, Content]) -> Path:
    """A tar archive, gzip-compressed unless its name ends in .tar, with the folders of its members."""
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        folders = {str(parent) for name in members for parent in Path(name).parents if str(parent) != "."}
        for folder in sorted(folders):
            header = tarfile.TarInfo(folder)
            header.type, header.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(header)
        for name, content in members.items():
            data = as_bytes(content)
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return path


def published(path: Path, content: Content | Mapping[str, Content]) -> Path:
    """A file of the kind that its name tells; bytes are its own, and members without such a name make a zip archive."""
    if isinstance(content, Mapping):
        is_tar = path.name.endswith((".tar", ".tgz", ".tar.gz"))
        return (tarred if is_tar else zipped)(path, content)
    if path.suffix == ".gz" and not isinstance(content, bytes):
        return gzipped(path, content)
    path.write_bytes(as_bytes(content))
    return path


def read(reader: Reader, *files: Path) -> tuple[list[Pair], dict[str, int]]:
    """All pairs, and what was left out."""
    dropped: Counter[str] = Counter()
    return list(reader.pairs(files, dropped)), dict(dropped)


def refused(call: Callable[..., object], *arguments: object) -> str:
    """The message of a call that fails."""
    with pytest.raises(NmtkitError) as fault:
        call(*arguments)
    return str(fault.value)


def gzipped(path: Path, content: Content) -> Path:
    """A single compressed file."""
    path.write_bytes(gzip.compress(as_bytes(content), mtime=0))
    return path
