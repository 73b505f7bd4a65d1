"""`nmtkit plot-attention`."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import cloup

from nmtkit import console, pictures
from nmtkit.cli import inference, options
from nmtkit.cli.figures import collect_style, figure_group, save_pictures
from nmtkit.cli.reading import STDIN, stdin_lines
from nmtkit.cli.reporting import note, tell
from nmtkit.console.heatmaps import show_attention
from nmtkit.core.errors import DataError
from nmtkit.corpus.json_records import EXTRACT_HINT, refuse_json_lines
from nmtkit.experiment.loading import ModelOptions
from nmtkit.models.base import as_headed
from nmtkit.pictures.colour_tables import Entropies, head_entropies, save_entropies, save_positions, word_entropies
from nmtkit.pictures.drawing import FigureStyle
from nmtkit.pictures.pages import save_heads
from nmtkit.translation import attention_views
from nmtkit.translation.translator import Translator

Pairs = tuple[list[str], list[str | None]]
"""Sentences, and the translation of each, if one is given."""

POSITIONS = 100


def _require_fitting_options(
    output: Sequence[Path], grid: bool, layers: bool, what: str, source: str | None, chosen: bool
) -> None:
    """Refuses options that exclude or need each other; `chosen`: a layer or head is."""
    whole, positions = what == "attention", what == "positions"
    one = "grid" if grid else "layers"
    for wrong, fault in (
        (not whole and (grid or layers), f"--{one} is for --what attention only; leave one of them out"),
        (grid and layers, "--layers shows one sentence at a time: leave --grid out"),
        (grid and not output, "--grid lays out a sheet: name it with -o FILE"),
        (
            layers and not (output and all(map(_is_html, output))),
            "--layers writes a page with buttons: name it with -o FILE.html",
        ),
        (positions and source is not None, "--what positions reads no sentence: leave SOURCE out"),
        (positions and not output, "--what positions draws a picture: name it with -o FILE"),
        (chosen and (layers or not whole), "--layer and --head choose one attention; this draws all of them"),
    ):
        if wrong:
            raise click.UsageError(fault)
    for path in output:
        pictures.picture_format(path)


def _is_html(output: Path) -> bool:
    return output.suffix.lower() == ".html"


@cloup.command("plot-attention")
@click.argument("source", required=False)
@click.argument("target", required=False)
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    options.picture_file("-o", "--output", meaning="Draw into a file instead of the terminal", several=True),
    click.option(
        "--grid",
        is_flag=True,
        help="All sentences on one sheet. Default: a page each in .pdf, one below the other elsewhere.",
    ),
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
@figure_group
@cloup.option_group(
    "Search",
    inference.search_flags("beam_size", "length_penalty"),
    inference.search,
    inference.precision("fp32"),
)
@options.quiet
@collect_style
@inference.opens_model
def command(
    how: ModelOptions,
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
    instead of copying it. A long article has 60 rows: the words with the most coverage, and what lies between them,
    added up. In .html, point at a word of the summary to see where the model looked.

    `nmtkit visualize-alignment` is another name of this command.

    \b
    Examples:
      nmtkit plot-attention "The old woman sleeps."
      nmtkit plot-attention "The old woman sleeps." "La vieille femme dort." -o attention.png -o attention.html
      nmtkit plot-attention "The old woman sleeps." --no-title --size 3.3 --font-size 8 --colours Greys -o paper.pdf
      head -6 test.en | nmtkit plot-attention -m runs/mine --grid -o six.pdf
      head -1 articles.txt | nmtkit plot-attention -m runs/news -o summary.html
      paste articles.txt summaries.txt | head -3 | nmtkit plot-attention -m runs/news -o given.pdf
      nmtkit plot-attention -m runs/transformer "The old woman sleeps." --layers -o layers.html
      head -100 test.en | nmtkit plot-attention --what entropy -o entropy.svg
      nmtkit plot-attention -m runs/transformer --what positions -o positions.png
    """
    _require_fitting_options(output, grid, layers, what, source, chosen=bool(how.layer or how.head))
    translator = inference.open_model(how)
    if not output:
        _show(translator, _pairs(source, target), what, style.title)
        return
    save_pictures(output, _drawing(translator, (source, target), grid, layers, what, style), style)
    if what == "attention" and not layers and as_headed(translator.model) and any(map(_is_html, output)):
        note("this is the mean of one layer's heads; --layers shows every layer and head")


