"""Implements the commands of tasks that have no file of their own in this folder."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import count, islice
from pathlib import Path

import click

from nmtkit.cli.inference import model_options
from nmtkit.cli.terminal.reporting import note
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.output_folder import output_folder
from nmtkit.cli.text_io.reading import chained, text_windows
from nmtkit.config.tasks.task import LabellingTask, Task
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.inference.answering import RankedLabel, answer, model_inputs, rank_labels
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions

INVITATION = "type one example per line"


@results.into_output
@model_options.opens_model
def run_writing_task(
    how: DecodingOptions,
    task: Task,
    files: tuple[Path, ...],
    form: str,
    scores: bool,
    as_json: bool,
) -> None:
    """Carries out the command of a task whose models generate text."""
    system = model_options.open_model(how, task.name)
    may_repeat = not system.config.no_repeat_ngram
    printer = results.Printer(
        system.tokenizers.tgt, how.n_best, as_json, scores, form, may_repeat=may_repeat
    )
    windows = map(partial(model_inputs, task), _windows(task, files, system))
    stream = system.stream(windows, how.n_best, need_copies=as_json)
    results.write_stream(stream, printer.write, "lines", "" if files else INVITATION)
    remedy = "--max-length"
    if task.columns[0].name == "src":
        remedy += " or --search max_length_ratio=R"
    printer.report("texts", remedy)


@results.into_output
@model_options.opens_model
def run_labelling_task(
    how: DecodingOptions, task: Task, files: tuple[Path, ...], as_json: bool = False
) -> None:
    """Carries out the command of a task whose models predict labels."""
    system = load_from_options(how, task.name, note)
    lines = count(1)
    folder = output_folder()

    def write(ranked: list[RankedLabel]) -> None:
        number = next(lines) if folder is None else folder.line
        shown = ranked[: how.n_best if how.n_best > 1 else None]
        if as_json:
            probabilities = {label.label: label.probability for label in shown}
            results.write_json_line(
                {"line": number, **asdict(shown[0]), "probabilities": probabilities}
            )
            return
        for label in shown:
            results.write_line(f"{number}\t{label.probability:.6f}\t{label.label}")

    windows = _windows(task, files, system)
    invitation = "" if files else INVITATION
    if isinstance(task, LabellingTask) and (as_json or how.n_best > 1):
        rankings = (rank_labels(task, system, window) for window in windows)
        results.write_stream(rankings, write, "lines", invitation)
        return
    answers = (answer(task, system, window).texts for window in windows)
    results.write_stream(answers, results.write_line, "lines", invitation)


def _windows(task: Task, files: tuple[Path, ...], system: TextModel) -> Iterator[list[Example]]:
    first = task.columns[0].name
    if first == "features" and not files:
        raise click.UsageError(
            "features cannot be read from standard input; pass an .npy, .npz or .txt FILE"
        )
    if first == "tgt":
        system.require_language_model()
    return _examples(task, files, model_options.window_lines(system))


def _examples(task: Task, files: tuple[Path, ...], most: int) -> Iterator[list[Example]]:
    """Yields windows of examples, which have only the task's first column, from files or standard input."""
    name = task.columns[0].name
    if name == "features":
        rows = chained(files, lambda file: read_pairs(SplitFiles(features=[str(file)])))
        yield from iter(lambda: list(islice(rows, most)), [])
        return
    numbers = count(1)
    for lines in text_windows(files, most):
        numbered = zip(lines, numbers, strict=False)
        yield [
            Example("", line, n) if name == "tgt" else Example(line, None, n)
            for line, n in numbered
        ]
