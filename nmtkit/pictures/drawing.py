"""What all matplotlib pictures share: colours, settings, axes, and the bytes of a file."""

from __future__ import annotations

import io
import math
import warnings
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit.errors import NmtkitError
from nmtkit.pictures import fonts
from nmtkit.pictures.pages import picture_format, render, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#111827"
FAINT = "#4b5563"
LINE = "#e3e7ec"
BLUES = ("#ffffff", "#cfe0f7", "#6ea3e0", "#1f5fbf", "#0b2a63")
SERIES = ("#1f5fbf", "#d1580b", "#1b8a5a", "#8e44ad", "#c2185b", "#7a6a00", "#0e7c8c", "#5b6675")

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
    """Refuses a sheet (in inches) that nobody could read, before the work of drawing it; `path` is for the message."""
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
