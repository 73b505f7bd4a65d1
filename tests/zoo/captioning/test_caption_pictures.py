"""Pictures with the attention of a caption's words."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nmtkit.core.errors import NmtkitError
from nmtkit.plots.drawing import FigureStyle
from nmtkit.zoo.captioning.pictures import draw_caption
from tests.support.markup import svg_texts

RED = np.zeros((6, 8, 3), np.uint8)
RED[:, :, 0] = 255


def test_a_word_is_bright_where_it_looks(tmp_path: Path) -> None:
    """Only the pictures are red: the first is all bright, the second in the last cell of three rows only."""
    draw_caption(RED, ["ring"], np.eye(6)[None, 5], (3, 2), tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    red = (pixels[:, :, 0] > 60) & (pixels[:, :, 1:].max(2) == 0)
    columns = np.flatnonzero(red.any(0))
    second = columns[np.flatnonzero(np.diff(columns) > 5)[0] + 1]
    assert (pixels[:, :second, 0][red[:, :second]] == 255).all()
    rows = np.flatnonzero(red.any(1))
    picture = pixels[rows[0] : rows[-1] + 1, second : columns[-1] + 1, 0]
    height, width = picture.shape
    assert height / width == pytest.approx(6 / 8, abs=0.02)
    centres = [
        [
            picture[int(height * (row + 0.5) / 3), int(width * (column + 0.5) / 2)]
            for column in range(2)
        ]
        for row in range(3)
    ]
    assert np.array(centres) == pytest.approx(np.array([[77, 77], [77, 77], [77, 255]]), abs=8)


@pytest.mark.parametrize("image", [RED, None], ids=["picture", "grid alone"])
def test_words_stand_in_their_order(image: np.ndarray | None, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(8)]
    draw_caption(image, words, np.full((8, 6), 1 / 6), (2, 3), tmp_path / "a.svg")
    texts = [text for text, _ in svg_texts(tmp_path / "a.svg")]
    assert [text for text in texts if text in words] == words
    assert " ".join(words) in texts


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NmtkitError, match="sentence 1 has non-finite attention weights"):
        draw_caption(RED, ["a"], np.full((1, 6), np.nan), (2, 3), tmp_path / "a.svg")


def test_a_figure_grows_with_its_words(tmp_path: Path) -> None:
    """In twice the font size all is twice as large; in a size that has no room for it, it is refused."""
    sizes = []
    for points in (10, 20):
        path = tmp_path / f"{points}.png"
        draw_caption(
            RED, ["a", "ring"], np.full((2, 6), 1 / 6), (3, 2), path, FigureStyle(font_size=points)
        )
        with Image.open(path) as image:
            sizes.append(image.size)
    assert sizes[1] == pytest.approx(2 * np.array(sizes[0]), abs=1)
    with pytest.raises(NmtkitError, match="at this figure size, the font size can be at most"):
        draw_caption(
            RED, ["ring"], np.eye(6)[:1], (3, 2), path, FigureStyle(size=(2.0, None), font_size=20)
        )
