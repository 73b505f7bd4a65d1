"""`nmtkit watch`: the curves of a training in the terminal, as it goes on."""

from datetime import timedelta

import click
import cloup

from nmtkit.cli import completing
from nmtkit.cli.options import Number
from nmtkit.console.charts import Chart, show_charts
from nmtkit.runs.metrics_log import MetricsLog, training_curves
from nmtkit.runs.saved import SavedRun, find_training
from nmtkit.training.events import Step

TRAINING, VALIDATION = "cyan", "bright_yellow"
"""Colours of the curves of the training batches and of the validation set."""


@cloup.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@cloup.option_group(
    "Common",
    click.option(
        "--every", type=Number(0.1, 3600, whole=False), default=2.0, metavar="SECONDS", help="Between two looks."
    ),
)
def command(run: str, every: float) -> None:
    """Show the curves of a training in the terminal while it runs: loss, validation score, speed.

    RUN is the folder of a run, or its name under runs/. The training may run in another process, on another machine
    that shares the folder, or have ended; a copy of the folder will do. It is only read. The curves are drawn anew
    until the training ends, or until Ctrl-C; where the output is no terminal, once.

    \b
    Examples:
      nmtkit watch runs/mine
      nmtkit watch mine --every 30
    """
    saved = find_training(run)
    seen = False

    def goes_on() -> bool:
        nonlocal seen
        before, seen = seen, bool(saved.folder.lock_holder())
        return not saved.folder.result.exists() and (seen or not before)

    show_charts(lambda: look(saved), goes_on, every)


def look(run: SavedRun) -> tuple[str, list[Chart]]:
    """A line of facts about a training, and its charts."""
    name, folder = run.folder.path.resolve().name, run.folder
    is_logged = folder.metrics.exists() and folder.metrics.stat().st_size
    steps = [event for _, event in MetricsLog(folder).read() if isinstance(event, Step)] if is_logged else []
    if not steps:
        return f"{name}: nothing is logged yet", []
    last, holder = steps[-1], folder.lock_holder()
    state = f"trained by {holder}" if holder else "finished" if folder.result.exists() else "not trained from here"
    curves = training_curves(run, name)
    charts: list[Chart] = [
        ("loss", {"training": (curves.loss, TRAINING), "validation": (curves.valid_loss, VALIDATION)}),
        (curves.metric, {"validation": (curves.valid_score, VALIDATION)}),
    ]
    facts = (
        f"{name}: update {last.update:,}, epoch {int(last.epoch) + 1}, after {timedelta(seconds=round(last.seconds))}; "
        f"{last.tokens_per_second:,.0f} tok/s, lr {last.lr:.2g}; {state}"
    )
    return facts, [(title, shown) for title, shown in charts if any(points for points, _ in shown.values())]
