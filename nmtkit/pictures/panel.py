"""What the pictures on a sheet have in common, whatever they show: a size, a title, and labels that fit."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Protocol

from nmtkit.pictures import drawing, fonts
from nmtkit.pictures.files import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_LABEL = 36
ROTATION = 50.0
COLOUR_BAR = 0.9
TITLE_SIZE = 12.0
WIDE_ENOUGH_FOR_A_TITLE = 4.5


class Panel(Protocol):
    """A picture with its measures, ready to be put in its place on a sheet; all lengths in inches."""

    @property
    def width(self) -> float:
        """All of it, from the labels on the left to the colour bar on the right."""

    @property
    def height(self) -> float:
        """All of it, title included."""

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draws it with its upper left corner `x` from the left edge of the figure and `y` from the upper one."""


def fit_title(heading: str, families: list[str], width: float) -> tuple[str, float, float]:
    """Breaks a heading into lines for a panel that is `width` inches wide without it.

    Returns:
        The lines, the panel's width with them, and the height that they need: nothing where there is no heading.
    """
    heading = printable(heading)
    if not heading:
        return "", width, 0.0
    ((title_width, line_height),) = fonts.measure([heading], families, TITLE_SIZE)
    width = max(width, min(title_width, WIDE_ENOUGH_FOR_A_TITLE))
    letters = max(1, int(len(heading) * width / title_width))
    lines = textwrap.wrap(heading, letters) if title_width > width else [heading]
    return "\n".join(lines), width, len(lines) * line_height * 1.35 + 0.15


def draw_title(figure: Figure, title: str, x: float, y: float) -> None:
    """Draws the lines of a title, if there are any, with their upper left corner at (x, y) in fractions."""
    if title:
        figure.text(x, y, title, fontsize=TITLE_SIZE, color=drawing.INK, va="top")


def shorten(word: str) -> str:
    """A label of at most `LONGEST_LABEL` letters: a longer one has "…" in its middle."""
    word = printable(word)
    if len(word) <= LONGEST_LABEL:
        return word
    half = LONGEST_LABEL // 2
    return f"{word[:half]}…{word[-half + 1 :]}"
