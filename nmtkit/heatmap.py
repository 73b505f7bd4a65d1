"""Attention matrices as pictures: PNG, SVG and PDF through matplotlib, and HTML pages that need nothing but a browser.

Letters: T target words (rows), S source words (columns). A weight says how much of target word t came from source
word s; each row sums to one.
"""

from __future__ import annotations

import io
import math
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import NmtkitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf", ".html")

WORD_START = "▁"
STANDALONE = ("<s>", "</s>")
LONGEST_LABEL = 36


class PictureWarning(UserWarning):
    """A picture was written, but some of its letters cannot be shown as they should."""


@dataclass(frozen=True, eq=False)
class AttentionPicture:
    """One sentence pair and where the model looked.

    Attributes:
        src_words: The S labels of the columns.
        tgt_words: The T labels of the rows.
        weights: Attention weights, (T, S), not negative.
        title: What the picture shows, such as the model's name.
        score: Log-probability of the target (natural log), if known.
        gold: Pairs (source index, target index), from 0, that are known to be right; drawn as outlines.
    """

    src_words: Sequence[str]
    tgt_words: Sequence[str]
    weights: NDArray[Any]
    title: str = ""
    score: float | None = None
    gold: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        rows, columns = len(self.tgt_words), len(self.src_words)
        assert self.weights.shape == (rows, columns), f"weights {self.weights.shape} for {rows} x {columns} words"

    @property
    def heading(self) -> str:
        """The title with the score behind it."""
        if self.score is None:
            return self.title
        return f"{self.title}  (score {self.score:.2f})".strip()


