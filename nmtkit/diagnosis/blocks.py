"""Splits in blocks of pairs, each pair with the faults that were found in it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_story, story_files
from nmtkit.diagnosis.encodings import excerpt
from nmtkit.diagnosis.findings import Kind, Place
from nmtkit.diagnosis.kinds import ENCODING, JSON, LINE_COUNTS, MISSING, STORY
from nmtkit.diagnosis.lines import Find, Tell, TextFile
from nmtkit.diagnosis.parting import where_they_part
from nmtkit.errors import DataError
from nmtkit.settings import parse_json

Rows: TypeAlias = NDArray[np.int64]
"""Pairs of a block, by their place in it, from 0."""

PAIR_WIDTH = 60
"""Characters that are shown of each side of a pair."""
STORIES = 256
"""Stories in a block."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault in some pairs of a block."""

    kind: Kind
    """Which."""
    rows: Rows
    """The pairs that have it, by their place in the block."""
    place: Callable[[int], Place]
    """Where it is in such a pair."""


@dataclass
class Block:
    """Some pairs of one split that follow each other, as they are read from its files."""

    split: str
    """The name of the split."""
    src_file: str
    """Where the sources come from."""
    tgt_file: str
    """Where the targets come from; the same for JSONL and stories, "" without targets."""
    first: int
    """The line of the first pair in its files, from 1; of stories always 1."""
    src: list[str]
    """Sources."""
    tgt: list[str] | None
    """Targets; None where there are none."""
    faults: list[Fault] = field(default_factory=list)
    """What was found in them."""
    unread: set[int] = field(default_factory=set)
    """Pairs of which a line could not be read, by their place in the block; nothing else is said about them."""
    names: list[str] = field(default_factory=list)
    """Of stories: the file of each."""
    marks: tuple[int, int] = (0, 0)
    """Bytes of the byte-order marks at the beginning of the source and target file, which are no part of line 1."""

    def __len__(self) -> int:
        return len(self.src)

    def add(self, kind: Kind, rows: Sequence[int] | Rows, place: Callable[[int], Place] | None = None) -> None:
        """Notes a fault of some pairs. `place` says where it is in such a pair; by default both sides are shown."""
        found = np.asarray(rows, dtype=np.int64)
        if self.unread:
            found = found[~np.isin(found, list(self.unread))]
        if len(found):
            self.faults.append(Fault(kind, found, place or self.pair))

    def pair(self, row: int) -> Place:
        """Where a pair is; both sides are shown."""
        src = excerpt(self.src[row], width=PAIR_WIDTH)
        text = src if self.tgt is None else f"{src} ||| {excerpt(self.tgt[row], width=PAIR_WIDTH)}"
        return Place(self._file("src", row), self.line(row), text=text)

    def side(self, side: str, row: int, start: int = 0) -> Place:
        """Where something is in one side of a pair.

        Args:
            side: "src" or "tgt".
            row: the pair.
            start: the character, from 0.
        """
        text = self.src[row] if side == "src" else (self.tgt or [])[row]
        byte = None
        if self.src_file != self.tgt_file:  # in JSON a character may be written in several ways
            mark = self.marks[0 if side == "src" else 1] if self.line(row) == 1 else 0
            byte = mark + len(text[:start].encode("utf-8", "surrogatepass")) + 1
        return Place(self._file(side, row), self.line(row), byte, excerpt(text, start))

    def line(self, row: int) -> int:
        """The line of a pair in its files."""
        return 1 if self.names else self.first + row

    def _file(self, side: str, row: int) -> str:
        return self.names[row] if self.names else self.src_file if side == "src" else self.tgt_file


def read_blocks(split: str, files: Files, find: Find | None, tell: Tell | None) -> Iterator[Block]:
    """The pairs of a split in blocks, in their order, each line of its files once.

    Args:
        split: its name.
        files: its files.
        find: takes what is wrong with a whole file, if asked for; what is wrong with a pair stands in its block.
        tell: is told how many bytes have been read since the last time, if anyone wants to know.
    """
    if files.stories:
        yield from _stories(split, files, find)
    for path in files.jsonl:
        yield from _records(split, files, TextFile(path, find, tell))
    for position, path in enumerate(files.src):
        src = TextFile(path, find, tell)
        if files.tgt:
            yield from _aligned(split, src, TextFile(files.tgt[position], find, tell), find)
        else:
            yield from _single(split, src)
        if find is not None and src.whole:
            for others in (files.alignment, files.src_words, files.tgt_words):
                for other in others[position : position + 1]:
                    _same_count(src, TextFile(other, find, tell), find)


