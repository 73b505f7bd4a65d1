"""`nmtkit tokenize` and `nmtkit detokenize`."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import click

from nmtkit.cli import options, results
from nmtkit.cli.options import Decorator
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import note
from nmtkit.core.errors import DataError
from nmtkit.data.tokenizer import WORD_START, Tokenizer
from nmtkit.runs.saved import find_run


def _shared_options(side: str) -> Decorator:
    """The options of both commands; `side` is the default of `--side`."""
    return options.together(
        options.files,
        options.model,
        results.output,
        click.option(
            "--side",
            type=click.Choice(["source", "target"]),
            default=side,
            show_default=True,
            help="Whose tokenizer; one for both with a joint vocabulary.",
        ),
        options.quiet,
        results.into_output,
    )


@click.command("tokenize")
@_shared_options("source")
def tokenize_command(model: str | None, files: tuple[Path, ...], side: str) -> None:
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
    tokenizer = _open_tokenizer(model, side)
    _write_lines(files, lambda line: " ".join(tokenizer.tokens(line)), "tokenized")


@click.command("detokenize")
@_shared_options("target")
def detokenize_command(model: str | None, files: tuple[Path, ...], side: str) -> None:
    """Join the tokens of FILEs, or of standard input, to text: one line out for each line in.

    Tokens are those that `nmtkit tokenize` or `nmtkit translate --json` prints, separated by spaces.

    \b
    Examples:
      nmtkit detokenize output.tok -o output.txt
      nmtkit translate --json input.txt | jq -r '.best.tokens | join(" ")' | nmtkit detokenize
    """
    tokenizer, numbers = _open_tokenizer(model, side), count(1)

    def joined(line: str) -> str:
        number, tokens = next(numbers), line.split(" ")
        # A public model's may leave the first word of a line without, and pieces are whatever the text has.
        marks = tokenizer.config.kind not in ("huggingface", "pieces")
        if marks and WORD_START not in line and len(tokens) > 1:
            raise DataError(f"line {number}: no token of {line[:60]!r} has the mark {WORD_START} that begins a word")
        return tokenizer.join(tokens)

    _write_lines(files, joined, "joined")


def _open_tokenizer(model: str | None, side: str) -> Tokenizer:
    run, why = find_run(model)
    pair = run.load_tokenizers()
    tokenizer = pair.src if side == "source" else pair.tgt
    kind = f"{tokenizer.config.kind}, {len(tokenizer.vocabulary):,} tokens"
    note(f"{side} tokenizer of {run.folder.path} ({why}): {kind}")
    return tokenizer


def _write_lines(files: tuple[Path, ...], change: Callable[[str], str], done: str) -> None:
    """Writes each line changed, as soon as it is read."""
    invitation = "" if files else f"type a line on each line; it is {done}"
    results.write_stream(text_windows(files), lambda line: results.write_line(change(line)), "lines", invitation)