def merge_subwords(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], weights: NDArray[Any]
) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Joins pieces to words and merges their attention weights.

    A piece that begins with "▁" starts a word, and so does the first piece. "<s>" and "</s>" stay words of their own.
    In scripts written without spaces (Han, kana, Thai, Lao, Khmer, Burmese) every piece stays a word of its own, except
    that punctuation joins what stands before it, as it does elsewhere.

    Columns (source) of one word are *added*: looking at a word is looking at any of its pieces. Rows (target) of one
    word are *averaged*: the word looks where its pieces look on average. So rows that sum to one still do.

    Args:
        src_pieces: The pieces of the columns, as the tokenizer wrote them.
        tgt_pieces: The pieces of the rows.
        weights: Attention weights, (target pieces, source pieces).

    Returns:
        The source words, the target words, and the weights between them, (T, S).
    """
    shape = (len(tgt_pieces), len(src_pieces))
    assert weights.shape == shape, f"weights {weights.shape} for pieces {shape}"
    src, tgt = _word_starts(src_pieces), _word_starts(tgt_pieces)
    src_words, tgt_words = _words(src_pieces, src), _words(tgt_pieces, tgt)
    if not src or not tgt:
        return src_words, tgt_words, np.zeros((len(tgt), len(src)))
    merged = np.add.reduceat(np.add.reduceat(weights.astype(np.float64), src, axis=1), tgt, axis=0)
    lengths = np.diff([*tgt, len(tgt_pieces)])
    return src_words, tgt_words, merged / lengths[:, None]


def _word_starts(pieces: Sequence[str]) -> list[int]:
    return [i for i in range(len(pieces)) if i == 0 or _starts_word(pieces[i - 1], pieces[i])]


def _words(pieces: Sequence[str], starts: Sequence[int]) -> list[str]:
    return [_join(pieces[start:end]) for start, end in zip(starts, [*starts[1:], len(pieces)], strict=False)]


def _starts_word(before: str, piece: str) -> bool:
    if piece.startswith(WORD_START) or piece in STANDALONE or before in STANDALONE:
        return True
    if before == WORD_START:
        return False
    if unicodedata.category(piece[:1] or " ")[0] not in "LN":
        return False
    return _is_unspaced(piece[0]) or _is_unspaced(before[-1:])


def _join(pieces: Sequence[str]) -> str:
    return "".join(pieces).replace(WORD_START, " ").strip() or WORD_START


def _is_unspaced(character: str) -> bool:
    """Whether the character belongs to a script that puts no spaces between words."""
    name = unicodedata.name(character, "") if character else ""
    return name.startswith(("CJK UNIFIED", "CJK COMPAT", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR"))


def check_path(path: str | Path) -> str:
    """Tells the format of a picture file from its suffix; to be called before the work whose result goes there.

    Raises:
        NmtkitError: The suffix names no known format, or the folder does not exist.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        given = f"'{path.suffix}'" if path.suffix else "no suffix"
        raise NmtkitError(f"{path}: {given} is not a picture format; let the name end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise NmtkitError(f"{path}: the folder {path.parent} does not exist; make it first or choose another")
    return suffix


def save(pictures: AttentionPicture | Sequence[AttentionPicture], path: str | Path) -> None:
    """Writes pictures to one file; its suffix chooses the format.

    Several pictures share one sheet in .png and .svg, have a page each in .pdf and follow one another in .html.
    Words longer than 36 letters are shortened in the middle with "…" in .png, .svg and .pdf, never in .html.

    Raises:
        NmtkitError: The format is unknown, the file cannot be written, there is nothing to draw, a weight is not a
            finite number, a known alignment is outside the sentence, or the sheet is too large to be read.

    Warns:
        PictureWarning: No installed font can show some of the letters of a .png or .pdf.
    """
    suffix = check_path(path)
    pictures = [pictures] if isinstance(pictures, AttentionPicture) else list(pictures)
    _check(pictures, path)
    content = _page(pictures).encode() if suffix == ".html" else _image(pictures, suffix, path)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise NmtkitError(f"{path}: cannot be written ({error.strerror}); choose a place you may write to") from error


def _check(pictures: Sequence[AttentionPicture], path: str | Path) -> None:
    if not pictures:
        raise NmtkitError(f"{path}: no sentences were given, so there is nothing to draw")
    for number, picture in enumerate(pictures, start=1):
        if picture.weights.size == 0:
            raise NmtkitError(f"{path}: sentence {number} has no words on one side; leave the empty line out")
        if not np.isfinite(picture.weights).all():
            raise NmtkitError(
                f"{path}: sentence {number} has attention weights that are not finite numbers; "
                "the model is broken, use an earlier checkpoint"
            )
        rows, columns = picture.weights.shape
        for src, tgt in picture.gold:
            if not (0 <= src < columns and 0 <= tgt < rows):
                raise NmtkitError(
                    f"{path}: sentence {number} has a known alignment {src}-{tgt} outside its {columns} source and "
                    f"{rows} target words; indices count from 0 and the source comes first"
                )


def _printable(text: str) -> str:
    """Makes control characters and lone surrogates visible: neither XML nor UTF-8 can carry them."""
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


# ---------------------------------------------------------------------------------------------------- PNG, SVG and PDF

ROTATION = 50.0
GAP = 0.3
COLOUR_BAR = 0.75
SHEET_WIDTH = 16.0
BEST_DPI = 150.0
LEAST_DPI = 60.0
MOST_PIXELS = 60e6
LONGEST_SIDE_PIXELS = 60_000
LONGEST_SIDE_PDF = 200.0
GOLD = "#e8710a"


@dataclass(frozen=True)
class _Panel:
    """A picture with its measures; all lengths in inches, fonts in points."""

    picture: AttentionPicture
    title: str
    src_labels: list[str]
    tgt_labels: list[str]
    fonts: list[str]
    cell: float
    font_size: float
    rotation: float
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class _Sheet:
    """Panels with the places of their upper left corners, in inches from the sheet's own."""

    places: list[tuple[_Panel, float, float]]
    width: float
    height: float


def _image(pictures: Sequence[AttentionPicture], suffix: str, path: str | Path) -> bytes:
    import matplotlib

    headings = [_printable(picture.heading) for picture in pictures]
    words = (_printable(word) for picture in pictures for word in (*picture.src_words, *picture.tgt_words))
    text = "".join((*headings, *words))
    fonts, missing = _fonts(text)
    if suffix != ".svg":
        _warn(text, missing)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Glyph .* missing from")  # ours is one, and names the remedy
        warnings.filterwarnings("ignore", message=r".*Matplotlib currently does not support .* natively")
        # Set for these lines only, so that a user's matplotlibrc (TeX, cropping) cannot break a picture and nothing
        # leaks out. SVG keeps text as text: it can be searched, and the viewer's fonts and shaping serve every script.
        with matplotlib.rc_context(
            {
                "text.usetex": False,
                "savefig.bbox": "standard",
                "svg.fonttype": "none",
                "svg.hashsalt": "nmtkit",
                "pdf.fonttype": 3,
            }
        ):
            panels = [_panel(picture, fonts) for picture in pictures]
            if suffix == ".pdf":
                return _pdf(panels, path)
            sheet = _sheet(panels)
            buffer = io.BytesIO()
            if suffix == ".svg":
                _figure(sheet).savefig(buffer, format="svg", metadata={"Date": None})
            else:
                dpi = _dpi(sheet, path)
                _figure(sheet).savefig(buffer, format="png", dpi=dpi)
            return buffer.getvalue()


def _pdf(panels: Sequence[_Panel], path: str | Path) -> bytes:
    from matplotlib.backends.backend_pdf import PdfPages

    buffer = io.BytesIO()
    with PdfPages(buffer, metadata={"CreationDate": None}) as pages:
        for panel in panels:
            sheet = _sheet([panel])
            if max(sheet.width, sheet.height) > LONGEST_SIDE_PDF:
                raise NmtkitError(f"{path}: a sentence is too long for a page of PDF; write .html instead")
            _figure(sheet).savefig(pages, format="pdf")
    return buffer.getvalue()


def _dpi(sheet: _Sheet, path: str | Path) -> float:
    """The finest resolution, up to 150 dots per inch, that keeps a sheet at a bearable size."""
    width, height = sheet.width, sheet.height
    dpi = min(BEST_DPI, math.sqrt(MOST_PIXELS / (width * height)), LONGEST_SIDE_PIXELS / max(width, height))
    if dpi < LEAST_DPI:
        raise NmtkitError(
            f"{path}: a sheet of {width:.0f} x {height:.0f} inches cannot be read as PNG; "
            "draw fewer sentences, or write .pdf (a page for each) or .html"
        )
    return dpi


def _panel(picture: AttentionPicture, fonts: list[str]) -> _Panel:
    rows, columns = picture.weights.shape
    longest = max(rows, columns)
    cell, font_size = (0.42, 11.0) if longest <= 12 else (0.3, 10.0) if longest <= 30 else (0.24, 9.0)
    src_labels = [_shorten(_printable(word)) for word in picture.src_words]
    tgt_labels = [_shorten(_printable(word)) for word in picture.tgt_words]
    heading = _printable(picture.heading)
    src_sizes = _measure(src_labels, fonts, font_size)
    label_height = max(height for _, height in src_sizes)
    rotation = 0.0 if max(width for width, _ in src_sizes) < cell * 0.9 else ROTATION
    sine, cosine = math.sin(math.radians(rotation)), math.cos(math.radians(rotation))
    left = max(width for width, _ in _measure(tgt_labels, fonts, font_size)) + 0.12
    label_top = max(width * sine + height * cosine for width, height in src_sizes) + 0.12
    overhang = max((j + 0.5) * cell + width * cosine + label_height * sine for j, (width, _) in enumerate(src_sizes))
    width = max(left + max(columns * cell + COLOUR_BAR, overhang), 3.0)
    title = ""
    title_height = 0.0
    if heading:
        ((title_width, line_height),) = _measure([heading], fonts, 12.0)
        letters = max(1, int(len(heading) * width / title_width))
        lines = textwrap.wrap(heading, letters) if title_width > width else [heading]
        title = "\n".join(lines)
        title_height = len(lines) * line_height * 1.35 + 0.15
    return _Panel(
        picture=picture,
        title=title,
        src_labels=src_labels,
        tgt_labels=tgt_labels,
        fonts=fonts,
        cell=cell,
        font_size=font_size,
        rotation=rotation,
        left=left,
        top=title_height + label_top,
        width=width,
        height=title_height + label_top + max(rows * cell, 0.8),
    )


def _sheet(panels: Sequence[_Panel]) -> _Sheet:
    """Lays panels out from left to right in shelves."""
    widest = max(SHEET_WIDTH, max(panel.width for panel in panels) + 2 * GAP)
    places: list[tuple[_Panel, float, float]] = []
    x, y, shelf, width = GAP, GAP, 0.0, 0.0
    for panel in panels:
        if x > GAP and x + panel.width + GAP > widest:
            x, y, shelf = GAP, y + shelf + 2 * GAP, 0.0
        places.append((panel, x, y))
        x += panel.width + 2 * GAP
        width, shelf = max(width, x - GAP), max(shelf, panel.height)
    return _Sheet(places, width, height=y + shelf + GAP)


def _figure(sheet: _Sheet) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, sheet.height), facecolor="white")
    for panel, x, y in sheet.places:
        _draw(figure, panel, x / sheet.width, 1 - y / sheet.height, sheet.width, sheet.height)
    return figure


