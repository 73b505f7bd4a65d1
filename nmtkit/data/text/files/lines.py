"""Decodes the bytes of files, standard input and archive members to lines of text.

Only LF and CR LF end a line, so that line numbers agree with other tools. A byte-order mark at the beginning is
removed. Compressed text is recognized by its first bytes. Text is UTF-8, unless the caller or the command names another
encoding. Lines are read in blocks, which is many times faster than one by one. `read_lines` stops at the first fault; a
`TextFile` reports faults and continues.
"""

import codecs
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias, cast

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import suggest_names
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
from nmtkit.data.text.files.compression import DamagedArchiveError, decompressed, verify_archive
from nmtkit.data.text.files.encodings import (
    EncodingEvidence,
    EncodingGuess,
    Recoded,
    encoding_title,
    guess_encoding,
    guess_wide_encoding,
)
from nmtkit.data.text.files.formats import FileFormat, binary_format
from nmtkit.data.text.files.names import STDIN, given_encoding, is_tmx, is_utf8, split_reference
from nmtkit.data.text.files.tables import read_column, read_tmx

BLOCK_BYTES = 1 << 19
"""Number of bytes that are read at once for blocks of lines."""
LINE_BYTES = 1 << 14
"""Number of bytes that are read at once for single lines."""
BLOCK_LINES = 4096
"""A `TextFile` reads more bytes only while fewer decoded lines than this are ready."""
MAX_LINE_BYTES = 1 << 24
"""Maximum number of bytes of a line where lines are read one by one."""

ByteObserver: TypeAlias = Callable[[str], Callable[[bytes], object]]
"""Takes the path of a file that is opened; returns a function that is called with all its bytes as stored on disk."""

_BAD_BYTE = re.compile("[\udc80-\udcff]")
_COLUMN_LINES = 512
"""Number of texts of a column that are read at once."""
_MAX_GUESSES = 3
"""Number of blocks by which the encoding of a file is guessed: a guess may take a second, and fails for binary data."""
_SAMPLE_LINES = 500
"""Maximum number of lines by which the encoding of a file is guessed for a message."""


class TextBlock(NamedTuple):
    """Consecutive lines of a text."""

    lines: list[str]
    """Lines without their ends; bytes that are not valid are lone surrogates."""
    faulty: list[int]
    """Indices of lines that are not valid UTF-8."""
    mark: int
    """Length of the byte-order mark before the first line."""
    data: bytes
    """Bytes of the lines, with their ends."""


class _LineTooLong(Exception):
    pass


def read_text_blocks(stream: BinaryIO, size: int, longest: float = math.inf) -> Iterator[TextBlock]:
    """Yields the lines of a stream in blocks; an error of the stream is raised after the complete lines before it."""
    is_first = True
    for data in _whole_lines(stream, size, longest):
        mark = 0
        if is_first and data.startswith(codecs.BOM_UTF8):  # elsewhere it is part of the text
            mark = len(codecs.BOM_UTF8)
        yield _decoded(data[mark:], mark)
        is_first = False


def _whole_lines(stream: BinaryIO, size: int, longest: float) -> Iterator[bytes]:
    """Yields the bytes of whole lines; the last line may lack its end."""
    parts: list[bytes] = []  # the beginning of a line whose end was not read yet
    length = 0  # of all parts
    while piece := stream.read1(size):  # type: ignore[attr-defined]  # all streams that are opened here have it
        end = piece.rfind(b"\n") + 1  # 0 if the piece has no line end
        rest_of_line = piece.index(b"\n") if end else len(piece)
        if length + rest_of_line > longest:
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


def _decoded(data: bytes, mark: int) -> TextBlock:
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
    return TextBlock(lines=lines, faulty=faulty, mark=mark, data=data)


def first_bad_byte(line: str) -> int:
    """Returns the position in bytes, from 0, of the first byte that is not UTF-8, in a line that has such a byte."""
    position = next(_BAD_BYTE.finditer(line)).start()
    return len(line[:position].encode("utf-8"))


def explain_bad_bytes(line: str, guess: EncodingGuess) -> str:
    """Returns an excerpt of a line that is not UTF-8, decoded with the encoding that its file seems to have."""
    name = guess.names[0] if guess.certain else "cp1252"
    data = line.encode("utf-8", "surrogateescape")
    text = data.decode(name, "replace")
    # The position in bytes is that in characters too, except in encodings with several bytes for a character.
    position = min(first_bad_byte(line), len(text) - 1)
    return f"as {encoding_title(name)}: {excerpt(text, position)}"


def guess_of_lines(lines: Sequence[str], faulty: Sequence[int]) -> EncodingGuess:
    """Guesses the encoding of a file by its lines that are not UTF-8."""
    sample = "\n".join(lines[row] for row in faulty[:_SAMPLE_LINES])
    return guess_encoding(sample.encode("utf-8", "surrogateescape"))


