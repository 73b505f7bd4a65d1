"""Commands of tasks that have no file of their own in this folder, such as tasks that a user registers."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.inference.translate import decoding_options, scores_option
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import Decorator, Number
from nmtkit.config.tasks.task import LabellingTask, Task
from nmtkit.core.columns import label_type

_HELP = """{about}

The command prints one line per example, in order. {reads}{writes}

\b
Examples:
  nmtkit {command} FILE -o output.txt
  nmtkit {command} -m runs/mine --checkpoint best FILE
"""
_WRITES = """ Beam search looks for the most probable text. To sample a text instead, use --samples 1 --top-p 0.9; a
different --seed N gives a different text. --n-best K prints "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB TEXT". """
_RANKED = ' --n-best K prints "NUMBER TAB PROBABILITY TAB LABEL" for the K most probable labels.'
_RANKING: list[Decorator] = [
    click.option(
        "--n-best", type=Number(1), metavar="N", default=1, help="Print the N most probable labels."
    ),
    options.as_json(
        "Print a JSON object for each line: the label, and the probabilities of all labels, or of the N best."
    ),
]
_GOES_ON = 'Each output includes its input; "tokens" in --json contains only the new tokens.'


def task_command(task: Task) -> click.Command:
    """Returns the command that prints the labels, or the generated texts, of a task's model."""
    first = task.columns[0].name
    reads = "Each line of FILEs, or of standard input, is an example."
    if first == "features":
        reads = "FILEs contain features (.npy or .npz) or paths of images (.txt)."
    if task.searches:
        writes = _WRITES + _GOES_ON * (first == "tgt")
    elif _ranks(task):
        writes = _RANKED
    else:
        writes = ""
    about = _HELP.format(about=task.about, reads=reads, writes=writes, command=task.command)
    answer = _writing_command(task) if task.searches else _labelling_command(task)
    return cloup.command(task.command, help=about)(answer)


def _ranks(task: Task) -> bool:
    """Returns whether the outputs of a task are labels with probabilities."""
    return isinstance(task, LabellingTask) and label_type(task.columns) == "label"


def _writing_command(task: Task) -> Any:
    @decoding_options([scores_option, options.as_json("Print a JSON object for each line.")])
    def write(**values: Any) -> None:
        from nmtkit.cli.inference.tasks import run_writing_task

        run_writing_task(task=task, **values)

    return write


def _labelling_command(task: Task) -> Any:
    more = _RANKING if _ranks(task) else []

    @options.files
    @cloup.option_group(
        "Common", options.model, search_options.checkpoint, options.outputs, *more, options.device
    )
    @cloup.option_group("Speed", search_options.batch_tokens, options.threads)
    @options.encoding
    @options.quiet
    def label(**values: Any) -> None:
        from nmtkit.cli.inference.tasks import run_labelling_task

        run_labelling_task(task=task, **values)

    return label
