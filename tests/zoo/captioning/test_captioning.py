"""Captions of pictures by the commands, from files of pictures to captions and scores."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.commands import Command, lines_in, refused, succeeded, write_lines

COLOURS = {"red": (230, 20, 20), "green": (20, 220, 30), "blue": (10, 30, 240)}
RECIPE = """\
task: captioning
data:
  train: {{features: train.txt, tgt: train.captions}}
  valid: {{features: valid.npy, tgt: valid.captions}}
  test: {{features: test.npz, tgt: test.captions}}
tokenizer: {{kind: whitespace, vocab_size: 20}}
model: {{kind: {kind}, embedding_size: 16, hidden_size: 16, cnn: [8, 8], dropout: 0}}
training: {{lr: 0.02, max_updates: {updates}, validate_every: {updates}, threads: 1, precision: fp32{further}}}
search: {{beam_size: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of 6 x 4 pixels, of a colour above another: PNGs, whose paths are listed, and arrays."""
    draw = np.random.default_rng(1)
    (tmp_path / "png").mkdir()
    for split, count in (("train", 64), ("valid", 9), ("test", 9)):
        names = [draw.choice([*COLOURS], 2, replace=False) for _ in range(count)]
        colours = np.array([[COLOURS[name] for name in pair] for pair in names])  # (n,2,3)
        pictures = colours.repeat(3, 1)[:, :, None].repeat(4, 2) + draw.integers(
            -9, 10, (count, 6, 4, 3)
        )
        pixels = pictures.astype(np.uint8)
        write_lines(
            tmp_path / f"{split}.captions", [f"{upper} is above {lower}" for upper, lower in names]
        )
        if split == "train":
            for number, picture in enumerate(pixels):
                Image.fromarray(picture).save(tmp_path / "png" / f"{number}.png")
            write_lines(tmp_path / "train.txt", [f"png/{number}.png" for number in range(count)])
        elif split == "valid":
            np.save(tmp_path / "valid.npy", pixels)
        else:
            np.savez_compressed(tmp_path / "test.npz", images=pixels)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "updates", "further"),
    [
        ("show_attend_tell", 60, ", objectives: {doubly_stochastic: 0.01}"),
        pytest.param("show_and_tell", 200, "", marks=pytest.mark.slow),
    ],
)
def test_pictures_are_learned_and_captioned(
    kind: str,
    updates: int,
    further: str,
    folder: Path,
    console: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    (folder / "recipe.yaml").write_text(
        RECIPE.format(kind=kind, updates=updates, further=further), encoding="utf-8"
    )
    succeeded(console("train", "recipe.yaml", "--run", "run", "--device", "cpu"))
    how = ["caption", "-m", "run", "--device", "cpu"]
    found = succeeded(console(*how, "test.npz")).out.splitlines()
    assert sum(map(str.__eq__, found, lines_in(folder / "test.captions"))) >= 8
    ranked = succeeded(console(*how, "valid.npy", "--n-best", "2")).out.splitlines()
    assert [line.split("\t")[0] for line in ranked] == [
        str(number) for number in range(1, 10) for _ in "12"
    ]
    records = [
        json.loads(line) for line in succeeded(console(*how, "test.npz", "--json")).out.splitlines()
    ]
    assert [record["best"]["text"] for record in records] == found
    np.save("wider.npy", np.zeros((2, 6, 5, 3), np.uint8))
    refused(console(*how, "wider.npy"), "reads one or more rows of 12 numbers")