def _aligned(split: str, src: TextFile, tgt: TextFile, find: Find | None) -> Iterator[Block]:
    first = 1
    while count := min(src.fill(), tgt.fill()):
        src_lines, src_faults = src.take(count)
        tgt_lines, tgt_faults = tgt.take(count)
        block = Block(split, src.path, tgt.path, first, src_lines, tgt_lines, marks=(src.mark, tgt.mark))
        _encoding(block, src_faults, src.path)
        _encoding(block, tgt_faults, tgt.path)
        block.unread.update(src_faults, tgt_faults)
        yield block
        first += count
    for file in (src, tgt):
        while count := file.fill():
            file.take(count)
    if find is not None and src.whole and tgt.whole and src.count != tgt.count:
        place = where_they_part(src.path, tgt.path, src.count, tgt.count)
        find(LINE_COUNTS, place, abs(src.count - tgt.count))


def _same_count(src: TextFile, other: TextFile, find: Find) -> None:
    """Compares the number of lines of a file that goes with the text."""
    while count := other.fill():
        other.take(count)
    if other.whole and other.count != src.count:
        text = f"{other.count:,} lines here, {src.count:,} in {src.path}"
        find(LINE_COUNTS, Place(other.path, min(other.count, src.count) + 1, text=text), abs(other.count - src.count))


def _single(split: str, src: TextFile) -> Iterator[Block]:
    first = 1
    while count := src.fill():
        lines, faults = src.take(count)
        block = Block(split, src.path, "", first, lines, None, marks=(src.mark, 0))
        _encoding(block, faults, src.path)
        block.unread.update(faults)
        yield block
        first += count


def _encoding(block: Block, faults: dict[int, tuple[int, str]], path: str) -> None:
    def place(row: int) -> Place:
        byte, text = faults[row]
        return Place(path, block.line(row), byte, text)

    block.add(ENCODING, sorted(faults), place)


def _records(split: str, files: Files, file: TextFile) -> Iterator[Block]:
    first = 1
    while count := file.fill():
        lines, faults = file.take(count)
        sides = [None if row in faults else _sides(line, files) for row, line in enumerate(lines)]
        whole = [("", "") if side is None or isinstance(side, str) else side for side in sides]
        block = Block(split, file.path, file.path, first, [src for src, _ in whole], [tgt for _, tgt in whole])
        _encoding(block, faults, file.path)
        wrong = {row: f"{side}: {excerpt(lines[row])}" for row, side in enumerate(sides) if isinstance(side, str)}
        _unusable(block, JSON, wrong)
        block.unread.update(faults, wrong)
        yield block
        first += count


def _unusable(block: Block, kind: Kind, why: dict[int, str]) -> None:
    """Notes the pairs that could not be made out, with the reason of each."""

    def place(row: int) -> Place:
        return replace(block.pair(row), text=why[row])

    block.add(kind, sorted(why), place)


def _sides(line: str, files: Files) -> tuple[str, str] | str:
    """Both sides of a JSONL line, or what is wrong with it."""
    try:
        record = parse_json(line.encode("utf-8", "replace"), "")  # bytes that are not UTF-8 are a fault of their own
    except DataError as fault:
        return str(fault).removeprefix(": ") if line.strip() else "an empty line"
    if not isinstance(record, dict):
        return f"not an object but a {type(record).__name__}"
    sides = []
    for name in (files.src_field, files.tgt_field):
        if name not in record:
            return f"no field {name!r}, it has {', '.join(map(repr, record)) or 'none'}"
        text = _text(record[name])
        if text is None:
            return f"field {name!r} is neither a string nor a list of strings"
        sides.append(text)
    return sides[0], sides[1]


def _text(value: Any) -> str | None:
    """The text of a field in one line, as it is read for training."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = " ".join(value)
    return " ".join(value.splitlines()) if isinstance(value, str) else None


def _stories(split: str, files: Files, find: Find | None) -> Iterator[Block]:
    paths = story_files(files)
    while True:
        try:
            names = [str(path) for _, path in islice(paths, STORIES)]
        except DataError as fault:
            if find is not None:
                find(MISSING, Place(files.stories[0], 1, text=str(fault)), 1)
            return
        if not names:
            return
        block = Block(split, files.stories[0], files.stories[0], 1, [], [], names=names)
        wrong: dict[int, str] = {}
        sides = []
        for row, name in enumerate(names):
            try:
                sides.append(read_story(name))
            except DataError as fault:
                sides.append(("", ""))
                wrong[row] = str(fault)
        block.src, block.tgt = [src for src, _ in sides], [tgt for _, tgt in sides]
        _unusable(block, STORY, wrong)
        block.unread.update(wrong)
        yield block
