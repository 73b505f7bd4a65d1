"""`nmtkit preprocess`."""

import click

from nmtkit import recipe
from nmtkit.cli import options
from nmtkit.cli.options import Number
from nmtkit.cli.reporting import tell
from nmtkit.cli.reports import show_diagnosis, show_report
from nmtkit.core.settings import MAX_THREADS
from nmtkit.experiment import checks
from nmtkit.experiment.run import Run


@click.command()
@options.recipe
@options.overrides
@options.run_folder
@click.option(
    "--workers",
    type=Number(1, MAX_THREADS),
    metavar="N",
    help="Processes for a large corpus; the result is the same for any number. Default: one per core.",
)
def command(name: str, overrides: tuple[str, ...], run_path: str | None, workers: int | None) -> None:
    """Read and check a recipe's text, learn its tokenizer, write its arrays into the run's folder.

    Faults of the text are counted and shown with the first line of each kind, as by `nmtkit check`, and with what was
    done about them: empty sides, over-long lines, length ratio, duplicates, overlap of train with validation and test.
    Different line counts, invalid UTF-8 and broken files are errors. So is an empty reference of validation or test in
    a recipe for summaries. `train` does all this by itself if it was not done before.

    Text is line pairs, JSON lines with fields of any name, or folders of CNN/DailyMail stories: see `nmtkit recipe
    explain data.train`. A large corpus is read and written piece by piece, by all cores, so memory hardly grows
    with its size. If it was stopped, the same command continues.

    \b
    Examples:
      nmtkit preprocess demo
      nmtkit preprocess mine.yaml --set tokenizer.vocab_size=4000 --run runs/small
      nmtkit preprocess large.yaml --workers 16 --set 'data.train.weights=[1, 3]'
    """
    loaded = recipe.load(name, overrides)
    checks.require_data(loaded)
    run = Run.create(loaded, run_path, notify=tell)
    try:
        run.preprocess(tell, show_report, show_diagnosis, processes=workers)
    except KeyboardInterrupt:
        tell("stopped; what is complete is kept, and the same command goes on from there")
        raise SystemExit(130) from None
    same = "".join(f" --set {text}" for text in overrides) + (f" --run {run_path}" if run_path else "")
    tell(f"{run.folder.data} and {run.folder.vocabulary} are ready; next: nmtkit train {name}{same}")
