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


def published(path: Path, content: Content | Mapping[str, Content]) -> Path:
    """A file of the kind that its name tells; bytes are its own, and members without such a name make a zip archive."""
    if not isinstance(content, Mapping):
        is_packed = path.suffix == ".gz" and not isinstance(content, bytes)
        path.write_bytes(gzip.compress(as_bytes(content)) if is_packed else as_bytes(content))
    elif path.name.endswith((".tar", ".tgz", ".tar.gz")):
        with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as tar:
            for folder in sorted({str(parent) for name in content for parent in Path(name).parents} - {"."}):
                header = tarfile.TarInfo(folder)
                header.type, header.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(header)
            for name, text in content.items():
                header, data = tarfile.TarInfo(name), as_bytes(text)
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in content.items():
                archive.writestr(name, as_bytes(text))
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
