"""Reads the lines of files, standard input and archive members, and raises an error at the first fault.

Only LF and CR LF end a line, so that line numbers agree with those of other tools. A byte-order mark at the beginning
is removed. Compressed text is recognized by its first bytes. Text is UTF-8 unless the caller or the command specifies a
different encoding. Lines are decoded in blocks, which is many times faster than decoding them one by one.

`text_file.TextFile` reads in the same way, but records faults and continues; for columns it uses `column_texts` with
`is_strict=False`.
"""

import codecs
import math
import select
import time
from collections import deque
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from nmtkit.core.errors import DataError
from nmtkit.data.text.files.compression import (
    ByteObserver,
    ByteStream,
    DamagedArchiveError,
    decompressed,
    verify_archive,
)
from nmtkit.data.text.files.encoding_messages import (
    bad_byte_message,
    first_bad_byte,
    guess_from_lines,
    why_not_text,
)
from nmtkit.data.text.files.encodings import BAD_BYTE, Recoded
from nmtkit.data.text.files.names import is_tmx, is_utf8, option_encoding, split_reference
from nmtkit.data.text.files.tables import read_column, read_tmx

BLOCK_BYTES = 1 << 19
"""Number of bytes read at a time when whole blocks of lines are needed."""
LINE_BYTES = 1 << 14
"""Number of bytes read at a time when lines are needed one by one."""
MAX_LINE_BYTES = 1 << 24
"""Maximum length of a line in bytes when lines are read one by one."""


class TextBlock(NamedTuple):
    """Consecutive lines of a text."""

    lines: list[str]
    """Lines without their line endings; undecodable bytes are lone surrogates."""
    faulty_rows: list[int]
    """Indices of lines with undecodable bytes."""
    bom_length: int
    """Length of the byte-order mark before the first line, in bytes."""
    data: bytes
    """Bytes of the lines, with their line endings; empty if the lines are the texts of a column."""


class LineTooLongError(Exception):
    """A line is longer than the caller of `read_text_blocks` allows."""


# --------------------------------------------------------------------------------------------------------------- blocks


def read_text_blocks(
    stream: ByteStream,
    chunk_bytes: int,
    max_line_bytes: float = math.inf,
    after_each_read: bool = False,
) -> Iterator[TextBlock]:
    """Yields the lines of a stream in blocks; if reading fails, all complete lines are yielded before the error.

    Args:
        stream: the stream to read.
        chunk_bytes: approximate number of bytes read at a time.
        max_line_bytes: maximum length of a line in bytes; must not be less than `chunk_bytes`.
        after_each_read: whether to yield a block without lines after a read that does not complete a line.

    Raises:
        LineTooLongError: a line is longer than `max_line_bytes`.
        DamagedArchiveError, DataError, OSError: raised by `stream`.
    """
    assert max_line_bytes >= chunk_bytes
    is_first = True
    for data in _whole_lines(stream, chunk_bytes, max_line_bytes):
        if not data and not after_each_read:
            continue
        bom_length = 0
        if is_first and data.startswith(codecs.BOM_UTF8):
            bom_length = len(codecs.BOM_UTF8)  # elsewhere, the mark would be part of the text
        is_first = is_first and not data
        yield _decoded(data[bom_length:], bom_length)


def _whole_lines(stream: ByteStream, chunk_bytes: int, max_line_bytes: float) -> Iterator[bytes]:
    """Yields the bytes of whole lines after each read, b"" if there are none; the last line may lack its newline."""
    pending: list[bytes] = []  # pieces of a line whose newline has not been read yet
    pending_bytes = 0
    while piece := stream.read1(chunk_bytes):
        end = piece.rfind(b"\n") + 1  # 0 if the piece has no newline
        # Only the first line of a piece is checked, because it may have begun in earlier pieces. All other lines are
        # shorter than the piece, which has about `chunk_bytes` and thus at most `max_line_bytes`. A stream may return
        # larger pieces, but the limit only has to prevent binary data from filling the memory.
        bytes_to_first_newline = piece.index(b"\n") if end else len(piece)
        if pending_bytes + bytes_to_first_newline > max_line_bytes:
            raise LineTooLongError
        whole_lines = b""
        if end:
            whole_lines = b"".join([*pending, piece[:end]])
            pending = []
            pending_bytes = 0
        if end < len(piece):
            pending.append(piece[end:])
            pending_bytes += len(piece) - end
        yield whole_lines
    if pending:
        yield b"".join(pending)


