"""Where a captioner looks when it writes a word that names a shape: `python -m tests.tools.bench.pointing RUN`.

The captions of the demo's test scenes are given. The words of a shape, its size, colour and kind, have a gold box in
`test.regions.gz`. The most attended region of the step that writes a word is compared with that box.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from nmtkit.data.text.features import FeaturesFile
from nmtkit.data.text.files.lines import read_lines
from nmtkit.inference.translator import Translator
from nmtkit.zoo.captioning.pictures import CaptionPicture

SCENES = Path(__file__).resolve().parents[3] / "data" / "demo-scenes"
Box = tuple[int, int, int, int]
"""Left, upper, right and lower edge in pixels; the last two are outside."""


def boxes_of(line: str) -> Iterator[tuple[int, Box]]:
    """The number of each word that has a box, counted from 0, and the box."""
    for item in line.split():
        word, _, edges = item.partition(":")
        left, upper, right, lower = map(int, edges.split(","))
        yield int(word), (left, upper, right, lower)


def hits(region: int, grid: tuple[int, int], size: tuple[int, int], box: Box) -> tuple[bool, bool]:
    """Whether the centre of a region of the grid is in the box, and whether the region overlaps it; size: (H,W)."""
    row, column = divmod(region, grid[1])
    high, wide = size[0] / grid[0], size[1] / grid[1]
    y, x, (left, upper, right, lower) = row * high, column * wide, box
    centre = left <= x + wide / 2 < right and upper <= y + high / 2 < lower
    return centre, x < right and x + wide > left and y < lower and y + high > upper


def main(arguments: Sequence[str]) -> None:
    """Prints both shares of one run, and what a look at random regions would have."""
    translator, file = (
        Translator.load(arguments[0], device="cpu"),
        FeaturesFile(str(SCENES / "test.images.npz")),
    )
    pictures = [file.read(number) for number in range(file.count)]
    captions, lines = (
        list(read_lines(SCENES / f"test.{name}.gz")) for name in ("captions", "regions")
    )
    with torch.inference_mode():
        read = translator.rescore(pictures, captions, need_attention=True)  # type: ignore[arg-type]  # rows are lines
    looked, chance = [], []
    for rows, caption, line in zip(pictures, read, lines, strict=True):
        picture = CaptionPicture.from_answer(translator, rows, caption)
        assert picture.image is not None
        weights, grid, size = picture.weights, picture.grid, picture.image.shape[:2]
        for word, box in boxes_of(line):
            looked.append(hits(int(weights[word].argmax()), grid, size, box))
            chance.append(
                np.mean([hits(one, grid, size, box) for one in range(weights.shape[1])], 0)
            )
    for name, values in (("most attended region", looked), ("a random region", chance)):
        centre, overlap = np.mean(values, 0)
        print(
            f"{name}: centre in the box {centre:.1%}, overlaps the box {overlap:.1%} of {len(values):,} words"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
