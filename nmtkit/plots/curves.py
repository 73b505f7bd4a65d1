"""Learning curves, and scores of systems by sentence length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.core.errors import NmtkitError
from nmtkit.plots import drawing
from nmtkit.plots.drawing import DEFAULT_STYLE, FigureStyle
from nmtkit.plots.fonts import printable

MARKERS = "os^Dv<>p"
DASHES = ("-", "--", ":", "-.")
MAX_MARKERS = 40
ROOM_FOR_TICKS = 2.0
"""Minimum length in inches of a logarithmic axis with more than one tick per decade."""
WIDTH, HEIGHT = 11.0, 7.0
"""Size in inches of a figure of training runs; legend lines add to its height."""
LEGEND_COLUMNS = 4
Points = Sequence[tuple[int, float]]
"""(update, value) pairs in order of updates."""
Curves = Sequence[tuple[Points, Points]]
"""Points of the training batches and of the validation set, for each run."""


@dataclass(frozen=True)
class Training:
    """A run's logged values for training batches and the validation set."""

    name: str
    loss: Points = ()
    """Training loss in nats per token, without label smoothing, like `valid_loss`."""
    perplexity: Points = ()
    lr: Points = ()
    grad_norm: Points = ()
    """Gradient norm before clipping."""
    valid_loss: Points = ()
    valid_perplexity: Points = ()
    valid_score: Points = ()
    metric: str = "BLEU"
    """Name of the validation score."""
    stages: Sequence[tuple[str, int]] = ()
    """Name and last update so far of each training stage; empty without stages."""


