"""`nmtkit tokenize` and `nmtkit detokenize`."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from nmtkit.cli.terminal.reporting import note
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.output_folder import output_folder
from nmtkit.cli.text_io.reading import text_windows
from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.runs.run import find_run


@results.into_output
def run_tokenize(model: str | None, files: tuple[Path, ...], side: str) -> None:
    """Carries out `nmtkit tokenize`."""
    tokenizer = _open_tokenizer(model, side)
    _write_lines(files, lambda line: " ".join(tokenizer.tokens(line)), "tokenized")


@results.into_output
def run_detokenize(model: str | None, files: tuple[Path, ...], side: str) -> None:
    """Carries out `nmtkit detokenize`."""
    tokenizer, numbers = _open_tokenizer(model, side), count(1)
    folder = output_folder()

    def joined(line: str) -> str:
        number, tokens = next(numbers), line.split(" ")
        # Some imported tokenizers do not mark the first word of a line, and `pieces` may be arbitrary text.
        marks = tokenizer.config.kind not in ("huggingface", "pieces")
        if marks and WORD_START not in line and len(tokens) > 1:
            place = f"line {number}" if folder is None else folder.place()
            raise DataError(
                f"{place}: no token in {line[:60]!r} contains {WORD_START}, which marks the start of a word; pass "
                "tokens as printed by `nmtkit tokenize`"
            )
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
    """Applies `change` to each line, and writes the result as soon as the line has been read."""
    invitation = "" if files else f"type one line at a time; each is {done}"
    results.write_stream(
        text_windows(files), lambda line: results.write_line(change(line)), "lines", invitation
    )
