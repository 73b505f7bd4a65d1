"""`nmtkit detokenize`."""

from pathlib import Path

import click

from nmtkit.cli import options, results
from nmtkit.cli.tokenize import open_tokenizer, side_option, write_lines
from nmtkit.core.errors import DataError
from nmtkit.data.tokenizer import WORD_START


@click.command()
@options.files
@options.model
@results.output
@side_option("target")
@options.quiet
@results.into_output
def command(model: str | None, files: tuple[Path, ...], side: str) -> None:
    """Join the tokens of FILEs, or of standard input, to text: one line out for each line in.

    Tokens are those that `nmtkit tokenize` or `nmtkit translate --json` prints, separated by spaces.

    \b
    Examples:
      nmtkit detokenize output.tok -o output.txt
      nmtkit translate --json input.txt | jq -r '.best.tokens | join(" ")' | nmtkit detokenize
    """
    tokenizer = open_tokenizer(model, side)

    def joined(line: str) -> str:
        tokens = line.split(" ")
        if WORD_START not in line and len(tokens) > 1:
            raise DataError(
                f"no token of {line[:60]!r} has the mark {WORD_START} of a word: this is no text of `tokenize`"
            )
        return tokenizer.join(tokens)

    write_lines(files, joined, "joined")
