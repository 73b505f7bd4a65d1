"""Sources of a corpus's files: the base class, and files with a URL.

A source is a group of settings, an item under `sources:` in a catalogue entry; `AnySource` in
`catalogue.py` lists all kinds.
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from nmtkit.core.files import bytes_checksum, file_sha256, write_errors
from nmtkit.core.settings import Field, Name, Settings, is_valid_name, model_validator
from nmtkit.datasets.download import FetchContext, download


@dataclass(frozen=True)
class SourceFile:
    """A downloaded file and its provenance for the card."""

    path: Path
    origin: str
    """URL."""
    sha256: str
    version: str = ""
    """Version of the package or release, if any."""
    verified: bool = True
    """Whether the checksum was verified against the catalogue or an index."""


class CorpusSource(Settings):
    """Settings of a source, and its download."""

    @abstractmethod
    def obtain(self, context: FetchContext) -> list[SourceFile]:
        """Returns complete, verified files from the cache or the network; DataError if one is unavailable."""

    @abstractmethod
    def label(self) -> str:
        """Returns the URL or package name, shown before the download."""


class UrlSource(CorpusSource):
    """A file with a URL."""

    kind: Literal["url"] = "url"
    url: str = Field(pattern=r"^https?://[^/]")
    """URL of the file, with https or http."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 checksum, 64 hexadecimal digits as printed by sha256sum."""
    no_checksum: str = ""
    """Reason why there is no `sha256`, shown to the user, such as "changes every week"."""
    size: int | None = Field(default=None, ge=1)
    """Size in bytes, if published."""
    file: Name | None = None
    """File name. Default: the last part of the URL."""

    @model_validator(mode="after")
    def _has_checksum(self) -> "UrlSource":
        if bool(self.sha256) == bool(self.no_checksum):
            raise ValueError(
                "give the file's `sha256`, or state in `no_checksum` why there is none"
            )
        return self

    @override
    def label(self) -> str:
        return self.url

    @property
    def file_name(self) -> str:
        """Returns the file's name in the cache."""
        end = PurePosixPath(unquote(urlsplit(self.url).path)).name
        return self.file or (end if is_valid_name(end) else "download")

    def obtain(self, context: FetchContext) -> list[SourceFile]:
        """Downloads the file unless it is cached."""
        # Many files on the web have the same name, so each URL has its own folder.
        folder = context.folder / bytes_checksum(self.url.encode())[:16]
        target = folder / self.file_name
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            checksum = ""
            if target.is_file():
                context.notify(f"{target} is in the cache; checking it")
                checksum = file_sha256(target)
                if self.sha256 not in ("", checksum):
                    context.notify(
                        f"the cached file has the checksum {checksum} instead of {self.sha256}; "
                        "downloading it again"
                    )
                    checksum = ""
            if not checksum:
                context.notify(f"downloading {self.url}")
                checksum = download(self.url, target, context, self.sha256, self.size)
        if not self.sha256:
            context.notify(
                f"{self.file_name} is not verified: {self.no_checksum}. Its SHA-256 checksum is "
                f"{checksum}"
            )
        return [SourceFile(target, self.url, checksum, verified=bool(self.sha256))]
