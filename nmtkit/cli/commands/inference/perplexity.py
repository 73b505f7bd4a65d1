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
    click.option("--block-tokens", type=Number(1), metavar="N", help="Tokens per block. Default: as in training."),
    click.option(
        "--frequencies", type=FILE, metavar="FILE", help="Text to count words in. Default: the run's training text."
    ),
    options.as_json("Print a JSON object with all digits."),
    options.device,
)
@cloup.option_group("Speed", search_options.precision("fp32"), search_options.batch_tokens, options.threads)
@options.encoding
@options.quiet
def perplexity_command(**values: Any) -> None:
    """Measure how well a language model predicts FILEs, or standard input: perplexity by token, word and byte.

    A line is a document. Its end counts as a token, a word and a byte; empty lines are left out. Words are what white
    space separates. The second table groups them by their frequency in the training text of the run.

    A run with batch.block_tokens reads running text in such blocks, as in training: the first token of a block is
    predicted from the token before it alone. Larger blocks have more context, as far as the model has positions. Any
    other run reads each line by itself; --block-tokens cuts the longer ones.

    \b
    Examples:
      nmtkit perplexity -m runs/mine test.txt
      nmtkit perplexity -m runs/mine --json test.txt | jq '.by_unit[1].perplexity'
    """
    from nmtkit.cli.inference.perplexity import run_perplexity

    run_perplexity(**values)
