"""`nmtkit align`."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import click

from nmtkit import console
from nmtkit.cli import opening, options
from nmtkit.cli.options import Number
from nmtkit.data.alignments import SYMMETRIZATIONS, Links, SoftAlignment, SoftWriter, Symmetrization, pharaoh
from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_pairs
from nmtkit.data.text import read_lines
from nmtkit.errors import DataError
from nmtkit.experiment.opening import Opening
from nmtkit.translation.translator import Translator

WINDOW = 2048

Column = list[str] | None
"""Lines in a row of one file; None where there is no file."""


@dataclass(frozen=True)
class PairFiles:
    """The files of the pairs, and of their words where those are counted otherwise."""

    source: Path
    target: Path
    source_words: Path | None
    target_words: Path | None

    def windows(self) -> Iterator[tuple[list[str], list[str], Column, Column]]:
        """Sources, targets and the words of both, some pairs at a time.

        Raises:
            DataError: a file cannot be read, or they differ in length.
        """
        pairs = read_pairs(Files(src=[str(self.source)], tgt=[str(self.target)]))
        paths = (self.source_words, self.target_words)
        words = [None if path is None else read_lines(path) for path in paths]
        count = 0
        while window := list(islice(pairs, WINDOW)):
            src_words, tgt_words = (None if lines is None else list(islice(lines, len(window))) for lines in words)
            for path, found in zip(paths, (src_words, tgt_words), strict=True):
                if found is not None and len(found) < len(window):
                    raise DataError(
                        f"{path} ends after line {count + len(found)}, but {self.source} goes on: they must be pairs"
                    )
            count += len(window)
            yield [pair.src for pair in window], [pair.tgt or "" for pair in window], src_words, tgt_words
        for path, lines in zip(paths, words, strict=True):
            if lines is not None and next(lines, None) is not None:
                raise DataError(f"{path} has more than the {count} lines of {self.source}: they must be pairs")


@dataclass(frozen=True)
class Linking:
    """How words are linked by their weights."""

    threshold: float | None
    method: Symmetrization | None

    def links(self, one: SoftAlignment, reverse: SoftAlignment | None) -> Links:
        """The links of a pair; `reverse` is what a model of the other direction says of it."""
        return one.links(self.threshold) if self.method is None else one.symmetrized(self.method, reverse)


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
@opening.layer
@opening.head
@options.batch_tokens
@options.threads
@opening.how
@options.grouped(PairFiles, "texts")
@options.grouped(Linking, "linking")
def command(how: Opening, texts: PairFiles, linking: Linking, reverse_model: str | None, soft: Path | None) -> None:
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
    if linking.threshold is not None and (linking.method is not None or reverse_model is not None):
        raise click.UsageError("--threshold keeps several links a word; it does not go with --symmetrize")
    file = nullcontext() if soft is None else SoftWriter(soft)
    translator = opening.open_asked(how)
    backward = None
    if reverse_model is not None:
        backward = opening.open_asked(replace(how, model=reverse_model))
        linking = replace(linking, method=linking.method or "grow-diag")
    n_pairs, half_empty = 0, 0
    with console.LineProgress("pairs") as progress, file as writer:
        for one, reverse in _aligned(translator, backward, texts):
            n_pairs += 1
            half_empty += bool(one.src_words) != bool(one.tgt_words)
            sys.stdout.write(pharaoh(linking.links(one, reverse)) + "\n")
            if writer is not None:
                writer.add(one, reverse)
            progress.advance(1)
    if half_empty:
        console.say(f"{half_empty} pairs have one empty side: their lines are empty", stderr=True)


def _aligned(
    translator: Translator, backward: Translator | None, texts: PairFiles
) -> Iterator[tuple[SoftAlignment, SoftAlignment | None]]:
    """What the model says of each pair, and a model of the other direction if there is one."""
    first = 1
    for src, tgt, src_words, tgt_words in texts.windows():
        try:
            found = translator.align(src, tgt, src_words, tgt_words, first)
            others = [None] * len(src) if backward is None else backward.align(tgt, src, tgt_words, src_words, first)
        except DataError as fault:
            raise DataError(f"{texts.source} and {texts.target}: {fault}") from fault
        yield from zip(found, others, strict=True)
        first += len(src)
