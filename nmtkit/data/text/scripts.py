"""Scripts: which script a letter belongs to, and which texts are written without spaces between words.

The Unicode names of the letters decide this. The average length of words is no help: short lines of Chinese look like
words, and German compounds look like text without spaces.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

SCRIPTS = (
    "",
    *("Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari", "Thai"),
    *("Armenian", "Georgian", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam"),
    *("Sinhala", "Lao", "Tibetan", "Myanmar", "Ethiopic", "Cherokee", "Khmer", "Mongolian", "Bopomofo", "Thaana"),
    *("Syriac", "Tifinagh", "Nko", "Javanese", "Balinese", "Tai"),
)
"""Scripts by number; 0 is any other character. Tai are Tai Le, New Tai Lue, Tai Tham and Tai Viet."""
UNSPACED = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Tibetan", "Myanmar", "Khmer"),
    *("Javanese", "Balinese", "Tai"),
)
"""Scripts written without spaces between words. Hangul is not among them: Korean has spaces."""
EAST_ASIAN = ("Han", "Hiragana", "Katakana", "Bopomofo")
"""Scripts without spaces in which a word has one or two characters."""
UNSPACED_LANGUAGES = {"ja", "zh", "th", "lo", "km", "my", "bo", "dz"}
"""Languages that use these scripts."""
UNSPACED_SHARE = 0.3
"""A text with at least this share of its letters in these scripts counts as written without spaces. The share is below
one half because a Han character corresponds to two or three Latin letters: a third of the letters makes up most of the
words."""

_OTHER_NAMES = {"CJK": "Han", "Ideographic": "Han", "Katakana-hiragana": "Katakana", "New": "Tai"}
_NUMBERS = {name: number for number, name in enumerate(SCRIPTS)}
_FIRST_UNSPACED = "\u0e00"  # Thai: no character of such a script has a smaller code
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
    """The script of a character by its Unicode name, such as "Latin"; the first word of the name for other scripts."""
    if ord(letter) < 0x80:
        return "Latin" if letter.isalpha() else ""
    words = unicodedata.name(letter, "").split()
    if words and words[0] in ("HALFWIDTH", "FULLWIDTH"):
        del words[0]
    if not words:
        return ""
    name = words[0].capitalize() if words[0] != "CJK" else words[0]
    return _OTHER_NAMES.get(name, name)


def script_of(letter: str) -> int:
    """The number of a letter's script."""
    return _NUMBERS.get(script_name(letter), 0)


def is_unspaced(language: str) -> bool:
    """Whether a language, such as zh_CN, is written without spaces between words."""
    return re.split(r"[-_@.]", language)[0].lower() in UNSPACED_LANGUAGES


def script_shares(characters: Mapping[str, int]) -> dict[str, float]:
    """The share of each script among the letters of a text, from the counts of its characters; empty without letters.

    The most frequent script comes first.
    """
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            scripts[script_name(character)] += count
    letters = scripts.total()
    return {script: count / letters for script, count in scripts.most_common()}


def unspaced_script(characters: Mapping[str, int]) -> str:
    """The main script without spaces of a text that is written without them; empty for all other texts."""
    shares = script_shares(characters)
    unspaced = [script for script in shares if script in UNSPACED]
    if not unspaced or sum(shares[script] for script in unspaced) < UNSPACED_SHARE:
        return ""
    return unspaced[0]


def unspaced_script_of_lines(lines: Sequence[str]) -> str:
    """The main script without spaces of some lines, unless they were cut into words; empty for all other lines."""
    counts = count_characters(lines)
    script = unspaced_script(counts)
    letters = sum(count for character, count in counts.items() if character.isalpha())
    words = sum(len(line.split()) for line in lines)
    # Lines that were cut into words have about 1.7 letters to a word in Chinese, and about 4 in Thai.
    longest_words = 2.5 if script in EAST_ASIAN else 7.0
    return script if letters > longest_words * words else ""


def count_characters(lines: Iterable[str]) -> Counter[str]:
    """How often each character occurs in some lines."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    return counts


@cache
def unspaced_class() -> str:
    """The letters, marks and digits of all scripts without spaces, for use within a regular expression."""
    ranges = [*_HAN_RANGES]
    for start, end in _OTHER_UNSPACED_BLOCKS:
        for code in range(start, end + 1):
            character = chr(code)
            if script_name(character) in UNSPACED and unicodedata.category(character)[0] in "LMN":
                ranges.append((code, code))
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in ranges)


@cache
def _unspaced_run() -> re.Pattern[str]:
    return re.compile(f"[{unspaced_class()}]+")


@cache
def mark_class() -> str:
    """Accents and vowel signs, which belong to the letter before them, for use within a regular expression."""
    return "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M"))


@cache
def word_pattern() -> re.Pattern[str]:
    """Matches the words of any language: runs of letters, marks and digits; of scripts without spaces each letter."""
    unspaced = unspaced_class()
    marks = mark_class()
    return re.compile(rf"[{unspaced}][{marks}]*|(?:(?![{unspaced}])[^\W_]|[{marks}])+")


def unspaced_runs(text: str) -> list[str]:
    """The runs of characters of scripts without spaces in a text."""
    if max(text, default="") < _FIRST_UNSPACED:
        return []
    return _unspaced_run().findall(text)


def count_words(text: str) -> int:
    """The words of a text; in scripts without spaces between words, two characters count as a word."""
    dense = sum(map(len, unspaced_runs(text)))
    if not dense:
        return len(text.split())
    rest = _unspaced_run().sub(" ", text)
    words = [word for word in rest.split() if any(map(str.isalnum, word))]
    return len(words) + -(-dense // 2)
