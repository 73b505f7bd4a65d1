"""Decodes bytes to lines of text: of files, standard input and members of archives.

Only LF and CR LF end a line, so that line numbers agree with other tools; a byte-order mark at the beginning is
removed. Compressed text is recognized by its first bytes; text is UTF-8 unless a reader or the command is given another
encoding. Lines are read in blocks, many times faster than one by one. `read_lines` stops at the first fault; a
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
"""Bytes read at once for blocks of lines."""
LINE_BYTES = 1 << 14
"""Bytes read at once for single lines."""
BLOCK_LINES = 4096
"""The number of decoded lines from which no more of a file is read."""
MAX_LINE_BYTES = 1 << 24
"""The most bytes of a line that is read by itself."""

ByteObserver: TypeAlias = Callable[[str], Callable[[bytes], object]]
"""Takes the path of a file that is opened; returns a function that takes all its bytes, as they are on disk."""

_BAD_BYTE = re.compile("[\udc80-\udcff]")
_COLUMN_LINES = 512
"""Texts of a column that are read at once."""
_MOST_GUESSES = 3
"""How many blocks of a file are tried to guess its encoding: a guess may take a second, and binary data has none."""
_SAMPLE_LINES = 500
"""The most lines that are looked at to guess the encoding of a file for a message."""


class TextBlock(NamedTuple):
    """Consecutive lines of a text."""

    lines: list[str]
    """Without line ends; bytes that are not valid are lone surrogates."""
    faulty: list[int]
    """Indices of lines that are not UTF-8."""
    mark: int
    """Length of the byte-order mark before the first line."""
    data: bytes
    """The bytes of the lines."""


class _LineTooLong(Exception):
    pass


def read_text_blocks(stream: BinaryIO, size: int, longest: float = math.inf) -> Iterator[TextBlock]:
    """The lines of a stream in blocks; a fault of the stream comes after the whole lines before it."""
    mark = codecs.BOM_UTF8
    for data in _whole_lines(stream, size, longest):
        length = len(mark) if mark and data.startswith(mark) else 0
        yield _decoded(data[length:], length)
        mark = b""  # further on it is a part of the text


def _whole_lines(stream: BinaryIO, size: int, longest: float) -> Iterator[bytes]:
    """Blocks of whole lines; the last one may lack its end."""
    parts: list[bytes] = []
    held = 0
    while piece := stream.read1(size):  # type: ignore[attr-defined]  # all that are opened here have it
        end = piece.rfind(b"\n") + 1
        if held + (piece.index(b"\n") if end else len(piece)) > longest:
            raise _LineTooLong
        if end:
            yield b"".join([*parts, piece[:end]])
            parts, held = [], 0
        if end < len(piece):
            parts.append(piece[end:])
            held += len(piece) - end
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
    elif lines[-1].endswith("\r"):  # a last line that is cut off in the middle of its end
        lines[-1] = lines[-1][:-1]
    return TextBlock(lines, faulty, mark, data)


def first_bad_byte(line: str) -> int:
    """The first byte, from 0, that is not UTF-8."""
    return len(line[: next(_BAD_BYTE.finditer(line)).start()].encode("utf-8"))


def explain_bad_bytes(line: str, guess: EncodingGuess) -> str:
    """A line that is not UTF-8, decoded with the encoding that its file seems to have."""
    name = guess.names[0] if guess.certain else "cp1252"
    text = line.encode("utf-8", "surrogateescape").decode(name, "replace")
    title = encoding_title(name)
    return f"as {title}: {excerpt(text, min(first_bad_byte(line), len(text) - 1))}"


def guess_of_lines(lines: Sequence[str], faulty: Sequence[int]) -> EncodingGuess:
    """The encoding of a file, guessed from its lines that are not UTF-8."""
    sample = "\n".join(lines[row] for row in faulty[:_SAMPLE_LINES])
    return guess_encoding(sample.encode("utf-8", "surrogateescape"))


def encoding_advice(guess: EncodingGuess, where: str) -> str:
    """The remedy for a text in another encoding, to be put after a semicolon; only files can be converted."""
    convert = "" if where.startswith(STDIN) else ", or convert the file with `nmtkit check --fix`"
    if not guess.names:
        return "convert it to UTF-8, or name its encoding with --encoding"
    if len(guess.names) == 1:
        return f"it looks like {guess.title}. Pass --encoding {guess.names[0]}{convert}"
    return f"it may be {guess.title}. Pass the right encoding: --encoding {' or '.join(guess.names)}"


def bad_bytes_message(
    where: str, line: str, encoding: str, guess: EncodingGuess, mark: int = 0, remedy: str = ""
) -> str:
    """The message for a line that is not valid in the encoding of its file; empty `encoding` is UTF-8.

    `mark` is the length of the byte-order mark before the line.
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
    """The bytes of an open file as UTF-8: decompressed if need be, and recoded if it has another encoding.

    An empty `encoding` is the one that the command was given for the file, else UTF-8.
    """
    stream = decompressed(file, observe)
    name = encoding or given_encoding(where)
    if not name or is_utf8(name):
        return stream
    return cast(BinaryIO, Recoded(stream, name, where))


