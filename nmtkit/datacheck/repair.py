"""Writes cleaned copies of a corpus: drops or repairs faulty pairs and logs each of them.

Nothing is guessed: a split with a fault that requires a human decision, such as different line
counts, is not written. Text is repaired before it is examined, because a repair may turn a pair
into a duplicate.
"""

import gzip
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import new_folder, write_errors
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import FILE_KINDS, LINE_ALIGNED_COLUMNS, SplitFiles
from nmtkit.data.text.faults import LINE_ENDS
from nmtkit.data.text.files.encodings import EncodingGuess
from nmtkit.data.text.files.json_records import set_field
from nmtkit.data.text.files.names import (
    is_tmx,
    option_encoding,
    split_reference,
    text_path,
    without_compression_end,
)
from nmtkit.data.text.files.text_file import encoding_evidence
from nmtkit.data.text.reading import SplitReader
from nmtkit.datacheck.characters import repair_line
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.findings import SplitDiagnosis
from nmtkit.datacheck.report import drops_pairs, short_names, storable

LOG_NAME = "dropped.jsonl"
"""Name of the log file, which contains one JSON object per dropped or repaired pair."""
STORY_FIELDS = {"src_field": "article", "tgt_field": "summary"}
"""Keys in the JSON lines that stories are converted to."""
_HIDDEN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


@dataclass
class RepairedSplit:
    """The result for one split."""

    files: SplitFiles
    """The new files, with paths relative to the new folder; the old files if the split was rejected."""
    kept: int = 0
    """Number of written pairs."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped pairs by their first fault."""
    mended: Counter[str] = field(default_factory=Counter)
    """Number of pairs that were repaired and kept, by kind of fault."""
    converted: dict[str, EncodingGuess] = field(default_factory=dict)
    """Original files that were converted to UTF-8, with their encodings."""
    refused: str = ""
    """The reason why the split was not written; empty if it was."""