def encoding_advice(guess: EncodingGuess, where: str) -> str:
    """Returns the remedy for a text in another encoding, the second half of a sentence."""
    convert = "" if where.startswith(STDIN) else ", or convert the file with `nmtkit check --fix`"
    if not guess.names:
        return "convert it to UTF-8, or name its encoding with --encoding"
    if len(guess.names) == 1:
        return f"it looks like {guess.title}. Pass --encoding {guess.names[0]}{convert}"
    return (
        f"it may be {guess.title}. Pass the right encoding: --encoding {' or '.join(guess.names)}"
    )


def bad_bytes_message(
    where: str, line: str, encoding: str, guess: EncodingGuess, mark: int = 0, remedy: str = ""
) -> str:
    """Returns the message for a line that is not valid in the encoding of its file.

    Args:
        where: file and line.
        line: the text, with lone surrogates for bytes that are not valid.
        encoding: the encoding that was named; "" for UTF-8.
        guess: the encoding that the file seems to have.
        mark: length of the byte-order mark before the line.
        remedy: advice in place of `encoding_advice`, if no option names the encoding of the file.
    """
    if encoding:
        title = encoding_title(encoding)
        if where.startswith(STDIN):
            return f"{where}: not valid {title}, which was named as its encoding. Name another with --encoding"
        return (
            f"{where}: not valid {title}, which was named as the encoding of the file. Name "
            "another with --encoding (in a recipe: `encoding`), or leave such lines out with `nmtkit check --fix`"
        )
    place = f"byte {mark + first_bad_byte(line) + 1} of the line"
    return f"{where}: not valid UTF-8 ({place}); {remedy or encoding_advice(guess, where)}"


def _binary_message(where: str, kind: FileFormat) -> str:
    return f"{where}: this is {kind.title}, not text. {kind.advice.rstrip('.')}"


def _wide_message(where: str, guess: EncodingGuess) -> str:
    convert = "" if where.startswith(STDIN) else ", or convert it with `nmtkit check --fix`"
    return f"{where}: this is {guess.title}, not UTF-8. Pass --encoding {guess.names[0]}{convert}"


# --------------------------------------------------------------------------------------------------------- sound text


