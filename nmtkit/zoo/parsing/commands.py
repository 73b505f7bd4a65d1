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
        click.option("--draw", is_flag=True, help="Draw the trees, a line for each word."),
        options.picture_file("--plot", meaning="Draw the trees into a file as well"),
    ),
)
def parse_command(**values: Any) -> None:
    """Parse FILEs, or standard input, a sentence a line: one tree in Penn form for each line, in order.

    Words are separated by white space, punctuation too: "the cat sleeps ." The parts of speech are what the model was
    trained on: XX, except for punctuation. Only well-formed trees over all words are searched. An empty line gives an
    empty line.

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
@click.option("--source", required=True, type=NEW_FILE, metavar="FILE", help="Write the sentences here, a line each.")
@click.option("--target", required=True, type=NEW_FILE, metavar="FILE", help="Write the linear trees here.")
@click.option("--tags", is_flag=True, help="Keep all parts of speech. Default: write XX for all but punctuation.")
@options.encoding
@options.quiet
def linearize_command(**values: Any) -> None:
    """Turn trees in Penn form (.mrg) into sentences and linear trees, the two files that a parser is trained on.

    Traces, functions of labels (NP-SBJ) and an outer root are left out. Words stay as the treebank has them.

    \b
    Examples:
      nmtkit linearize train.mrg --source train.words --target train.trees
    """
    from nmtkit.zoo.parsing.parse import run_linearize

    run_linearize(**values)
