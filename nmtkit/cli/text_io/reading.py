"""Reading lines of text from files or standard input."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io.output_folder import output_folder
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.formats import text_format
from nmtkit.data.text.files.json_records import (
    DETECTION_LINES,
    EXTRACT_HINT,
    parse_record,
    refuse_json_lines,
    text_of,
)
from nmtkit.data.text.files.lines import read_lines, read_stream_lines, text_stream
from nmtkit.data.text.files.names import STDIN, option_encoding, split_reference
from nmtkit.data.text.reading import read_pairs

Item = TypeVar("Item")
PAIRS_AT_ONCE = 2048


def stdin_lines() -> Iterator[str]:
    r"""Yields the lines of standard input, plain or compressed, without line ends; only \n and \r\n end a line."""
    if sys.stdin is None:
        raise DataError(
            f"{STDIN} is closed, so no text can be read from it; redirect a file to it with `< FILE`"
        )
    try:
        # This does not use sys.stdin, because a thread may still be waiting for a line when the program exits, and
        # Python would then crash because it cannot close sys.stdin.
        stream = open(0, "rb", closefd=False)  # noqa: SIM115  # closing it would wait for the same line
        encoding = option_encoding(STDIN)
        yield from read_stream_lines(text_stream(stream, STDIN, encoding), STDIN, encoding)
    except OSError as fault:
        raise DataError(f"cannot read {STDIN}: {fault.strerror or fault}") from fault


def stdin_sentences(purpose: str) -> list[str]:
    """Returns all lines of standard input, which must not be empty; `purpose` is a verb for messages, e.g. "draw"."""
    lines = list(stdin_lines())
    require_plain_lines(lines, STDIN, EXTRACT_HINT)
    if not lines:
        raise DataError(
            f"nothing to {purpose}, because {STDIN} is empty; pass a sentence, or send lines to {STDIN}"
        )
    return lines


def text_windows(
    files: Sequence[Path], most: int = 1024, remedy: str = EXTRACT_HINT, tables: bool = False
) -> Generator[list[str], None, None]:
    """Yields windows of lines to translate together: from all files in order, or else from standard input.

    `remedy` is the advice in the error about files that look like JSON lines; "" allows JSON lines. Formats other than
    plain text cause a warning, unless `tables` is set, which means that the lines are rows of a table.
    """
    if files:
        return windows(chained(files, lambda file: _text_of_file(file, remedy, tables)), most)
    return _stdin_windows(most, remedy, tables)


def _stdin_windows(most: int, remedy: str, tables: bool) -> Generator[list[str], None, None]:
    for number, window in enumerate(windows(stdin_lines(), most)):
        # only the first window is checked, because an interactive user expects an answer before typing more lines
        if not number and remedy:
            require_plain_lines(window, STDIN, remedy, tables)
        yield window


def require_plain_lines(
    lines: Sequence[str], place: str, remedy: str, tables: bool = False
) -> None:
    """Checks the first lines of a text: rejects JSON lines with the remedy, and warns about other formats."""
    refuse_json_lines(lines, place, remedy)
    if not tables and not split_reference(place)[1]:
        warn_of_format(lines, place)


def warn_of_format(lines: Sequence[str], place: str) -> None:
    """Warns if the first lines of a text look like markup, subtitles or a table."""
    if found := text_format(lines, place):
        tell(
            f"warning: {place} looks like {found.title}, but each line is read as plain text. {found.advice}"
        )


def article_windows(
    files: Sequence[Path], most: int, remedy: str
) -> Generator[list[str], None, None]:
    """Yields windows of articles: each file is one article, or all of standard input is; see `text_windows`."""
    if files:
        return windows(
            chained(files, lambda file: _joined_lines(_text_of_file(file, remedy, tables=False))),
            most,
        )
    return windows(_joined_lines(stdin_lines()), most)


def _joined_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yields a single line that contains all lines of a text."""
    yield " ".join(line.strip() for line in lines if line.strip())


