"""`nmtkit compare`."""

from typing import Any

import click

from nmtkit.cli import completing, options
from nmtkit.cli.options import Number
from nmtkit.runs.folder import RUNS_FOLDER


@click.command()
@click.argument("names", metavar="RECIPE|RUN...", nargs=-1, required=True, shell_complete=completing.recipes)
@options.overrides
@click.option("--runs", type=options.FILE, default=RUNS_FOLDER, show_default=True, help="The folder of the runs.")
@options.picture_file("--plot", meaning="Draw BLEU by length")
@click.option(
    "--seeds",
    type=Number(1, 100),
    help="Train every RECIPE with N seeds, its own and the next ones; the runs are NAME, NAME-seed2, ...",
)
@options.as_json("Print JSON instead of tables.")
@options.table_format
@options.device
@options.training_threads
def compare_command(**values: Any) -> None:
    """Train several recipes and compare them, or compare finished runs: BLEU, alignments, speed, size.

    A recipe that was trained before is not trained again; one that was stopped is resumed. So the command can be
    stopped and repeated. A RUN is the folder of a finished run. Then each run translates its test set. The table has
    BLEU of all sentences and of those of more than 30 words, alignment error rate (if the test set has gold
    alignments), target tokens a second in training and in beam search, parameters, and BLEU by length of the source.

    Runs that differ in nothing but their seed are one system: a second table has the mean and the standard deviation of
    their BLEU, and p of the difference from the first system by stratified approximate randomization (Clark et al.
    2011). Limit trainings that you compare by updates: minutes depend on what else the machine does.

    \b
    Examples:
      nmtkit compare compare-rnn-encdec compare-rnnsearch compare-luong-global --plot length.png
      nmtkit compare small.yaml large.yaml --set training.max_minutes=30 --runs runs/sizes
      nmtkit compare runs/mine runs/two-layers
      nmtkit compare rnnsearch.yaml transformer.yaml --seeds 3 --format latex
    """
    from nmtkit.cli.training.compare import run_compare

    run_compare(**values)
