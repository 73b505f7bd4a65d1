"""`nmtkit runs`, which lists runs, and its subcommands rm and mv."""

import json
import time
from dataclasses import asdict
from pathlib import Path

from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import confirm, tell
from nmtkit.runs.inventory import RunSummary, list_runs, remove_run, rename_run, require_run

SCORES_SHOWN = 2


def run_runs(runs: Path, as_json: bool) -> None:
    """Carries out `nmtkit runs`."""
    summaries = list_runs(runs)
    if as_json:
        terminal.say(json.dumps([asdict(one) for one in summaries], ensure_ascii=False, indent=1))
    elif summaries:
        head = ["run", "recipe", "state", "updates", "validation", "test", "MB", "changed"]
        terminal.table("", head, [_row(one) for one in summaries])
    else:
        tell(f"there are no runs in {runs}/; `nmtkit train demo` creates one")


def _row(one: RunSummary) -> list[str]:
    best = "-" if one.validation is None else f"{one.metric} {one.validation:.2f}"
    test = ", ".join(f"{name} {value:.2f}" for name, value in [*one.test.items()][:SCORES_SHOWN])
    state = f"{one.state} ({one.why})" if one.why else one.state
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.changed))
    updates = "-" if one.updates is None else f"{one.updates:,}"
    return [
        one.name,
        one.recipe,
        state,
        updates,
        best,
        test or "-",
        f"{one.size / 1e6:,.1f}",
        changed,
    ]


def run_remove(runs: Path, names: tuple[str, ...], yes: bool) -> None:
    """Carries out `nmtkit runs rm`."""
    folders = [require_run(name, runs) for name in names]
    listed = ", ".join(str(folder.path) for folder in folders)
    confirm(f"Remove {listed}?", yes)
    for folder in folders:
        remove_run(folder, tell)
        tell(f"removed {folder.path}")


def run_rename(runs: Path, old: str, new: str, yes: bool) -> None:
    """Carries out `nmtkit runs mv`."""
    folder = require_run(old, runs)
    confirm(f"Rename {folder.path} to {new}?", yes)
    renamed = rename_run(folder, new, tell)
    tell(f"{folder.path} is now {renamed.path}")
