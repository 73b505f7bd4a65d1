"""`plot-attention` of a captioner: where the words of a caption look in its picture."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.inference.translator import Translator
from nmtkit.plots import FigureStyle
from nmtkit.zoo.captioning.pictures import CaptionPicture
from tests.cli.untrained_runs import CAPTIONER, make_run
from tests.support.commands import Command, refused, succeeded


def test_attention_to_a_picture_is_drawn(tmp_path: Path, console: Command) -> None:
    """The picture of the number is drawn, and on it the attention of the caption that the model writes."""
    pictures = np.random.default_rng(1).integers(0, 256, (2, 16, 8, 3), dtype=np.uint8)
    file = tmp_path / "pictures.npy"
    np.save(file, pictures)
    run = make_run(tmp_path, "eyes", CAPTIONER, features=3 * 8)
    plot = ["plot-attention", "-m", run, "--device", "cpu", file]
    succeeded(console(*plot, "2", "-o", tmp_path / "a.svg"))
    system = Translator.load(run, device="cpu")
    rows = pictures[1].reshape(16, -1)
    caption = system.search([rows], need_attention=True)[0][0]
    picture = CaptionPicture.from_answer(system, rows, caption)
    assert picture.grid == (4, 2)
    assert " ".join(picture.words) == caption.text
    assert caption.attention is not None
    np.testing.assert_allclose(picture.weights, caption.attention[: len(picture.words)], rtol=1e-6)
    picture.save(tmp_path / "b.svg", FigureStyle())
    assert drawn(tmp_path / "a.svg") == drawn(tmp_path / "b.svg")
    refused(
        console(*plot, "3", "-o", tmp_path / "c.svg"),
        "has 2 images; choose one by its number, from 1 to 2, instead of '3'",
    )
    refused(console(*plot), "for a captioning model, give an image file as SOURCE")
    for shape, fits in ((8, 8), False), ((9, 3), True), ((5, 3), False):
        regions = np.zeros(shape, np.float32)
        given = replace(caption, attention=np.ones((len(picture.words) + 1, shape[0]), np.float32))
        if fits:
            assert CaptionPicture.from_answer(system, regions, given).grid == (3, 3)
        else:
            with pytest.raises(
                NmtkitError,
                match=rf"the model 'eyes' attends to {shape[0]} regions, which do not form a square",
            ):
                CaptionPicture.from_answer(system, regions, given)
    with pytest.raises(NmtkitError, match="has no attention over a grid of regions"):
        CaptionPicture.from_answer(system, rows, replace(caption, attention=None))


def drawn(path: Path) -> list[tuple[str, str]]:
    """The pictures and words of an SVG, without ids."""
    return re.findall(r"base64,([^\"]+)|<!-- (.*?) -->", path.read_text(encoding="utf-8"))
