"""`nmtkit align`."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import click

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE, NEW_FILE, Number
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.corpus.alignments import SYMMETRIZATIONS, SoftAlignment, SoftAlignmentWriter, Symmetrization, format_pharaoh
from nmtkit.corpus.text import read_lines
from nmtkit.data.shortlist import LinkCounts, shortlist_writer
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.experiment.opening import Opening
from nmtkit.translation.translator import Translator


@dataclass(frozen=True)
class PairFiles:
    """The files of the pairs, and of their words where those are counted otherwise."""

    source: Path
    target: Path
    source_words: Path | None
    target_words: Path | None


BEST, FREQUENT = 50, 2000
"""Mi et al. 2016, "Vocabulary Manipulation for Neural Machine Translation", take 10 to 50, and 2,000. Sentences
searched together need most of the frequent tokens anyway."""


@dataclass(frozen=True)
class Listing:
    """The shortlist to be written, if any, and how many tokens it is to have."""

    shortlist_file: Path | None
    best: int | None
    frequent: int | None

    def __post_init__(self) -> None:
        if self.shortlist_file is None and (self.best, self.frequent) != (None, None):
            raise click.UsageError("--shortlist-best and --shortlist-frequent are for --shortlist FILE; give it too")

    def counting(self, tokenizers: TokenizerPair) -> AbstractContextManager[LinkCounts | None]:
        """Counts links, and writes the shortlist at the end, if one is asked for."""
        if self.shortlist_file is None:
            return nullcontext()
        most = FREQUENT if self.frequent is None else self.frequent
        return shortlist_writer(self.shortlist_file, tokenizers, self.best or BEST, most)


@click.command()
@results.output
@inference.which_runs
@inference.precision("fp32")
@inference.source_file
@click.option("--target", required=True, type=FILE, help="Their translations, line by line.")
@click.option(
    "--source-words",
    type=FILE,
    metavar="FILE",
    help="The source lines with a space between words (l' homme). Default: the spaces of --source.",
)
@click.option("--target-words", type=FILE, metavar="FILE", help="The same for the target.")
@click.option(
    "--threshold",
    type=Number(0, 1, whole=False, above=True),
    help="Link all words with at least this weight. Default: each target word with its best source word.",
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
    "--soft", type=NEW_FILE, metavar="FILE", help="Also write the weights between words: FILE.json or FILE.npz."
)
@click.option(
    "--shortlist",
    "shortlist_file",
    type=NEW_FILE,
    metavar="FILE",
    help="Also write which target tokens each source token was linked to, for `nmtkit translate --shortlist`.",
)
@click.option(
    "--shortlist-best",
    "best",
    type=Number(1),
    metavar="N",
    help=f"At most so many for each source token, the most often linked. Default: {BEST}.",
)
@click.option(
    "--shortlist-frequent",
    "frequent",
    type=Number(0),
    metavar="M",
    help=f"The M most frequent target tokens of the pairs for every sentence. Default: {FREQUENT}.",
)
@inference.layer
@inference.head
@inference.batches
@options.quiet
@options.grouped(PairFiles, "texts")
@options.grouped(Listing, "listing")
def command(
    how: Opening,
    texts: PairFiles,
    threshold: float | None,
    method: Symmetrization | None,
    reverse_model: str | None,
    soft: Path | None,
    listing: Listing,
) -> None:
    """Align the words of given translations by a model's attention.

    Prints a line for each pair in the Pharaoh format: "i-j" links source word i and target word j, counted from 0. A
    pair with an empty side has an empty line. White space separates words: the n-th word of a line is word n, whatever
    the tokenizer makes of it, and punctuation glued to a word is part of it. The attention of subwords is merged to
    words: the columns of a source word are added, the rows of a target word averaged. The end of the sentence is no
    word. Each target word is linked to the source word with the largest weight.

    --symmetrize combines two directions: those of two models, or, without --reverse-model, the two ways to read one
    attention. The second way links each source word to the target word that looks at it most. grow-diag grows from the
    links of both directions along their neighbours. -final adds links for words that have none yet; -final-and and
    -strict only where both words have none.

    --soft FILE.json is a list with an object for each pair: source and target words, and "weights" with a row for each
    target word. --soft FILE.npz has an array "1", "2", ... for each pair. --reverse-model adds "reverse_weights", or
    arrays "1.reverse", ..., with a row for each source word.

    --shortlist counts the links that are printed: each token of a source word as linked to each token of the target
    word. The longer the text, the better: all pairs of the training corpus, for instance.

    \b
    Examples:
      nmtkit align --source test.en --target test.fr -o test.align
      nmtkit align -m runs/en-fr --reverse-model runs/fr-en --source test.en --target test.fr -o test.align
      nmtkit align --source test.en --target test.fr --source-words test.tok.en --target-words test.tok.fr
      nmtkit align --source test.en --target test.fr --soft test.npz --threshold 0.3 -o test.align
      nmtkit align --source train.en --target train.fr --shortlist en-fr.shortlist -o train.align
    """
    if threshold is not None and (method is not None or reverse_model is not None):
        raise click.UsageError("--threshold keeps several links a word; it does not go with --symmetrize")
    file = nullcontext() if soft is None else SoftAlignmentWriter(soft)
    translator = inference.open_asked(how)
    backward = None
    if reverse_model is not None:
        backward = inference.open_asked(replace(how, model=reverse_model, ensemble_weights=None))
        method = method or "grow-diag"
    half_empty = 0
    with results.progress("pairs") as shown, file as writer, listing.counting(translator.tokenizers) as counts:
        for one, reverse in _aligned(translator, backward, texts):
            half_empty += bool(one.src_words) != bool(one.tgt_words)
            links = one.links(threshold) if method is None else one.symmetrized(method, reverse)
            sys.stdout.write(format_pharaoh(links) + "\n")
            if writer is not None:
                writer.add(one, reverse)
            if counts is not None:
                counts.add(links, one.src_ids, one.tgt_ids)
            shown.advance(1)
    if half_empty:
        tell(f"{half_empty} pairs have one empty side: their lines are empty")


def _aligned(
    translator: Translator, backward: Translator | None, texts: PairFiles
) -> Iterator[tuple[SoftAlignment, SoftAlignment | None]]:
    """What the model says of each pair, and a model of the other direction if there is one."""
    paths = (texts.source_words, texts.target_words)
    words = [None if path is None else read_lines(path) for path in paths]
    count = 0
    for window in inference.pair_windows(texts.source, texts.target):
        src, tgt = [pair.src for pair in window], [pair.tgt or "" for pair in window]
        src_words, tgt_words = (None if lines is None else list(islice(lines, len(window))) for lines in words)
        for path, lines in zip(paths, (src_words, tgt_words), strict=True):
            if lines is not None and len(lines) < len(window):
                raise DataError(
                    f"{path} ends after line {count + len(lines)}, but {texts.source} goes on: they must be pairs"
                )
        try:
            found = translator.align(src, tgt, src_words, tgt_words, count + 1)
            others = backward.align(tgt, src, tgt_words, src_words, count + 1) if backward else [None] * len(src)
        except DataError as fault:
            raise DataError(f"{texts.source} and {texts.target}: {fault}") from fault
        yield from zip(found, others, strict=True)
        count += len(window)
    for path, rest in zip(paths, words, strict=True):
        if rest is not None and next(rest, None) is not None:
            raise DataError(f"{path} has more than the {count} lines of {texts.source}: they must be pairs")
