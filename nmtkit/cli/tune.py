"""`nmtkit tune`."""

from pathlib import Path

import click

from nmtkit import checks, console, recipe, run
from nmtkit.cli import options
from nmtkit.cli.diagnosing import show_diagnosis
from nmtkit.cli.reporting import show_report
from nmtkit.device import describe
from nmtkit.folder import RUNS, RunFolder


@click.command()
@click.argument("name", metavar="RECIPE")
@options.overrides
@options.run_folder
@options.device
def command(name: str, overrides: tuple[str, ...], run_path: str | None, device: str) -> None:
    """Measure how this machine trains a recipe quickest, and print what every way was worth.

    A few updates of the recipe's model with its own text are made in every way that the recipe leaves open (training.
    precision, matmul_precision, threads: auto), in turns, in about half a minute. `train` does the same by itself where
    nothing was found before, in at most 5 % of the time that it will take. What is found here replaces what was found
    before, and every later training of such a model in such batches on this machine uses it; `nmtkit doctor --clear`
    forgets it. The text is preprocessed into the run's folder, as by `nmtkit preprocess`.

    \b
    Examples:
      nmtkit tune demo
      nmtkit tune mine.yaml --set batch.batch_tokens=2048
    """
    loaded = recipe.load(name, overrides)
    checks.require_data(loaded)
    place = run.choose_device(device, loaded)
    folder = RunFolder(Path(run_path) if run_path else RUNS / loaded.name)
    if folder.begun():
        run.Run.open(str(folder.path)).require_same(loaded)
        work = run.Run(folder, loaded)
    else:
        work = run.Run.create(loaded, run_path)

    def say(text: str) -> None:
        console.say(text, stderr=True)

    work.preprocess(say, show_report, show_diagnosis, learned_before=folder.begun())
    found = work.measure(place, again=True)
    if not found.speeds:
        say(f"the recipe leaves nothing open on {place.type}: {found.way}; say `auto` to have it measured")
        return
    quickest = max(found.speeds.values())
    rows = [
        [way, f"{speed:,.0f}", f"{speed / quickest:.0%}", "taken" if way == str(found.way) else ""]
        for way, speed in sorted(found.speeds.items(), key=lambda item: -item[1])
    ]
    console.table(f"{loaded.name} on {describe(place)}", ["way", "target tokens/s", "of the quickest", ""], rows)
    for sentence in found.sentences():
        say(sentence)
