"""Blocks of consecutive examples: the unit that is read, checked, diagnosed and encoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import Links, parse_pharaoh_line
from nmtkit.data.text.config import TEXT_COLUMNS, SplitFiles
from nmtkit.data.text.faults import ENCODING, BlockFaults, FaultKind, FaultLocation, RowIndices, excerpt
from nmtkit.data.text.features import FeatureRows, Rows
from nmtkit.data.text.files.encodings import BAD_CHARACTER
from nmtkit.data.text.files.lines import TextFile, bad_bytes_message, explain_bad_bytes, first_bad_byte
from nmtkit.data.text.hashes import Mask, PairHashes
from nmtkit.data.text.normalization import TextForms, comparable

PAIR_WIDTH = 60
"""Characters shown of each side of a pair."""


@dataclass(frozen=True)
class Example:
    """One example: most often a sentence or document, with its translation if there is one."""

    src: str
    """The text of the column `src`, "" if there is no such column."""
    tgt: str | None
    line: int
    """Its line, counted from 1 over all files of the split; a story counts as one."""
    links: Links | None = None
    """Links between words; None without an alignment."""
    src_words: str | None = None
    """The source, cut into the words that the links count; None if these are its own."""
    tgt_words: str | None = None
    file: int = field(default=0, compare=False)
    """Index of its file (or folder of stories) in the split."""
    labels: str | None = None
    """Its label, or its labels separated by white space."""
    rows: FeatureRows | None = field(default=None, compare=False)
    """Its features, not read yet."""
    tags: str = ""
    """Special tokens before its source, see `SplitFiles.tags`."""
    languages: tuple[str, str] = ("", "")
    """The languages of source and target, for imported multilingual models; see `SplitFiles.src_lang`."""

    @property
    def features(self) -> Rows | None:
        """Its features `(R,F)`, which are read now; None without features."""
        return None if self.rows is None else self.rows[0]


@dataclass
class Block:
    """Consecutive examples of one split as read from its files, with their faults.

    An example has two texts, or one, which is then called `src` here whatever its column; or none, and `src` is empty.
    """

    split: str
    src_file: str
    tgt_file: str
    """Equal to `src_file` for JSONL and stories, "" without targets."""
    first: int
    """The line of the first pair in its files, from 1; for stories always 1."""
    src: list[str]
    tgt: list[str] | None
    position: int | list[int] = 0
    """Index of the file in the split; for stories the folder of each."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Further columns ("labels", "features", "alignment", "src_words", "tgt_words"); shorter if the file is."""
    text_columns: tuple[str, ...] = TEXT_COLUMNS
    """The columns of `src` and `tgt`; a single one is that of `src`."""
    paths: dict[str, str] = field(default_factory=dict)
    """The files of further columns, if they have files of their own."""
    offset: int = 0
    """Pairs of the split before this block."""
    links: list[Links] | None = None
    """Links between words; only of blocks without faults."""
    tags: Sequence[str] = ()
    """The tags of each file of the split, see `SplitFiles.tags`."""
    languages: Sequence[tuple[str, str]] = ()
    """The languages of each file of the split, see `SplitFiles.src_lang`."""
    faults: list[BlockFaults] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    """Rows that could not be decoded or parsed; they are not diagnosed further."""
    messages: list[tuple[int, str]] = field(default_factory=list)
    """Row and error message of each unreadable line."""
    names: list[str] = field(default_factory=list)
    """File names of stories."""
    bom_lengths: tuple[int, int] = (0, 0)
    """Bytes of the byte-order marks of the source and target file."""

    def __len__(self) -> int:
        return len(self.src)

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts by column."""
        sides = [self.src] if self.tgt is None else [self.src, self.tgt]
        return dict(zip(self.text_columns, sides, strict=False))

    def examples(self) -> Iterator[Example]:
        """The examples one by one."""
        columns = {
            "src": repeat(""),
            "tags": repeat(""),
            "languages": repeat(("", "")),
            **self.columns,
            **self.texts,
            "links": self.links,
        }
        columns |= {"line": self.lines.tolist(), "file": self.files.tolist()}
        if self.tags:
            columns["tags"] = [self.tags[file] for file in self.files.tolist()]
        if self.languages:
            columns["languages"] = [self.languages[file] for file in self.files.tolist()]
        if "features" in columns:
            columns["rows"] = (columns["features"][at : at + 1] for at in range(len(self)))
        return map(Example, *(columns.get(one.name) or repeat(None) for one in fields(Example)))

    def hashes(self, forms: TextForms | None = None) -> PairHashes:
        """Hashes by which equal examples are found; a label counts as a target, and no features equal others.

        Texts are equal if their `forms` are, by default `comparable`.
        """
        forms = forms or {}
        texts = {}
        for column, lines in self.texts.items():
            form = forms.get(column, comparable)
            texts[column] = [form(line) for line in lines]
        first = texts[self.text_columns[0]] if texts else self.src
        if "features" in self.columns:
            return PairHashes.of([f"{self.split} {line}" for line in self.lines.tolist()], first)
        if self.tgt is not None:
            return PairHashes.of(first, texts[self.text_columns[1]])
        labels = self.columns.get("labels")
        if labels is not None and len(labels) < len(self):  # its file ends before that of the text
            labels = [*labels, *[""] * (len(self) - len(labels))]
        return PairHashes.of(first, labels)

    def slice(self, start: int, end: int) -> "Block":
        """The pairs from `start` to `end`, counted from 0."""
        return replace(
            self,
            first=self.line(start),
            src=self.src[start:end],
            tgt=None if self.tgt is None else self.tgt[start:end],
            position=self.position if isinstance(self.position, int) else self.position[start:end],
            columns={kind: lines[start:end] for kind, lines in self.columns.items()},
            offset=self.offset + start,
            links=None if self.links is None else self.links[start:end],
            names=self.names[start:end],
        )

    @property
    def lines(self) -> NDArray[np.int64]:
        """`(n,)`: line numbers, counted from 1 over all files of the split."""
        return np.arange(self.offset + 1, self.offset + 1 + len(self))

    @property
    def files(self) -> NDArray[np.int64]:
        """`(n,)`: index of each pair's file."""
        return np.broadcast_to(np.array(self.position, dtype=np.int64), len(self))

    def empty_targets(self) -> Mask:
        """`(n,)`: whether there is a target and it is empty."""
        return np.zeros(len(self), dtype=bool) if self.tgt is None else _blank(self.tgt)

    def empty(self) -> Mask:
        """`(n,)`: whether a text is empty."""
        return (_blank(self.src) & bool(self.texts)) | self.empty_targets()

    def add(
        self, kind: FaultKind, rows: Sequence[int] | RowIndices, place: Callable[[int], FaultLocation] | None = None
    ) -> None:
        """Adds a fault of some pairs; `place` gives its location in each, by default with both sides."""
        faulty = np.asarray(rows, dtype=np.int64)
        if self.unreadable:
            faulty = faulty[~np.isin(faulty, list(self.unreadable))]
        if len(faulty):
            self.faults.append(BlockFaults(kind, faulty, place or self.pair))

    def pair(self, row: int) -> FaultLocation:
        """The location of a pair, with an excerpt of both sides."""
        src = excerpt(self.src[row], width=PAIR_WIDTH)
        text = src if self.tgt is None else f"{src} ||| {excerpt(self.tgt[row], width=PAIR_WIDTH)}"
        return FaultLocation(self._file("src", row), self.line(row), text=text)

    def side(self, side: str, row: int, start: int = 0) -> FaultLocation:
        """The location of a character in one side ("src" or "tgt") of a pair."""
        text = self.src[row] if side == "src" else (self.tgt or [])[row]
        byte = None
        if self.src_file != self.tgt_file:  # in JSON a character may be written in several ways
            mark = self.bom_lengths[0 if side == "src" else 1] if self.line(row) == 1 else 0
            byte = mark + len(text[:start].encode("utf-8", "surrogatepass")) + 1
        return FaultLocation(self._file(side, row), self.line(row), byte, excerpt(text, start))

    def place(self, column: str, row: int) -> str:
        """File and line of a pair in a further column, for messages."""
        return f"{self.paths.get(column, self._file('src', row))}, line {self.line(row)}"

    def line(self, row: int) -> int:
        """The line of a pair in its files."""
        return 1 if self.names else self.first + row

    def _file(self, side: str, row: int) -> str:
        return self.names[row] if self.names else self.src_file if side == "src" else self.tgt_file

    def note_bad_bytes(self, file: TextFile, rows: list[int], lines: list[str]) -> None:
        """Adds faults for lines that are not valid in the encoding of their file."""

        def place(row: int) -> FaultLocation:
            number = self.line(row)
            if file.encoding:
                text = lines[row].replace(BAD_CHARACTER, "\ufffd")
                return FaultLocation(file.path, number, text=excerpt(text, text.index("\ufffd")))
            byte = (file.mark if number == 1 else 0) + first_bad_byte(lines[row]) + 1
            return FaultLocation(file.path, number, byte, explain_bad_bytes(lines[row], file.guess))

        self.add(ENCODING, rows, place)
        self.add_message(file, rows, lines)

    def add_message(self, file: TextFile, rows: list[int], lines: list[str]) -> None:
        """Adds only their error messages."""
        for row in rows:
            number = self.line(row)
            message = bad_bytes_message(
                f"{file.path}, line {number}",
                lines[row],
                file.encoding,
                file.guess,
                mark=file.mark if number == 1 else 0,
            )
            self.messages.append((row, message))

    def add_unusable(self, kind: FaultKind, messages: Mapping[int, str]) -> None:
        """Adds faults and error messages of pairs that cannot be used."""

        def place(row: int) -> FaultLocation:
            where = self.pair(row)
            return replace(where, text=messages[row].removeprefix(f"{where.file}, line {where.line}: "))

        self.add(kind, sorted(messages), place)
        self.messages += messages.items()
        self.unreadable.update(messages)


