"""The commands of tasks that have none of their own here, such as the tasks of a user's file."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path

import click
import cloup

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import Decorator, Number
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import note
from nmtkit.cli.translate import decoding_options, scores_option
from nmtkit.core.columns import label_type
from nmtkit.corpus.blocks import Example
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment.loading import DecodingOptions, load_from_options
from nmtkit.tasks.labelling import LabellingTask, RankedLabel
from nmtkit.tasks.task import Task
from nmtkit.translation.inputs import TextModel

_HELP = """{about}

One line is printed for each example, in order. {reads}{writes}

\b
Examples:
  nmtkit {command} FILE -o output.txt
  nmtkit {command} -m runs/mine --checkpoint best FILE
"""
_WRITES = """ A search looks for the most probable text; --samples 1 --top-p 0.9 draws one instead, --seed N another.
--n-best K prints "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB TEXT". """
_RANKED = ' --n-best K prints "NUMBER TAB PROBABILITY TAB LABEL" for the K most probable labels.'
_RANKING: list[Decorator] = [
    click.option("--n-best", type=Number(1), metavar="N", default=1, help="The N most probable labels."),
    options.as_json("Print a JSON object for each line: the label, and the probabilities of all, or of --n-best."),
]
_GOES_ON = 'A text is printed whole, with its beginning; "tokens" of --json are those after it.'


def task_command(task: Task) -> click.Command:
    """The command that prints what a model of the task answers, see `Task.predict`; of a task that writes, searches."""
    first = task.columns[0].name
    reads = "A line of FILEs or standard input is one."
    reads = "Features are in .npy or .npz FILEs, paths of pictures in .txt." if first == "features" else reads
    writes = _WRITES + _GOES_ON * (first == "tgt") if task.searches else ""
    invitation = "type an example on each line"

    def windows(files: tuple[Path, ...], system: TextModel) -> Iterator[list[Example]]:
        if first == "features" and not files:
            raise click.UsageError("features are read from files: name an .npy, .npz or .txt FILE")
        if first == "tgt":
            system.require_language_model()
        return _examples(task, files, inference.window_lines(system))

    @decoding_options([scores_option, options.as_json("Print a JSON object for each line.")])
    def write(how: DecodingOptions, files: tuple[Path, ...], form: str, scores: bool, as_json: bool) -> None:
        system = inference.open_model(how, task.name)
        printer = results.Printer(system.tokenizers.tgt, how.n_best, as_json, scores, form)
        stream = system.stream(map(task.read, windows(files, system)), how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "lines", "" if files else invitation)
        printer.report("texts", "--max-length" + " or --search max_length_ratio=R" * (first == "src"))

    ranks = isinstance(task, LabellingTask) and label_type(task.columns) == "label"
    more = _RANKING if ranks else []

    @options.files
    @cloup.option_group("Common", options.model, inference.checkpoint, results.output, *more, options.device)
    @cloup.option_group("Speed", inference.batch_tokens, options.threads)
    @options.quiet
    @results.into_output
    @inference.opens_model
    def label(how: DecodingOptions, files: tuple[Path, ...], as_json: bool = False) -> None:
        system, lines = load_from_options(how, task.name, note), count(1)

        def write(ranked: list[RankedLabel]) -> None:
            number, kept = next(lines), ranked[: how.n_best if how.n_best > 1 else None]
            if as_json:
                best, probabilities = asdict(kept[0]), {one.label: one.probability for one in kept}
                results.write_json_line({"line": number, **best, "probabilities": probabilities})
                return
            for one in kept:
                results.write_line(f"{number}\t{one.probability:.6f}\t{one.label}")

        texts, invited = windows(files, system), "" if files else invitation
        if isinstance(task, LabellingTask) and (as_json or how.n_best > 1):
            results.write_stream((list(task.rank(system, window)) for window in texts), write, "lines", invited)
            return
        answers = (list(task.predict(system, window)) for window in texts)
        results.write_stream(answers, results.write_line, "lines", invited)

    about = _HELP.format(about=task.about, reads=reads, writes=writes or _RANKED * ranks, command=task.command)
    return cloup.command(task.command, help=about)(write if task.searches else label)


def _examples(task: Task, files: tuple[Path, ...], most: int) -> Iterator[list[Example]]:
    """The examples of files or of standard input in windows; only the task's first column is given."""
    name = task.columns[0].name
    if name == "features":
        rows = read_pairs(SplitFiles(features=[str(file) for file in files]))
        yield from iter(lambda: list(islice(rows, most)), [])
        return
    numbers = count(1)
    for lines in text_windows(files, most):
        numbered = zip(lines, numbers, strict=False)
        yield [Example("", line, n) if name == "tgt" else Example(line, None, n) for line, n in numbered]
