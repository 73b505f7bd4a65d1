"""`nmtkit recipe`: ls, show, check, explain, schema; and `nmtkit preprocess`."""

from pathlib import Path
from typing import Any

import click

from nmtkit.cli import completing, options
from nmtkit.cli.options import Number
from nmtkit.core.limits import MAX_THREADS


@click.group("recipe")
def recipe_command() -> None:
    """List, show, check and explain recipes.

    \b
    Example:
      nmtkit recipe show multi30k-en-de-transformer > mine.yaml
    """


@recipe_command.command("ls")
def list_recipes(**values: Any) -> None:
    """List the recipes that come with nmtkit, starting with those that a CPU can train on the bundled text.

    \b
    Example:
      nmtkit recipe ls
    """
    from nmtkit.cli.training.recipe import run_list_recipes

    run_list_recipes(**values)


@recipe_command.command("show")
@options.recipe
@click.option("--resolved", is_flag=True, help="Write out all defaults; apply `extends` and --set.")
@options.overrides
def show_recipe(**values: Any) -> None:
    """Print a recipe as a starting point for your own. Its name is left out, because a recipe is named after its file.

    \b
    Example:
      nmtkit recipe show multi30k-en-de-rnnsearch --resolved > mine.yaml
    """
    from nmtkit.cli.training.recipe import run_show_recipe

    run_show_recipe(**values)


@recipe_command.command("check")
@options.recipe
@options.overrides
def check_keys(**values: Any) -> None:
    """Check a recipe without training: its keys, its files, and the size of its model.

    The command reports all errors in keys at once, with file and line, and then lists missing files. In both cases, the
    exit code is 2.

    \b
    Example:
      nmtkit recipe check mine.yaml --set training.lr=0.001
    """
    from nmtkit.cli.training.recipe import run_check_keys

    run_check_keys(**values)


@recipe_command.command("explain")
@click.argument("key", required=False, shell_complete=completing.keys)
@click.option(
    "--recipe",
    "name",
    metavar="RECIPE",
    default="demo",
    show_default=True,
    shell_complete=completing.recipes,
    help="Also show the values in this recipe.",
)
def explain_keys(**values: Any) -> None:
    """Explain a recipe's keys: meaning, default, the value in one recipe, and other choices.

    KEY is a key (training.lr), its last part (lr), a group (search), or one kind of a group (model.transformer).

    \b
    Examples:
      nmtkit recipe explain
      nmtkit recipe explain model.kind
      nmtkit recipe explain optimizer
      nmtkit recipe explain model.attention_size --recipe multi30k-en-de-rnnsearch
      nmtkit recipe explain stages --recipe demo-news-pointer-generator
    """
    from nmtkit.cli.training.recipe import run_explain_keys

    run_explain_keys(**values)


@recipe_command.command("schema")
def print_schema(**values: Any) -> None:
    """Print the JSON schema of recipes, for editors that check YAML while you type.

    \b
    Example:
      nmtkit recipe schema > recipe.schema.json
    """
    from nmtkit.cli.training.recipe import run_print_schema

    run_print_schema(**values)


@click.command("preprocess")
@options.recipe
@options.overrides
@options.run_folder
@click.option(
    "--workers",
    type=Number(1, MAX_THREADS),
    metavar="N",
    help="Number of processes for a large corpus; does not affect the result. Default: one per core.",
)
@click.option(
    "--show-merges",
    "text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="After preprocessing, print the bpe or wordpiece merges that build each word in the text FILE.",
)
def preprocess_command(**values: Any) -> None:
    """Read and check a recipe's text, train its tokenizer, and write arrays for training into the run's folder.

    Like `nmtkit check`, the command counts problems in the text, and shows the first line with each problem and how it
    was handled: empty sides, over-long lines, unusual length ratios, duplicates, and overlap of the training set with
    the validation and test sets. Different line counts, invalid UTF-8 and damaged files are errors. In a recipe for
    summaries, so are empty references in the validation and test sets. `train` preprocesses the text itself if
    necessary.

    Text can be line pairs, JSON lines with fields of any name, or folders of CNN/DailyMail stories: see `nmtkit recipe
    explain data.train`. A large corpus is read and written in pieces, on all cores, so memory use hardly grows with its
    size. If preprocessing is interrupted, run the same command again to continue.

    \b
    Examples:
      nmtkit preprocess demo
      nmtkit preprocess mine.yaml --set tokenizer.vocab_size=4000 --run runs/small
      nmtkit preprocess large.yaml --workers 16 --set 'data.train.weights=[1, 3]'
      nmtkit preprocess mine.yaml --show-merges few-words.txt
    """
    from nmtkit.cli.training.recipe import run_preprocess

    run_preprocess(**values)
