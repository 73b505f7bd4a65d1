"""Whole scenes: one to three things that do not touch, and the caption that follows from where they stand."""

import random
from dataclasses import dataclass

import numpy as np
from grammar.sampling.chance import Chance
from numpy.typing import NDArray

from .shapes import COLOURS, SHAPES, SIDES, Colour, Thing, paint

PARTS = {"train": 4000, "valid": 200, "test": 400}
SIDE = 32  # of a picture, in pixels
SHARES = {"1": 0.2, "2": 0.5, "3": 0.3}  # of the pictures with so many things
GAP = 1  # pixels between two things, and between a thing and the edge
CLEAR = 3  # pixels by which one of the two distances between two things is the greater one
PALEST, PALE, JITTER = 245, 205, 15  # of the background; of a colour, up and down


@dataclass(frozen=True)
class Scene:
    """One line of the corpus: the things, in the order of the caption, and what is behind them."""

    things: tuple[Thing, ...]
    background: Colour

    def picture(self) -> NDArray[np.uint8]:
        """Its pixels, (32, 32, 3)."""
        pixels = np.full((SIDE, SIDE, 3), self.background, dtype=np.int64)
        for thing in self.things:
            paint(pixels, thing)
        return pixels.astype(np.uint8)

    def words(self) -> list[tuple[str, Thing | None]]:
        """The words of the caption, each with the thing that it names, if it names one.

        The first thing is said to be left of, right of, above or below each of the others.
        """
        first, *others = self.things
        words = named(first)
        for other in others:
            relation = ("is" if other is others[0] else "and", *relate(first, other).split())
            words += [(word, None) for word in relation] + named(other)
        return words

    def caption(self) -> str:
        """Such as `a large red ring is above a small blue square`."""
        return " ".join(word for word, _ in self.words())

    def regions(self) -> str:
        """The box of each word that names a thing, as `word:x0,y0,x1,y1`; words count from 0."""
        named = ((number, thing) for number, (_, thing) in enumerate(self.words()) if thing)
        return " ".join(f"{number}:{','.join(map(str, thing.box))}" for number, thing in named)


def named(thing: Thing) -> list[tuple[str, Thing | None]]:
    """A thing with its article."""
    return [("a", None), *((word, thing) for word in thing.words)]


def relate(one: Thing, other: Thing) -> str:
    """Where the first thing is, seen from the other: along the axis on which they are further apart."""
    across, down = (theirs - own for own, theirs in zip(one.middle, other.middle, strict=True))
    if abs(across) > abs(down):
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def are_clear(one: Thing, other: Thing) -> bool:
    """Whether there is a gap between two things where they are further apart, and that is plain to see."""
    near, far = sorted(
        abs(own - theirs) for own, theirs in zip(one.middle, other.middle, strict=True)
    )
    return far >= one.side + other.side + 2 * GAP and far - near >= 2 * CLEAR


def rank(thing: Thing) -> tuple[bool, int]:
    """The place of a thing in the caption: large ones first, then those nearer to the upper left corner."""
    return thing.size != "large", sum(thing.middle)


def near(colour: Colour, chance: Chance) -> Colour:
    """A colour that still has the same name."""
    red, green, blue = (
        min(max(part + chance.below(2 * JITTER + 1) - JITTER, 0), 255) for part in colour
    )
    return red, green, blue


def scene(chance: Chance) -> Scene:
    """A scene in which no two things have the same three words."""
    count, words = int(chance.weighted(**SHARES)), list[tuple[str, str, str]]()
    while len(words) < count:
        one = chance.pick(tuple(SIDES)), chance.pick(tuple(COLOURS)), chance.pick(SHAPES)
        words += [one] * (one not in words)
    looks = [(near(COLOURS[colour], chance), chance.pick(SIDES[size])) for size, colour, _ in words]
    while True:
        things: list[Thing] = []
        for own, (colour, side) in zip(words, looks, strict=True):
            left, top = (GAP + chance.below(SIDE - side - 2 * GAP + 1) for _ in "xy")
            things.append(Thing(*own, colour, left, top, side))
        if all(
            are_clear(one, other) for number, one in enumerate(things) for other in things[:number]
        ):
            red, green, blue = (PALE + chance.below(PALEST - PALE + 1) for _ in range(3))
            return Scene(tuple(sorted(things, key=rank)), (red, green, blue))


def generate(seed: int, sizes: dict[str, int] | None = None) -> dict[str, list[Scene]]:
    """All parts of the corpus; no scene occurs twice.

    Args:
        seed: another seed makes another corpus.
        sizes: scenes of `train`, `valid` and `test`; `PARTS` if not given.
    """
    sizes = sizes or PARTS
    used: set[Scene] = set()
    parts: dict[str, list[Scene]] = {}
    for part in ("test", "valid", "train"):
        parts[part] = []
        for number in range(sizes[part]):
            chance = Chance(random.Random(f"scenes/{seed}/{part}/{number}"))
            while (made := scene(chance)) in used:
                pass
            used.add(made)
            parts[part].append(made)
    return parts


def pictures(scenes: list[Scene]) -> NDArray[np.uint8]:
    """The pictures of some scenes, (N, 32, 32, 3)."""
    return np.array([one.picture() for one in scenes], dtype=np.uint8).reshape(-1, SIDE, SIDE, 3)
