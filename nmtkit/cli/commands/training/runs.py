"""`nmtkit runs`, which lists runs, and its subcommands rm and mv."""

from pathlib import Path
from typing import Any

import click

from nmtkit.cli import completing, options
from nmtkit.runs.folder import RUNS_FOLDER

yes: options.Decorator = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask for confirmation."
)


@click.group("runs", invoke_without_command=True)
@click.option(
    "--runs", type=options.FILE, default=RUNS_FOLDER, show_default=True, help="Folder of the runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.pass_context
def runs_command(ctx: click.Context, runs: Path, as_json: bool) -> None:
    """List runs, newest first.

    Each run is shown with its recipe, its state and the reason for it, its number of updates, its best score on the
    validation set, its scores on the test set, its size on disk, and the time of its last change.

    \b
    Example:
      nmtkit runs --json | jq '.[] | select(.state == "finished") | .name'
    """
    ctx.obj = runs
    if ctx.invoked_subcommand is not None:
        return
    from nmtkit.cli.training.runs import run_runs

    run_runs(runs, as_json)


@runs_command.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completing.runs)
@yes
@click.pass_obj
def remove(runs: Path, /, **values: Any) -> None:
    """Remove runs: checkpoints, logs, and all other files that nmtkit wrote.

    Any other files in their folders are kept. A run that is still being trained is not removed.

    \b
    Example:
      nmtkit runs rm old-try another-try --yes
    """
    from nmtkit.cli.training.runs import run_remove

    run_remove(runs, **values)


@runs_command.command("mv")
@click.argument("old", metavar="OLD", shell_complete=completing.runs)
@click.argument("new", metavar="NEW")
@yes
@click.pass_obj
def rename(runs: Path, /, **values: Any) -> None:
    """Rename the run OLD to NEW, which is a name in the same folder, or a path.

    To resume a renamed run, pass its folder: `nmtkit train RECIPE --run runs/NEW --resume`.

    \b
    Example:
      nmtkit runs mv demo elsewhere/demo
    """
    from nmtkit.cli.training.runs import run_rename

    run_rename(runs, **values)
