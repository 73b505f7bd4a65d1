"""From files to examples: reading, checking, and the report of what was found."""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nmtkit.alignment import Links, parse_pharaoh_line
from nmtkit.data.vocabulary import UNK
from nmtkit.errors import DataError
from nmtkit.settings import Field, Settings, field_validator, model_validator

Mask: TypeAlias = npt.NDArray[np.bool_]
Lengths: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]


FILE_KINDS = ("src", "tgt", "jsonl", "alignment", "src_words", "tgt_words", "stories", "story_lists")
"""The settings of `Files` that name files or folders."""


class Files(Settings):
    """Where the pairs of one split are: two line-aligned text files, one JSONL file (plain or .gz), or story folders.

    Several files of a kind are read one after the other.
    """

    src: list[str] = Field(default_factory=list)
    """Source text, one sentence a line."""
    tgt: list[str] = Field(default_factory=list)
    """Target text; line n belongs to line n of the source. May be left out of a test set."""
    jsonl: list[str] = Field(default_factory=list)
    """Instead of src and tgt: one JSON object a line."""
    src_field: str = "src"
    """jsonl: the key of the source; its value is a string, or a list of strings to be joined by spaces."""
    tgt_field: str = "tgt"
    """jsonl: the key of the target."""
    alignment: list[str] = Field(default_factory=list)
    """Pharaoh files, one for each of src: in train for guided training, in test to measure the model's alignments. Line
    n holds the links of pair n as i-j, source word i and target word j, counted from 0; it is empty where there are
    none. Words are what white space separates."""
    src_words: list[str] = Field(default_factory=list)
    """Where the alignment counts words otherwise: the lines of src with further white space between words."""
    tgt_words: list[str] = Field(default_factory=list)
    """The same for tgt."""
    alignment_field: str = ""
    """jsonl: the key of the links, a string like a line of `alignment`; if not given there are none."""
    stories: list[str] = Field(default_factory=list)
    """Instead of src and tgt: folders of .story files as CNN/DailyMail is distributed: an article, then the sentences
    of its summary, each below a line `@highlight`."""
    story_lists: list[str] = Field(default_factory=list)
    """stories: files that select the split, one story a line: the name of its file, or the address of its web page, of
    which the name is the SHA-1 sum. Without them all files of the folders are taken, by name."""

    @field_validator(*FILE_KINDS, mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_form(self) -> "Files":
        if sum(map(bool, (self.src, self.jsonl, self.stories))) != 1:
            raise ValueError(
                "give either src (and tgt), or jsonl, or stories; one that the extended recipe gives is taken back by "
                "an empty list, e.g. `jsonl: []`"
            )
        if self.jsonl and self.tgt:
            raise ValueError(
                "tgt is for text files; a jsonl file holds both sides: name the keys with src_field, tgt_field"
            )
        if self.stories and (self.tgt or self.alignment or self.src_words or self.tgt_words):
            raise ValueError("tgt, alignment, src_words and tgt_words are for text files; a story holds both sides")
        if self.story_lists and not self.stories:
            raise ValueError("story_lists select from folders of stories: name them with `stories`")
        if self.tgt and len(self.src) != len(self.tgt):
            raise ValueError(f"src names {len(self.src)} files and tgt {len(self.tgt)}: they must be paired")
        if self.jsonl and (self.alignment or self.src_words or self.tgt_words):
            raise ValueError("alignment, src_words and tgt_words are for text files; a jsonl file has alignment_field")
        if self.alignment_field and not self.jsonl:
            raise ValueError("alignment_field is the key of a jsonl file; of text files the links are in `alignment`")
        for name in ("alignment", "src_words", "tgt_words"):
            count = len(getattr(self, name))
            if count not in (0, len(self.src)):
                raise ValueError(f"src names {len(self.src)} files and {name} {count}: they must be paired")
        if (self.src_words or self.tgt_words) and not self.alignment:
            raise ValueError("src_words and tgt_words say which words an alignment counts: name the alignment as well")
        return self

    @property
    def has_links(self) -> bool:
        """Whether every pair comes with word alignments."""
        return bool(self.alignment or self.alignment_field)

    def texts(self) -> list[str]:
        """The files of the text itself, or their folders."""
        return [*self.src, *self.tgt, *self.jsonl, *self.stories]

    def paths(self) -> list[str]:
        """All files and folders."""
        return [path for kind in FILE_KINDS for path in getattr(self, kind)]

    def within(self, folder: str) -> "Files":
        """The same with every relative path begun at `folder`, where there is such a file; the others stay."""

        def settle(paths: list[str]) -> list[str]:
            return [str(Path(folder, path)) if Path(folder, path).exists() else path for path in paths]

        return self.model_copy(update={kind: settle(getattr(self, kind)) for kind in FILE_KINDS})


class DataConfig(Settings):
    """The corpora, and which training pairs are left out. Valid and test pairs are never left out."""

    folder: str = ""
    """Where relative paths begin; a file that is not there is looked for from the current folder."""
    train: Files
    """Pairs to learn from."""
    valid: Files | None = None
    """Pairs to watch the training by."""
    test: Files | None = None
    """Pairs to be translated and scored at the end."""
    max_length: int = Field(default=256, ge=1)
    """The most tokens of a side of a training pair; a longer one is handled as `over_long` says."""
    max_tgt_length: int | None = Field(default=None, ge=1)
    """Another limit for targets; default: the same."""
    over_long: Literal["drop", "truncate"] = "drop"
    """drop: leave such pairs out of training. truncate: cut them to max_length, in all splits. A cut target
    ends there like any other: its last token is followed by EOS."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """Leave out pairs of which one side has more than so many times the tokens of the other; default: no limit."""
    drop_duplicates: bool = False
    """Keep only the first of equal pairs."""

    @model_validator(mode="after")
    def _has_targets(self) -> "DataConfig":
        for name, files in (("train", self.train), ("valid", self.valid)):
            if files is not None and files.src and not files.tgt:
                raise ValueError(f"{name}: tgt is missing; only a test set may go without targets")
        if self.valid is not None and self.valid.has_links:
            raise ValueError("valid: alignments guide the training or measure the test; only train and test name them")
        return self

    @property
    def limits(self) -> tuple[int, int]:
        """The most tokens of a source and of a target."""
        return self.max_length, self.max_tgt_length or self.max_length

    @property
    def cuts(self) -> tuple[int, int] | None:
        """Where sources and targets are cut, in tokens; None where nothing is."""
        return self.limits if self.over_long == "truncate" else None

    def splits(self) -> dict[str, Files]:
        """The splits that were given, by name: train, then valid, then test; their paths begin at `folder`."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: files.within(self.folder) for name, files in given.items() if files is not None}

    def paths(self) -> list[str]:
        """All files of all splits; they begin at `folder`."""
        return [path for files in self.splits().values() for path in files.paths()]


@dataclass(frozen=True)
class Example:
    """One sentence or document to translate, with its translation where there is one."""

    src: str
    """Source text."""
    tgt: str | None
    """Target text."""
    line: int
    """The line it came from, counted from 1; over all files of the split where there are several; a story is one."""
    links: Links | None = None
    """Which source word belongs to which target word, as the files say; None where no alignment was given."""
    src_words: str | None = None
    """The source with white space between the words that the links count; None where the source's own is meant."""
    tgt_words: str | None = None
    """The same for the target."""


def read_lines(path: str | Path) -> Iterator[str]:
    r"""The lines of a text file, plain or gzip-compressed (told by its first bytes), one at a time, without line ends.

    Only \n and \r\n end a line, so that line numbers agree with every other tool; a byte-order mark at the beginning
    of the file is not part of the text.

    Raises:
        DataError: the file is missing, not UTF-8 (with the line), or a broken gzip file.
    """
    number = 0
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"  # a pipe cannot be wound back
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            for number, line in enumerate(stream, start=1):
                text = line.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
                yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}, line {number}: not UTF-8 (byte {fault.start + 1} of the line); convert it") from fault
    except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise DataError(
            f"{path}: broken gzip file after line {number} ({fault}); fetch or compress it again"
        ) from fault
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault


