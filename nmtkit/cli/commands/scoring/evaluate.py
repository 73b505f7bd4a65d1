"""`nmtkit evaluate`."""

from typing import Any

import click
import cloup

from nmtkit.cli import completing, options
from nmtkit.cli.commands.options import score_options, search_options
from nmtkit.cli.options import FILE


@cloup.command()
@click.argument("run", required=False, shell_complete=completing.runs)
@cloup.option_group(
    "Common",
    options.models,
    search_options.checkpoint,
    search_options.language,
    click.option("--source", type=FILE, help="Sources of the test set, as text or .jsonl[#FIELD]."),
    click.option(
        "--ref",
        type=FILE,
        multiple=True,
        help="References of the test set, as text or .jsonl[#FIELD]. May be repeated.",
    ),
    click.option(
        "--test-set",
        metavar="NAME/PAIR",
        help="Test set to download with sacrebleu, such as wmt14/en-de.",
    ),
    options.output,
    click.option(
        "--metrics",
        metavar="LIST",
        help="Metrics to compute, as in `nmtkit score`, e.g. bleu,ter. Default: the recipe's.",
    ),
    search_options.search_flags("beam_size"),
    options.as_json("Print a JSON object with scores, signatures, time and counts."),
    options.picture_file(
        "--plot", meaning="For classification, draw the confusion matrix into FILE"
    ),
    options.devices,
)
@search_options.search_groups(search_options.engine, search_options.workers)
@cloup.option_group(
    "Texts and metrics",
    score_options.tokenize_option(None),
    click.option(
        "--lowercase/--no-lowercase",
        default=None,
        help="Ignore case, as in `nmtkit score -lc`. Default: the recipe's.",
    ),
)
@options.encoding
@options.quiet
def evaluate_command(**values: Any) -> None:
    """Translate, summarize or classify a test set with RUN, and score the output.

    RUN may also be given as -m RUN; several -m form an ensemble. The command prints one line, "RUN  TEST SET  METRIC
    VALUE ...". The scores are the same as those of `nmtkit translate` (or `summarize`) followed by `nmtkit score` (or
    `score-summaries`). Lines with signatures, for pasting into a paper, go to stderr. -o saves the outputs. For a
    language model, the command prints loss and perplexity on --ref FILE (default: the test set of the recipe); `nmtkit
    perplexity` prints more. For a classifier, it also prints a table with a row for each correct label and a column for
    each predicted label.

    \b
    Examples:
      nmtkit evaluate runs/mine --source test.en --ref test.de
      nmtkit evaluate runs/mine --test-set wmt14/en-de -o wmt14.de
      nmtkit evaluate runs/news --source test.jsonl.gz --ref test.jsonl.gz --json
      nmtkit evaluate runs/topics --source texts.txt --ref labels.txt --plot table.svg
      nmtkit evaluate --source test.en --ref a.de --ref b.de --metrics bleu,chrf,ter --beam-size 10
    """
    from nmtkit.cli.scoring.evaluate import run_evaluate

    run_evaluate(**values)
