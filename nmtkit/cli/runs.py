"""`nmtkit runs`: a table of them, rm, mv."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from nmtkit import console
from nmtkit.cli import completing, options
from nmtkit.cli.reporting import confirm, tell
from nmtkit.runs.folder import RUNS_FOLDER
from nmtkit.runs.inventory import RunSummary, list_runs, remove_run, rename_run, require_run

SCORES_SHOWN = 2

yes: options.Decorator = click.option("--yes", "-y", is_flag=True, help="Do it without being asked.")


@click.group("runs", invoke_without_command=True)
@click.option("--runs", type=options.FILE, default=RUNS_FOLDER, show_default=True, help="The folder of the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.pass_context
def command(ctx: click.Context, runs: Path, as_json: bool) -> None:
    """List runs, the newest first.

    For each: its recipe, whether it finished and why, its updates, the best score on the validation set, the scores on
    the test set, its size on disk, and when it last changed.

    \b
    Example:
      nmtkit runs --json | jq '.[] | select(.state == "finished") | .name'
    """
    ctx.obj = runs
    if ctx.invoked_subcommand is not None:
        return
    summaries = list_runs(runs)
    if as_json:
        console.say(json.dumps([asdict(one) for one in summaries], ensure_ascii=False, indent=1))
    elif summaries:
        head = ["run", "recipe", "state", "updates", "validation", "test", "MB", "changed"]
        console.table("", head, [_row(one) for one in summaries])
    else:
        tell(f"there is no run under {runs}/; `nmtkit train demo` makes one")


def _row(one: RunSummary) -> list[str]:
    best = "-" if one.validation is None else f"{one.metric} {one.validation:.2f}"
    test = ", ".join(f"{name} {value:.2f}" for name, value in [*one.test.items()][:SCORES_SHOWN])
    state = f"{one.state} ({one.why})" if one.why else one.state
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.changed))
    updates = "-" if one.updates is None else f"{one.updates:,}"
    return [one.name, one.recipe, state, updates, best, test or "-", f"{one.size / 1e6:,.1f}", changed]


@command.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completing.runs)
@yes
@click.pass_obj
def remove(runs: Path, names: tuple[str, ...], yes: bool) -> None:
    """Remove runs: checkpoints, logs, and all other files of nmtkit.

    Other files in their folders stay. A run that is being trained is not removed.

    \b
    Example:
      nmtkit runs rm old-try another-try --yes
    """
    folders = [require_run(name, runs) for name in names]
    listed = ", ".join(str(folder.path) for folder in folders)
    confirm(f"Remove {listed}?", yes)
    for folder in folders:
        remove_run(folder, tell)
        tell(f"removed {folder.path}")


@command.command("mv")
@click.argument("old", metavar="OLD", shell_complete=completing.runs)
@click.argument("new", metavar="NEW")
@yes
@click.pass_obj
def rename(runs: Path, old: str, new: str, yes: bool) -> None:
    """Rename the run OLD to NEW, which is a name beside it, or a path.

    To resume a run that was renamed, name it: `nmtkit train RECIPE --run runs/NEW --resume`.

    \b
    Example:
      nmtkit runs mv demo elsewhere/demo
    """
    folder = require_run(old, runs)
    confirm(f"Rename {folder.path} to {new}?", yes)
    renamed = rename_run(folder, new, tell)
    tell(f"{folder.path} is now {renamed.path}")