def read_pairs(files: Files) -> Iterator[Example]:
    """The pairs of one split, one at a time.

    Raises:
        DataError: a file cannot be read, line-aligned files differ in length, a JSONL line lacks a field, a link is
            malformed or names a word that its sentence does not have, or a file is no story.
    """
    line = 0
    for story in _story_files(files):
        line += 1
        article, summary = read_story(story)
        yield Example(article, summary, line)
    for path in files.jsonl:
        for number, text in enumerate(read_lines(path), start=1):
            line += 1
            yield _from_json(text, files, f"{path}, line {number}", line)
    for position, src_path in enumerate(files.src):
        if not files.tgt:
            for src in read_lines(src_path):
                line += 1
                yield Example(src, None, line)
            continue
        given = {kind: getattr(files, kind)[position] for kind in FILE_KINDS if getattr(files, kind)}
        for number, row in enumerate(_aligned(list(given.values())), start=1):
            line += 1
            if len(row) == 2:
                yield Example(row[0], row[1], line)
                continue
            texts = dict(zip(given, row, strict=True))
            src_words, tgt_words = texts.get("src_words"), texts.get("tgt_words")
            counted = (src_words or row[0], tgt_words or row[1])
            links = _links(texts["alignment"], *counted, f"{given['alignment']}, line {number}")
            yield Example(row[0], row[1], line, links, src_words, tgt_words)