def require_new(out: Path) -> None:
    """Rejects a path that exists, unless it is an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NmtkitError(f"{out}: already exists and will not be overwritten; use another folder")


def recognize_encodings(splits: Mapping[str, SplitFiles]) -> dict[str, EncodingGuess]:
    """Detects the encodings, by path, of files that are not UTF-8 and have no declared encoding."""
    guesses: dict[str, EncodingGuess] = {}
    for files in splits.values():
        for kind in ("jsonl", *LINE_ALIGNED_COLUMNS):
            for path in map(text_path, getattr(files, kind)):
                is_named = bool(files.encoding_of(path) or option_encoding(path))
                if kind == "features" or path in guesses or is_named or is_tmx(path):
                    continue
                guess = encoding_evidence(path).guess()
                if guess is not None:
                    guesses[path] = guess
    return guesses


def repair(
    splits: Mapping[str, SplitFiles],
    out: Path,
    monolingual: bool = False,
    progress: Callable[[int], object] = lambda count: None,
    encodings: Mapping[str, EncodingGuess] | None = None,
) -> dict[str, RepairedSplit]:
    """Writes cleaned copies of all files to a new folder, atomically.

    The folder is kept unless every split is rejected. Files with an entry in `encodings` are read
    in that encoding; all output is UTF-8. The other arguments are as in `examine`.
    """
    recognized = {path: guess for path, guess in (encodings or {}).items() if guess.certain}
    splits = {name: _with_encodings(files, recognized) for name, files in splits.items()}
    names = _new_names(
        path for files in splits.values() for kind in FILE_KINDS for path in getattr(files, kind)
    )
    with write_errors(out), new_folder(out, "use another folder") as folder, ExitStack() as stack:
        writers = {
            name: SplitWriter(name, files, folder, names, stack) for name, files in splits.items()
        }
        diagnosis = examine(
            splits,
            monolingual,
            progress=progress,
            see=lambda block: writers[block.split].prepare(block),
            take=lambda block: writers[block.split].take(block),
        )
        with open(folder / LOG_NAME, "w", encoding="utf-8", newline="\n") as log:
            for name, writer in writers.items():
                writer.note_conversions(recognized)
                writer.finish(diagnosis.splits[name], log)
    if all(writer.done.refused for writer in writers.values()):
        shutil.rmtree(out)
    return {name: writer.done for name, writer in writers.items()}


def _with_encodings(files: SplitFiles, recognized: Mapping[str, EncodingGuess]) -> SplitFiles:
    """Returns the same files with the detected encodings."""
    if not any(path in recognized for path in files.paths()):
        return files
    encodings: dict[str, str] = {}
    for path in files.paths():
        name = recognized[path].names[0] if path in recognized else files.encoding_of(path)
        if name:
            encodings[path] = name
    return files.model_copy(update={"encoding": encodings})


def _new_names(paths: Iterable[str]) -> Callable[[str], str]:
    """Returns a function that gives each file a unique new name without common parent folders."""
    short, taken = short_names(paths), {LOG_NAME}

    def new(path: str) -> str:
        name = first = Path(_written_name(short.get(path, path)))
        numbers = count(2)
        while str(name) in taken:  # the same file in two splits
            name = first.with_name(f"{next(numbers)}-{first.name}")
        taken.add(str(name))
        return str(name)

    return new


def _written_name(path: str) -> str:
    """Returns the name of a file's cleaned copy; only gzip files are compressed again.

    A column of pairs.csv or a language of pairs.tmx becomes a text file: pairs.csv#en becomes
    pairs.en.
    """
    file, column = split_reference(path)
    if column:
        stem = Path(without_compression_end(file)).with_suffix("")
        end = re.sub(r"[^\w-]+", "-", column)
        return f"{stem}.{end}"
    plain = without_compression_end(path)
    return path if path in (plain, f"{plain}.gz") else plain


class SplitWriter:
    """Writes the blocks of a split in order; call `prepare` before a block is examined and `take` afterwards.

    `names` maps every file to its new name in `folder`; `stack` closes all files.
    """

    def __init__(
        self,
        split: str,
        files: SplitFiles,
        folder: Path,
        names: Callable[[str], str],
        stack: ExitStack,
    ) -> None:
        self._split = split
        self._old = files
        self._folder = folder
        self._opened = stack.enter_context(ExitStack())
        log = TemporaryFile("w+", dir=folder, encoding="utf-8", newline="\n")  # noqa: SIM115  # closed by the stack
        self._log = stack.enter_context(log)
        self._outputs: dict[str, IO[str]] = {}  # by kind: src, tgt, jsonl, alignment, ...
        # faults and original text of repaired pairs
        self._before: dict[int, tuple[list[str], Sequence[str]]] = {}
        self._lost: dict[
            int, str
        ] = {}  # pairs whose alignment links would no longer fit after a repair
        new: dict[str, object] = {"encoding": ""}
        if files.stories:
            new |= {
                "stories": [],
                "story_lists": [],
                "weights": [],
                "jsonl": [names(f"{split}.jsonl")],
                **STORY_FIELDS,
            }
        else:
            for kind in ("jsonl", *LINE_ALIGNED_COLUMNS):
                new[kind] = [names(path) for path in getattr(files, kind)]
        self.done = RepairedSplit(files.model_copy(update=new))
        if files.features:
            self.done.refused = (
                "this split has features, which cannot be cleaned line by line; clean the text "
                "separately"
            )
        if files.stories and files.weights:
            self.done.refused = (
                "the story folders have weights, but would be merged into one file; clean each "
                "folder separately"
            )
        # a file without lines has no block that would open its copy
        for position in range(SplitReader(split, files).parts):
            self._open_outputs(position)

    def prepare(self, block: Block) -> None:
        """Repairs the lines of a block and keeps the originals."""
        self._before, self._lost = {}, {}
        sides = block.texts.values()
        for row, old in enumerate(zip(*sides, strict=True)):
            new = [repair_line(text) for text in old]
            kinds = list(dict.fromkeys(kind for _, faults in new for kind in faults))
            if kinds and row not in block.unreadable:
                same = (
                    len(text.split()) == len(mended.split())
                    for text, (mended, _) in zip(old, new, strict=True)
                )
                if self._old.has_links and not all(same):
                    self._lost[row] = kinds[0]
                self._before[row] = kinds, old
                for side, (mended, _) in zip(sides, new, strict=True):
                    side[row] = mended

    def take(self, block: Block) -> None:
        """Writes the pairs of a block that are not dropped."""
        refusals = [message for row, message in block.messages if row not in block.unreadable]
        if any(
            len(block.columns.get(kind, block.src)) < len(block) for kind in LINE_ALIGNED_COLUMNS
        ):
            refusals.append("files differ in their number of lines")  # `finish` reports the place
        if refusals and not self.done.refused:
            self.done.refused = refusals[0]
        if self.done.refused:
            return
        if isinstance(block.position, int) and block.position != self._position:
            self._open_outputs(block.position)
        self._write(block)

    def note_conversions(self, recognized: Mapping[str, EncodingGuess]) -> None:
        """Adds converted files to the result and the log."""
        for path in self._old.paths():
            if path in recognized:
                guess = recognized[path]
                self.done.converted[path] = guess
                entry = {
                    "split": self._split,
                    "file": path,
                    "kinds": ["encoding"],
                    "done": "converted",
                }
                entry |= {"encoding": guess.names[0], "evidence": guess.evidence}
                self._log.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def finish(self, diagnosis: SplitDiagnosis, log: IO[str]) -> None:
        """Closes the new files and writes the log, or removes the files if a fault requires a human decision."""
        self._opened.close()
        for finding in diagnosis.findings.values():
            kind = finding.kind
            if kind.severity == "error" and not (
                drops_pairs(kind, self._split) or kind.fix_repairs
            ):
                first = finding.places[0]
                self.done.refused = f"{first.file}, line {first.line}: {kind.title}. {kind.remedy}"
        if self.done.refused:
            new = self.done.files
            for path in new.paths():
                (self._folder / path).unlink(missing_ok=True)
            self.done = RepairedSplit(self._old, refused=self.done.refused)
            return
        self._log.seek(0)
        shutil.copyfileobj(self._log, log)
        if LINE_ENDS.name in diagnosis.findings:
            self.done.mended[LINE_ENDS.name] += diagnosis.findings[LINE_ENDS.name].count

    def _open_outputs(self, position: int) -> None:
        """Opens the new files for an old file or pair of files."""
        self._opened.close()  # also closes the underlying file, which a gzip file leaves open
        self._outputs, self._position = {}, position
        for kind in ("jsonl", *LINE_ALIGNED_COLUMNS):
            if new := getattr(self.done.files, kind):
                self._outputs[kind] = self._open(self._folder / new[position])

    def _open(self, path: Path) -> IO[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = self._opened.enter_context(open(path, "wb"))  # noqa: SIM115  # closed by the stack
        # The header has no name or time, so that equal texts produce equal files.
        file = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else raw
        return self._opened.enter_context(io.TextIOWrapper(file, encoding="utf-8", newline="\n"))

    def _write(self, block: Block) -> None:
        out = dict(self._lost)
        for fault in block.faults:
            if drops_pairs(fault.kind, self._split):
                for row in fault.rows.tolist():
                    out.setdefault(row, fault.kind.name)
        columns = self._columns(block)
        for row in range(len(block)):
            if row in out:
                self.done.dropped[out[row]] += 1
                self._note(block, row, [out[row]], "dropped")
                continue
            self.done.kept += 1
            if row in self._before:
                kinds = self._before[row][0]
                self.done.mended.update(kinds)
                self._note(block, row, kinds, "mended")
            for output, column in zip(self._outputs.values(), columns, strict=True):
                output.write(f"{column[row]}\n")

    def _note(self, block: Block, row: int, kinds: list[str], action: str) -> None:
        """Logs the original pair, and the new one if it was repaired."""
        now = [side[row] for side in block.texts.values()]
        before = self._before[row][1] if row in self._before else now
        place = block.pair(row)
        entry: dict[str, object] = {"split": self._split, "file": place.file, "line": place.line}
        entry |= {"kinds": kinds, "done": action}
        entry |= zip(block.text_columns, map(storable, before), strict=False)
        if action == "mended":
            entry |= zip((f"new_{column}" for column in block.text_columns), now, strict=False)
        # json escapes only some of the characters that are faults in text.
        line = _HIDDEN.sub(
            lambda match: f"\\u{ord(match[0]):04x}", json.dumps(entry, ensure_ascii=False)
        )
        self._log.write(line + "\n")

    def _columns(self, block: Block) -> list[list[str]]:
        """Returns the new lines, file by file."""
        sides = block.texts.values()
        if self._old.jsonl:
            lines = list(block.columns["record"])
            for row in self._before:  # the other lines stay as they were written
                record = json.loads(lines[row])
                for column, side in block.texts.items():
                    set_field(record, getattr(self._old, f"{column}_field"), side[row])
                lines[row] = json.dumps(record, ensure_ascii=False)
            return [lines]
        if self._old.stories:
            pairs = (
                dict(zip(STORY_FIELDS.values(), pair, strict=True))
                for pair in zip(*sides, strict=True)
            )
            return [[json.dumps(pair, ensure_ascii=False) for pair in pairs]]
        return [
            *sides,
            *(block.columns[kind] for kind in LINE_ALIGNED_COLUMNS if kind in block.columns),
        ]
