"""Small archives in the layouts that public corpora have, of text that was written for the tests."""

import gzip
import io
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.datasets.readers import Pair, Reader

Content: TypeAlias = str | bytes | Iterable[str]
"""Bytes, a text, or lines without line ends."""


def as_bytes(content: Content) -> bytes:
    """Bytes as they are, a text in UTF-8, or lines with line ends."""
    if isinstance(content, bytes):
        return content
    return (
        content if isinstance(content, str) else "".join(f"{line}\n" for line in content)
    ).encode()


def tarred(members: Iterable[tuple[Any, ...]], compression: str = "", **options: Any) -> bytes:
    """A tar of members by their name and content; what is no file has its type and where it leads as well."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{compression}", **options) as tar:
        for name, content, *kind in members:
            header, data = tarfile.TarInfo(name), as_bytes(content)
            header.size = len(data)
            if kind:
                header.type, header.linkname = kind
            tar.addfile(header, io.BytesIO(data))
    return packed.getvalue()


def zipped(members: Mapping[str, Content]) -> bytes:
    """A zip archive, of the same bytes at any time."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), as_bytes(content), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def published(path: Path, content: Content | Mapping[str, Content]) -> Path:
    """A file of the kind that its name tells; bytes are its own, and members without such a name make a zip archive."""
    if not isinstance(content, Mapping):
        is_packed = path.suffix == ".gz" and not isinstance(content, bytes)
        path.write_bytes(gzip.compress(as_bytes(content)) if is_packed else as_bytes(content))
    elif path.name.endswith((".tar", ".tgz", ".tar.gz")):
        folders = sorted({str(parent) for name in content for parent in Path(name).parents} - {"."})
        members = [*((folder, b"", tarfile.DIRTYPE, "") for folder in folders), *content.items()]
        path.write_bytes(tarred(members, "" if path.suffix == ".tar" else "gz"))
    else:
        path.write_bytes(zipped(content))
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
