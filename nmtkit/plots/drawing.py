"""Colours, settings, axes and file output shared by all matplotlib figures."""

from __future__ import annotations

import io
import math
import warnings
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import suggest_names
from nmtkit.plots import fonts
from nmtkit.plots.pages import picture_format, render, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

INK = "#111827"
FAINT = "#4b5563"
LINE = "#e3e7ec"
BLUES = ("#ffffff", "#cfe0f7", "#6ea3e0", "#1f5fbf", "#0b2a63")
SERIES = ("#1f5fbf", "#d1580b", "#1b8a5a", "#8e44ad", "#c2185b", "#7a6a00", "#0e7c8c", "#5b6675")

BEST_DPI, PRINT_DPI, MIN_DPI = 150.0, 300.0, 60.0
MAX_PIXELS = 60e6
MAX_SIDE_PIXELS = 60_000
MAX_SIDE_PDF = 200.0
MAX_TEXT = 1.4
"""Maximum growth of text relative to the figure; larger words would overlap."""


class ScaleFactors(NamedTuple):
    """Scale factors of a figure's lengths and of its text."""

    length: float = 1.0
    text: float = 1.0


@dataclass(frozen=True)
class FigureStyle:
    """The style of a figure; each kind of figure has its own defaults for unset values."""

    title: str | None = None
    """Title that replaces the default; an empty string means no title."""
    size: tuple[float, float | None] | None = None
    """Width and, optionally, maximum height in inches. Figures are scaled to fit; attention pages in HTML ignore it."""
    font: str = ""
    """Font family."""
    font_size: float | None = None
    """Font size of words and legends in points; all other text scales accordingly."""
    colours: tuple[str, ...] = ()
    """Colours for shades, from lowest to highest, or a matplotlib colour map; for curves, one colour per curve."""

    def __post_init__(self) -> None:
        """Raises an error unless the font and the colours exist."""
        if not self.font and not self.colours:
            return
        import matplotlib
        from matplotlib import font_manager
        from matplotlib.colors import is_color_like

        known = ["serif", "sans-serif", "monospace", *sorted(font_manager.get_font_names())]
        if self.font and self.font not in known:
            raise NmtkitError(
                f"font {self.font!r} is not installed: {suggest_names(self.font, known)}"
            )
        for colour in self.colours:
            if not is_color_like(colour) and self.colours != (colour,):
                raise NmtkitError(
                    f"{colour!r} is not a colour; use a name (navy), a hexadecimal value "
                    "(#1f5fbf) or a grey level (0.5)"
                )
            if not is_color_like(colour) and colour not in matplotlib.colormaps:
                raise NmtkitError(
                    f"{colour!r} is neither a colour nor a colour map: "
                    f"{suggest_names(colour, matplotlib.colormaps)}"
                )

    @property
    def dpi(self) -> float:
        """Resolution of .png files in dots per inch; print resolution if the size is set."""
        return BEST_DPI if self.size is None else PRINT_DPI

    def factors(self, width: float, height: float, font_size: float) -> ScaleFactors:
        """Returns the scale factors of a figure with this natural size in inches and words of `font_size` points."""
        scale = self.scale(width, height)
        return ScaleFactors(scale, scale if self.font_size is None else self.font_size / font_size)

    def scale(self, width: float, height: float) -> float:
        """Returns the factor that fits a sheet (in inches) into the given size; 1 without a size."""
        if self.size is None:
            return 1.0
        widest, highest = self.size
        return min(widest / width, math.inf if highest is None else highest / height)

    def shades(self) -> Any:
        """Returns the colour map for weights, by default from white to dark blue."""
        import matplotlib
        from matplotlib.colors import LinearSegmentedColormap, is_color_like

        if len(self.colours) == 1 and not is_color_like(self.colours[0]):
            return matplotlib.colormaps[self.colours[0]]
        given = self.colours if len(self.colours) > 1 else ("#ffffff", *self.colours)
        return LinearSegmentedColormap.from_list("nmtkit", given if self.colours else BLUES)

    def series(self, count: int) -> list[str]:
        """Returns a colour for each of `count` curves."""
        from matplotlib.colors import is_color_like, to_hex

        given: Sequence[str] = self.colours or SERIES
        if len(given) == 1 and not is_color_like(given[0]):
            given = [
                to_hex(one)
                for one in getattr(self.shades(), "colors", self.shades()(range(0, 256, 32)))
            ]
        return [to_hex(given[number % len(given)]) for number in range(count)]

    def css(self) -> str:
        """Returns the CSS of a page."""
        from matplotlib.colors import to_rgb

        rules = []
        if self.colours:
            strongest = to_rgb(self.shades()(1.0))
            hue = " ".join(str(round(255 * part)) for part in strongest)
            rules.append(
                f":root {{ --hue: {hue}; --strong: "
                f"{'#ffffff' if is_dark(strongest) else '#000000'}; }}"
            )
        if self.font:
            rules.append(f'body {{ font-family: "{self.font}"; }}')
        if self.font_size:
            rules.append(f":root, body {{ font-size: {self.font_size:g}pt; }}")
        return " ".join(rules)


DEFAULT_STYLE = FigureStyle()


def is_dark(colour: Sequence[float]) -> bool:
    """Returns whether text on a colour (red, green, blue from 0 to 1) must be white."""
    return (
        sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), colour, strict=False))
        < 0.5
    )


