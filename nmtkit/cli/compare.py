"""`nmtkit compare`."""

import json
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from nmtkit import console, pictures, recipe
from nmtkit.cli import options
from nmtkit.cli.figures import draw_lengths, show_lengths
from nmtkit.cli.reporting import tell
from nmtkit.cli.train import begin_training, journal_output, train_run
from nmtkit.core.errors import RecipeError
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment.checks import metric_warning
from nmtkit.experiment.evaluation import ComparedRun, compare_run, require_test_set
from nmtkit.experiment.run import Run, choose_device
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import RunFolder
from nmtkit.tasks.task import TASKS

EDGES = (10, 20, 30, 40)


def run_compare(
    names: tuple[str, ...],
    overrides: tuple[str, ...],
    runs: Path,
    longer_than: int,
    plot: Path | None,
    as_json: bool,
    device: str,
    threads: int | None,
) -> None:
    """Carries out `nmtkit compare`."""
    if plot is not None:
        if plot.parent == runs:  # it is made anyway
            runs.mkdir(parents=True, exist_ok=True)
        pictures.picture_format(plot)
    chosen = [_find_or_load(name, overrides, options.with_threads(overrides, threads), runs) for name in names]
    if len({folder.path.resolve() for folder, _ in chosen}) < len(chosen):
        raise RecipeError("two of these have one name, so they would share a run: give each recipe a `name` of its own")
    tests = [require_test_set(one) for _, one in chosen]
    if len({tuple((pair.src, pair.tgt) for pair in read_pairs(files)) for files in tests}) > 1:
        tell("warning: these are measured on different test sets, so their figures cannot be compared line by line")
    for folder, one in chosen:
        if not folder.result.exists():
            place = choose_device(device, one)
            resume = folder.has_training()
            with journal_output() as journal, closing(begin_training(one, str(folder.path), resume)) as run:
                train_run(run, place, resume, journal)
    measured: list[ComparedRun] = []
    for path, one in [(folder.path, one) for folder, one in chosen]:
        name = str(path.relative_to(runs) if path.is_relative_to(runs) else path)
        tell(f"measuring {name}")
        if warning := metric_warning(one):
            tell(warning)
        run = Run.open(str(path), same_as=one)
        measured.append(replace(compare_run(run, choose_device(device, one), longer_than, EDGES, threads), name=name))
    shown, by_length = [one.name for one in measured], [one.by_length for one in measured]
    if as_json:
        console.say(json.dumps([asdict(one) for one in measured], indent=2, ensure_ascii=False))
    else:
        _show_runs(measured, longer_than)
        console.say("")
        show_lengths(shown, by_length)
    if plot is not None:
        draw_lengths(shown, by_length, plot)


def _find_or_load(
    name: str, overrides: tuple[str, ...], settings: tuple[str, ...], runs: Path
) -> tuple[RunFolder, Recipe]:
    """The run of a name or of its recipe; `settings` are the overrides and `--threads`."""
    folder = RunFolder(Path(name))
    if not folder.exists():
        one = recipe.load(name, settings)
        folder = RunFolder(runs / one.name)
    elif overrides:
        raise RecipeError(f"{name}: this run is trained; --set changes recipes only: name its recipe instead")
    elif not folder.result.exists():
        raise RecipeError(f"{name}: this run is not finished: go on with it first (`nmtkit train RECIPE --resume`)")
    else:
        one = Run.open(name).recipe
    if "bleu" not in one.test_metrics or TASKS.get(one.task).columns[0].name != "src":
        remedy = "set other outputs side by side with `nmtkit score` or `nmtkit score-summaries`"
        raise RecipeError(f"{name}: compare measures translations of texts by BLEU; {remedy}")
    return folder, one


def _show_runs(measured: list[ComparedRun], longer_than: int) -> None:
    head = ["recipe", "BLEU", f"BLEU > {longer_than} words", "AER"]
    head += ["train tok/s", "beam tok/s", "parameters", "minutes"]
    rows = [
        [
            one.name,
            f"{one.bleu.value:.2f}",
            "-" if one.long_bleu is None else f"{one.long_bleu.value:.2f}",
            "-" if one.aer is None else f"{one.aer.value:.1f}",
            f"{one.training_speed:,.0f}",
            f"{one.search_speed:,.0f}",
            f"{one.parameters:,}",
            f"{one.training_minutes:.1f}",
        ]
        for one in measured
    ]
    console.table("comparison on the test set", head, rows)
