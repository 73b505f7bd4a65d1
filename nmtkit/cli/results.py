"""Writing results: as text or objects, to standard output or a file written whole, with a prompt for who types."""

import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar, cast

import click

from nmtkit import console
from nmtkit.cli.reporting import is_quiet, note, tell
from nmtkit.cli.streams import NamedOutput
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_user_path, write_errors
from nmtkit.data.tokenizer import Tokenizer
from nmtkit.translation.inputs import TextModel
from nmtkit.translation.long_texts import JoinedTranslation
from nmtkit.translation.result import Translation, copied_spans, moses_line

Written = TypeVar("Written")


def require_other(path: Path | None, inputs: Iterable[Path | None], option: str = "-o") -> None:
    """Refuses a file for results that is one of those that are read; None stands for one that is not given."""
    for other in inputs:
        if path is None or other is None:
            continue
        is_same = path.exists() and other.exists() and path.samefile(other)
        if is_same or os.path.realpath(path) == os.path.realpath(other):  # new files have names alone
            raise NmtkitError(f"{path}: {option} names a file that is read or written too; name another")


@contextmanager
def output_file(path: Path, inputs: Iterable[Path]) -> Iterator[TextIO]:
    """A file for results: whole at the end of the block, or as it was before; compressed if its name ends in .gz."""
    require_other(path, inputs)
    with ExitStack() as stack:
        with write_errors(path):
            temporary = stack.enter_context(atomic_user_path(path))
            raw: BinaryIO = stack.enter_context(io.BufferedWriter(NamedOutput(temporary, str(path))))
        if path.suffix == ".gz":  # without name and time in its header, so that equal text makes equal files
            raw = cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0)))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


def into_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Redirects a command's standard output to the file of `--output`; goes above what consumes other options."""

    @wraps(command)
    def with_output(output: Path | None, **given: Any) -> None:
        if output is None:
            command(**given)
            return
        values = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in given.values())
        read = [value for value in values if isinstance(value, Path)]
        with output_file(output, read) as file, redirect_stdout(file):
            command(**given)
        note(f"wrote {output}")

    return with_output


def progress(unit: str) -> console.LineProgress:
    """A display on stderr of how many `unit` are done; shows nothing with `--quiet`."""
    return console.LineProgress(unit, stream=io.StringIO() if is_quiet() else None)


@dataclass
class Printer:
    """Writes outputs to standard output, line by line, and counts what a user should know at the end."""

    tokenizer: Tokenizer
    """Of the target."""
    n_best: int
    as_json: bool
    scores: bool = False
    """Whether score and log-probability precede each output."""
    form: str = "text"
    replaced: bool = False
    """Whether unknown words were replaced; objects then list them."""
    lines: int = 0
    """Lines of input that were written."""
    unfinished: int = 0
    """Lines whose output reached the length limit."""
    cut: int = 0
    """Lines of input that were not read to their end."""
    fewer: int = 0
    """Lines with fewer than `n_best` outputs: a search found no more, or equal texts are merged."""

    def write(self, outputs: Sequence[Translation]) -> None:
        """Writes the outputs of one line of input, best first."""
        self._count(outputs[:1])
        best = outputs[0]
        self.fewer += len(outputs) < self.n_best and bool(best.token_log_probs)  # an empty line has none
        if self.as_json:
            left_out = {"source_tokens_left_out": best.src_left_out} if best.src_left_out else {}
            record = {"line": self.lines, "source_tokens": best.src_tokens, **left_out}
            write_json_line(record | {"best": self.record(best), "others": [self.record(one) for one in outputs[1:]]})
        elif self.form == "moses":
            for one in outputs:
                write_line(moses_line(self.lines - 1, one))
        elif self.n_best > 1:
            for one in outputs:
                write_line(f"{self.lines}\t{one.score:.6f}\t{one.log_prob:.6f}\t{one.text}")
        elif self.scores:
            write_line(f"{best.score:.6f}\t{best.log_prob:.6f}\t{best.text}")
        else:
            write_line(best.text)

    def write_joined(self, result: JoinedTranslation) -> None:
        """Writes the summary of an article that was read in windows, or the translation of a line of sentences."""
        self._count(result.parts)
        if self.as_json:
            records = [{"source_tokens": one.src_tokens, "best": self.record(one)} for one in result.parts]
            write_json_line({"line": self.lines, "text": result.text, result.kind: records})
        else:
            write_line(result.text)

    def report(self, outputs: str, remedy: str) -> None:
        """Says on stderr how many lines reached the length limit, or have fewer outputs than asked for."""
        if self.fewer:
            count = f"{self.fewer} of {self.lines} lines have fewer than {self.n_best} {outputs}"
            tell(f"{count}: the search ended with no more, or equal texts are one")
        if self.unfinished:
            tell(
                f"{self.unfinished} of the {outputs} reached the length limit before their end; "
                f"raise it with {remedy} if they look cut"
            )

    def _count(self, outputs: Sequence[Translation]) -> None:
        self.lines += 1
        faults = [fault for output in outputs for fault in output.unmet_constraints]
        for fault in dict.fromkeys(faults):
            tell(f"line {self.lines}: the translation {fault}")
        self.unfinished += any(not one.finished for one in outputs)
        self.cut += any(one.src_left_out > 0 for one in outputs)

    def record(self, one: Translation) -> dict[str, Any]:
        """An output as an object."""
        names = ("text", "score", "log_prob", "tokens", "token_log_probs", "finished")
        record = {name: getattr(one, name) for name in names}
        if self.replaced:
            record["replaced"] = [asdict(replacement) for replacement in one.replaced]
        if one.copied is not None:
            spans = copied_spans(self.tokenizer, one.tokens, one.src_tokens, one.copied)
            record |= {"p_gen": one.p_gen, "copied": one.copied, "copied_spans": [asdict(span) for span in spans]}
        return record


def write_stream(
    batches: Generator[Sequence[Written], None, None], write: Callable[[Written], object], unit: str, invitation: str
) -> None:
    """Writes results as soon as they are there, with a line on stderr that says how many `unit` are done.

    Who types at a terminal is told the `invitation`, and asked for each line; it is "" where files are read.
    """
    typed = invitation and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if typed:
        note(f"{invitation} at once. Ctrl-D ends.")
    asks = typed and sys.stdout.isatty() and not is_quiet()  # else no results are seen, and the progress stands here
    prompt = "> " if asks else ""
    click.echo(prompt, nl=False, err=True)
    with progress(unit) as display, closing(batches):
        for batch in batches:
            for one in batch:
                write(one)
            sys.stdout.flush()
            display.advance(len(batch))
            click.echo(prompt, nl=False, err=True)
    if asks:
        click.echo(err=True)  # ends the line on which nothing more was typed


def tell_cut(cut: int, total: int, inputs: str, system: TextModel, remedy: str = "") -> None:
    """Says on stderr how many inputs were not read to their end, if any."""
    if cut:
        tell(f"{cut} of {total} {inputs} were longer than {system.max_source_tokens} tokens and were cut{remedy}")


def write_json_line(record: dict[str, Any]) -> None:
    """Writes an object as a line of standard output."""
    write_line(json.dumps(record, ensure_ascii=False))


def write_line(line: str) -> None:
    """Writes a line of standard output."""
    sys.stdout.write(line + "\n")
