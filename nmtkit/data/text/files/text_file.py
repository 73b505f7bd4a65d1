"""Reads the lines of a file in blocks, and records faults instead of stopping at the first one."""

from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TypeAlias

from nmtkit.core.errors import DataError
from nmtkit.data.text.faults import (
    COLUMN,
    COMPRESSION,
    LINE_ENDS,
    MISSING,
    FaultKind,
    FaultLocation,
    FileFault,
)
from nmtkit.data.text.files.compression import ByteObserver, DamagedArchiveError
from nmtkit.data.text.files.encoding_messages import guess_from_lines, why_not_text
from nmtkit.data.text.files.encodings import BAD_BYTE, EncodingEvidence, EncodingGuess
from nmtkit.data.text.files.lines import (
    BLOCK_BYTES,
    TextBlock,
    column_texts,
    damage_message,
    read_text_blocks,
    text_stream,
)
from nmtkit.data.text.files.names import option_encoding, split_reference

BLOCK_LINES = 4096
"""`TextFile.fill` stops reading once this many decoded lines are ready, unless the caller asks for more."""

ByteObserverFactory: TypeAlias = Callable[[str], ByteObserver]
"""Takes the path, without #COLUMN, of a file that is being opened; returns an observer for the file's bytes."""

_BUFFER_BYTES = 1 << 19
"""Size of the buffer of an open file."""
_COLUMN_LINES = 512
"""Maximum number of texts in a `TextBlock` that is read from a column."""
_MAX_GUESSES = 3
"""Maximum number of attempts to guess a file's encoding: each may take a second, and all fail for binary data."""


