"""`nmtkit tokenize` and `nmtkit detokenize`."""

from typing import Any

import click

from nmtkit.cli import options
from nmtkit.cli.options import Decorator


def _shared_options(side: str) -> Decorator:
    """Returns the options shared by both commands; `side` is the default of `--side`."""
    return options.together(
        options.files,
        options.model,
        options.outputs,
        click.option(
            "--side",
            type=click.Choice(["source", "target"]),
            default=side,
            show_default=True,
            help="Which side's tokenizer to use; with a joint vocabulary, both sides use the same tokenizer.",
        ),
        options.encoding,
        options.quiet,
    )


@click.command("tokenize")
@_shared_options("source")
def tokenize_command(**values: Any) -> None:
    """Split FILEs, or standard input, into tokens with a run's tokenizer: one output line per input line.

    Tokens are separated by one space. "▁" begins a word, as in sentencepiece. A token that is not in the vocabulary
    keeps its spelling. `nmtkit detokenize` restores the text, except for what the tokenizer normalizes: white space,
    compatibility characters, and case if the recipe lowercases text.

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
    """Join the tokens of FILEs, or of standard input, into text: one output line per input line.

    Tokens are separated by spaces, in the form that `nmtkit tokenize` and `nmtkit translate --json` print.

    \b
    Examples:
      nmtkit detokenize output.tok -o output.txt
      nmtkit translate --json input.txt | jq -r '.best.tokens | join(" ")' | nmtkit detokenize
    """
    from nmtkit.cli.inference.tokens import run_detokenize

    run_detokenize(**values)
