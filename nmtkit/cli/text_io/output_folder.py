"""`--output-dir`: one output file for each input file, with the same name. All input files are read as one stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, TypeVar

import click

from nmtkit.core.errors import NmtkitError

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed inputs. They are removed from the names of outputs, which are not compressed."""
FEATURES = (".npy", ".npz")
"""Suffixes of feature files, whose outputs are text files."""

Item = TypeVar("Item")
OpenOutput = Callable[[Path, Iterable[Path]], AbstractContextManager[TextIO]]
"""Function that opens a file for results; its second argument lists the files that are read."""
_KEY = "nmtkit.output_folder"


def output_name(path: Path) -> str:
    """Returns the name of the output for an input file."""
    if path.suffix in COMPRESSED and path.stem:
        return path.stem
    if path.suffix in FEATURES:
        return path.stem + ".txt"
    return path.name


class OutputFolder:
    """Writes each result to the output of the file that its line comes from.

    Readers count the lines of each file with `counted`, perhaps in a thread that reads ahead. Before each result,
    writers call `begin_line`, which redirects standard output to the right file. An output file appears when all of its
    lines have been written.
    """

    def __init__(self, folder: Path, inputs: Sequence[Path], open_output: OpenOutput) -> None:
        if not inputs:
            raise click.UsageError(
                "--output-dir writes one output for each FILE, but no FILE was given; add FILE arguments, or use -o"
            )
        if folder.exists() and not folder.is_dir():
            raise NmtkitError(
                f"{folder}: --output-dir requires a folder, but this is a file; to write one file, use -o"
            )
        self.path = folder
        self.inputs = inputs
        self.outputs = [folder / output_name(path) for path in inputs]
        self.line = 0
        """Number of the current line within its file."""
        self._open_output = open_output
        self._lines_read = [0 for _ in inputs]
        self._is_read = [False for _ in inputs]
        self._index = -1
        self._stack = ExitStack()
        self._refuse_equal_names()

    def _refuse_equal_names(self) -> None:
        first: dict[Path, Path] = {}
        for path, output in zip(self.inputs, self.outputs, strict=True):
            if output in first:
                raise NmtkitError(
                    f"the outputs of {first[output]} and {path} would both be written to {output}; rename one of the "
                    "two files, or use separate folders"
                )
            first[output] = path

    def replaced(self) -> list[Path]:
        """Returns the outputs that already exist and will be replaced."""
        return [output for output in self.outputs if output.exists()]

    def counted(self, index: int, lines: Iterable[Item]) -> Iterator[Item]:
        """Yields the lines of the input file with this index, and counts them as they are read."""
        for line in lines:
            self._lines_read[index] += 1
            yield line
        self._is_read[index] = True

    def begin_line(self) -> None:
        """Redirects standard output to the output file of the next line, which must have been read."""
        while self._index < 0 or self._is_complete():
            self._open_next()
        self.line += 1

    def place(self) -> str:
        """Returns the file and number of the current line, for messages."""
        return f"{self.inputs[self._index]}, line {self.line}"

    def place_of(self, number: int) -> str:
        """Returns the file and number of a line that has been read; `number` counts the lines of all files."""
        for path, count in zip(self.inputs, self._lines_read, strict=True):
            if number <= count:
                return f"{path}, line {number}"
            number -= count
        return f"line {number}"

    def _is_complete(self) -> bool:
        """Returns whether all lines of the current file have been written."""
        return self._is_read[self._index] and self.line == self._lines_read[self._index]

    def _open_next(self) -> None:
        self._stack.close()
        self._index += 1
        self.line = 0
        file = self._stack.enter_context(self._open_output(self.outputs[self._index], self.inputs))
        self._stack.enter_context(redirect_stdout(file))

    def __enter__(self) -> Self:
        click.get_current_context().meta[_KEY] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            while self._index + 1 < len(self.inputs):  # empty files get empty outputs
                self._open_next()
        if kind is None or (self._index >= 0 and self._is_complete()):
            self._stack.close()
        else:
            self._stack.__exit__(kind, fault, trace)


def output_folder() -> OutputFolder | None:
    """Returns the folder for the outputs of the current command, or None without `--output-dir`."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_KEY)
