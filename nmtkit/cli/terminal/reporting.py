"""Messages and questions to the user of a command."""

import sys
from functools import partial

import click

from nmtkit.cli import terminal
from nmtkit.cli.options import QUIET
from nmtkit.core.errors import NmtkitError

tell = partial(terminal.say, stderr=True)
"""Prints a line on stderr, because standard output is reserved for results."""


def is_quiet() -> bool:
    """Returns whether the current command was called with `--quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def note(text: str) -> None:
    """Prints a note on stderr, unless `--quiet` is set; for warnings, use `tell`."""
    if not is_quiet():
        tell(text)


def confirm(question: str, agreed: bool) -> None:
    """Asks for confirmation unless `--yes` was given; ends the command if the answer is no or there is no terminal."""
    if agreed:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise NmtkitError(
            f"nothing was done, because the question {question!r} requires a terminal; to answer yes, use --yes"
        )
    click.confirm(question, abort=True, err=True)
