"""Settings, files and tables of the scoring commands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nmtkit import metrics
from nmtkit.cli import terminal
from nmtkit.cli.options import Decorator, collect, pass_as, together
from nmtkit.cli.terminal import tables
from nmtkit.cli.text_io.reading import field_lines, require_plain_lines, stdin_lines
from nmtkit.core.errors import DataError
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.names import JSON_COLUMN_ENDS, split_reference, without_compression_end
from nmtkit.metrics.metric import text_metrics
from nmtkit.metrics.significance import SIGNIFICANCE_LEVEL
from nmtkit.metrics.systems import ScoredSystem, named


def require_one_stdin(*paths: str | Path | None) -> None:
    """Raises an error if two of the files are standard input."""
    if [*map(str, paths)].count("-") > 1:
        raise click.UsageError("standard input (-) can be read only once; use it for one file")


def names_of_metrics() -> set[str]:
    """Returns the values of `--metrics`: the names of metrics and of metric families."""
    names = set()
    for metric in text_metrics():
        names |= {metric.name, metric.family}
    return names


def passes_settings(summaries: bool) -> Decorator:
    """Passes the scoring options as `metrics`, `options` and `draws`; without a significance test, `draws` is None."""

    def draws(given: dict[str, Any]) -> metrics.Resampling | None:
        significance, paired_ar, n_samples, seed = map(
            given.pop, ("significance", "paired_ar", "n_samples", "seed")
        )
        require_one_stdin(*given["hyps"], *given["ref_paths"], given["source"])
        several = len(given["hyps"]) > 1
        if paired_ar and not several:
            raise click.UsageError("--paired-ar requires at least two HYPs")
        if paired_ar and significance is not None:
            raise click.UsageError(
                "--paired-ar replaces the bootstrap; remove --paired-bs or --no-significance"
            )
        if paired_ar:
            return metrics.Resampling("ar", n_samples or 10_000, seed)
        wanted = (summaries or several) if significance is None else significance
        if n_samples and not wanted:
            raise click.UsageError(
                "--n-samples requires a significance test; add --paired-bs, or remove --n-samples"
            )
        return metrics.Resampling("bs", n_samples or 1_000, seed) if wanted else None

    def chosen(given: dict[str, Any]) -> list[str]:
        listed = given.pop("metrics")
        return metrics.metric_names(
            name.strip() for names in listed for name in names.split(",") if name.strip()
        )

    return together(
        pass_as("metrics", chosen), collect(metrics.Options, "options"), pass_as("draws", draws)
    )


ARTICLE_FIELD, SUMMARY_FIELD, TERMS_FIELD = "article", "summary", "unseen"
"""Default fields of JSON lines, which FILE#FIELD overrides."""
JSON_REMEDY = "use a file whose name ends in .jsonl, or specify the field as FILE.jsonl#FIELD"


def read_texts(
    path: str | Path, remedy: str, field: str | None = None, joint: str = "\n"
) -> list[str]:
    """Returns the lines of a text file or of FILE#COLUMN, or of standard input for "-".

    `remedy` is the advice in the error for a text file that contains JSON lines. `field` is the default field of
    FILE.jsonl. `joint` joins the strings of a field that is a list; a newline keeps sentences apart for ROUGE-Lsum.
    """
    name = str(path)
    file, column = split_reference(name)
    if field is not None and without_compression_end(file).endswith(JSON_COLUMN_ENDS):
        lines = list(field_lines(file, column or field, joint))
    else:
        lines = list(stdin_lines() if name == "-" else read_lines(name))
        if not column:
            require_plain_lines(lines, named(name), remedy)
    if not lines:
        raise DataError(f"{named(name)} is empty, so there is nothing to score")
    return lines


def show_scores(
    systems: Sequence[ScoredSystem], draws: metrics.Resampling | None, width: int
) -> None:
    """Prints the table of scores, a legend, and the scores with their signatures, each on its own unwrapped line."""
    columns = zip(*(system.scores for system in systems), strict=True)
    rows = [[cells[0].score.name, *(_cell(cell, width) for cell in cells)] for cells in columns]
    terminal.table("scores", ["metric", *(system.title for system in systems)], rows)
    marks = (
        ["± is half the width of the 95% confidence interval"]
        if systems[0].scores[0].interval is not None
        else []
    )
    if draws is not None and len(systems) > 1:
        test = "approximate randomization" if draws.kind == "ar" else "paired bootstrap"
        marks.append(f"* p < {SIGNIFICANCE_LEVEL} against {systems[0].title} ({test})")
    if marks:
        terminal.say("; ".join(marks))
    for system in systems:
        terminal.say(f"\n{system.title}:" if len(systems) > 1 else "")
        for cell in system.scores:
            terminal.say(cell.line(width))


def print_latex(systems: Sequence[ScoredSystem], width: int) -> None:
    """Prints a LaTeX table: a row for each system, a column for each metric, * for significant differences."""
    rows = []
    for system in systems:
        cells = [system.title]
        for comparison in system.scores:
            cell = f"{comparison.score.value:.{width}f}"
            if comparison.interval is not None:
                cell += f" ± {comparison.interval:.{width}f}"
            if comparison.p_value is not None and comparison.p_value < SIGNIFICANCE_LEVEL:
                cell += "*"
            cells.append(cell)
        rows.append(cells)
    tables.print_latex(
        ["system", *(comparison.score.name for comparison in systems[0].scores)], rows
    )


def print_csv(systems: Sequence[ScoredSystem]) -> None:
    """Prints comma-separated values: a row for each system and metric, at full precision."""
    rows = []
    for system in systems:
        for comparison in system.scores:
            score = comparison.score
            tested = [
                "" if value is None else value
                for value in (comparison.interval, comparison.p_value)
            ]
            rows.append([system.title, score.name, score.value, *tested, score.signature])
    tables.print_csv(["system", "metric", "score", "interval", "p_value", "signature"], rows)


def _cell(comparison: metrics.Comparison, width: int) -> str:
    text = f"{comparison.score.value:.{width}f}"
    if comparison.interval is not None:
        text += f" ± {comparison.interval:.{width}f}"
    if comparison.p_value is not None:
        text += (
            f" (p {comparison.p_value:.3f}{'*' if comparison.p_value < SIGNIFICANCE_LEVEL else ''})"
        )
    return text


def print_json(references: Sequence[str], **more: object) -> None:
    """Prints one JSON object on standard output."""
    click.echo(json.dumps({"references": list(references), **more}, indent=2, ensure_ascii=False))