@contextmanager
def settings(text: str, path: str | Path, font: str = "") -> Iterator[list[str]]:
    """Configures matplotlib for the figure `path`; yields the font families for `text`, `font` first.

    Issues a PictureWarning if some characters of a .png or .pdf have no glyphs in any installed font.
    """
    import matplotlib

    suffix = picture_format(path)
    families, missing = fonts.choose_fonts(text, font or fonts.FIRST_FONT)
    if missing and suffix in (".png", ".pdf"):  # the other formats use the viewer's fonts
        letters = " ".join(f"{c} (U+{ord(c):04X})" for c in sorted(missing))
        warning = (
            f"no installed font has glyphs for {letters}, which are drawn as boxes. Install a "
            "font that has them (for example Debian's fonts-noto-core or fonts-noto-cjk), or write "
            ".html or .svg, which use the viewer's fonts"
        )
        warnings.warn(warning, fonts.PictureWarning, stacklevel=4)
    with warnings.catch_warnings():
        # our own warning also gives the remedy
        warnings.filterwarnings("ignore", message=r".*Glyph .* missing from")
        # These settings are temporary: a user's matplotlibrc (TeX, cropping) cannot break a figure, and nothing leaks
        # out. SVG keeps text as text, so it can be searched, and the viewer's fonts and shaping support every script.
        with matplotlib.rc_context(
            {
                "text.usetex": False,
                "savefig.bbox": "standard",
                "svg.fonttype": "none",
                "svg.hashsalt": "nmtkit",
                "pdf.fonttype": 3,
                "font.family": families,
                "text.parse_math": False,
            }
        ):
            yield families


def no_room(path: str | Path, points: float) -> NmtkitError:
    """Returns the error for a font larger than the figure's size allows."""
    fault = f"at this figure size, the font size can be at most {points:.1f} points"
    return NmtkitError(f"{path}: {fault}; use a smaller font or a larger figure")


def new_figure(
    width: float, height: float, style: FigureStyle, rigid: str | Path | None = None
) -> tuple[Figure, ScaleFactors]:
    """Creates a figure of this natural size in inches with 10-point text, scaled by the style.

    Lines and distances of its axes scale with the text. Call it within the `settings` of a figure.
    `rigid` is the path of a figure whose layout does not adapt to larger words: the figure grows with
    them, or is rejected if its size is fixed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    by = style.factors(width, height, 10.0)
    if rigid is not None and style.size is None:
        by = by._replace(length=max(by))
    elif rigid is not None and by.text > MAX_TEXT * by.length:
        raise no_room(rigid, 10.0 * MAX_TEXT * by.length)
    parameters: Any = matplotlib.rcParams  # matplotlib's type accepts only literal keys
    ticks = [f"{axis}tick.{kind}" for axis in "xy" for kind in ("major", "minor")]
    lengths = [f"{tick}.{part}" for tick in ticks for part in ("size", "width", "pad")]
    for name in ("axes.linewidth", "axes.labelpad", "axes.titlepad", *lengths):
        parameters[name] *= by.text
    return Figure(figsize=(width * by.length, height * by.length), facecolor="white"), by


def check_sheet(width: float, height: float, path: str | Path) -> None:
    """Rejects an unreadably large sheet (in inches) before drawing."""
    suffix = picture_format(path)
    if suffix == ".pdf" and max(width, height) > MAX_SIDE_PDF:
        fault = "is too large for a PDF page; write .html instead"
    elif suffix == ".png" and _dpi(width, height) < MIN_DPI:
        fault = "would be unreadable as PNG; draw fewer sentences, or write .pdf (one per page) or .html"
    else:
        return
    raise NmtkitError(f"{path}: a figure of {width:.0f} x {height:.0f} inches {fault}")


def _dpi(width: float, height: float, best: float = BEST_DPI) -> float:
    """Returns the highest resolution, up to `best` dpi, that keeps the sheet at an acceptable size."""
    return min(best, math.sqrt(MAX_PIXELS / (width * height)), MAX_SIDE_PIXELS / max(width, height))


def content(figures: Iterable[Figure], suffix: str, best_dpi: float = BEST_DPI) -> bytes:
    """Returns the file content; only .pdf can contain several figures, one per page."""
    from matplotlib.backends.backend_pdf import PdfPages

    buffer = io.BytesIO()
    if suffix == ".pdf":
        with PdfPages(buffer, metadata={"CreationDate": None}) as pages:
            for figure in figures:
                figure.savefig(pages, format="pdf")
        return buffer.getvalue()
    (figure,) = figures
    if suffix == ".png":
        width, height = map(float, figure.get_size_inches())
        figure.savefig(buffer, format="png", dpi=_dpi(width, height, best_dpi))
    else:
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save_figure(
    figure: Figure, path: str | Path, title: str, style: FigureStyle = DEFAULT_STYLE
) -> None:
    """Writes a figure, within its `settings`; `title` is the description of its image in .html."""
    suffix = picture_format(path)
    if suffix == ".html":
        image = b64encode(content([figure], ".svg")).decode("ascii")
        write_picture(
            render("plots/templates/figure.html", {"title": title, "image": image}).encode(), path
        )
    else:
        write_picture(content([figure], suffix, style.dpi), path)


def colour_bar(
    figure: Figure,
    mesh: Any,
    place: tuple[float, float, float, float],
    label: str,
    text: float = 1.0,
) -> None:
    """Draws the colour scale at `place` (left, bottom, width, height, in fractions of the figure)."""
    axes = figure.add_axes(place)
    bar = figure.colorbar(mesh, cax=axes)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=8 * text, color=FAINT)
    axes.tick_params(labelsize=8 * text, length=2 * text, colors=FAINT)


def plain_axes(axes: Axes, text: float = 1.0) -> None:
    """Styles the axes of a curve: no frame, a faint grid, small numbers."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9ca3af")
    axes.grid(True, color=LINE, linewidth=0.8 * text)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9 * text, length=3 * text, colors=FAINT)
