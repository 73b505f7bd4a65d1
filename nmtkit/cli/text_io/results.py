"""Writing results as text or JSON, to standard output or to a file that appears only when it is complete."""

import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar, cast

import click

from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import is_quiet, note, tell
from nmtkit.cli.text_io.output_folder import OutputFolder, output_folder
from nmtkit.cli.text_io.reading import count_lines
from nmtkit.cli.text_io.streams import NamedOutput
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_user_path, write_errors
from nmtkit.data.text.files.names import COMPRESSED_ENDS, text_path
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.vocabulary import SPECIALS, UNK
from nmtkit.inference.constraints.words import words_of
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.long_texts import JoinedTranslation
from nmtkit.inference.result import Translation, copied_spans, moses_line

Written = TypeVar("Written")
LINES_SHOWN = 5
"""Maximum number of lines that a message lists; the others are only counted."""
FORCED_COMPARED = 20
"""Maximum number of outputs with terms that are compared with the results of a search without terms."""
REPEATED_SHARE = 0.2
"""Share of repeated trigrams above which a message recommends preventing repetitions."""
MIN_TRIGRAMS = 30
"""Minimum number of trigrams at which the share of repeated trigrams is meaningful."""
LONGEST_WORD = 40
"""Number of characters above which a word is examined for repetitions of its letters."""
LOOPING_SHARE = 0.4
"""Share of repeated trigrams above which an unfinished output is considered a loop of the same words or letters."""


def require_other(path: Path | None, inputs: Iterable[Path | None], option: str = "-o") -> None:
    """Raises an error if the file for results is one of the files that are read; None values are ignored."""
    for other in inputs:
        if path is None or other is None:
            continue
        other = Path(text_path(str(other)))
        is_same = path.exists() and other.exists() and path.samefile(other)
        # a file that does not exist yet can be compared only by its name
        if is_same or os.path.realpath(path) == os.path.realpath(other):
            raise NmtkitError(
                f"{path}: {option} would overwrite a file that this command reads or writes; use a different file"
            )


@contextmanager
def output_file(path: Path, inputs: Iterable[Path]) -> Iterator[TextIO]:
    """Opens a file for results, which replaces an existing file only if the block succeeds.

    The file is compressed if its name ends in .gz.
    """
    if str(path) == "-":
        raise NmtkitError(
            "-o does not accept -, because results go to standard output by default; remove -o"
        )
    if path.suffix in COMPRESSED_ENDS and path.suffix != ".gz":
        raise NmtkitError(
            f"{path}: results can be compressed only with gzip; use a file name that does not end in {path.suffix}"
        )
    require_other(path, inputs)
    with ExitStack() as stack:
        with write_errors(path):
            temporary = stack.enter_context(atomic_user_path(path))
            raw: BinaryIO = stack.enter_context(
                io.BufferedWriter(NamedOutput(temporary, str(path)))
            )
        # the header has no name or time, so that identical text gives identical files
        if path.suffix == ".gz":
            raw = cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0)))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


def into_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Redirects a command's standard output to `--output` or `--output-dir`; must be the outermost decorator."""

    @wraps(command)
    def with_output(output: Path | None, output_dir: Path | None = None, **options: Any) -> None:
        if output is not None and output_dir is not None:
            raise click.UsageError(
                "-o writes one file, but --output-dir writes one for each FILE; use only one of them"
            )
        if output_dir is not None:
            _into_folder(command, output_dir, options)
        elif output is not None:
            _into_file(command, output, options)
        else:
            command(**options)

    return with_output


def _into_file(command: Callable[..., Any], output: Path, options: dict[str, Any]) -> None:
    if output.is_dir():
        parameters = click.get_current_context().command.params
        has_folder = any(parameter.name == "output_dir" for parameter in parameters)
        remedy = (
            f"to write one output for each FILE into this folder, use --output-dir {output}"
            if has_folder
            else "give a file in this folder"
        )
        raise click.UsageError(f"{output} is a folder, but -o writes one file; {remedy}")
    with output_file(output, _paths(options)) as file, redirect_stdout(file):
        command(**options)
    note(f"wrote {output}")