def _aligned(paths: list[str]) -> Iterator[list[str]]:
    """Line n of all files, for every n."""
    files = [read_lines(path) for path in paths]
    count = 0
    while True:
        lines = [next(file, None) for file in files]
        whole = [line for line in lines if line is not None]
        if len(whole) < len(lines):
            break
        count += 1
        yield whole
    counts = [count + (line is not None) + sum(1 for _ in file) for line, file in zip(lines, files, strict=True)]
    for path, other in zip(paths, counts, strict=True):
        if other != counts[0]:
            rule = "be the translation of" if path == paths[1] else "belong to"
            raise DataError(
                f"{paths[0]} has {counts[0]} lines, but {path} has {other}: "
                f"line n of one must {rule} line n of the other"
            )


def _links(text: str, src: str, tgt: str, where: str) -> Links:
    """All links of a line, sure and possible ones; none may lie outside of the sentences, words between white space."""
    links = parse_pharaoh_line(text, where).possible
    for number, (side, line) in enumerate((("source", src), ("target", tgt))):
        most, words = max((link[number] for link in links), default=-1), len(line.split())
        if most >= words:
            raise DataError(
                f"{where}: a link names {side} word {most}, but there are {words}, counted from 0; is it the alignment "
                "of these very files, source first? Words are what white space separates; if it counts others, name "
                "files of them with src_words and tgt_words"
            )
    return links


def _from_json(text: str, files: Files, where: str, line: int) -> Example:
    try:
        record = json.loads(text)
    except ValueError as fault:
        raise DataError(f"{where}: not JSON: {fault}") from fault
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found a {type(record).__name__}")
    sides = []
    for name, option in ((files.src_field, "src_field"), (files.tgt_field, "tgt_field")):
        if name not in record:
            raise DataError(f"{where}: no field {name!r}; it has {', '.join(record) or 'none'}: set {option}")
        value = record[name]
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if not isinstance(value, str):
            raise DataError(f"{where}: field {name!r} is neither a string nor a list of strings")
        # One example is one line everywhere else: in references, in hypotheses, on the terminal.
        sides.append(" ".join(value.splitlines()))
    if not files.alignment_field:
        return Example(sides[0], sides[1], line)
    name = files.alignment_field
    given = record.get(name)
    if not isinstance(given, str):
        raise DataError(f"{where}: field {name!r} (alignment_field) is not a string of links such as '0-0 1-2'")
    return Example(sides[0], sides[1], line, _links(given, sides[0], sides[1], f"{where}, field {name!r}"))