class TextFile:
    """The lines of one plain or compressed file, read block by block, and the problems found in it.

    Call `fill` and `take` in turn until `fill` returns 0. Faults of the whole file are recorded; to get them, call
    `take_faults` after each `fill`, including the last one. If the rest of the file cannot be read, `fill` provides no
    further lines, and `is_readable` is set to False. The first call of `fill` opens the file, which is closed once it
    has been read to the end.

    If `encoding` is clearly wrong, or the file cannot be decoded with it at all, this is the user's mistake rather than
    a fault of the file, and `fill` raises a DataError. The object must not be used afterwards: `is_readable` is still
    True, and `fill` returns 0. For FILE#COLUMN, the mistake is recorded as a fault of the column.

    For FILE#COLUMN, a "line" is a text in the column, and the line numbers of faults count these texts. Byte-order
    marks and mixed line endings are not recorded in this case.
    """

    def __init__(
        self,
        path: str,
        observer_for: ByteObserverFactory | None = None,
        allow_pipes: bool = False,
        encoding: str = "",
    ) -> None:
        """Does not open the file yet; the first call of `fill` does.

        Args:
            path: a file, or FILE#COLUMN.
            observer_for: called with the path, without #COLUMN, when the file is opened; returns an observer for the
                file's bytes.
            allow_pipes: whether the path may be something other than a regular file, for example a named pipe.
            encoding: the file's encoding. Default: the encoding that the command's options specify, or else UTF-8.
        """
        self.path = path
        self._file, self._column = split_reference(path)
        self.encoding = encoding or option_encoding(self._file)
        """The encoding that the user specified for the file; "" for UTF-8."""
        self.guess = EncodingGuess((), False)
        """The file's probable encoding: `wide_guess` if it is set, otherwise guessed from the first lines that are not
        UTF-8. A guess from lines is meaningless if `encoding` is set."""
        self.wide_guess: EncodingGuess | None = None
        """Set to UTF-16 or UTF-32 if the file is in that encoding and therefore cannot be read."""
        self._n_guesses = 0
        self.n_lines = 0
        """Number of lines decoded so far, including lines that have not been taken yet."""
        self.bom_length = 0
        """Length of the byte-order mark, in bytes."""
        self.is_readable = True
        """False once the file has turned out to be damaged, binary or unreadable, or the column does not exist."""
        self._observer_for = observer_for
        self._allow_pipes = allow_pipes
        self._new_faults: list[FileFault] = []
        self._n_newlines = 0
        self._n_crlf = 0  # number of newlines that follow \r
        self._first_crlf_line = 0  # line number; 0 means none
        self._blocks = self._read()
        self._ready: list[str] = []  # lines that have been decoded, but not taken yet
        # Indices of undecodable lines that have not been taken yet, in ascending order. Unlike rows, they count from
        # the beginning of the file. `take` relies on each block being added to `n_lines` and `_ready` together, so
        # `_read` must not read blocks ahead.
        self._faulty_indices: list[int] = []

    def fill(self, min_lines: int = 0) -> int:
        """Reads until at least `min_lines` lines are ready to be taken, or the file ends.

        Even without `min_lines`, reads until `BLOCK_LINES` lines are ready or about `BLOCK_BYTES` have been read.
        Returns the number of ready lines.
        """
        read_bytes = 0  # remains 0 for a column, so that only `BLOCK_LINES` limits reading
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
        """Returns up to `count` ready lines, and the indices of the undecodable lines among them."""
        first_index = self.n_lines - len(self._ready)  # index in the file of the first ready line
        end_index = first_index + count
        lines = self._ready[:count]
        self._ready = self._ready[count:]
        faulty_rows = [index - first_index for index in self._faulty_indices if index < end_index]
        self._faulty_indices = self._faulty_indices[len(faulty_rows) :]
        return lines, faulty_rows

    def skip_rest(self) -> None:
        """Reads to the end of the file to count its lines."""
        while count := self.fill():
            self.take(count)

    def take_faults(self) -> list[FileFault]:
        """Returns the faults of the whole file that were found since the last call."""
        faults = self._new_faults
        self._new_faults = []
        return faults

    def _read(self) -> Iterator[TextBlock]:
        """Yields the blocks of the file, and records faults."""
        try:
            with self._open() as raw:
                observe = self._observer_for(self._file) if self._observer_for else None
                if self._column:
                    blocks = self._column_blocks(raw, observe)
                else:
                    blocks = self._text_blocks(raw, observe)
                for block in blocks:
                    self._record(block)
                    yield block
        except DamagedArchiveError as error:
            self._report_damage(error)
        except OSError as error:
            why = error.strerror or str(error)
            message = f"{self.path}: cannot be read: {why}"
            self._fail(MISSING, self.n_lines + 1, detail=why, message=message)
        else:
            self._report_mixed_line_endings()

    def _open(self) -> BufferedReader:
        path = Path(self._file)
        if not self._allow_pipes and path.exists() and not path.is_file():
            raise OSError("not a regular file")
        return BufferedReader(FileIO(self._file), _BUFFER_BYTES)

    def _text_blocks(
        self, raw: BufferedReader, observe: ByteObserver | None
    ) -> Iterator[TextBlock]:
        """Yields the blocks of a file that is read as a whole; none if it is not text."""
        stream = text_stream(raw, self.path, encoding=self.encoding, observe=observe)
        # Lines may have any length, so a file without newlines is read into memory completely.
        for number, block in enumerate(read_text_blocks(stream, BLOCK_BYTES)):
            if number == 0:
                not_text = why_not_text(block.data, self.path, self.encoding)
                if not_text is not None:
                    if not_text.guess is not None:
                        self.guess = not_text.guess
                        self.wide_guess = not_text.guess
                    self._fail(not_text.kind, 1, detail=not_text.title, message=not_text.message)
                    return
                self.bom_length = block.bom_length
            yield block

    def _column_blocks(
        self, raw: BufferedReader, observe: ByteObserver | None
    ) -> Iterator[TextBlock]:
        texts = column_texts(
            raw,
            self._file,
            column=self._column,
            encoding=self.encoding,
            is_strict=False,
            observe=observe,
        )
        lines: list[str] = []
        fault: DataError | DamagedArchiveError | None = None
        try:
            for text in texts:
                lines.append(text)
                if len(lines) == _COLUMN_LINES:
                    yield _column_block(lines)
                    lines = []
        except (DataError, DamagedArchiveError) as error:
            # The lines before the fault are yielded before it is recorded. An OSError is not caught here: it propagates
            # to `_read` immediately, so these lines are lost.
            fault = error
        if lines:
            yield _column_block(lines)
        if isinstance(fault, DamagedArchiveError):
            self._report_damage(fault)
        elif fault is not None:
            # A table that is binary, UTF-16 or not in the specified encoding is reported as a column fault, too.
            self._fail(COLUMN, self.n_lines + 1, detail=str(fault), message=str(fault))

    def _record(self, block: TextBlock) -> None:
        """Updates the line counts and the guessed encoding with the next block."""
        if block.faulty_rows:
            self._guess_encoding(block.lines, block.faulty_rows)
            self._faulty_indices += [self.n_lines + row for row in block.faulty_rows]
        self._count_newlines(block.data)
        # Must come last: the statements above use `n_lines` as the index of the block's first line.
        self.n_lines += len(block.lines)

    def _guess_encoding(self, lines: Sequence[str], faulty_rows: Sequence[int]) -> None:
        """Guesses the encoding from undecodable lines, unless an earlier guess has succeeded."""
        if not self.guess.names and self._n_guesses < _MAX_GUESSES:
            self._n_guesses += 1
            self.guess = guess_from_lines(lines, faulty_rows)

    def _count_newlines(self, data: bytes) -> None:
        n_crlf_here = 0
        if b"\r" in data:  # a quick test: this byte is rare in text
            n_crlf_here = data.count(b"\r\n")
        if n_crlf_here and not self._n_crlf:
            lines_before = data.count(b"\n", 0, data.index(b"\r\n"))
            self._first_crlf_line = self.n_lines + lines_before + 1
        self._n_crlf += n_crlf_here
        self._n_newlines += data.count(b"\n")

    def _report_mixed_line_endings(self) -> None:
        if 0 < self._n_crlf < self._n_newlines:
            location = FaultLocation(self.path, self._first_crlf_line)
            self._new_faults.append(
                FileFault(LINE_ENDS, location, message="", n_lines=self._n_crlf)
            )

    def _report_damage(self, error: DamagedArchiveError) -> None:
        message = damage_message(self.path, self.n_lines, error)
        self._fail(COMPRESSION, self.n_lines + 1, detail=str(error), message=message)

    def _fail(self, kind: FaultKind, line: int, detail: str, message: str) -> None:
        """Records a fault after which nothing more can be read; `detail` describes it in reports."""
        self.is_readable = False
        location = FaultLocation(self.path, line, text=detail)
        self._new_faults.append(FileFault(kind, location, message))


