"""Sizes, colours and shapes, and the pixels of a thing. All arithmetic is in whole numbers: it has no rounding."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIDES = {"small": (7, 8), "large": (12, 13)}
"""The sides of a box by the word for its size, in pixels."""
COLOURS = {
    "red": (210, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (235, 205, 40),
    "green": (40, 150, 60),
    "blue": (40, 80, 200),
    "purple": (140, 60, 170),
    "black": (30, 30, 30),
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
SAMPLES = 4
"""Points along a side of a pixel: the share of them that a shape covers smooths its edge."""

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Thing:
    """One thing in a picture: its words, the colour that it really has, and its box in pixels."""

    size: str
    colour: str
    shape: str
    paint: Colour
    left: int
    top: int
    side: int

    @property
    def words(self) -> tuple[str, str, str]:
        """The words that name it."""
        return self.size, self.colour, self.shape

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Its left and upper edge, and the right and lower edge, which are not a part of it."""
        return self.left, self.top, self.left + self.side, self.top + self.side

    @property
    def middle(self) -> tuple[int, int]:
        """Its middle, in half pixels."""
        return 2 * self.left + self.side, 2 * self.top + self.side


def cover(shape: str, side: int) -> NDArray[np.int64]:
    """How many of the `SAMPLES`^2 points of each pixel a shape covers, (side, side)."""
    edge = SAMPLES * side
    # from the middle, in half samples: -edge < point < edge
    points = 2 * np.arange(edge) + 1 - edge
    x, y = points[None, :], points[:, None]
    inside = {
        "circle": x**2 + y**2 <= edge**2,
        "square": np.full((edge, edge), True),
        "triangle": 2 * abs(x) <= y + edge,
        "diamond": abs(x) + abs(y) <= edge,
        "cross": (3 * abs(x) <= edge) | (3 * abs(y) <= edge),
        "ring": (x**2 + y**2 <= edge**2) & (3 * (x**2 + y**2) >= edge**2),
    }[shape]
    return np.asarray(inside.reshape(side, SAMPLES, side, SAMPLES).sum((1, 3)))


def paint(picture: NDArray[np.int64], thing: Thing) -> None:
    """Paints a thing into a picture, (rows, columns, 3), over what is there."""
    left, top, right, bottom = thing.box
    covered, whole = cover(thing.shape, thing.side)[:, :, None], SAMPLES**2
    below = picture[top:bottom, left:right]
    picture[top:bottom, left:right] = (
        below * (whole - covered) + np.array(thing.paint) * covered
    ) // whole
