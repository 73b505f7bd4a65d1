"""`nmtkit tune`."""

from typing import Any

import click

from nmtkit import console, recipe
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.training import tune_training_of_run
from nmtkit.cli import options
from nmtkit.cli.diagnosing import show_diagnosis
from nmtkit.cli.reporting import show_report, tell
from nmtkit.core import device as devices
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment import checks
from nmtkit.experiment.evaluation import require_validation_files
from nmtkit.experiment.loading import ModelOptions, open_autotuned
from nmtkit.experiment.run import Run, choose_device
from nmtkit.runs.folder import RunFolder, lock_run


@click.command()
@options.recipe
@options.overrides
@options.run_folder
@options.device
def command(name: str, overrides: tuple[str, ...], run_path: str | None, device: str) -> None:
    """Measure the fastest settings to train a recipe on this machine, and print the speed of each.

    A recipe may leave training.precision, training.matmul_precision and training.threads open (auto). Each way is
    measured by a few updates of the recipe's model with its own text, in turns, in about half a minute. What is found
    replaces what was found before. Later trainings of such a model, in such batches, on this machine use it; `nmtkit
    doctor --clear` forgets it. `train` measures by itself if nothing was found before, in at most 5 % of its time.

    The text is preprocessed into the run's folder, as by `nmtkit preprocess`. If the run is trained, its search is
    measured too: precision, batches, one search a core or one on all.

    \b
    Examples:
      nmtkit tune demo
      nmtkit tune mine.yaml --set batch.batch_tokens=2048
    """
    loaded = recipe.load(name, overrides)
    checks.require_data(loaded)
    place = choose_device(device, loaded)
    folder = RunFolder.at(run_path, loaded.name)

    if folder.has_training():
        Run.open(str(folder.path), same_as=loaded)
        work = Run(folder, loaded, lock_run(folder, tell))
    else:
        work = Run.create(loaded, run_path, notify=tell)
    work.preprocess(tell, show_report, show_diagnosis, learned_before=folder.has_training())
    found = tune_training_of_run(work, place, again=True)
    if found.speeds:
        _show(found, f"training {loaded.name} on {devices.describe(place)}")
    else:
        tell(f"the recipe leaves nothing open on {place.type}: {found.way}; say `auto` to have it measured")
    if not folder.result.is_file():
        tell("the search is measured once the run is trained: at the end of its training, or here")
        return
    lines = [pair.src for pair in read_pairs(require_validation_files(loaded)) if pair.src.strip()]
    how = ModelOptions(device=str(place), threads=devices.cpu_threads())
    _, searched = open_autotuned(work, how, lines, float("inf"), again=True)
    if searched.speeds:
        _show(searched, "searching with it")
    else:
        tell(f"{len(lines)} validation sentences are too few to measure the search with")


def _show(found: TuningResult[Any], title: str) -> None:
    """The configurations, the fastest first."""
    quickest = max(found.speeds.values())
    rows = []
    for way, speed in sorted(found.speeds.items(), key=lambda item: -item[1]):
        rows.append([way, found.told(way), f"{speed / quickest:.0%}", "taken" if way == str(found.way) else ""])
    console.table(title, ["way", found.unit, "of the quickest", ""], rows)
    for sentence in found.sentences():
        tell(sentence)