_HIGHLIGHT = "@highlight"
_ENDED = re.compile(r"[.!?:;\u2026][\"'\u201d\u2019)\]]*$")


def read_story(path: str | Path) -> tuple[str, str]:
    """The article and the summary of one .story file, each as one line.

    Below every line `@highlight` stands one sentence of the summary, as a rule without its full stop, which is put
    where no other mark ends it: what looks for sentences later must find where they end.

    Raises:
        DataError: the file cannot be read, or has no highlight.
    """
    article: list[str] = []
    highlights: list[list[str]] = []
    for line in read_lines(path):
        text = " ".join(line.split())
        if text == _HIGHLIGHT:
            highlights.append([])
        elif text:
            (highlights[-1] if highlights else article).append(text)
    if not highlights:
        raise DataError(f"{path}: no line {_HIGHLIGHT}, so it is not a story with a summary; leave the file out")
    sentences = [" ".join(lines) for lines in highlights if lines]
    return " ".join(article), " ".join(text if _ENDED.search(text) else f"{text}." for text in sentences)


def _story_files(files: Files) -> Iterator[Path]:
    """The stories of a split, in the order of its lists, or by name where there are none.

    Raises:
        DataError: there are none, or a list names one that is not there.
    """
    if not files.story_lists:
        for folder in files.stories:
            found = sorted(Path(folder).glob("*.story"))
            if not Path(folder).is_dir():
                raise DataError(f"{folder}: there is no such folder of .story files")
            if not found:
                raise DataError(f"{folder}: there are no .story files in this folder; name the one that has them")
            yield from found
    for name in files.story_lists:
        for number, line in enumerate(read_lines(name), start=1):
            given = line.strip()
            if not given:
                continue
            stem = hashlib.sha1(given.encode("utf-8")).hexdigest() if "://" in given else given.removesuffix(".story")
            places = [Path(folder, f"{stem}.story") for folder in files.stories]
            path = next((place for place in places if place.is_file()), None)
            if path is None:
                where = " or ".join(files.stories)
                raise DataError(f"{name}, line {number}: there is no story {stem}.story in {where}; correct the list")
            yield path


# What can be found wrong with a pair, in the words of the report.
EMPTY = "empty side"
OVER_LONG = "over-long"
RATIO = "length ratio"
DUPLICATE = "duplicate"
IN_TRAIN = "pair also in train"
SRC_IN_TRAIN = "source also in train"


@dataclass
class Finding:
    """How often one kind of fault was found in a split."""

    count: int = 0
    """Pairs with this fault."""
    first_line: int = 0
    """The line of the first one, from 1."""
    action: str = "kept"
    """What was done with them: kept, dropped or truncated."""


