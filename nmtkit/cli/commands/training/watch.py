"""`nmtkit watch`: live training curves in the terminal."""

from typing import Any

import click
import cloup

from nmtkit.cli import completing


@cloup.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
def watch_command(**values: Any) -> None:
    """Show the training curves of a run live in the terminal: loss, validation score, speed.

    RUN is the folder of a run, or its name under runs/. The run may be finished, or still be training in another
    process, even on another machine that shares the folder; a copy of the folder works, too. The command only reads the
    folder. It redraws the curves until training ends or you press Ctrl-C. If the output is not a terminal, it draws
    them once.

    \b
    Examples:
      nmtkit watch runs/mine
      nmtkit watch mine
    """
    from nmtkit.cli.training.watch import run_watch

    run_watch(**values)
