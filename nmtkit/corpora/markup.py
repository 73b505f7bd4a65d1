"""The two kinds of marked-up text of shared tasks: talks of WIT3 for training, and segments (SGML, XML) for testing.

Neither is valid XML in the wild: ampersands stand for themselves, attributes have no quotes. So both are read by their
few tags alone.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from html.entities import html5

from nmtkit.corpora.texts import LONGEST
from nmtkit.errors import DataError

MARK_UP = "lines of mark-up about talks: title, description, address and the like"
"""What the lines of a file of talks are counted as that are no sentence of a talk."""

_ABOUT = re.compile(r"\s*</?([A-Za-z]\w*)[^<>]*>")
_TALK = re.compile(r"\s*<talkid>\s*([^<]*?)\s*</talkid>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:([A-Za-z][A-Za-z0-9]*)|#[0-9]+|#[xX][0-9A-Fa-f]+);")
_TAG = re.compile(r"<(/?)(doc|seg)\b([^>]*)>", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """One text of one side."""

    text: str
    """Without the tags about it."""
    place: str = ""
    """What it belongs to, in words; the unit of the other side must belong to the same. Empty where nothing says it."""
    group: str = ""
    """What may not be divided between splits; empty: the source text itself."""


def plain(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Unit]:
    """Every line is a unit."""
    return map(Unit, lines)


def talks(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Unit]:
    """The sentences of `train.tags` files: all lines but those that begin with a tag, which speak about the talk.

    Args:
        lines: of the file.
        where: what messages call it.
        dropped: where the lines are counted that are left out.
    """
    talk = ""
    for line in lines:
        if not _ABOUT.match(line):
            yield Unit(line.strip(), talk, talk)
            continue
        dropped[MARK_UP] += 1
        if named := _TALK.match(line):
            talk = f"talk {named[1]}"


def segments(lines: Iterator[str], where: str, dropped: Counter[str]) -> Iterator[Unit]:
    """What stands between <seg> and </seg>, in one line or several.

    Args:
        lines: of the file.
        where: what messages call it.
        dropped: not used; nothing is left out.

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
                    yield Unit(" ".join(part.strip() for part in parts).strip(), place, document)
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


def unescaped(text: str) -> str:
    """The text with the letters that `&amp;`, `&#39;` and the like stand for.

    Stricter than browsers, and than `html.unescape`: without its semicolon it is no such sign, so that other ampersands
    stay what they are.
    """
    return _ENTITY.sub(lambda found: html5.get(f"{found[1]};", found[0]) if found[1] else unescape(found[0]), text)


def _attribute(text: str, name: str) -> str:
    found = re.search(rf"\b{name}\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))", text, re.IGNORECASE)
    return next((value for value in found.groups() if value is not None), "") if found else ""