@dataclass
class SplitReport:
    """What was found in one split. A dropped pair is counted under one kind of fault, the first that applies."""

    read: int = 0
    """Pairs in the files."""
    kept: int = 0
    """Pairs left after dropping."""
    src_tokens: int = 0
    """Source tokens of the kept pairs, without EOS."""
    tgt_tokens: int = 0
    """Target tokens of the kept pairs, without EOS."""
    src_unknown: int = 0
    """Source tokens that are not in the vocabulary."""
    tgt_unknown: int = 0
    """Target tokens that are not in the vocabulary."""
    src_longest: int = 0
    """The most tokens of a kept source."""
    tgt_longest: int = 0
    """The most tokens of a kept target."""
    links: int | None = None
    """Links between tokens of the kept pairs; None where no alignment was given."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """Faults by kind."""

    def found(self, kind: str, lines: Sequence[int], action: str) -> None:
        """Counts the pairs of these lines under one kind of fault."""
        if len(lines):
            finding = self.findings.setdefault(kind, Finding(0, int(lines[0]), action))
            finding.count += len(lines)

    def count(self, side: str, rows: Sequence[Sequence[int]]) -> None:
        """Counts the ids of kept pairs.

        Args:
            side: "src" or "tgt".
            rows: the ids of each pair.
        """
        lengths = [len(row) for row in rows]
        unknown = sum(row.count(UNK) for row in rows)
        longest = max(lengths, default=0)
        if side == "src":
            self.src_tokens += sum(lengths)
            self.src_unknown += unknown
            self.src_longest = max(self.src_longest, longest)
        else:
            self.tgt_tokens += sum(lengths)
            self.tgt_unknown += unknown
            self.tgt_longest = max(self.tgt_longest, longest)


@dataclass
class DataReport:
    """What the check of a corpus found, split by split."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    """By the name of the split."""
    tokenizer: dict[str, str | int] = field(default_factory=dict)
    """What was learned, from how many pairs."""

    def learned(self, kind: str, src_size: int, tgt_size: int, used: int, of: int) -> None:
        """Notes the learning of the tokenizer: vocabulary sizes, pairs used and pairs there were."""
        self.tokenizer = {"kind": kind, "src_size": src_size, "tgt_size": tgt_size, "pairs_used": used, "pairs": of}

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The report as a table: split, what, how many, first line, what was done."""
        rows = []
        if self.tokenizer:
            t = self.tokenizer
            used = f"{t['pairs_used']:,} of {t['pairs']:,} pairs"
            rows.append(
                ("tokenizer", f"{t['kind']}, learned from {used}", f"{t['src_size']:,}/{t['tgt_size']:,}", "", "")
            )
        for name, split in self.splits.items():
            rows.append((name, "pairs", f"{split.read:,}", "", f"{split.kept:,} kept"))
            for kind, finding in split.findings.items():
                rows.append((name, kind, f"{finding.count:,}", str(finding.first_line), finding.action))
            for side, tokens, unknown, longest in (
                ("source", split.src_tokens, split.src_unknown, split.src_longest),
                ("target", split.tgt_tokens, split.tgt_unknown, split.tgt_longest),
            ):
                if tokens:
                    mean = tokens / max(1, split.kept)
                    what = f"{side} tokens: {mean:.1f} a pair, at most {longest}"
                    rows.append((name, what, f"{tokens:,}", "", f"{unknown / tokens:.3%} unknown"))
            if split.links is not None:
                what = f"alignment links between tokens: {split.links / max(1, split.kept):.1f} a pair"
                rows.append((name, what, f"{split.links:,}", "", ""))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "tokenizer": dict(self.tokenizer),
            "splits": {
                name: {
                    **{key: value for key, value in vars(split).items() if key != "findings"},
                    "findings": {kind: dict(vars(finding)) for kind, finding in split.findings.items()},
                }
                for name, split in self.splits.items()
            },
        }


class HashSet:
    """A set of 64-bit hashes for whole corpora: 8 bytes a member, and as much again while it grows.

    Members stand in sorted runs, each less than half as long as the one before it.
    """

    def __init__(self) -> None:
        self._runs: list[Hashes] = []

    def contains(self, hashes: Hashes) -> Mask:
        """For each hash, whether it is a member."""
        found = np.zeros(len(hashes), dtype=bool)
        for run in self._runs:
            place = np.searchsorted(run, hashes)
            found |= run[np.minimum(place, len(run) - 1)] == hashes
        return found

    def add(self, hashes: Hashes) -> Mask:
        """Makes the hashes members; for each, whether it was one already or stood earlier in the same call."""
        old = self.contains(hashes)
        unique, first = np.unique(hashes, return_index=True)
        repeated = np.ones(len(hashes), dtype=bool)
        repeated[first] = False
        run = unique[~old[first]]
        while self._runs and len(run) and len(self._runs[-1]) < 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")
        if len(run):
            self._runs.append(run)
        return old | repeated


