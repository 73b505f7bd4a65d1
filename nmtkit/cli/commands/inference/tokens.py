"""`nmtkit tokenize` and `nmtkit detokenize`."""

from typing import Any

import click

from nmtkit.cli import options
from nmtkit.cli.options import Decorator


def _shared_options(side: str) -> Decorator:
    """The options of both commands; `side` is the default of `--side`."""
    return options.together(
        options.files,
        options.model,
        options.outputs,
        click.option(
            "--side",
            type=click.Choice(["source", "target"]),
            default=side,
            show_default=True,
            help="Whose tokenizer; one for both with a joint vocabulary.",
        ),
        options.encoding,
        options.quiet,
    )


@click.command("tokenize")
@_shared_options("source")
def tokenize_command(**values: Any) -> None:
    """Split FILEs, or standard input, into tokens with a run's tokenizer: one line out for each line in.

    Tokens are separated by one space. "▁" begins a word, as sentencepiece has it. A token that the vocabulary lacks
    keeps its spelling. `nmtkit detokenize` gives the text back, up to what the tokenizer itself normalizes: white
    space, compatible characters, and case if the recipe says so.

    \b
    Examples:
      nmtkit tokenize -m runs/mine input.txt -o input.tok
      echo "A man is sleeping." | nmtkit tokenize
      nmtkit tokenize --side target test.de | nmtkit detokenize
    """
    from nmtkit.cli.inference.tokens import run_tokenize

    run_tokenize(**values)


@click.command("detokenize")
@_shared_options("target")
def detokenize_command(**values: Any) -> None:
    """Join the tokens of FILEs, or of standard input, to text: one line out for each line in.

    Tokens are those that `nmtkit tokenize` or `nmtkit translate --json` prints, separated by spaces.

    \b
    Examples:
      nmtkit detokenize output.tok -o output.txt
      nmtkit translate --json input.txt | jq -r '.best.tokens | join(" ")' | nmtkit detokenize
    """
    from nmtkit.cli.inference.tokens import run_detokenize

    run_detokenize(**values)