def _decoded(data: bytes, bom_length: int) -> TextBlock:
    """Decodes whole lines; `bom_length` is the length of the byte-order mark that was removed before them."""
    unix_data = data.replace(b"\r\n", b"\n") if b"\r" in data else data
    faulty_rows: list[int] = []
    try:
        lines = unix_data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        lines = unix_data.decode("utf-8", errors="surrogateescape").split("\n")
        faulty_rows = [row for row, line in enumerate(lines) if BAD_BYTE.search(line)]
    if not unix_data or unix_data.endswith(b"\n"):
        lines.pop()  # the empty string after the last newline
    elif lines[-1].endswith("\r"):  # the file was cut between \r and \n
        lines[-1] = lines[-1][:-1]
    return TextBlock(lines=lines, faulty_rows=faulty_rows, bom_length=bom_length, data=data)


def text_stream(
    raw: BufferedReader, name: str, encoding: str, observe: ByteObserver | None = None
) -> ByteStream:
    """Returns the bytes of an open file as UTF-8, decompressed and recoded if necessary.

    Args:
        raw: the open file.
        name: name of the file in messages.
        encoding: the file's encoding; "" for UTF-8.
        observe: receives the bytes of the file.
    """
    stream = decompressed(raw, observe)
    if not encoding or is_utf8(encoding):
        return stream
    return Recoded(stream, encoding, name)


# ---------------------------------------------------------------------------------------------------------------- lines


def read_lines(
    path: str | Path, encoding: str = "", arrival: "Arrival | None" = None
) -> Iterator[str]:
    """Yields the lines of a text file, a pipe or FILE#COLUMN, plain or compressed, without newlines.

    Args:
        path: the file.
        encoding: the file's encoding; "" for the encoding that the command's options specify, or else UTF-8.
        arrival: observes the file if its lines may be slow to arrive. TMX files are not observed.

    Raises:
        DataError: the file cannot be read, is damaged or not text, or has a line that is not valid in its encoding.
    """
    file, column = split_reference(str(path))
    encoding = encoding or option_encoding(file)
    try:
        with open(file, "rb") as raw:
            if column and (arrival is None or is_tmx(file)):
                yield from column_texts(raw, file, column=column, encoding=encoding, is_strict=True)
                return
            if arrival is None:
                lines = read_stream_lines(text_stream(raw, file, encoding), file, encoding)
            else:
                lines = arrival.lines(raw, file, encoding)
            yield from read_column(lines, file, column) if column else lines
    except DamagedArchiveError as error:
        raise DataError(f"{file}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_stream_lines(
    stream: ByteStream, name: str, encoding: str = "", remedy: str = ""
) -> Iterator[str]:
    """Yields the lines of an open UTF-8 stream; if a line is faulty, yields all lines before it first.

    Args:
        stream: the stream.
        name: name of the stream in messages; `STDIN` for standard input.
        encoding: the encoding from which the stream was recoded; "" if the original is UTF-8.
        remedy: see `bad_byte_message`.

    Raises:
        DataError: the stream is damaged or not text, or a line is not valid in its encoding or longer than
            `MAX_LINE_BYTES`.
    """
    for lines in _line_blocks(stream, name, encoding=encoding, remedy=remedy):
        yield from lines


def _line_blocks(
    stream: ByteStream, name: str, encoding: str, remedy: str = ""
) -> Iterator[list[str]]:
    """Yields the lines that each read completes; see `read_stream_lines`."""
    n_lines = 0
    is_first = True
    blocks = read_text_blocks(stream, LINE_BYTES, MAX_LINE_BYTES, after_each_read=True)
    try:
        for block in blocks:
            if is_first and block.data:
                _require_text(block, name, encoding)
                is_first = False
            if block.faulty_rows:
                row = block.faulty_rows[0]
                yield block.lines[:row]
                n_lines += row
                # A damaged archive also yields bad bytes; report the damage instead.
                verify_archive(stream)
                byte = first_bad_byte(block.lines[row]) + 1
                if row == 0:
                    byte += block.bom_length
                message = bad_byte_message(
                    name,
                    line_number=n_lines + 1,
                    byte=byte,
                    encoding=encoding,
                    guess=guess_from_lines(block.lines, block.faulty_rows),
                    remedy=remedy,
                )
                raise DataError(message)
            yield block.lines
            n_lines += len(block.lines)
    except LineTooLongError:
        raise DataError(
            f"{name}, line {n_lines + 1}: the line is longer than {MAX_LINE_BYTES:,} bytes, so the file is not text"
        ) from None
    except DamagedArchiveError as error:
        raise DataError(damage_message(name, n_lines, error)) from error


