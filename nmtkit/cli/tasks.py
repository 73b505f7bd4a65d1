"""The commands of tasks that have none of their own here, such as the tasks of a user's file."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import click
import cloup

from nmtkit.cli import inference, options, results
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import note
from nmtkit.corpus.blocks import Example
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment.loading import DecodingOptions, load_from_options
from nmtkit.tasks.task import Task

_HELP = """{about}

One line is printed for each example, in order. {reads}

\b
Examples:
  nmtkit {command} FILE -o output.txt
  nmtkit {command} -m runs/mine --checkpoint best FILE
"""


def task_command(task: Task) -> click.Command:
    """The command that prints what a model of the task answers, see `Task.predict`."""
    reads_features = task.columns[0].name == "features"
    reads = (
        "Features are in .npy or .npz FILEs." if reads_features else "An example is a line of FILEs or standard input."
    )
    speed = cloup.option_group("Speed", inference.batch_tokens, options.threads)

    @cloup.command(task.command, help=_HELP.format(about=task.about, reads=reads, command=task.command))
    @options.files
    @cloup.option_group(
        "Common",
        options.models if task.searches else options.model,
        inference.checkpoint,
        results.output,
        *([inference.search_flags("beam_size")] if task.searches else []),
        options.device,
    )
    @(inference.search_groups() if task.searches else speed)
    @options.quiet
    @results.into_output
    @inference.opens_model
    def command(how: DecodingOptions, files: tuple[Path, ...]) -> None:
        if reads_features and not files:
            raise click.UsageError("features are read from files: name an .npy or .npz FILE")
        system = load_from_options(how, task.name, note)
        examples = _examples(task, files, inference.window_lines(system))
        answers = (list(task.predict(system, window)) for window in examples)
        results.write_stream(answers, results.write_line, "lines", "" if files else "type an example on each line")

    return command


def _examples(task: Task, files: tuple[Path, ...], most: int) -> Iterator[list[Example]]:
    """The examples of files or of standard input in windows; only the task's first column is given."""
    name = task.columns[0].name
    if name == "features":
        rows = read_pairs(SplitFiles(features=[str(file) for file in files]))
        yield from iter(lambda: list(islice(rows, most)), [])
        return
    numbers = count(1)
    for lines in text_windows(files, EXTRACT_HINT, most):
        numbered = zip(lines, numbers, strict=False)
        yield [Example("", line, n) if name == "tgt" else Example(line, None, n) for line, n in numbered]
