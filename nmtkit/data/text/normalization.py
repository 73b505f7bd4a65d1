"""Normalization of text, and definition of the white space that separates words.

White space comprises the characters at which `str.split` splits: Unicode's White_Space characters (such as the tab, VT,
NEL, the no-break space, U+2028 and the ideographic space) and the separators FS, GS, RS and US. It separates words for
every kind of tokenizer and in every command. The zero-width space (U+200B), the joiners (U+200C and U+200D) and the
byte-order mark (U+FEFF) are not white space.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal, TypeAlias

Normalization = Literal["nfkc_numbers", "nfkc", "none"]
"""Name of a set of normalization rules; see `normalize`."""

TextForms: TypeAlias = Mapping[str, Callable[[str], str]]
"""Functions, by column, that convert texts to the form in which they are compared."""

DEFAULT: Normalization = "nfkc_numbers"
"""The rules that apply if no tokenizer determines them."""

OTHER_SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
)
OTHER_SPACES += "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
"""All white-space characters except the space."""

REMOVED = "\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x7f\x8f\x9f"
REMOVED += "\u061c\u200e\u200f\ufeff"
"""Characters that nfkc_numbers removes: control characters, directional marks and the byte-order mark."""

BLANKED = "\u200b\ufffd"
"""Characters that nfkc_numbers replaces with a space although they are not white space: the zero-width space and the
replacement character."""

_REMOVED = re.compile(f"[{re.escape(REMOVED)}]")
_BLANKED = re.compile(f"[{BLANKED}]")
_MISSED_SPACES = re.compile("[\x0b\x1c-\x1f\x85]")
_ALL_LETTERS = range(0x20000)
"""Code points to search for decompositions that change a number."""


def normalize(text: str, rules: Normalization) -> str:
    """Returns the text normalized by these rules, with single spaces between words.

    * nfkc_numbers: NFKC, except that superscripts, subscripts, fractions and enclosed numbers do not change, so that
      numbers keep their values. Invisible characters are removed, except for the zero-width joiner and non-joiner.
    * nfkc: Unicode's NFKC without exceptions, which turns "10⁵" into "105" and "2½" into "21⁄2".
    * none: normalizes only white space.
    """
    if rules == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    elif rules == "nfkc_numbers":
        text = _nfkc_with_exceptions(text)
        if not text.isprintable() or "\ufffd" in text:  # a quick test: such characters are rare
            text = _REMOVED.sub("", text)
            text = _BLANKED.sub(" ", text)
    return " ".join(text.split())


def comparable(text: str) -> str:
    """Normalizes a text for comparison when no tokenizer defines the normalization."""
    return normalize(text, DEFAULT)


def separate_words(text: str) -> str:
    """Replaces with spaces the white space that sentencepiece's nmt_nfkc would delete or treat as letters."""
    return _MISSED_SPACES.sub(" ", text)


def _nfkc_with_exceptions(text: str) -> str:
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text
    exceptions = nfkc_exceptions()
    parts = []
    for part in _exceptions_pattern().split(text):  # text and exceptions alternate
        if part in exceptions:
            parts.append(exceptions[part])
        else:
            parts.append(unicodedata.normalize("NFKC", part))
    return "".join(parts)


@cache
def nfkc_exceptions() -> Mapping[str, str]:
    """Returns the characters that nfkc_numbers treats differently from NFKC, each with its nfkc_numbers form.

    Superscripts, subscripts, fractions and enclosed numbers do not change. Units such as "㎡" become "m²".
    """
    # Japanese text uses the full-width tilde as a wave dash; sentencepiece's rules keep it, too.
    exceptions = {"\uff5e": "\uff5e"}
    for code in _ALL_LETTERS:
        letter = chr(code)
        decomposition = unicodedata.decomposition(letter)
        if not decomposition:
            continue
        is_raised_or_lowered = decomposition.startswith(("<super>", "<sub>", "<fraction>"))
        if is_raised_or_lowered or unicodedata.category(letter) == "No":
            exceptions[letter] = letter
    for code in _ALL_LETTERS:
        letter = chr(code)
        decomposition = unicodedata.decomposition(letter)
        if letter in exceptions or not decomposition.startswith("<square>"):
            continue
        codes = decomposition.split()[1:]  # after the tag <square>
        parts = [chr(int(code, 16)) for code in codes]
        if any(part in exceptions for part in parts):
            exceptions[letter] = "".join(parts)
    return exceptions


@cache
def _exceptions_pattern() -> re.Pattern[str]:
    return re.compile(f"([{re.escape(''.join(nfkc_exceptions()))}])")