def _draw(figure: Figure, panel: _Panel, x: float, y: float, width: float, height: float) -> None:
    """Draws a panel with its upper left corner at (x, y), in fractions of a figure of width x height inches."""
    from matplotlib.patches import Rectangle

    picture = panel.picture
    rows, columns = picture.weights.shape
    box_x, box_y = x + panel.left / width, y - panel.top / height
    box_width, box_height = columns * panel.cell / width, rows * panel.cell / height
    axes = figure.add_axes((box_x, box_y - box_height, box_width, box_height))
    axes.set_axis_off()
    mesh = axes.pcolormesh(
        picture.weights, cmap=_colour_map(), vmin=0.0, vmax=_top(picture.weights), edgecolors="#e3e7ec", linewidth=0.4
    )
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    for src, tgt in picture.gold:
        outline = Rectangle((src + 0.06, tgt + 0.06), 0.88, 0.88, fill=False, edgecolor=GOLD, linewidth=1.5)
        axes.add_patch(outline)
    _label(axes, panel)
    if panel.title:
        figure.text(
            x, y, panel.title, fontfamily=panel.fonts, fontsize=12.0, color="#111827", va="top", parse_math=False
        )
    bar_height = min(max(rows * panel.cell, 0.8), 2.5) / height
    bar_axes = figure.add_axes((box_x + box_width + 0.18 / width, box_y - bar_height, 0.12 / width, bar_height))
    bar = figure.colorbar(mesh, cax=bar_axes)
    bar.outline.set_visible(False)
    bar_axes.tick_params(labelsize=8, length=2, colors="#4b5563")


