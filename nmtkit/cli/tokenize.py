"""`nmtkit tokenize`, and what it shares with `nmtkit detokenize`."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from nmtkit.cli import options, results
from nmtkit.cli.options import Decorator
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import note
from nmtkit.core.errors import DataError
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.data.tokenizer import Tokenizer
from nmtkit.runs.saved import find_run

AT_ONCE = 1024
"""Lines read together."""


def side_option(default: str) -> Decorator:
    """The option of the tokenizer's side."""
    return click.option(
        "--side",
        type=click.Choice(["source", "target"]),
        default=default,
        show_default=True,
        help="Whose tokenizer; one for both with a joint vocabulary.",
    )


def open_tokenizer(model: str | None, side: str) -> Tokenizer:
    """The tokenizer of one side of a run; says on stderr which it is."""
    run, why = find_run(model)
    pair = run.load_tokenizers()
    tokenizer = pair.src if side == "source" else pair.tgt
    kind = f"{tokenizer.config.kind}, {len(tokenizer.vocabulary):,} tokens"
    note(f"{side} tokenizer of {run.folder.path} ({why}): {kind}")
    return tokenizer


def write_lines(files: tuple[Path, ...], change: Callable[[str], str], done: str) -> None:
    """Writes each line changed, as soon as it is read; errors name the line."""
    prompt = results.Prompt(files, "a line", done)
    prompt.ask()
    count = 0
    for window in text_windows(files, EXTRACT_HINT, AT_ONCE):
        for line in window:
            count += 1
            try:
                sys.stdout.write(change(line) + "\n")
            except DataError as fault:
                raise DataError(f"line {count}: {fault}") from fault
        sys.stdout.flush()
        prompt.ask()
    prompt.end()


@click.command()
@options.files
@options.model
@results.output
@side_option("source")
@options.quiet
@results.into_output
def command(model: str | None, files: tuple[Path, ...], side: str) -> None:
    """Split FILEs, or standard input, into the tokens of a run: one line out for each line in.

    Tokens are separated by one space. "▁" begins a word, as sentencepiece has it. A token that the vocabulary lacks
    keeps its spelling. `nmtkit detokenize` gives the text back, up to what the tokenizer itself normalizes: white
    space, compatible characters, and case if the recipe says so.

    \b
    Examples:
      nmtkit tokenize -m runs/mine input.txt -o input.tok
      echo "A man is sleeping." | nmtkit tokenize
      nmtkit tokenize --side target test.de | nmtkit detokenize
    """
    tokenizer = open_tokenizer(model, side)
    write_lines(files, lambda line: " ".join(tokenizer.tokens(line)), "tokenized")
