"""Where results go, and how a terminal is asked for lines: files written whole, standard output, a prompt."""

import gzip
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import click

from nmtkit import console
from nmtkit.cli.options import NEW_FILE, Decorator, together
from nmtkit.cli.reporting import is_quiet, note
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import replacing, writing


class _Output(io.FileIO):
    """A file of results; a fault of writing it names the file that is meant, not the one beside it."""

    def __init__(self, path: Path, called: Path) -> None:
        super().__init__(path, "w")
        self._called = called

    def write(self, data: object, /) -> int:
        with writing(self._called):
            return super().write(data)  # type: ignore[arg-type]  # a buffer, a type that Python 3.11 cannot name


@contextmanager
def output_file(path: Path, read: Iterable[Path]) -> Iterator[TextIO]:
    """A file for results: whole at the end of the block, or as it was before; packed if its name ends in .gz.

    Args:
        path: the file.
        read: files that the results are made of.

    Raises:
        NmtkitError: it cannot be written, or is one of those that are read.
    """
    for other in read:
        if path.exists() and other.exists() and path.samefile(other):
            raise NmtkitError(f"{path}: -o names a file that is read or written too; name another")
    with ExitStack() as stack:
        with writing(path):
            beside = stack.enter_context(replacing(path))
            raw: BinaryIO = stack.enter_context(io.BufferedWriter(_Output(beside, path)))
        if path.suffix == ".gz":  # without a name and a time in its head, so that equal text makes equal files
            raw = cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0)))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


output_option: Decorator = click.option(
    "-o",
    "--output",
    type=NEW_FILE,
    metavar="FILE",
    help="Write the results here instead of standard output: whole or not at all. FILE.gz is compressed.",
)


def files_among(given: dict[str, Any]) -> list[Path]:
    """The files that options name, whatever for."""
    values = [value if isinstance(value, tuple) else (value,) for value in given.values()]
    return [one for value in values for one in value if isinstance(one, Path)]


def _into_file(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose standard output is the file that `--output` names."""

    @wraps(command)
    def with_output(output: Path | None, **given: Any) -> None:
        if output is None:
            command(**given)
            return
        with output_file(output, files_among(given)) as file, redirect_stdout(file):
            command(**given)
        note(f"wrote {output}")

    return with_output


output: Decorator = together(output_option, _into_file)
"""Gives a command the option `--output`; stands above all other options, whose files it must not replace."""


def progress(what: str) -> console.LineProgress:
    """How many of `what` are done, on stderr; nowhere if notes are unwanted."""
    return console.LineProgress(what, stream=io.StringIO() if is_quiet() else None)


class Prompt:
    """Asks whoever types at a terminal for the next line, on stderr; asks nobody else, nor where notes are unwanted.

    Args:
        files: what is read instead of standard input.
        what: what a line is, such as "an article".
        done: what is done with it.
    """

    def __init__(self, files: Sequence[Path], what: str, done: str) -> None:
        typed = not files and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
        self._asks = typed and not is_quiet()
        if self._asks:
            console.say(f"type {what} on each line; it is {done} at once. Ctrl-D ends.", stderr=True)
        self._asks = self._asks and sys.stdout.isatty()  # else the results are not seen, and the progress stands here

    def ask(self) -> None:
        """Asks for a line."""
        if self._asks:
            click.echo("> ", nl=False, err=True)

    def end(self) -> None:
        """Ends the line on which nothing more was typed."""
        if self._asks:
            click.echo(err=True)
