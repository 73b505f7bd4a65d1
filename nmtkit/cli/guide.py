"""`nmtkit guide`: the pages of nmtkit/guide/, and a reference that is made from the code."""

import importlib
import re
import sys

import click

from nmtkit import console
from nmtkit.console.markdown import show_page
from nmtkit.errors import NmtkitError
from nmtkit.registry import near_names
from nmtkit.settings import beside_package

PAGES = (
    "first",
    "second",
    "language-pair",
    "domain",
    "summarizer",
    "attention",
    "cluster",
    "gpu",
    "coming-from",
)
"""The pages that are files, in the order of a reader's first days."""
REFERENCE = "reference"
"""The page that is made from the code, so that it is never out of date."""
TOPICS = (*PAGES, REFERENCE)

_LINK = re.compile(r"\[([^]]+)\]\(([a-z-]+)\.md(?:#[a-z-]+)?\)")


def page(topic: str) -> str:
    """A page as Markdown.

    Raises:
        NmtkitError: there is no such topic.
    """
    if topic == REFERENCE:  # loads every command and every model, which the other pages do without
        return str(importlib.import_module("nmtkit.cli.reference").reference())
    if topic not in PAGES:
        raise NmtkitError(f"no topic {topic!r} in the guide: {near_names(topic, TOPICS)}")
    return beside_package("guide", f"{topic}.md").read_text(encoding="utf-8")


@click.command()
@click.argument("topic", required=False)
def command(topic: str | None) -> None:
    """Print a page of the guide, or list the topics.

    Through a pipe the page is plain Markdown.

    \b
    Examples:
      nmtkit guide
      nmtkit guide first
      nmtkit guide second | less
      nmtkit guide reference > reference.md
    """
    if topic is None:
        titles = [page(name).partition("\n")[0].removeprefix("# ") for name in PAGES]
        rows = [*zip(PAGES, titles, strict=True), (REFERENCE, "All commands and their options, all recipe keys")]
        console.table("", ["topic", "what it is about"], rows)
        console.say("\nread one: nmtkit guide TOPIC")
    elif sys.stdout.isatty():
        show_page(_LINK.sub(r"\1 (`nmtkit guide \2`)", page(topic)))
    else:
        click.echo(page(topic), nl=False)
