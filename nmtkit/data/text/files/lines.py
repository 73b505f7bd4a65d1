"""Decodes the bytes of files, standard input and archive members into lines of text.

Only LF and CR LF end a line, so that line numbers agree with other tools. A byte-order mark at the beginning is
removed. Compressed text is recognized by its first bytes. Text is UTF-8 unless the caller or the command names another
encoding. Lines are decoded in blocks, which is many times faster than one by one. `read_lines` stops at the first
fault; a `TextFile` reports faults and continues.
"""

import codecs
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias, cast

from nmtkit.core.errors import DataError
from nmtkit.data.text.faults import (
    BINARY,
    COLUMN,
    COMPRESSION,
    LINE_ENDS,
    MISSING,
    UTF16,
    FaultKind,
    FaultLocation,
    FileFault,
    excerpt,
)
from nmtkit.data.text.files.compression import (
    ByteObserver,
    DamagedArchiveError,
    decompressed,
    verify_archive,
)
from nmtkit.data.text.files.encodings import (
    EncodingEvidence,
    EncodingGuess,
    Recoded,
    encoding_title,
    guess_encoding,
    guess_wide_encoding,
)
from nmtkit.data.text.files.formats import binary_format
from nmtkit.data.text.files.names import STDIN, given_encoding, is_tmx, is_utf8, split_reference
from nmtkit.data.text.files.tables import read_column, read_tmx

BLOCK_BYTES = 1 << 19
"""Number of bytes read at a time when whole blocks of lines are needed."""
LINE_BYTES = 1 << 14
"""Number of bytes read at a time when lines are needed one by one."""
BLOCK_LINES = 4096
"""A `TextFile` reads on only while it holds fewer decoded lines than this."""
MAX_LINE_BYTES = 1 << 24
"""Maximum length of a line in bytes when lines are read one by one."""

ByteObserverFactory: TypeAlias = Callable[[str], ByteObserver]
"""Takes the path of a file that is being opened; returns the observer of its bytes."""

_BAD_BYTE = re.compile("[\udc80-\udcff]")
_COLUMN_LINES = 512
"""Number of texts in a block of a column."""
_MAX_GUESSES = 3
"""Maximum number of attempts to guess a file's encoding: a guess may take a second, and fails for binary data."""
_SAMPLE_LINES = 500
"""Maximum number of undecodable lines from which the encoding of a file is guessed for a message."""


class TextBlock(NamedTuple):
    """Consecutive lines of a text."""

    lines: list[str]
    """Lines without their line ends; undecodable bytes are lone surrogates."""
    faulty: list[int]
    """Indices of lines with undecodable bytes."""
    bom_length: int
    """Length of the byte-order mark before the first line, in bytes."""
    data: bytes
    """Bytes of the lines, with their line ends."""


class _LineTooLong(Exception):
    pass


def read_text_blocks(
    stream: BinaryIO, chunk_bytes: int, max_line_bytes: float = math.inf
) -> Iterator[TextBlock]:
    """Yields the lines of a stream in blocks; if reading fails, all complete lines are yielded before the error.

    Args:
        stream: the bytes.
        chunk_bytes: maximum number of bytes read at a time.
        max_line_bytes: longer lines raise `_LineTooLong`; at least `chunk_bytes`.
    """
    is_first = True
    for data in _whole_lines(stream, chunk_bytes, max_line_bytes):
        bom_length = 0
        if is_first and data.startswith(codecs.BOM_UTF8):  # elsewhere it is part of the text
            bom_length = len(codecs.BOM_UTF8)
        yield _decoded(data[bom_length:], bom_length)
        is_first = False


def _whole_lines(stream: BinaryIO, chunk_bytes: int, max_line_bytes: float) -> Iterator[bytes]:
    """Yields the bytes of whole lines; the last line may lack its line end."""
    parts: list[bytes] = []  # the beginning of a line whose end has not been read yet
    length = 0  # of all parts
    while piece := stream.read1(chunk_bytes):  # type: ignore[attr-defined]  # all streams that are opened here have it
        end = piece.rfind(b"\n") + 1  # 0 if the piece has no line end
        # Only the first line of a piece can be too long: it may have begun in earlier pieces, whereas all other lines
        # are shorter than the piece.
        first_line_rest = piece.index(b"\n") if end else len(piece)
        if length + first_line_rest > max_line_bytes:
            raise _LineTooLong
        if end:
            yield b"".join([*parts, piece[:end]])
            parts = []
            length = 0
        if end < len(piece):
            parts.append(piece[end:])
            length += len(piece) - end
    if parts:
        yield b"".join(parts)


