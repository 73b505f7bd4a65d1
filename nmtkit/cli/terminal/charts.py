"""Curves in a terminal, drawn with braille characters, which have two columns of four dots."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from rich.console import Group
from rich.live import Live
from rich.text import Text

from nmtkit.cli.terminal.tables import plain_console

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a cell's dots by row and column."""
EMPTY = 0x2800
"""The character without dots."""
LINES = 24
"""Height of the charts, in lines, if the output is not a terminal."""
Curve = tuple[Sequence[tuple[float, float]], str]
"""Points in order of increasing x, and a colour."""
Chart = tuple[str, dict[str, Curve]]
"""A title, and curves by their names."""


def show_charts(
    look: Callable[[], tuple[str, Sequence[Chart]]], goes_on: Callable[[], bool], seconds: float
) -> None:
    """Shows the line of text and the charts that `look` returns.

    In a terminal, they are updated until `goes_on` returns False or the user presses Ctrl-C. Elsewhere, they are shown
    once.
    """
    console = plain_console(sys.stdout)
    if not console.is_terminal:
        for line in _frame(*look(), console.width, LINES):
            console.print(line, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            again = goes_on()  # called before `look`, so that the last update shows the final state
            live.update(Group(*_frame(*look(), console.width, console.height)), refresh=True)
            if not again:
                return
            try:
                time.sleep(seconds)
            except KeyboardInterrupt:
                return


def _frame(facts: str, charts: Sequence[Chart], width: int, height: int) -> Iterator[Text]:
    yield Text(facts)
    for title, curves in charts:
        heading = Text(title, "bold")
        for meaning, (points, colour) in curves.items():
            heading.append(f"  {meaning} {points[-1][1]:.4g}" if points else "", colour)
        yield heading
        if any(len(points) > 1 for points, _ in curves.values()):
            yield from line_chart(
                [*curves.values()], width, max(4, (height - 4) // len(charts) - 2)
            )


def line_chart(curves: Sequence[Curve], width: int, height: int) -> list[Text]:
    """Returns the lines of a chart with this width and height; the lowest line shows the ends of the x axis.

    Points that are not finite are left out. If several curves pass through a cell, it has the colour of the last one.
    """
    known = [([(x, y) for x, y in points if math.isfinite(y)], colour) for points, colour in curves]
    every = [point for points, _ in known for point in points]
    if not every:
        return [Text("nothing yet")]
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*every, strict=True))
    labels = [f"{value:.4g}" for value in (high, low)]
    margin = max(map(len, labels))
    columns, rows = max(2, width - margin - 1), max(1, height - 1)
    cells = [[(0, "")] * columns for _ in range(rows)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = round((x - left) / (right - left) * (2 * columns - 1)) if right > left else 0
        up = round((y - low) / (high - low) * (4 * rows - 1)) if high > low else 0
        return across, 4 * rows - 1 - up

    for points, colour in known:
        places = [place(*point) for point in points]
        for (x, y), (to_x, to_y) in pairwise([places[0], *places]) if places else ():
            steps = max(abs(to_x - x), abs(to_y - y), 1)
            for step in range(steps + 1):
                column, row = (
                    x + round((to_x - x) * step / steps),
                    y + round((to_y - y) * step / steps),
                )
                bits, _ = cells[row // 4][column // 2]
                cells[row // 4][column // 2] = bits | DOTS[row % 4][column % 2], colour
    lines = []
    for number, cells_of_row in enumerate(cells):
        label = labels[0] if number == 0 else labels[1] if number == rows - 1 else ""
        line = Text(f"{label:>{margin}} ")
        for bits, colour in cells_of_row:
            line.append(chr(EMPTY + bits), colour)
        lines.append(line)
    ends = f"{right:,.0f}".rjust(columns - len(f"{left:,.0f}"))
    return [*lines, Text(" " * (margin + 1) + f"{left:,.0f}{ends}", "dim")]