def text_stream(
    file: BinaryIO, where: str, encoding: str = "", observe: Callable[[bytes], object] | None = None
) -> BinaryIO:
    """Returns the bytes of an open file as UTF-8: decompressed and recoded if necessary.

    `encoding` is the encoding of the file; "" for the one that the command names, or UTF-8.
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
                yield from _read_part(
                    raw, file, column=column, encoding=encoding or given_encoding(file)
                )
                return
            yield from read_stream_lines(text_stream(raw, str(path), encoding), str(path), encoding)
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault


def read_stream_lines(
    stream: BinaryIO, where: str, encoding: str = "", remedy: str = ""
) -> Iterator[str]:
    """Yields the lines of an open stream of UTF-8; raises an error after the lines before it.

    Args:
        stream: the stream.
        where: its name in messages.
        encoding: the encoding from which it was recoded; "" for UTF-8.
        remedy: see `bad_bytes_message`.

    Raises:
        DataError: the stream is damaged or not text, or more than `MAX_LINE_BYTES` bytes have no line end.
    """
    encoding = encoding or given_encoding(where)
    count = 0
    try:
        for block in read_text_blocks(stream, LINE_BYTES, MAX_LINE_BYTES):
            if not count:
                _require_text(block.data, where, encoding)
            if block.faulty:
                row = block.faulty[0]
                yield from block.lines[:row]
                verify_archive(stream)
                raise DataError(
                    bad_bytes_message(
                        f"{where}, line {count + row + 1}",
                        block.lines[row],
                        encoding=encoding,
                        guess=guess_of_lines(block.lines, block.faulty),
                        mark=0 if count + row else block.mark,
                        remedy=remedy,
                    )
                )
            yield from block.lines
            count += len(block.lines)
    except _LineTooLong:
        raise DataError(
            f"{where}, line {count + 1}: more than {MAX_LINE_BYTES:,} bytes without a line end; this is not text"
        ) from None
    except DamagedArchiveError as fault:
        raise DataError(_damage_message(where, count, fault)) from fault


def _read_part(
    raw: BinaryIO,
    file: str,
    column: str,
    encoding: str,
    observe: Callable[[bytes], object] | None = None,
) -> Iterator[str]:
    """Yields the texts of a column of an open file; bytes that are not valid are lone surrogates."""
    try:
        if is_tmx(file) and encoding:
            recoded = text_stream(raw, file, encoding=encoding, observe=observe)
            yield from read_tmx(recoded, file, language=column, encoding="utf-8")
        elif is_tmx(file):  # its XML declaration names the encoding
            yield from read_tmx(decompressed(raw, observe), file, column)
        else:
            stream = text_stream(raw, file, encoding=encoding, observe=observe)
            yield from read_column(_lines_of_part(stream, file, encoding), file, column)
    except DamagedArchiveError as fault:
        raise DataError(f"{file}: {fault}") from fault


def _lines_of_part(stream: BinaryIO, file: str, encoding: str) -> Iterator[str]:
    first = True
    for block in read_text_blocks(stream, BLOCK_BYTES):
        if first:
            _require_text(block.data, file, encoding)
            first = False
        yield from block.lines


def _require_text(data: bytes, where: str, encoding: str) -> None:
    """Raises DataError if a file that begins with these bytes is binary, or is UTF-16 and no encoding is named."""
    kind = binary_format(data)
    if kind:
        raise DataError(_binary_message(where, kind))
    wide_encoding = None if encoding else guess_wide_encoding(data)
    if wide_encoding:
        raise DataError(_wide_message(where, wide_encoding))


def _damage_message(where: str, count: int, fault: DamagedArchiveError) -> str:
    message = f"{where}: {fault}"
    if count:
        message += f"; the first {count:,} lines could be read"
    return message


# ------------------------------------------------------------------------------------------------- text with its faults


class TextFile:
    """The lines of one file, plain or compressed, with all its faults. With `pipes` the file may be a pipe."""

    def __init__(
        self, path: str, watch: ByteObserver | None = None, pipes: bool = False, encoding: str = ""
    ) -> None:
        self.path = path
        self._file, self._column = split_reference(path)
        self.encoding = encoding or given_encoding(self._file)
        """The encoding that was named for the file; "" for UTF-8."""
        self.guess = EncodingGuess((), False)
        """The encoding that the file seems to have, guessed by the first lines that are not UTF-8."""
        self._guesses = 0
        self.count = 0
        """Number of lines read so far."""
        self.mark = 0
        """Length of the byte-order mark."""
        self.whole = True
        """Whether the file could be read to its end, or so far."""
        self._watch = watch
        self._pipes = pipes
        self._new_faults: list[FileFault] = []
        self._line_ends = 0
        self._crlf_ends = 0  # line ends of \r\n
        self._first_crlf_line = 0
        self._blocks = self._read()
        self._ready: list[str] = []  # lines that were read, but not taken
        # lines that are not UTF-8 and were not taken, counted from 0 in the file
        self._faulty: list[int] = []

    def fill(self, least: int = 0) -> int:
        """Reads about `BLOCK_BYTES` if few lines are ready.

        Returns the number of lines that can be taken: fewer than `least` only at the end of the file.
        """
        read_bytes = 0
        while len(self._ready) < least or (
            len(self._ready) < BLOCK_LINES and read_bytes < BLOCK_BYTES
        ):
            block = next(self._blocks, None)
            if block is None:
                break
            self._ready += block.lines
            read_bytes += len(block.data)
        return len(self._ready)

    def take(self, count: int) -> tuple[list[str], list[int]]:
        """Returns the next lines, and the indices of lines that are not UTF-8."""
        first = self.count - len(self._ready)  # counted from 0 in the file
        end = first + count
        lines = self._ready[:count]
        self._ready = self._ready[count:]
        faulty = [number - first for number in self._faulty if number < end]
        self._faulty = self._faulty[len(faulty) :]
        return lines, faulty

    def skip_rest(self) -> None:
        """Reads to the end of the file, to count the lines."""
        while count := self.fill():
            self.take(count)

    def new_faults(self) -> list[FileFault]:
        """Returns the faults of the whole file that were found since the last call."""
        faults = self._new_faults
        self._new_faults = []
        return faults

    def _read(self) -> Iterator[TextBlock]:
        path = Path(self._file)
        try:
            if not self._pipes and path.exists() and not path.is_file():
                raise OSError("it is not a file")
            with open(self._file, "rb", buffering=1 << 19) as raw:
                observe = self._watch(self._file) if self._watch else None
                if self._column:
                    yield from self._read_column(raw, observe)
                    return
                stream = text_stream(raw, self.path, encoding=self.encoding, observe=observe)
                for block in read_text_blocks(stream, BLOCK_BYTES):
                    if self.count == 0:
                        kind = binary_format(block.data)
                        if kind:
                            message = _binary_message(self.path, kind)
                            self._broken(BINARY, line=1, text=kind.title, message=message)
                            return
                        wide_encoding = None if self.encoding else guess_wide_encoding(block.data)
                        if wide_encoding:
                            self.guess = wide_encoding
                            message = _wide_message(self.path, wide_encoding)
                            self._broken(UTF16, line=1, text=wide_encoding.title, message=message)
                            return
                        self.mark = block.mark
                    self._guess(block.lines, block.faulty)
                    self._count_ends(block.data)
                    self._faulty += [self.count + row for row in block.faulty]
                    self.count += len(block.lines)
                    yield block
        except DamagedArchiveError as fault:
            message = _damage_message(self.path, self.count, fault)
            self._broken(COMPRESSION, line=self.count + 1, text=str(fault), message=message)
            return
        except OSError as fault:
            why = fault.strerror or str(fault)
            self._broken(MISSING, line=1, text=why, message=f"{self.path}: cannot read it: {why}")
            return
        has_other_ends = self._crlf_ends < self._line_ends
        if self._crlf_ends and has_other_ends:
            place = FaultLocation(self.path, self._first_crlf_line)
            self._new_faults.append(FileFault(LINE_ENDS, place, message="", count=self._crlf_ends))

    def _read_column(
        self, raw: BinaryIO, observe: Callable[[bytes], object] | None
    ) -> Iterator[TextBlock]:
        texts = _read_part(
            raw, self._file, column=self._column, encoding=self.encoding, observe=observe
        )
        try:
            while lines := list(islice(texts, _COLUMN_LINES)):
                faulty = []
                for row, line in enumerate(lines):
                    if not line.isascii() and _BAD_BYTE.search(line):
                        faulty.append(row)
                self._guess(lines, faulty)
                self._faulty += [self.count + row for row in faulty]
                self.count += len(lines)
                yield TextBlock(lines=lines, faulty=faulty, mark=0, data=b"")
        except DataError as fault:
            self._broken(COLUMN, line=self.count + 1, text=str(fault), message=str(fault))

    def _guess(self, lines: Sequence[str], faulty: Sequence[int]) -> None:
        """Guesses the encoding by lines that are not UTF-8, unless it was guessed before."""
        if faulty and not self.guess.names and self._guesses < _MAX_GUESSES:
            self._guesses += 1
            self.guess = guess_of_lines(lines, faulty)

    def _count_ends(self, block: bytes) -> None:
        crlf_ends = 0
        if b"\r" in block:  # a quick test, which hardly any text passes
            crlf_ends = block.count(b"\r\n")
        if crlf_ends and not self._crlf_ends:
            lines_before = block.count(b"\n", 0, block.index(b"\r\n"))
            self._first_crlf_line = self.count + lines_before + 1
        self._crlf_ends += crlf_ends
        self._line_ends += block.count(b"\n")

    def _broken(self, kind: FaultKind, line: int, text: str, message: str) -> None:
        self.whole = False
        self._new_faults.append(FileFault(kind, FaultLocation(self.path, line, text=text), message))


def read_lines_lenient(path: str, encoding: str = "") -> Iterator[str]:
    """Yields the lines of a text file as far as it can be read, with lone surrogates for bytes that are not valid."""
    file = TextFile(path, encoding=encoding)
    while count := file.fill():
        lines, _ = file.take(count)
        yield from lines


def file_encoding(path: str) -> EncodingEvidence:
    """Reads a file; returns evidence about its encoding."""
    file = TextFile(path)
    evidence = EncodingEvidence()
    while count := file.fill():
        lines, faulty = file.take(count)
        evidence.add(lines, faulty)
    if not file.whole and file.guess.certain:
        evidence.wide = file.guess
    return evidence


SENTENCE_RULES = ("auto", "tags", "newline", "punctuation")

_TAG = re.compile(r"</?[tsq]>")
_END = re.compile(r"([.!?][\"'”’»)\]]*)\s+")


def split_sentences(text: str, rule: str = "auto") -> list[str]:
    """Splits a text into sentences, for ROUGE-Lsum and models of documents, by one of four rules.

    * "tags": at the tags of CNN/DailyMail files (`<t>`, `</t>`; also `<s>`, `</s>` and `<q>`), which are removed.
    * "newline": at newlines only, as rouge-score does; ROUGE-Lsum of a one-line text then equals its ROUGE-L.
    * "punctuation": at white space after ".", "!" or "?" and closing quotes and brackets; "Mr. Smith" is split too.
    * "auto": "tags" if the text has any, else "newline" if it has any, else "punctuation".
    """
    if rule not in SENTENCE_RULES:
        raise NmtkitError(f"unknown sentence rule {rule!r}: {suggest_names(rule, SENTENCE_RULES)}")
    if rule == "auto" and _TAG.search(text):
        rule = "tags"
    elif rule == "auto" and "\n" in text:
        rule = "newline"
    if rule == "tags":
        pieces = _TAG.split(text)
    elif rule == "newline":
        pieces = text.split("\n")
    else:
        pieces = _END.sub(r"\1\n", text).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]
