"""`plot-attention` of a captioner: where the words of a caption look in its picture."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Command, refused, succeeded
from untrained_runs import CAPTIONER, make_run

from nmtkit.core.errors import NmtkitError
from nmtkit.experiment.loading import load_translator
from nmtkit.inference.attention_views import caption_view
from nmtkit.plots.captions import draw_caption


def test_attention_to_a_picture_is_drawn(tmp_path: Path, console: Command) -> None:
    """The picture of the number is drawn, and on it the attention of the caption that the model writes."""
    pictures = np.random.default_rng(1).integers(0, 256, (2, 16, 8, 3), dtype=np.uint8)
    file = tmp_path / "pictures.npy"
    np.save(file, pictures)
    run = make_run(tmp_path, "eyes", CAPTIONER, features=3 * 8)
    plot = ["plot-attention", "-m", run, "--device", "cpu", file]
    succeeded(console(*plot, "2", "-o", tmp_path / "a.svg"))
    system = load_translator(run, device="cpu")
    rows = pictures[1].reshape(16, -1)
    caption = system.search([rows], need_attention=True)[0][0]
    image, words, weights, grid = caption_view(system, rows, caption)
    assert grid == (4, 2)
    assert " ".join(words) == caption.text
    assert caption.attention is not None
    np.testing.assert_allclose(weights, caption.attention[: len(words)], rtol=1e-6)
    draw_caption(image, words, weights, grid, tmp_path / "b.svg")
    assert drawn(tmp_path / "a.svg") == drawn(tmp_path / "b.svg")
    refused(console(*plot, "3", "-o", tmp_path / "c.svg"), "has 2 pictures: '3' is the number of none of them")
    refused(console(*plot), "a captioner is drawn by PICTURES NUMBER -o FILE")
    for shape, fits in ((8, 8), False), ((9, 3), True), ((5, 3), False):
        regions = np.zeros(shape, np.float32)
        given = replace(caption, attention=np.ones((len(words) + 1, shape[0]), np.float32))
        if fits:
            assert caption_view(system, regions, given)[3] == (3, 3)
        else:
            with pytest.raises(
                NmtkitError, match=rf"the {shape[0]} regions that the model 'eyes' looks at fill no square"
            ):
                caption_view(system, regions, given)
    with pytest.raises(NmtkitError, match="looks at no grid of regions"):
        caption_view(system, rows, replace(caption, attention=None))


def drawn(path: Path) -> list[tuple[str, str]]:
    """The pictures and words of an SVG, without ids."""
    return re.findall(r"base64,([^\"]+)|<!-- (.*?) -->", path.read_text(encoding="utf-8"))
