"""The contract of a reader, which makes pairs of texts out of the files that a corpus is published as; and their lines.

A reader is a group of settings, `read:` of a corpus in the catalogue, that knows how to read. To add one: a class in a
file of this folder, registered here under the `kind` that the catalogue calls it by, and the file's name in
`nmtkit/corpora/__init__.py`:

    @READERS.register("two_columns")
    class TwoColumns(Reader):
        \"\"\"Lines of source, tab, target.\"\"\"

        kind: Literal["two_columns"] = "two_columns"
        swap: bool = False
        \"\"\"Whether the target stands first.\"\"\"

        def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
            ...
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nmtkit.core.errors import DataError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings
from nmtkit.corpora.archives import decompressed, members
from nmtkit.corpus.text import read_stream_lines

LONGEST = 1 << 24
"""The most bytes of a line: a longer one is no text, and would not fit in memory whatever the file is."""


@dataclass(frozen=True)
class Pair:
    """One sentence and its translation, or one article and its summary; each is one line without a line end."""

    src: str
    tgt: str
    group: str = ""
    """What may not be divided between splits: pairs of one page, one family of packages, one source sentence. Empty:
    the source text itself."""
    split: str = ""
    """"train", "valid" or "test" where the corpus itself says so; else empty, and `split` of the entry decides."""


class Reader(Settings):
    """Settings of one way to read, and the reading itself."""

    kind: str
    """The name it is registered by."""

    @abstractmethod
    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs of the corpus, one at a time, in the same order every time; only a few are in memory at once.

        Filtering by length, letters or equality is done later, by `filter` of the catalogue entry.

        Args:
            files: what the corpus's sources gave, in the order in which the catalogue names them.
            dropped: how many items were left out, by the reason in a few words ("no translation"). The reader counts
                it up; the user is shown it, and it stands in the card.

        Raises:
            DataError: a file is damaged or not of the layout that was expected; the message names it and its member.
        """


READERS: Registry[type[Reader]] = Registry("reader")


def text_lines(files: Sequence[Path], place: str) -> Iterator[str]:
    r"""The lines of one published text, without line ends, one at a time.

    Only \n and \r\n end a line, as in all else that nmtkit reads. A byte-order mark at the beginning is left out.

    Args:
        files: what the corpus's sources gave.
        place: FILE, or FILE:MEMBER for a member of an archive; FILE is the name of one of `files`. Either may be
            gzip-compressed.

    Raises:
        DataError: there is no such file or member, it is damaged, not UTF-8, or has a line that is too long; the
            message names it, and the line.
    """
    with _opened(files, place) as stream:
        yield from decode_stream(stream, place)


def decode_stream(stream: BinaryIO, where: str) -> Iterator[str]:
    """The same of a stream that is open; `where` is what messages call it."""
    return read_stream_lines(stream, where, "; is it the file it should be?", "fetch it again", LONGEST)


def find_file(files: Sequence[Path], name: str) -> Path:
    """The file of that name; a DataError where the sources gave none, with what they gave."""
    found = next((path for path in files if path.name == name), None)
    if found is None:
        given = ", ".join(path.name for path in files)
        raise DataError(f"{name}: no source of the corpus gives a file of this name, only {given}; correct the entry")
    return found


@contextmanager
def _opened(files: Sequence[Path], place: str) -> Iterator[BinaryIO]:
    """The stream that `place` names; the archive is open for as long as it is read."""
    name, _, member = place.partition(":")
    path = find_file(files, name)
    # What is no archive is its own only member, without the ending where it is packed.
    wanted = (member,) if member else (path.name, path.stem)
    seen: list[str] = []
    count = 0
    for found in members(path):
        if found.name in wanted:
            with found.open() as stream:
                yield decompressed(stream, place)
            return
        count += 1
        if count <= 10:
            seen.append(found.name)
    there = (", ".join(seen) + (f" and {count - 10} more" if count > 10 else "")) or "nothing"
    if not member:
        raise DataError(f"{path}: this is an archive of {there}: name one as {name}:MEMBER in the entry")
    raise DataError(f"{path}: there is no {member} in it, only {there}; was it published anew?")
