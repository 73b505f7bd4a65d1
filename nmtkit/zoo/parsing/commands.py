"""`nmtkit parse` and `nmtkit linearize`."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.inference.translate import decoding_options, scores_option
from nmtkit.cli.options import FILE, NEW_FILE


@cloup.command("parse")
@decoding_options(
    [scores_option, options.as_json("Print a JSON object for each line.")],
    cloup.option_group(
        "Trees",
        click.option(
            "--draw", is_flag=True, help="Print each tree as a drawing with one line per word."
        ),
        options.picture_file("--plot", meaning="Also draw the trees and save the picture to FILE"),
    ),
)
def parse_command(**values: Any) -> None:
    """Parse FILEs, or standard input: one Penn Treebank tree per input line, in order.

    Each input line is one sentence, with words and punctuation separated by white space: "the cat sleeps ." The
    parts of speech are those of the training trees: by default, XX for everything but punctuation. The search
    considers only well-formed trees that cover all words. For an empty line, the output line is empty.

    \b
    Examples:
      nmtkit parse sentences.txt -o trees.mrg
      echo "the old woman sees the car ." | nmtkit parse --draw --plot tree.svg
      nmtkit parse --n-best 3 sentences.txt
    """
    from nmtkit.zoo.parsing.parse import run_parse

    run_parse(**values)


@cloup.command("linearize")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "--source",
    required=True,
    type=NEW_FILE,
    metavar="FILE",
    help="Output file for the sentences, one per line.",
)
@click.option(
    "--target",
    required=True,
    type=NEW_FILE,
    metavar="FILE",
    help="Output file for the linear trees, one per line.",
)
@click.option(
    "--tags",
    is_flag=True,
    help="Keep all part-of-speech tags. Default: XX replaces all tags except those of punctuation.",
)
@options.encoding
@options.quiet
def linearize_command(**values: Any) -> None:
    """Convert Penn Treebank trees (.mrg) to sentences and linear trees, the two files for training a parser.

    Traces, function tags (the SBJ of NP-SBJ) and an outer root are removed. Words stay as they are in the treebank.

    \b
    Examples:
      nmtkit linearize train.mrg --source train.words --target train.trees
    """
    from nmtkit.zoo.parsing.parse import run_linearize

    run_linearize(**values)
