"""From templates to text.

A template is text with two kinds of places: `[one|another|]` stands for one of its alternatives, all equally likely
(there may be empty ones, and brackets within brackets), and `{fact}` for a fact. A `Name` is told in full where it
comes first in the article, and short after that; `{coach.he}` is its pronoun, `{coach.full}` and `{coach.short}` leave
no choice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from grammar.sampling.chance import Chance

from .draw import Name

Facts = Mapping[str, str | Name]

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
_FACT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+|[^\s]")
_SENTENCE_START = re.compile(r"(^|[.!?]\"? )([a-z])")
# "an" before these vowels, and before numbers that are spoken with one (8, 80, 800, 11, 18).
_AN = re.compile(r"\b([Aa]) (?=[aeioAEIO]|\$?(?:8\d{0,2}|1[18])(?!\d))")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NUMBERS = _words("zero one two three four five six seven eight nine ten eleven twelve")
ORDINALS = _words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth"
)
MONTHS = _words(
    "January February March April May June July August September October November December"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")


@dataclass(frozen=True)
class Report:
    """What an article tells.

    Attributes:
        facts: what `{...}` in the templates stands for.
        passages: templates of one to three sentences, in the order of the article.
        summary: the template of the summary; it has no alternatives, so the facts determine its words.
    """

    facts: Facts
    passages: tuple[str, ...]
    summary: str


class Story:
    """Tells templates with the facts of one article, and remembers who has been named.

    Args:
        facts: what `{...}` stands for.
        chance: what chooses between alternatives.
    """

    def __init__(self, facts: Facts, chance: Chance) -> None:
        self._facts = facts
        self._chance = chance
        self._named: set[Name] = set()

    def tell(self, template: str) -> str:
        """The text of a template."""
        while _ALTERNATIVES.search(template):
            template = _ALTERNATIVES.sub(
                lambda found: self._chance.pick(found[1].split("|")), template
            )
        return tidy(_FACT.sub(lambda found: self._fact(found[1], found[2]), template))

    def _fact(self, key: str, form: str | None) -> str:
        fact = self._facts[key]
        if isinstance(fact, str):
            return fact
        if form in ("he", "his", "short"):
            return str(getattr(fact, form))
        first = fact not in self._named
        self._named.add(fact)
        return fact.full if first or form == "full" else fact.short


def tidy(text: str) -> str:
    """Single spaces, none before punctuation; `an` where it belongs; sentences with a capital letter."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r" (?=[,.;:?!])", "", text).replace("s's ", "s' ")
    text = _AN.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda found: found[1] + found[2].upper(), text)


def ordinal(number: int) -> str:
    """41 as 41st."""
    ending = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


def words(text: str) -> list[str]:
    """Words, numbers and punctuation marks, as the word tokenizer of nmtkit separates them."""
    return _WORD.findall(text)


def is_number(word: str) -> bool:
    """Whether a word is a number in digits."""
    return word[0].isdigit() and word[-1].isdigit()
