"""`nmtkit guide`: the pages in nmtkit/guide/, and a reference generated from the code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nmtkit.cli import completing


def _topics() -> Sequence[str]:
    from nmtkit.cli.guide import TOPICS

    return TOPICS


@click.command()
@click.argument("topic", required=False, shell_complete=completing.completer(_topics))
@click.option(
    "--save",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Save the page's recipes, and the bundled texts they use, to DIR and exit.",
)
def guide_command(**values: Any) -> None:
    """Print a page of the guide, or list the topics.

    TOPIC is one of the pages that `nmtkit guide` lists; the page `reference` contains all options and recipe keys. In a
    terminal, a long page is shown in $PAGER (default: less). When piped, the page is plain Markdown.

    \b
    Examples:
      nmtkit guide first
      nmtkit guide tour --save .
      nmtkit guide reference > reference.md
    """
    from nmtkit.cli.guide import run_guide

    run_guide(**values)
