"""Recognizes the scripts of letters, and text that is written without spaces between words.

Both are recognized by Unicode character names. Average word length would not be a reliable criterion: short lines of
Chinese look like words, and German compounds look like text without spaces.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

SCRIPTS = (
    "",
    *(
        "Latin",
        "Cyrillic",
        "Greek",
        "Han",
        "Hiragana",
        "Katakana",
        "Hangul",
        "Arabic",
        "Hebrew",
        "Devanagari",
        "Thai",
    ),
    *(
        "Armenian",
        "Georgian",
        "Bengali",
        "Gurmukhi",
        "Gujarati",
        "Oriya",
        "Tamil",
        "Telugu",
        "Kannada",
        "Malayalam",
    ),
    *(
        "Sinhala",
        "Lao",
        "Tibetan",
        "Myanmar",
        "Ethiopic",
        "Cherokee",
        "Khmer",
        "Mongolian",
        "Bopomofo",
        "Thaana",
    ),
    *("Syriac", "Tifinagh", "Nko", "Javanese", "Balinese", "Tai"),
)
"""Names of the scripts by number; number 0 represents all other characters. "Tai" comprises Tai Le, New Tai Lue, Tai
Tham and Tai Viet."""
UNSPACED = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Tibetan", "Myanmar", "Khmer"),
    *("Javanese", "Balinese", "Tai"),
)
"""Scripts written without spaces between words. Hangul is not included: Korean has spaces."""
EAST_ASIAN = ("Han", "Hiragana", "Katakana", "Bopomofo")
"""Unspaced scripts in which most words have one or two characters."""
UNSPACED_LANGUAGES = {"ja", "zh", "th", "lo", "km", "my", "bo", "dz"}
"""Codes of languages written in unspaced scripts."""
UNSPACED_SHARE = 0.3
"""A text counts as written without spaces if at least this share of its letters is in unspaced scripts. The share is
below one half because a Han character corresponds to two or three Latin letters, so a third of the letters can make up
most of the words."""

_OTHER_NAMES = {"Ideographic": "Han", "Katakana-hiragana": "Katakana", "New": "Tai"}
_NUMBERS = {name: number for number, name in enumerate(SCRIPTS)}
_FIRST_UNSPACED = "\u0e00"  # the first code point of Thai; no unspaced script has a smaller one
_HAN_RANGES = (
    (0x3005, 0x3007),  # iteration marks and zero
    (0x302A, 0x302D),  # tone marks
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFA6D),
    (0xFA70, 0xFAD9),
    (0x20000, 0x3FFFF),
)
_OTHER_UNSPACED_BLOCKS = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le and New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3040, 0x312F),  # kana and Bopomofo
    (0x3190, 0x31FF),  # Han annotations, further Bopomofo and kana
    (0xA980, 0xA9FF),  # Javanese and further Myanmar
    (0xAA60, 0xAADF),  # further Myanmar, Tai Viet
    (0xFF66, 0xFF9F),  # half-width kana
    (0x1AFF0, 0x1B16F),  # further kana
    (0x1D372, 0x1D376),  # Han tally marks
)


def script_name(letter: str) -> str:
    """Returns the script of a character, such as "Latin".

    A script that is not in `SCRIPTS` is named after the first word of the character's Unicode name. The result is ""
    for characters without a script or a name.
    """
    if ord(letter) < 0x80:
        return "Latin" if letter.isalpha() else ""
    words = unicodedata.name(letter, "").split()
    if words and words[0] in ("HALFWIDTH", "FULLWIDTH"):
        del words[0]
    if not words:
        return ""
    if words[0] == "CJK":
        return "Han"
    name = words[0].capitalize()
    return _OTHER_NAMES.get(name, name)


def script_of(letter: str) -> int:
    """Returns the index of a character's script in `SCRIPTS`; 0 for other scripts."""
    return _NUMBERS.get(script_name(letter), 0)


def is_unspaced(language: str) -> bool:
    """Returns whether a language, such as zh_CN, is written without spaces between words."""
    return re.split(r"[-_@.]", language)[0].lower() in UNSPACED_LANGUAGES


def script_shares(characters: Mapping[str, int]) -> dict[str, float]:
    """Returns each script's share of the letters in a text, the most frequent script first.

    `characters` maps each character of the text to its frequency. The result is empty if there are no letters.
    """
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            scripts[script_name(character)] += count
    letters = scripts.total()
    return {script: count / letters for script, count in scripts.most_common()}


def unspaced_script(characters: Mapping[str, int]) -> str:
    """Returns the main unspaced script of a text with these character counts; "" if spaces separate its words."""
    shares = script_shares(characters)
    unspaced = [script for script in shares if script in UNSPACED]
    if not unspaced or sum(shares[script] for script in unspaced) < UNSPACED_SHARE:
        return ""
    return unspaced[0]


def unspaced_script_of_lines(lines: Sequence[str]) -> str:
    """Returns the main unspaced script of lines; "" if spaces separate their words, even if a tool added the spaces."""
    counts = count_characters(lines)
    script = unspaced_script(counts)
    letters = sum(count for character, count in counts.items() if character.isalpha())
    words = sum(len(line.split()) for line in lines)
    # Lines that have been split into words have about 1.7 letters per word in Chinese, and about 4 in Thai.
    max_letters_per_word = 2.5 if script in EAST_ASIAN else 7.0
    return script if letters > max_letters_per_word * words else ""


def count_characters(lines: Iterable[str]) -> Counter[str]:
    """Returns the frequency of each character in the lines."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    return counts


@cache
def unspaced_class() -> str:
    """Returns a regex character class, without the brackets, for letters, marks and digits in unspaced scripts."""
    ranges = [*_HAN_RANGES]
    for start, end in _OTHER_UNSPACED_BLOCKS:
        for code in range(start, end + 1):
            character = chr(code)
            is_letter_mark_or_digit = unicodedata.category(character)[0] in "LMN"
            if is_letter_mark_or_digit and script_name(character) in UNSPACED:
                ranges.append((code, code))
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in ranges)


@cache
def _unspaced_run() -> re.Pattern[str]:
    return re.compile(f"[{unspaced_class()}]+")


@cache
def mark_class() -> str:
    """Returns a regex character class, without the brackets, for marks that modify a letter, such as accents."""
    characters = [chr(code) for code in range(0x300, 0x10000)]
    return "".join(
        character for character in characters if unicodedata.category(character).startswith("M")
    )


@cache
def word_pattern() -> re.Pattern[str]:
    """Returns a pattern for words: runs of letters, marks and digits or, in unspaced scripts, single letters."""
    unspaced = unspaced_class()
    marks = mark_class()
    return re.compile(rf"[{unspaced}][{marks}]*|(?:(?![{unspaced}])[^\W_]|[{marks}])+")


def unspaced_runs(text: str) -> list[str]:
    """Returns the maximal substrings of a text that are in unspaced scripts."""
    if max(text, default="") < _FIRST_UNSPACED:
        return []
    return _unspaced_run().findall(text)


def count_words(text: str) -> int:
    """Returns the number of words in a text; in unspaced scripts, two characters count as one word."""
    unspaced_characters = sum(map(len, unspaced_runs(text)))
    if not unspaced_characters:
        return len(text.split())
    spaced_text = _unspaced_run().sub(" ", text)
    words = [word for word in spaced_text.split() if any(map(str.isalnum, word))]
    return len(words) + math.ceil(unspaced_characters / 2)
