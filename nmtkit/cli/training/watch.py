"""`nmtkit watch`: live training curves in the terminal."""

from datetime import timedelta

from nmtkit.cli.terminal.charts import Chart, show_charts
from nmtkit.runs.metrics_log import MetricsLog, training_curves
from nmtkit.runs.run import Run, find_training
from nmtkit.training.events import Step

TRAINING, VALIDATION = "cyan", "bright_yellow"
"""Colours of the curves for the training batches and for the validation set."""
SECONDS_BETWEEN_LOOKS = 2.0


def run_watch(run: str) -> None:
    """Carries out `nmtkit watch`."""
    saved = find_training(run)
    seen = False

    def goes_on() -> bool:
        nonlocal seen
        before, seen = seen, bool(saved.folder.lock_holder())
        return not saved.folder.result.exists() and (seen or not before)

    show_charts(lambda: look(saved), goes_on, SECONDS_BETWEEN_LOOKS)


def look(run: Run) -> tuple[str, list[Chart]]:
    """Returns a line about the state of a run, and its charts."""
    name, folder = run.folder.path.resolve().name, run.folder
    is_logged = folder.metrics.exists() and folder.metrics.stat().st_size
    steps = (
        [event for _, event in MetricsLog(folder).read() if isinstance(event, Step)]
        if is_logged
        else []
    )
    if not steps:
        return f"{name}: nothing has been logged yet", []
    last, holder = steps[-1], folder.lock_holder()
    state = (
        f"trained by {holder}"
        if holder
        else "finished"
        if folder.result.exists()
        else "not being trained on this machine"
    )
    curves = training_curves(run, name)
    charts: list[Chart] = [
        (
            "loss",
            {"training": (curves.loss, TRAINING), "validation": (curves.valid_loss, VALIDATION)},
        ),
        (curves.metric, {"validation": (curves.valid_score, VALIDATION)}),
    ]
    facts = (
        f"{name}: update {last.update:,}, epoch {int(last.epoch) + 1}, after {timedelta(seconds=round(last.seconds))}; "
        f"{last.tokens_per_second:,.0f} tok/s, lr {last.lr:.2g}; {state}"
    )
    return facts, [
        (title, shown) for title, shown in charts if any(points for points, _ in shown.values())
    ]
