"""Lines, tables and bars in the terminal.

Results go to stdout and messages to stderr, so that a command's output can be piped.
"""

import csv
import io
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Width of tables outside a terminal, unless their columns need more."""
SHORT_CELL = 24
"""Width up to which the text of a cell is never wrapped."""


def plain_console(file: TextIO) -> Console:
    """Returns a console that does not interpret markup in text."""
    return Console(file=file, highlight=False, markup=False, emoji=False)


_COPIES: list[Callable[[str], object]] = []


@contextmanager
def tee(take: Callable[[str], object]) -> Iterator[None]:
    """Within the block, passes `take` a copy of every line that this module writes, and of occasional live lines."""
    _COPIES.append(take)
    try:
        yield
    finally:
        _COPIES.remove(take)


def copy(text: str) -> None:
    """Passes a line to all functions that `tee` has registered."""
    for take in _COPIES:
        take(text)


def say(text: str, stderr: bool = False) -> None:
    """Writes a line of plain text, without markup or truncation; only messages in a terminal are wrapped.

    Copies are not wrapped, so that a log can be searched.
    """
    shown = text
    if stderr and sys.stderr.isatty():
        shown = wrapped(text, plain_console(sys.stderr).width)
    write_line(shown, sys.stderr if stderr else sys.stdout, copied=text)


def wrapped(text: str, width: int) -> str:
    """Wraps the lines of a text between words; continuation lines are indented by two more columns.

    Words longer than the `width` are not broken, and neither are commands, so that they can be copied.
    """
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for line in text.split("\n"):
        words = line.lstrip()
        wrapper.initial_indent = line[: len(line) - len(words)]
        wrapper.subsequent_indent = f"{wrapper.initial_indent}  "
        is_whole = cell_len(line) <= width or words.startswith("nmtkit ")
        lines += [line] if is_whole else wrapper.wrap(words)
    return "\n".join(lines)


def flow(parts: Iterable[Text], width: int, gap: int) -> list[list[Text]]:
    """Fills lines with as many parts as fit into the `width`, separated by `gap` columns."""
    lines: list[list[Text]] = []
    used = 0
    for part in parts:
        used += gap + part.cell_len
        if not lines or used > width:
            lines.append([])
            used = part.cell_len
        lines[-1].append(part)
    return lines


def cut(text: str, width: int) -> str:
    """Shortens text to at most `width` columns; shortened text ends in "…"."""
    return text if cell_len(text) <= width else f"{chop_cells(text, max(1, width - 1))[0]}…"


def write_line(text: str, file: TextIO, copied: str | None = None) -> None:
    """Writes a line to a file and flushes the file; passes `copied`, by default the line itself, to `copy`."""
    file.write(text + "\n")
    file.flush()
    copy(text if copied is None else copied)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], stderr: bool = False
) -> None:
    """Prints a table; columns of numbers are right-aligned.

    Long cells are wrapped between words, so that the table fits into the width of the terminal. Outside a terminal, the
    width is $COLUMNS, or 100. If wrapping is not enough, words are broken in a terminal; elsewhere, the table becomes
    wider.
    """
    file = sys.stderr if stderr else sys.stdout
    console = plain_console(file)
    cells = [[str(cell) for cell in row] for row in rows]
    grid = _grid(title, columns, cells)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    _fit(grid, [list(columns), *cells], console)
    if not console.is_terminal:
        console.width = max(
            console.width, Console(width=_WIDEST).measure(grid).maximum, cell_len(title)
        )
    for line in _rendered(grid, console):
        file.write(line + "\n")
    file.flush()
    if _COPIES:
        whole = plain_console(io.StringIO())
        whole.width = _WIDEST
        for line in _rendered(_grid(title, columns, cells), whole):
            copy(line)


_WIDEST = 1_000_000


def _grid(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    grid = Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        grid.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def _rendered(grid: Table, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table as comma-separated values, including the header."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    for line in buffer.getvalue().splitlines():
        write_line(line, sys.stdout)


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "*": r"$^{*}$",
}


def print_latex(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table for the LaTeX package booktabs; columns of numbers are right-aligned."""
    alignment = ""
    for index in range(len(columns)):
        is_numeric = index > 0 and all(
            _is_number(str(row[index]).split(" ")[0].rstrip("*")) for row in rows
        )
        alignment += "r" if is_numeric else "l"
    write_line(f"\\begin{{tabular}}{{{alignment}}}", sys.stdout)
    write_line("\\toprule", sys.stdout)
    write_line(_latex_row(columns), sys.stdout)
    write_line("\\midrule", sys.stdout)
    for row in rows:
        write_line(_latex_row(row), sys.stdout)
    write_line("\\bottomrule", sys.stdout)
    write_line("\\end{tabular}", sys.stdout)


def _latex_row(cells: Sequence[object]) -> str:
    escaped = ["".join(_LATEX.get(letter, letter) for letter in str(cell)) for cell in cells]
    return " & ".join(escaped) + r" \\"


def _fit(grid: Table, cells: Sequence[Sequence[str]], console: Console) -> None:
    """Narrows the widest columns until the table fits, or until narrower columns would break words."""
    columns = [
        [line for cell in column for line in (cell.splitlines() or [""])]
        for column in zip(*cells, strict=True)
    ]
    widths = [max(map(cell_len, lines)) for lines in columns]
    least = [  # short lines are not wrapped, and longer ones only between words
        max(
            cell_len(part)
            for line in lines
            for part in ([line] if cell_len(line) <= SHORT_CELL else line.split())
        )
        for lines in columns
    ]
    too_many = Console(width=_WIDEST).measure(grid).maximum - console.width
    if console.is_terminal and too_many > sum(widths) - sum(least):
        return  # rich then breaks words
    while too_many > 0 and widths != least:
        widest = max(range(len(widths)), key=lambda n: widths[n] if widths[n] > least[n] else 0)
        widths[widest] -= 1
        grid.columns[widest].width = widths[widest]
        too_many -= 1


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip().rstrip("%").replace(",", "") or "nothing")
    except ValueError:
        return cell.strip() in ("", "-", "–")
    return True


EIGHTHS = " ▏▎▍▌▋▊▉█"


def histogram(
    title: str, labels: Sequence[str], series: Sequence[tuple[str, Sequence[int]]], width: int
) -> None:
    """Prints horizontal bars with percentages: a line for each label, with the series side by side.

    A series consists of a name and a count for each label.
    """
    margin = max(cell_len(label) for label in [*labels, ""])
    longest = max(4, (width - margin) // len(series) - len("  100.0%") - 2)
    heads = "".join("  " + set_cell_size(name, longest + len(" 100.0%")) for name, _ in series)
    say(title)
    if len(series) > 1:
        say(f"{' ' * margin}{heads}".rstrip())
    for index, label in enumerate(labels):
        line = " " * (margin - cell_len(label)) + label
        for _, counts in series:
            total, most = sum(counts) or 1, max(counts) or 1
            part = f"{counts[index] / total:.1%}" if counts[index] else ""
            # length of the bar in eighths of a column
            eighths = max(round(counts[index] / most * longest * 8), 1 if counts[index] else 0)
            bar = EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            line += "  " + bar.ljust(longest) + part.rjust(len(" 100.0%"))
        say(line.rstrip())
