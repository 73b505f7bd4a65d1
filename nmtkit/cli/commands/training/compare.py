"""`nmtkit compare`."""

from typing import Any

import click

from nmtkit.cli import completing, options
from nmtkit.cli.options import Number
from nmtkit.runs.folder import RUNS_FOLDER


@click.command()
@click.argument(
    "names", metavar="RECIPE|RUN...", nargs=-1, required=True, shell_complete=completing.recipes
)
@options.overrides
@click.option(
    "--runs", type=options.FILE, default=RUNS_FOLDER, show_default=True, help="Folder of the runs."
)
@options.picture_file("--plot", meaning="Draw BLEU by length into FILE")
@click.option(
    "--seeds",
    type=Number(1, 100),
    metavar="N",
    help="Train every RECIPE with N consecutive seeds, starting with its own; the runs are NAME-seed1, NAME-seed2, ...",
)
@options.as_json("Print JSON instead of tables.")
@options.table_format
@options.device
@options.training_threads
def compare_command(**values: Any) -> None:
    """Train several recipes and compare them, or compare finished runs: BLEU, alignments, speed, size.

    A recipe that has been trained is not trained again, and a stopped run is resumed, so you can stop the command and
    run it again. A RUN is the folder of a finished run. After training, each run translates its test set. The table
    shows BLEU on all sentences and on sentences of more than 30 words, alignment error rate (if the test set has gold
    alignments), target tokens per second in training and in beam search, parameters, and BLEU by source length.

    Runs that differ only in their seed count as one system: a second table shows the mean and the standard deviation of
    their BLEU, and the p-value of the difference from the first system in stratified approximate randomization (Clark
    et al. 2011). To compare recipes, limit their training by updates, not by time: how far a run gets in a given time
    depends on the load of the machine.

    \b
    Examples:
      nmtkit compare compare-rnn-encdec compare-rnnsearch compare-luong-global --plot length.png
      nmtkit compare small.yaml large.yaml --set training.max_minutes=30 --runs runs/sizes
      nmtkit compare runs/mine runs/two-layers
      nmtkit compare rnnsearch.yaml transformer.yaml --seeds 3 --format latex
    """
    from nmtkit.cli.training.compare import run_compare

    run_compare(**values)
