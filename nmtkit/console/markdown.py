"""Markdown in the terminal."""

import re
import sys

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.text import Text

from nmtkit.console.tables import plain_console

_FENCED = re.compile(r"^```\w*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield from ([] if self.tag == "h1" else [Text("")])
        yield self.text


class _Page(Markdown):
    elements = {**Markdown.elements, "heading_open": _LeftHeading}  # noqa: RUF012


def show_page(text: str) -> None:
    """Prints a page for a reader at a terminal; a line of code is indented and never broken, so it can be copied."""
    out = plain_console(sys.stdout)
    for number, part in enumerate(_FENCED.split(text)):
        if number % 2:
            out.print()
            for line in part.splitlines():
                out.print(Text(f"    {line}", style="cyan"), soft_wrap=True)
            out.print()
        else:
            out.print(_Page(part, hyperlinks=False))
