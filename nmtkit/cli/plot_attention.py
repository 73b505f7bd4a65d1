"""`nmtkit plot-attention`."""

import warnings
from pathlib import Path

import click

from nmtkit import console, heatmap
from nmtkit.cli import options
from nmtkit.cli.opening import open_translator
from nmtkit.cli.reading import stdin_lines
from nmtkit.errors import DataError


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
@options.beam_size
@options.length_penalty
def command(
    model: str | None,
    weights: str,
    device: str,
    source: str | None,
    target: str | None,
    output: Path | None,
    beam_size: int | None,
    length_penalty: str | None,
) -> None:
    """Draw what a model looks at while it writes: a row for each target word, a column for each source word.

    SOURCE is a sentence; with TARGET the given translation is drawn, without it the model's own. Without SOURCE,
    standard input is read: a sentence on each line, or "SOURCE TAB TARGET". Subwords are merged to words: a target
    word's row is the mean of its pieces' rows, a source word's column the sum of its pieces' columns.

    \b
    Examples:
      nmtkit plot-attention "The old woman sleeps."
      nmtkit plot-attention "The old woman sleeps." "La vieille femme dort." -o attention.png
      head -5 test.en | nmtkit plot-attention -m runs/mine -o five.html
    """
    if output is not None:
        heatmap.check_path(output)
    translator = open_translator(model, device, weights, None, options.search_settings(beam_size, length_penalty))
    if source is not None:
        pairs = [(source, target)]
    else:
        pairs = []
        for number, line in enumerate(stdin_lines(), start=1):
            first, tab, second = line.partition("\t")
            if not first.strip() or (tab and not second.strip()):
                raise DataError(f"standard input, line {number}: an empty side; there is nothing to draw")
            pairs.append((first, second if tab else None))
    if not pairs:
        raise click.UsageError("nothing to draw: standard input is empty; give SOURCE or lines on standard input")
    pictures = []
    for text, given in pairs:
        pictures += translator.pictures([text], None if given is None else [given])
    if output is not None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", heatmap.PictureWarning)
            heatmap.save(pictures, output)
        for warning in found:
            console.say(str(warning.message), stderr=True)
        console.say(f"wrote {output}", stderr=True)
        return
    for picture in pictures:
        console.heatmap(picture.src_words, picture.tgt_words, picture.weights, picture.heading)
