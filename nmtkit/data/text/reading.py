"""Reads examples in blocks from line-aligned files, JSON lines and stories, plain or compressed.

`SplitReader` reports faults and continues; `read_blocks` and `read_pairs` stop at the first fault.
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
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.text_file import ByteObserverFactory, TextFile

BLOCK_STORIES = 256
"""Number of stories in a block."""
LINKED_PAIRS = 20_000
"""`require_link_base` examines the links of this many pairs at the beginning of each file."""

Source: TypeAlias = TextFile | FeaturesFile
ReadItem: TypeAlias = Block | FileFault
"""A block of examples, or a fault of a whole file, in the order in which they are found."""


class SplitReader:
    """Reads the examples of a split in blocks, each line once, and continues after faults."""

    def __init__(
        self,
        split: str,
        files: SplitFiles,
        observer_for: ByteObserverFactory | None = None,
        allow_pipes: bool = False,
    ) -> None:
        """Does not open any files yet.

        Args:
            split: name of the split.
            files: files of the split.
            observer_for: creates the observer for each text file's bytes.
            allow_pipes: whether paths may be something other than regular files, for example named pipes.
        """
        self._split = split
        self._files = files
        self._observer_for = observer_for
        self._allow_pipes = allow_pipes
        self.parts = 1
        """Number of files per column; all stories count as one file."""
        kind = next(kind for kind in FILE_KINDS if getattr(files, kind))
        if kind != "stories":
            self.parts = len(getattr(files, kind))
        self._peeked: Iterator[ReadItem] | None = None
        """Set by `peek` if there is only one file: an iterator over all its items, beginning with those that `peek` has
        already read."""

    def peek(self, part: int) -> Iterator[Block]:
        """Yields blocks from the beginning of file number `part`, before iteration starts.

        If there is only one file, iteration does not read these blocks again. If there are several files, their
        beginnings are read twice, so that only one file is open at a time.
        """
        if self.parts > 1:
            for item in self._part(part, None):
                if isinstance(item, Block):
                    yield item
            return
        items = self._part(part, self._observer_for)
        peeked_items: list[ReadItem] = []
        # The list is filled below, before the chain is read.
        self._peeked = chain(peeked_items, items)
        for item in items:
            peeked_items.append(item)
            if isinstance(item, Block):
                yield item

    def __iter__(self) -> Iterator[ReadItem]:
        peeked = self._peeked
        self._peeked = None
        examples = 0
        for part in range(self.parts):
            for item in peeked or self._part(part, self._observer_for):
                if isinstance(item, Block):
                    item.offset = examples
                    examples += len(item)
                yield item

    def _part(self, part: int, observer_for: ByteObserverFactory | None) -> Iterator[ReadItem]:
        files = self._files
        if files.stories:
            return self._stories()
        if files.jsonl:
            return self._records(part, self._open(files.jsonl[part], observer_for))
        sources: dict[str, Source] = {}
        for kind in LINE_ALIGNED_COLUMNS:
            paths = getattr(files, kind)
            if not paths:
                continue
            if kind == "features":
                sources[kind] = FeaturesFile(paths[part])
            else:
                sources[kind] = self._open(paths[part], observer_for)
        return self._aligned(part, sources)

    def _open(self, path: str, observer_for: ByteObserverFactory | None) -> TextFile:
        return TextFile(
            path,
            observer_for,
            allow_pipes=self._allow_pipes,
            encoding=self._files.encoding_of(path),
        )

    def _aligned(self, part: int, sources: dict[str, Source]) -> Iterator[ReadItem]:
        """Yields examples from the line-aligned files of all columns: line n of each file belongs to example n."""
        text_columns = tuple(column for column in TEXT_COLUMNS if column in sources)
        others = {kind: file for kind, file in sources.items() if kind not in text_columns}
        # The leading files determine the number of examples. If no column is text, the first column leads.
        leading: list[Source] = [sources[column] for column in text_columns]
        if not leading:
            leading = [next(iter(others.values()))]
        src = leading[0]
        tgt = leading[1] if len(leading) > 1 else None

        first = 1
        while count := min(file.fill() for file in leading):
            for file in leading:
                yield from file.take_faults()
            texts: list[Any] = []  # lines of each text column, or rows of features
            faulty_rows: list[list[int]] = []
            for file in leading if text_columns else ():
                lines, faulty = file.take(count)
                texts.append(lines)
                faulty_rows.append(faulty)
            block = Block(
                split=self._split,
                src_file=src.path,
                tgt_file=tgt.path if tgt else "",
                first=first,
                src=texts[0] if texts else [""] * count,
                tgt=texts[1] if tgt else None,
                position=part,
                text_columns=text_columns,
                paths={kind: file.path for kind, file in others.items()},
                bom_lengths=(src.bom_length, tgt.bom_length if tgt else 0),
            )
            for file, lines, faulty in zip(leading, texts, faulty_rows, strict=False):
                if isinstance(file, TextFile):
                    block.note_bad_bytes(file, faulty, lines)
            # This must come last, because `note_bad_bytes` ignores rows that are already marked as unreadable.
            block.unreadable.update(*faulty_rows)
            for kind, file in others.items():
                file.fill(count)
                block.columns[kind], faulty = file.take(count)
                if isinstance(file, TextFile):
                    block.add_message(file, faulty, block.columns[kind])
            yield block
            first += count

        for file in leading:
            file.skip_rest()
            yield from file.take_faults()
        if tgt and src.is_readable and tgt.is_readable and src.n_lines != tgt.n_lines:
            yield _different_targets(src, tgt)
        if not src.is_readable:
            return
        for file in others.values():
            file.skip_rest()
            yield from file.take_faults()
            if file.is_readable and file.n_lines != src.n_lines:
                yield _different_column(src, file)

    def _records(self, part: int, file: TextFile) -> Iterator[ReadItem]:
        first = 1
        while count := file.fill():
            yield from file.take_faults()
            lines, faulty = file.take(count)
            yield self._record_block(part, file, first=first, lines=lines, faulty=faulty)
            first += count
        yield from file.take_faults()

    def _record_block(
        self, part: int, file: TextFile, first: int, lines: list[str], faulty: list[int]
    ) -> Block:
        """Parses JSON lines, beginning at line number `first`; `faulty` contains the rows of undecodable lines."""
        field_names = {
            column: getattr(self._files, f"{column}_field") for column in self._files.columns
        }
        texts: dict[str, list[str]] = {column: [""] * len(lines) for column in field_names}
        unreadable = set(faulty)
        messages: dict[int, str] = {}
        for row, line in enumerate(lines):
            if row in unreadable:
                continue
            place = f"{file.path}, line {first + row}"
            try:
                record = parse_record(line, place)
                values = {
                    column: text_of(record, name, where=place, remedy=f"set {column}_field")
                    for column, name in field_names.items()
                }
            except DataError as fault:
                messages[row] = str(fault)
                continue
            for column, text in values.items():
                texts[column][row] = text

        text_columns = tuple(texts)
        sides: list[list[str]] = [*texts.values()]
        block = Block(
            split=self._split,
            src_file=file.path,
            tgt_file=file.path,
            first=first,
            src=sides[0] if sides else [""] * len(lines),
            tgt=sides[1] if len(sides) > 1 else None,
            position=part,
            columns={"record": lines},
            text_columns=text_columns,
        )
        block.note_bad_bytes(file, faulty, lines)
        block.unreadable.update(faulty)
        block.add_unusable(JSON, messages)
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
        articles = []
        summaries = []
        messages: dict[int, str] = {}
        for row, (_, path) in enumerate(stories):
            try:
                article, summary = parse_story(
                    read_lines(path, self._files.encoding_of(folder)), str(path)
                )
            except DataError as fault:
                messages[row] = str(fault)
                article = ""
                summary = ""
            articles.append(article)
            summaries.append(summary)
        block = Block(
            split=self._split,
            src_file=folder,
            tgt_file=folder,
            first=1,
            src=articles,
            tgt=summaries,
            position=[position for position, _ in stories],
            names=[str(path) for _, path in stories],
        )
        block.add_unusable(STORY, messages)
        return block


def _different_targets(src: Source, tgt: Source) -> FileFault:
    message = (
        f"{src.path} has {src.n_lines} lines, but {tgt.path} has {tgt.n_lines}: "
        "line n of one file must be the translation of line n of the other"
    )
    return FileFault(
        LINE_COUNTS,
        FaultLocation(src.path, min(src.n_lines, tgt.n_lines) + 1),
        message,
        n_lines=abs(src.n_lines - tgt.n_lines),
        line_counts=(src.n_lines, tgt.n_lines),
        target_file=tgt.path,
    )


def _different_column(src: Source, column: Source) -> FileFault:
    message = (
        f"{src.path} has {src.n_lines} lines, but {column.path} has {column.n_lines}: "
        "line n of one file must belong to line n of the other"
    )
    location = FaultLocation(column.path, min(src.n_lines, column.n_lines) + 1)
    return FileFault(LINE_COUNTS, location, message, n_lines=abs(src.n_lines - column.n_lines))


def require_link_base(files: SplitFiles) -> None:
    """Checks that the words in the links of each file seem to be counted from 0, unless `alignment_base` is set.

    Raises:
        DataError: a link is malformed, or hardly any link in a file refers to the first word of a sentence.
    """
    if not files.has_links or files.alignment_base is not None:
        return
    reader = SplitReader("train", files)
    for part in range(reader.parts):
        links: list[Links] = []
        for block in reader.peek(part):
            if not block.messages:
                links += read_links(block, files)
            if len(links) >= LINKED_PAIRS:
                break
        doubt = base_warning(links[:LINKED_PAIRS])
        if doubt:
            raise DataError(
                f"{files.alignment[part]}: words are assumed to be counted from 0, but {doubt}. If they are counted "
                "from 1, set alignment_base: 1 next to the file in the recipe; if they are counted from 0, set "
                "alignment_base: 0"
            )


# ----------------------------------------------------------------------------- strict reading: stop at the first fault


def read_blocks(
    split: str,
    files: SplitFiles,
    json_target: bool = False,
    observer_for: ByteObserverFactory | None = None,
) -> Iterator[Block]:
    """Yields the examples of one split in blocks, with their links; raises a DataError at the first fault.

    Targets that are JSON lines are an error unless `json_target` is set. For `observer_for`, see `SplitReader`.
    """
    for item in SplitReader(split, files, observer_for, allow_pipes=True):
        if isinstance(item, FileFault):
            if item.message:
                raise DataError(item.message)
            continue
        require_plain_text(item, files, json_target=json_target)
        if item.messages:
            _, first_message = min(item.messages, key=lambda row_and_message: row_and_message[0])
            raise DataError(first_message)
        if any(len(lines) < len(item) for lines in item.columns.values()):
            continue  # a file is too short; the reader yields this fault after the last block
        if files.has_links:
            item.links = read_links(item, files)
        item.tags = files.tags
        item.languages = files.languages
        yield item


def require_plain_text(
    block: Block, files: SplitFiles, remedy: str = JSONL_HINT, json_target: bool = False
) -> None:
    """Raises a DataError with this remedy if a text file's first block contains JSON lines; ignores later blocks."""
    if files.jsonl or files.stories or block.first > 1:
        return
    refuse_json_lines(block.src, block.src_file, remedy)
    if block.tgt is not None and not json_target:
        refuse_json_lines(block.tgt, block.tgt_file, remedy)