def _into_folder(command: Callable[..., Any], folder: Path, options: dict[str, Any]) -> None:
    with OutputFolder(folder, options["files"], output_file) as opened:
        for output in opened.outputs:
            require_other(output, _paths(options), "--output-dir")
        if replaced := opened.replaced():
            more = ", ..." if len(replaced) > 1 else ""
            note(
                f"{len(replaced)} of {len(opened.outputs)} outputs already exist and will be replaced: "
                f"{replaced[0]}{more}"
            )
        command(**options)
    count = len(opened.outputs)
    note(f"wrote {count} {'file' if count == 1 else 'files'} to {folder}")


def _paths(options: dict[str, Any]) -> list[Path]:
    """Returns the paths among the values of options."""
    paths = []
    for value in options.values():
        values = value if isinstance(value, tuple) else (value,)
        paths += [path for path in values if isinstance(path, Path)]
    return paths


def progress(unit: str) -> terminal.LineProgress:
    """Returns a display on stderr that shows how many `unit` are finished, or nothing if `--quiet` is set."""
    return terminal.LineProgress(unit, stream=io.StringIO() if is_quiet() else None)


_MOSTLY = 0.5
"""Share of unknown tokens at which a warning is printed."""
_UNKNOWN = (SPECIALS[UNK], WORD_START + SPECIALS[UNK])


@dataclass
class UnknownTokens:
    """Counts the tokens of a text that are not in the model's vocabulary."""

    side: str
    """"source" or "target"."""
    tokens: int = 0
    unknown: int = 0

    def add(self, tokens: Iterable[str]) -> None:
        """Counts tokens. If the model copies words, unknown words keep their spelling and do not count as unknown."""
        for token in tokens:
            # a mark alone is not part of a word, and every vocabulary contains it
            self.tokens += token != WORD_START
            self.unknown += token in _UNKNOWN

    def tell_if_many(self) -> None:
        """Warns on stderr if at least half of the tokens were unknown."""
        if self.unknown < max(1, _MOSTLY * self.tokens):
            return
        why = "the model cannot read this text; use one that was trained on similar text"
        if self.side == "target":
            why = f"{SPECIALS[UNK]} is scored in their place, so a low perplexity is meaningless"
        share = self.unknown / self.tokens
        tell(
            f"warning: {share:.0%} of the {self.side} tokens are not in the model's vocabulary: {why}"
        )


@dataclass
class UnfinishedOutputs:
    """Counts the outputs that reached the length limit, for a warning at the end of a command."""

    may_repeat: bool = True
    """Whether the search may repeat n-grams; if not, no output can loop."""
    count: int = 0
    looping: int = 0
    """Number of unfinished outputs that repeat the same words or letters until the limit."""
    places: list[str] = field(default_factory=list)
    """Places of the first unfinished outputs."""

    def add(self, place: str, text: str) -> None:
        """Adds an unfinished output of the line at `place`."""
        self.count += 1
        if len(self.places) < LINES_SHOWN:
            self.places.append(place)
        trigrams, repeated = count_trigrams(text)
        self.looping += self.may_repeat and repeated > LOOPING_SHARE * trigrams

    def warn(self, outputs: str, total: int, remedy: str) -> None:
        """Warns on stderr if there are unfinished outputs, and says what to do about them.

        `outputs` is a plural noun, `total` the number of all outputs, and `remedy` names the options that raise the
        length limit.
        """
        if not self.count:
            return
        more = self.count - len(self.places)
        places = ", ".join(self.places) + (f", and {more} more" if more else "")
        advice = f"if they look cut off, raise the limit with {remedy}"
        if self.looping:
            all_loop = self.looping == self.count
            which = "they repeat"
            if not all_loop:
                which = f"{self.looping} of them {'repeats' if self.looping == 1 else 'repeat'}"
            loops = f"{which} the same words or letters until the limit, which --no-repeat-ngram 3 prevents"
            advice = loops if all_loop else f"{loops}; {advice}"
        tell(
            f"warning: {self.count} of {total} {outputs} reached the length limit ({places}): {advice}"
        )


def count_trigrams(text: str) -> tuple[int, int]:
    """Returns the number of trigrams of words in a text, and how many of them repeat an earlier one.

    A word of more than `LONGEST_WORD` characters counts as its characters, because it may be a loop of a few letters.
    """
    units: list[str] = []
    for word in words_of(text):
        if len(word) > LONGEST_WORD:
            units.extend(word)
        else:
            units.append(word)
    trigrams = list(zip(units, units[1:], units[2:], strict=False))
    return len(trigrams), len(trigrams) - len(set(trigrams))


