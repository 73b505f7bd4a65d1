"""`nmtkit plot-attention`."""

from collections.abc import Sequence
from pathlib import Path

import click

from nmtkit import console, pictures
from nmtkit.cli import options
from nmtkit.cli.opening import open_translator, show_heads
from nmtkit.cli.reading import stdin_texts
from nmtkit.cli.reporting import save_picture
from nmtkit.console.shading import show_attention
from nmtkit.data.reading import WRITE_OUT
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models.base import headed
from nmtkit.pictures.colour_tables import Entropies, of_heads, of_words, save_entropies, save_positions
from nmtkit.pictures.pages import save_layered
from nmtkit.translation.translator import Translator

Pairs = list[tuple[str, str | None]]

POSITIONS = 100


@click.command("plot-attention")
@options.model
@options.weights
@options.device
@click.argument("source", required=False)
@click.argument("target", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="FILE.png, .svg, .pdf or .html; without it the heat-map is drawn in the terminal.",
)
@click.option(
    "--grid",
    is_flag=True,
    help="All sentences on one sheet (also of .pdf) in even rows and columns, with cells of one size. Default: a page "
    "each in .pdf, line after line in .png and .svg, one below the other in .html.",
)
@click.option(
    "--layers",
    is_flag=True,
    help="Every layer and head of a Transformer, piece by piece, as a page to walk through with mouse or keyboard; "
    "needs -o FILE.html.",
)
@click.option(
    "--what",
    type=click.Choice(["attention", "positions", "entropy"]),
    default="attention",
    show_default=True,
    help=f"positions: the position vectors of a Transformer, the first {POSITIONS}; entropy: how spread out attention "
    "is over pieces (of a model with one attention, over words), for each head in nats, over all sentences given.",
)
@options.layer
@options.head
@options.beam_size
@options.length_penalty
def command(
    model: str | None,
    weights: str,
    device: str,
    source: str | None,
    target: str | None,
    output: Path | None,
    grid: bool,
    layers: bool,
    what: str,
    layer: int | None,
    head: int | None,
    beam_size: int | None,
    length_penalty: str | None,
) -> None:
    """Draw what a model looks at while it writes: a row for each target word, a column for each source word.

    SOURCE is a sentence or an article; with TARGET the given translation is drawn, without it the model's own. Without
    SOURCE, standard input is read: a sentence on each line, or "SOURCE TAB TARGET". Subwords are merged to words: a
    target word's row is the mean of its pieces' rows, a source word's column the sum of its pieces' columns. Of a model
    with local attention the windows and their centres are drawn too. A Transformer shows the mean of the heads of its
    alignment layer, or those that --layer and --head choose; --layers shows all of them.

    A model that copies or summarizes is drawn otherwise: a column for each word of the summary with the words that were
    copied in bold, p_gen (the probability of generating a word and not copying it) as a strip under the heat-map, and a
    row for each word of the article with its coverage (the sum of its row) beside it. Of a long article the 60 rows are
    the words with the most coverage and the stretches between them, added up. In .html the article is a text coloured
    by coverage, and pointing at a word of the summary shows where the model looked. The terminal shows that text too,
    then a line for each word of the summary with the words that the model looked at most. A word of several pieces has
    the mean of the p_gen of those with letters or digits, and was copied if all of them were.

    \b
    Examples:
      nmtkit plot-attention "The old woman sleeps."
      nmtkit plot-attention "The old woman sleeps." "La vieille femme dort." -o attention.png
      head -6 test.en | nmtkit plot-attention -m runs/mine --grid -o six.pdf
      head -1 articles.txt | nmtkit plot-attention -m runs/news -o summary.html
      paste articles.txt summaries.txt | head -3 | nmtkit plot-attention -m runs/news -o given.pdf
      nmtkit plot-attention -m runs/transformer "The old woman sleeps." --layers -o layers.html
      head -100 test.en | nmtkit plot-attention --what entropy -o entropy.svg
      nmtkit plot-attention -m runs/transformer --what positions -o positions.png
    """
    _check_options(source, output, grid, layers, what)
    if (layer or head) and (layers or what != "attention"):
        raise click.UsageError("--layer and --head choose one attention to draw; this draws all of them")
    if output is not None:
        pictures.picture_format(output)
    translator = open_translator(model, device, weights, None, options.search_settings(beam_size, length_penalty))
    show_heads(translator, layer, head)
    if what == "positions":
        assert output is not None
        save_picture(output, lambda: draw_positions(translator, output))
        return
    pairs = _pairs(source, target)
    if what == "entropy":
        _entropy(translator, pairs, output)
    elif layers:
        assert output is not None
        layered = _layered(translator, pairs)
        save_picture(output, lambda: save_layered(layered, output))
    elif output is not None:
        drawn = _drawn(translator, pairs)
        save_picture(output, lambda: pictures.save(drawn, output, grid))
        if headed(translator.model) and _is_html(output):
            console.say("this is the mean of one layer's heads; --layers shows every layer and head", stderr=True)
    else:
        for picture in _drawn(translator, pairs):
            show_attention(picture)


