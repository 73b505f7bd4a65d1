"""Blocks of consecutive examples: the unit in which examples are read, checked and encoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import Links, parse_pharaoh_line
from nmtkit.data.text.config import TEXT_COLUMNS, SplitFiles
from nmtkit.data.text.faults import (
    ENCODING,
    BlockFaults,
    FaultKind,
    FaultLocation,
    RowIndices,
    excerpt,
)
from nmtkit.data.text.features import FeatureRows, Rows
from nmtkit.data.text.files.encoding_messages import (
    bad_byte_excerpt,
    bad_byte_message,
    first_bad_byte,
)
from nmtkit.data.text.files.encodings import BAD_CHARACTER
from nmtkit.data.text.files.text_file import TextFile
from nmtkit.data.text.hashes import Mask, PairHashes
from nmtkit.data.text.normalization import TextForms, comparable

PAIR_WIDTH = 60
"""Approximate length, in characters, of the excerpt from each side of a pair."""


@dataclass(frozen=True)
class Example:
    """One example: usually a sentence or document, with its translation if there is one."""

    src: str
    """Text in the column `src`; "" if there is no such column."""
    tgt: str | None
    line: int
    """Line number, counted from 1 through all files of the split; each story counts as one line."""
    links: Links | None = None
    """Links between words; None without an alignment."""
    src_words: str | None = None
    """The source, split into the words that the links refer to; None if these are the words of `src` itself."""
    tgt_words: str | None = None
    file: int = field(default=0, compare=False)
    """Index of the example's file (or folder of stories) in the split."""
    labels: str | None = None
    """A label, or one label per word, separated by white space."""
    rows: FeatureRows | None = field(default=None, compare=False)
    """Features of this example, read from the file only when they are accessed."""
    tags: str = ""
    """Special tokens that precede the source, see `SplitFiles.tags`."""
    languages: tuple[str, str] = ("", "")
    """Languages of source and target, for imported multilingual models; see `SplitFiles.src_lang`."""

    @property
    def features(self) -> Rows | None:
        """Features `(R,F)`, read from the file at each access; None without features."""
        return None if self.rows is None else self.rows[0]


_COLUMN_DEFAULTS: Mapping[str, Any] = {"src": "", "tags": "", "languages": ("", "")}
"""Default values, other than None, of `Example` fields for columns that a block lacks."""


