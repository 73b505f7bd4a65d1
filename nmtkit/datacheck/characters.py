"""The characters of a block of lines as arrays: scripts, words, and suspicious characters."""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text import faults
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.faults import FaultKind
from nmtkit.data.text.normalization import OTHER_SPACES
from nmtkit.data.text.scripts import SCRIPTS, UNSPACED, script_of

# Classes of characters in addition to the scripts: digits; white space, line feeds and other line separators; and
# characters that do not belong in text. SEPARATOR and all later classes are suspicious.
DIGIT = 100
SPACE, NEWLINE, SEPARATOR = 200, 201, 202
NUL, BOM, CONTROL, REPLACED = range(203, 207)

# white space that separates lines or larger units, except \n
_SEPARATORS = "\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029"
_FAR = 0x20000  # from here on, all letters are Han


@cache
def character_classes() -> NDArray[np.uint8]:
    """Returns the class of every code point: a script, one of the classes above, or 0."""
    table = np.zeros(0x110000, dtype=np.uint8)
    table[_FAR:0x32000] = SCRIPTS.index("Han")
    for code in range(_FAR):
        category = unicodedata.category(chr(code))
        if category in ("Lu", "Ll", "Lt", "Lo"):
            table[code] = script_of(chr(code))
        elif category == "Nd":
            table[code] = DIGIT
        elif category == "Cc":
            table[code] = CONTROL
    for letter in [" ", *OTHER_SPACES]:
        table[ord(letter)] = SPACE
    for letter in _SEPARATORS:
        table[ord(letter)] = SEPARATOR
    table[0], table[0xFEFF], table[0xFFFD], table[10] = NUL, BOM, REPLACED, NEWLINE
    return table


@dataclass(frozen=True)
class TextArrays:
    """n lines of one side of a block, and their character counts."""

    lines: list[str]
    codes: NDArray[np.uint32]
    """`(c,)`: the concatenated code points of all lines with their line feeds."""
    kinds: NDArray[np.uint8]
    """`(c,)`: the class of each code point."""
    starts: NDArray[np.int64]
    """`(n,)`: start of each line."""
    lengths: NDArray[np.int64]
    """`(n,)`: characters per line, without the line feed."""
    words: NDArray[np.int64]
    """`(n,)`: white-space separated words per line."""
    letters: dict[int, NDArray[np.int64]]
    """`(n,)` for each script that occurs: number of its letters per line."""
    digits: NDArray[np.int64]
    """`(n,)`: digits per line."""

    @classmethod
    def of(cls, lines: list[str]) -> "TextArrays":
        """Counts the characters of lines, which must not contain line feeds."""
        whole = "\n".join([*lines, ""])
        codes = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        kinds = character_classes()[codes]
        ends = np.flatnonzero(kinds == NEWLINE)
        starts = np.concatenate([[0], ends + 1])[:-1]
        blank = (kinds >= SPACE) & (kinds <= SEPARATOR)
        begins = ~blank
        begins[1:] &= blank[:-1]
        present = np.flatnonzero(np.bincount(kinds, minlength=len(SCRIPTS))[1 : len(SCRIPTS)]) + 1
        return cls(
            lines=lines,
            codes=codes,
            kinds=kinds,
            starts=starts,
            lengths=ends - starts,
            words=_per_line(begins, ends),
            letters={script: _per_line(kinds == script, ends) for script in present.tolist()},
            digits=_per_line(kinds == DIGIT, ends),
        )

    def line_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the line of each given character."""
        return np.searchsorted(self.starts, places, side="right") - 1

    def letter_counts(self) -> NDArray[np.int64]:
        """Returns the number of letters of any script per line, `(n,)`."""
        return sum(self.letters.values(), start=np.zeros_like(self.lengths))

    def word_counts(self) -> NDArray[np.int64]:
        """Returns the approximate number of words per line, `(n,)`.

        In scripts without spaces, two letters count as a word.
        """
        dense = np.zeros_like(self.words)
        for script, letters in self.letters.items():
            if SCRIPTS[script] in UNSPACED:
                dense += letters
        return self.words + dense // 2


def _per_line(chosen: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.diff(np.searchsorted(np.flatnonzero(chosen), ends), prepend=0)


_ODD = {
    NUL: faults.NUL,
    SEPARATOR: faults.SEPARATOR,
    BOM: faults.BOM,
    CONTROL: faults.CONTROL,
    REPLACED: faults.REPLACED,
}
_TAGS = (
    "a|abbr|b|big|blockquote|body|br|center|cite|code|dd|div|dl|dt|em|font|form|h[1-6]|head|hr|html|i|img|input|li|link|meta|"
    "nobr|ol|p|pre|q|ref|s|script|seg|small|span|strike|strong|style|sub|sup|table|tbody|td|th|thead|title|tr|tt|u|ul|unk"
)
_ENTITIES = r"&(?:[A-Za-z][A-Za-z0-9]{1,7}|#\d{1,6}|#[xX][\da-fA-F]{1,5});"
_MARKUP = re.compile(rf"{_ENTITIES}|</?(?:{_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_PIECES = re.compile(r"\S@@(?: |$)|(?:^| )\u2581\S")


def find_odd_characters(block: Block, side: str, text: TextArrays) -> None:
    """Adds the suspicious characters in `text`, the "src" or "tgt" side of a block, to the block's faults."""

    def add(kind: FaultKind, places: dict[int, int]) -> None:
        block.add(kind, list(places), lambda row: block.side(side, row, places[row]))

    broken = _mojibake(text)
    add(faults.MOJIBAKE, broken)
    odd = np.flatnonzero(text.kinds >= SEPARATOR)
    for number, kind in _ODD.items() if len(odd) else ():
        own = odd[text.kinds[odd] == number]
        # the first such character of each line
        rows, first = np.unique(text.line_of(own), return_index=True)
        places = dict(zip(rows.tolist(), (own[first] - text.starts[rows]).tolist(), strict=True))
        if number == CONTROL:  # possibly a byte of UTF-8 that was decoded as Latin-1
            places = {row: place for row, place in places.items() if row not in broken}
        add(kind, places)
    add(faults.MARKUP, _matches(text, "&<", _MARKUP))
    add(faults.PIECES, _matches(text, "@\u2581", _PIECES))


