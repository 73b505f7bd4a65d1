"""English inflection: plurals, verb forms, comparison and numbers."""

_DOUBLING = frozenset(
    {
        "run",
        "swim",
        "cut",
        "hit",
        "get",
        "stop",
        "forget",
        "begin",
        "prefer",
        "big",
        "fat",
        "sad",
        "hot",
        "wet",
    }
)
_VOWELS = "aeiou"
_UNITS = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def add_s(word: str) -> str:
    """Plural of a noun, or third person of a verb: boxes, cities, tries, days."""
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do", "tomato", "potato"):
        return word + "es"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def add_ed(word: str) -> str:
    """Regular past: tried, stopped, danced."""
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ied"
    return (word + word[-1] if word in _DOUBLING else word) + "ed"


def add_ing(word: str) -> str:
    """Present participle: writing, dying, swimming, seeing."""
    if word.endswith("ie"):
        return word[:-2] + "ying"
    if word.endswith("e") and not word.endswith(("ee", "be")):
        return word[:-1] + "ing"
    return (word + word[-1] if word in _DOUBLING else word) + "ing"


def add_er(adjective: str) -> str:
    """Comparative of a short adjective: bigger, happier, nicer."""
    if adjective.endswith("e"):
        return adjective + "r"
    if adjective.endswith("y"):
        return adjective[:-1] + "ier"
    return (adjective + adjective[-1] if adjective in _DOUBLING else adjective) + "er"


def number(n: int) -> str:
    """A number from 0 to 100 in words."""
    if not 0 <= n <= 100:
        raise ValueError(f"numbers from 0 to 100 only, not {n}")
    if n < 20:
        return _UNITS[n]
    if n == 100:
        return "one hundred"
    tens = _TENS[n // 10 - 2]
    return tens if n % 10 == 0 else f"{tens}-{_UNITS[n % 10]}"