def _check_options(source: str | None, output: Path | None, grid: bool, layers: bool, what: str) -> None:
    """Refuses what does not go together, before a model is opened.

    Raises:
        click.UsageError: two options exclude each other, or one needs another.
    """
    if what != "attention" and (grid or layers):
        raise click.UsageError(f"--{'grid' if grid else 'layers'} is for --what attention only; leave one of them out")
    if grid and layers:
        raise click.UsageError("--layers shows one sentence at a time: leave --grid out")
    if grid and output is None:
        raise click.UsageError("--grid lays out a sheet: name it with -o FILE")
    if layers and (output is None or not _is_html(output)):
        raise click.UsageError("--layers writes a page with buttons: name it with -o FILE.html")
    if what == "positions" and source is not None:
        raise click.UsageError("--what positions reads no sentence: leave SOURCE out")
    if what == "positions" and output is None:
        raise click.UsageError("--what positions draws a picture: name it with -o FILE")


def _is_html(output: Path) -> bool:
    return output.suffix.lower() == ".html"


def _pairs(source: str | None, target: str | None) -> Pairs:
    """The sentences of the command line, or of standard input, each with its translation if one is given."""
    if source is not None:
        return [(source, target)]
    pairs: Pairs = []
    for number, line in enumerate(stdin_texts(WRITE_OUT), start=1):
        first, tab, second = line.partition("\t")
        if not first.strip() or (tab and not second.strip()):
            raise DataError(f"standard input, line {number}: an empty side; there is nothing to draw")
        pairs.append((first, second if tab else None))
    if not pairs:
        raise click.UsageError("nothing to draw: standard input is empty; give SOURCE or lines on standard input")
    return pairs


def _drawn(translator: Translator, pairs: Pairs) -> list[pictures.AttentionPicture]:
    found = []
    for text, given in pairs:
        found += translator.pictures([text], None if given is None else [given])
    return found


def _layered(translator: Translator, pairs: Pairs) -> list[pictures.LayeredPicture]:
    found = []
    for text, given in pairs:
        found += translator.layered([text], None if given is None else [given])
    return found


def _entropy(translator: Translator, pairs: Pairs, output: Path | None) -> None:
    heads = headed(translator.model) is not None
    parts = of_heads(_layered(translator, pairs)) if heads else of_words(_drawn(translator, pairs))
    count = "1 sentence" if len(pairs) == 1 else f"{len(pairs):,} sentences"
    title = f"{translator.name}: entropy of attention over {count}"
    if output is not None:
        save_picture(output, lambda: save_entropies(parts, output, title))
    else:
        _print_entropies(parts, title)


def _print_entropies(parts: Sequence[Entropies], title: str) -> None:
    heads = max(part.values.shape[1] for part in parts)
    names = [f"head {head + 1}" for head in range(heads)] if heads > 1 else ["entropy"]
    rows = []
    for part in parts:
        for layer, values in enumerate(part.values):
            cells = [f"{value:.3f}" for value in values] + [""] * (heads - len(values))
            rows.append([part.name, layer + 1, *cells, f"{part.uniform:.3f}"])
    console.table(f"{title} (nats)", ["attention", "layer", *names, "uniform"], rows)


def draw_positions(translator: Translator, output: Path) -> None:
    """Draws the position vectors of a Transformer, fixed or learned.

    Raises:
        NmtkitError: the model has none, or the file cannot be written.
    """
    model = headed(translator.model)
    if model is None:
        raise NmtkitError(
            f"the model {translator.name!r} ({translator.model.config.kind}) has no position vectors to draw; "
            "name a transformer with -m RUN"
        )
    kind, vectors = model.positions(POSITIONS)
    save_positions(vectors.detach().float().cpu().numpy(), output, f"{translator.name}: {kind} positions")