def _hashes(texts: Sequence[str]) -> Hashes:
    digests = [hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


class Checker:
    """Finds the faulty pairs of a corpus, counts them in the report and says which to leave out.

    Train must come first: it is what the other splits are compared with. Memory: 16 bytes for a training pair.

    Args:
        config: what to leave out of training.
        report: filled as the corpus goes by.
        need_references: refuse an empty target outside of train, where it would be dropped: for tasks whose metric says
            nothing about an empty reference.
    """

    def __init__(self, config: DataConfig, report: DataReport, need_references: bool = False) -> None:
        self.config = config
        self.report = report
        self._need_references = need_references
        self._pairs = HashSet()
        self._sources = HashSet()

    def cut_at(self, side: str) -> int | None:
        """Where a side ("src" or "tgt") is to be cut, in tokens; None if over-long text is not cut."""
        return self.config.cuts[0 if side == "src" else 1] if self.config.cuts else None

    def texts(self, split: str, examples: Sequence[Example]) -> Mask:
        """Checks raw text: empty sides, duplicates, overlap with train.

        Returns:
            For each example, whether it stays.

        Raises:
            DataError: a reference is empty that must not be.
        """
        out = self.report.splits.setdefault(split, SplitReport())
        out.read += len(examples)
        if self._need_references and split != "train":
            for example in examples:
                if example.tgt is not None and not example.tgt.strip():
                    raise DataError(
                        f"{split}, line {example.line}: the reference is empty, and no summary can be measured by it; "
                        "take the example out of the file"
                    )
        lines = np.array([example.line for example in examples], dtype=np.int64)
        train = split == "train"
        keep = np.ones(len(examples), dtype=bool)

        empty = np.array([not e.src.strip() or (e.tgt is not None and not e.tgt.strip()) for e in examples], dtype=bool)
        out.found(EMPTY, lines[empty].tolist(), "dropped" if train else "kept")
        if train:
            keep &= ~empty

        sources = _hashes([e.src for e in examples])
        pairs = _hashes([f"{e.src}\n{e.tgt}" for e in examples])
        if train:
            self._sources.add(sources[keep])
            double = np.zeros_like(keep)
            double[keep] = self._pairs.add(pairs[keep])
            out.found(DUPLICATE, lines[double].tolist(), "dropped" if self.config.drop_duplicates else "kept")
            if self.config.drop_duplicates:
                keep &= ~double
            return keep
        in_train = self._pairs.contains(pairs) & ~empty
        out.found(IN_TRAIN, lines[in_train].tolist(), "kept")
        out.found(SRC_IN_TRAIN, lines[self._sources.contains(sources) & ~in_train & ~empty].tolist(), "kept")
        return keep

    def lengths(self, split: str, lines: Lengths, src: Lengths, tgt: Lengths | None) -> Mask:
        """Checks lengths in tokens, EOS not counted.

        Args:
            split: which split.
            lines: the line of each example, `(n,)`.
            src: tokens of each source, `(n,)`.
            tgt: tokens of each target, `(n,)`.

        Returns:
            For each example, whether it stays. With `over_long: truncate` the caller cuts what is longer.
        """
        out = self.report.splits[split]
        train = split == "train"
        keep = np.ones(len(lines), dtype=bool)
        src_limit, tgt_limit = self.config.limits
        over = src > src_limit
        if tgt is not None:
            over |= tgt > tgt_limit
        truncate = self.config.over_long == "truncate"
        out.found(OVER_LONG, lines[over].tolist(), "truncated" if truncate else "dropped" if train else "kept")
        if train and not truncate:
            keep &= ~over
        if self.config.max_ratio is not None and tgt is not None:
            uneven = keep & (np.maximum(src, tgt) > self.config.max_ratio * np.minimum(src, tgt))
            out.found(RATIO, lines[uneven].tolist(), "dropped" if train else "kept")
            if train:
                keep &= ~uneven
        return keep
