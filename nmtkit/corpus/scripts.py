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
_FAR = 0x20000  # from here to the end of plane 3 all letters are Han
_FAR_END = 0x3FFFF


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
    codes = [code for code in range(ord(_FIRST_UNSPACED), _FAR) if script_name(chr(code)) in UNSPACED]
    codes = [code for code in codes if unicodedata.category(chr(code))[0] in "LMN"]
    starts = [code for number, code in enumerate(codes) if number == 0 or codes[number - 1] != code - 1]
    ends = [code for number, code in enumerate(codes) if number + 1 == len(codes) or codes[number + 1] != code + 1]
    ranges = [*zip(starts, ends, strict=True), (_FAR, _FAR_END)]
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
