"""Lines of text out of the files that a corpus is published as: plain, compressed, or inside of an archive."""

import gzip
import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from nmtkit.corpora.archives import BUFFER, FREE_BYTES, LIMITS, StreamOf, members
from nmtkit.data.text import sound_lines
from nmtkit.errors import DataError

LONGEST = 1 << 24
"""The most bytes of a line: a longer one is no text, and would not fit in memory whatever the file is."""


def text_lines(files: Sequence[Path], place: str) -> Iterator[str]:
    r"""The lines of one published text, without line ends, one at a time.

    Only \n and \r\n end a line, as in all else that nmtkit reads: what other programs take for a line end stays inside.
    A byte-order mark at the beginning is not part of the text.

    Args:
        files: what the corpus's sources gave.
        place: FILE, or FILE:MEMBER for a member of an archive; FILE is the name of one of `files`. Either may be
            gzip-compressed.

    Raises:
        DataError: there is no such file or member, it is damaged, not UTF-8, or has a line that is too long; the
            message names it, and the line.
    """
    with closing(_streams(files, place)) as streams:
        yield from decoded(next(streams), place)


def decoded(stream: BinaryIO, where: str) -> Iterator[str]:
    """The same of a stream that is open; `where` is what messages call it."""
    return sound_lines(stream, where, "; is it the file it should be?", "fetch it again", LONGEST)


def file_of(files: Sequence[Path], name: str) -> Path:
    """The file of that name.

    Raises:
        DataError: the sources gave none; the message lists what they gave.
    """
    found = next((path for path in files if path.name == name), None)
    if found is None:
        given = ", ".join(path.name for path in files)
        raise DataError(f"{name}: no source of the corpus gives a file of this name, only {given}; correct the entry")
    return found


def _streams(files: Sequence[Path], place: str) -> Generator[BinaryIO, None, None]:
    """The one stream that `place` names; a generator, so that the archive is open for as long as it is read."""
    name, _, member = place.partition(":")
    path = file_of(files, name)
    # What is no archive is its own only member, without the ending where it is packed.
    wanted = (member,) if member else (path.name, path.stem)
    seen: list[str] = []
    count = 0
    for found in members(path):
        if found.name in wanted:
            with found.open() as stream:
                yield _unpacked(stream, place)
            return
        count += 1
        seen = seen if count > 10 else [*seen, found.name]
    there = (", ".join(seen) + (f" and {count - 10} more" if count > 10 else "")) or "nothing"
    if not member:
        raise DataError(f"{path}: this is an archive of {there}: name one as {name}:MEMBER in the entry")
    raise DataError(f"{path}: there is no {member} in it, only {there}; was it published anew?")


def _unpacked(stream: BinaryIO, place: str) -> BinaryIO:
    """What is in the stream, decompressed where it begins like a gzip file: inside of an archive some do."""
    assert isinstance(stream, io.BufferedReader)
    return _gunzipped(stream, place) if stream.peek(2)[:2] == b"\x1f\x8b" else stream


def _gunzipped(stream: BinaryIO, place: str) -> io.BufferedReader:
    """A gzip file inside of an archive, under the same limit as the archive: no bomb is put in by way of it."""
    packed = unpacked = 0

    def read_packed(size: int) -> bytes:
        nonlocal packed
        data = stream.read(size)
        packed += len(data)
        return data

    file = gzip.GzipFile(fileobj=StreamOf(read_packed))

    def read(size: int) -> bytes:
        nonlocal unpacked
        data = file.read(size)
        unpacked += len(data)
        if unpacked > max(FREE_BYTES, LIMITS.ratio * packed):
            raise DataError(f"{place}: more than {LIMITS.ratio:g} bytes come out for each byte of it; refused")
        return data

    return io.BufferedReader(StreamOf(read), BUFFER)
