"""Scripts by their names, and which of them are written without spaces between words."""

import re
import unicodedata

SCRIPTS = (
    "",
    *("Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari", "Thai"),
    *("Armenian", "Georgian", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam"),
    *("Sinhala", "Lao", "Tibetan", "Myanmar", "Ethiopic", "Cherokee", "Khmer", "Mongolian", "Bopomofo", "Thaana"),
    *("Syriac", "Tifinagh", "Nko", "Javanese"),
)
"""Names of scripts by their numbers; 0 is what is no letter of any of them."""
UNSPACED = ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Tibetan", "Myanmar", "Khmer")
"""Scripts that are written without spaces between words ..."""
UNSPACED_LANGUAGES = {"ja", "zh", "th", "lo", "km", "my", "bo", "dz"}
"""... and the languages that are written in them."""

_NAMES = {name.upper(): number for number, name in enumerate(SCRIPTS)} | {"CJK": SCRIPTS.index("Han")}


def script_of(letter: str) -> int:
    """The number of a letter's script, by the name of the letter."""
    words = unicodedata.name(letter, "").split()
    if words and words[0] in ("HALFWIDTH", "FULLWIDTH"):
        del words[0]
    return _NAMES.get(words[0], 0) if words else 0


def is_unspaced(language: str) -> bool:
    """Whether a language, by its code such as zh_CN, is written without spaces between words."""
    return re.split(r"[-_@.]", language)[0].lower() in UNSPACED_LANGUAGES