def read_pairs(files: SplitFiles, json_target: bool = False) -> Iterator[Example]:
    """Yields the examples of a split one by one; raises the same errors as `read_blocks`."""
    for block in read_blocks("", files, json_target):
        yield from block.examples()


# ------------------------------------------------------------------------------------------------------------- stories

_HIGHLIGHT = "@highlight"
_SENTENCE_END = re.compile(r"[.!?:;\u2026][\"'\u201d\u2019)\]]*$")


def parse_story(lines: Iterable[str], where: str) -> tuple[str, str]:
    """Returns a story's article and summary, each as one line; raises a DataError if there is no highlight.

    Each line `@highlight` is followed by a sentence of the summary, usually without a full stop. Missing full stops are
    added, so that sentence splitters find the ends of sentences.
    """
    article: list[str] = []
    highlights: list[list[str]] = []  # the lines of each highlight
    for line in lines:
        text = " ".join(line.split())
        if text == _HIGHLIGHT:
            highlights.append([])
        elif text and highlights:
            highlights[-1].append(text)
        elif text:
            article.append(text)
    if not highlights:
        raise DataError(
            f"{where}: there is no {_HIGHLIGHT} line, so this is not a story with a summary; remove the file"
        )
    sentences = []
    for highlight in highlights:
        sentence = " ".join(highlight)
        if sentence and not _SENTENCE_END.search(sentence):
            sentence += "."
        if sentence:
            sentences.append(sentence)
    return " ".join(article), " ".join(sentences)


