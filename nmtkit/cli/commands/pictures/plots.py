"""`nmtkit plot-attention` and `nmtkit plot-training`."""

from typing import Any

import click
import cloup

from nmtkit.cli import completing, options
from nmtkit.cli.commands.options import figure_options, search_options

POSITIONS = 100


@cloup.command("plot-attention")
@click.argument("source", required=False)
@click.argument("target", required=False)
@cloup.option_group(
    "Common",
    options.models,
    search_options.checkpoint,
    search_options.language,
    options.picture_file(
        "-o", "--output", meaning="Draw into FILE instead of the terminal", several=True
    ),
    click.option(
        "--subwords",
        is_flag=True,
        help="Show subwords and punctuation separately instead of merging them into words.",
    ),
    search_options.layer,
    search_options.head,
    click.option(
        "--what",
        type=click.Choice(["attention", "grid", "layers", "entropy", "positions"]),
        default="attention",
        show_default=True,
        help="What to draw. grid: the attention of all sentences on one sheet. layers: all layers and heads of a "
        "Transformer, in subwords, as an .html page. entropy: the entropy of each head over all sentences, in nats. "
        f"positions: the first {POSITIONS} position embeddings of a Transformer.",
    ),
    options.device,
)
@figure_options.figure_style
@cloup.option_group(
    "Search",
    search_options.search_flags("beam_size", "length_penalty"),
    search_options.search,
    search_options.precision("fp32"),
)
@options.encoding
@options.quiet
def plot_attention_command(**values: Any) -> None:
    """Draw a model's attention, with a row for each target word and a column for each source word.

    SOURCE is a sentence or an article. TARGET is its translation; without TARGET, the model translates. Without SOURCE,
    each line of standard input is a sentence, or "SOURCE TAB TARGET". The attention of subwords is merged into words:
    the rows of a target word are averaged, the columns of a source word are added, and punctuation is merged into the
    word before it; with --subwords, nothing is merged. Local attention is drawn with its windows. For a Transformer,
    the figure shows the mean of the heads of its alignment layer, or the layer and head that --layer and --head select.

    For a model that copies or summarizes, the figure has a column for each word of the summary (bold: copied) and a row
    for each word of the article, with its coverage beside it; a strip shows p_gen, the probability of generating a word
    instead of copying it. A long article is shown in 60 rows: the words with the most coverage have their own rows, and
    the words between two of them share a row, with their coverage added up. In .html, point at a word of the summary to
    see where the model attended.

    For a classifier, the text is drawn with the weight of each sentence beside it, and words with larger weights have
    darker backgrounds. For a language model with attention (lstmn), each row is a word of SOURCE, and the columns are
    the words before it. For a captioner, SOURCE is a file of images and TARGET the number of an image; each word is
    drawn with the regions that the model attended to.

    `nmtkit visualize-alignment` is another name for this command.

    \b
    Examples:
      nmtkit plot-attention "The old woman sleeps."
      nmtkit plot-attention "The old woman sleeps." "La vieille femme dort." -o attention.png -o attention.html
      nmtkit plot-attention "The old woman sleeps." --subwords -o stop.png
      nmtkit plot-attention "The old woman sleeps." --title "" --style size=3.3 --style colours=Greys -o a.pdf
      head -6 test.en | nmtkit plot-attention -m runs/mine --what grid -o six.pdf
      paste articles.txt summaries.txt | head -3 | nmtkit plot-attention -m runs/news -o given.pdf
      nmtkit plot-attention -m runs/transformer "The old woman sleeps." --what layers -o all.html
      head -100 test.en | nmtkit plot-attention --what entropy -o entropy.svg
      head -2 texts.txt | nmtkit plot-attention -m runs/topics -o read.png
      nmtkit plot-attention -m runs/demo-captions test.images.npz 3 -o looks.png
    """
    from nmtkit.cli.pictures.plots import run_plot_attention

    run_plot_attention(**values)


@cloup.command("plot-training")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=completing.runs)
@cloup.option_group(
    "Common",
    options.picture_file(
        "-o",
        "--output",
        meaning="Draw a figure into FILE instead of printing a table",
        several=True,
    ),
    click.option(
        "--what",
        type=click.Choice(["curves", "report"]),
        default="curves",
        show_default=True,
        help="What to draw. report: the report on a single run that `train` also writes; needs -o FILE.html.",
    ),
)
@figure_options.figure_style
def plot_training_command(**values: Any) -> None:
    """Draw training curves: loss, perplexity, a validation score and learning rate over the updates.

    RUN is the folder of a run, or its name under runs/; the run may still be training. Several runs share one figure;
    each has its own colour and is labelled with the name of its folder. The score is the recipe's training.best_metric,
    else BLEU or ROUGE-L; if there is no such score, the gradient norm is drawn. Dotted lines separate the stages of a
    run. A validation loss that rises while the training loss still falls indicates overfitting.

    \b
    Examples:
      nmtkit plot-training runs/demo
      nmtkit plot-training runs/rnnsearch runs/luong runs/transformer -o compared.svg
      nmtkit plot-training runs/demo --what report -o report.html
      nmtkit plot-training runs/mine -o mine.pdf -o mine.png --style size=6.5 --style font=serif
    """
    from nmtkit.cli.pictures.plots import run_plot_training

    run_plot_training(**values)
