"""`nmtkit score --alignment`: alignment error rates."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from nmtkit import console
from nmtkit.data.alignments import Alignment, AlignmentFile, parse, reversed_links
from nmtkit.errors import DataError
from nmtkit.metrics import AlignmentScores, aer

NamedLines = tuple[str, Sequence[str]]
"""What a file is called, and its lines."""


def score_alignments(
    systems: Sequence[NamedLines],
    titles: Sequence[str],
    gold: NamedLines,
    hyp_base: int | None,
    ref_base: int | None,
    reverse_hyp: bool,
    as_json: bool,
) -> None:
    """Prints AER, precision and recall of every system; every link of a system counts, whether it says sure or not."""
    hyps = [parse(lines, name, hyp_base) for name, lines in systems]
    ref = parse(gold[1], gold[0], ref_base)
    named = [(gold[0], ref), *((name, hyp) for (name, _), hyp in zip(systems, hyps, strict=True))]
    for name, file in named:
        option, said = ("--ref-base", ref_base) if file is ref else ("--hyp-base", hyp_base)
        if said is None and (doubt := file.doubt):
            console.say(
                f"note: {name} was read as counting words from 0, but {doubt}; if it counts from 1, say {option} 1, if "
                f"it is right so, {option} 0; if only one side counts from 1, let both count alike",
                stderr=True,
            )
    n_pairs = _number_of_pairs(named)
    golds = _filled(ref, n_pairs)
    scores = []
    for hyp in hyps:
        links = [pair.possible for pair in _filled(hyp, n_pairs)]
        scores.append(aer([reversed_links(one) for one in links] if reverse_hyp else links, golds))
    if as_json:
        _print_json([name for name, _ in systems], hyps, scores, gold[0], ref)
    else:
        _print_table(titles, hyps, scores, gold[0], ref, n_pairs)


def _number_of_pairs(files: Sequence[tuple[str, AlignmentFile]]) -> int:
    """A pharaoh file has a line for each pair; a naacl file says only which pairs have links."""
    lined = [(name, len(file.pairs)) for name, file in files if file.form == "pharaoh"]
    if not lined:
        return max(len(file.pairs) for _, file in files)
    first, n_pairs = lined[0]
    for name, count in lined:
        if count != n_pairs:
            raise DataError(
                f"different line counts: {first} has {n_pairs} lines, {name} has {count}; "
                "each needs a line for every sentence pair, an empty one where it has no link"
            )
    for name, file in files:
        if len(file.pairs) > n_pairs:
            raise DataError(f"{name} has a sentence pair {len(file.pairs)}, but {first} ends with pair {n_pairs}")
    return n_pairs


def _filled(file: AlignmentFile, n_pairs: int) -> list[Alignment]:
    none = Alignment(frozenset(), frozenset())
    return [*file.pairs, *[none] * (n_pairs - len(file.pairs))]


def _n_links(file: AlignmentFile) -> int:
    return sum(len(pair.possible) for pair in file.pairs)


def _n_sure(file: AlignmentFile) -> int:
    return sum(len(pair.sure) for pair in file.pairs)


def _print_json(
    names: Sequence[str],
    hyps: Sequence[AlignmentFile],
    scores: Sequence[AlignmentScores],
    ref_name: str,
    ref: AlignmentFile,
) -> None:
    found = [
        {
            "system": name,
            "scores": [asdict(score) for score in (of_hyp.aer, of_hyp.precision, of_hyp.recall)],
            "links": _n_links(hyp),
            "format": hyp.form,
            "base": hyp.base,
        }
        for name, hyp, of_hyp in zip(names, hyps, scores, strict=True)
    ]
    gold = {"sure": _n_sure(ref), "possible": _n_links(ref), "format": ref.form, "base": ref.base}
    click.echo(json.dumps({"references": [ref_name], "gold": gold, "systems": found}, indent=2, ensure_ascii=False))


def _print_table(
    titles: Sequence[str],
    hyps: Sequence[AlignmentFile],
    scores: Sequence[AlignmentScores],
    ref_name: str,
    ref: AlignmentFile,
    n_pairs: int,
) -> None:
    rows = []
    for title, hyp, of_hyp in zip(titles, hyps, scores, strict=True):
        values = [f"{score.value:.2f}" for score in (of_hyp.aer, of_hyp.precision, of_hyp.recall)]
        rows.append([title, *values, str(_n_links(hyp)), hyp.form, str(hyp.base)])
    console.table("alignments", ["system", "AER", "precision", "recall", "links", "format", "counts from"], rows)
    sure = _n_sure(ref)
    console.say(
        f"against {ref_name} ({ref.form}, counts from {ref.base}): {n_pairs} sentence pairs, {sure} sure links and "
        f"{_n_links(ref) - sure} that are only possible; a lower AER is better"
    )
