"""`nmtkit plot-training`."""

import errno
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from nmtkit import console, pictures
from nmtkit.cli.reporting import save_picture
from nmtkit.errors import DataError
from nmtkit.experiment import folder
from nmtkit.experiment.folder import RunFolder
from nmtkit.metrics import text_metrics
from nmtkit.pictures.curves import Points, Training, save_training
from nmtkit.settings import parse_json

# Kind of event and its key in metrics.jsonl -> field of `Training`.
CURVES = {
    ("step", "nll"): "loss",
    ("step", "ppl"): "perplexity",
    ("step", "lr"): "lr",
    ("evaluated", "valid_loss"): "valid_loss",
    ("evaluated", "valid_perplexity"): "valid_perplexity",
}
NO_SCORES = ("valid_loss", "valid_perplexity", "valid_seconds")


@click.command("plot-training")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="FILE.png, .svg, .pdf or .html; without it a table is printed.",
)
def command(runs: tuple[str, ...], output: Path | None) -> None:
    """Draw how trainings went: loss, perplexity, a validation score and learning rate over the updates.

    The score is the one that the recipe chooses weights by (training.best_metric), else BLEU or ROUGE-L. Borders
    between stages of training are dotted.

    RUN is the folder of a run, or its name under runs/; it may still be training. Several runs share one figure, each
    with a colour of its own and named after its folder.

    \b
    Examples:
      nmtkit plot-training runs/demo
      nmtkit plot-training runs/demo -o training.png
      nmtkit plot-training runs/rnnsearch runs/luong runs/transformer -o compared.svg
    """
    if output is not None:
        pictures.picture_format(output)
    trainings = [_read(name, folder.find(run)[0]) for name, run in zip(_names(runs), runs, strict=True)]
    if output is None:
        _print(trainings)
        return
    save_picture(output, lambda: save_training(trainings, output))


def _names(runs: tuple[str, ...]) -> list[str]:
    """The folders' own names, with as many of the folders above as tell them apart."""
    paths = [Path(run).absolute().parts[1:] for run in runs]
    depth = 1
    while depth < max(map(len, paths)) and len({path[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(path[-depth:]) for path in paths]


def _read(name: str, run: RunFolder) -> Training:
    """Reads what a run logged.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = run.metrics
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "not a file")
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as fault:
        raise DataError(f"{path}: there is no such file; name the folder of a run that has begun to train") from fault
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{path}: cannot read it: {fault}") from fault
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    scores: dict[str, list[tuple[int, float]]] = defaultdict(list)
    stages: dict[str, int] = {}
    made = _updates_of(run)
    if made:
        lines.append("")
    reached = 0
    for number, line in enumerate(lines[:-1], start=1):  # a line without its end is being written just now
        if not line:
            continue
        try:
            record = parse_json(line, "")
            update, event = int(record["update"]), record["event"]
            reached = max(reached, update)
            if record.get("stage"):
                stages[str(record["stage"])] = update
            for (kind, key), field in CURVES.items():
                if kind == event:
                    curves[field].append((update, _value(record.get(key))))
            if event == "evaluated":
                for key, value in record.items():
                    if key.startswith("valid_") and key not in NO_SCORES:
                        scores[key.removeprefix("valid_")].append((update, _value(value)))
        except (DataError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as fault:
            raise DataError(
                f"{path}, line {number}: not what training logs (an object with `update` and `event`); the file is "
                "damaged: delete the line, or take the file from a copy of the run"
            ) from fault
    if reached < made:
        raise DataError(
            f"{path}: ends at update {reached:,}, but the training made {made:,}, so it was cut short; take it from a "
            f"copy of the run, or delete {run.result} to draw what is left"
        )
    # The last stage's metric; a folder whose recipe is missing shows what was logged all the same.
    chosen = [run.newest_stage(run.load_recipe()).recipe.training.best_metric] if run.exists() else []
    metric = next((one for one in (*chosen, "bleu", "rougeL", *scores) if one in scores), "bleu")
    known = text_metrics().get(metric)
    return Training(
        name, **curves, valid_score=scores[metric], metric=known.title if known else metric, stages=[*stages.items()]
    )


def _updates_of(run: RunFolder) -> int:
    """How many updates a finished training made; 0 where it goes on still, or nobody can tell."""
    if not run.result.is_file():
        return 0
    try:
        return int(parse_json(run.result.read_bytes(), run.result.name)["updates"])
    except (OSError, DataError, ValueError, KeyError, TypeError, OverflowError):
        return 0


def _value(logged: Any) -> float:
    """What was not finite was logged as null; a curve has a gap there."""
    return math.nan if logged is None else float(logged)


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
    columns = [
        "run",
        "updates",
        "loss",
        "best valid. loss",
        "best perplexity",
        f"best {min(metrics)}" if len(metrics) == 1 else "best score",
    ]
    console.table("", columns, rows)