@dataclass
class Printer:
    """Writes outputs to standard output, line by line, and collects facts that the user should know at the end."""

    tokenizer: Tokenizer
    """Tokenizer of the target."""
    n_best: int
    as_json: bool
    scores: bool = False
    """Whether to print score and log-probability before each output."""
    form: str = "text"
    replaced: bool = False
    """Whether unknown words were replaced; JSON objects then list them."""
    checks_numbers: bool = False
    """Whether to look for numbers in the source that are missing from the output."""
    may_repeat: bool = False
    """Whether the search may repeat n-grams, in which case advice against repetitions is useful."""
    folder: OutputFolder | None = field(default_factory=output_folder)
    lines: int = 0
    """Number of input lines whose outputs were written."""
    unfinished: UnfinishedOutputs = field(init=False)
    """Lines whose output reached the length limit."""
    cut: int = 0
    """Number of input lines that were truncated."""
    sources: UnknownTokens = field(default_factory=lambda: UnknownTokens("source"))
    """Counts the source tokens, and those that are unknown."""
    fewer: int = 0
    """Number of lines with fewer than `n_best` outputs, because the search found no more, or duplicates were merged."""
    number_faults: list[str] = field(default_factory=list)
    """Descriptions, for a message, of the first outputs that lack numbers from their sources."""
    number_fault_count: int = 0
    trigrams: int = 0
    repeated_trigrams: int = 0
    forced: list[tuple[str, Translation]] = field(default_factory=list)
    """The first outputs that had to contain terms, each after the place of its line, for messages."""

    def __post_init__(self) -> None:
        self.unfinished = UnfinishedOutputs(self.may_repeat)

    @property
    def number(self) -> int:
        """Number of the current line; within its file if each file has its own output."""
        return self.lines if self.folder is None else self.folder.line

    @property
    def place(self) -> str:
        """Place of the current line, for messages."""
        return f"line {self.lines}" if self.folder is None else self.folder.place()

    def write(self, outputs: Sequence[Translation]) -> None:
        """Writes the outputs of one line of input, best first."""
        best = outputs[0]
        self._count(best, [best])
        # the output of an empty line has no tokens
        if len(outputs) < self.n_best and best.token_log_probs:
            self.fewer += 1
        if not self.as_json:
            self._write_plain(outputs)
            return
        record: dict[str, Any] = {"line": self.number, "source_tokens": best.src_tokens}
        if best.src_left_out:
            record["source_tokens_left_out"] = best.src_left_out
        if self.checks_numbers and best.missing_numbers:
            record["missing_numbers"] = list(best.missing_numbers)
        record["best"] = self.record(best)
        record["others"] = [self.record(other) for other in outputs[1:]]
        write_json_line(record)

    def write_joined(self, result: JoinedTranslation) -> None:
        """Writes the summary of an article read in windows, or the translation of a line split into sentences."""
        self._count(result, result.parts)
        if len(result.others) + 1 < self.n_best and result.parts:
            self.fewer += 1
        if not self.as_json:
            self._write_plain([result, *result.others])
            return
        record: dict[str, Any] = {"line": self.number, "text": result.text}
        record |= {"score": result.score, "log_prob": result.log_prob}
        if self.checks_numbers and result.missing_numbers:
            record["missing_numbers"] = list(result.missing_numbers)
        record[result.kind] = [
            {"source_tokens": one.src_tokens, "best": self.record(one)} for one in result.parts
        ]
        if self.n_best > 1:
            record["others"] = [
                {"text": other.text, "score": other.score, "log_prob": other.log_prob}
                for other in result.others
            ]
        write_json_line(record)

    def _write_plain(self, outputs: Sequence[Translation | JoinedTranslation]) -> None:
        best = outputs[0]
        if self.form == "moses":
            for output in outputs:
                write_line(moses_line(self.number - 1, output))
        elif self.n_best > 1:
            for output in outputs:
                write_line(
                    f"{self.number}\t{output.score:.6f}\t{output.log_prob:.6f}\t{output.text}"
                )
        elif self.scores:
            write_line(f"{best.score:.6f}\t{best.log_prob:.6f}\t{best.text}")
        else:
            write_line(best.text)

    def report(self, outputs: str, remedy: str) -> None:
        """Reports problems on stderr: unknown source tokens, unfinished outputs, repetitions and missing numbers.

        `outputs` is a plural noun for messages, and `remedy` names the options that raise the length limit.
        """
        self.sources.tell_if_many()
        if self.fewer:
            count = f"{self.fewer} of {self.lines} lines have fewer than {self.n_best} {outputs}"
            tell(f"{count}, because the search found no more, or because duplicates were merged")
        self.unfinished.warn(outputs, self.lines, remedy)
        repeats = self.repeated_trigrams > REPEATED_SHARE * self.trigrams
        if self.may_repeat and repeats and self.trigrams >= MIN_TRIGRAMS:
            share = self.repeated_trigrams / self.trigrams
            tell(
                f"warning: the {outputs} repeat themselves ({share:.0%} of their trigrams are repeated); to prevent "
                "this, use --no-repeat-ngram 3"
            )
        if self.number_fault_count:
            more = self.number_fault_count - len(self.number_faults)
            names = "; ".join(self.number_faults) + (f"; and {more} more" if more else "")
            tell(
                f"warning: {self.number_fault_count} of {self.lines} translations lack a number, URL or e-mail address "
                f"from their source: {names}"
            )

    def _count(self, best: Translation | JoinedTranslation, parts: Sequence[Translation]) -> None:
        self.lines += 1
        for part in parts:
            self.sources.add(part.src_tokens)
        faults = [fault for part in parts for fault in part.unmet_constraints]
        for fault in dict.fromkeys(faults):
            tell(f"{self.place}: the translation {fault}")
        if any(not part.finished for part in parts):
            self.unfinished.add(self.place, best.text)
        self.cut += any(part.src_left_out > 0 for part in parts)
        if self.may_repeat:
            trigrams, repeated = count_trigrams(best.text)
            self.trigrams += trigrams
            self.repeated_trigrams += repeated
        if self.checks_numbers and best.missing_numbers:
            self.number_fault_count += 1
            if len(self.number_faults) < LINES_SHOWN:
                self.number_faults.append(f"{self.place} ({', '.join(best.missing_numbers)})")
        for part in parts:
            if (
                part.request is not None
                and part.request.must
                and len(self.forced) < FORCED_COMPARED
            ):
                self.forced.append((self.place, part))

    def record(self, one: Translation) -> dict[str, Any]:
        """Returns an output as a JSON object."""
        names = ("text", "score", "log_prob", "tokens", "token_log_probs", "finished")
        record = {name: getattr(one, name) for name in names}
        if self.replaced:
            record["replaced"] = [asdict(replacement) for replacement in one.replaced]
        if one.copied is not None:
            spans = copied_spans(self.tokenizer, one.tokens, one.src_tokens, one.copied)
            record |= {
                "p_gen": one.p_gen,
                "copied": one.copied,
                "copied_spans": [asdict(span) for span in spans],
            }
        return record


