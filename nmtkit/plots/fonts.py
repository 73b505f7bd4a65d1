"""Printable characters, installed fonts that have glyphs for them, and text sizes."""

import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

FIRST_FONT = "DejaVu Sans"  # installed with matplotlib


class PictureWarning(UserWarning):
    """A figure was written, but some of its characters are not displayed correctly."""


def printable(text: str) -> str:
    """Replaces control characters and lone surrogates, which break XML, UTF-8 or terminals, with a visible mark."""
    if text.isprintable():
        return text
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def choose_fonts(text: str, first: str) -> tuple[list[str], set[str]]:
    """Returns the font families that a text needs, and its characters without a glyph in any font."""
    from matplotlib import font_manager

    families = [first]
    missing = {c for c in text if not c.isspace() and unicodedata.category(c) != "Cf"}
    if first != FIRST_FONT:
        missing -= {c for c in missing if ord(c) in _glyphs(font_manager.findfont(first))}
    for name, path in _installed_fonts(text):
        if not missing:
            break
        covered = {c for c in missing if ord(c) in _glyphs(path)}
        missing -= covered
        if covered and name not in families:
            families.append(name)
    return families, missing


def _installed_fonts(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and files of upright fonts of normal weight, best guesses first."""
    from matplotlib import font_manager

    # Han characters look different in each East Asian language; other letters of the text indicate the language.
    names = {unicodedata.name(c, "").split(" ")[0] for c in text}
    language = "JP" if names & {"HIRAGANA", "KATAKANA"} else "KR" if "HANGUL" in names else "SC"

    def rank(entry: Any) -> tuple[bool, bool, bool, str]:
        return (
            entry.name != FIRST_FONT,
            "Sans" not in entry.name,
            not entry.name.endswith(language),
            entry.name,
        )

    def usable(entry: Any) -> bool:
        return (
            entry.style == "normal"
            and entry.weight in (400, "normal", "regular", "book")
            and entry.name[0] != "."
        )

    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for entry in sorted(filter(usable, font_manager.fontManager.ttflist), key=rank):
        if "Last Resort" not in entry.name:  # the glyphs of this font are boxes
            yield entry.name, entry.fname
    # Matplotlib caches the list of fonts from its first start, so the list is refreshed before giving up.
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        before = len(font_manager.fontManager.ttflist)
        try:
            font_manager.fontManager.addfont(path)
        except (OSError, RuntimeError):
            continue  # not a font that matplotlib can read
        for entry in filter(usable, font_manager.fontManager.ttflist[before:]):
            yield entry.name, entry.fname


@cache
def _glyphs(path: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def measure_labels(
    labels: Iterable[str], fonts: Sequence[str], font_size: float, bold: Container[int] = ()
) -> list[tuple[float, float]]:
    """Returns the width and height of each label in inches; `bold` has the indices of bold labels."""
    return [
        _size(label, tuple(fonts), font_size, number in bold) for number, label in enumerate(labels)
    ]


def widest(labels: Iterable[str], fonts: Sequence[str], font_size: float) -> float:
    """Returns the width of the widest label in inches; 0 if there is none."""
    return max((width for width, _ in measure_labels(labels, fonts, font_size)), default=0.0)


@lru_cache(maxsize=10_000)  # words recur, and measuring one takes half a millisecond
def _size(label: str, fonts: tuple[str, ...], font_size: float, bold: bool) -> tuple[float, float]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=72)
    FigureCanvasAgg(figure)  # measuring text requires a canvas
    weight = "bold" if bold else "normal"
    extent = figure.text(
        0, 0, label, fontfamily=fonts, fontsize=font_size, fontweight=weight
    ).get_window_extent()
    return extent.width / 72, extent.height / 72
