"""Readers that turn the published files of a corpus into pairs: the base class, and readers for parallel texts.

A reader is a group of settings (`read:` in a catalogue entry). To add one, write a class with its
own `kind`, and add it to `AnyReader` in `catalogue.py`.

Shared tasks use two markup formats: WIT3 talks for training, and segments (SGML, XML) for testing.
Neither is valid XML in practice (bare ampersands, unquoted attributes), so the readers look only
for the few relevant tags.
"""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from html.entities import html5
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from nmtkit.core.errors import DataError
from nmtkit.core.settings import Field, Settings
from nmtkit.data.text.files.lines import MAX_LINE_BYTES, read_stream_lines
from nmtkit.datasets.archives import NOT_UTF8, members


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, or an article and its summary; each on one line, without the newline."""

    src: str
    tgt: str
    group: str = ""
    """Pairs of one group (a page, a package family) go to the same split. If empty, the source text is the group."""
    split: str = ""
    """"train", "valid" or "test" if the corpus defines it; empty if the entry's `split` decides."""


class Reader(Settings):
    """Settings and code for reading one file layout."""

    @abstractmethod
    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields the pairs of the corpus in a fixed order; the entry's `filter` is applied later.

        Args:
            files: the files of the sources, in the order of the catalogue entry.
            dropped: counts of skipped items by reason ("no translation"), shown to the user and in the card.

        A damaged file or a different layout raises a DataError that names the file and the member.
        """


def text_lines(files: Sequence[Path], place: str) -> Iterator[str]:
    """Yields the lines of FILE or FILE:MEMBER (an archive member) without newlines or byte-order mark."""
    name, _, member = place.partition(":")
    path = find_file(files, name)
    # A file that is not an archive is its only member; if it is compressed, the member's name lacks the suffix.
    wanted = (member,) if member else (path.name, path.stem)
    others: list[str] = []
    for candidate in members(path):
        if candidate.name in wanted:
            with candidate.open() as stream:
                yield from read_stream_lines(stream, place, remedy=NOT_UTF8)
            return
        others.append(candidate.name)
    more = f" and {len(others) - 10} more" if len(others) > 10 else ""
    content = f"{', '.join(others[:10])}{more}" or "nothing"
    raise DataError(
        f"{place}: no such text among the members of {path} ({content}); specify one as "
        f"{name}:MEMBER in the entry"
    )


def find_file(files: Sequence[Path], name: str) -> Path:
    """Returns the file with this name; DataError if the sources have none."""
    file = next((path for path in files if path.name == name), None)
    if file is None:
        given = ", ".join(path.name for path in files) or "none"
        raise DataError(
            f"{name}: the sources of the corpus provide no file with this name (available: {given}); "
            "correct the entry"
        )
    return file


# ------------------------------------------------------------------------------------------------------ parallel texts

MARKUP_LINES = "markup lines about talks (title, description, address and so on)"

_TAG_LINE = re.compile(r"\s*</?([A-Za-z]\w*)[^<>]*>")
_TALK = re.compile(r"\s*<talkid>\s*([^<]*?)\s*</talkid>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:([A-Za-z][A-Za-z0-9]*)|#[0-9]+|#[xX][0-9A-Fa-f]+);")
_TAG = re.compile(r"<(/?)(doc|seg)\b([^>]*)>", re.IGNORECASE)


@dataclass(frozen=True)
class Segment:
    """A text of one side without tags."""

    text: str
    place: str = ""
    """Description of the document, which must be the same on both sides; empty if it is unknown."""
    group: str = ""
    """The group of the pair; see `Pair.group`."""


def read_talks(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Segment]:
    """Yields the sentences of a `train.tags` file: all lines except talk metadata, which begin with a tag."""
    talk = ""
    for line in lines:
        if not _TAG_LINE.match(line):
            yield Segment(line.strip(), talk, talk)
            continue
        dropped[MARKUP_LINES] += 1
        if named := _TALK.match(line):
            talk = f"talk {named[1]}"


def read_segments(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Segment]:
    """Yields the texts between <seg> and </seg>; DataError naming the line if a tag is missing."""
    document, segment, begun, parts = "", "", 0, list[str]()
    for number, line in enumerate(lines, start=1):
        at = 0
        for tag in _TAG.finditer(line):
            closes, name = bool(tag[1]), tag[2].lower()
            if name == "seg" and closes == bool(begun):
                if begun:
                    parts.append(line[at : tag.start()])
                    place = f"document {document}, segment {segment}"
                    yield Segment(" ".join(part.strip() for part in parts).strip(), place, document)
                    begun, parts = 0, []
                else:
                    segment, begun = _attribute(tag[3], "id"), number
            elif begun or name == "seg":
                fault = (
                    f"inside the segment that begins on line {begun}"
                    if begun
                    else "outside any segment"
                )
                raise DataError(
                    f"{where}, line {number}: found {tag[0]} {fault}; the file may be damaged"
                )
            elif not closes:
                document = _attribute(tag[3], "docid")
            at = tag.end()
        if begun:
            parts.append(line[at:])
            if sum(map(len, parts)) > MAX_LINE_BYTES:
                raise DataError(
                    f"{where}, line {begun}: this segment is not closed; the file may be damaged"
                )
    if begun:
        raise DataError(
            f"{where}, line {begun}: this segment is not closed; the file may be incomplete; fetch "
            "it again"
        )


def unescape_entities(text: str) -> str:
    """Replaces character references such as `&#39;`; unlike `html.unescape`, requires the semicolon."""
    return _ENTITY.sub(
        lambda match: html5.get(f"{match[1]};", match[0]) if match[1] else unescape(match[0]), text
    )


def _attribute(text: str, name: str) -> str:
    match = re.search(rf"\b{name}\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))", text, re.IGNORECASE)
    return next((value for value in match.groups() if value is not None), "") if match else ""


# Functions that turn the lines of a text into segments. The arguments are the lines, the name of the text in messages,
# and the counts of skipped items.
FORMATS: Mapping[str, Callable[[Iterator[str], str, Counter[str]], Iterator[Segment]]] = {
    "lines": lambda lines, where, dropped: map(Segment, lines),
    "talks": read_talks,
    "segments": read_segments,
}


class ParallelFiles(Settings):
    """Two aligned texts."""

    src: str
    """FILE, or FILE:MEMBER for an archive member. Either may be gzip-compressed."""
    tgt: str
    """The target text, specified in the same way."""
    split: Literal["train", "valid", "test", ""] = ""
    """The split of these pairs; empty if the entry's `split` decides."""
    format: Literal["lines", "talks", "segments"] = "lines"
    """Format of the files: `lines` has one sentence per line, `talks` is WIT3's train.tags format, whose
    tag lines are skipped, and `segments` is SGML or XML with sentences between <seg> and </seg>. Only in segments are
    character references such as `&quot;` replaced.
    """


