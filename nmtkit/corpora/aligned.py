"""Corpora of two texts side by side, or of one text with a pair on every line.

Line n, or segment n, of one text is the translation of that of the other; in one text the sides stand between tabs, as
manythings.org exports Tatoeba.

Shared tasks have two kinds of marked-up text: talks of WIT3 for training, and segments (SGML, XML) for testing. Neither
is valid XML in the wild: ampersands stand for themselves, attributes have no quotes. So both are read by their few tags
alone.
"""

import re
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
from nmtkit.corpora.readers import LONGEST, READERS, Pair, Reader, text_lines

MARK_UP = "lines of mark-up about talks: title, description, address and the like"

_ABOUT = re.compile(r"\s*</?([A-Za-z]\w*)[^<>]*>")
_TALK = re.compile(r"\s*<talkid>\s*([^<]*?)\s*</talkid>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:([A-Za-z][A-Za-z0-9]*)|#[0-9]+|#[xX][0-9A-Fa-f]+);")
_TAG = re.compile(r"<(/?)(doc|seg)\b([^>]*)>", re.IGNORECASE)


@dataclass(frozen=True)
class Segment:
    """One text of one side, without the tags about it."""

    text: str
    place: str = ""
    """What it belongs to, in words; the unit of the other side must belong to the same. Empty where nothing says it."""
    group: str = ""
    """What may not be divided between splits; empty: the source text itself."""


def read_talks(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Segment]:
    """The sentences of `train.tags` files: all lines but those that begin with a tag, which speak about the talk."""
    talk = ""
    for line in lines:
        if not _ABOUT.match(line):
            yield Segment(line.strip(), talk, talk)
            continue
        dropped[MARK_UP] += 1
        if named := _TALK.match(line):
            talk = f"talk {named[1]}"


def read_segments(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Segment]:
    """What stands between <seg> and </seg>, in one line or several.

    Raises:
        DataError: a segment is not closed, or closed without having been opened; with the line.
    """
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
                what = f"inside of the segment that begins in line {begun}" if begun else "where no segment is open"
                raise DataError(f"{where}, line {number}: {tag[0]} {what}; is the file damaged?")
            elif not closes:
                document = _attribute(tag[3], "docid")
            at = tag.end()
        if begun:
            parts.append(line[at:])
            if sum(map(len, parts)) > LONGEST:
                raise DataError(f"{where}, line {begun}: this segment has no end")
    if begun:
        raise DataError(f"{where}, line {begun}: this segment has no end; is the file whole?")


def unescape_entities(text: str) -> str:
    """The text with the letters that `&amp;`, `&#39;` and the like stand for.

    Stricter than browsers, and than `html.unescape`: without its semicolon it is no such sign, so that other ampersands
    stay what they are.
    """
    return _ENTITY.sub(lambda found: html5.get(f"{found[1]};", found[0]) if found[1] else unescape(found[0]), text)


def _attribute(text: str, name: str) -> str:
    found = re.search(rf"\b{name}\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))", text, re.IGNORECASE)
    return next((value for value in found.groups() if value is not None), "") if found else ""


# What makes units out of the lines of a text; takes what messages call the text, and where to count what is left out.
FORMATS: Mapping[str, Callable[[Iterator[str], str, Counter[str]], Iterator[Segment]]] = {
    "lines": lambda lines, where, dropped: map(Segment, lines),
    "talks": read_talks,
    "segments": read_segments,
}


class ParallelFiles(Settings):
    """Two texts, side by side."""

    src: str
    """FILE, or FILE:MEMBER for a member of an archive; FILE is what a source gives. Either may be gzip-compressed."""
    tgt: str
    """The same of the target."""
    split: Literal["train", "valid", "test", ""] = ""
    """What it is for; empty: `split` of the entry decides."""
    format: Literal["lines", "talks", "segments"] = "lines"
    """lines: a sentence a line. talks: WIT3's train.tags, of which lines with tags are left out. segments: SGML or XML,
    a sentence between <seg> and </seg>."""
    entities: bool | None = None
    """Whether `&quot;` and the like become the letter they stand for; default: in segments, where they are mark-up."""


@READERS.register("aligned")
class AlignedReader(Reader):
    """Texts side by side, for any number of splits. An archive of both sides is read twice at once, not unpacked."""

    kind: Literal["aligned"] = "aligned"
    parts: list[ParallelFiles] = Field(min_length=1)
    """The texts, in the order in which they are read."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs of all parts.

        Raises:
            DataError: a text is missing or damaged, the two sides have not the same number of lines or segments, or a
                segment belongs to another document than that of the other side.
        """
        for part in self.parts:
            yield from _pairs(part, files, dropped)


def _pairs(part: ParallelFiles, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
    read = FORMATS[part.format]
    sides = [
        read(text_lines(files, part.src), part.src, dropped),
        read(text_lines(files, part.tgt), part.tgt, Counter()),  # what is left out of both sides is counted once
    ]
    settle = unescape_entities if part.entities or (part.entities is None and part.format == "segments") else str
    count = 0
    for src, tgt in zip_longest(*sides):
        if src is None or tgt is None:
            more = 1 + sum(1 for side in sides for _ in side)
            counts = (count, count + more) if src is None else (count + more, count)
            raise DataError(
                f"{part.src} has {counts[0]} {part.format}, but {part.tgt} has {counts[1]}: they do not belong together"
            )
        count += 1
        if src.place != tgt.place:
            raise DataError(
                f"{part.src} and {part.tgt} part at number {count}: {src.place or 'nothing'} on one side, "
                f"{tgt.place or 'nothing'} on the other"
            )
        yield Pair(settle(src.text), settle(tgt.text), group=src.group, split=part.split)
    if not count:
        raise DataError(f"{part.src}: there are no {part.format} in it; is it of another layout now?")


@READERS.register("tab_separated")
class TabSeparatedReader(Reader):
    """Lines of columns between tabs; columns that are not asked for, such as who wrote a sentence, are passed over."""

    kind: Literal["tab_separated"] = "tab_separated"
    text: str
    """FILE, or FILE:MEMBER for a member of an archive; FILE is what the source gives."""
    src: int = Field(default=1, ge=1)
    """The column of the source, counted from 1."""
    tgt: int = Field(default=2, ge=1)
    """The column of the target."""
    group: int | None = Field(default=None, ge=1)
    """The column whose text may not be divided between splits; default: that of the source."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pair of every line that is not empty.

        Raises:
            DataError: the file is damaged, or a line has too few columns; the message names the line.
        """
        group = self.group or self.src
        needed = max(self.src, self.tgt, group)
        for number, line in enumerate(text_lines(files, self.text), start=1):
            if not line:
                dropped["empty lines"] += 1
                continue
            columns = line.split("\t")
            if len(columns) < needed:
                raise DataError(
                    f"{self.text}, line {number}: expected {needed} columns between tabs, found {len(columns)}; "
                    "is the file of another layout now?"
                )
            yield Pair(columns[self.src - 1], columns[self.tgt - 1], group=columns[group - 1])