def _label(axes: Axes, panel: _Panel) -> None:
    gap = 0.07 / panel.cell
    for j, word in enumerate(panel.src_labels):
        axes.text(
            j + 0.5,
            -gap,
            word,
            fontfamily=panel.fonts,
            fontsize=panel.font_size,
            color="#111827",
            rotation=panel.rotation,
            rotation_mode="anchor",
            ha="left" if panel.rotation else "center",
            va="bottom" if not panel.rotation else "center",
            parse_math=False,
        )
    for i, word in enumerate(panel.tgt_labels):
        axes.text(
            -gap,
            i + 0.5,
            word,
            fontfamily=panel.fonts,
            fontsize=panel.font_size,
            color="#111827",
            ha="right",
            va="center_baseline",
            parse_math=False,
        )


def _colour_map() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("nmtkit", ["#ffffff", "#cfe0f7", "#6ea3e0", "#1f5fbf", "#0b2a63"])


def _top(weights: NDArray[Any]) -> float:
    """The weight that gets the strongest colour: the largest one, so that diffuse attention can be seen too."""
    return float(weights.max()) or 1.0


def _shorten(word: str) -> str:
    if len(word) <= LONGEST_LABEL:
        return word
    half = LONGEST_LABEL // 2
    return f"{word[:half]}…{word[-half + 1 :]}"


def _measure(labels: Iterable[str], fonts: Sequence[str], font_size: float) -> list[tuple[float, float]]:
    """Width and height of each label in inches."""
    return [_size(label, tuple(fonts), font_size) for label in labels]


@lru_cache(maxsize=10_000)  # words come back, and measuring one takes half a millisecond
def _size(label: str, fonts: tuple[str, ...], font_size: float) -> tuple[float, float]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=72)
    FigureCanvasAgg(figure)  # a figure measures text with its canvas
    extent = figure.text(0, 0, label, fontfamily=fonts, fontsize=font_size, parse_math=False).get_window_extent()
    return extent.width / 72, extent.height / 72


