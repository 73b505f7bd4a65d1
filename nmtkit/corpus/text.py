"""Decodes bytes to lines of text: of files, standard input and members of archives.

Only LF and CR LF end a line, so that line numbers agree with other tools; a byte-order mark at the beginning is
removed. gzip is detected from the first bytes. Lines are read in blocks, many times faster than one by one.
`read_lines` stops at the first fault; a `TextFile` reports faults and continues.
"""

import codecs
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import suggest_names
from nmtkit.corpus.faults import GZIP, LINE_ENDS, MISSING, UTF16, FaultKind, FaultLocation, FileFault, excerpt

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

_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)
_PACKED = (b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh", b"PK\x03\x04")  # how files of xz, zstd, bzip2 and zip begin
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BAD_BYTE = re.compile("[\udc80-\udcff]")


class TextBlock(NamedTuple):
    """Consecutive lines of a text."""

    lines: list[str]
    """Without line ends; bytes that are not UTF-8 are lone surrogates."""
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


def explain_bad_bytes(line: str) -> str:
    """How a line that is not UTF-8 reads in the most common other encoding."""
    text = line.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
    return f"as Windows-1252: {excerpt(text, first_bad_byte(line))}"


def not_utf8_message(where: str, line: str, mark: int = 0) -> str:
    """The message for a line that is not UTF-8, after a byte-order mark of `mark` bytes."""
    packed = line.encode("utf-8", "surrogateescape").startswith(_PACKED)
    remedy = "it is compressed, and only gzip is read: unpack it first" if packed else "convert it, e.g. with iconv"
    return f"{where}: not UTF-8 (byte {mark + first_bad_byte(line) + 1} of the line); {remedy}"


def _broken_gzip_message(where: str, count: int, fault: Exception) -> str:
    return f"{where}: broken gzip file after line {count} ({fault}); fetch or compress it again"


# --------------------------------------------------------------------------------------------------------- sound text


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file or pipe, plain or gzip-compressed, one at a time, without line ends."""
    try:
        with open(path, "rb") as raw:
            yield from read_stream_lines(unpacked(raw), str(path))
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault


def read_stream_lines(stream: BinaryIO, where: str) -> Iterator[str]:
    """The lines of an open stream, which messages call `where`; a fault is raised after the lines before it.

    A line of more than `MAX_LINE_BYTES` bytes is refused as soon as so many bytes were read without a line end.
    """
    count = 0
    try:
        for lines, faulty, mark, _ in read_text_blocks(stream, LINE_BYTES, MAX_LINE_BYTES):
            yield from lines[: faulty[0]] if faulty else lines
            if faulty:
                number, bom = count + faulty[0] + 1, 0 if count + faulty[0] else mark
                raise DataError(not_utf8_message(f"{where}, line {number}", lines[faulty[0]], bom))
            count += len(lines)
    except _LineTooLong:
        raise DataError(
            f"{where}, line {count + 1}: more than {MAX_LINE_BYTES:,} bytes without a line end; this is not text"
        ) from None
    except _BROKEN as fault:
        raise DataError(_broken_gzip_message(where, count, fault)) from fault


# ------------------------------------------------------------------------------------------------- text with its faults


class _Observed:
    """A file whose bytes are observed while they are read."""

    def __init__(self, file: BinaryIO, observe: Callable[[bytes], object]) -> None:
        self._file = file
        self._observe = observe

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._observe(data)
        return data

    def read1(self, size: int) -> bytes:
        data: bytes = self._file.read1(size)  # type: ignore[attr-defined]
        self._observe(data)
        return data


def unpacked(file: BinaryIO, observe: Callable[[bytes], object] | None = None) -> BinaryIO:
    """The file, decompressed if it is gzip. It may be a pipe, which cannot be wound back."""
    packed = file.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]  # what is opened here has it
    source: Any = file if observe is None else _Observed(file, observe)
    return cast(BinaryIO, gzip.GzipFile(fileobj=source) if packed else source)


class TextFile:
    """The lines of one file, plain or gzip-compressed, with all its faults. With `pipes` it may be a pipe."""

    def __init__(self, path: str, watch: ByteObserver | None = None, pipes: bool = False) -> None:
        self.path = path
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
            if not self._pipes and not Path(self.path).is_file() and Path(self.path).exists():
                raise OSError("it is not a file")
            with open(self.path, "rb", buffering=1 << 19) as raw:
                observe = self._watch and self._watch(self.path)
                for block in read_text_blocks(unpacked(raw, observe), BLOCK_BYTES):
                    if not self.count:
                        if block.data.startswith(_UTF16_MARKS):
                            self._broken(UTF16, 1, "", not_utf8_message(f"{self.path}, line 1", "\udcff"))
                            return
                        self.mark = block.mark
                    self._count_ends(block.data)
                    self._faulty += [self.count + row for row in block.faulty]
                    self.count += len(block.lines)
                    yield block
        except _BROKEN as fault:
            self._broken(GZIP, self.count + 1, str(fault), _broken_gzip_message(self.path, self.count, fault))
            return
        except OSError as fault:
            why = fault.strerror or str(fault)
            self._broken(MISSING, 1, why, f"{self.path}: cannot read it: {why}")
            return
        if self._returns and self._returns < self._ends:
            place = FaultLocation(self.path, self._first_return)
            self._new_faults.append(FileFault(LINE_ENDS, place, "", self._returns))

    def _count_ends(self, block: bytes) -> None:
        returns = block.count(b"\r\n") if b"\r" in block else 0
        if returns and not self._returns:
            self._first_return = self.count + block.count(b"\n", 0, block.index(b"\r\n")) + 1
        self._returns += returns
        self._ends += block.count(b"\n")

    def _broken(self, kind: FaultKind, line: int, text: str, message: str) -> None:
        self.whole = False
        self._new_faults.append(FileFault(kind, FaultLocation(self.path, line, text=text), message))


def read_lines_lenient(path: str) -> Iterator[str]:
    """The lines of a text file as far as it can be read, with lone surrogates for bytes that are not UTF-8."""
    file = TextFile(path)
    while count := file.fill():
        yield from file.take(count)[0]


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
