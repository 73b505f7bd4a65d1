"""Position encodings as a picture."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nmtkit.pictures import drawing
from nmtkit.pictures.files import check_path, printable


def save_positions(table: NDArray[Any], path: str | Path, title: str) -> None:
    """Writes a table of position vectors (Vaswani et al. 2017, 3.5) as colours: a row for each position.

    Args:
        table: (positions, width of the model).
        path: The file; its suffix chooses the format.
        title: A line above.

    Raises:
        NmtkitError: The format is unknown, or the file cannot be written.

    Warns:
        PictureWarning: No installed font can show some of the letters of the title.
    """
    suffix = check_path(path)
    title = printable(title)
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    length, size = table.shape
    with drawing.settings(title, suffix):
        width, height = 9.0, 5.0
        figure = Figure(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0.09, 0.12, 0.79, 0.76))
        colours = LinearSegmentedColormap.from_list("signed", ["#a13b00", "#f0a46b", "#ffffff", *drawing.BLUES[2:4]])
        most = float(abs(table).max()) or 1.0
        image = axes.imshow(
            table,
            cmap=colours,
            vmin=-most,
            vmax=most,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, size - 0.5, length - 0.5, -0.5),
        )
        axes.set_frame_on(False)
        axes.set_xlabel("dimension", fontsize=10, color=drawing.FAINT)
        axes.set_ylabel("position", fontsize=10, color=drawing.FAINT)
        axes.tick_params(labelsize=9, length=3, colors=drawing.FAINT)
        figure.text(0.09, 0.93, title, fontsize=12, color=drawing.INK, va="bottom")
        drawing.colour_bar(figure, image, (0.905, 0.12, 0.016, 0.76), "value")
        drawing.save_figure(figure, path, title)
