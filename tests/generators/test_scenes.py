"""The generator of scenes: shapes by hand, and that captions and regions say what is in the pictures."""

import gzip
from pathlib import Path

import generate
import numpy as np
import pytest
from scenes import corpus, shapes

DATA = Path(generate.__file__).parent / "demo-scenes"
LOOKED_AT = 150  # pictures of each part
KINDS = set(shapes.SIDES), set(shapes.COLOURS), set(shapes.SHAPES)


def lines(name: str) -> list[str]:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode().splitlines()


def images(part: str) -> np.ndarray:
    with np.load(DATA / f"{part}.images.npz") as arrays:
        return np.asarray(arrays["images"])


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ("square", ["4444", "4444", "4444", "4444"]),
        ("triangle", ["0110", "0330", "1441", "3443"]),
        ("diamond", ["0220", "2442", "2442", "0220"]),
        ("cross", ["0330", "3443", "3443", "0330"]),
    ],
)
def test_a_shape_covers_these_quarters_of_pixels(shape: str, rows: list[str]) -> None:
    quarters = 4 * shapes.cover(shape, 4) / shapes.SAMPLES**2
    assert ["".join(str(round(one - 0.01)) for one in row) for row in quarters] == rows


def test_areas_of_round_shapes() -> None:
    circle, ring = (
        shapes.cover(shape, 13).sum() / shapes.SAMPLES**2 for shape in ("circle", "ring")
    )
    assert circle == pytest.approx(np.pi * 6.5**2, rel=0.01)
    assert ring == pytest.approx(circle * 2 / 3, rel=0.01)


@pytest.mark.parametrize("part", corpus.PARTS)
def test_committed_files_equal_a_regeneration(part: str) -> None:
    first = 40
    made = corpus.generate(generate.SEED, {**dict.fromkeys(corpus.PARTS, 0), part: first})[part]
    assert (images(part)[:first] == corpus.pictures(made)).all()
    assert lines(f"{part}.captions")[:first] == [one.caption() for one in made]
    assert lines(f"{part}.regions")[:first] == [one.regions() for one in made]


@pytest.mark.parametrize("part", corpus.PARTS)
def test_a_caption_is_true_of_its_picture(part: str) -> None:
    """Read from the files alone: the words by the grammar, places by the boxes, colours by the pixels."""
    pictures, captions, regions = images(part), lines(f"{part}.captions"), lines(f"{part}.regions")
    assert (pictures.shape, pictures.dtype) == ((corpus.PARTS[part], 32, 32, 3), np.uint8)
    assert (
        len(captions)
        == len(regions)
        == len({picture.tobytes() for picture in pictures})
        == len(pictures)
    )
    counts = {"left": 0, "right": 0, "above": 0, "below": 0}
    for picture, caption, places in zip(pictures[:LOOKED_AT], captions, regions, strict=False):
        words, rest = caption.split(), picture.copy()
        boxes = {
            int(word): tuple(map(int, box.split(",")))
            for word, box in (one.split(":") for one in places.split())
        }
        starts = [number + 1 for number, word in enumerate(words) if word == "a"]
        assert list(boxes) == [start + place for start in starts for place in range(3)]
        for start in starts:
            size, colour, _ = words[start : start + 3]
            assert all(
                word in kind for word, kind in zip(words[start : start + 3], KINDS, strict=True)
            )
            left, top, right, bottom = boxes[start]
            assert boxes[start] == boxes[start + 1] == boxes[start + 2]
            assert right - left == bottom - top
            assert right - left in shapes.SIDES[size]
            own = picture[top:bottom, left:right].reshape(-1, 3).astype(int)
            distance = {
                name: np.abs(own - rgb).max(1).min() for name, rgb in shapes.COLOURS.items()
            }
            assert min(distance, key=distance.__getitem__) == colour, caption
            rest[top:bottom, left:right] = picture[0, 0]
            if start == starts[0]:
                first = boxes[start]
                continue
            (word,) = (word for word in words[start - 4 : start] if word in counts)
            counts[word] += 1
            holds = {
                "left": first[2] < left,
                "right": right < first[0],
                "above": first[3] < top,
                "below": bottom < first[1],
            }
            assert holds[word], caption
        assert (rest == picture[0, 0]).all()
    assert min(counts.values()) > LOOKED_AT / 20
