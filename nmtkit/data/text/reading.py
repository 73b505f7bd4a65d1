"""Reads examples from files in blocks: line-aligned columns, JSON lines and stories, plain or compressed.

`SplitReader` reports faults and continues; `read_blocks` and `read_pairs` stop at the first one.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import Links, base_warning
from nmtkit.data.text.blocks import Block, Example, read_links
from nmtkit.data.text.config import FILE_KINDS, LINE_ALIGNED_COLUMNS, TEXT_COLUMNS, SplitFiles
from nmtkit.data.text.faults import JSON, LINE_COUNTS, MISSING, STORY, FaultLocation, FileFault
from nmtkit.data.text.features import FeaturesFile
from nmtkit.data.text.files.json_records import JSONL_HINT, parse_record, refuse_json_lines, text_of
from nmtkit.data.text.files.lines import ByteObserver, TextFile, read_lines

BLOCK_STORIES = 256
"""Stories in a block."""
LINKED_PAIRS = 20_000
"""The first pairs of a file by whose links `require_link_base` judges it."""

Source: TypeAlias = TextFile | FeaturesFile
ReadItem: TypeAlias = Block | FileFault
"""Pairs, and faults of whole files where they are found."""


class SplitReader:
    """Reads the pairs of a split in blocks, each line once; faults do not stop it.

    `watch` observes the bytes read of each text file. With `pipes` inputs may be pipes.
    """

    def __init__(self, split: str, files: SplitFiles, watch: ByteObserver | None = None, pipes: bool = False) -> None:
        self._split = split
        self._files = files
        self._watch = watch
        self._pipes = pipes
        kind = next(kind for kind in FILE_KINDS if getattr(files, kind))
        self.parts = 1 if kind == "stories" else len(getattr(files, kind))
        """The number of files, or pairs of files; all stories count as one."""
        self._peeked: Iterator[ReadItem] | None = None
        """The only file after `peek`: the blocks that were looked at, then the others."""

    def peek(self, part: int) -> Iterator[Block]:
        """The first blocks of one file, before all of it is read.

        A single file is read on from there. The beginnings of several files are read twice, so that never more than one
        of them is open.
        """
        if self.parts > 1:
            yield from (item for item in self._part(part, None) if isinstance(item, Block))
            return
        items = self._part(part, self._watch)
        looked_at: list[ReadItem] = []
        self._peeked = chain(looked_at, items)
        for item in items:
            looked_at.append(item)
            if isinstance(item, Block):
                yield item

    def __iter__(self) -> Iterator[ReadItem]:
        peeked, self._peeked = self._peeked, None
        before = 0
        for part in range(self.parts):
            for item in peeked or self._part(part, self._watch):
                if isinstance(item, Block):
                    item.offset = before
                    before += len(item)
                yield item

    def _part(self, part: int, watch: ByteObserver | None) -> Iterator[ReadItem]:
        if self._files.stories:
            return self._stories()
        if self._files.jsonl:
            return self._records(part, self._open(self._files.jsonl[part], watch))
        inputs: dict[str, Source] = {}
        for kind in LINE_ALIGNED_COLUMNS:
            if paths := getattr(self._files, kind):
                path = paths[part]
                inputs[kind] = FeaturesFile(path) if kind == "features" else self._open(path, watch)
        texts = tuple(kind for kind in TEXT_COLUMNS if kind in inputs)
        leading = [inputs.pop(kind) for kind in texts] or [next(iter(inputs.values()))]
        return self._aligned(part, texts, leading, inputs)

    def _open(self, path: str, watch: ByteObserver | None) -> TextFile:
        return TextFile(path, watch, self._pipes, self._files.encoding_of(path))

    def _aligned(
        self, part: int, columns: tuple[str, ...], texts: list[Source], beside: dict[str, Source]
    ) -> Iterator[ReadItem]:
        """The blocks of the files of texts, and of columns beside them; without text the first column is in both."""
        src, tgt = texts[0], texts[1] if len(texts) > 1 else None
        first = 1
        while count := min(file.fill() for file in texts):
            yield from (fault for file in texts for fault in file.new_faults())
            taken: Any = [file.take(count) for file in texts] if columns else [([""] * count, [])]
            block = Block(
                split=self._split,
                src_file=src.path,
                tgt_file=tgt.path if tgt else "",
                first=first,
                src=taken[0][0],
                tgt=taken[1][0] if tgt else None,
                position=part,
                text_columns=columns,
                paths={kind: file.path for kind, file in beside.items()},
                bom_lengths=(src.mark, tgt.mark if tgt else 0),
            )
            for file, (lines, faulty) in zip(texts, taken, strict=True):
                if isinstance(file, TextFile):
                    block.note_bad_bytes(file, faulty, lines)
            block.unreadable.update(*(faulty for _, faulty in taken))
            for kind, file in beside.items():
                file.fill(count)
                block.columns[kind], faulty = file.take(count)
                if isinstance(file, TextFile):
                    block.add_message(file, faulty, block.columns[kind])
            yield block
            first += count
        for file in texts:
            file.skip_rest()
            yield from file.new_faults()
        if tgt and src.whole and tgt.whole and src.count != tgt.count:
            yield _different(src, tgt, "be the translation of")
        for file in beside.values() if src.whole else ():
            file.skip_rest()
            yield from file.new_faults()
            if file.whole and file.count != src.count:
                yield _different(src, file, "belong to")

    def _records(self, part: int, file: TextFile) -> Iterator[ReadItem]:
        first = 1
        while count := file.fill():
            yield from file.new_faults()
            yield self._record_block(part, file, first, *file.take(count))
            first += count
        yield from file.new_faults()

    def _record_block(self, part: int, file: TextFile, first: int, lines: list[str], faulty: list[int]) -> Block:
        columns = self._files.columns
        names = [(getattr(self._files, f"{column}_field"), f"set {column}_field") for column in columns]
        values = [[""] * len(columns)] * len(lines)
        unread, why = set(faulty), dict[int, str]()
        for row, line in enumerate(lines):
            if row not in unread:
                where = f"{file.path}, line {first + row}"
                try:
                    record = parse_record(line, where)
                    values[row] = [text_of(record, name, where, remedy) for name, remedy in names]
                except DataError as fault:
                    why[row] = str(fault)
        read = {column: list(one) for column, one in zip(columns, zip(*values, strict=True), strict=True)}
        texts = tuple(column for column in TEXT_COLUMNS if column in read)
        src, tgt = [*map(read.pop, texts), None, None][:2]
        block = Block(self._split, file.path, file.path, first, src or [""] * len(lines), tgt, part, text_columns=texts)
        block.columns = {**read, "record": lines}
        block.note_bad_bytes(file, faulty, lines)
        block.unreadable.update(faulty)
        block.add_unusable(JSON, why)
        return block

    def _stories(self) -> Iterator[ReadItem]:
        paths = story_files(self._files)
        folder = self._files.stories[0]
        try:
            while stories := list(islice(paths, BLOCK_STORIES)):
                yield self._story_block(folder, stories)
        except DataError as fault:
            yield FileFault(MISSING, FaultLocation(folder, 1, text=str(fault)), str(fault))

    def _story_block(self, folder: str, stories: list[tuple[int, Path]]) -> Block:
        why: dict[int, str] = {}
        sides = [("", "")] * len(stories)
        for row, (_, path) in enumerate(stories):
            try:
                sides[row] = parse_story(read_lines(path, self._files.encoding_of(folder)), str(path))
            except DataError as fault:
                why[row] = str(fault)
        src, tgt = map(list, zip(*sides, strict=True))
        block = Block(self._split, folder, folder, 1, src, tgt, [position for position, _ in stories])
        block.names = [str(path) for _, path in stories]
        block.add_unusable(STORY, why)
        return block


def _different(src: Source, other: Source, rule: str) -> FileFault:
    message = (
        f"{src.path} has {src.count} lines, but {other.path} has {other.count}: "
        f"line n of one must {rule} line n of the other"
    )
    line, more = min(src.count, other.count) + 1, abs(src.count - other.count)
    if rule == "belong to":
        return FileFault(LINE_COUNTS, FaultLocation(other.path, line), message, more)
    return FileFault(LINE_COUNTS, FaultLocation(src.path, line), message, more, (src.count, other.count), other.path)


def require_link_base(files: SplitFiles) -> None:
    """DataError if a link is malformed or, where no base is set, hardly any link of a file has a first word."""
    reader = SplitReader("train", files)
    for part in range(reader.parts) if files.has_links and files.alignment_base is None else ():
        links: list[Links] = []
        for block in reader.peek(part):
            links += read_links(block, files) if not block.messages else []
            if len(links) >= LINKED_PAIRS:
                break
        if doubt := base_warning(links[:LINKED_PAIRS]):
            raise DataError(
                f"{files.alignment[part]}: words are taken to be counted from 0, but {doubt}; if they "
                "are counted from 1, set alignment_base: 1 beside the file in the recipe; if it is right so, "
                "alignment_base: 0"
            )


# --------------------------------------------------------------------------------------------------------- sound pairs


def read_blocks(
    split: str, files: SplitFiles, json_target: bool = False, watch: ByteObserver | None = None
) -> Iterator[Block]:
    """The pairs of one split in blocks, with their links; stops at the first fault.

    Targets that are JSON texts are refused unless `json_target`.
    """
    for item in SplitReader(split, files, watch, pipes=True):
        if isinstance(item, FileFault):
            if item.message:
                raise DataError(item.message)
            continue
        require_plain_text(item, files, json_target=json_target)
        if item.messages:
            raise DataError(min(item.messages, key=lambda message: message[0])[1])
        if any(len(lines) < len(item) for lines in item.columns.values()):
            continue  # there is no more of it: a fault at the end says so
        if files.has_links:
            item.links = read_links(item, files)
        item.tags = files.tags
        item.languages = files.languages
        yield item


def require_plain_text(block: Block, files: SplitFiles, remedy: str = JSONL_HINT, json_target: bool = False) -> None:
    """Refuses JSON lines in the first block of plain text; DataError with `remedy`."""
    if not files.jsonl and not files.stories and block.first == 1:
        refuse_json_lines(block.src, block.src_file, remedy)
        if not json_target:
            refuse_json_lines(block.tgt or (), block.tgt_file, remedy)


def read_pairs(files: SplitFiles, json_target: bool = False) -> Iterator[Example]:
    """The pairs of one split one by one; see `read_blocks`."""
    return (example for block in read_blocks("", files, json_target) for example in block.examples())


# ------------------------------------------------------------------------------------------------------------- stories

_HIGHLIGHT = "@highlight"
_SENTENCE_END = re.compile(r"[.!?:;\u2026][\"'\u201d\u2019)\]]*$")


def parse_story(lines: Iterable[str], where: str) -> tuple[str, str]:
    """Article and summary of the lines of a story, each as one line; DataError if there is no highlight.

    A summary sentence follows each line `@highlight`, usually without its full stop. It is added, so that sentence
    splitters find the ends of sentences.
    """
    article: list[str] = []
    highlights: list[list[str]] = []
    for line in lines:
        text = " ".join(line.split())
        if text == _HIGHLIGHT:
            highlights.append([])
        elif text:
            (highlights[-1] if highlights else article).append(text)
    if not highlights:
        raise DataError(f"{where}: no line {_HIGHLIGHT}, so it is not a story with a summary; leave the file out")
    sentences = [" ".join(lines) for lines in highlights if lines]
    return " ".join(article), " ".join(text if _SENTENCE_END.search(text) else f"{text}." for text in sentences)


def story_stem(listed: str) -> str:
    """The file name of a listed story without its ending; of an address it is the SHA-1 sum."""
    return hashlib.sha1(listed.encode("utf-8")).hexdigest() if "://" in listed else listed.removesuffix(".story")


def story_files(files: SplitFiles) -> Iterator[tuple[int, Path]]:
    """The stories of a split with the index of their folder, in the order of the lists, or by name without lists."""
    if not files.story_lists:
        for position, folder in enumerate(files.stories):
            stories = sorted(Path(folder).glob("*.story"))
            if not Path(folder).is_dir():
                raise DataError(f"{folder}: no such folder of .story files")
            if not stories:
                raise DataError(
                    f"{folder}: no .story files in this folder; name the folder that has them (other files are "
                    "read without --stories: nmtkit summarize --per-file FILE...)"
                )
            yield from ((position, path) for path in stories)
    for name in files.story_lists:
        for number, line in enumerate(read_lines(name), start=1):
            listed = line.strip()
            if not listed:
                continue
            stem = story_stem(listed)
            places = enumerate(Path(folder, f"{stem}.story") for folder in files.stories)
            found = next((one for one in places if one[1].is_file()), None)
            if found is None:
                where = " or ".join(files.stories)
                raise DataError(f"{name}, line {number}: there is no story {stem}.story in {where}; correct the list")
            yield found
