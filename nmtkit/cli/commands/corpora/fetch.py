"""`nmtkit fetch`."""

from typing import Any

import click

from nmtkit.cli import completing
from nmtkit.cli.options import FILE


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=completing.corpora)
@click.option("--list", "lists", is_flag=True, help="List the corpora of the catalogue and stop.")
@click.option("--show", is_flag=True, help="Show what NAME is, its licence and its sources, and stop.")
@click.option("--to", metavar="DIR", type=FILE, help="Folder to write. Default: corpora/NAME.")
@click.option("--yes", "-y", is_flag=True, help="Agree to the licence and the size without being asked.")
@click.option(
    "--overwrite", is_flag=True, help="Build the corpus again if its folder exists; downloads are not repeated."
)
@click.option("--catalogue", metavar="FILE", type=FILE, help="A catalogue of your own, besides nmtkit's.")
def fetch_command(**values: Any) -> None:
    """Fetch the corpus NAME: train, valid and test files, a card, and a recipe that trains on them.

    It shows the licence and the size first, and asks before it downloads anything (--yes agrees). It checks and filters
    the text, and splits it so that validation and test share nothing with train. card.json and CARD.md say where the
    text is from, what is in it and what was left out.

    Run the same command again to continue an interrupted download. Downloads stay in nmtkit/downloads below
    $XDG_CACHE_HOME or ~/.cache; you may delete them. HTTPS_PROXY and HTTP_PROXY name proxies.

    \b
    Examples:
      nmtkit fetch --list
      nmtkit fetch tatoeba-en-fr --to data/tatoeba
      nmtkit fetch ours --catalogue ours.yaml
    """
    from nmtkit.cli.corpora.fetch import run_fetch

    run_fetch(**values)
