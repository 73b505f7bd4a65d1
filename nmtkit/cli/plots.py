"""`nmtkit plot-attention` and `nmtkit plot-training`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
import cloup

from nmtkit import console, pictures
from nmtkit.cli import completing, inference, options
from nmtkit.cli.figures import figure_style, save_pictures
from nmtkit.cli.reading import STDIN, stdin_sentences
from nmtkit.cli.reporting import note, tell
from nmtkit.console.heatmaps import show_attention, show_document
from nmtkit.core.errors import DataError
from nmtkit.corpus.features import FeaturesFile
from nmtkit.experiment.loading import DecodingOptions, as_translator, load_from_options
from nmtkit.experiment.report import save_report
from nmtkit.metrics.metric import text_metrics
from nmtkit.metrics.systems import titles
from nmtkit.models.base import as_headed
from nmtkit.pictures.attention import SentencePicture
from nmtkit.pictures.captions import draw_caption
from nmtkit.pictures.colour_tables import Entropies, head_entropies, save_entropies, save_positions, word_entropies
from nmtkit.pictures.curves import Points, Training, save_training
from nmtkit.pictures.documents import save_documents
from nmtkit.pictures.drawing import FigureStyle
from nmtkit.pictures.pages import save_heads
from nmtkit.runs.metrics_log import training_curves
from nmtkit.runs.saved import find_training
from nmtkit.translation import attention_views
from nmtkit.translation.translator import Translator

Pairs = tuple[list[str], list[str | None]]
"""Sentences, and the translation of each, if one is given."""

Picture = TypeVar("Picture", bound=SentencePicture)

POSITIONS = 100


@cloup.command("plot-attention")
@click.argument("source", required=False)
@click.argument("target", required=False)
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    inference.language,
    options.picture_file("-o", "--output", meaning="Draw into a file instead of the terminal", several=True),
    click.option("--grid", is_flag=True, help="All sentences on one sheet."),
    click.option("--layers", is_flag=True, help="Transformer: all layers and heads, by subwords, as an .html page."),
    inference.layer,
    inference.head,
    click.option(
        "--what",
        type=click.Choice(["attention", "positions", "entropy"]),
        default="attention",
        show_default=True,
        help=f"positions: the first {POSITIONS} position vectors of a Transformer. entropy: of each head's attention, "
        "in nats, over all sentences.",
    ),
    options.device,
)
@figure_style
@cloup.option_group(
    "Search", inference.search_flags("beam_size", "length_penalty"), inference.search, inference.precision("fp32")
)
@options.quiet
@inference.opens_model
def plot_attention_command(
    how: DecodingOptions,
    source: str | None,
    target: str | None,
    output: tuple[Path, ...],
    grid: bool,
    layers: bool,
    what: str,
    style: FigureStyle,
) -> None:
    """Draw a model's attention: a row for each target word, a column for each source word.

    SOURCE is a sentence or an article. TARGET is its translation; without TARGET the model translates. Without SOURCE,
    each line of standard input is a sentence, or "SOURCE TAB TARGET". The attention of subwords is merged to words:
    rows of a target word are averaged, columns of a source word added. Local attention is drawn with its windows. A
    Transformer shows the mean of the heads of its alignment layer, or what --layer and --head choose.

    A model that copies or summarizes has a column for each word of the summary (bold: copied) and a row for each word
    of the article, with the word's coverage beside it; a strip shows p_gen, the probability of generating a word
    instead of copying it. A long article is shown in 60 rows: the words with the most coverage, and one row for the
    words between two of them, with their coverage added up. In .html, point at a word of the summary to see where the
    model looked.

    Of a classifier the text is drawn: the weight of each sentence beside it, and that of each word as its shade. Of a
    language model that looks back (lstmn) each row is a word of SOURCE, and the columns are the words before it.
    Of a captioner SOURCE is a file of pictures, and TARGET the number of one of them: by each word is where it looks.

    `nmtkit visualize-alignment` is another name of this command.

    \b
    Examples:
      nmtkit plot-attention "The old woman sleeps."
      nmtkit plot-attention "The old woman sleeps." "La vieille femme dort." -o attention.png -o attention.html
      nmtkit plot-attention "The old woman sleeps." --title "" --size 3.3 --font-size 8 --colours Greys -o paper.pdf
      head -6 test.en | nmtkit plot-attention -m runs/mine --grid -o six.pdf
      paste articles.txt summaries.txt | head -3 | nmtkit plot-attention -m runs/news -o given.pdf
      nmtkit plot-attention -m runs/transformer "The old woman sleeps." --layers -o layers.html
      head -100 test.en | nmtkit plot-attention --what entropy -o entropy.svg
      head -2 texts.txt | nmtkit plot-attention -m runs/topics -o read.png
      nmtkit plot-attention -m runs/demo-captions test.images.npz 3 -o looks.png
    """
    _require_fitting_options(output, grid, layers, what, source, bool(how.layer or how.head), style)
    system, save = load_from_options(how, notify=note), partial(pictures.save, grid=grid)
    if system.tokenizers.labels is not None:
        if target or grid or layers or what != "attention" or how.layer or how.head:
            raise click.UsageError(
                "TARGET, --grid, --layers, --layer, --head and --what are for models that write, and this one gives "
                "labels"
            )
        documents = attention_views.document_pictures(system, _read_pairs(source, None)[0])
        _draw(documents, output, style, show_document, save_documents)
        return
    if system.reads == "features":
        if source is None or not output or grid or layers or what != "attention":
            raise click.UsageError("a captioner is drawn by PICTURES NUMBER -o FILE, without --grid, --layers, --what")
        file = FeaturesFile(source)
        why = "".join(fault.message for fault in file.new_faults())
        if not (target := target or "1").isdecimal() or not 1 <= int(target) <= file.count:
            raise DataError(why or f"{source} has {file.count:,} pictures: {target!r} is the number of none of them")
        rows = file.read(int(target) - 1)
        caption = as_translator(system).search([rows], need_attention=True)[0][0]
        drawn = attention_views.caption_view(system, rows, caption)
        save_pictures(output, lambda path: draw_caption(*drawn, path, style))
        return
    if system.reads == "prompt" and what == "attention":
        if target or layers:
            raise click.UsageError("TARGET and --layers are for models that read a source, and this one reads none")
        looks = attention_views.look_back_pictures(system, _read_pairs(source, None)[0])
        _draw(looks, output, style, show_attention, save)
        return
    translator = as_translator(system)
    pairs = ([], []) if what == "positions" else _read_pairs(source, target)
    if what == "attention" and not layers:
        _draw(translator.pictures(*pairs), output, style, show_attention, save)
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
    """Draws pictures of one kind into files, or in the terminal."""
    _warn_unread(drawn)
    if output:
        save_pictures(output, partial(save, drawn, style=style))
        return
    for picture in drawn:
        show(picture.with_title(style.title))


def _require_fitting_options(
    output: Sequence[Path], grid: bool, layers: bool, what: str, source: str | None, chosen: bool, style: FigureStyle
) -> None:
    """Refuses options that exclude or need each other; `chosen`: whether --layer or --head is given."""
    whole, positions, plain = what == "attention", what == "positions", replace(style, title=None) == FigureStyle()
    only_html = output and all(path.suffix.lower() == ".html" for path in output)
    for wrong, fault in (
        ((grid or layers) and not whole, "--grid and --layers are for --what attention only; leave one of them out"),
        (grid and layers, "--layers shows one sentence at a time: leave --grid out"),
        (grid and not output, "--grid lays out a sheet: name it with -o FILE"),
        (layers and not only_html, "--layers writes a page with buttons: name it with -o FILE.html"),
        (positions and source is not None, "--what positions reads no sentence: leave SOURCE out"),
        (positions and not output, "--what positions draws a picture: name it with -o FILE"),
        (chosen and (layers or not whole), "--layer and --head choose one attention; this draws all of them"),
        (not output and not plain, "--size, --font and --colours are of a figure: give -o FILE"),
    ):
        if wrong:
            raise click.UsageError(fault)
    for path in output:
        pictures.picture_format(path)


def _picture_saver(translator: Translator, pairs: Pairs, what: str, style: FigureStyle) -> Callable[[Path], object]:
    if what == "positions":
        table, title = attention_views.positions(translator, POSITIONS)
        return partial(save_positions, table, title=title, style=style)
    if what == "entropy":
        parts, title = _entropies(translator, pairs)
        return partial(save_entropies, parts, title=title, style=style)
    pages = [page.with_title(style.title) for page in _warn_unread(translator.head_pictures(*pairs))]
    return partial(save_heads, pages, css=style.css())


def _warn_unread(drawn: list[Picture]) -> list[Picture]:
    """The same pictures; tells what of a source was not read, which a heading does not where a title is given."""
    for number, picture in enumerate(drawn, start=1):
        if picture.left_out:
            tell(f"picture {number}: the last {picture.left_out:,} source tokens were not read")
    return drawn


def _read_pairs(source: str | None, target: str | None) -> Pairs:
    if source is not None:
        return [source], [target]
    sources: list[str] = []
    targets: list[str | None] = []
    for number, line in enumerate(stdin_sentences("draw"), start=1):
        first, tab, second = line.partition("\t")
        if not first.strip() or (tab and not second.strip()):
            raise DataError(f"{STDIN}, line {number}: an empty side; there is nothing to draw")
        sources.append(first)
        targets.append(second if tab else None)
    return sources, targets


def _entropies(translator: Translator, pairs: Pairs, title: str | None = None) -> tuple[list[Entropies], str]:
    """The entropy of each attention, and a title if none is given."""
    if as_headed(translator.model) is not None:
        parts = head_entropies(_warn_unread(translator.head_pictures(*pairs)))
    else:
        parts = word_entropies(_warn_unread(translator.pictures(*pairs)))
    count = "1 sentence" if len(pairs[0]) == 1 else f"{len(pairs[0]):,} sentences"
    return parts, f"{translator.name}: entropy of attention over {count}" if title is None else title


def _print_entropies(parts: Sequence[Entropies], title: str) -> None:
    heads = max(part.values.shape[1] for part in parts)
    names = [f"head {head + 1}" for head in range(heads)] if heads > 1 else ["entropy"]
    rows = []
    for part in parts:
        for layer, values in enumerate(part.values):
            cells = [f"{value:.3f}" for value in values] + [""] * (heads - len(values))
            rows.append([part.name, layer + 1, *cells, f"{part.uniform:.3f}"])
    console.table(f"{title} (nats)".strip(), ["attention", "layer", *names, "uniform"], rows)


@cloup.command("plot-training")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=completing.runs)
@cloup.option_group(
    "Common",
    options.picture_file("-o", "--output", meaning="Draw a figure instead of printing a table", several=True),
    click.option("--report", is_flag=True, help="The page about one run that `train` draws at its end: -o FILE.html."),
)
@figure_style
def plot_training_command(runs: tuple[str, ...], output: tuple[Path, ...], report: bool, style: FigureStyle) -> None:
    """Draw training curves: loss, perplexity, a validation score and learning rate over the updates.

    RUN is the folder of a run, or its name under runs/; it may still be training. Several runs share one figure; each
    has its own colour and the name of its folder. The score is the one by which the recipe chooses weights
    (training.best_metric), else BLEU or ROUGE-L; where there is none, the norm of the gradient takes its place. Dotted
    lines separate stages of training. A validation loss that rises while the training loss still falls shows
    overfitting.

    \b
    Examples:
      nmtkit plot-training runs/demo
      nmtkit plot-training runs/rnnsearch runs/luong runs/transformer -o compared.svg
      nmtkit plot-training runs/demo --report -o report.html
      nmtkit plot-training runs/mine -o mine.pdf -o mine.png --size 6.5 --font-size 8 --font serif --colours tab10
    """
    for path in output:
        pictures.picture_format(path)
    if (report or not output) and style != FigureStyle():
        raise click.UsageError("--title, --size, --font and --colours are of a figure: give -o FILE, without --report")
    if report:
        if len(runs) != 1 or not output:
            raise click.UsageError("--report is a page about one run: name the run, and the page with -o FILE.html")
        save_pictures(output, partial(save_report, find_training(runs[0])))
        return
    trainings = [training_curves(find_training(run), name) for name, run in zip(titles(runs), runs, strict=True)]
    if output:
        save_pictures(output, partial(save_training, trainings, style=style))
    else:
        _print_trainings(trainings)


def _print_trainings(trainings: Sequence[Training]) -> None:
    metrics = {training.metric for training in trainings}
    falling = {metric.title for metric in text_metrics().values() if not metric.higher_is_better}
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
    console.table("", ["run", "updates", "loss", "best valid. loss", "best perplexity", score], rows)


def _best(points: Points, choose: Callable[..., tuple[int, float]], digits: str) -> str:
    known = [point for point in points if not math.isnan(point[1])]
    if not known:
        return "-"
    update, value = choose(known, key=lambda point: point[1])
    return f"{value:{digits}} at {update:,}"