def _blank(lines: Sequence[str]) -> Mask:
    return np.fromiter((not line.strip() for line in lines), dtype=bool, count=len(lines))


# --------------------------------------------------------------------------------------------------------------- links


def read_links(block: Block, files: SplitFiles) -> list[Links]:
    """All links of each pair, sure and possible; DataError if one is malformed or outside of its sentence."""
    path = files.alignment[int(block.files[0])]
    words = [block.columns.get(kind) or repeat("") for kind in ("src_words", "tgt_words")]
    texts = zip(block.columns["alignment"], block.src, block.tgt or (), *words, strict=False)
    links = []
    for row, (text, src, tgt, src_words, tgt_words) in enumerate(texts):
        where = f"{path}, line {block.line(row)}"
        links.append(_links(text, src_words or src, tgt_words or tgt, where, files.alignment_base))
    return links


def _links(text: str, src: str, tgt: str, where: str, base: Literal[0, 1] | None) -> Links:
    first = base or 0
    links = parse_pharaoh_line(text, where, first).possible
    for number, (side, line) in enumerate((("source", src), ("target", tgt))):
        most, words = max((link[number] for link in links), default=-1), len(line.split())
        if most >= words:
            raise DataError(
                f"{where}: a link names {side} word {most + first}, but there are {words}, counted from {first}; is it "
                "the alignment of these files, source first? If it counts other words than white space separates, name "
                "files of them with src_words and tgt_words; if it counts them from 1, set alignment_base: 1"
            )
    return links
