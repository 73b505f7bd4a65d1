"""One system or several side by side, as commands show their scores: the rows of tables and the records of JSON."""

from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmtkit.errors import DataError
from nmtkit.metrics.metric import Bootstrap, Comparison, Options, Texts, metric_names, score_texts, text_metrics
from nmtkit.metrics.significance import SIGNIFICANT


@dataclass(frozen=True)
class ScoredSystem:
    """One system: the file of its output, its name in tables and figures, and its scores, one a metric."""

    path: str
    title: str
    scores: list[Comparison]

    def record(self, **more: object) -> dict[str, Any]:
        """What JSON says of it; `more` stands before the scores."""
        scores = []
        for cell in self.scores:
            drawn = {"mean": cell.mean, "interval": cell.interval, "p_value": cell.p_value}
            scores.append(asdict(cell.score) | (drawn if cell.interval is not None else {}))
        return {"system": self.path, **more, "scores": scores}


def _cell(comparison: Comparison) -> str:
    text = f"{comparison.score.value:.2f}"
    if comparison.interval is not None:
        text += f" ± {comparison.interval:.2f}"
    if comparison.p_value is not None:
        text += f" (p {comparison.p_value:.3f}{'*' if comparison.p_value < SIGNIFICANT else ''})"
    return text


def score_systems(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str],
    options: Options,
    draws: Bootstrap | None,
    sources: Sequence[str] | None,
) -> list[ScoredSystem]:
    """Scores several systems, each a file and its texts; with `draws` as `compare` does, without as `score_all`."""
    paths = [path for path, _ in systems]
    rows = score_texts([Texts(hyps, refs, sources) for _, hyps in systems], metrics, options, draws)
    return [ScoredSystem(path, title, row) for path, title, row in zip(paths, titles(paths), rows, strict=True)]


def score_table(systems: Sequence[ScoredSystem]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of scores: a row for each metric, a column for each system."""
    columns = zip(*(system.scores for system in systems), strict=True)
    rows = [[cells[0].score.name, *map(_cell, cells)] for cells in columns]
    return ["metric", *(system.title for system in systems)], rows


def signatures(system: ScoredSystem) -> list[list[str]]:
    """The rows of the table of signatures."""
    return [[cell.score.name, cell.score.signature] for cell in system.scores]


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
    """Makes sure that files, each a path and its lines, have equally many lines; `why` is what that is needed for.

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