def _decoded(data: bytes, bom_length: int) -> TextBlock:
    text = data.replace(b"\r\n", b"\n") if b"\r" in data else data
    faulty: list[int] = []
    try:
        lines = text.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        lines = text.decode("utf-8", errors="surrogateescape").split("\n")
        faulty = [row for row, line in enumerate(lines) if _BAD_BYTE.search(line)]
    if text.endswith(b"\n"):
        lines.pop()
    elif lines[-1].endswith("\r"):  # the file was cut between \r and \n
        lines[-1] = lines[-1][:-1]
    return TextBlock(lines=lines, faulty=faulty, bom_length=bom_length, data=data)


def first_bad_byte(line: str) -> int:
    """Returns the byte position, counted from 0, of the first undecodable byte of a line that has one."""
    position = next(_BAD_BYTE.finditer(line)).start()
    return len(line[:position].encode("utf-8"))


def explain_bad_bytes(line: str, guess: EncodingGuess) -> str:
    """Returns an excerpt of a line that is not UTF-8, decoded with the encoding that its file is guessed to have."""
    name = guess.names[0] if guess.certain else "cp1252"
    data = line.encode("utf-8", "surrogateescape")
    text = data.decode(name, "replace")
    # In a single-byte encoding the byte position equals the character position; in others it is approximate.
    position = min(first_bad_byte(line), len(text) - 1)
    return f"as {encoding_title(name)}: {excerpt(text, position)}"


def guess_of_lines(lines: Sequence[str], faulty: Sequence[int]) -> EncodingGuess:
    """Guesses the encoding of a file from its lines that are not UTF-8."""
    sample = "\n".join(lines[row] for row in faulty[:_SAMPLE_LINES])
    return guess_encoding(sample.encode("utf-8", "surrogateescape"))


def encoding_advice(guess: EncodingGuess, where: str) -> str:
    """Returns the end of an error message: how to fix the encoding."""
    convert = "" if where.startswith(STDIN) else ", or convert the file with `nmtkit check --fix`"
    if not guess.names:
        return "convert it to UTF-8, or name its encoding with --encoding"
    if len(guess.names) == 1:
        return f"it looks like {guess.title}. Pass --encoding {guess.names[0]}{convert}"
    return (
        f"it may be {guess.title}. Pass the right encoding: --encoding {' or '.join(guess.names)}"
    )


def bad_bytes_message(
    where: str,
    line: str,
    encoding: str,
    guess: EncodingGuess,
    bom_length: int = 0,
    remedy: str = "",
) -> str:
    """Returns the message for a line that is not valid in its file's encoding.

    Args:
        where: file and line number.
        line: the text, with lone surrogates for undecodable bytes.
        encoding: the encoding that the user named for the file; "" for UTF-8.
        guess: the encoding that the file is guessed to have.
        bom_length: length of the byte-order mark before the line.
        remedy: replaces `encoding_advice` for files whose encoding no option can set.
    """
    if encoding:
        title = encoding_title(encoding)
        if where.startswith(STDIN):
            return f"{where}: not valid {title}, which was named as its encoding. Name another with --encoding"
        return (
            f"{where}: not valid {title}, which was named as the encoding of the file. Name "
            "another with --encoding (in a recipe: `encoding`), or leave such lines out with `nmtkit check --fix`"
        )
    place = f"byte {bom_length + first_bad_byte(line) + 1} of the line"
    return f"{where}: not valid UTF-8 ({place}); {remedy or encoding_advice(guess, where)}"


class _NotText(NamedTuple):
    """The reason why a file cannot be read as text."""

    kind: FaultKind
    title: str
    """The format or encoding of the file."""
    message: str
    guess: EncodingGuess | None = None
    """UTF-16 or UTF-32 if the file is text in one of these encodings."""


