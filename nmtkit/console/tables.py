"""Lines, tables and bars in the terminal.

Results go to stdout and everything about them to stderr, so that a command's output can be piped.
"""

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""How wide a table is outside a terminal, where its columns can be so narrow."""
SHORT_CELL = 24
"""How wide a cell may be that is never broken."""

Stream = Literal["stdout", "stderr"]


def plain_console(file: TextIO) -> Console:
    """A console that reads nothing in a text as markup."""
    return Console(file=file, highlight=False, markup=False, emoji=False)


_COPIES: list[Callable[[str], object]] = []


@contextmanager
def tee(take: Callable[[str], object]) -> Iterator[None]:
    """Inside, every line that is written here is handed on as well; of what moves at the foot of a terminal some."""
    _COPIES.append(take)
    try:
        yield
    finally:
        _COPIES.remove(take)


def copy(text: str) -> None:
    """Hands a line to those who take copies."""
    for take in _COPIES:
        take(text)


def say(text: str, stderr: bool = False) -> None:
    """Writes a line of plain text: nothing is cut or read as markup, and only messages in a terminal are wrapped."""
    if stderr and sys.stderr.isatty():
        text = wrapped(text, plain_console(sys.stderr).width)
    write_line(text, sys.stderr if stderr else sys.stdout)


def wrapped(text: str, width: int) -> str:
    """The text with its lines broken between words; what follows a break is indented as its line is, and by two more.

    A command stays in one line, so that it can be copied, and so does a word that is longer than the `width`.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        words = line.lstrip()
        indent = line[: len(line) - len(words)]
        if cell_len(line) <= width or words.startswith("nmtkit "):
            lines.append(line)
            continue
        lines += textwrap.wrap(
            words,
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def write_line(text: str, file: TextIO) -> None:
    """Writes a line to a file, at once."""
    file.write(text + "\n")
    file.flush()
    copy(text)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], stream: Stream = "stdout") -> None:
    """Prints a table; a column that holds only numbers is set to the right.

    Long cells are wrapped between words, so that the table fits into the terminal, or else into COLUMNS, or 100
    columns. Where that is not enough, words are folded in a terminal; elsewhere they stay whole in a wider table.
    """
    file = sys.stdout if stream == "stdout" else sys.stderr
    console = plain_console(file)
    cells = [[str(cell) for cell in row] for row in rows]
    grid = Table(
        title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        grid.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    _fit(grid, [list(columns), *cells], console)
    if not console.is_terminal:
        console.width = max(console.width, Console(width=1_000_000).measure(grid).maximum, cell_len(title))
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():
        file.write(line.rstrip() + "\n")
        copy(Text.from_ansi(line).plain.rstrip())
    file.flush()


def _fit(grid: Table, cells: Sequence[Sequence[str]], console: Console) -> None:
    """Narrows the widest columns until the table fits, or none can be narrower without a break within a word."""
    columns = list(zip(*cells, strict=True))
    least = [max(cell_len(part) for cell in column for part in _whole_parts(cell)) for column in columns]
    widths = [max(cell_len(line) for cell in column for line in (cell.splitlines() or [""])) for column in columns]
    too_many = Console(width=1_000_000).measure(grid).maximum - console.width
    if console.is_terminal and too_many > sum(widths) - sum(least):
        return  # rich folds words
    while too_many > 0 and widths != least:
        widest = max(range(len(widths)), key=lambda n: widths[n] if widths[n] > least[n] else 0)
        widths[widest] -= 1
        grid.columns[widest].width = widths[widest]
        too_many -= 1


def _whole_parts(cell: str) -> list[str]:
    """What of a cell is not broken: a heading, a number with its unit; of prose each word."""
    lines = cell.splitlines() or [""]
    return [part for line in lines for part in ([line] if cell_len(line) <= SHORT_CELL else line.split())]


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip().rstrip("%").replace(",", "") or "nothing")
    except ValueError:
        return cell.strip() in ("", "-", "–")
    return True


EIGHTHS = " ▏▎▍▌▋▊▉█"


def histogram(
    title: str, labels: Sequence[str], series: Sequence[tuple[str, Sequence[int]]], width: int | None = None
) -> None:
    """Prints horizontal bars, a line for each label; several series stand side by side, each with its shares.

    Args:
        title: Stands above the labels.
        labels: What each bar is.
        series: Name and count of each label, for every series.
        width: The columns to fit into; if not given, those of the terminal, but at most 100.
    """
    file = sys.stdout
    width = width or min(plain_console(file).width, 100)
    margin = max(cell_len(label) for label in [*labels, ""])
    room = max(4, (width - margin) // len(series) - len("  100.0%") - 2)
    heads = "".join("  " + set_cell_size(name, room + len(" 100.0%")) for name, _ in series)
    file.write(f"{title}\n" + (f"{' ' * margin}{heads}".rstrip() + "\n" if len(series) > 1 else ""))
    for index, label in enumerate(labels):
        line = " " * (margin - cell_len(label)) + label
        for _, counts in series:
            total, most = sum(counts) or 1, max(counts) or 1
            part = f"{counts[index] / total:.1%}" if counts[index] else ""
            line += "  " + _bar(counts[index] / most, room) + part.rjust(len(" 100.0%"))
        file.write(line.rstrip() + "\n")
    file.flush()


def _bar(share: float, width: int) -> str:
    """A bar as long as the share of `width`, in eighths of a column; whatever is there can be seen."""
    eighths = max(round(share * width * 8), 1 if share else 0)
    bar = EIGHTHS[-1] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return bar.ljust(width)
