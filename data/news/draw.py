"""Random facts, and the rule that keeps some names and numbers out of the training set."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grammar.sampling.chance import Chance

from . import names

T = TypeVar("T")

RESERVED_SHARE = 4
"""One name word or number in so many never occurs in a training article or summary."""


def reserved(word: str) -> bool:
    """Whether a name word, or a number with a comma or a point, belongs to the validation and test sets alone."""
    return not word.isdigit() and zlib.crc32(word.encode()) % RESERVED_SHARE == 0


@dataclass(frozen=True)
class Name:
    """What somebody or something is called.

    Attributes:
        full: at the first mention.
        short: after that.
        he: the pronoun as a subject.
        his: the possessive.
    """

    full: str
    short: str
    he: str = "it"
    his: str = "its"


def thousands(number: int) -> str:
    """12345 as 12,345."""
    return f"{number:,}"


def decimal(number: int, digits: int) -> str:
    """A number given in its smallest unit: 41275 with two digits is 412.75."""
    whole, part = divmod(number, 10**digits)
    return f"{whole:,}.{part:0{digits}}"


class Draw(Chance):
    """Random facts for one article. No name word, and no number with a comma or a point, is drawn twice.

    Args:
        rng: where all randomness comes from; only its method `random` is used.
        unseen: how often a name word or number shall be a reserved one; 0 for training.
    """

    def __init__(self, rng: random.Random, unseen: float) -> None:
        super().__init__(rng)
        self._unseen = unseen
        self._want_reserved = False
        self.drawn: set[str] = set()

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def want(self) -> bool:
        """Decides whether the next word shall be a reserved one."""
        return self.chance(self._unseen)

    def accept(self, word: str, want: bool) -> bool:
        """Takes the word, unless it was drawn before or is (or is not) reserved against what is wanted."""
        if word in self.drawn or reserved(word) != want:
            return False
        self.drawn.add(word)
        return True

    def word(self, *parts: tuple[str, ...]) -> str:
        """A name word of one part from each list."""
        want = self.want()
        while True:
            word = names.compound(*(self.pick(choices) for choices in parts))
            if len(word) > 3 and self.accept(word, want):
                return word

    def decimal(self, low: int, high: int, digits: int = 1) -> str:
        """A number with a point, between limits given in its smallest unit."""
        want = self.want()
        while True:
            text = decimal(self.between(low, high), digits)
            if self.accept(text, want):
                return text

    def count(self, low: int, high: int) -> str:
        """A number of things, written with a comma if it has more than three digits, never ending in 00."""
        want = self.want()
        while True:
            number = self.between(low, high)
            if number % 100 and (number < 1000 or self.accept(thousands(number), want)):
                return thousands(number)

    def several(self, items: Sequence[T], number: int) -> list[T]:
        """So many of the items, none twice, in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(number)]

    def surname(self) -> str:
        """A surname; one in three of the English style or more."""
        return self.word(*self.pick(names.SURNAMES[:1] * 3 + names.SURNAMES))

    def person(self, woman: bool | None = None) -> Name:
        """A woman or a man; either if not said."""
        surname = self.surname()
        if self.chance(0.5) if woman is None else woman:
            return Name(f"{self.pick(names.WOMEN)} {surname}", surname, "she", "her")
        return Name(f"{self.pick(names.MEN)} {surname}", surname, "he", "his")

    def town(self) -> str:
        """A town; one in eight has two words."""
        town = self.word(*names.TOWNS)
        return f"{self.pick(names.TOWN_PREFIXES)} {town}" if self.chance(0.125) else town

    def team(self, nicknames: tuple[str, ...]) -> Name:
        """A team: the town and one of the nicknames."""
        town = self.word(*names.TOWNS)
        return Name(f"{town} {self.pick(nicknames)}", town, "they", "their")

    def company(self, second: tuple[str, ...]) -> Name:
        """A company: a coined word and one of the second words."""
        first = self.word(*names.COMPANIES)
        return Name(f"{first} {self.pick(second)}", first)
