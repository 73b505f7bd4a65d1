"""Where the files of a corpus come from: the contract of a source, and files by their address on the web.

A source is a group of settings, one item of `sources:` of a corpus in the catalogue, that knows how to obtain its
files. It is registered like a reader (see `readers.py`), under its `kind`.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from nmtkit.core.errors import DataError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Field, Settings, field_validator, is_name, model_validator
from nmtkit.corpora.download import DownloadPolicy, download, sha256_of


@dataclass(frozen=True)
class SourceFile:
    """One file as it was obtained, and what the card says of it."""

    path: Path
    origin: str
    """Its address, or the name of its package."""
    sha256: str
    size: int
    """In bytes."""
    version: str = ""
    """Of a package; empty for an address."""
    vouched: bool = True
    """Whether its sum was compared with one from elsewhere: the catalogue, or a signed index of packages."""


@dataclass(frozen=True)
class FetchContext:
    """Where the sources of a corpus put their files, and whom a fetch tells how it goes."""

    folder: Path
    """The cache of all downloads: what stays there is found by the next fetch of any corpus."""
    notify: Callable[[str], None]
    """Takes a sentence for the user."""
    progress: Callable[[int, int | None], None]
    """Takes how many bytes of the present file are there, and how many it has where that is known."""
    count: Callable[[int], None] = lambda pairs: None
    """Takes how many pairs are written."""


class CorpusSource(Settings):
    """Settings of one place to obtain files from, and the obtaining itself."""

    kind: str
    """The name it is registered by."""

    @abstractmethod
    def obtain(self, work: FetchContext) -> list[SourceFile]:
        """The files, whole and checked; those that are in the cache already are not downloaded again.

        Raises:
            DataError: they cannot be obtained; the message names the place and the remedy.
        """

    @abstractmethod
    def named(self) -> str:
        """What the user is shown of it before it is obtained: its address, or the name of its package."""


SOURCES: Registry[type[CorpusSource]] = Registry("source")


@SOURCES.register("url")
class UrlSource(CorpusSource):
    """One file by its address."""

    kind: Literal["url"] = "url"
    url: str
    """Its address: https or http."""
    sha256: str = ""
    """The sum of its bytes, 64 hexadecimal digits."""
    without_sum: str = ""
    """Where there is no sha256: why not, in a few words ("changes every week"). The user is told so."""
    size: int | None = Field(default=None, ge=1)
    """Its bytes, where the publisher says."""
    file: str = ""
    """What to call it; default: the end of its address."""

    @field_validator("url")
    @classmethod
    def _of_the_web(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError("expected an address that begins with https:// or http://")
        return url

    @field_validator("sha256")
    @classmethod
    def _digits(cls, text: str) -> str:
        if text and (len(text) != 64 or set(text.lower()) - set("0123456789abcdef")):
            raise ValueError("expected 64 hexadecimal digits, as sha256sum prints them")
        return text.lower()

    @field_validator("file")
    @classmethod
    def _plain(cls, name: str) -> str:
        if name and not is_name(name):
            raise ValueError("expected the name of a file, without folders")
        return name

    @model_validator(mode="after")
    def _vouch(self) -> "UrlSource":
        if bool(self.sha256) == bool(self.without_sum):
            raise ValueError("give the file's `sha256`, or say in `without_sum` why there is none")
        return self

    def named(self) -> str:
        """See `CorpusSource`."""
        return self.url

    @property
    def file_name(self) -> str:
        """What the file is called in the cache."""
        end = PurePosixPath(unquote(urlsplit(self.url).path)).name
        return self.file or (end if is_name(end) else "download")

    def obtain(self, work: FetchContext) -> list[SourceFile]:
        """Downloads it, or finds it in the cache."""
        # Many files of the web have the same name, so each address has its own folder.
        folder = work.folder / hashlib.sha256(self.url.encode("utf-8")).hexdigest()[:16]
        target, kept_sum = folder / self.file_name, folder / "sha256"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = self._cached(target, kept_sum, work)
            if found is None:
                work.notify(f"downloading {self.url}")
                found = download(self.url, target, DownloadPolicy(work.notify, work.progress), self.sha256, self.size)
                kept_sum.write_text(found + "\n", encoding="ascii")
            size = target.stat().st_size
        except OSError as fault:
            raise DataError(
                f"{fault.filename or folder}: cannot read or write it: {fault.strerror or fault}"
            ) from fault
        if not self.sha256:
            work.notify(f"nothing vouches for {self.file_name}: {self.without_sum}. The sum of what came is {found}")
        return [SourceFile(target, self.url, found, size, vouched=bool(self.sha256))]

    def _cached(self, target: Path, kept_sum: Path, work: FetchContext) -> str | None:
        """The sum of an earlier download if it is still what it was; None where it must be downloaded."""
        if not target.is_file():
            return None
        work.notify(f"{target} is there already; checking it")
        found = sha256_of(target)
        expected = self.sha256 or (kept_sum.read_text(encoding="ascii").strip() if kept_sum.is_file() else found)
        if found == expected:
            return found
        work.notify(f"its sum is {found}, not {expected}: downloading it again")
        target.unlink()
        return None