def save_training(
    runs: Sequence[Training], path: str | Path, style: FigureStyle = DEFAULT_STYLE
) -> None:
    """Draws the loss, perplexity, score (or gradient norm) and learning rate of runs over updates.

    Each run has a colour. Thin lines show training batches, thick lines the validation set, and
    dotted lines stage boundaries. There is no title unless the `style` has one.
    """
    from matplotlib.lines import Line2D

    if not any(points for run in runs for points in (run.loss, run.valid_loss)):
        raise NmtkitError(
            f"{path}: the runs have not logged anything yet, so there is nothing to draw"
        )
    names = [printable(run.name) for run in runs]
    shown = printable(style.title or "")
    with drawing.settings("".join((*names, shown)), path, style.font):
        colours = style.series(len(runs))
        by = style.factors(WIDTH, HEIGHT, 10.0)
        wider = by.text / by.length  # growth of text relative to lengths
        columns = max(1, round(LEGEND_COLUMNS / wider))
        lines = -(-(len(names) + 2) // columns)
        titled = 0.35 if shown else 0.0
        height = HEIGHT + (0.28 * lines + titled) * wider
        figure, by = drawing.new_figure(WIDTH, height, style)
        below = 1 - (0.35 + 0.28 * lines + titled) * wider / height
        entries = [
            *(Line2D([], [], color=colour, linewidth=2.2 * by.text) for colour in colours),
            Line2D([], [], color=drawing.FAINT, linewidth=1.0 * by.text, alpha=0.7),
            Line2D(
                [],
                [],
                color=drawing.FAINT,
                linewidth=2.2 * by.text,
                marker="o",
                markersize=4 * by.text,
            ),
        ]
        figure.legend(
            entries,
            [*names, "training batches", "validation set"],
            loc="lower left",
            bbox_to_anchor=(0.06, below + 0.025),
            ncols=columns,
            frameon=False,
            fontsize=10 * by.text,
            borderaxespad=0,
        )
        figure.text(
            0.06,
            1 - 0.2 * wider / height,
            shown,
            fontsize=12 * by.text,
            color=drawing.INK,
            va="top",
        )
        edges = {
            "left": 0.07 * wider,
            "right": 0.985,
            "bottom": 0.075 * wider,
            "top": below - 0.02 * wider,
        }
        grid = figure.add_gridspec(2, 2, **edges, wspace=0.17 * wider, hspace=0.32 * wider)
        axes: drawing.Axes | None = None
        for number, (title, series) in enumerate(_panels(runs)):
            axes = figure.add_subplot(grid[divmod(number, 2)], sharex=axes)
            _draw_panel(axes, title, series, colours, by.text)
            _stages(axes, runs, colours, named=number == 0, text=by.text)
            if number > 1:
                axes.set_xlabel("updates", fontsize=10 * by.text, color=drawing.FAINT)
        drawing.save_figure(figure, path, shown or f"Training of {', '.join(names)}", style)


def round_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Returns four to seven round tick values that cover `low` to `high`."""
    from matplotlib.ticker import MaxNLocator

    if high <= low:
        high = low + (1.0 if low == 0 else abs(low) / 10)
    locator = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=whole)
    return [float(tick) for tick in locator.tick_values(low, high)]


def _panels(runs: Sequence[Training]) -> list[tuple[str, Curves]]:
    """Returns each panel's title and, per run, its training and validation points."""
    metrics = dict.fromkeys(run.metric for run in runs if run.valid_score)
    score: tuple[str, Curves] = (
        ", ".join(metrics) or "score",
        [((), run.valid_score) for run in runs],
    )
    if not metrics and any(run.grad_norm for run in runs):  # for example in pretraining
        score = "gradient norm", [(run.grad_norm, ()) for run in runs]
    return [
        ("loss (nats per token)", [(run.loss, run.valid_loss) for run in runs]),
        ("perplexity", [(run.perplexity, run.valid_perplexity) for run in runs]),
        score,
        ("learning rate", [(run.lr, ()) for run in runs]),
    ]


def _draw_panel(
    axes: drawing.Axes, title: str, series: Curves, colours: Sequence[str], text: float
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    drawing.plain_axes(axes, text)
    axes.set_title(title, fontsize=11 * text, color=drawing.INK, loc="left", pad=6 * text)
    for colour, (train, valid) in zip(colours, series, strict=True):
        # Points are marked only if there are few of them; many markers would overlap.
        for points, width, alpha, most in (
            (train, 1.0 * text, 0.7, 1),
            (valid, 2.2 * text, 1.0, MAX_MARKERS),
        ):
            style: dict[str, Any] = {"color": colour, "linewidth": width, "alpha": alpha}
            style |= {"marker": "o" if len(points) <= most else "", "markersize": 1.8 * width}
            axes.plot(*zip(*points, strict=True), **style)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    if title == "perplexity":
        axes.set_yscale("log")
        crowded = axes.get_window_extent().height < ROOM_FOR_TICKS * text * axes.figure.dpi
        axes.yaxis.set_major_locator(
            LogLocator(numticks=12) if crowded else LogLocator(subs=(1, 2, 5))
        )
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif title != "loss (nats per token)":
        axes.set_ylim(bottom=0)
    if not any(points for pair in series for points in pair):
        size, place = 10 * text, axes.transAxes
        axes.text(
            0.5,
            0.5,
            "nothing logged",
            fontsize=size,
            transform=place,
            ha="center",
            color=drawing.FAINT,
        )


def _stages(
    axes: drawing.Axes, runs: Sequence[Training], colours: Sequence[str], named: bool, text: float
) -> None:
    """Draws the boundaries of training stages with their names at the top, one line per run."""
    staged = [(run, colour) for run, colour in zip(runs, colours, strict=True) if run.stages]
    for row, (run, colour) in enumerate(staged):
        begin = 0
        for number, (name, end) in enumerate(run.stages):
            if number:
                axes.axvline(
                    begin, color=colour, linewidth=1.4 * text, linestyle=":", alpha=0.7, zorder=1.5
                )
            if named:
                axes.text(
                    (begin + end) / 2,
                    0.98 - 0.06 * row,
                    printable(name),
                    transform=axes.get_xaxis_transform(),
                    ha="center",
                    va="top",
                    fontsize=8 * text,
                    color=colour if len(runs) > 1 else drawing.FAINT,
                )
            begin = end


def line_style(number: int) -> dict[str, Any]:
    """Returns the colour, marker and dashes of a curve; the first 256 curves have different combinations."""
    round_of_colours, colour = divmod(number, len(drawing.SERIES))
    round_of_dashes, dashes = divmod(round_of_colours, len(DASHES))
    return {
        "color": drawing.SERIES[colour],
        "marker": MARKERS[(colour + round_of_colours + round_of_dashes) % len(MARKERS)],
        "linestyle": DASHES[dashes],
    }


def save_by_length(
    ranges: Sequence[str],
    counts: Sequence[str],
    systems: Sequence[tuple[str, Sequence[float]]],
    path: str | Path,
    few: Sequence[bool] = (),
) -> None:
    """Draws the BLEU of systems by sentence length, as in Bahdanau et al. 2015, figure 2.

    `ranges` are labels such as "1-10", shown with their numbers of sentences, `counts`. Ranges marked
    as `few` have too few sentences for a reliable score, and get hollow points.
    """
    names = [printable(name) for name, _ in systems]
    few = few or [False] * len(ranges)
    width = max(7.0, 1.1 * len(ranges) + 1.2)
    longest = max(map(len, names))
    columns = max(1, min(len(names), int(width * 0.87 / (0.085 * longest + 0.6))))
    legend_rows = -(-len(names) // columns)
    below = 0.85 + (0.25 if any(few) else 0.0)
    with drawing.settings("".join(names), path):
        height = below + 3.75 + 0.24 * legend_rows
        figure, _ = drawing.new_figure(width, height, DEFAULT_STYLE)
        axes = figure.add_axes((0.1, below / height, 0.87, 3.4 / height))
        drawing.plain_axes(axes)
        axes.grid(False, axis="x")
        positions = range(len(ranges))
        for number, (_, scores) in enumerate(systems):
            style = line_style(number)
            axes.plot(positions, scores, markersize=6, linewidth=2.0, **style)
            hollow = [position for position in positions if few[position]]
            axes.plot(
                hollow,
                [scores[position] for position in hollow],
                color=style["color"],
                marker=style["marker"],
                linestyle="",
                markersize=6,
                markerfacecolor="white",
            )
        labels = [f"{label}\nn = {count}" for label, count in zip(ranges, counts, strict=True)]
        axes.set_xticks(positions, labels)
        axes.set(xlim=(-0.3, len(ranges) - 0.7), ylim=(0, None))
        axes.set_xlabel("words in the source sentence", fontsize=10, color=drawing.FAINT)
        axes.set_ylabel("BLEU", fontsize=10, color=drawing.FAINT)
        if any(few):
            note = "Hollow points: too few sentences for a reliable score."
            figure.text(0.1, 0.08 / height, note, fontsize=9, color=drawing.FAINT)
        above: dict[str, Any] = {
            "loc": "lower left",
            "bbox_to_anchor": (0, 1.02),
            "borderaxespad": 0,
        }
        curves = axes.lines[
            ::2
        ]  # every other line consists of the hollow points of the line before it
        axes.legend(
            curves, names, frameon=False, fontsize=10, ncols=columns, handlelength=3, **above
        )
        drawing.save_figure(figure, path, "BLEU by source length")
