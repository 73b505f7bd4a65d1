"""`nmtkit score` and `nmtkit score-alignments`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from nmtkit.cli import terminal
from nmtkit.cli.options import chosen_format
from nmtkit.cli.pictures.figures import draw_lengths, show_lengths
from nmtkit.cli.scoring import scoring
from nmtkit.cli.terminal.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import (
    AlignmentFile,
    GoldAlignment,
    parse_alignments,
    reverse_links,
)
from nmtkit.data.text.files.json_records import EXTRACT_HINT
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.metrics import METRICS, Options, Resampling, aer, by_length
from nmtkit.metrics.systems import named, notes, require_equal_counts, score_systems, titles
from nmtkit.plots import picture_format
from nmtkit.runs.run import find_run

REMEDY = f"{EXTRACT_HINT} (only score-summaries reads .jsonl files directly)"


@scoring.passes_settings(summaries=False)
def run_score(
    hyps: tuple[str, ...],
    ref_paths: tuple[str, ...],
    source: str | None,
    known_by: str | None,
    metrics: list[str],
    options: Options,
    draws: Resampling | None,
    width: int,
    lengths_shown: bool,
    plot: Path | None,
    as_json: bool,
    table_format: str | None,
) -> None:
    """Carries out `nmtkit score`."""
    form = chosen_format(table_format, as_json)
    if form in ("latex", "csv") and lengths_shown and plot is None:
        raise click.UsageError(
            f"--format {form} has no table by length; remove --by-length, or draw a figure with --plot"
        )
    needs_source = any(METRICS.get(name).needs == "texts and sources" for name in metrics)
    if source is not None and not (lengths_shown or needs_source or known_by):
        raise click.UsageError(
            "--source is used only with --by-length, --known-by or a metric that needs it; add one of these, or remove "
            "--source"
        )
    if known_by is not None and source is None:
        raise click.UsageError(
            "--known-by also checks the source for unknown words; add --source SRC"
        )
    if plot is not None:
        if not lengths_shown:
            raise click.UsageError(
                "--plot draws the table of --by-length; use both options or neither"
            )
        picture_format(plot)

    paths = [*hyps, *ref_paths, *([source] if source is not None else [])]
    files = [(path, scoring.read_texts(path, REMEDY)) for path in paths]
    require_equal_counts(files)
    facts = {}
    if known_by is not None:
        kept = _known_lines(known_by, [lines for _, lines in files[len(hyps) :]])
        facts = {"known_by": known_by, "lines": len(kept), "of": len(files[0][1])}
        files = [(path, [lines[number] for number in kept]) for path, lines in files]
    outputs, refs = files[: len(hyps)], [lines for _, lines in files[len(hyps) :]]
    source_lines = None if source is None else refs.pop()

    systems = score_systems(outputs, refs, metrics, options, draws, source_lines)
    names = [system.title for system in systems]
    measured = refs[0] if source_lines is None else source_lines
    buckets = [
        by_length(lines, refs, measured, options=options) for _, lines in outputs if lengths_shown
    ]
    for note in notes(metrics, refs, options):
        tell(f"note: {note}")
    if form == "json":
        ranges = [{"by_length": [asdict(bucket) for bucket in row]} for row in buckets] or [
            {} for _ in systems
        ]
        records = [system.record() | more for system, more in zip(systems, ranges, strict=True)]
        scoring.print_json(ref_paths, **facts, systems=records)
    elif form == "latex":
        scoring.print_latex(systems, width)
    elif form == "csv":
        scoring.print_csv(systems)
    else:
        if buckets:
            show_lengths(names, buckets)
        scoring.show_scores(systems, draws, width)
    if plot is not None:
        draw_lengths(names, buckets, plot)


def _known_lines(path: str, texts: Sequence[Sequence[str]]) -> list[int]:
    """Returns the indices of the lines without unknown words; `texts` are the references, followed by the source."""
    run, _ = find_run(path)
    pair = run.load_tokenizers()
    tokenizers = [*[pair.tgt] * (len(texts) - 1), pair.src]
    ids = [tokenizer.encode_many(lines) for tokenizer, lines in zip(tokenizers, texts, strict=True)]
    kept = [
        number
        for number, row in enumerate(zip(*ids, strict=True))
        if not any(UNK in one for one in row)
    ]
    if not kept:
        raise DataError(
            f"--known-by {path}: each of the {len(texts[0]):,} lines has a word that this run does not know, so "
            "no line is left to score; use a run with a larger vocabulary, or remove --known-by"
        )
    tell(
        f"scoring only the {len(kept):,} of {len(texts[0]):,} lines that contain no words unknown to {path}"
    )
    return kept


def run_score_alignments(
    hyps: tuple[str, ...],
    ref: str,
    hyp_base: int | None,
    ref_base: int | None,
    reverse_hyp: bool,
    as_json: bool,
) -> None:
    """Carries out `nmtkit score-alignments`."""
    scoring.require_one_stdin(*hyps, ref)
    systems = [_read_alignments(path, "--hyp-base", hyp_base) for path in hyps]
    gold = _read_alignments(ref, "--ref-base", ref_base)
    n_pairs = _number_of_pairs([(ref, gold), *zip(hyps, systems, strict=True)])
    n_possible = sum(len(pair.possible) for pair in gold.pairs)
    n_sure = sum(len(pair.sure) for pair in gold.pairs)
    records, rows = [], []
    for path, title, system in zip(hyps, titles(hyps), systems, strict=True):
        links = [pair.possible for pair in _filled(system, n_pairs)]
        scores = aer(
            [reverse_links(one) for one in links] if reverse_hyp else links, _filled(gold, n_pairs)
        )
        count = sum(map(len, links))
        record = {
            "system": named(path),
            "scores": [asdict(score) for score in scores],
            "links": count,
        }
        records.append(record | {"format": system.format, "base": system.base})
        rows.append(
            [
                title,
                *(f"{score.value:.2f}" for score in scores),
                str(count),
                system.format,
                str(system.base),
            ]
        )
    if as_json:
        facts = {"sure": n_sure, "possible": n_possible, "format": gold.format, "base": gold.base}
        scoring.print_json([ref], gold=facts, systems=records)
        return
    terminal.table(
        "alignments",
        ["system", "AER", "precision", "recall", "links", "format", "counts from"],
        rows,
    )
    terminal.say(
        f"against {ref} ({gold.format}, counts from {gold.base}): {n_pairs} sentence pairs, {n_sure} sure links and "
        f"{n_possible - n_sure} links that are only possible; lower AER is better"
    )


def _read_alignments(path: str, option: str, base: int | None) -> AlignmentFile:
    """Reads a file of alignments; prints a note if `base` is None and the file seems to count words from 1."""
    file = parse_alignments(scoring.read_texts(path, EXTRACT_HINT), named(path), base)
    if base is None and (doubt := file.base_warning):
        tell(
            f"note: {named(path)} was read as counting words from 0, but {doubt}; if it counts from 1, add "
            f"{option} 1, otherwise {option} 0; if only one of its sides counts from 1, renumber that side"
        )
    return file


def _number_of_pairs(files: Sequence[tuple[str, AlignmentFile]]) -> int:
    """Returns the number of sentence pairs, from pharaoh files if possible; naacl files omit pairs without links."""
    lined = [(path, one.pairs) for path, one in files if one.format == "pharaoh"]
    if not lined:
        return max(len(one.pairs) for _, one in files)
    require_equal_counts(
        lined, "each file needs one line per sentence pair, which is empty if the pair has no links"
    )
    first, n_pairs = named(lined[0][0]), len(lined[0][1])
    for path, one in files:
        if len(one.pairs) > n_pairs:
            raise DataError(
                f"{named(path)} has links for sentence pair {len(one.pairs)}, but {first} ends with pair {n_pairs}; "
                "align the same pairs in both files"
            )
    return n_pairs


def _filled(file: AlignmentFile, n_pairs: int) -> list[GoldAlignment]:
    """Returns the alignments, padded with empty ones to `n_pairs`."""
    none = GoldAlignment(frozenset(), frozenset())
    return [*file.pairs, *[none] * (n_pairs - len(file.pairs))]
