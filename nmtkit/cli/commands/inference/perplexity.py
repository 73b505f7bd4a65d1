"""`nmtkit perplexity`."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE, Number


@cloup.command()
@options.files
@cloup.option_group(
    "Common",
    options.model,
    search_options.checkpoint,
    click.option(
        "--block-tokens",
        type=Number(1),
        metavar="N",
        help="Split the text into blocks of N tokens. Default: as in training.",
    ),
    click.option(
        "--frequencies",
        type=FILE,
        metavar="FILE",
        help="Text for counting word frequencies. Default: the run's training text.",
    ),
    options.as_json("Print unrounded values as a JSON object."),
    options.device,
)
@cloup.option_group(
    "Speed", search_options.precision("fp32"), search_options.batch_tokens, options.threads
)
@options.encoding
@options.quiet
def perplexity_command(**values: Any) -> None:
    """Measure how well a language model predicts FILEs, or standard input: perplexity per token, word and byte.

    Each line is a document. Its end counts as a token, a word and a byte; empty lines are skipped. Words are separated
    by white space. The second table groups words by their frequency in the training text of the run.

    A run that was trained with batch.block_tokens reads the text in blocks of that size, as in training. The first
    token of a block is predicted from only the token before it. Larger blocks give more context, but must not exceed
    the model's number of positions. Other runs read each line separately; --block-tokens splits longer lines.

    \b
    Examples:
      nmtkit perplexity -m runs/mine test.txt
      nmtkit perplexity -m runs/mine --json test.txt | jq '.by_unit[1].perplexity'
    """
    from nmtkit.cli.inference.perplexity import run_perplexity

    run_perplexity(**values)
