"""`nmtkit fetch`."""

from typing import Any

import click

from nmtkit.cli import completing
from nmtkit.cli.options import FILE


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=completing.corpora)
@click.option("--list", "lists", is_flag=True, help="List the corpora in the catalogue and exit.")
@click.option(
    "--show", is_flag=True, help="Show the description, licence and sources of NAME, and exit."
)
@click.option("--to", metavar="DIR", type=FILE, help="Output folder. Default: corpora/NAME.")
@click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Accept the licence and the download size without being asked.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Rebuild the corpus if its folder exists; downloads are reused.",
)
@click.option("--catalogue", metavar="FILE", type=FILE, help="An additional catalogue of your own.")
def fetch_command(**values: Any) -> None:
    """Fetch the corpus NAME: training, validation and test files, a card, and a recipe that trains on them.

    The command first shows the licence and the size, and asks before it downloads anything (--yes accepts). It checks
    and filters the text, and splits it so that the validation and test sets share nothing with the training set.
    card.json and CARD.md describe where the text comes from, what it contains, and what was left out.

    Run the same command again to continue an interrupted download. Downloads are kept in nmtkit/downloads under
    $XDG_CACHE_HOME or ~/.cache; you may delete them. To use a proxy, set HTTPS_PROXY and HTTP_PROXY.

    \b
    Examples:
      nmtkit fetch --list
      nmtkit fetch tatoeba-en-fr --to data/tatoeba
      nmtkit fetch ours --catalogue ours.yaml
    """
    from nmtkit.cli.corpora.fetch import run_fetch

    run_fetch(**values)
