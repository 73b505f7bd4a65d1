"""Markdown in the terminal."""

import re
import sys

from rich.markdown import Markdown
from rich.text import Text

from nmtkit.console.tables import plain_console

_FENCED = re.compile(r"^```\w*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


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
            out.print(Markdown(part, hyperlinks=False))
