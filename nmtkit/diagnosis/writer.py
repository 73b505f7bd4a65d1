"""Writes the cleaned copy of one split, and the log of what was left out or mended."""

import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_lines
from nmtkit.diagnosis.blocks import Block
from nmtkit.diagnosis.findings import SplitDiagnosis
from nmtkit.diagnosis.kinds import LINE_ENDS
from nmtkit.diagnosis.lines import TextFile
from nmtkit.diagnosis.report import leaves_out, storable
from nmtkit.errors import DataError

COMPANIONS = ("alignment", "src_words", "tgt_words")
"""Files that are line-aligned with the text: a pair that is left out is left out of them as well."""
STORY_FIELDS = {"src_field": "article", "tgt_field": "summary"}
"""Stories are written as JSON lines with these keys."""
_HIDDEN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")

PutRight = Callable[[str], tuple[str, list[str]]]
"""Gives a line put right, and by name the kinds of faults that it had; none if it stays as it is."""


@dataclass
class MendedSplit:
    """What became of one split."""

    files: Files
    """Its new files, their paths relative to the new folder; the old ones if it was refused."""
    kept: int = 0
    """Pairs that were written."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Pairs that were left out, by kind of fault; each under one kind, the first that was found."""
    mended: Counter[str] = field(default_factory=Counter)
    """Pairs that were mended and written, by kind of fault."""
    refused: str = ""
    """Why nothing of it was written; empty if it was."""


@dataclass
class _Set:
    """The new files of the pairs that come from one file, or from one pair of files."""

    outputs: dict[str, IO[str]] = field(default_factory=dict)
    """By kind: src, tgt, jsonl, alignment, ..."""
    companions: dict[str, Iterator[str]] = field(default_factory=dict)
    """Lines of the old alignments and their words."""
    raw: TextFile | None = None
    """The old JSON lines, from which what is not mended is copied as it is."""


