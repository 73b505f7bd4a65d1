"""`nmtkit watch`: the curves of a training in the terminal, as it goes on."""

from typing import Any

import click
import cloup

from nmtkit.cli import completing


@cloup.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
def watch_command(**values: Any) -> None:
    """Show the training curves of a run live in the terminal: loss, validation score, speed.

    RUN is the folder of a run, or its name under runs/. The training may run in another process or on another machine
    that shares the folder, or may have ended; a copy of the folder works, too. The command only reads the folder. It
    redraws the curves until the training ends or you press Ctrl-C; if the output is not a terminal, it draws them once.

    \b
    Examples:
      nmtkit watch runs/mine
      nmtkit watch mine
    """
    from nmtkit.cli.training.watch import run_watch

    run_watch(**values)