def story_stem(listed: str) -> str:
    """Returns the file name, without its extension, of a story that is listed by name or by URL.

    For a URL, the file name is the SHA-1 hash of the URL.
    """
    if "://" in listed:
        return hashlib.sha1(listed.encode("utf-8")).hexdigest()
    return listed.removesuffix(".story")


def story_files(files: SplitFiles) -> Iterator[tuple[int, Path]]:
    """Yields the folder index and path of each story, in the order of the lists or, without lists, sorted by name.

    Raises:
        DataError: a folder is missing or has no stories, or a listed story is not in any folder.
    """
    if not files.story_lists:
        for position, folder in enumerate(files.stories):
            stories = sorted(Path(folder).glob("*.story"))
            if not Path(folder).is_dir():
                raise DataError(
                    f"{folder}: there is no such folder; specify a folder of .story files"
                )
            if not stories:
                raise DataError(
                    f"{folder}: there are no .story files in this folder; specify the folder that contains them (to "
                    "read other files, omit --stories: nmtkit summarize --per-file FILE...)"
                )
            for path in stories:
                yield position, path
    for name in files.story_lists:
        for number, line in enumerate(read_lines(name), start=1):
            listed = line.strip()
            if not listed:
                continue
            file_name = f"{story_stem(listed)}.story"
            for position, folder in enumerate(files.stories):
                path = Path(folder, file_name)
                if path.is_file():
                    yield position, path
                    break
            else:
                folders = " or ".join(files.stories)
                raise DataError(
                    f"{name}, line {number}: there is no story {file_name} in {folders}; correct the list"
                )
