"""Messages and questions of commands."""

import sys
from functools import partial

import click

from nmtkit.cli import terminal
from nmtkit.cli.options import QUIET
from nmtkit.core.errors import NmtkitError

tell = partial(terminal.say, stderr=True)
"""Prints a line on stderr: standard output is for results."""


def is_quiet() -> bool:
    """Whether the current command has `--quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def note(text: str) -> None:
    """Prints a note on stderr, unless `--quiet`; warnings go through `tell`."""
    if not is_quiet():
        tell(text)


def confirm(question: str, agreed: bool) -> None:
    """Asks the user unless `--yes` was given; ends the command if the answer is no or there is no terminal."""
    if agreed:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise NmtkitError(
            f"nothing was done, because there is no terminal for the question {question!r}; to answer yes, use --yes"
        )
    click.confirm(question, abort=True, err=True)
