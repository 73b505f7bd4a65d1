"""`nmtkit score-summaries`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import cloup

from nmtkit import console
from nmtkit.cli import scoring
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.corpus.json_records import field_of, is_list_of_strings, parse_record, text_of
from nmtkit.corpus.text import read_lines
from nmtkit.metrics import Comparison, Options, Resampling, split_sentences, term_recall
from nmtkit.metrics.quality import QualityReport, quality
from nmtkit.metrics.significance import SIGNIFICANT
from nmtkit.metrics.systems import (
    ScoredSystem,
    named,
    require_equal_counts,
    score_systems,
    score_table,
)


@click.command("score-summaries", cls=scoring.MetricsCommand)
@scoring.hyps
@cloup.option_group(
    "Common",
    scoring.refs,
    click.option("--source", metavar="SRC", help="The articles; adds the report on quality."),
    click.option("--terms", metavar="JSONL", help="Lists of terms; adds their recall in the summaries."),
    scoring.as_json,
)
@cloup.option_group(
    "Keys of JSON lines",
    click.option("--summary-field", metavar="KEY", default="summary", show_default=True, help="Summaries."),
    click.option("--article-field", metavar="KEY", default="article", show_default=True, help="Articles in --source."),
    click.option("--terms-field", metavar="KEY", default="unseen", show_default=True, help="Lists in --terms."),
)
@scoring.scoring(summaries=True)
def command(
    hyps: tuple[str, ...],
    ref_paths: tuple[str, ...],
    source: str | None,
    metrics: list[str],
    options: Options,
    draws: Resampling | None,
    width: int,
    terms: str | None,
    terms_field: str,
    summary_field: str,
    article_field: str,
    as_json: bool,
) -> None:
    """Score summaries: ROUGE of Google's rouge-score with 95% intervals, and a report on the summaries.

    HYP and REF have one summary per line, plain or gzip-compressed, UTF-8. One HYP may be "-" for standard input. A
    file whose name ends in .jsonl or .jsonl.gz holds a JSON object on each line. ROUGE takes the reference with the
    highest F1. Several HYPs are compared with the first; * marks a difference with p below 0.05.

    --source adds the report: novel n-grams, words copied from the article, repeated trigrams, length, and how much of
    the article the summaries use.

    \b
    Examples:
      nmtkit score-summaries mine.txt --ref gold0.txt --ref gold1.txt --json
      nmtkit score-summaries lead.txt mine.txt --ref gold.txt --source articles.txt
      nmtkit score-summaries mine.txt --ref test.jsonl.gz --source test.jsonl.gz --terms test.jsonl.gz
    """
    outputs = [(path, _texts(path, summary_field, "--summary-field")) for path in hyps]
    refs = [_texts(path, summary_field, "--summary-field") for path in ref_paths]
    articles = None if source is None else _texts(source, article_field, "--article-field")
    phrases = None if terms is None else _phrases(terms, terms_field)
    beside = [(path, lines) for path, lines in ((source, articles), (terms, phrases)) if path and lines]
    require_equal_counts([*outputs, *zip(ref_paths, refs, strict=True), *beside])
    for path, lines in zip(ref_paths, refs, strict=True):
        _refuse_empty(path, lines)
    systems = score_systems(outputs, refs, metrics, options, draws, articles)
    if phrases is not None:
        for system, (_, lines) in zip(systems, outputs, strict=True):
            system.scores.append(Comparison(term_recall(lines, phrases, options.lowercase)))
    reports = [] if articles is None else [quality(lines, articles, refs) for _, lines in outputs]
    described = [] if articles is None else [quality(lines, articles) for lines in refs]

    empty = [sum(map(_is_empty, lines)) for _, lines in outputs]
    _say_what_counts_less([*zip(hyps, empty, strict=True)], len(refs[0]), articles)
    scoring.say_notes(metrics, refs)
    if as_json:
        _print_json(ref_paths, systems, empty, reports, described)
    else:
        _print_scores(systems, draws, width)
        _print_quality(ref_paths, systems, reports, described)
        scoring.say_lines(systems, width)


def _texts(path: str, field: str, option: str) -> list[str]:
    """The lines of a text file, or one field of a file whose name ends in .jsonl or .jsonl.gz."""
    if not path.endswith((".jsonl", ".jsonl.gz")):
        return scoring.read_texts(path, f"give a file whose name ends in .jsonl, and {option} KEY")
    # A list holds the sentences one by one; newlines keep them apart for ROUGE-Lsum.
    return [text_of(record, field, where, f"say {option}", joint="\n") for where, record in _records(path)]


def _phrases(path: str, field: str) -> list[list[str]]:
    """The term lists in a JSONL file."""
    lists = []
    for where, record in _records(path):
        value = field_of(record, field, where, "say --terms-field")
        if not is_list_of_strings(value):
            raise DataError(f"{where}: field {field!r} is not a list of strings")
        lists.append(value)
    return lists


def _records(path: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each after its place."""
    lines = ((f"{path}, line {number}", line) for number, line in enumerate(read_lines(path), start=1))
    records = [(where, parse_record(line, where)) for where, line in lines]
    if not records:
        raise DataError(f"{path}: no lines; there is nothing to score")
    return records