def write_stream(
    batches: Generator[Sequence[Written], None, None],
    write: Callable[[Written], object],
    unit: str,
    invitation: str,
    files: Sequence[Path] = (),
) -> None:
    """Writes results as soon as they are available, and shows on stderr how many `unit` are finished.

    In a terminal, it prints the `invitation` and a prompt for each line; `invitation` is "" if files are read. If
    `files` with one line per result are passed, it also shows the total and the time left.
    """
    typed = invitation and all(
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)
    )
    if typed:
        note(f"{invitation} at once. Ctrl-D quits.")
    # without results on the terminal, the progress display takes the place of the prompt
    asks = typed and sys.stdout.isatty() and not is_quiet()
    prompt = "> " if asks else ""
    click.echo(prompt, nl=False, err=True)
    folder = output_folder()
    with progress(unit) as display, closing(batches):
        if files and display.is_shown:
            display.total = count_lines(files)
        for batch in batches:
            for one in batch:
                if folder is not None:
                    folder.begin_line()
                write(one)
            sys.stdout.flush()
            display.advance(len(batch))
            click.echo(prompt, nl=False, err=True)
    if asks:
        click.echo(err=True)  # ends the line of the last prompt


def tell_cut(cut: int, total: int, inputs: str, system: TextModel, remedy: str = "") -> None:
    """Prints on stderr how many inputs were truncated, if any."""
    if cut:
        tell(
            f"{cut} of {total} {inputs} were longer than {system.max_source_tokens} tokens and were truncated{remedy}"
        )


def write_json_line(record: dict[str, Any]) -> None:
    """Writes an object as a line on standard output."""
    write_line(json.dumps(record, ensure_ascii=False))


def write_line(line: str) -> None:
    """Writes a line on standard output."""
    sys.stdout.write(line + "\n")