def _drawing(
    translator: Translator,
    given: tuple[str | None, str | None],
    grid: bool,
    layers: bool,
    what: str,
    style: FigureStyle,
) -> Callable[[Path], object]:
    """The function that saves the picture to a file."""
    if what == "positions":
        table, title = attention_views.positions(translator, POSITIONS)
        return partial(save_positions, table, title=title, style=style)
    pairs = _pairs(*given)
    if what == "entropy":
        parts, title = _entropies(translator, pairs)
        return partial(save_entropies, parts, title=title, style=style)
    if layers:
        return partial(
            save_heads, [one.under(style.title) for one in translator.head_pictures(*pairs)], css=style.css()
        )
    drawn = translator.pictures(*pairs)
    if style.title is not None and any(picture.left_out for picture in drawn):
        tell("the end of an article was not read; the title does not say so: " + ", ".join(_unread(drawn)))
    return partial(pictures.save, drawn, grid=grid, style=style)


def _unread(drawn: Sequence[pictures.AttentionPicture]) -> Iterator[str]:
    """Pictures whose source was not read to its end."""
    for number, picture in enumerate(drawn, start=1):
        if picture.left_out:
            yield f"{picture.left_out:,} source tokens of picture {number}"


def _show(translator: Translator, pairs: Pairs, what: str, title: str | None) -> None:
    """The same in the terminal."""
    if what == "entropy":
        parts, own = _entropies(translator, pairs)
        _print_entropies(parts, own if title is None else title)
    else:
        for picture in translator.pictures(*pairs):
            show_attention(picture.under(title))


def _pairs(source: str | None, target: str | None) -> Pairs:
    """The sentences of the command line, or of standard input."""
    if source is not None:
        return [source], [target]
    sources: list[str] = []
    targets: list[str | None] = []
    lines = list(stdin_lines())
    refuse_json_lines(lines, STDIN, EXTRACT_HINT)
    for number, line in enumerate(lines, start=1):
        first, tab, second = line.partition("\t")
        if not first.strip() or (tab and not second.strip()):
            raise DataError(f"{STDIN}, line {number}: an empty side; there is nothing to draw")
        sources.append(first)
        targets.append(second if tab else None)
    if not sources:
        raise click.UsageError("nothing to draw: standard input is empty; give SOURCE or lines on standard input")
    return sources, targets


def _entropies(translator: Translator, pairs: Pairs) -> tuple[list[Entropies], str]:
    """The entropy of each attention, and a title."""
    of_each_head = as_headed(translator.model) is not None
    parts = (
        head_entropies(translator.head_pictures(*pairs))
        if of_each_head
        else word_entropies(translator.pictures(*pairs))
    )
    count = "1 sentence" if len(pairs[0]) == 1 else f"{len(pairs[0]):,} sentences"
    return parts, f"{translator.name}: entropy of attention over {count}"


def _print_entropies(parts: Sequence[Entropies], title: str) -> None:
    heads = max(part.values.shape[1] for part in parts)
    names = [f"head {head + 1}" for head in range(heads)] if heads > 1 else ["entropy"]
    rows = []
    for part in parts:
        for layer, values in enumerate(part.values):
            cells = [f"{value:.3f}" for value in values] + [""] * (heads - len(values))
            rows.append([part.name, layer + 1, *cells, f"{part.uniform:.3f}"])
    console.table(f"{title} (nats)".strip(), ["attention", "layer", *names, "uniform"], rows)
