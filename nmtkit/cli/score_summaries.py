"""`nmtkit score --summary`: ROUGE with confidence, the quality report, and recall of wanted words."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from nmtkit import console
from nmtkit.cli.reading import stdin_lines
from nmtkit.data.reading import read_lines, refuse_json_lines
from nmtkit.errors import DataError
from nmtkit.metrics import (
    ROUGE_METRICS,
    Comparison,
    Options,
    Score,
    compare,
    copied_right,
    outside_rouge,
    score_all,
    split_sentences,
)
from nmtkit.metrics.quality import QualityReport, quality
from nmtkit.settings import parse_json, shortened

SIGNIFICANT = 0.05
"""A p-value below it marks a difference."""


@dataclass(frozen=True)
class Fields:
    """Which keys of JSONL files hold what."""

    summary: str
    article: str
    wanted: str


@dataclass(frozen=True)
class Bootstrap:
    """How often examples are drawn, and from which seed."""

    n_samples: int
    seed: int


@dataclass(frozen=True)
class _Measured:
    """All that is known about one system."""

    empty: int
    scores: list[Score]
    comparisons: list[Comparison] | None
    quality: QualityReport | None


def score_summaries(
    hyp_paths: Sequence[str],
    titles: Sequence[str],
    ref_paths: Sequence[str],
    source: str | None,
    wanted: str | None,
    fields: Fields,
    metrics: Sequence[str],
    options: Options,
    bootstrap: Bootstrap | None,
    as_json: bool,
) -> None:
    """Prints the scores of every system, and with `source` what the summaries are like."""
    hyps = [_texts(path, fields.summary, "--summary-field") for path in hyp_paths]
    refs = [_texts(path, fields.summary, "--summary-field") for path in ref_paths]
    articles = None if source is None else _texts(source, fields.article, "--article-field")
    phrases = None if wanted is None else _phrases(wanted, fields.wanted)
    named = [*zip(hyp_paths, hyps, strict=True), *zip(ref_paths, refs, strict=True)]
    counts = [(path, len(lines)) for path, lines in named]
    counts += [(path, len(lines)) for path, lines in ((source, articles), (wanted, phrases)) if path and lines]
    _check_counts(counts)
    for path, lines in zip(ref_paths, refs, strict=True):
        _refuse_empty(path, lines)

    comparisons: list[list[Comparison]] | None = None
    if bootstrap is not None:
        systems = list(zip(hyp_paths, hyps, strict=True))
        comparisons = compare(systems, refs, metrics, options, bootstrap.n_samples, bootstrap.seed)
        rows = [[cell.score for cell in row] for row in comparisons]
    else:
        rows = [score_all(lines, refs, metrics, options) for lines in hyps]
    if phrases is not None:
        rows = [[*row, copied_right(lines, phrases, options.lowercase)] for row, lines in zip(rows, hyps, strict=True)]
    measured = [
        _Measured(
            empty=sum(_is_empty(line) for line in lines),
            scores=row,
            comparisons=None if comparisons is None else comparisons[number],
            quality=None if articles is None else quality(lines, articles, refs),
        )
        for number, (lines, row) in enumerate(zip(hyps, rows, strict=True))
    ]
    described = [] if articles is None else [quality(lines, articles) for lines in refs]

    _say_what_counts_less(hyp_paths, ref_paths, refs, articles, metrics, measured)
    if as_json:
        _print_json(hyp_paths, ref_paths, measured, described)
    else:
        _print_tables(titles, ref_paths, measured, described)


def _texts(path: str, field: str, option: str) -> list[str]:
    """The lines of a text file, or one field of a file whose name ends in .jsonl or .jsonl.gz."""
    if not _is_jsonl(path):
        lines = list(stdin_lines() if path == "-" else read_lines(path))
        if not lines:
            raise DataError(f"{_name(path)}: no lines; there is nothing to score")
        refuse_json_lines(lines, _name(path), f"give a file whose name ends in .jsonl, and {option} KEY")
        return lines
    texts = []
    for where, value in _values(path, field, option):
        # A list holds the sentences one by one; newlines keep them apart for ROUGE-Lsum.
        text = "\n".join(value) if _is_list_of_strings(value) else value
        if not isinstance(text, str):
            raise DataError(f"{where}: field {field!r} is neither a string nor a list of strings")
        texts.append(text)
    return texts


def _phrases(path: str, field: str) -> list[list[str]]:
    """The lists of wanted words in a JSONL file."""
    found = []
    for where, value in _values(path, field, "--wanted-field"):
        if not _is_list_of_strings(value):
            raise DataError(f"{where}: field {field!r} is not a list of strings")
        found.append(value)
    return found


def _values(path: str, field: str, option: str) -> list[tuple[str, Any]]:
    """Where it stands and its value, for one field of every line of a JSONL file."""
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        record = parse_json(line, where)
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, found a {type(record).__name__}")
        if field not in record:
            raise DataError(
                f"{where}: no field {field!r}; it has {shortened(', '.join(record)) or 'none'}: say {option}"
            )
        found.append((where, record[field]))
    if not found:
        raise DataError(f"{path}: no lines; there is nothing to score")
    return found


def _is_jsonl(path: str) -> bool:
    return path.endswith((".jsonl", ".jsonl.gz"))


def _is_list_of_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _check_counts(counts: Sequence[tuple[str, int]]) -> None:
    first, n_lines = counts[0]
    for path, count in counts:
        if count != n_lines:
            raise DataError(
                f"different line counts: {_name(first)} has {n_lines} lines, {_name(path)} has {count}; "
                "every line of one must belong to the same line of the other"
            )


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


def _say_what_counts_less(
    hyp_paths: Sequence[str],
    ref_paths: Sequence[str],
    refs: Sequence[Sequence[str]],
    articles: Sequence[str] | None,
    metrics: Sequence[str],
    measured: Sequence[_Measured],
) -> None:
    """Notes on stderr about what a reader of the figures should know."""
    n_lines = len(refs[0])
    for path, system in zip(hyp_paths, measured, strict=True):
        if system.empty:
            console.say(
                f"note: {system.empty} of {n_lines} summaries of {_name(path)} are empty; ROUGE counts them as 0, and "
                "the quality report only in its number of words",
                stderr=True,
            )
    if articles is not None and (without := sum(_is_empty(article) for article in articles)):
        console.say(
            f"note: {without} of {n_lines} articles are empty; all in their summaries counts as new", stderr=True
        )
    dropped = sum(outside_rouge(ref) for ref in refs)
    if dropped and any(name in ROUGE_METRICS for name in metrics):
        console.say(
            f"note: {dropped} of {n_lines * len(ref_paths)} reference lines hold letters or digits other than a-z and "
            "0-9, which rouge-score drops; compare their ROUGE only with figures made the same way",
            stderr=True,
        )


def _print_json(
    hyp_paths: Sequence[str],
    ref_paths: Sequence[str],
    measured: Sequence[_Measured],
    described: Sequence[QualityReport],
) -> None:
    systems = []
    for path, system in zip(hyp_paths, measured, strict=True):
        scores = [asdict(score) for score in system.scores]
        for score, cell in zip(scores, system.comparisons or [], strict=False):  # wanted words have no comparison
            score |= {"mean": cell.mean, "interval": cell.interval, "p_value": cell.p_value}
        entry: dict[str, object] = {"system": path, "empty": system.empty, "scores": scores}
        if system.quality is not None:
            entry["quality"] = asdict(system.quality)
        systems.append(entry)
    result: dict[str, object] = {"references": list(ref_paths), "systems": systems}
    if described:
        result["quality_of_references"] = [asdict(report) for report in described]
    click.echo(json.dumps(result, indent=2, ensure_ascii=False))


def _print_tables(
    titles: Sequence[str], ref_paths: Sequence[str], measured: Sequence[_Measured], described: Sequence[QualityReport]
) -> None:
    table = []
    for column, score in enumerate(measured[0].scores):
        table.append([score.name, *(_cell(system, column) for system in measured)])
    console.table("scores", ["metric", *titles], table)
    if measured[0].comparisons is not None:
        compared = f"; * p < {SIGNIFICANT} against {titles[0]} (paired bootstrap)" if len(titles) > 1 else ""
        console.say(f"± is half the 95% confidence interval{compared}")
    if described:
        reports = [system.quality for system in measured if system.quality is not None]
        columns = [list(_quality_cells(report)) for report in (*reports, *described)]
        names = [*titles, *(("reference",) if len(ref_paths) == 1 else ref_paths)]
        rows = [[label, *(column[row][1] for column in columns)] for row, (label, _) in enumerate(columns[0])]
        console.table("quality", ["of the summaries", *names], rows)
        console.say("copied fragments: runs of words that stand in the article too (Grusky et al. 2018)")
    signatures = [[score.name, score.signature] for score in measured[0].scores]
    if described:
        signatures.append(["quality", described[0].signature])
    console.table("signatures", ["metric", "signature"], signatures)


def _cell(system: _Measured, column: int) -> str:
    value = f"{system.scores[column].value:.2f}"
    if system.comparisons is None or column >= len(system.comparisons):
        return value
    cell = system.comparisons[column]
    text = f"{value} ± {cell.interval:.2f}"
    if cell.p_value is None:
        return text
    return f"{text} (p {cell.p_value:.3f}{'*' if cell.p_value < SIGNIFICANT else ''})"


def _quality_cells(report: QualityReport) -> list[tuple[str, str]]:
    """Label and value of each row of the quality table."""

    def cell(value: float | None, unit: str = "%") -> str:
        return "-" if value is None else f"{value:.2f}{unit}"

    novel = [(f"novel {n}-grams", cell(share)) for n, share in enumerate(report.novel, start=1)]
    return [
        *novel,
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