def _why_not_text(data: bytes, where: str, encoding: str) -> _NotText | None:
    """Recognizes binary files by their first bytes, and UTF-16 and UTF-32 unless an encoding is named."""
    binary = binary_format(data)
    if binary:
        message = f"{where}: this is {binary.title}, not text. {binary.advice.rstrip('.')}"
        return _NotText(BINARY, binary.title, message)
    guess = None if encoding else guess_wide_encoding(data)
    if guess is None:
        return None
    convert = "" if where.startswith(STDIN) else ", or convert it with `nmtkit check --fix`"
    message = (
        f"{where}: this is {guess.title}, not UTF-8. Pass --encoding {guess.names[0]}{convert}"
    )
    return _NotText(UTF16, guess.title, message, guess)


# ----------------------------------------------------------------------------- strict reading: stop at the first fault


def text_stream(
    file: BinaryIO, where: str, encoding: str = "", observe: ByteObserver | None = None
) -> BinaryIO:
    """Returns the bytes of an open file as UTF-8, decompressed and recoded if necessary.

    `encoding` is the file's encoding. By default it is the encoding that the command names, or else UTF-8.
    """
    stream = decompressed(file, observe)
    name = encoding or given_encoding(where)
    if not name or is_utf8(name):
        return stream
    return cast(BinaryIO, Recoded(stream, name, where))


def read_lines(path: str | Path, encoding: str = "") -> Iterator[str]:
    """Yields the lines of a text file, a pipe or FILE#COLUMN, plain or compressed, without line ends."""
    file, column = split_reference(str(path))
    try:
        with open(file, "rb") as raw:
            if column:
                yield from _column_texts(
                    raw, file, column=column, encoding=encoding or given_encoding(file)
                )
                return
            yield from read_stream_lines(text_stream(raw, str(path), encoding), str(path), encoding)
    except OSError as error:
        raise DataError(f"{path}: cannot read it: {error.strerror or error}") from error


def read_stream_lines(
    stream: BinaryIO, where: str, encoding: str = "", remedy: str = ""
) -> Iterator[str]:
    """Yields the lines of an open UTF-8 stream; raises an error only after all lines before it.

    Args:
        stream: the stream.
        where: name of the stream in messages.
        encoding: the encoding from which the stream was recoded; "" if the original is UTF-8.
        remedy: see `bad_bytes_message`.

    Raises:
        DataError: the stream is damaged or not text, or a line is longer than `MAX_LINE_BYTES`.
    """
    encoding = encoding or given_encoding(where)
    n_lines = 0
    try:
        for block in read_text_blocks(stream, LINE_BYTES, MAX_LINE_BYTES):
            if not n_lines:
                _require_text(block.data, where, encoding)
            if block.faulty:
                row = block.faulty[0]
                yield from block.lines[:row]
                # A damaged archive also yields bad bytes; report the damage instead.
                verify_archive(stream)
                raise DataError(
                    bad_bytes_message(
                        f"{where}, line {n_lines + row + 1}",
                        block.lines[row],
                        encoding=encoding,
                        guess=guess_of_lines(block.lines, block.faulty),
                        bom_length=0 if n_lines + row else block.bom_length,
                        remedy=remedy,
                    )
                )
            yield from block.lines
            n_lines += len(block.lines)
    except _LineTooLong:
        raise DataError(
            f"{where}, line {n_lines + 1}: more than {MAX_LINE_BYTES:,} bytes without a line end; this is not text"
        ) from None
    except DamagedArchiveError as error:
        raise DataError(_damage_message(where, n_lines, error)) from error


def _column_texts(
    raw: BinaryIO, file: str, column: str, encoding: str, observe: ByteObserver | None = None
) -> Iterator[str]:
    """Yields the texts of a column of an open file; undecodable bytes are lone surrogates."""
    try:
        if is_tmx(file) and encoding:
            recoded = text_stream(raw, file, encoding=encoding, observe=observe)
            yield from read_tmx(recoded, file, language=column, encoding="utf-8")
        elif is_tmx(file):  # its XML declaration names the encoding
            yield from read_tmx(decompressed(raw, observe), file, column)
        else:
            stream = text_stream(raw, file, encoding=encoding, observe=observe)
            yield from read_column(_lines_for_column(stream, file, encoding), file, column)
    except DamagedArchiveError as error:
        raise DataError(f"{file}: {error}") from error


