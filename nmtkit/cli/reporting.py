"""Messages and tables that several commands show."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from nmtkit import console
from nmtkit.cli.options import QUIET
from nmtkit.core.errors import NmtkitError
from nmtkit.corpus.checking import DataReport

if TYPE_CHECKING:  # torch, which scoring does without, comes with it
    from nmtkit.presets.forgetting import TestChange

tell = partial(console.say, stderr=True)
"""Prints a line on stderr: standard output is for results."""


def is_quiet() -> bool:
    """Whether the current command has `--quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def note(text: str) -> None:
    """Prints a note on stderr, unless `--quiet`; warnings go through `tell`."""
    if not is_quiet():
        tell(text)


def confirm(question: str, otherwise: str) -> None:
    """Asks at a terminal, and ends the command if the answer is no; without a terminal `otherwise` is the error."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise NmtkitError(otherwise)
    click.confirm(question, abort=True, err=True)


def show_report(report: DataReport) -> None:
    """Prints the report of preprocessing on stderr."""
    tell(report.line())
    if rows := report.left_out():
        console.table("left out or cut", ["split", "fault", "pairs", "first line", "done"], rows, stream="stderr")


def show_changes(changes: Sequence["TestChange"], mixed: bool) -> None:
    """Prints the scores before and after fine-tuning, and warns of forgetting; `mixed`: with general text."""
    if not changes:
        return
    rows = [[one.text, f"{one.before:.2f}", f"{one.after:.2f}", f"{one.after - one.before:+.2f}"] for one in changes]
    console.say("")
    console.table(f"{changes[0].metric} before and after fine-tuning", ["test set", "before", "after", "change"], rows)
    if not any(one.of_general_text for one in changes):
        tell(
            "forgetting was not measured without a test set of general text: name one with "
            "--general-test-source and --general-test-target (init_from.test in a recipe)"
        )
    for one in changes:
        if one.fell and one.of_general_text:
            more = "more general text (data.train.weights)" if mixed else "general text (--general-source FILE)"
            tell(
                f"warning: catastrophic forgetting: {one.metric} on {one.text} fell from {one.before:.2f} to "
                f"{one.after:.2f}. Mix in {more}, lower training.lr, or make fewer updates"
            )
        elif one.fell:
            tell(
                f"warning: fine-tuning made it worse: {one.metric} on {one.text} fell from {one.before:.2f} to "
                f"{one.after:.2f}. Lower training.lr, or bring more text"
            )
