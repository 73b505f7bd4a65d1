"""`nmtkit plot-training`."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import click
import cloup

from nmtkit import console, pictures
from nmtkit.cli import completing
from nmtkit.cli.figures import collect_style, figure_group, save_pictures
from nmtkit.cli.options import picture_file
from nmtkit.metrics import text_metrics
from nmtkit.pictures.curves import Points, Training, save_training
from nmtkit.pictures.drawing import FigureStyle
from nmtkit.runs.metrics_log import training_curves
from nmtkit.runs.saved import find_run


@cloup.command("plot-training")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=completing.runs)
@cloup.option_group(
    "Common", picture_file("-o", "--output", meaning="Draw a figure instead of printing a table", several=True)
)
@figure_group
@collect_style
def command(runs: tuple[str, ...], output: tuple[Path, ...], style: FigureStyle) -> None:
    """Draw the course of trainings: loss, perplexity, a validation score and learning rate over the updates.

    RUN is the folder of a run, or its name under runs/; it may still be training. Several runs share one figure; each
    has its own colour and the name of its folder. The score is the one by which the recipe chooses weights
    (training.best_metric), else BLEU or ROUGE-L. Dotted lines separate stages of training. A validation loss that rises
    while the training loss still falls shows overfitting.

    \b
    Examples:
      nmtkit plot-training runs/demo
      nmtkit plot-training runs/demo -o training.png
      nmtkit plot-training runs/rnnsearch runs/luong runs/transformer -o compared.svg
      nmtkit plot-training runs/mine -o mine.pdf -o mine.png --size 6.5 --font-size 8 --font serif --colours tab10
    """
    for path in output:
        pictures.picture_format(path)
    trainings = [training_curves(find_run(run)[0], name) for name, run in zip(_names(runs), runs, strict=True)]
    if output:
        save_pictures(output, partial(save_training, trainings, style=style), style)
    else:
        _print(trainings)


def _names(runs: tuple[str, ...]) -> list[str]:
    """The names of the folders, with enough of their parents to be distinct."""
    paths = [Path(run).absolute().parts[1:] for run in runs]
    depth = 1
    while depth < max(map(len, paths)) and len({path[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(path[-depth:]) for path in paths]


def _print(trainings: list[Training]) -> None:
    def last(points: Points) -> Any:
        return f"{points[-1][1]:.3f}" if points else "-"

    def best(points: Points, higher: bool, form: str) -> str:
        known = [point for point in points if not math.isnan(point[1])]
        if not known:
            return "-"
        update, value = (max if higher else min)(known, key=lambda point: point[1])
        return f"{value:{form}} at {update:,}"

    metrics = {training.metric for training in trainings}
    falling = {metric.title for metric in text_metrics().values() if not metric.higher_is_better}
    rows = [
        (
            training.name,
            f"{max([0, *(points[-1][0] for points in (training.loss, training.valid_loss) if points)]):,}",
            last(training.loss),
            best(training.valid_loss, False, ".3f"),
            best(training.valid_perplexity, False, ".2f"),
            best(training.valid_score, training.metric not in falling, ".2f")
            + (f" {training.metric}" if len(metrics) > 1 else ""),
        )
        for training in trainings
    ]
    score = f"best {min(metrics)}" if len(metrics) == 1 else "best score"
    console.table("", ["run", "updates", "loss", "best valid. loss", "best perplexity", score], rows)
