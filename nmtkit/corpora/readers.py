"""The contract of readers, which turn the published files of a corpus into pairs of texts.

A reader is a group of settings, `read:` of a catalogue entry. To add one: a class in a file of this folder, registered
under its `kind`, and the file in `nmtkit/corpora/__init__.py`:

    @READERS.register("two_columns")
    class TwoColumns(Reader):
        kind: Literal["two_columns"] = "two_columns"

        def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]: ...
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nmtkit.core.errors import DataError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings
from nmtkit.corpora.archives import decompressed, members
from nmtkit.corpus.text import read_stream_lines

LONGEST = 1 << 24
"""The most bytes of a line of text."""


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, or an article and its summary; each is one line without a line end."""

    src: str
    tgt: str
    group: str = ""
    """Pairs of one group (a page, a package family) go to the same split. Empty: the source text itself."""
    split: str = ""
    """"train", "valid" or "test" if the corpus says so; else empty, and `split` of the entry decides."""


class Reader(Settings):
    """Settings of one file layout, and the reading itself."""

    kind: str
    """The name it is registered by."""

    @abstractmethod
    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs of the corpus, one at a time, in a fixed order. Filtering is done later, by `filter` of the entry.

        Args:
            files: the files of the sources, in the order of the catalogue entry.
            dropped: counts of skipped items by reason ("no translation"), shown to the user and in the card.

        Raises:
            DataError: a file is damaged or has another layout; the message names it and its member.
        """


READERS: Registry[type[Reader]] = Registry("reader")


def text_lines(files: Sequence[Path], place: str) -> Iterator[str]:
    """The lines of FILE, or FILE:MEMBER for a member of an archive, without line ends and byte-order mark."""
    name, _, member = place.partition(":")
    path = find_file(files, name)
    # What is no archive is its own only member, without the ending where it is packed.
    wanted = (member,) if member else (path.name, path.stem)
    others: list[str] = []
    for found in members(path):
        if found.name in wanted:
            with found.open() as stream:
                yield from decode_stream(decompressed(stream, place), place)
            return
        others.append(found.name)
    more = f" and {len(others) - 10} more" if len(others) > 10 else ""
    content = f"{', '.join(others[:10])}{more}" or "nothing"
    if not member:
        raise DataError(f"{path}: this is an archive of {content}: name one as {name}:MEMBER in the entry")
    raise DataError(f"{path}: it has no member {member}, only {content}; has it been published again?")


def decode_stream(stream: BinaryIO, where: str) -> Iterator[str]:
    """The lines of an open stream; `where` names it in messages."""
    return read_stream_lines(stream, where, "; is it the file it should be?", "fetch it again", LONGEST)


def find_file(files: Sequence[Path], name: str) -> Path:
    """The file of a name; DataError if the sources have none."""
    found = next((path for path in files if path.name == name), None)
    if found is None:
        given = ", ".join(path.name for path in files)
        raise DataError(f"{name}: no source of the corpus gives a file of this name, only {given}; correct the entry")
    return found
