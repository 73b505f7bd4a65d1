"""`nmtkit score-summaries`."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from nmtkit.cli import terminal
from nmtkit.cli.scoring import scoring
from nmtkit.cli.terminal.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.data.text.files.json_records import field_of, is_list_of_strings, parse_record
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.names import split_reference
from nmtkit.metrics import Comparison, Options, Resampling, split_sentences, term_recall
from nmtkit.metrics.quality import QualityReport, quality
from nmtkit.metrics.systems import named, notes, require_equal_counts, score_systems

REPEATED_PERCENT = 10
"""Percentage of repeated trigrams at which a message says that summaries repeat themselves."""


@scoring.passes_settings(summaries=True)
def run_score_summaries(
    hyps: tuple[str, ...],
    ref_paths: tuple[str, ...],
    source: str | None,
    metrics: list[str],
    options: Options,
    draws: Resampling | None,
    width: int,
    terms: str | None,
    as_json: bool,
) -> None:
    """Carries out `nmtkit score-summaries`."""
    outputs, refs = (
        [
            (path, scoring.read_texts(path, scoring.JSON_REMEDY, scoring.SUMMARY_FIELD))
            for path in paths
        ]
        for paths in (hyps, ref_paths)
    )
    articles = (
        None
        if source is None
        else scoring.read_texts(source, scoring.JSON_REMEDY, scoring.ARTICLE_FIELD)
    )
    term_lists = None if terms is None else _read_terms(terms)
    beside = [
        (path, lines)
        for path, lines in ((source, articles), (terms, term_lists))
        if path and lines is not None
    ]
    require_equal_counts([*outputs, *refs, *beside])
    refuse_empty(refs)
    ref_lines = [lines for _, lines in refs]
    systems = score_systems(outputs, ref_lines, metrics, options, draws, articles)
    if term_lists is not None:
        for system, (_, lines) in zip(systems, outputs, strict=True):
            system.scores.append(Comparison(term_recall(lines, term_lists, options.lowercase)))
    reports = (
        [] if articles is None else [quality(lines, articles, ref_lines) for _, lines in outputs]
    )
    ref_reports = [] if articles is None else [quality(lines, articles) for lines in ref_lines]

    empty = [sum(not split_sentences(line) for line in lines) for _, lines in outputs]
    for path, count in zip(hyps, empty, strict=True):
        if count:
            tell(
                f"note: {count} of the {len(ref_lines[0])} summaries in {named(path)} are empty; they get a ROUGE "
                "score of 0, and in the quality report they affect only the length statistics"
            )
    for note in notes(metrics, ref_lines, options):
        tell(f"note: {note}")
    if as_json:
        records = [system.record(empty=count) for system, count in zip(systems, empty, strict=True)]
        # without articles, there are no reports
        for record, report in zip(records, reports, strict=False):
            record["quality"] = asdict(report)
        more = (
            {"quality_of_references": [asdict(report) for report in ref_reports]}
            if ref_reports
            else {}
        )
        scoring.print_json(ref_paths, systems=records, **more)
        return
    scoring.show_scores(systems, draws, width)
    if ref_reports:
        names = [
            *(system.title for system in systems),
            *(("reference",) if len(ref_paths) == 1 else ref_paths),
        ]
        _show_quality([*reports, *ref_reports], names)
    _advise_against_repetitions(hyps, reports, ref_reports)


def _show_quality(reports: Sequence[QualityReport], names: Sequence[str]) -> None:
    """Prints a table with a column for each report; each row ends with a hint about good values."""
    columns = [_quality_cells(report) for report in reports]
    rows = []
    for number, (label, _, hint) in enumerate(columns[0]):
        rows.append([label, *(column[number][1] for column in columns), hint])
    terminal.say("")
    terminal.table("copying, repetition and length", ["measure", *names, "good values"], rows)
    terminal.say(
        "copied fragments: sequences of words that also occur in the article (Grusky et al. 2018)"
    )
    terminal.say(f"quality|{reports[0].signature}")


def _advise_against_repetitions(
    hyps: Sequence[str], reports: Sequence[QualityReport], ref_reports: Sequence[QualityReport]
) -> None:
    usual = max((report.repeated_trigrams or 0.0 for report in ref_reports), default=0.0)
    for path, report in zip(hyps, reports, strict=False):  # without articles there are no reports
        share = report.repeated_trigrams or 0.0
        if share >= REPEATED_PERCENT and share > 2 * usual:
            tell(
                f"{named(path)} repeats itself: {share:.0f}% of its trigrams are repeated (references: {usual:.0f}%); "
                "to prevent this, summarize with --no-repeat-ngram 3"
            )


def _read_terms(path: str) -> list[list[str]]:
    file, column = split_reference(path)
    field = column or scoring.TERMS_FIELD
    term_lists = []
    for number, line in enumerate(read_lines(file), start=1):
        where = f"{file}, line {number}"
        terms = field_of(parse_record(line, where), field, where, "specify the field as FILE#FIELD")
        if not is_list_of_strings(terms):
            raise DataError(
                f"{where}: the field {field!r} is not a list of strings; fix it, or specify another field as FILE#FIELD"
            )
        term_lists.append(terms)
    return term_lists


def refuse_empty(refs: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Rejects examples whose references are all empty; `refs` contains files and their lines."""
    paths, texts = zip(*refs, strict=True)
    for number, references in enumerate(zip(*texts, strict=True), start=1):
        if not any(map(split_sentences, references)):
            raise DataError(
                f"{paths[0]}, line {number}: the reference is empty, so no summary can be scored against it; remove "
                "this example from all files"
            )


def _quality_cells(report: QualityReport) -> list[tuple[str, str, str]]:
    """Returns the label, the value and the hint about good values of each row."""

    def cell(value: float | None, unit: str = "%") -> str:
        return "-" if value is None else f"{value:.2f}{unit}"

    rows = []
    for n, share in enumerate(report.novel, start=1):
        hint = "like the reference; 0: only copied" if n == 1 else "like the reference"
        rows.append((f"novel {n}-grams", cell(share), hint))
    return [
        *rows,
        ("words in copied fragments", cell(report.copied), "like the reference; 100: only copied"),
        (
            "mean fragment length (density)",
            cell(report.density, ""),
            "like the reference; high: copied sentences",
        ),
        ("repeated trigrams", cell(report.repeated_trigrams), "near 0"),
        ("words", cell(report.words, ""), "like the reference"),
        ("length vs. reference", cell(report.length_to_reference), "near 100"),
        ("length vs. article", cell(report.length_to_article), "like the reference"),
        ("article words copied", cell(report.source_words), "like the reference"),
        ("article sentences copied from", cell(report.source_sentences), "like the reference"),
        ("empty summaries", str(report.empty), "0"),
    ]
