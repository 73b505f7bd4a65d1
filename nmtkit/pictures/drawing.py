"""What all matplotlib pictures share: colours, settings, titles and labels that fit, and the bytes of a file."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nmtkit.errors import NmtkitError
from nmtkit.pictures import fonts
from nmtkit.pictures.fonts import printable
from nmtkit.pictures.pages import picture_format, render, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#111827"
FAINT = "#4b5563"
LINE = "#e3e7ec"
BLUES = ("#ffffff", "#cfe0f7", "#6ea3e0", "#1f5fbf", "#0b2a63")
SERIES = ("#1f5fbf", "#d1580b", "#1b8a5a", "#8e44ad", "#c2185b", "#7a6a00", "#0e7c8c", "#5b6675")

LONGEST_LABEL = 36
ROTATION = 50.0
COLOUR_BAR = 0.9
TITLE_SIZE = 12.0
WIDE_ENOUGH_FOR_A_TITLE = 4.5

BEST_DPI = 150.0
LEAST_DPI = 60.0
MOST_PIXELS = 60e6
LONGEST_SIDE_PIXELS = 60_000
LONGEST_SIDE_PDF = 200.0


@contextmanager
def settings(text: str, suffix: str) -> Iterator[list[str]]:
    """Gives the font families that show `text`, and sets matplotlib up for the time of one picture.

    Warns:
        PictureWarning: No installed font can show some of the letters of a .png or .pdf.
    """
    import matplotlib

    families, missing = fonts.choose_fonts(text)
    if suffix in (".png", ".pdf"):  # the others are shown with the viewer's fonts
        fonts.warn_of_letters(text, missing)
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
                "font.family": families,
                "text.parse_math": False,
            }
        ):
            yield families


def check_sheet(width: float, height: float, suffix: str, path: str | Path) -> None:
    """Refuses a sheet that nobody could read, before the work of drawing it.

    Args:
        width: In inches, as `height`.
        height: In inches.
        suffix: The format.
        path: The file, for the message.

    Raises:
        NmtkitError: It is too large.
    """
    if suffix == ".pdf" and max(width, height) > LONGEST_SIDE_PDF:
        raise NmtkitError(
            f"{path}: a sheet of {width:.0f} x {height:.0f} inches is no page of PDF; write .html instead"
        )
    if suffix == ".png" and _dpi(width, height) < LEAST_DPI:
        raise NmtkitError(
            f"{path}: a sheet of {width:.0f} x {height:.0f} inches cannot be read as PNG; "
            "draw fewer sentences, or write .pdf (a page for each) or .html"
        )


def _dpi(width: float, height: float) -> float:
    """The finest resolution, up to 150 dots per inch, that keeps a sheet at a bearable size."""
    return min(BEST_DPI, math.sqrt(MOST_PIXELS / (width * height)), LONGEST_SIDE_PIXELS / max(width, height))


def content(figures: Iterable[Figure], suffix: str) -> bytes:
    """The bytes of a file; only .pdf takes several figures, a page each."""
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
        figure.savefig(buffer, format="png", dpi=_dpi(width, height))
    else:
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save_figure(figure: Figure, path: str | Path, title: str) -> None:
    """Writes a figure that is not a heat-map of a sentence, within the `settings` that it was made in.

    The `title` says what it shows to those who read .html without seeing.

    Raises:
        NmtkitError: The format is unknown, or the file cannot be written.
    """
    suffix = picture_format(path)
    if suffix == ".html":
        image = b64encode(content([figure], ".svg")).decode("ascii")
        write_picture(render("pictures/figure.html", {"title": title, "image": image}).encode(), path)
    else:
        write_picture(content([figure], suffix), path)


def colour_map() -> Any:
    """From white, for nothing, to dark blue, for the most."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("nmtkit", BLUES)


def weights(axes: Axes, matrix: Any, top: float) -> Any:
    """Draws attention weights, a cell a number, the first row at the top; `top` is the darkest. Gives the mesh."""
    rows, columns = matrix.shape
    axes.set_axis_off()
    mesh = axes.pcolormesh(matrix, cmap=colour_map(), vmin=0.0, vmax=top, edgecolors=LINE, linewidth=0.4)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    return mesh


def colour_bar(figure: Figure, mesh: Any, place: tuple[float, float, float, float], label: str) -> None:
    """Draws the scale of colours at `place` (left, bottom, width, height, in fractions of the figure)."""
    axes = figure.add_axes(place)
    bar = figure.colorbar(mesh, cax=axes)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=8, color=FAINT)
    axes.tick_params(labelsize=8, length=2, colors=FAINT)


def plain_axes(axes: Axes) -> None:
    """Axes of a curve: no frame, faint lines across, quiet numbers."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9ca3af")
    axes.grid(True, color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, length=3, colors=FAINT)


# ------------------------------------------------------------------------------------------------------------- panels


class Panel(Protocol):
    """A picture with its measures, ready to be put in its place on a sheet; all lengths in inches."""

    @property
    def width(self) -> float:
        """All of it, from the labels on the left to the colour bar on the right."""

    @property
    def height(self) -> float:
        """All of it, title included."""

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draws it with its upper left corner `x` from the left edge of the figure and `y` from the upper one."""


def fit_title(heading: str, families: list[str], width: float) -> tuple[str, float, float]:
    """Breaks a heading into lines for a panel that is `width` inches wide without it.

    Returns:
        The lines, the panel's width with them, and the height that they need: nothing where there is no heading.
    """
    heading = printable(heading)
    if not heading:
        return "", width, 0.0
    ((title_width, line_height),) = fonts.measure_labels([heading], families, TITLE_SIZE)
    width = max(width, min(title_width, WIDE_ENOUGH_FOR_A_TITLE))
    letters = max(1, int(len(heading) * width / title_width))
    lines = textwrap.wrap(heading, letters) if title_width > width else [heading]
    return "\n".join(lines), width, len(lines) * line_height * 1.35 + 0.15


def draw_title(figure: Figure, title: str, x: float, y: float) -> None:
    """Draws the lines of a title, if there are any, with their upper left corner at (x, y) in fractions."""
    if title:
        figure.text(x, y, title, fontsize=TITLE_SIZE, color=INK, va="top")


def shorten(word: str) -> str:
    """A label of at most `LONGEST_LABEL` letters: a longer one has "…" in its middle."""
    word = printable(word)
    if len(word) <= LONGEST_LABEL:
        return word
    half = LONGEST_LABEL // 2
    return f"{word[:half]}…{word[-half + 1 :]}"