def _is_empty(text: str) -> bool:
    return not split_sentences(text)


def _refuse_empty(path: str, lines: Sequence[str]) -> None:
    empty = [number for number, line in enumerate(lines, start=1) if _is_empty(line)]
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DataError(
            f"{path}, line {empty[0]}{more}: the reference is empty; no summary can be scored against it: "
            "take the example out of all files"
        )


def _say_what_counts_less(empty: Sequence[tuple[str, int]], n_lines: int, articles: Sequence[str] | None) -> None:
    """Notes on stderr about empty summaries and articles."""
    for path, count in empty:
        if count:
            tell(
                f"note: {count} of {n_lines} summaries of {named(path)} are empty; ROUGE counts them as 0, and the "
                "quality report only in its number of words"
            )
    if articles is not None and (without := sum(map(_is_empty, articles))):
        tell(f"note: {without} of {n_lines} articles are empty; all in their summaries counts as new")


def _print_json(
    ref_paths: Sequence[str],
    systems: Sequence[ScoredSystem],
    empty: Sequence[int],
    reports: Sequence[QualityReport],
    described: Sequence[QualityReport],
) -> None:
    records = [system.record(empty=count) for system, count in zip(systems, empty, strict=True)]
    for record, report in zip(records, reports, strict=False):  # there are none without articles
        record["quality"] = asdict(report)
    more = {"quality_of_references": [asdict(report) for report in described]} if described else {}
    scoring.print_json(ref_paths, systems=records, **more)


def _print_scores(systems: Sequence[ScoredSystem], draws: Resampling | None, width: int) -> None:
    console.table("scores", *score_table(systems, width))
    notes = ["± is half the 95% confidence interval"] if systems[0].scores[0].interval is not None else []
    if draws is not None and len(systems) > 1:
        notes.append(f"* p < {SIGNIFICANT} against {systems[0].title} ({draws.title})")
    if notes:
        console.say("; ".join(notes))


def _print_quality(
    ref_paths: Sequence[str],
    systems: Sequence[ScoredSystem],
    reports: Sequence[QualityReport],
    described: Sequence[QualityReport],
) -> None:
    if not described:
        return
    columns = [_quality_cells(report) for report in (*reports, *described)]
    names = [*(system.title for system in systems), *(("reference",) if len(ref_paths) == 1 else ref_paths)]
    cells = [[label, *(column[row][1] for column in columns)] for row, (label, _) in enumerate(columns[0])]
    console.table("quality", ["of the summaries", *names], cells)
    console.say("copied fragments: runs of words that stand in the article too (Grusky et al. 2018)")
    console.say(f"quality|{described[0].signature}")


def _quality_cells(report: QualityReport) -> list[tuple[str, str]]:
    """Label and value of each row of the quality table."""

    def cell(value: float | None, unit: str = "%") -> str:
        return "-" if value is None else f"{value:.2f}{unit}"

    return [
        *((f"novel {n}-grams", cell(share)) for n, share in enumerate(report.novel, start=1)),
        ("words in copied fragments", cell(report.copied)),
        ("mean length of their fragment (density)", cell(report.density, "")),
        ("repeated trigrams", cell(report.repeated_trigrams)),
        ("words", cell(report.words, "")),
        ("words, of the reference's", cell(report.length_to_reference)),
        ("words, of the article's", cell(report.length_to_article)),
        ("article: words copied from", cell(report.source_words)),
        ("article: sentences copied from", cell(report.source_sentences)),
        ("empty summaries", str(report.empty)),
    ]
