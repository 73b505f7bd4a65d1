"""Finds numbers, URLs and e-mail addresses of a source that its translation lacks; compares numbers by value."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise

SMALL = 12
"""Whole numbers up to this limit are often translated as words or as the name of a month."""

_URL = re.compile(r"(?:https?://|www\.)[^\s<>\"'`“”«»()]+|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_SCHEME = re.compile(r"^https?://")
_CHECKED = re.compile(r"\d|@|www|http")
_URL_END = ".,;:!?…。，"
_TAG = re.compile(r"^(?:<2[^<>\s]+>|>>[^<>\s]+<<)\s*")
_CLOCK = re.compile(r"(?<![\d.,:])([01]?\d|2[0-4])(?:[:hH]| [hH] )([0-5]\d)(?![\d.,:]*\d)")
_AFTERNOON = re.compile(r"(?<!\d)(\d|1[01])\s?[pP]\.?\s?[mM]\b")
_NUMBER = re.compile(
    r"\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)(?:[.,٫]\d+)?|\d+(?:[.,٫٬'’]\d+)*"
)
_FULL_WIDTH = re.compile(r"(?<=[０-９])[，、．](?=[０-９])")
_ASCII_MARKS = {"，": ",", "、": ",", "．": "."}
_GROUPS = re.compile(r"\d{1,3}(?:([.,٬'’ \u00a0\u2009\u202f])\d{3}(?:\1\d{3})*|(?:,\d\d)+,\d{3})")
_ROMAN = re.compile(
    r"(?<![^\W\d_])(?=[IVXLCDM]{2})M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?![A-Z])"
)
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_MULTIPLIER = re.compile(r"\s?[千百万萬億亿兆천백만억조]")
"""Characters that multiply the number before them: 2万 is 20,000."""
_DECIMAL_MARKS = ".,٫"


@dataclass(frozen=True)
class WrittenNumber:
    """A number and its spelling in a text."""

    text: str
    value: Decimal | None
    """Value of the number; None if the text consists of several numbers, as in 28.11.2026."""
    parts: tuple[Decimal, ...] = ()
    """The numbers between the separators, in case they are separate numbers."""
    is_scaled: bool = False
    """Whether a multiplier such as 万 follows the number."""

    @property
    def is_small(self) -> bool:
        """Whether a translation may spell the number out as a word; see `SMALL`."""
        return self.value is not None and self.value <= SMALL and self.value % 1 == 0

    @property
    def digits(self) -> str:
        """Digits without leading and trailing zeros, which are the same for 20,000 and 2万."""
        digits = () if self.value is None else self.value.as_tuple().digits
        return "".join(map(str, digits)).strip("0")

    @property
    def values(self) -> tuple[Decimal, ...]:
        """All values that the text may stand for: the number itself and its parts."""
        return self.parts if self.value is None else (self.value, *self.parts)


@dataclass(frozen=True)
class ClockTime:
    """A time of day and its spelling in a text."""

    text: str
    hour: int
    minute: int

    @property
    def values(self) -> tuple[Decimal, Decimal]:
        return Decimal(self.hour), Decimal(self.minute)


@dataclass(frozen=True)
class _Figures:
    """All numbers and times of day in a text."""

    clocks: list[ClockTime]
    numbers: list[WrittenNumber]
    values: set[Decimal]

    @classmethod
    def from_text(cls, text: str) -> "_Figures":
        clocks = []
        for match in _CLOCK.finditer(text):
            clocks.append(ClockTime(match.group(), hour=int(match[1]), minute=int(match[2])))
        numbers = list(_written_numbers(_CLOCK.sub(" ; ", text)))
        values: set[Decimal] = set()
        for clock in clocks:
            values.update(clock.values)
        for number in numbers:
            values.update(number.values)
        for match in _AFTERNOON.finditer(text):
            hour = int(match[1]) + 12
            values.add(Decimal(hour))
        return cls(clocks, numbers, values)

    def pairs(self) -> set[tuple[Decimal, Decimal]]:
        """Returns all pairs of consecutive numbers, each of which may be an hour and a minute."""
        pairs = {clock.values for clock in self.clocks}
        for number in self.numbers:
            pairs.update(pairwise(number.parts))
        whole = [number.value for number in self.numbers if number.value is not None]
        pairs.update(pairwise(whole))
        return pairs


def missing_numbers(source: str, translation: str) -> tuple[str, ...]:
    """Returns the numbers, URLs and e-mail addresses that a translation lacks, as they are written in the source.

    Numbers are compared by value: "1,000", "1.000", "1 000" and digits of any script are equal, as are "3.5" and "3,5",
    "21st" and "21e", 2026-11-28 and 28/11/2026, 15:30 and 3:30 pm, "1990s" and "90er", "20,000" and "2万". Roman
    numerals in the translation count, too (XXe siècle). Whole numbers up to 12 may be translated as words or as the
    name of a month, so they are reported only if the translation has a different number instead. Multipliers that are
    written as words (million) are not recognized.
    """
    source = html.unescape(_TAG.sub("", source))
    translation = html.unescape(translation)
    if not _CHECKED.search(source):
        return ()
    missing = [
        url
        for url in _urls(source)
        if _SCHEME.sub("", url).casefold() not in translation.casefold()
    ]
    read = _Figures.from_text(_URL.sub(" ", source))
    translation = _URL.sub(" ", translation)
    written = _Figures.from_text(translation)
    values = written.values | set(_roman_numbers(translation))
    pairs = written.pairs()
    digits = {number.digits for number in written.numbers}
    scaled_digits = {number.digits for number in written.numbers if number.is_scaled}

    for clock in read.clocks:
        hours = {Decimal(hour) for hour in (clock.hour, clock.hour % 12, (clock.hour + 12) % 24)}
        has_hour = clock.hour <= SMALL or bool(hours & values)
        has_minute = clock.minute <= SMALL or clock.minute in values
        if not (has_hour and has_minute):
            missing.append(clock.text)
    for number in read.numbers:
        if number.is_small or number.value in values:
            continue
        if number.digits in scaled_digits or (number.is_scaled and number.digits in digits):
            continue
        if number.parts and number.parts in pairs:  # 14.30 and 14:30
            continue
        if _decades(number.value) & values:
            continue
        is_date_or_list = number.value is None or " " in number.text
        if is_date_or_list and all(part <= SMALL or part in values for part in number.parts):
            continue
        missing.append(number.text)

    # Assume that each number that occurs only in the translation replaces a number of the source. These replacements
    # account for the large numbers reported above. Any further replacements must have replaced small numbers, which
    # were therefore not spelled out as words.
    replacing = values - read.values
    small = [number for number in read.numbers if number.is_small and number.value not in values]
    if len(replacing) > len(missing):
        for number in small:
            assert number.value is not None
            # "3 pm" may have become "15 heures".
            if number.digits not in scaled_digits and number.value + 12 not in replacing:
                missing.append(number.text)
    return tuple(dict.fromkeys(missing))


def _decades(value: Decimal | None) -> set[Decimal]:
    """Returns other ways of writing a decade: 1890, 1990 and 2090 for 90, and 90 for 1990."""
    if value is None or value % 10 != 0:
        return set()
    if 10 <= value <= 90:
        return {1800 + value, 1900 + value, 2000 + value}
    if 1800 <= value < 2100 and value % 100 != 0:
        return {value % 100}
    return set()


def _urls(text: str) -> list[str]:
    return [match.group().rstrip(_URL_END) for match in _URL.finditer(text)]


def _written_numbers(text: str) -> Iterator[WrittenNumber]:
    text = _FULL_WIDTH.sub(lambda match: _ASCII_MARKS[match.group()], text)
    for match in _NUMBER.finditer(text):
        number = _read_number(match.group())
        has_multiplier = _MULTIPLIER.match(text, match.end()) is not None
        yield replace(number, is_scaled=has_multiplier)


def _read_number(text: str) -> WrittenNumber:
    parts = [Decimal(part) for part in re.findall(r"\d+", text)]
    separators = re.findall(r"\D", text)
    if not separators:
        return WrittenNumber(text, parts[0])
    if _GROUPS.fullmatch(text):  # groups of thousands; but 12 345 may also be two numbers
        is_ambiguous = " " in separators
        value = Decimal(re.sub(r"\D", "", text))
        return WrittenNumber(text, value, parts=tuple(parts) if is_ambiguous else ())
    last_mark = separators[-1]
    whole, _, fraction = text.rpartition(last_mark)
    is_whole_number = len(separators) == 1 or _GROUPS.fullmatch(whole) is not None
    if last_mark in _DECIMAL_MARKS and is_whole_number and last_mark not in whole:
        value = Decimal(re.sub(r"\D", "", whole) + "." + fraction)
        is_ambiguous = len(separators) == 1  # 14.30 may be a time
        return WrittenNumber(text, value.normalize(), parts=tuple(parts) if is_ambiguous else ())
    return WrittenNumber(text, value=None, parts=tuple(parts))


def _roman_numbers(text: str) -> Iterator[Decimal]:
    for match in _ROMAN.finditer(text):
        values = [_ROMAN_DIGITS[letter] for letter in match.group()]
        total = 0
        for value, following in pairwise([*values, 0]):
            if value < following:  # IV is 5 - 1
                total -= value
            else:
                total += value
        yield Decimal(total)