# --------------------------------------------------------------------------------------------------------------- fonts

FIRST_FONT = "DejaVu Sans"  # comes with matplotlib
# Scripts whose letters join, change places or run from right to left.
SHAPED_SCRIPTS = (
    *("ARABIC", "HEBREW", "SYRIAC", "THAANA", "NKO", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL"),
    *("TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "TIBETAN", "KHMER", "MYANMAR"),
)


def _fonts(text: str) -> tuple[list[str], set[str]]:
    """The first font family and as few others as give every letter a glyph; and the letters that none can show."""
    families = [FIRST_FONT]
    missing = {c for c in text if not c.isspace() and unicodedata.category(c) != "Cf"}
    for name, path in _installed_fonts(text):
        if not missing:
            break
        found = {c for c in missing if ord(c) in _glyphs(path)}
        missing -= found
        if found and name not in families:
            families.append(name)
    return families, missing


def _warn(text: str, missing: set[str]) -> None:
    from matplotlib import __version_info__

    if missing:
        letters = " ".join(f"{c} (U+{ord(c):04X})" for c in sorted(missing))
        warnings.warn(
            f"no installed font has a glyph for: {letters}; boxes stand in for them. Install a font that has them "
            "(such as Debian's fonts-noto-core or fonts-noto-cjk), or write .html or .svg, which use "
            "the viewer's fonts",
            PictureWarning,
            stacklevel=4,
        )
    if __version_info__ < (3, 11) and any(unicodedata.name(c, "").startswith(SHAPED_SCRIPTS) for c in text):
        warnings.warn(
            "matplotlib before 3.11 sets scripts such as Arabic letter by letter from left to right; "
            "install matplotlib>=3.11, or write .html or .svg",
            PictureWarning,
            stacklevel=4,
        )


def _installed_fonts(text: str) -> Iterator[tuple[str, str]]:
    """Name and file of each upright font of normal weight: best guesses first, newly installed ones last."""
    from matplotlib import font_manager

    # Han letters look different in the East Asian languages; other letters of the text tell which one it is.
    names = {unicodedata.name(c, "").split(" ")[0] for c in text}
    language = "JP" if names & {"HIRAGANA", "KATAKANA"} else "KR" if "HANGUL" in names else "SC"

    def rank(entry: Any) -> tuple[bool, bool, bool, str]:
        return entry.name != FIRST_FONT, "Sans" not in entry.name, not entry.name.endswith(language), entry.name

    def usable(entry: Any) -> bool:
        return entry.style == "normal" and entry.weight in (400, "normal", "regular", "book") and entry.name[0] != "."

    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for entry in sorted(filter(usable, font_manager.fontManager.ttflist), key=rank):
        if "Last Resort" not in entry.name:  # its glyphs are boxes
            yield entry.name, entry.fname
    # Matplotlib remembers the fonts it found at its first start: look again before giving up.
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


# ---------------------------------------------------------------------------------------------------------------- HTML

STYLE = """
:root { color-scheme: light dark; --paper: #fbfcfd; --card: #ffffff; --text: #1b2430; --faint: #5b6675;
  --line: #e3e7ec; --hue: 20 80 175; --strong: #ffffff; --gold: #c25700; }
@media (prefers-color-scheme: dark) { :root { --paper: #11151b; --card: #1a2029; --text: #e6eaf0; --faint: #9aa6b5;
  --line: #2c3541; --hue: 96 150 235; --strong: #0a1220; --gold: #ffa24d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1.5rem; background: var(--paper); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
p { margin: .25rem 0; }
.faint { color: var(--faint); font-size: .875rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .75rem; padding: 1rem 1.25rem;
  margin: 1rem 0; }
.words { font-size: 1.1rem; line-height: 1.9; }
.words span { padding: .15rem .2rem; border-radius: .3rem; cursor: default; }
.words b { display: inline-block; width: 4rem; color: var(--faint); font-size: .8rem; font-weight: normal; }
.hint { min-height: 1.5em; color: var(--faint); font-size: .875rem; }
.scroll { overflow: auto; max-height: 85vh; }
table { border-collapse: separate; border-spacing: 1px; font-size: .875rem; }
th { font-weight: normal; background: var(--card); cursor: default; white-space: nowrap; }
thead th { position: sticky; top: 0; z-index: 1; vertical-align: bottom; padding: .3rem 0; }
thead th span { writing-mode: vertical-rl; text-orientation: sideways; transform: rotate(180deg); line-height: 1.6rem;
  padding: .25rem 0;
  max-height: 14rem; border-radius: .3rem; white-space: normal; overflow-wrap: anywhere; }
thead th.upright span { text-orientation: mixed; transform: none; }
tbody th { position: sticky; left: 0; z-index: 1; text-align: right; padding: 0 .5rem; border-radius: .3rem; }
tbody th span { display: block; width: max-content; max-width: 15rem; margin-left: auto; padding: 0 .2rem;
  border-radius: .3rem; white-space: normal; overflow-wrap: anywhere; }
thead td { position: sticky; top: 0; left: 0; z-index: 2; background: var(--card); }
tbody td { min-width: 1.9rem; height: 1.6rem; text-align: center; font-size: .7rem; color: transparent;
  font-variant-numeric: tabular-nums; border-radius: .2rem;
  background: linear-gradient(rgb(var(--hue) / var(--w, 0)) 0 0) var(--paper); }
tbody td.gold { outline: 2px solid var(--gold); outline-offset: -2px; }
tr.on td, td.on { color: var(--text); }
tr.on td.strong, td.strong.on { color: var(--strong); }
tr.on td:not(.gold) { box-shadow: inset 0 1px var(--faint), inset 0 -1px var(--faint); }
.lit { background: linear-gradient(rgb(var(--hue) / var(--w)) 0 0) var(--card); }
.lit.strong { color: var(--strong); }
.on:is(span, th), tr.on th { background: var(--line); outline: 2px solid rgb(var(--hue)); outline-offset: -1px; }
:focus-visible { outline: 2px solid rgb(var(--hue)); }
.key { display: inline-block; width: 5rem; height: .8rem; border: 1px solid var(--line); border-radius: .2rem;
  background: linear-gradient(90deg, transparent, rgb(var(--hue))); vertical-align: middle; }
.box { display: inline-block; width: .8rem; height: .8rem; border: 2px solid var(--gold); vertical-align: middle; }
"""

# Pointing at a target word colours the source words with its row of weights; pointing at a source word, the other way.
SCRIPT = """
for (const section of document.querySelectorAll("section")) {
  const rows = [...section.querySelectorAll("tbody tr")];
  const src = { words: [...section.querySelectorAll(".src span")], heads: [...section.querySelectorAll("thead th")] };
  const tgt = { words: [...section.querySelectorAll(".tgt span")], heads: rows.map((row) => row.cells[0]) };
  const hint = section.querySelector(".hint");
  const idle = hint.textContent;
  const isolated = (word) => "\u2068" + word.textContent + "\u2069";  // so that Hebrew or Arabic stays in its place
  const cell = (t, s) => rows[t].cells[s + 1];
  const clear = () => {
    for (const element of section.querySelectorAll(".on, .lit")) {
      element.classList.remove("on", "lit");
      if (element.tagName !== "TD") { element.classList.remove("strong"); element.style.removeProperty("--w"); }
    }
    hint.textContent = idle;
  };
  const show = (here, index, there, cellAt) => {
    clear();
    const found = [];
    there.words.forEach((word, other) => {
      const td = cellAt(other);
      td.classList.add("on");
      const shade = td.style.getPropertyValue("--w") || "0";
      for (const element of [word, there.heads[other].firstElementChild]) {
        element.classList.add("lit");
        element.classList.toggle("strong", td.classList.contains("strong"));
        element.style.setProperty("--w", shade);
      }
      if (td.textContent) found.push([Number(td.textContent), isolated(word)]);
    });
    here.words[index].classList.add("on");
    (here === tgt ? rows[index] : here.heads[index]).classList.add("on");
    found.sort((a, b) => b[0] - a[0]);
    const list = found.slice(0, 4).map(([weight, word]) => word + " " + weight.toFixed(2)).join(" · ");
    hint.textContent = isolated(here.words[index]) + (here === tgt ? " ← " : " → ") + list;
  };
  const showTarget = (t) => show(tgt, t, src, (s) => cell(t, s));
  const showSource = (s) => show(src, s, tgt, (t) => cell(t, s));
  const listen = (element, action) => {
    element.addEventListener("mouseenter", action);
    element.addEventListener("focus", action);
    element.addEventListener("mouseleave", clear);
    element.addEventListener("blur", clear);
  };
  tgt.words.forEach((word, t) => listen(word, () => showTarget(t)));
  src.words.forEach((word, s) => listen(word, () => showSource(s)));
  rows.forEach((row, t) => listen(row, () => showTarget(t)));
  src.heads.forEach((head, s) => listen(head, () => showSource(s)));
}
"""

# The policy forbids the page to load anything from anywhere, whatever a sentence holds.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="faint">Each row shows where the model looked while it wrote that target word. {legend}</p>
{sections}
<script>{script}</script>
</body>
</html>
"""

HINT = "Point at a word, or move to it with the Tab key, to see its weights."


def _page(pictures: Sequence[AttentionPicture]) -> str:
    count = f": {len(pictures)} sentences" if len(pictures) > 1 else ""
    legend = '<span class="key"></span> from 0 to the largest weight of the sentence.'
    if any(picture.gold for picture in pictures):
        legend += ' <span class="box"></span> known alignment.'
    sections = "\n".join(_section(number, picture) for number, picture in enumerate(pictures, start=1))
    return PAGE.format(title=f"Attention{count}", style=STYLE, legend=legend, sections=sections, script=SCRIPT)


def _section(number: int, picture: AttentionPicture) -> str:
    gold = set(picture.gold)
    top = _top(picture.weights)
    heads = "".join(_column_head(word) for word in picture.src_words)
    body = []
    for t, (word, row) in enumerate(zip(picture.tgt_words, picture.weights.tolist(), strict=True)):
        cells = "".join(_cell(weight, top, (s, t) in gold) for s, weight in enumerate(row))
        body.append(f'<tr><th scope="row" dir="auto"><span>{_text(word)}</span></th>{cells}</tr>')
    heading = _text(picture.heading) or f"Sentence {number}"
    return f"""<section aria-label="Sentence {number}">
<h2 dir="auto">{heading}</h2>
{_line("source", "src", picture.src_words)}
{_line("target", "tgt", picture.tgt_words)}
<p class="hint" aria-live="polite">{HINT}</p>
<div class="scroll"><table>
<thead><tr><td></td>{heads}</tr></thead>
<tbody>
{"".join(row + chr(10) for row in body)}</tbody>
</table></div>
</section>"""


def _line(name: str, side: str, words: Sequence[str]) -> str:
    spans = " ".join(f'<span tabindex="0" dir="auto">{_text(word)}</span>' for word in words)
    return f'<p class="words {side}"><b>{name}</b><bdi dir="{_direction(words)}">{spans}</bdi></p>'


def _direction(words: Sequence[str]) -> str:
    """Which way the line runs, told by its first letter that has a direction."""
    kinds = (unicodedata.bidirectional(letter) for word in words for letter in word)
    first = next((kind for kind in kinds if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"


def _column_head(word: str) -> str:
    # East Asian letters read upright from top to bottom; all others are turned to read from bottom to top.
    upright = ' class="upright"' if any(unicodedata.east_asian_width(c) in "WF" for c in word) else ""
    return f'<th scope="col"{upright}><span>{_text(word)}</span></th>'


def _cell(weight: float, top: float, gold: bool) -> str:
    shade = weight / top
    classes = " ".join(name for name, on in (("strong", shade > 0.7), ("gold", gold)) if on)
    attributes = (f' class="{classes}"' if classes else "") + (f' style="--w:{shade:.3f}"' if shade >= 0.001 else "")
    number = f"{weight:.2f}" if weight >= 0.005 else ""
    return f"<td{attributes}>{number}</td>"


def _text(word: str) -> str:
    return escape(_printable(word))