@dataclass
class Block:
    """Consecutive examples of one split, as read from its files, and the faults found in them.

    An example has two texts, one text or none. A single text is stored in `src` even if its column is `tgt`; if there
    is no text, `src` contains empty strings. `text_columns` contains the actual names of the columns.
    """

    split: str
    src_file: str
    tgt_file: str
    """Equal to `src_file` for JSONL and stories; "" if there are no targets."""
    first: int
    """Line number of the first pair in its file, counted from 1; always 1 for stories."""
    src: list[str]
    tgt: list[str] | None
    position: int | list[int] = 0
    """Index of the file in the split; for stories, the index of each story's folder."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Other columns: "labels", "features", "alignment", "src_words" and "tgt_words"; for JSONL, also "record", which
    contains the lines themselves. A column is shorter than `src` if its file has fewer lines."""
    text_columns: tuple[str, ...] = TEXT_COLUMNS
    """Names of the columns stored in `src` and `tgt`."""
    paths: dict[str, str] = field(default_factory=dict)
    """Paths of the files of other columns; empty if all columns are in one file."""
    offset: int = 0
    """Number of pairs in the split before this block."""
    links: list[Links] | None = None
    """Links between words; set only for blocks without faults."""
    tags: Sequence[str] = ()
    """Tags of each file of the split, see `SplitFiles.tags`."""
    languages: Sequence[tuple[str, str]] = ()
    """Languages of each file of the split, see `SplitFiles.src_lang`."""
    faults: list[BlockFaults] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    """Rows that could not be decoded or parsed; they are not examined further."""
    messages: list[tuple[int, str]] = field(default_factory=list)
    """Row and error message for each unreadable line."""
    names: list[str] = field(default_factory=list)
    """File names of stories."""
    bom_lengths: tuple[int, int] = (0, 0)
    """Lengths of the byte-order marks of the source and the target file, in bytes."""

    def __len__(self) -> int:
        return len(self.src)

    @property
    def texts(self) -> dict[str, list[str]]:
        sides = [self.src]
        if self.tgt is not None:
            sides.append(self.tgt)
        return dict(zip(self.text_columns, sides, strict=False))

    def examples(self) -> Iterator[Example]:
        """Yields the rows of the block as examples, in order; features are read only when they are accessed."""
        files = self.files.tolist()
        columns: dict[str, Any] = {
            **self.columns,
            **self.texts,
            "line": self.lines.tolist(),
            "file": files,
        }
        if self.links:
            columns["links"] = self.links
        if self.tags:
            columns["tags"] = [self.tags[file] for file in files]
        if self.languages:
            columns["languages"] = [self.languages[file] for file in files]
        if "features" in self.columns:
            features = self.columns["features"]
            # Slices of length 1, because slicing does not read the file yet.
            columns["rows"] = (features[row : row + 1] for row in range(len(self)))

        values = []
        for example_field in fields(Example):
            default = _COLUMN_DEFAULTS.get(example_field.name)
            values.append(columns.get(example_field.name) or repeat(default))
        return map(Example, *values)

    def hashes(self, forms: TextForms | None = None) -> PairHashes:
        """Returns hashes that are equal for equal examples.

        A label counts as a target. Examples with features are never equal.

        Args:
            forms: functions by column that convert texts to the form in which they are compared. Default:
                `comparable`.
        """
        forms = forms or {}
        texts = {}
        for column, lines in self.texts.items():
            form = forms.get(column, comparable)
            texts[column] = [form(line) for line in lines]
        first_texts = texts[self.text_columns[0]] if texts else self.src
        if "features" in self.columns:
            unique_names = [f"{self.split} {line}" for line in self.lines.tolist()]
            return PairHashes.from_texts(unique_names, first_texts)
        if self.tgt is not None:
            return PairHashes.from_texts(first_texts, texts[self.text_columns[1]])
        labels = self.columns.get("labels")
        if labels is not None and len(labels) < len(self):
            missing = len(self) - len(labels)
            labels = [*labels, *([""] * missing)]
        return PairHashes.from_texts(first_texts, labels)

    def slice(self, start: int, end: int) -> "Block":
        """Returns the pairs in rows `start` to `end - 1`."""
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
        """Line numbers `(n,)`, counted from 1 through all files of the split."""
        return np.arange(self.offset + 1, self.offset + 1 + len(self))

    @property
    def files(self) -> NDArray[np.int64]:
        """Index of each pair's file in the split, `(n,)`."""
        return np.broadcast_to(np.array(self.position, dtype=np.int64), len(self))

    def empty_targets(self) -> Mask:
        """Returns which pairs have an empty target, `(n,)`; all False without targets."""
        if self.tgt is None:
            return np.zeros(len(self), dtype=bool)
        return _blank(self.tgt)

    def empty(self) -> Mask:
        """Returns which examples have an empty text, `(n,)`; all False without texts."""
        empty_targets = self.empty_targets()
        if not self.texts:
            return empty_targets
        return _blank(self.src) | empty_targets

    def add(
        self,
        kind: FaultKind,
        rows: Sequence[int] | RowIndices,
        locate: Callable[[int], FaultLocation] | None = None,
    ) -> None:
        """Records a fault in some of the pairs.

        Args:
            kind: kind of fault.
            rows: rows of the faulty pairs; unreadable rows are ignored.
            locate: returns the location of the fault in a row. Default: the method `pair`.
        """
        faulty = np.asarray(rows, dtype=np.int64)
        if self.unreadable:
            faulty = faulty[~np.isin(faulty, list(self.unreadable))]
        if len(faulty):
            self.faults.append(BlockFaults(kind, faulty, locate or self.pair))

    def pair(self, row: int) -> FaultLocation:
        """Returns the location of a pair, with excerpts from both sides."""
        text = excerpt(self.src[row], width=PAIR_WIDTH)
        if self.tgt is not None:
            text += f" ||| {excerpt(self.tgt[row], width=PAIR_WIDTH)}"
        return FaultLocation(self._file("src", row), self.line(row), text=text)

    def side(self, side: str, row: int, start: int = 0) -> FaultLocation:
        """Returns the location of the character at index `start` of one side of a pair, "src" or "tgt"."""
        if side == "src":
            text = self.src[row]
            bom_length = self.bom_lengths[0]
        else:
            text = (self.tgt or [])[row]
            bom_length = self.bom_lengths[1]
        line = self.line(row)
        byte = None
        # In JSON, the byte position is unknown, because it depends on how characters are escaped.
        if self.src_file != self.tgt_file:
            byte = len(text[:start].encode("utf-8", "surrogatepass")) + 1
            if line == 1:
                byte += bom_length
        return FaultLocation(self._file(side, row), line, byte=byte, text=excerpt(text, start))

    def place(self, column: str, row: int) -> str:
        """Returns the file and line number of a pair in one of the other columns, for messages."""
        file = self.paths.get(column, self._file("src", row))
        return f"{file}, line {self.line(row)}"

    def line(self, row: int) -> int:
        """Returns a pair's line number in its file, counted from 1."""
        if self.names:
            return 1  # each story is a separate file
        return self.first + row

    def _file(self, side: str, row: int) -> str:
        if self.names:
            return self.names[row]
        return self.src_file if side == "src" else self.tgt_file

    def note_bad_bytes(self, file: TextFile, rows: list[int], lines: list[str]) -> None:
        """Adds faults and error messages for lines that are not valid in their file's encoding."""

        def locate(row: int) -> FaultLocation:
            line = self.line(row)
            if file.encoding:
                text = lines[row].replace(BAD_CHARACTER, "\ufffd")
                return FaultLocation(file.path, line, text=excerpt(text, text.index("\ufffd")))
            byte = self._bad_byte(file, row, lines[row])
            text = bad_byte_excerpt(lines[row], file.guess)
            return FaultLocation(file.path, line, byte=byte, text=text)

        self.add(ENCODING, rows, locate)
        self.add_message(file, rows, lines)

    def add_message(self, file: TextFile, rows: list[int], lines: list[str]) -> None:
        """Adds error messages, but no faults, for lines that are not valid in their file's encoding."""
        for row in rows:
            message = bad_byte_message(
                file.path,
                line_number=self.line(row),
                byte=self._bad_byte(file, row, lines[row]),
                encoding=file.encoding,
                guess=file.guess,
            )
            self.messages.append((row, message))

    def _bad_byte(self, file: TextFile, row: int, line: str) -> int:
        """Returns the position of the first undecodable byte in a line of a file, counted from 1."""
        byte = first_bad_byte(line) + 1
        if self.line(row) == 1:
            byte += file.bom_length
        return byte

    def add_unusable(self, kind: FaultKind, messages: Mapping[int, str]) -> None:
        """Marks the rows in `messages` as unreadable, and adds their fault and error messages."""

        def locate(row: int) -> FaultLocation:
            location = self.pair(row)
            prefix = f"{location.file}, line {location.line}: "
            return replace(location, text=messages[row].removeprefix(prefix))

        self.add(kind, sorted(messages), locate)  # must come first: `add` ignores unreadable rows
        self.messages += messages.items()
        self.unreadable.update(messages)


