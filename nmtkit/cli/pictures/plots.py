"""`nmtkit plot-attention` and `nmtkit plot-training`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from nmtkit import plots
from nmtkit.cli import terminal
from nmtkit.cli.commands.pictures.plots import POSITIONS
from nmtkit.cli.inference import model_options
from nmtkit.cli.options import pass_as
from nmtkit.cli.pictures.figures import save_pictures
from nmtkit.cli.terminal.heatmaps import show_attention, show_document
from nmtkit.cli.terminal.reporting import note, tell
from nmtkit.cli.text_io.reading import stdin_sentences
from nmtkit.core.errors import DataError
from nmtkit.data.text.features import FeaturesFile
from nmtkit.data.text.files.names import STDIN
from nmtkit.experiment.report import save_report
from nmtkit.inference import attention_views
from nmtkit.inference.loading.opening import as_translator, load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.metrics.metric import text_metrics
from nmtkit.metrics.systems import titles
from nmtkit.models.abilities import as_multi_head
from nmtkit.plots.attention import AttentionPicture, SentencePicture
from nmtkit.plots.colour_tables import (
    Entropies,
    head_entropies,
    save_entropies,
    save_positions,
    word_entropies,
)
from nmtkit.plots.curves import Points, Training, save_training
from nmtkit.plots.documents import save_documents
from nmtkit.plots.drawing import FigureStyle
from nmtkit.plots.pages import save_heads
from nmtkit.runs.metrics_log import training_curves
from nmtkit.runs.run import find_training

Pairs = tuple[list[str], list[str | None]]
"""Sentences and, for each, its translation or None."""

Picture = TypeVar("Picture", bound=SentencePicture)
HEAT_MAPS = ("attention", "grid")
"""Values of --what that draw a heat map for each sentence."""
WIDE_SUMMARY_WORDS = 40
"""Number of words in a summary above which a note recommends an HTML page instead of a figure."""

_makes_style = pass_as(
    "style", lambda given: FigureStyle(title=given.pop("title"), **given.pop("style"))
)
"""Passes --title and --style to a command as one `FigureStyle`."""


@_makes_style
@model_options.opens_model
def run_plot_attention(
    how: DecodingOptions,
    source: str | None,
    target: str | None,
    output: tuple[Path, ...],
    subwords: bool,
    what: str,
    style: FigureStyle,
) -> None:
    """Carries out `nmtkit plot-attention`."""
    if subwords and what not in HEAT_MAPS:
        raise click.UsageError(f"--subwords does not apply to --what {what}; remove --subwords")
    _require_fitting_options(output, what, source, bool(how.layer or how.head), style)
    system, save = (
        load_from_options(replace(how, engine="nmtkit"), notify=note),
        partial(plots.save, grid=what == "grid"),
    )
    reads_source = system.tokenizers.labels is None and system.reads == "text"
    if subwords and not reads_source:
        raise click.UsageError(
            "--subwords requires a model that reads and generates text; remove --subwords"
        )
    if system.tokenizers.labels is not None:
        if target or what != "attention" or how.layer or how.head:
            raise click.UsageError(
                "TARGET, --layer, --head and --what do not apply to a model that predicts labels; remove them"
            )
        documents = attention_views.document_pictures(system, _read_pairs(source, None)[0])
        _draw(documents, output, style, show_document, save_documents)
        return
    if system.reads == "features":
        if source is None or not output or what != "attention":
            raise click.UsageError(
                "for a captioning model, give an image file as SOURCE, optionally the number of an image as TARGET, "
                "and -o FILE; remove --what"
            )
        file = FeaturesFile(source)
        why = "".join(fault.message for fault in file.take_faults())
        if not (target := target or "1").isdecimal() or not 1 <= int(target) <= file.n_lines:
            raise DataError(
                why
                or f"{source} has {file.n_lines:,} images; choose one by its number, from 1 to {file.n_lines}, instead "
                f"of {target!r}"
            )
        rows = file.read(int(target) - 1)
        caption = as_translator(system).search([rows], need_attention=True)[0][0]
        picture_class = attention_views.EXAMPLE_PICTURES.get(system.reads)
        picture = picture_class.from_answer(system, rows, caption)
        save_pictures(output, lambda path: picture.save(path, style))
        return
    if system.reads == "prompt" and what in (*HEAT_MAPS, "layers"):
        if target or what == "layers":
            raise click.UsageError(
                "TARGET and --what layers require a model that reads a source; remove them"
            )
        looks = attention_views.look_back_pictures(system, _read_pairs(source, None)[0])
        _draw(looks, output, style, show_attention, save)
        return
    translator = as_translator(system)
    pairs = ([], []) if what == "positions" else _read_pairs(source, target)
    if what in HEAT_MAPS:
        _draw(translator.pictures(*pairs, subwords=subwords), output, style, show_attention, save)
    elif output:
        save_pictures(output, _picture_saver(translator, pairs, what, style))
    else:
        _print_entropies(*_entropies(translator, pairs, style.title))


def _draw(
    drawn: list[Picture],
    output: Sequence[Path],
    style: FigureStyle,
    show: Callable[[Picture], None],
    save: Callable[..., None],
) -> None:
    """Draws figures of one kind into files or in the terminal."""
    _warn_unread(drawn)
    if output:
        save_pictures(output, partial(save, drawn, style=style))
        _note_wide_summaries(drawn, output)
        return
    for picture in drawn:
        show(picture.with_title(style.title))


def _note_wide_summaries(drawn: Sequence[Picture], output: Sequence[Path]) -> None:
    """Recommends an HTML page for a long summary, because a figure needs a column for each word."""
    pictures = [
        picture for picture in drawn if isinstance(picture, AttentionPicture) and picture.is_summary
    ]
    longest = max((len(picture.tgt_words) for picture in pictures), default=0)
    has_page = any(path.suffix.lower() == ".html" for path in output)
    if longest > WIDE_SUMMARY_WORDS and not has_page:
        note(
            f"the figure has {longest} columns and may be hard to read; use -o FILE.html to show the article and the "
            "summary as coloured text instead"
        )


def _require_fitting_options(
    output: Sequence[Path], what: str, source: str | None, chosen: bool, style: FigureStyle
) -> None:
    """Rejects conflicting and missing options; `chosen` says whether --layer or --head is given."""
    has_style = replace(style, title=None) != FigureStyle()
    only_html = output and all(path.suffix.lower() == ".html" for path in output)
    for wrong, fault in (
        (
            what == "layers" and not only_html,
            "--what layers writes an interactive page; add -o FILE.html",
        ),
        (
            what in ("grid", "positions") and not output,
            f"--what {what} draws a figure; add -o FILE",
        ),
        (
            what == "positions" and source is not None,
            "--what positions does not read a sentence; remove SOURCE",
        ),
        (
            chosen and what not in HEAT_MAPS,
            f"--what {what} draws all layers and heads; remove --layer and --head",
        ),
        (has_style and not output, "--style applies only to figures in files; add -o FILE"),
    ):
        if wrong:
            raise click.UsageError(fault)
    for path in output:
        plots.picture_format(path)


def _picture_saver(
    translator: Translator, pairs: Pairs, what: str, style: FigureStyle
) -> Callable[[Path], object]:
    if what == "positions":
        table, title = attention_views.positions(translator, POSITIONS)
        return partial(save_positions, table, title=title, style=style)
    if what == "entropy":
        parts, title = _entropies(translator, pairs)
        return partial(save_entropies, parts, title=title, style=style)
    pages = [
        page.with_title(style.title) for page in _warn_unread(translator.head_pictures(*pairs))
    ]
    return partial(save_heads, pages, css=style.css())


def _warn_unread(drawn: list[Picture]) -> list[Picture]:
    """Warns about source tokens that were not read, because custom titles do not mention them; returns the figures."""
    for number, picture in enumerate(drawn, start=1):
        if picture.left_out:
            tell(
                f"figure {number}: the source is too long, so its last {picture.left_out:,} tokens were not read"
            )
    return drawn


def _read_pairs(source: str | None, target: str | None) -> Pairs:
    if source is not None:
        return [source], [target]
    sources: list[str] = []
    targets: list[str | None] = []
    for number, line in enumerate(stdin_sentences("draw"), start=1):
        first, tab, second = line.partition("\t")
        if not first.strip() or (tab and not second.strip()):
            raise DataError(
                f"{STDIN}, line {number}: one side is empty, so there is nothing to draw; remove the line"
            )
        sources.append(first)
        targets.append(second if tab else None)
    return sources, targets


def _entropies(
    translator: Translator, pairs: Pairs, title: str | None = None
) -> tuple[list[Entropies], str]:
    """Returns the entropies of each kind of attention, and the title; None selects a default title."""
    if as_multi_head(translator.outline) is not None:
        parts = head_entropies(_warn_unread(translator.head_pictures(*pairs)))
    else:
        parts = word_entropies(_warn_unread(translator.pictures(*pairs)))
    count = "1 sentence" if len(pairs[0]) == 1 else f"{len(pairs[0]):,} sentences"
    return (
        parts,
        f"{translator.name}: entropy of attention over {count}" if title is None else title,
    )


def _print_entropies(parts: Sequence[Entropies], title: str) -> None:
    heads = max(part.values.shape[1] for part in parts)
    names = [f"head {head + 1}" for head in range(heads)] if heads > 1 else ["entropy"]
    rows = []
    for part in parts:
        for layer, values in enumerate(part.values):
            cells = [f"{value:.3f}" for value in values] + [""] * (heads - len(values))
            rows.append([part.name, layer + 1, *cells, f"{part.uniform:.3f}"])
    terminal.table(f"{title} (nats)".strip(), ["attention", "layer", *names, "uniform"], rows)


@_makes_style
def run_plot_training(
    runs: tuple[str, ...], output: tuple[Path, ...], what: str, style: FigureStyle
) -> None:
    """Carries out `nmtkit plot-training`."""
    for path in output:
        plots.picture_format(path)
    if (what == "report" or not output) and style != FigureStyle():
        raise click.UsageError(
            "--title and --style apply only to figures of curves; add -o FILE, and remove --what report"
        )
    if what == "report":
        if len(runs) != 1 or not output:
            raise click.UsageError(
                "--what report describes a single run; give one RUN, and a file for the page with -o FILE.html"
            )
        save_pictures(output, partial(save_report, find_training(runs[0])))
        return
    trainings = [
        training_curves(find_training(run), name)
        for name, run in zip(titles(runs), runs, strict=True)
    ]
    if output:
        save_pictures(output, partial(save_training, trainings, style=style))
    else:
        _print_trainings(trainings)


def _print_trainings(trainings: Sequence[Training]) -> None:
    metrics = {training.metric for training in trainings}
    falling = {metric.title for metric in text_metrics() if not metric.higher_is_better}
    rows = [
        (
            training.name,
            f"{max([0, *(points[-1][0] for points in (training.loss, training.valid_loss) if points)]):,}",
            f"{training.loss[-1][1]:.3f}" if training.loss else "-",
            _best(training.valid_loss, min, ".3f"),
            _best(training.valid_perplexity, min, ".2f"),
            _best(training.valid_score, min if training.metric in falling else max, ".2f")
            + (f" {training.metric}" if len(metrics) > 1 else ""),
        )
        for training in trainings
    ]
    score = f"best {min(metrics)}" if len(metrics) == 1 else "best score"
    terminal.table(
        "", ["run", "updates", "loss", "best valid. loss", "best perplexity", score], rows
    )


def _best(points: Points, choose: Callable[..., tuple[int, float]], digits: str) -> str:
    known = [point for point in points if not math.isnan(point[1])]
    if not known:
        return "-"
    update, value = choose(known, key=lambda point: point[1])
    return f"{value:{digits}} at {update:,}"
