"""Standard input as lines of text, for the commands that read it."""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator

from nmtkit.data.reading import refuse_json_lines
from nmtkit.errors import DataError
from nmtkit.settings import parse_json, shortened

STDIN = "standard input"


def stdin_lines() -> Iterator[str]:
    r"""The lines of standard input without their ends; only \n and \r\n end a line, a byte-order mark is left out.

    Raises:
        DataError: it is closed or cannot be read, or a line is not UTF-8.
    """
    if sys.stdin is None:
        raise DataError("standard input: it is closed, and the text is read from it; give it a file with `< FILE`")
    try:
        # Not sys.stdin: a thread may still wait for a line when the program ends, and Python dies if it cannot close
        # that.
        stream = open(0, "rb", closefd=False)  # noqa: SIM115  # closing it would wait for the same line
        for number, line in enumerate(stream, start=1):
            text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as fault:
        raise DataError(
            f"standard input, line {number}: not UTF-8 (byte {fault.start + 1} of the line); "
            "convert it, e.g. with iconv"
        ) from fault
    except OSError as fault:
        raise DataError(f"standard input: cannot read it: {fault.strerror or fault}") from fault


def stdin_texts(remedy: str) -> list[str]:
    """All lines of standard input, which are text; `remedy` is what to do where they are JSON lines.

    Raises:
        DataError: it cannot be read, or holds JSON lines.
    """
    lines = list(stdin_lines())
    refuse_json_lines(lines, STDIN, remedy)
    return lines


def text_windows(remedy: str, most: int = 1024) -> Iterator[list[str]]:
    """The windows of standard input, which holds text; `remedy` is what to do where it holds JSON lines.

    Raises:
        DataError: it cannot be read, or holds JSON lines by the looks of its first window.
    """
    for number, window in enumerate(windows(stdin_lines(), most)):
        if not number:
            refuse_json_lines(window, STDIN, remedy)
        yield window


def stdin_field(name: str) -> Iterator[str]:
    """The values of one key of standard input, where each line is a JSON object; an empty line has an empty value.

    Raises:
        DataError: a line is no such object, or its value is neither a string nor a list of strings.
    """
    for number, line in enumerate(stdin_lines(), start=1):
        if not line.strip():
            yield ""
            continue
        where = f"standard input, line {number}"
        try:
            record = parse_json(line, where)
        except DataError as fault:
            raise DataError(f"{fault}; plain text is read without --article-field") from fault
        if not isinstance(record, dict) or name not in record:
            has = f"it has {shortened(', '.join(record)) or 'none'}" if isinstance(record, dict) else "it is no object"
            raise DataError(f"{where}: no field {name!r}; {has}: name another with --article-field")
        value = record[name]
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if not isinstance(value, str):
            raise DataError(f"{where}: field {name!r} is neither a string nor a list of strings")
        yield " ".join(value.splitlines())  # one article is one line


def windows(lines: Iterable[str], most: int = 1024, patience: float = 0.1) -> Iterator[list[str]]:
    """Cuts a stream of lines into windows to be translated together.

    A window closes when it has `most` lines or when no further line comes for `patience` seconds: a file is cut into
    full windows, while somebody who types, or a program that waits for each answer, is answered at once. The first
    window is smaller, so that first results come early. At most two windows are held in memory. A fault of `lines` is
    raised after the lines before it were given.
    """
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as fault:
            arrived.put(fault)

    threading.Thread(target=read, daemon=True).start()
    limit = min(64, most)
    window: list[str] = []
    while True:
        try:
            item = arrived.get(timeout=patience if window else None)
        except queue.Empty:
            yield window
            window = []
            continue
        if item is None or isinstance(item, BaseException):
            if window:
                yield window
            if item is not None:
                raise item
            return
        window.append(item)
        if len(window) >= limit:
            yield window
            window, limit = [], most
