r"""Files in blocks of lines, and splits in blocks of pairs, whatever is wrong with them.

Lines are counted as `data.reading.read_lines` counts them: only \n and \r\n end one. But where that function stops at
the first fault, this one notes the fault and goes on, and it works on blocks of bytes, which is many times faster.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from nmtkit.diagnosis.encodings import explain
from nmtkit.diagnosis.findings import Kind, Place
from nmtkit.diagnosis.kinds import GZIP, LINE_ENDS, MISSING, UTF16

BYTES = 1 << 19
"""How much of a file is read at once."""
ROWS = 4096
"""With so many lines ready, no more of a file is read."""

Find: TypeAlias = Callable[[Kind, Place, int], None]
"""Takes a fault of a whole file: its kind, where it is, how many lines have it."""
Tell: TypeAlias = Callable[[int], None]
"""Is told how many bytes of a file have been read since the last time."""

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PLAIN_END = re.compile(r"(?<!\r)\n")


class TextFile:
    """The lines of one file, plain or gzip-compressed, in order.

    Args:
        path: the file.
        find: takes what is wrong with the file as a whole, if that is asked for.
        tell: is told of the progress, in bytes of the file as it lies on the disk, if anyone wants to know.
    """

    def __init__(self, path: str, find: Find | None, tell: Tell | None) -> None:
        self.path = path
        self.count = 0
        """Lines read so far."""
        self.mark = 0
        """Bytes of the byte-order mark at its beginning."""
        self.whole = True
        """Whether nothing kept it from being read to its end, so far."""
        self._find = find or (lambda kind, place, count: None)
        self._tell = tell or (lambda count: None)
        self._blocks = self._read()
        self._ready: list[str] = []
        self._faulty: dict[int, tuple[int, str]] = {}

    def fill(self) -> int:
        """Reads on if few lines are ready; returns how many are then, which is none at the end of the file only."""
        if len(self._ready) < ROWS:
            self._ready += next(self._blocks, [])
        return len(self._ready)

    def take(self, count: int) -> tuple[list[str], dict[int, tuple[int, str]]]:
        """The next lines, which must be ready.

        Returns:
            The lines, and for each of them that is not UTF-8, by its place in the list: the first wrong byte of the
            line from 1, and what is wrong with it.
        """
        first = self.count - len(self._ready)
        lines, self._ready = self._ready[:count], self._ready[count:]
        faulty = {number - first: fault for number, fault in self._faulty.items() if number < first + count}
        self._faulty = {number: fault for number, fault in self._faulty.items() if number >= first + count}
        return lines, faulty

    def _read(self) -> Iterator[list[str]]:
        ends = _LineEnds()
        for block in self._whole_lines():
            if not self.count:
                if block.startswith(_UTF16_MARKS):
                    self._broken(UTF16, 1, "")
                    return
                self.mark = len(block) - len(block.removeprefix(codecs.BOM_UTF8))
                block = block[self.mark :]
            if b"\r" in block:
                ends.see(block, self.count)
                block = block.replace(b"\r\n", b"\n")
            else:
                ends.plain(block.count(b"\n"), self.count)
            lines = self._decode(block)
            self.count += len(lines)
            yield lines
        if (mixed := ends.mixed()) is not None:
            first, count = mixed
            self._find(LINE_ENDS, Place(self.path, first), count)

    def _whole_lines(self) -> Iterator[bytes]:
        """The bytes of the file in blocks of whole lines; the last one may lack its end."""
        parts: list[bytes] = []
        try:
            for chunk in self._chunks():
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield b"".join([*parts, chunk[:end]])
                    parts = []
                if end < len(chunk):
                    parts.append(chunk[end:])
        except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
            self._broken(GZIP, self.count + 1, str(fault))
            return
        except OSError as fault:
            self._broken(MISSING, 1, fault.strerror or str(fault))
            return
        if parts:
            yield b"".join(parts)

    def _chunks(self) -> Iterator[bytes]:
        if not Path(self.path).is_file() and Path(self.path).exists():
            raise OSError("it is not a file")
        with open(self.path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            pieces: list[bytes] = []
            told = 0
            try:
                while piece := stream.read1(BYTES):
                    pieces.append(piece)
                    if sum(map(len, pieces)) >= BYTES:
                        yield b"".join(pieces)
                        pieces = []
                        self._tell(raw.tell() - told)
                        told = raw.tell()
            except (EOFError, gzip.BadGzipFile, zlib.error):
                yield b"".join(pieces)  # what could be read of it
                raise
            yield b"".join(pieces)
            self._tell(raw.tell() - told)

    def _broken(self, kind: Kind, line: int, text: str) -> None:
        self.whole = False
        self._find(kind, Place(self.path, line, text=text), 1)

    def _decode(self, block: bytes) -> list[str]:
        try:
            lines = block.decode("utf-8").split("\n")
        except UnicodeDecodeError:
            lines = []
            for number, raw in enumerate(block.split(b"\n"), start=self.count):
                try:
                    lines.append(raw.decode("utf-8"))
                except UnicodeDecodeError as fault:
                    byte = fault.start + 1 + (0 if number else self.mark)
                    self._faulty[number] = (byte, explain(raw, fault.start))
                    lines.append(raw.decode("utf-8", errors="surrogateescape"))
        if block.endswith(b"\n"):
            lines.pop()
        elif lines[-1].endswith("\r"):  # a last line that is cut off in the middle of its end
            lines[-1] = lines[-1][:-1]
        return lines


class _LineEnds:
    r"""Counts lines that end in \n and in \r\n, and keeps the first of each."""

    def __init__(self) -> None:
        self._counts = [0, 0]
        self._firsts = [0, 0]

    def see(self, block: bytes, before: int) -> None:
        """Counts the lines of a block that holds a CR, `before` lines into the file."""
        windows = block.count(b"\r\n")
        if windows and not self._counts[1]:
            self._firsts[1] = before + block.count(b"\n", 0, block.index(b"\r\n") + 1) + 1
        self._counts[1] += windows
        plain = block.count(b"\n") - windows
        if plain and not self._counts[0]:
            end = _PLAIN_END.search(block.decode("latin-1"))
            assert end is not None
            self._firsts[0] = before + block.count(b"\n", 0, end.start()) + 1
        self._counts[0] += plain

    def plain(self, count: int, before: int) -> None:
        """Counts the lines of a block without a CR."""
        if count and not self._counts[0]:
            self._firsts[0] = before + 1
        self._counts[0] += count

    def mixed(self) -> tuple[int, int] | None:
        """The first of the lines that end otherwise than most, and how many there are; None if all end alike."""
        if not all(self._counts):
            return None
        fewer = self._counts.index(min(self._counts))
        return self._firsts[fewer], self._counts[fewer]