def _lines_for_column(stream: BinaryIO, file: str, encoding: str) -> Iterator[str]:
    is_first = True
    for block in read_text_blocks(stream, BLOCK_BYTES):
        if is_first:
            _require_text(block.data, file, encoding)
            is_first = False
        yield from block.lines


def _require_text(data: bytes, where: str, encoding: str) -> None:
    not_text = _why_not_text(data, where, encoding)
    if not_text:
        raise DataError(not_text.message)


def _damage_message(where: str, n_lines: int, error: DamagedArchiveError) -> str:
    message = f"{where}: {error}"
    if n_lines:
        message += f"; the first {n_lines:,} lines could be read"
    return message


# ----------------------------------------------------------------------------------- lenient reading: collect faults


class TextFile:
    """The lines of one file, plain or compressed, and its faults."""

    def __init__(
        self,
        path: str,
        observer_for: ByteObserverFactory | None = None,
        allow_pipes: bool = False,
        encoding: str = "",
    ) -> None:
        """Opens nothing; `fill` opens the file.

        Args:
            path: a file, or FILE#COLUMN.
            observer_for: makes the observer of the file's bytes.
            allow_pipes: accepts a path that is not a regular file, such as a named pipe.
            encoding: the file's encoding. By default it is the encoding that the command names, or else UTF-8.
        """
        self.path = path
        self._file, self._column = split_reference(path)
        self.encoding = encoding or given_encoding(self._file)
        """The encoding that the user named for the file; "" for UTF-8."""
        self.guess = EncodingGuess((), False)
        """The file's probable encoding, guessed from its first lines that are not UTF-8."""
        self._n_guesses = 0
        self.n_lines = 0
        """Number of lines decoded so far, including lines that have not been taken yet."""
        self.bom_length = 0
        """Length of the byte-order mark, in bytes."""
        self.is_readable = True
        """False once the file turned out to be damaged, binary or unreadable."""
        self._observer_for = observer_for
        self._allow_pipes = allow_pipes
        self._new_faults: list[FileFault] = []
        self._line_ends = 0
        self._crlf_ends = 0  # number of line ends that are \r\n
        self._first_crlf_line = 0
        self._blocks = self._read()
        self._ready: list[str] = []  # lines that have been decoded, but not taken yet
        self._faulty: list[int] = []  # undecodable lines not taken yet, counted from 0 in the file

    def fill(self, min_lines: int = 0) -> int:
        """Reads more lines if few are ready: at least `min_lines`, unless the file ends before.

        Otherwise it stops after about `BLOCK_BYTES`. Returns the number of lines that can be taken.
        """
        read_bytes = 0
        while len(self._ready) < min_lines or (
            len(self._ready) < BLOCK_LINES and read_bytes < BLOCK_BYTES
        ):
            block = next(self._blocks, None)
            if block is None:
                break
            self._ready += block.lines
            read_bytes += len(block.data)
        return len(self._ready)

    def take(self, count: int) -> tuple[list[str], list[int]]:
        """Returns the next `count` lines, and the indices of undecodable ones among them."""
        first = self.n_lines - len(self._ready)  # counted from 0 in the file
        end = first + count
        lines = self._ready[:count]
        self._ready = self._ready[count:]
        faulty = [number - first for number in self._faulty if number < end]
        self._faulty = self._faulty[len(faulty) :]
        return lines, faulty

    def skip_rest(self) -> None:
        """Reads to the end of the file to count its lines."""
        while count := self.fill():
            self.take(count)

    def new_faults(self) -> list[FileFault]:
        """Returns the faults of the file as a whole that were found since the last call."""
        faults = self._new_faults
        self._new_faults = []
        return faults

    def _read(self) -> Iterator[TextBlock]:
        path = Path(self._file)
        try:
            if not self._allow_pipes and path.exists() and not path.is_file():
                raise OSError("it is not a file")
            with open(self._file, "rb", buffering=1 << 19) as raw:
                observe = self._observer_for(self._file) if self._observer_for else None
                if self._column:
                    yield from self._read_column(raw, observe)
                    return
                stream = text_stream(raw, self.path, encoding=self.encoding, observe=observe)
                for block in read_text_blocks(stream, BLOCK_BYTES):
                    if self.n_lines == 0:
                        not_text = _why_not_text(block.data, self.path, self.encoding)
                        if not_text:
                            self.guess = not_text.guess or self.guess
                            self._add_fault(
                                not_text.kind, 1, text=not_text.title, message=not_text.message
                            )
                            return
                        self.bom_length = block.bom_length
                    self._update_guess(block.lines, block.faulty)
                    self._count_line_ends(block.data)
                    self._faulty += [self.n_lines + row for row in block.faulty]
                    self.n_lines += len(block.lines)
                    yield block
        except DamagedArchiveError as error:
            message = _damage_message(self.path, self.n_lines, error)
            self._add_fault(COMPRESSION, self.n_lines + 1, text=str(error), message=message)
            return
        except OSError as error:
            why = error.strerror or str(error)
            self._add_fault(MISSING, 1, text=why, message=f"{self.path}: cannot read it: {why}")
            return
        has_other_ends = self._crlf_ends < self._line_ends
        if self._crlf_ends and has_other_ends:
            place = FaultLocation(self.path, self._first_crlf_line)
            self._new_faults.append(FileFault(LINE_ENDS, place, message="", count=self._crlf_ends))

    def _read_column(self, raw: BinaryIO, observe: ByteObserver | None) -> Iterator[TextBlock]:
        texts = _column_texts(
            raw, self._file, column=self._column, encoding=self.encoding, observe=observe
        )
        try:
            while lines := list(islice(texts, _COLUMN_LINES)):
                faulty = []
                for row, line in enumerate(lines):
                    if not line.isascii() and _BAD_BYTE.search(line):
                        faulty.append(row)
                self._update_guess(lines, faulty)
                self._faulty += [self.n_lines + row for row in faulty]
                self.n_lines += len(lines)
                yield TextBlock(lines=lines, faulty=faulty, bom_length=0, data=b"")
        except DataError as error:
            self._add_fault(COLUMN, self.n_lines + 1, text=str(error), message=str(error))

    def _update_guess(self, lines: Sequence[str], faulty: Sequence[int]) -> None:
        """Guesses the encoding from undecodable lines, unless an earlier guess has succeeded."""
        if faulty and not self.guess.names and self._n_guesses < _MAX_GUESSES:
            self._n_guesses += 1
            self.guess = guess_of_lines(lines, faulty)

    def _count_line_ends(self, block: bytes) -> None:
        crlf_ends = 0
        if b"\r" in block:  # a quick test: hardly any text has this byte
            crlf_ends = block.count(b"\r\n")
        if crlf_ends and not self._crlf_ends:
            lines_before = block.count(b"\n", 0, block.index(b"\r\n"))
            self._first_crlf_line = self.n_lines + lines_before + 1
        self._crlf_ends += crlf_ends
        self._line_ends += block.count(b"\n")

    def _add_fault(self, kind: FaultKind, line: int, text: str, message: str) -> None:
        """Adds a fault after which nothing more can be read."""
        self.is_readable = False
        self._new_faults.append(FileFault(kind, FaultLocation(self.path, line, text=text), message))


def read_lines_lenient(path: str, encoding: str = "") -> Iterator[str]:
    """Yields the lines of a text file as far as it can be read, with lone surrogates for undecodable bytes."""
    file = TextFile(path, encoding=encoding)
    while count := file.fill():
        lines, _ = file.take(count)
        yield from lines


def file_encoding(path: str) -> EncodingEvidence:
    """Reads a whole file, and returns evidence about its encoding."""
    file = TextFile(path)
    evidence = EncodingEvidence()
    while count := file.fill():
        lines, faulty = file.take(count)
        evidence.add(lines, faulty)
    if not file.is_readable and file.guess.certain:
        evidence.wide = file.guess
    return evidence