def read_lines(path: str | Path, encoding: str = "") -> Iterator[str]:
    """The lines of a text file or pipe, plain or compressed, one at a time, without line ends; or of FILE#COLUMN."""
    file, column = split_reference(str(path))
    try:
        with open(file, "rb") as raw:
            if column:
                yield from _read_part(raw, file, column, encoding or given_encoding(file))
                return
            yield from read_stream_lines(text_stream(raw, str(path), encoding), str(path), encoding)
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault


def read_stream_lines(stream: BinaryIO, where: str, encoding: str = "", remedy: str = "") -> Iterator[str]:
    """The lines of an open stream of UTF-8, which messages call `where`; `encoding` is what it was recoded from.

    `remedy` is the advice about a line that is not UTF-8, where no option names the encoding of the file.

    A fault is raised after the lines before it. A line of more than `MAX_LINE_BYTES` bytes is refused as soon as so
    many bytes were read without a line end.
    """
    encoding = encoding or given_encoding(where)
    count = 0
    try:
        for block in read_text_blocks(stream, LINE_BYTES, MAX_LINE_BYTES):
            if not count:
                _require_text(block.data, where, encoding)
            yield from block.lines[: block.faulty[0]] if block.faulty else block.lines
            if block.faulty:
                row = block.faulty[0]
                verify_archive(stream)
                raise DataError(
                    bad_bytes_message(
                        f"{where}, line {count + row + 1}",
                        block.lines[row],
                        encoding,
                        guess_of_lines(block.lines, block.faulty),
                        mark=0 if count + row else block.mark,
                        remedy=remedy,
                    )
                )
            count += len(block.lines)
    except _LineTooLong:
        raise DataError(
            f"{where}, line {count + 1}: more than {MAX_LINE_BYTES:,} bytes without a line end; this is not text"
        ) from None
    except DamagedArchiveError as fault:
        raise DataError(_damage_message(where, count, fault)) from fault


def _read_part(
    raw: BinaryIO, file: str, column: str, encoding: str, observe: Callable[[bytes], object] | None = None
) -> Iterator[str]:
    """The texts of a column of an open file; a byte that is not valid is a lone surrogate."""
    try:
        if is_tmx(file):
            stream = text_stream(raw, file, encoding, observe) if encoding else decompressed(raw, observe)
            yield from read_tmx(stream, file, column, "utf-8" if encoding else None)
            return
        stream = text_stream(raw, file, encoding, observe)
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
    """DataError if a file that begins with these bytes is binary, or UTF-16 though no encoding is named."""
    if kind := binary_format(data):
        raise DataError(_binary_message(where, kind))
    if not encoding and (wide := guess_wide_encoding(data)):
        raise DataError(_wide_message(where, wide))


def _damage_message(where: str, count: int, fault: DamagedArchiveError) -> str:
    return f"{where}: {fault}" + (f"; the first {count:,} lines could be read" if count else "")


# ------------------------------------------------------------------------------------------------- text with its faults


