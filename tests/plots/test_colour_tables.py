import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nmtkit.core.errors import NmtkitError
from nmtkit.layers.transformer import sinusoids
from nmtkit.plots import AttentionPicture, FigureStyle, HeadsPicture
from nmtkit.plots.colour_tables import (
    Entropies,
    entropy,
    head_entropies,
    save_entropies,
    save_positions,
    word_entropies,
)
from tests.support.markup import Page, svg_texts


def test_entropy_by_hand() -> None:
    weights = np.array(
        [[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0]]
    )
    expected = [0.0, math.log(4), math.log(2), 1.5 * math.log(2)]
    np.testing.assert_allclose(entropy(weights), expected, rtol=0, atol=1e-15)
    assert not np.signbit(entropy(weights)).any()


def test_a_model_with_one_attention_has_one_value() -> None:
    """Rows of ln 2, 0 and ln 3: their mean; looking everywhere alike they would have ln 2, ln 2 and ln 3."""
    two = AttentionPicture(["a", "b"], ["x", "y"], np.array([[0.5, 0.5], [1.0, 0.0]]))
    three = AttentionPicture(["a", "b", "c"], ["x"], np.full((1, 3), 1 / 3))
    (found,) = word_entropies([two, three])
    assert found.values.shape == (1, 1)
    assert found.values[0, 0] == pytest.approx((math.log(2) + math.log(3)) / 3)
    assert found.uniform == pytest.approx((2 * math.log(2) + math.log(3)) / 3)


def spread(layers: int, heads: int, rows: int, columns: int) -> np.ndarray:
    """Head a looks at its first a + 1 columns alike, as far as there are so many."""
    weights = np.zeros((layers, heads, rows, columns))
    for head in range(heads):
        weights[:, head, :, : head + 1] = 1.0
    return weights / weights.sum(-1, keepdims=True)


def head_pictures(rows: int, columns: int) -> HeadsPicture:
    causal = np.tril(np.ones((rows, rows)))
    causal /= causal.sum(-1, keepdims=True)
    return HeadsPicture(
        [f"s{i}" for i in range(columns)],
        [f"t{i}" for i in range(rows)],
        encoder=spread(3, 2, columns, columns),
        decoder=np.broadcast_to(causal, (2, 4, rows, rows)),
        cross=spread(2, 4, rows, columns),
    )


def test_each_head_has_its_entropy() -> None:
    encoder, decoder, cross = head_entropies([head_pictures(3, 4), head_pictures(2, 5)])
    np.testing.assert_allclose(encoder.values, [[0.0, math.log(2)]] * 3, atol=1e-12)
    np.testing.assert_allclose(
        cross.values, [[0.0, math.log(2), math.log(3), math.log(4)]] * 2, atol=1e-12
    )
    # The decoder of the examples looks at all it may see alike, which is the most there can be: rows of 1, 2, 3; 1, 2.
    most = (0 + math.log(2) + math.log(3) + 0 + math.log(2)) / 5
    np.testing.assert_allclose(decoder.values, np.full((2, 4), most), atol=1e-12)
    assert decoder.uniform == pytest.approx(most)
    assert encoder.uniform == pytest.approx((4 * math.log(4) + 5 * math.log(5)) / 9)
    assert cross.uniform == pytest.approx((3 * math.log(4) + 2 * math.log(5)) / 5)


def test_pictures_of_entropies(tmp_path: Path) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    for path in (svg, html):
        save_entropies(head_entropies([head_pictures(3, 4)]), path, "transformer <entropy>")
    texts = {text for text, _ in svg_texts(svg)}
    assert {"encoder self-attention", "0.69", "1.10", "transformer <entropy>"} <= texts
    assert Page(html).attributes("img")[0]["alt"] == "transformer <entropy>"
    Page(html).check_stands_alone()


def test_the_title_fits(tmp_path: Path) -> None:
    """The sheet of a single value grows with its title."""
    value = [Entropies("attention", np.array([[0.5]]), 1.0)]
    sizes = []
    for title in ("short", "long " * 20):
        save_entropies(value, tmp_path / "a.png", title)
        with Image.open(tmp_path / "a.png") as image:
            sizes.append(image.size)
            pixels = np.asarray(image.convert("L"))
        assert (pixels[:, -30:] > 250).all()  # nothing is cut at the right edge
    assert sizes[1][0] > 1.5 * sizes[0][0]


def test_a_large_font_has_room(tmp_path: Path) -> None:
    value = [Entropies("attention", np.array([[0.5]]), 1.0)]
    save_entropies(value, tmp_path / "a.png", "long " * 10, FigureStyle(font_size=30))
    with Image.open(tmp_path / "a.png") as image:
        # nothing is cut at the right edge
        assert (np.asarray(image.convert("L"))[:, -30:] > 250).all()
    with pytest.raises(NmtkitError, match="at this figure size, the font size can be at most"):
        save_entropies(
            value, tmp_path / "a.png", "long " * 10, FigureStyle(size=(3.0, None), font_size=30)
        )


def test_a_broken_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(NmtkitError, match="the attention has non-finite weights"):
        save_entropies([Entropies("attention", np.array([[np.nan]]), 1.0)], tmp_path / "a.png", "")


def cell_colours(path: Path, rows: int) -> np.ndarray:
    """The colours in the middle of the cells of a table of positions with two columns."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    x = (0.09 + 0.79 * np.array([0.25, 0.75])) * width
    y = (0.12 + 0.76 * (np.arange(rows) + 0.5) / rows) * height
    return pixels[np.ix_(y.astype(int), x.astype(int))]


def test_positions_are_drawn_value_by_value(tmp_path: Path) -> None:
    """Two positions of width two: (0, 1) and (sin 1, cos 1); white, the strongest blue, and two blues between."""
    save_positions(sinusoids(2, 2).numpy(), tmp_path / "a.png", "positions")
    colours = cell_colours(tmp_path / "a.png", 2)
    np.testing.assert_allclose(colours[0, 0], [255, 255, 255], atol=3)
    np.testing.assert_allclose(colours[0, 1], [0x1F, 0x5F, 0xBF], atol=3)
    # sin 1 = 0.841 lies above the half that is #6ea3e0, cos 1 = 0.540 just above it: the larger, the darker.
    light = colours.sum(axis=-1)
    assert light[0, 1] < light[1, 0] < light[1, 1] < light[0, 0]


def test_negative_values_have_another_colour(tmp_path: Path) -> None:
    save_positions(np.array([[-2.0, 2.0]]), tmp_path / "a.png", "learned")
    ((negative, positive),) = cell_colours(tmp_path / "a.png", 1)
    assert negative[0] > negative[2]
    assert positive[0] < positive[2]
