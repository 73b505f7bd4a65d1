"""`nmtkit score-alignments`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from nmtkit import console
from nmtkit.cli import scoring
from nmtkit.cli.options import Number
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.corpus.alignments import Alignment, AlignmentFile, parse_alignments, reverse_links
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.metrics import Score, aer
from nmtkit.metrics.systems import named, require_equal_counts, titles


@dataclass(frozen=True)
class _Named:
    """A file of alignments."""

    path: str
    file: AlignmentFile

    @property
    def links(self) -> int:
        return sum(len(pair.possible) for pair in self.file.pairs)

    @property
    def sure(self) -> int:
        return sum(len(pair.sure) for pair in self.file.pairs)

    def filled(self, n_pairs: int) -> list[Alignment]:
        """The alignments, with empty ones at the end up to `n_pairs`."""
        none = Alignment(frozenset(), frozenset())
        return [*self.file.pairs, *[none] * (n_pairs - len(self.file.pairs))]


def _one_ref(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> str:
    if len(given) > 1:
        raise click.UsageError("score-alignments takes one --ref")
    return given[0]


@click.command("score-alignments")
@scoring.hyps
@click.option("--ref", metavar="REF", multiple=True, required=True, callback=_one_ref, help="The gold alignment.")
@click.option("--hyp-base", type=Number(0, 1), help="The HYPs count words from 0 or 1. Default: 0 (naacl: 1).")
@click.option("--ref-base", type=Number(0, 1), help="REF counts words from 0 or 1. Default: as above.")
@click.option("--reverse-hyp", is_flag=True, help="The HYPs have links as target-source.")
@scoring.as_json
def command(
    hyps: tuple[str, ...], ref: str, hyp_base: int | None, ref_base: int | None, reverse_hyp: bool, as_json: bool
) -> None:
    """Score word alignments: alignment error rate (Och and Ney 2003), precision and recall. A lower AER is better.

    The pharaoh format (also talp) has a line for each sentence pair, "0-0 1-2 2?2". In REF, "?" or "p" instead of "-"
    marks a possible link; in a HYP every link counts. The naacl format has a line for each link, "PAIR SOURCE TARGET
    S", S (sure) or P (possible), with pairs counted from 1. One HYP may be "-" for standard input.

    \b
    Examples:
      nmtkit score-alignments mine.align --ref test.align
      nmtkit score-alignments giza.talp fast_align.talp --ref gold.wa --ref-base 1
    """
    lines = [(path, scoring.read_texts(path, EXTRACT_HINT)) for path in (*hyps, ref)]
    *systems, gold = [
        _Named(path, parse_alignments(read, named(path), ref_base if number == len(hyps) else hyp_base))
        for number, (path, read) in enumerate(lines)
    ]
    _doubt(gold, "--ref-base", ref_base)
    for system in systems:
        _doubt(system, "--hyp-base", hyp_base)
    n_pairs = _number_of_pairs([gold, *systems])
    scores = []
    for system in systems:
        links = [pair.possible for pair in system.filled(n_pairs)]
        predicted = [reverse_links(one) for one in links] if reverse_hyp else links
        rates = aer(predicted, gold.filled(n_pairs))
        scores.append((rates.aer, rates.precision, rates.recall))
    if as_json:
        _print_json(systems, scores, gold)
    else:
        _print_table(systems, scores, gold, n_pairs)


def _doubt(one: _Named, option: str, said: int | None) -> None:
    """Notes on stderr if a file whose base was not given seems to count from 1."""
    if said is None and (doubt := one.file.base_warning):
        tell(
            f"note: {named(one.path)} was read as counting words from 0, but {doubt}; if it counts from 1, say "
            f"{option} 1, if it is right so, {option} 0; if only one side counts from 1, let both count alike"
        )


def _number_of_pairs(files: Sequence[_Named]) -> int:
    """A pharaoh file has a line for each pair; a naacl file says only which pairs have links."""
    lined = [(one.path, one.file.pairs) for one in files if one.file.format == "pharaoh"]
    if not lined:
        return max(len(one.file.pairs) for one in files)
    require_equal_counts(lined, "each needs a line for every sentence pair, an empty one where it has no link")
    first, n_pairs = named(lined[0][0]), len(lined[0][1])
    for one in files:
        if len(one.file.pairs) > n_pairs:
            raise DataError(
                f"{named(one.path)} has a sentence pair {len(one.file.pairs)}, but {first} ends with pair {n_pairs}"
            )
    return n_pairs


def _print_json(systems: Sequence[_Named], scores: Sequence[Sequence[Score]], gold: _Named) -> None:
    records = [
        {
            "system": named(one.path),
            "scores": [asdict(score) for score in row],
            "links": one.links,
            "format": one.file.format,
            "base": one.file.base,
        }
        for one, row in zip(systems, scores, strict=True)
    ]
    facts = {"sure": gold.sure, "possible": gold.links, "format": gold.file.format, "base": gold.file.base}
    scoring.print_json([gold.path], gold=facts, systems=records)


def _print_table(systems: Sequence[_Named], scores: Sequence[Sequence[Score]], gold: _Named, n_pairs: int) -> None:
    rows = []
    for title, one, row in zip(titles([one.path for one in systems]), systems, scores, strict=True):
        values = [f"{score.value:.2f}" for score in row]
        rows.append([title, *values, str(one.links), one.file.format, str(one.file.base)])
    console.table("alignments", ["system", "AER", "precision", "recall", "links", "format", "counts from"], rows)
    console.say(
        f"against {gold.path} ({gold.file.format}, counts from {gold.file.base}): {n_pairs} sentence pairs, "
        f"{gold.sure} sure links and {gold.links - gold.sure} that are only possible; a lower AER is better"
    )