class AlignedReader(Reader):
    """Aligned texts for any number of splits. An archive with both sides is read twice in parallel, not unpacked."""

    kind: Literal["aligned"] = "aligned"
    parts: list[ParallelFiles] = Field(min_length=1)

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields the pairs of all parts."""
        for part in self.parts:
            yield from _pairs(part, files, dropped)


def _pairs(part: ParallelFiles, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
    read = FORMATS[part.format]
    sides = [
        read(text_lines(files, part.src), part.src, dropped),
        # an item skipped on both sides is counted once
        read(text_lines(files, part.tgt), part.tgt, Counter()),
    ]
    clean = unescape_entities if part.format == "segments" else str
    count = 0
    for src, tgt in zip_longest(*sides):
        if src is None or tgt is None:
            more = 1 + sum(1 for side in sides for _ in side)
            counts = (count, count + more) if src is None else (count + more, count)
            raise DataError(
                f"{part.src} has {counts[0]} {part.format}, but {part.tgt} has {counts[1]}, so "
                "they are not parallel"
            )
        count += 1
        if src.place != tgt.place:
            raise DataError(
                f"{part.src} and {part.tgt} are not parallel: item {count} is "
                f"{src.place or 'missing'} on one side and {tgt.place or 'missing'} on the other"
            )
        yield Pair(clean(src.text), clean(tgt.text), group=src.group, split=part.split)
    if not count:
        raise DataError(f"{part.src}: contains no {part.format}; its layout may have changed")


class TabSeparatedReader(Reader):
    """Tab-separated columns; other columns, such as the author of a sentence, are ignored."""

    kind: Literal["tab_separated"] = "tab_separated"
    text: str
    """FILE, or FILE:MEMBER for an archive member."""
    src: int = Field(default=1, ge=1)
    """Source column, counted from 1."""
    tgt: int = Field(default=2, ge=1)
    """The target column."""
    group: int | None = Field(default=None, ge=1)
    """Column that identifies the group of a pair. Default: the source column."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields the pair of every non-empty line; DataError naming the line if columns are missing."""
        group = self.group or self.src
        needed = max(self.src, self.tgt, group)
        for number, line in enumerate(text_lines(files, self.text), start=1):
            if not line:
                dropped["empty lines"] += 1
                continue
            columns = line.split("\t")
            if len(columns) < needed:
                raise DataError(
                    f"{self.text}, line {number}: expected {needed} tab-separated columns, but "
                    f"found {len(columns)}; the file's layout may have changed"
                )
            yield Pair(columns[self.src - 1], columns[self.tgt - 1], group=columns[group - 1])
