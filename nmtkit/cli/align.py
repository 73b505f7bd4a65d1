"""`nmtkit align`."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.numbers import Number
from nmtkit.cli.opening import open_translator, show_heads
from nmtkit.cli.soft_alignments import SoftWriter, check_path
from nmtkit.data.alignments import (
    SYMMETRIZATIONS,
    Links,
    SoftAlignment,
    Symmetrization,
    pharaoh,
    reversed_links,
    symmetrize,
)
from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_lines, read_pairs
from nmtkit.errors import DataError
from nmtkit.translation.translator import Translator

WINDOW = 2048


@dataclass(frozen=True)
class _Window:
    """Some pairs in a row; the words of a side are None where its text says them."""

    src: list[str]
    tgt: list[str]
    src_words: list[str] | None
    tgt_words: list[str] | None

    def reversed(self) -> "_Window":
        return _Window(self.tgt, self.src, self.tgt_words, self.src_words)


@click.command()
@options.model
@options.weights
@options.device
@click.option("--source", required=True, type=click.Path(path_type=Path), help="Source lines, plain or .gz.")
@click.option("--target", required=True, type=click.Path(path_type=Path), help="Their translations, line by line.")
@click.option(
    "--source-words",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The source lines cut into words: the same text with more spaces (l' homme). Default: words are what white "
    "space separates in --source.",
)
@click.option("--target-words", type=click.Path(path_type=Path), metavar="FILE", help="The same for the target.")
@click.option(
    "--threshold",
    type=Number(0, 1, whole=False, above=True),
    help="Link every pair of words with at least this weight, instead of each target word with its best source word.",
)
@click.option(
    "--reverse-model",
    metavar="RUN",
    multiple=True,
    callback=options.one_run,
    help="A run of the other direction (target to source), to symmetrize.",
)
@click.option(
    "--symmetrize",
    "method",
    type=click.Choice(SYMMETRIZATIONS),
    help="How to combine two directions. Default with --reverse-model: grow-diag.",
)
@click.option(
    "--soft",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the weights between the words as well: FILE.json or FILE.npz.",
)
@options.layer
@options.head
@options.batch_tokens
@options.threads
def command(
    model: str | None,
    weights: str,
    device: str,
    source: Path,
    target: Path,
    source_words: Path | None,
    target_words: Path | None,
    threshold: float | None,
    reverse_model: str | None,
    method: Symmetrization | None,
    soft: Path | None,
    layer: int | None,
    head: int | None,
    batch_tokens: int | None,
    threads: int | None,
) -> None:
    """Word alignments of given translations, read off a model's attention.

    Prints a line for each pair: "i-j" for each link between source word i and target word j, counted from 0 (the
    Pharaoh format). A pair with an empty side has an empty line. Words are what white space separates, so the n-th word
    of a line is word n whatever the tokenizer makes of it; punctuation that is glued to a word is part of it. A word's
    weights are merged from its subwords: the columns of a source word are added, the rows of a target word averaged.
    The end of the sentence is no word. Each target word is linked to the source word with the largest weight.

    --symmetrize combines two directions: those of two models, or without --reverse-model the two ways to read the
    attention of one, each source word being linked to the target word that looks at it most. grow-diag grows from the
    links of both directions along their neighbours; -final adds links for words that have none yet, -final-and and
    -strict only where both words have none.

    --soft writes FILE.json, a list with an object for each pair (source and target words, and "weights" with a row for
    each target word), or FILE.npz, an array "1", "2", ... for each pair. With --reverse-model there are
    "reverse_weights", or arrays "1.reverse", ..., with a row for each source word.

    \b
    Examples:
      nmtkit align --source test.en --target test.fr > test.align
      nmtkit align -m runs/en-fr --reverse-model runs/fr-en --source test.en --target test.fr > test.align
      nmtkit align --source test.en --target test.fr --source-words test.tok.en --target-words test.tok.fr
      nmtkit align --source test.en --target test.fr --soft test.npz --threshold 0.3 > test.align
    """
    if threshold is not None and (method is not None or reverse_model is not None):
        raise click.UsageError("--threshold keeps several links a word; it does not go with --symmetrize")
    if soft is not None:
        check_path(soft)
    translator = open_translator(model, device, weights, batch_tokens, threads=threads)
    show_heads(translator, layer, head)
    backward = None
    if reverse_model is not None:
        backward = open_translator(reverse_model, device, weights, batch_tokens, threads=threads)
        show_heads(backward, layer, head)
        method = method or "grow-diag"
    n_pairs, half_empty = 0, 0
    with console.LineProgress("pairs") as progress, nullcontext() if soft is None else SoftWriter(soft) as writer:
        for window in _windows(source, target, source_words, target_words):
            try:
                found = _align(translator, window, n_pairs + 1)
                other = None if backward is None else _align(backward, window.reversed(), n_pairs + 1)
            except DataError as fault:
                raise DataError(f"{source} and {target}: {fault}") from fault
            for row, one in enumerate(found):
                n_pairs += 1
                half_empty += bool(one.src_words) != bool(one.tgt_words)
                reverse = None if other is None else other[row]
                sys.stdout.write(pharaoh(_links(one, reverse, threshold, method)) + "\n")
                if writer is not None:
                    writer.add(one, reverse)
            progress.advance(len(found))
    if half_empty:
        console.say(f"{half_empty} pairs have one empty side: their lines are empty", stderr=True)


def _links(
    one: SoftAlignment, reverse: SoftAlignment | None, threshold: float | None, method: Symmetrization | None
) -> Links:
    forward = one.links(threshold)
    if method is None:
        return forward
    return symmetrize(forward, one.links_of_columns() if reverse is None else reversed_links(reverse.links()), method)


def _align(translator: Translator, window: _Window, first: int) -> list[SoftAlignment]:
    return translator.align(window.src, window.tgt, window.src_words, window.tgt_words, first)


def _windows(source: Path, target: Path, source_words: Path | None, target_words: Path | None) -> Iterator[_Window]:
    pairs = read_pairs(Files(src=[str(source)], tgt=[str(target)]))
    words = [None if path is None else read_lines(path) for path in (source_words, target_words)]
    count = 0
    while window := list(islice(pairs, WINDOW)):
        src_words, tgt_words = (None if lines is None else list(islice(lines, len(window))) for lines in words)
        for path, found in ((source_words, src_words), (target_words, tgt_words)):
            if found is not None and len(found) < len(window):
                raise DataError(
                    f"{path} ends after line {count + len(found)}, but {source} goes on: they must be pairs"
                )
        count += len(window)
        yield _Window([pair.src for pair in window], [pair.tgt or "" for pair in window], src_words, tgt_words)
    for path, lines in zip((source_words, target_words), words, strict=True):
        if lines is not None and next(lines, None) is not None:
            raise DataError(f"{path} has more than the {count} lines of {source}: they must be pairs")
