"""The characters of a block of lines as arrays: scripts, odd characters, words; every line counted at once."""

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text import SCRIPTS, UNSPACED, script_of

DIGIT = 100
"""The class of a digit of any script."""
SPACE, NEWLINE, SEPARATOR = 200, 201, 202
"""The classes of what stands between words: white space, the end of a line, and what some take for the end of one."""
NUL, BOM, CONTROL, REPLACED = range(203, 207)
"""The classes of other characters that should not stand in a text."""
ODD = SEPARATOR
"""This class and those behind it are odd."""

_SEPARATORS = "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"  # what str.splitlines takes for the end of a line, but for \n
_LETTERS = {"Lu", "Ll", "Lt", "Lo"}
_TABLED = 0x20000
"""Behind here all letters are Han."""


@cache
def classes() -> NDArray[np.uint8]:
    """For every code point its class: a script, white space, the end of a line, something odd, or 0."""
    table = np.zeros(0x110000, dtype=np.uint8)
    table[0x20000:0x32000] = SCRIPTS.index("Han")
    for code in range(_TABLED):
        letter = chr(code)
        category = unicodedata.category(letter)
        if category in _LETTERS:
            table[code] = script_of(letter)
        elif category == "Nd":
            table[code] = DIGIT
        elif category == "Cc":
            table[code] = CONTROL
    for letter in " \t\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000":
        table[ord(letter)] = SPACE
    for letter in _SEPARATORS:
        table[ord(letter)] = SEPARATOR
    table[0], table[0xFEFF], table[0xFFFD], table[10] = NUL, BOM, REPLACED, NEWLINE
    return table


@dataclass(frozen=True)
class TextArrays:
    """n lines of one side of a block, and what they are made of."""

    lines: list[str]
    """The lines."""
    codes: NDArray[np.uint32]
    """`(c,)`: all code points, one line behind the other, each with its end."""
    kinds: NDArray[np.uint8]
    """`(c,)`: their classes."""
    starts: NDArray[np.int64]
    """`(n,)`: where each line begins."""
    lengths: NDArray[np.int64]
    """`(n,)`: characters of each line, without its end."""
    words: NDArray[np.int64]
    """`(n,)`: words of each line, between white space."""
    letters: dict[int, NDArray[np.int64]]
    """`(n,)` for each script that occurs: how many letters of it each line has."""
    digits: NDArray[np.int64]
    """`(n,)`: digits of each line."""

    @classmethod
    def of(cls, lines: list[str]) -> "TextArrays":
        """Counts some lines; a line holds no line feed."""
        whole = "\n".join([*lines, ""])
        codes = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        kinds = classes()[codes]
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
        """Which lines some characters belong to."""
        return np.searchsorted(self.starts, places, side="right") - 1

    def all_letters(self) -> NDArray[np.int64]:
        """`(n,)`: letters of each line, of whatever script."""
        return sum(self.letters.values(), start=np.zeros_like(self.lengths))

    def all_words(self) -> NDArray[np.int64]:
        """`(n,)`: words of each line, about; two letters for one word in scripts that put no space between words."""
        dense = np.zeros_like(self.words)
        for script, letters in self.letters.items():
            if SCRIPTS[script] in UNSPACED:
                dense += letters
        return self.words + dense // 2


def _per_line(chosen: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many chosen characters each line has."""
    return np.diff(np.searchsorted(np.flatnonzero(chosen), ends), prepend=0)
