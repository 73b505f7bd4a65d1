from pathlib import Path

import numpy as np
from PIL import Image

from nmtkit.layers.transformer import sinusoids
from nmtkit.pictures.colour_tables import save_positions


def test_positions_are_drawn_value_by_value(tmp_path: Path):
    """Two positions of width two: (0, 1) and (sin 1, cos 1); white, the strongest blue, and two blues between."""
    save_positions(sinusoids(2, 2).numpy(), tmp_path / "a.png", "positions")
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    left, right, top, bottom = 0.09 * width, 0.88 * width, 0.12 * height, 0.88 * height

    def at(row: int, column: int) -> np.ndarray:
        y, x = top + (row + 0.5) * (bottom - top) / 2, left + (column + 0.5) * (right - left) / 2
        return pixels[int(y), int(x)]

    np.testing.assert_allclose(at(0, 0), [255, 255, 255], atol=3)
    np.testing.assert_allclose(at(0, 1), [0x1F, 0x5F, 0xBF], atol=3)
    # sin 1 = 0.841 lies above the half that is #6ea3e0, cos 1 = 0.540 just above it: the larger, the darker.
    assert at(0, 1).sum() < at(1, 0).sum() < at(1, 1).sum() < at(0, 0).sum()


def test_negative_values_have_another_colour(tmp_path: Path):
    save_positions(np.array([[-2.0, 2.0]]), tmp_path / "a.png", "learned")
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    red, _, blue = pixels[height // 2, int(0.3 * width)]
    assert red > blue
    red, _, blue = pixels[height // 2, int(0.7 * width)]
    assert blue > red