def _blank(lines: Sequence[str]) -> Mask:
    return np.fromiter((not line.strip() for line in lines), dtype=bool, count=len(lines))


# --------------------------------------------------------------------------------------------------------------- links


def read_links(block: Block, files: SplitFiles) -> list[Links]:
    """Returns the sure and possible links of each pair; raises a DataError for a malformed or out-of-range link."""
    path = files.alignment[int(block.files[0])]
    # Without files for `src_words` and `tgt_words`, links refer to the words of the text itself.
    sources = block.columns.get("src_words") or repeat("")
    targets = block.columns.get("tgt_words") or repeat("")
    rows = zip(
        block.columns["alignment"], block.src, block.tgt or (), sources, targets, strict=False
    )
    links = []
    for row, (text, src, tgt, src_words, tgt_words) in enumerate(rows):
        place = f"{path}, line {block.line(row)}"
        pair_links = _parse_links(
            text, src=src_words or src, tgt=tgt_words or tgt, place=place, base=files.alignment_base
        )
        links.append(pair_links)
    return links


def _parse_links(text: str, src: str, tgt: str, place: str, base: Literal[0, 1] | None) -> Links:
    first = base or 0
    links = parse_pharaoh_line(text, place, first).possible
    for side, (name, sentence) in enumerate((("source", src), ("target", tgt))):
        largest = max((link[side] for link in links), default=-1)
        words = len(sentence.split())
        if largest >= words:
            raise DataError(
                f"{place}: a link refers to {name} word {largest + first} (counted from {first}), but the "
                f"number of {name} words is {words}; check that the alignment belongs to these files and that its "
                "direction is source-target. If the links refer to words that are not separated by white space in the "
                "text, set src_words and tgt_words to files with these words; if words are counted from 1, set "
                "alignment_base: 1"
            )
    return links
