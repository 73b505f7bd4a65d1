"""Heat-maps of attention in whatever format a file's name asks for."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmtkit.errors import NmtkitError
from nmtkit.pictures.attention import AttentionPicture
from nmtkit.pictures.files import check_path, write
from nmtkit.pictures.page import page
from nmtkit.pictures.sheets import image


def save(pictures: AttentionPicture | Sequence[AttentionPicture], path: str | Path, grid: bool = False) -> None:
    """Writes pictures to one file; its suffix chooses the format.

    A picture that `is_summary` has a heat-map of its own kind in .png, .svg and .pdf, with the rows and columns of a
    translation changed over, and two coloured texts in .html. Of an article longer than 60 words the heat-map has a row
    for each of the words that were looked at most, and adds up the stretches between them.

    Several pictures fill one sheet line by line in .png and .svg, have a page each in .pdf and follow one another in
    .html. Words longer than 36 letters are shortened in the middle with "…" in .png, .svg and .pdf, never in .html.

    Args:
        pictures: One or more.
        path: The file.
        grid: Whether they all stand on one sheet (one page of .pdf, side by side in .html) in rows and columns that
            line up, with cells of one size.

    Raises:
        NmtkitError: The format is unknown, the file cannot be written, there is nothing to draw, a weight is not a
            finite number, a known alignment is outside the sentence, or the sheet is too large to be read.

    Warns:
        PictureWarning: No installed font can show some of the letters of a .png or .pdf.
    """
    suffix = check_path(path)
    pictures = [pictures] if isinstance(pictures, AttentionPicture) else list(pictures)
    _check(pictures, path)
    content = page(pictures, grid).encode() if suffix == ".html" else image(pictures, suffix, path, grid)
    write(content, path)


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
        if picture.p_gen is not None and not np.isfinite(picture.p_gen).all():
            raise NmtkitError(
                f"{path}: sentence {number} has a p_gen that is not a finite number; "
                "the model is broken, use an earlier checkpoint"
            )
        rows, columns = picture.weights.shape
        for src, tgt in picture.gold:
            if not (0 <= src < columns and 0 <= tgt < rows):
                raise NmtkitError(
                    f"{path}: sentence {number} has a known alignment {src}-{tgt} outside its {columns} source and "
                    f"{rows} target words; indices count from 0 and the source comes first"
                )
