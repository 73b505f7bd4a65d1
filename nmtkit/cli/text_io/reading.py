"""Reading lines of text from files or standard input."""

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TypeVar

from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io.output_folder import OutputFolder, output_folder
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
from nmtkit.data.text.files.lines import Arrival, read_lines
from nmtkit.data.text.files.names import STDIN, option_encoding, split_reference, text_path
from nmtkit.data.text.reading import read_pairs

Item = TypeVar("Item")
PAIRS_AT_ONCE = 2048


def stdin_lines(arrival: Arrival | None = None) -> Iterator[str]:
    r"""Yields the lines of standard input, plain or compressed, without line ends; only \n and \r\n end a line.

    `arrival` observes standard input.
    """
    if sys.stdin is None:
        raise DataError(
            f"{STDIN} is closed, so no text can be read from it; redirect a file to it with `< FILE`"
        )
    try:
        # This does not use sys.stdin, because a thread may still be waiting for a line when the program exits, and
        # Python would then crash because it cannot close sys.stdin.
        stream = open(0, "rb", closefd=False)  # noqa: SIM115  # closing it would wait for the same line
        arrival = arrival or Arrival()
        yield from arrival.lines(stream, STDIN, option_encoding(STDIN))
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
    if not files:
        arrival = Arrival()
        text = windows(stdin_lines(arrival), most, arrival)
        return _checked_windows(text, STDIN, remedy, tables)
    # Looked up here, because click's context does not exist in the thread that reads ahead.
    return _windows_of_files(files, output_folder(), most=most, remedy=remedy, tables=tables)


def _windows_of_files(
    files: Sequence[Path], folder: OutputFolder | None, most: int, remedy: str, tables: bool
) -> Generator[list[str], None, None]:
    """Yields windows of the lines of all files; a window ends before a file that may keep its reader waiting."""
    for may_wait, group in groupby(enumerate(files), key=_may_wait):
        if not may_wait:
            texts = (
                _counted(folder, index, _text_of_file(file, remedy, tables))
                for index, file in group
            )
            yield from windows(chain.from_iterable(texts), most)
            continue
        for index, file in group:
            arrival = Arrival()
            lines = _counted(folder, index, read_lines(file, arrival=arrival))
            text = windows(lines, most, arrival)
            yield from _checked_windows(text, str(file), remedy, tables)


def _may_wait(numbered_file: tuple[int, Path]) -> bool:
    """Returns whether the lines of a file may be slow to arrive, as with pipes and terminals."""
    path = Path(text_path(str(numbered_file[1])))
    return path.exists() and not path.is_file()


def _checked_windows(
    text: Iterable[list[str]], place: str, remedy: str, tables: bool
) -> Generator[list[str], None, None]:
    for number, window in enumerate(text):
        # only the first window is checked, because an interactive user expects an answer before typing more lines
        if not number and remedy:
            require_plain_lines(window, place, remedy, tables)
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
    if not files:
        return windows(_joined_lines(stdin_lines()), most)
    # Looked up here, because click's context does not exist in the thread that reads ahead.
    return _windows_of_articles(files, output_folder(), most=most, remedy=remedy)


def _windows_of_articles(
    files: Sequence[Path], folder: OutputFolder | None, most: int, remedy: str
) -> Generator[list[str], None, None]:
    """Yields windows of the articles; a window ends before a file that may keep its reader waiting."""
    for may_wait, group in groupby(enumerate(files), key=_may_wait):
        articles = (
            _counted(folder, index, _joined_lines(_text_of_file(file, remedy, tables=False)))
            for index, file in group
        )
        yield from windows(chain.from_iterable(articles), 1 if may_wait else most)


def _joined_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yields a single line that contains all lines of a text."""
    yield " ".join(line.strip() for line in lines if line.strip())


def chained(files: Sequence[Path], read: Callable[[Path], Iterable[Item]]) -> Iterator[Item]:
    """Yields the items that `read` yields for each file, in order, and counts them for `--output-dir`."""
    # Looked up here, because click's context does not exist in the thread that reads ahead.
    folder = output_folder()
    parts = []
    for index, file in enumerate(files):
        parts.append(_counted(folder, index, read(file)))
    return chain.from_iterable(parts)


def _counted(folder: OutputFolder | None, index: int, items: Iterable[Item]) -> Iterable[Item]:
    """Counts the items of the file with this index as they are read, for `--output-dir`."""
    return items if folder is None else folder.counted(index, items)


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
PATIENCE = 0.01
"""Number of seconds without another line after which a window closes."""


def windows(
    lines: Iterable[str], most: int = 1024, arrival: Arrival | None = None
) -> Generator[list[str], None, None]:
    """Groups lines into windows to translate together.

    A window closes when it is full. If there is an `arrival`, a window also closes when no further line arrives for
    `PATIENCE` seconds, or when it has been open for `MAX_AGE` seconds. So files give full windows, while a person who
    types, or a program that waits for each answer, is answered at once. Little more than one window is held in memory.

    Args:
        lines: the lines. An error that they raise is raised again after the lines before it have been yielded.
        most: maximum number of lines in a window.
        arrival: knows when the next of the `lines` arrives; None if they never wait.
    """
    window: list[str] = []
    characters = 0
    opened = 0.0  # time at which the first line of the window was read
    try:
        for line in lines:
            if not window:
                opened = time.monotonic()
            window.append(line)
            characters += len(line)
            is_closed = len(window) >= most or characters >= MAX_CHARACTERS
            if arrival is not None and not is_closed:
                is_old = time.monotonic() >= opened + MAX_AGE
                is_closed = is_old or not arrival.within(PATIENCE)
            if is_closed:
                yield window
                window = []
                characters = 0
    except Exception:
        if window:
            yield window
        raise
    if window:
        yield window