class TextFile:
    """The lines of one file, plain or compressed, with all its faults. With `pipes` it may be a pipe."""

    def __init__(self, path: str, watch: ByteObserver | None = None, pipes: bool = False, encoding: str = "") -> None:
        self.path = path
        self._file, self._column = split_reference(path)
        self.encoding = encoding or given_encoding(self._file)
        """The encoding that was named for it; empty for UTF-8."""
        self.guess = EncodingGuess((), False)
        """The encoding that it seems to have, by the first lines that are not UTF-8."""
        self._guesses = 0
        self.count = 0
        """Lines read so far."""
        self.mark = 0
        """Length of the byte-order mark."""
        self.whole = True
        """Whether it could be read to its end, so far."""
        self._watch = watch
        self._pipes = pipes
        self._new_faults: list[FileFault] = []
        self._ends = self._returns = self._first_return = 0  # line ends; those of \r\n; the first line with one
        self._blocks = self._read()
        self._ready: list[str] = []
        self._faulty: list[int] = []

    def fill(self, least: int = 0) -> int:
        """Reads about `BLOCK_BYTES` if few lines are ready; returns how many: fewer than `least` only at the end."""
        taken = 0
        while len(self._ready) < least or (len(self._ready) < BLOCK_LINES and taken < BLOCK_BYTES):
            block = next(self._blocks, None)
            if block is None:
                break
            self._ready += block.lines
            taken += len(block.data)
        return len(self._ready)

    def take(self, count: int) -> tuple[list[str], list[int]]:
        """The next lines, and the indices of those that are not UTF-8."""
        first = self.count - len(self._ready)
        lines, self._ready = self._ready[:count], self._ready[count:]
        faulty = [number - first for number in self._faulty if number < first + count]
        self._faulty = self._faulty[len(faulty) :]
        return lines, faulty

    def skip_rest(self) -> None:
        """Reads to the end, to count the lines."""
        while count := self.fill():
            self.take(count)

    def new_faults(self) -> list[FileFault]:
        """New faults of the whole file since the last call."""
        faults, self._new_faults = self._new_faults, []
        return faults

    def _read(self) -> Iterator[TextBlock]:
        try:
            if not self._pipes and not Path(self._file).is_file() and Path(self._file).exists():
                raise OSError("it is not a file")
            with open(self._file, "rb", buffering=1 << 19) as raw:
                observe = self._watch(self._file) if self._watch else None
                if self._column:
                    yield from self._read_column(raw, observe)
                    return
                stream = text_stream(raw, self.path, self.encoding, observe)
                for block in read_text_blocks(stream, BLOCK_BYTES):
                    if not self.count:
                        if kind := binary_format(block.data):
                            self._broken(BINARY, 1, kind.title, _binary_message(self.path, kind))
                            return
                        if not self.encoding and (wide := guess_wide_encoding(block.data)):
                            self.guess = wide
                            self._broken(UTF16, 1, wide.title, _wide_message(self.path, wide))
                            return
                        self.mark = block.mark
                    self._guess(block.lines, block.faulty)
                    self._count_ends(block.data)
                    self._faulty += [self.count + row for row in block.faulty]
                    self.count += len(block.lines)
                    yield block
        except DamagedArchiveError as fault:
            self._broken(COMPRESSION, self.count + 1, str(fault), _damage_message(self.path, self.count, fault))
            return
        except OSError as fault:
            why = fault.strerror or str(fault)
            self._broken(MISSING, 1, why, f"{self.path}: cannot read it: {why}")
            return
        if self._returns and self._returns < self._ends:
            place = FaultLocation(self.path, self._first_return)
            self._new_faults.append(FileFault(LINE_ENDS, place, "", self._returns))

    def _read_column(self, raw: BinaryIO, observe: Callable[[bytes], object] | None) -> Iterator[TextBlock]:
        texts = _read_part(raw, self._file, self._column, self.encoding, observe)
        try:
            while lines := list(islice(texts, _COLUMN_LINES)):
                faulty = [row for row, line in enumerate(lines) if not line.isascii() and _BAD_BYTE.search(line)]
                self._guess(lines, faulty)
                self._faulty += [self.count + row for row in faulty]
                self.count += len(lines)
                yield TextBlock(lines, faulty, 0, b"")
        except DataError as fault:
            self._broken(COLUMN, self.count + 1, str(fault), str(fault))

    def _guess(self, lines: Sequence[str], faulty: Sequence[int]) -> None:
        """Guesses the encoding by lines that are not UTF-8, unless it is known, or could not be guessed before."""
        if faulty and not self.guess.names and self._guesses < _MOST_GUESSES:
            self._guesses += 1
            self.guess = guess_of_lines(lines, faulty)

    def _count_ends(self, block: bytes) -> None:
        returns = block.count(b"\r\n") if b"\r" in block else 0
        if returns and not self._returns:
            self._first_return = self.count + block.count(b"\n", 0, block.index(b"\r\n")) + 1
        self._returns += returns
        self._ends += block.count(b"\n")

    def _broken(self, kind: FaultKind, line: int, text: str, message: str) -> None:
        self.whole = False
        self._new_faults.append(FileFault(kind, FaultLocation(self.path, line, text=text), message))


def read_lines_lenient(path: str, encoding: str = "") -> Iterator[str]:
    """The lines of a text file as far as it can be read, with lone surrogates for bytes that are not valid."""
    file = TextFile(path, encoding=encoding)
    while count := file.fill():
        yield from file.take(count)[0]


def file_encoding(path: str) -> EncodingEvidence:
    """Evidence of a whole file about its encoding."""
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
    """Cuts a text into its sentences, as ROUGE-Lsum and models of documents need them.

    * "tags": at the tags of CNN/DailyMail files (`<t>`, `</t>`; also `<s>`, `</s>` and `<q>`), which are removed.
    * "newline": at newlines only, as rouge-score does; ROUGE-Lsum of a one-line text is then its ROUGE-L.
    * "punctuation": at white space after ".", "!" or "?" and closing quotes and brackets, so "Mr. Smith" is cut too.
    * "auto": by tags if the text has any, else by newlines if it has any, else by punctuation.
    """
    if rule not in SENTENCE_RULES:
        raise NmtkitError(f"unknown sentence rule {rule!r}: {suggest_names(rule, SENTENCE_RULES)}")
    if rule == "auto":
        rule = "tags" if _TAG.search(text) else "newline" if "\n" in text else "punctuation"
    if rule == "tags":
        pieces = _TAG.split(text)
    elif rule == "newline":
        pieces = text.split("\n")
    else:
        pieces = _END.sub(r"\1\n", text).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]