class SplitWriter:
    """Takes the blocks of one split in their order: `prepare` before they are examined, then `take`.

    Args:
        split: its name.
        files: its files.
        folder: where to.
        names: gives every file its new name; asked once for each.
        put_right: mends a line.
    """

    def __init__(
        self, split: str, files: Files, folder: Path, names: Callable[[str], str], put_right: PutRight
    ) -> None:
        self.log = folder / f"{split}.log"
        self._split = split
        self._old = files
        self._folder = folder
        self._put_right = put_right
        self._stack = ExitStack()
        self._log = self._open(self.log, packed=False)
        self._position = -1
        self._set = _Set()
        self._before: dict[int, tuple[list[str], str, str | None]] = {}
        self._lost: dict[int, str] = {}  # pairs whose links would no longer fit if they were mended
        if files.stories:
            new: dict[str, object] = {"stories": [], "story_lists": [], "weights": [], **STORY_FIELDS}
            new["jsonl"] = [names(f"{split}.jsonl")]
        else:
            new = {
                kind: [names(path) for path in getattr(files, kind)] for kind in ("src", "tgt", "jsonl", *COMPANIONS)
            }
        self.done = MendedSplit(files.model_copy(update=new))
        if files.stories and files.weights:
            self.done.refused = "its stories have weights, and all would become one file; clean each folder by itself"

    def prepare(self, block: Block) -> None:
        """Puts the lines of a block right; keeps what they were."""
        self._before, self._lost = {}, {}
        for row, text in enumerate(block.src):
            src, kinds = self._put_right(text)
            tgt = None
            if block.tgt is not None:
                tgt, more = self._put_right(block.tgt[row])
                kinds = list(dict.fromkeys([*kinds, *more]))
            if kinds and row not in block.unread:
                if self._old.has_links and not _same_words([(text, src), (block.tgt[row], tgt)] if block.tgt else []):
                    self._lost[row] = kinds[0]
                self._before[row] = kinds, text, None if block.tgt is None else block.tgt[row]
                block.src[row] = src
                if block.tgt is not None and tgt is not None:
                    block.tgt[row] = tgt

    def take(self, block: Block) -> None:
        """Writes the pairs of a block that are to be kept."""
        if self.done.refused:
            return
        try:
            if self._begins(block):
                self._next_set()
                while self._given()[self._position] != block.src_file:  # a file without lines has no block
                    self._next_set()
            self._write(block)
        except DataError as fault:
            self.done.refused = str(fault)

    def finish(self, found: SplitDiagnosis) -> None:
        """Closes the files; takes them back if the split was found to have a fault that a human must decide about."""
        try:
            while not self.done.refused and self._position + 1 < len(self._given()):
                self._next_set()
            self._end_set()
        except DataError as fault:
            self.done.refused = str(fault)
        self.close()
        for finding in found.findings.values():
            kind = finding.kind
            if kind.severity == "error" and not (leaves_out(kind, self._split) or kind.mends):
                first = finding.places[0]
                self.done.refused = f"{first.file}, line {first.line}: {kind.title}. {kind.remedy}"
        if self.done.refused:
            new = self.done.files
            for path in new.texts() + [path for kind in COMPANIONS for path in getattr(new, kind)]:
                (self._folder / path).unlink(missing_ok=True)
            self.log.unlink()
            self.done = MendedSplit(self._old, refused=self.done.refused)
        elif LINE_ENDS.name in found.findings:
            self.done.mended[LINE_ENDS.name] += found.findings[LINE_ENDS.name].count

    def close(self) -> None:
        """Closes all files."""
        self._stack.close()

    def _given(self) -> list[str]:
        """What sets of files are made of, one each; all stories together make one."""
        return self._old.src or self._old.jsonl or self._old.stories[:1]

    def _begins(self, block: Block) -> bool:
        return self._position < 0 if self._old.stories else block.first == 1

    def _next_set(self) -> None:
        """Opens the new files that come next."""
        self._end_set()
        self._position += 1
        self._set = _Set()
        new = self.done.files
        for kind in ("src", "tgt", "jsonl", *COMPANIONS):
            if getattr(new, kind):
                old = getattr(self._old, kind)
                packed = bool(old) and _is_packed(old[self._position])
                self._set.outputs[kind] = self._open(self._folder / getattr(new, kind)[self._position], packed)
        for kind in COMPANIONS:
            if getattr(self._old, kind):
                self._set.companions[kind] = read_lines(getattr(self._old, kind)[self._position])
        if self._old.jsonl:
            self._set.raw = TextFile(self._old.jsonl[self._position], None, None)

    def _open(self, path: Path, packed: bool) -> IO[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        if packed:  # without a name and a time in its head, so that equal text makes equal files
            raw = self._stack.enter_context(open(path, "wb"))  # noqa: SIM115  # closed by the stack
            packer = self._stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
            return self._stack.enter_context(io.TextIOWrapper(packer, encoding="utf-8", newline="\n"))
        file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115  # closed by the stack
        return self._stack.enter_context(file)

    def _end_set(self) -> None:
        """Makes sure that the companions do not go on where the text has ended."""
        for kind, lines in self._set.companions.items():
            if next(lines, None) is not None:
                path = getattr(self._old, kind)[self._position]
                raise DataError(f"{path}: it has more lines than the text that it belongs to")
        for output in self._set.outputs.values():
            output.close()

    def _write(self, block: Block) -> None:
        out = dict(self._lost)
        for fault in block.faults:
            if leaves_out(fault.kind, self._split):
                for row in fault.rows.tolist():
                    out.setdefault(row, fault.kind.name)
        lines = self._lines_of(block)
        for row in range(len(block)):
            beside = [next(lines, None) for lines in self._set.companions.values()]
            if None in beside:
                path = getattr(self._old, list(self._set.companions)[beside.index(None)])[self._position]
                raise DataError(f"{path}: it has fewer lines than the text that it belongs to")
            if row in out:
                self.done.dropped[out[row]] += 1
                self._note(block, row, [out[row]], "dropped")
                continue
            self.done.kept += 1
            if row in self._before:
                kinds = self._before[row][0]
                self.done.mended.update(kinds)
                self._note(block, row, kinds, "mended")
            for output, line in zip(self._set.outputs.values(), [*lines[row], *beside], strict=True):
                output.write(f"{line}\n")

    def _note(self, block: Block, row: int, kinds: list[str], what: str) -> None:
        """Writes a line of the log: what the pair was like, and, where it was mended, what it is like now."""
        _, src, tgt = self._before.get(row, ([], block.src[row], block.tgt[row] if block.tgt is not None else None))
        place = block.pair(row)
        entry: dict[str, object] = {"split": self._split, "file": place.file, "line": place.line}
        entry |= {"kinds": kinds, "done": what, "src": storable(src)}
        entry |= {} if tgt is None else {"tgt": storable(tgt)}
        if what == "mended":
            entry |= {"new_src": block.src[row]} | ({} if block.tgt is None else {"new_tgt": block.tgt[row]})
        # The log itself shall have none of the characters that it tells of: json escapes only a part of them.
        line = _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(entry, ensure_ascii=False))
        self._log.write(line + "\n")

    def _lines_of(self, block: Block) -> list[list[str]]:
        """What is to be written of every pair: a line for each side, or one line of JSON."""
        if self._set.raw is not None:
            self._set.raw.fill()
            lines, _ = self._set.raw.take(len(block))
            return [[self._record(block, row, line)] for row, line in enumerate(lines)]
        if block.tgt is None:
            return [[line] for line in block.src]
        if self._old.stories:
            keys = list(STORY_FIELDS.values())
            pairs = zip(block.src, block.tgt, strict=True)
            return [[json.dumps(dict(zip(keys, pair, strict=True)), ensure_ascii=False)] for pair in pairs]
        return [[src, tgt] for src, tgt in zip(block.src, block.tgt, strict=True)]

    def _record(self, block: Block, row: int, line: str) -> str:
        """A line of JSON as it was, or with the mended text in it."""
        if row not in self._before:
            return line
        assert block.tgt is not None
        record = json.loads(line)
        record |= {self._old.src_field: block.src[row], self._old.tgt_field: block.tgt[row]}
        return json.dumps(record, ensure_ascii=False)


def _is_packed(path: str) -> bool:
    """Whether a file is gzip-compressed; one that cannot be read is refused elsewhere."""
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False


def _same_words(sides: list[tuple[str, str | None]]) -> bool:
    """Whether each side has as many words as before, so that links between words still fit."""
    return all(new is not None and len(old.split()) == len(new.split()) for old, new in sides)
