"""One system or several side by side, as commands show their scores: the rows of tables and the records of JSON."""

from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.metrics.bleu import BleuScore
from nmtkit.metrics.metric import Comparison, Options, Resampling, Texts, metric_names, score_texts, text_metrics
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
            drawn = {} if cell.interval is None else {"mean": cell.mean, "interval": cell.interval}
            tested = {} if cell.interval is None and cell.p_value is None else {"p_value": cell.p_value}
            scores.append(asdict(cell.score) | drawn | tested)
        return {"system": self.path, **more, "scores": scores}


def _cell(comparison: Comparison, width: int) -> str:
    text = f"{comparison.score.value:.{width}f}"
    if comparison.interval is not None:
        text += f" ± {comparison.interval:.{width}f}"
    if comparison.p_value is not None:
        text += f" (p {comparison.p_value:.3f}{'*' if comparison.p_value < SIGNIFICANT else ''})"
    return text


def score_systems(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str],
    options: Options,
    draws: Resampling | None,
    sources: Sequence[str] | None,
) -> list[ScoredSystem]:
    """Scores several systems, each a file and its texts; with `draws` as `compare` does, without as `score_all`."""
    paths = [path for path, _ in systems]
    rows = score_texts([Texts(hyps, refs, sources) for _, hyps in systems], metrics, options, draws)
    return [ScoredSystem(path, title, row) for path, title, row in zip(paths, titles(paths), rows, strict=True)]


def score_table(systems: Sequence[ScoredSystem], width: int) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of scores: a row for each metric, a column for each system; `width` is of digits."""
    columns = zip(*(system.scores for system in systems), strict=True)
    rows = [[cells[0].score.name, *(_cell(cell, width) for cell in cells)] for cells in columns]
    return ["metric", *(system.title for system in systems)], rows


def bleu_table(systems: Sequence[ScoredSystem]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of what BLEU is made of: a row for each system that was scored by BLEU."""
    rows = []
    for system in systems:
        for score in (cell.score for cell in system.scores):
            if isinstance(score, BleuScore):
                lengths = [f"{score.brevity_penalty:.3f}", f"{score.ratio:.3f}", score.hyp_length, score.ref_length]
                rows.append([system.title, *(f"{one:.1f}" for one in score.precisions), *map(str, lengths)])
    return ["system", "1-gram", "2-gram", "3-gram", "4-gram", "BP", "ratio", "hyp_len", "ref_len"], rows


def score_lines(systems: Sequence[ScoredSystem], width: int) -> list[str]:
    """The one-line form of every score, those of each system under its name where there are several."""
    lines = []
    for system in systems:
        lines += ["", f"{system.title}:"] if len(systems) > 1 else [""]
        lines += [cell.line(width) for cell in system.scores]
    return lines


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
    """Makes sure that files, each a path and its lines, have equally many lines; `why` is what that is needed for."""
    (first, lines), *others = files
    for path, other in others:
        if len(other) != len(lines):
            raise DataError(
                f"different line counts: {named(first)} has {len(lines)} lines, {named(path)} has {len(other)}; "
                + (why or "every line of one must belong to the same line of the other")
            )
