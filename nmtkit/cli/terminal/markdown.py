"""Markdown in the terminal."""

import re
import shutil
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_INDENT = "    "
_SHELL_PART = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
"""Matches a word of a command, including its quoted parts."""


def rendered_page(text: str, width: int | None = None) -> str:
    """Renders a page with escape codes for a terminal of this width; None means the width of the current terminal.

    Long lines of code are broken in such a way that they can still be copied and run.
    """
    width = width or shutil.get_terminal_size().columns
    buffer = StringIO()
    out = Console(
        file=buffer, width=width, force_terminal=True, highlight=False, markup=False, emoji=False
    )
    position = 0
    for fence in _FENCED.finditer(text):
        out.print(Markdown(text[position : fence.start()], hyperlinks=False))
        out.print()
        for line in fence[2].splitlines():
            for part in fold_code(line, language=fence[1], width=width - len(_INDENT)):
                out.print(Text(_INDENT + part, style="cyan"), soft_wrap=True)
        out.print()
        position = fence.end()
    out.print(Markdown(text[position:], hyperlinks=False))
    return buffer.getvalue()


def fold_code(line: str, language: str, width: int) -> list[str]:
    """Breaks a long line of code where its language allows it; a line without such a place stays whole.

    Commands (no language) are broken with a backslash, YAML and Python after a comma within brackets.
    """
    if cell_len(line) <= width:
        return [line]
    return _fold_command(line, width) if language == "" else _fold_in_brackets(line, width)


def _fold_command(line: str, width: int) -> list[str]:
    command, hash_mark, comment = line.partition("  # ")
    if hash_mark:  # a comment cannot follow the backslash of a continued line
        return [
            *fold_code(f"# {comment}", "comment", width),
            *fold_code(command.rstrip(), "", width),
        ]
    lines = [""]
    for word in _SHELL_PART.findall(line):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if cell_len(longer) + len(" \\") > width and lines[-1].strip():
            lines[-1] += " \\"
            longer = f"  {word}"
            lines.append("")
        lines[-1] = longer
    return lines


def _fold_in_brackets(line: str, width: int) -> list[str]:
    """Breaks a line after commas within brackets, but not in strings and comments."""
    breaks = []
    depth = 0
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#":
            break
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth > 0 and line[place + 1 : place + 2] == " ":
            breaks.append(place + 1)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    lines = []
    start = 0
    prefix = ""
    while cell_len(prefix + line[start:]) > width:
        fitting = [
            place
            for place in breaks
            if place > start and cell_len(prefix + line[start:place]) <= width
        ]
        if not fitting:
            break
        lines.append(prefix + line[start : fitting[-1]])
        start = fitting[-1] + 1
        prefix = indent
    return [*lines, prefix + line[start:]]