def _column_block(lines: list[str]) -> TextBlock:
    faulty_rows = []
    for row, line in enumerate(lines):
        if not line.isascii() and BAD_BYTE.search(line):
            faulty_rows.append(row)
    return TextBlock(lines=lines, faulty_rows=faulty_rows, bom_length=0, data=b"")


def read_lines_lenient(path: str, encoding: str = "") -> Iterator[str]:
    """Yields the lines of a text file as far as it can be read, with lone surrogates for undecodable bytes.

    If the rest of the file cannot be read, the lines end without an error. A file that cannot be opened or is not a
    regular file has no lines.

    Raises:
        DataError: `encoding` is clearly wrong, or the file cannot be decoded with it at all.
    """
    file = TextFile(path, encoding=encoding)
    while count := file.fill():
        lines, _ = file.take(count)
        yield from lines


def encoding_evidence(path: str) -> EncodingEvidence:
    """Reads a whole file, and returns evidence about its encoding.

    Raises:
        DataError: the encoding that the command's options specify is clearly wrong, or the file cannot be decoded with
            it at all.
    """
    file = TextFile(path)
    evidence = EncodingEvidence()
    while count := file.fill():
        lines, faulty_rows = file.take(count)
        evidence.add(lines, faulty_rows)
    evidence.wide = file.wide_guess
    return evidence