def chained(files: Sequence[Path], read: Callable[[Path], Iterable[Item]]) -> Iterator[Item]:
    """Yields the items that `read` yields for each file, in order, and counts them for `--output-dir`."""
    # called here, because click's context does not exist in the thread that reads ahead
    folder = output_folder()
    parts = []
    for index, file in enumerate(files):
        lines = read(file)
        parts.append(lines if folder is None else folder.counted(index, lines))
    return chain.from_iterable(parts)


def _text_of_file(file: Path, remedy: str, tables: bool) -> Iterator[str]:
    lines = read_lines(file)
    first = list(islice(lines, DETECTION_LINES if remedy else 0))
    require_plain_lines(first, str(file), remedy, tables)
    yield from chain(first, lines)


def count_lines(files: Iterable[Path]) -> int | None:
    """Returns the number of lines in the files, or None if it cannot be known before reading them, as with pipes."""
    total = 0
    for file in files:
        if not file.is_file():
            return None
        try:
            total += sum(1 for _ in read_lines(file))
        except NmtkitError:  # the error is reported when the text is read
            return None
    return total


def watched(
    windows: Iterable[list[str]], see: Callable[[list[str]], object]
) -> Iterator[list[str]]:
    """Yields the windows unchanged, and passes each to `see` when it is read, perhaps in a thread that reads ahead."""
    for window in windows:
        see(window)
        yield window


def field_lines(file: str, name: str, joint: str = " ") -> Iterator[str]:
    """Yields the values of a field in a file of JSON lines, or "" for an empty line.

    Lists of strings are joined with `joint`.
    """
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            yield ""
            continue
        where = f"{file}, line {number}"
        yield text_of(
            parse_record(line, where), name, where, "specify the field as FILE#FIELD", joint
        )


def pair_windows(
    source: Path | None, target: Path, json_target: bool = False
) -> Iterator[list[Example]]:
    """Yields windows of the pairs of two files, or of targets alone; with `json_target`, each target is a JSON text."""
    files = SplitFiles(src=[] if source is None else [str(source)], tgt=[str(target)])
    pairs = read_pairs(files, json_target)
    first = list(islice(pairs, PAIRS_AT_ONCE))
    if source is not None and not split_reference(str(source))[1]:
        warn_of_format([pair.src for pair in first], str(source))
    if not json_target and not split_reference(str(target))[1]:
        warn_of_format([pair.tgt or "" for pair in first], str(target))
    if first:
        yield first
    yield from iter(lambda: list(islice(pairs, PAIRS_AT_ONCE)), [])


MAX_CHARACTERS = 1 << 22
"""Number of characters at which a window closes."""
MAX_AGE = 1.0
"""Number of seconds after which a window closes even if lines keep arriving."""
WAITING_LINES = 64
"""Maximum number of lines that are read ahead of the current window."""


def windows(
    lines: Iterable[str], most: int = 1024, patience: float = 0.01
) -> Generator[list[str], None, None]:
    """Groups a stream of lines into windows to translate together.

    A window closes when it is full, when no further line arrives for `patience` seconds, or when it has been open too
    long. So files give full windows, while a person who types, or a program that waits for each answer, is answered at
    once. Little more than one window is held in memory. An error raised by `lines` is raised again after the lines
    before it have been yielded.
    """
    arrived = _arriving(lines, min(most, WAITING_LINES))
    window: list[str] = []
    characters, due = 0, 0.0
    while True:
        try:
            item = arrived.get(timeout=patience if window else None)
        except queue.Empty:
            yield window
            window, characters = [], 0
            continue
        if not isinstance(item, str):
            break
        due = due if window else time.monotonic() + MAX_AGE
        window.append(item)
        characters += len(item)
        if len(window) >= most or characters >= MAX_CHARACTERS or time.monotonic() >= due:
            yield window
            window, characters = [], 0
    if window:
        yield window
    if item is not None:
        raise item


def _arriving(lines: Iterable[str], most: int) -> "queue.Queue[str | BaseException | None]":
    """Returns a queue of lines, which a thread reads at most `most` ahead. The last item is None or an error."""
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as fault:
            arrived.put(fault)

    threading.Thread(target=read, daemon=True).start()
    return arrived
