"""Characters that should not stand in a text: separators, control characters, mojibake, markup."""

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.blocks import Block
from nmtkit.data.faults import BOM, CONTROL, MARKUP, MOJIBAKE, NUL, PIECES, REPLACED, SEPARATOR, Kind
from nmtkit.diagnosis import characters
from nmtkit.diagnosis.characters import TextArrays

_ODD = (
    (characters.NUL, NUL),
    (characters.SEPARATOR, SEPARATOR),
    (characters.BOM, BOM),
    (characters.CONTROL, CONTROL),
    (characters.REPLACED, REPLACED),
)
_TAGS = (
    "a|abbr|b|big|blockquote|body|br|center|cite|code|dd|div|dl|dt|em|font|form|h[1-6]|head|hr|html|i|img|input|li|link|meta|"
    "nobr|ol|p|pre|q|ref|s|script|seg|small|span|strike|strong|style|sub|sup|table|tbody|td|th|thead|title|tr|tt|u|ul|unk"
)
_ENTITIES = r"&(?:[A-Za-z][A-Za-z0-9]{1,7}|#\d{1,6}|#[xX][\da-fA-F]{1,5});"
_MARKUP = re.compile(rf"{_ENTITIES}|</?(?:{_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_PIECES = re.compile(r"\S@@(?: |$)|(?:^| )\u2581\S")


def find_oddities(block: Block, side: str, text: TextArrays) -> None:
    """Notes the odd characters in one side of a block.

    Args:
        block: gets the faults.
        side: "src" or "tgt".
        text: that side.
    """
    broken = _mojibake(text)
    _add(block, side, MOJIBAKE, broken)
    odd = np.flatnonzero(text.kinds >= characters.ODD)
    for number, kind in _ODD if len(odd) else ():
        places = _first_in_line(text, odd[text.kinds[odd] == number])
        if kind is CONTROL:  # a part of UTF-8 that was read as Latin-1
            places = {row: place for row, place in places.items() if row not in broken}
        _add(block, side, kind, places)
    _add(block, side, MARKUP, _matches(text, "&<", _MARKUP))
    _add(block, side, PIECES, _matches(text, "@\u2581", _PIECES))


def _add(block: Block, side: str, kind: Kind, places: dict[int, int]) -> None:
    block.add(kind, list(places), lambda row: block.side(side, row, places[row]))


def _first_in_line(text: TextArrays, places: NDArray[np.int64]) -> dict[int, int]:
    """For each line that some characters stand in, the first of them, counted from the line's beginning."""
    rows, first = np.unique(text.line_of(places), return_index=True)
    return dict(zip(rows.tolist(), (places[first] - text.starts[rows]).tolist(), strict=True))


def _matches(text: TextArrays, signs: str, pattern: re.Pattern[str]) -> dict[int, int]:
    """The lines that match, and where; only lines with one of some signs are looked at."""
    found = {}
    signed = np.zeros(len(text.codes), dtype=bool)
    for sign in signs:
        signed |= text.codes == ord(sign)
    for row in np.unique(text.line_of(np.flatnonzero(signed))).tolist():
        match = pattern.search(text.lines[row])
        if match:
            found[row] = match.start()
    return found


# What the bytes 0x80 to 0xBF of UTF-8 look like where they were read as Windows-1252, or as Latin-1.
_LATER = bytes(range(0x80, 0xC0)).decode("cp1252", errors="ignore") + bytes(range(0x80, 0xC0)).decode("latin-1")
_RUN = re.compile(f"(?:[\\u00c2-\\u00df][{_LATER}]|[\\u00e0-\\u00ef][{_LATER}]{{2}}|[\\u00f0-\\u00f4][{_LATER}]{{3}})+")


@cache
def _is_later() -> NDArray[np.bool_]:
    table = np.zeros(0x110000, dtype=bool)
    table[[ord(letter) for letter in _LATER]] = True
    return table


def _mojibake(text: TextArrays) -> dict[int, int]:
    """The lines that hold UTF-8 read in another encoding, and where it begins."""
    lead = np.flatnonzero((text.codes >= 0xC2) & (text.codes <= 0xF4))
    lead = lead[_is_later()[text.codes[lead + 1]]]  # the last code is a line feed: there always is a next one
    found = {}
    for row in np.unique(text.line_of(lead)).tolist():
        line = text.lines[row]
        mended = read_again(line)
        if mended != line:
            found[row] = next(place for place, letter in enumerate(line) if mended[place : place + 1] != letter)
    return found


def read_again(line: str) -> str:
    """The line with every run of UTF-8 that was read as Windows-1252 or Latin-1 read as UTF-8 again.

    The line stays as it is if no run makes sense for certain: "IRM\u00c3»" is Portuguese, and "\u00c3»" no letter.
    """
    certain = False

    def read(match: re.Match[str]) -> str:
        nonlocal certain
        run = match.group()
        try:
            result = b"".join(map(_byte, run)).decode("utf-8")
        except UnicodeDecodeError:
            return run
        letters = all(map(str.isalpha, result))
        european = letters and all(letter < "\u0180" or "\u1e00" <= letter < "\u1f00" for letter in result)
        signs = all("\xa0" <= letter <= "\xbf" or "\u2010" <= letter <= "\u203a" or letter == "€" for letter in result)
        if european and len(result) == 1:
            certain |= (
                line[match.start() - 1 : match.start()].islower() or line[match.end() : match.end() + 1].islower()
            )
        else:  # one letter of a far script is chance, several are not
            certain |= signs or (letters and len(result) > 1)
        return result if european or signs or len(result) > 1 else run

    result = _RUN.sub(read, line)
    return result if certain else line


def _byte(letter: str) -> bytes:
    try:
        return letter.encode("cp1252")
    except UnicodeEncodeError:
        return letter.encode("latin-1")