def _matches(text: TextArrays, signs: str, pattern: re.Pattern[str]) -> dict[int, int]:
    """Returns the position of the first match by line; searches only lines that contain one of the signs."""
    places = {}
    signed = np.zeros(len(text.codes), dtype=bool)
    for sign in signs:
        signed |= text.codes == ord(sign)
    for row in np.unique(text.line_of(np.flatnonzero(signed))).tolist():
        if match := pattern.search(text.lines[row]):
            places[row] = match.start()
    return places


# The continuation bytes of UTF-8, 0x80 to 0xBF, decoded as Windows-1252 or as Latin-1.
_NEXT = bytes(range(0x80, 0xC0)).decode("cp1252", errors="ignore") + bytes(
    range(0x80, 0xC0)
).decode("latin-1")
_RUN = re.compile(
    f"(?:[\\u00c2-\\u00df][{_NEXT}]|[\\u00e0-\\u00ef][{_NEXT}]{{2}}|[\\u00f0-\\u00f4][{_NEXT}]{{3}})+"
)


def _mojibake(text: TextArrays) -> dict[int, int]:
    """Returns, by line, the position where UTF-8 that was decoded with the wrong encoding begins."""
    lead = np.flatnonzero((text.codes >= 0xC2) & (text.codes <= 0xF4))
    # a next character always exists, because the last one is a line feed
    lead = lead[np.isin(text.codes[lead + 1], list(map(ord, _NEXT)))]
    places = {}
    for row in np.unique(text.line_of(lead)).tolist():
        line = text.lines[row]
        mended = fix_mojibake(line)
        if mended != line:
            places[row] = next(
                place for place, letter in enumerate(line) if mended[place : place + 1] != letter
            )
    return places


def fix_mojibake(line: str) -> str:
    """Repairs UTF-8 that was decoded as Windows-1252 or Latin-1.

    A line is left unchanged unless the result is certain: the "Ã»" in Portuguese "IRMÃ»" is not a damaged "û".
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
        european = letters and all(
            letter < "\u0180" or "\u1e00" <= letter < "\u1f00" for letter in result
        )
        signs = all(
            "\xa0" <= letter <= "\xbf" or "\u2010" <= letter <= "\u203a" or letter == "€"
            for letter in result
        )
        if european and len(result) == 1:
            certain |= (
                line[match.start() - 1 : match.start()].islower()
                or line[match.end() : match.end() + 1].islower()
            )
        else:  # a single letter of an unrelated script may be due to chance; several are not
            # a result with another such run was decoded wrongly twice
            certain |= signs or (letters and len(result) > 1) or bool(_RUN.search(result))
        return result if european or signs or len(result) > 1 else run

    result = _RUN.sub(read, line)
    return result if certain else line


def _byte(letter: str) -> bytes:
    try:
        return letter.encode("cp1252")
    except UnicodeEncodeError:
        return letter.encode("latin-1")


@cache
def _replacements() -> tuple[re.Pattern[str], dict[int, str]]:
    """Returns a pattern for repairable characters, and their replacements: a space for white space, else nothing."""
    mended = [number for number, kind in _ODD.items() if kind.fix_repairs]
    letters = list(map(chr, np.flatnonzero(np.isin(character_classes(), mended)).tolist()))
    pattern = re.compile("[" + "".join(map(re.escape, letters)) + "]")
    return pattern, {ord(letter): " " if letter.isspace() else "" for letter in letters}


def repair_line(text: str) -> tuple[str, list[str]]:
    """Returns the repaired line and the names of its faults; no names if it is unchanged."""
    kinds = []
    while (repaired := fix_mojibake(text)) != text:  # text may have been decoded wrongly twice
        text, kinds = repaired, [faults.MOJIBAKE.name]
    pattern, replacements = _replacements()
    odd = {_ODD[int(character_classes()[ord(letter)])].name for letter in pattern.findall(text)}
    if odd:
        text = text.translate(replacements).strip()
    return text, kinds + sorted(odd)