class Arrival:
    """Knows whether the next line of one file, such as a pipe or a terminal, has arrived."""

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        self._blocks: Iterator[list[str]] = iter([])
        self._lines: deque[str] = deque()  # lines that have been read, but not yielded
        self._end: Exception | None = None  # StopIteration at the end of the file, or the fault

    def lines(self, raw: BufferedReader, name: str, encoding: str) -> Iterator[str]:
        """Yields the lines of the open file; see `text_stream` and `read_stream_lines`."""
        self._poll = select.poll()
        self._poll.register(raw, select.POLLIN)
        stream = text_stream(raw, name, encoding)
        self._blocks = _line_blocks(stream, name, encoding)
        while self._lines or self._end is None:
            if self._lines:
                yield self._lines.popleft()
            else:
                self._read()
        if not isinstance(self._end, StopIteration):
            raise self._end

    def within(self, seconds: float) -> bool:
        """Waits for the next line, the end of the file or a fault; returns False if none comes in time.

        The result is also False if the next line is already in the buffer of a decompressor, but nothing else arrives.
        The call takes longer if the bytes that have arrived end inside a compressed block or a character.
        """
        if self._poll is None:
            return True
        deadline = time.monotonic() + seconds
        while not self._lines and self._end is None:
            seconds_left = max(0.0, deadline - time.monotonic())
            if not self._poll.poll(1000 * seconds_left):
                return False
            self._read()
        return True

    def _read(self) -> None:
        """Reads the bytes that have arrived, or waits for more."""
        try:
            self._lines.extend(next(self._blocks))
        except Exception as end:
            self._end = end


def _require_text(first_block: TextBlock, name: str, encoding: str) -> None:
    """Raises a DataError if the first block of a file shows that it is not text."""
    not_text = why_not_text(first_block.data, name, encoding)
    if not_text is not None:
        raise DataError(not_text.message)


def damage_message(name: str, n_lines: int, error: DamagedArchiveError) -> str:
    """Returns the error message for a damaged compressed file whose first `n_lines` lines could be read."""
    message = f"{name}: {error}"
    if n_lines:
        message += f"; the first {n_lines:,} lines could be read"
    return message


# -------------------------------------------------------------------------------------------------------------- columns


def column_texts(
    raw: BufferedReader,
    file: str,
    column: str,
    encoding: str,
    is_strict: bool,
    observe: ByteObserver | None = None,
) -> Iterator[str]:
    """Yields the texts in a column of a table, in a field of a JSONL file, or in a language of a TMX file.

    Args:
        raw: the open file.
        file: path of the file, for messages; its extension determines the format.
        column: name of the column, field or language.
        encoding: the file's encoding; "" for UTF-8 or, in a TMX file, the encoding in its XML declaration.
        is_strict: whether undecodable bytes and over-long lines raise a DataError. Otherwise, undecodable bytes become
            lone surrogates, and lines may have any length. In a TMX file, undecodable bytes always raise a DataError.
        observe: receives the bytes of the file.

    Raises:
        DataError: the file is not text or not a valid table, there is no such column, or, if `is_strict` is set, a line
            is invalid or too long.
        DamagedArchiveError: the file cannot be decompressed completely. If `is_strict` is set, files other than TMX
            files raise a DataError instead.
    """
    if is_tmx(file):
        if encoding:
            stream = text_stream(raw, file, encoding=encoding, observe=observe)
            # The recoded text is UTF-8, regardless of its XML declaration.
            yield from read_tmx(stream, file, language=column, encoding="utf-8")
        else:
            yield from read_tmx(decompressed(raw, observe), file, language=column)
        return
    stream = text_stream(raw, file, encoding=encoding, observe=observe)
    if is_strict:
        lines = read_stream_lines(stream, file, encoding)
    else:
        lines = _lenient_lines(stream, file, encoding)
    yield from read_column(lines, file, column)


def _lenient_lines(stream: ByteStream, name: str, encoding: str) -> Iterator[str]:
    """Yields the lines of a stream, with lone surrogates for undecodable bytes."""
    for number, block in enumerate(read_text_blocks(stream, BLOCK_BYTES)):
        if number == 0:
            _require_text(block, name, encoding)
        yield from block.lines
