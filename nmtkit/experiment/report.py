"""Writes a page about a run: curves, samples over time, data, machine and cost."""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.formats import parse_json
from nmtkit.experiment.costs import WHAT_COUNTS, operations_a_token
from nmtkit.experiment.workloads import workload_of_run
from nmtkit.plots.curves import Points, round_ticks
from nmtkit.plots.pages import render, require_html, write_picture
from nmtkit.runs.metrics_log import MetricsLog, training_curves
from nmtkit.runs.run import Run
from nmtkit.training.events import Step

PUBLISHED = {
    "wmt14-en-de-transformer-base": 3.3e18,
    "wmt14-en-de-transformer-big": 2.3e19,
    "wmt14-en-de-gnmt": 2.3e19,
}
"""Training cost by recipe as printed in Vaswani et al. 2017, table 2."""
_POINTS = 400
"""Maximum number of points per curve."""
_HOVERED = 100
"""A curve with more points than this has no tooltips."""
_SHOWN = 8
"""Maximum number of validations whose samples are shown."""


def save_report(run: Run, path: Path, count: bool = True) -> None:
    """Writes the page as one .html file; with `count`, a small update is run to count its operations."""
    require_html(path)
    try:
        write_picture(render("plots/templates/report.html", _facts(run, count)).encode(), path)
    except NmtkitError:
        raise
    except Exception as fault:  # files may have been edited by hand
        what = (
            f"the logs are damaged, or one of your own components fails on an example ({fault!r})"
        )
        raise DataError(f"{run.folder.path}: {what}; use a copy of the run") from fault


def _facts(run: Run, count: bool) -> dict[str, Any]:
    folder, curves, log = run.folder, training_curves(run, ""), MetricsLog(run.folder)
    named = {"ended": folder.result, "tested": folder.test_scores, "data": folder.report}
    read = {
        key: parse_json(path.read_bytes(), str(path)) if path.is_file() else {}
        for key, path in named.items()
    }
    tokens, samples = Counter[str](), log.samples()
    for stage, event in log.read():
        tokens[stage] += event.tokens if isinstance(event, Step) else 0
    # an earlier stage may have logged other examples
    examples = [[text[:2] for text in texts] for _, texts in samples]
    samples = [one for one, own in zip(samples, examples, strict=True) if own == examples[-1]]
    shown = (
        {round(part * (len(samples) - 1) / (_SHOWN - 1)) for part in range(_SHOWN)}
        if samples
        else ()
    )
    charts = [
        _chart(
            "loss (nats per token)",
            from_zero=False,
            training=curves.loss,
            validation=curves.valid_loss,
        ),
        _chart(curves.metric, validation=curves.valid_score),
        _chart("learning rate", training=curves.lr),
        _chart("gradient norm", training=curves.grad_norm),
    ]
    return read | {
        "title": f"Training of {folder.path.resolve().name}",
        "recipe": run.recipe,
        "charts": [one for one in charts if one["lines"]],
        "stages": curves.stages,
        "samples": [samples[number] for number in sorted(shown)],
        "tokens": tokens.total(),
        "operations": _operations(run, tokens) if count else "not counted for such a short run",
        "published": PUBLISHED.get(run.recipe.name),
        "counted": WHAT_COUNTS,
    }


def _chart(title: str, from_zero: bool = True, **lines: Points) -> dict[str, Any]:
    """Returns curves with round ticks on both axes, each thinned to at most `_POINTS` points.

    The value axis begins at zero, or lower for negative values. Without `from_zero`, it begins near
    the lowest value.
    """
    thinned = {}
    for name, points in lines.items():
        finite = [point for point in points if math.isfinite(point[1])]
        if finite:
            thinned[name] = finite[:: -(-len(finite) // _POINTS)]
    values = [value for points in thinned.values() for _, value in points] or [0.0]
    low = min(0.0, *values) if from_zero else min(values)
    last = max([1, *(points[-1][0] for points in thinned.values())])
    updates = [int(tick) for tick in round_ticks(0, last, whole=True) if tick <= last]
    return {
        "title": title,
        "lines": thinned,
        "y_ticks": round_ticks(low, max(values)),
        "x_ticks": updates,
        "last": last,
        "hover": {name for name, points in thinned.items() if len(points) <= _HOVERED},
    }


def _operations(run: Run, tokens: Mapping[str, float]) -> str:
    """Returns the FLOPs of training; `tokens` has the number of tokens by stage ("" without stages)."""
    begun = [
        (number, tokens[stage.name])
        for number, stage in enumerate(run.stages())
        if tokens[stage.name]
    ]
    cpu = torch.device("cpu")
    try:
        of_stages = [
            count * operations_a_token(workload_of_run(run, cpu, number)) for number, count in begun
        ]
        return f"{sum(of_stages):.2e}"
    except (NmtkitError, OSError) as fault:
        return f"not counted: {fault}"
