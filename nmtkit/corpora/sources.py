"""The contract of a source: where the files of a corpus come from.

A source is a group of settings, one item of `sources:` of a corpus in the catalogue, that knows how to obtain its
files. It is registered like a reader (see `readers.py`), under its `kind`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nmtkit.registry import Registry
from nmtkit.settings import Settings


@dataclass(frozen=True)
class Obtained:
    """One file as it was obtained, and what the card says of it."""

    path: Path
    """Where it is."""
    origin: str
    """Its address, or the name of its package."""
    sha256: str
    """The sum of its bytes, as hexadecimal digits."""
    size: int
    """In bytes."""
    version: str = ""
    """Of a package; empty for an address."""
    vouched: bool = True
    """Whether its sum was compared with one from elsewhere: the catalogue, or a signed index of packages."""


@dataclass(frozen=True)
class Workplace:
    """Where a source puts its files, and whom it tells how it goes."""

    folder: Path
    """The cache of all downloads, which exists: what stays there is found by the next fetch of any corpus."""
    notify: Callable[[str], None]
    """Takes a sentence for the user."""
    progress: Callable[[int, int | None], None]
    """Takes how many bytes of the present file are there, and how many it has where that is known."""


class Source(Settings):
    """Settings of one place to obtain files from, and the obtaining itself."""

    kind: str
    """The name it is registered by."""

    @abstractmethod
    def obtain(self, work: Workplace) -> list[Obtained]:
        """The files, whole and checked; those that are in the cache already are not downloaded again.

        Raises:
            DataError: they cannot be obtained; the message names the place and the remedy.
        """

    @abstractmethod
    def named(self) -> str:
        """What the user is shown of it before it is obtained: its address, or the name of its package."""


SOURCES: Registry[type[Source]] = Registry("source")
"""Every kind of source by its name."""
