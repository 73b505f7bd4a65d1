"""The scores of one or several systems, as commands show them: tables, lines and JSON."""

from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.metrics.metric import Comparison, Options, Resampling, Texts, metric_names, score_texts, text_metrics


@dataclass(frozen=True)
class ScoredSystem:
    """One system: the file of its output, its name in tables and figures, and its score by each metric."""

    path: str
    title: str
    scores: list[Comparison]

    def record(self, **more: object) -> dict[str, Any]:
        """The record for JSON; `more` comes before the scores."""
        scores = []
        for cell in self.scores:
            drawn = {} if cell.interval is None else {"mean": cell.mean, "interval": cell.interval}
            tested = {} if cell.interval is None and cell.p_value is None else {"p_value": cell.p_value}
            scores.append(asdict(cell.score) | drawn | tested)
        return {"system": self.path, **more, "scores": scores}


def score_systems(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str],
    options: Options,
    resampling: Resampling | None,
    sources: Sequence[str] | None,
) -> list[ScoredSystem]:
    """Scores several systems, each a file and its texts."""
    paths = [path for path, _ in systems]
    rows = score_texts([Texts(hyps, refs, sources) for _, hyps in systems], metrics, options, resampling)
    return [ScoredSystem(path, title, row) for path, title, row in zip(paths, titles(paths), rows, strict=True)]


def notes(metrics: Sequence[str], refs: Sequence[Sequence[str]]) -> list[str]:
    """The warnings of these metrics about the references, each once."""
    known = text_metrics()
    texts = dict.fromkeys(known[name].note(refs) for name in metric_names(metrics))
    return [text for text in texts if text]


def titles(paths: Sequence[str]) -> Sequence[str]:
    """File names without their folders, if they differ."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(set(paths)) else paths


def named(path: str) -> str:
    """The name of a file in messages."""
    return "standard input" if path == "-" else path


def require_equal_counts(files: Sequence[tuple[str, Sized]], why: str = "") -> None:
    """Makes sure that files, each a path and its lines, have equally many lines; `why` is the reason, for the error."""
    (first, lines), *others = files
    for path, other in others:
        if len(other) != len(lines):
            raise DataError(
                f"different line counts: {named(first)} has {len(lines)} lines, {named(path)} has {len(other)}; "
                + (why or "every line of one must belong to the same line of the other")
            )
