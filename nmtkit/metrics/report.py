"""What commands show of scores: the rows of tables and the records of JSON, for one system or several side by side."""

from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmtkit.errors import DataError
from nmtkit.metrics.metric import Bootstrap, Comparison, Options, Score, metric_names, score_all, text_metrics
from nmtkit.metrics.significance import SIGNIFICANT, compare


@dataclass(frozen=True)
class ScoredSystem:
    """One system: the file of its output, and what is known about it.

    Attributes:
        path: of the file.
        title: what tables and figures call it.
        scores: one a metric.
        comparisons: of the first scores, as many as were drawn anew.
    """

    path: str
    title: str
    scores: list[Score]
    comparisons: list[Comparison]

    def cells(self) -> list[str]:
        """Its column of the table of scores."""
        plain = [f"{score.value:.2f}" for score in self.scores[len(self.comparisons) :]]
        return [*map(_cell, self.comparisons), *plain]

    def record(self, **more: object) -> dict[str, Any]:
        """What JSON says of it; `more` stands before the scores."""
        scores = [asdict(score) for score in self.scores]
        for score, cell in zip(scores, self.comparisons, strict=False):
            score |= {"mean": cell.mean, "interval": cell.interval, "p_value": cell.p_value}
        return {"system": self.path, **more, "scores": scores}


def _cell(comparison: Comparison) -> str:
    text = f"{comparison.score.value:.2f} ± {comparison.interval:.2f}"
    if comparison.p_value is None:
        return text
    return f"{text} (p {comparison.p_value:.3f}{'*' if comparison.p_value < SIGNIFICANT else ''})"


def score_systems(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str],
    options: Options,
    draws: Bootstrap | None,
    sources: Sequence[str] | None,
) -> list[ScoredSystem]:
    """Scores several systems, with what a bootstrap against the first of them says if `draws` are given.

    Args:
        systems: file and texts of each.
        refs: `refs[r][i]` is reference `r` of example `i`.
        metrics: names as in `metric_names`.
        options: how texts are compared.
        draws: None for plain scores.
        sources: one text per example, for metrics that need them.

    Raises:
        NmtkitError: as `score_all` and `compare`.
    """
    paths = [path for path, _ in systems]
    if draws is None:
        rows = [score_all(lines, refs, metrics, options, sources) for _, lines in systems]
        return [ScoredSystem(path, title, row, []) for path, title, row in zip(paths, titles(paths), rows, strict=True)]
    compared = compare(systems, refs, metrics, options, draws.n_samples, draws.seed, sources)
    return [
        ScoredSystem(path, title, [cell.score for cell in row], row)
        for path, title, row in zip(paths, titles(paths), compared, strict=True)
    ]


def score_table(systems: Sequence[ScoredSystem]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of scores: a row for each metric, a column for each system."""
    columns = zip(*(system.cells() for system in systems), strict=True)
    rows = [[score.name, *cells] for score, cells in zip(systems[0].scores, columns, strict=True)]
    return ["metric", *(system.title for system in systems)], rows


def signatures(scores: Sequence[Score]) -> list[list[str]]:
    """The rows of the table of signatures."""
    return [[score.name, score.signature] for score in scores]


def notes(metrics: Sequence[str], refs: Sequence[Sequence[str]]) -> list[str]:
    """What readers of these metrics' figures should know of the references, each thing once."""
    known = text_metrics()
    found = dict.fromkeys(known[name].note(refs) for name in metric_names(metrics))
    return [note for note in found if note]


def titles(paths: Sequence[str]) -> Sequence[str]:
    """File names without their folders where that tells the systems apart: whole paths make wide tables."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(set(paths)) else paths


def named(path: str) -> str:
    """What messages call a file."""
    return "standard input" if path == "-" else path


def require_equal_counts(files: Sequence[tuple[str, Sized]], why: str = "") -> None:
    """Makes sure that files have equally many lines.

    Args:
        files: path and lines of each.
        why: what that is needed for.

    Raises:
        DataError: they have not.
    """
    (first, lines), *others = files
    for path, other in others:
        if len(other) != len(lines):
            raise DataError(
                f"different line counts: {named(first)} has {len(lines)} lines, {named(path)} has {len(other)}; "
                + (why or "every line of one must belong to the same line of the other")
            )
