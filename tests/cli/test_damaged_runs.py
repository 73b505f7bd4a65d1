"""Files of a run that are damaged, or of another run: said by name, never used, and nothing else is lost by it."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from nmtkit.training.checkpoints.weights import read_weights
from tests.support.cases import daily
from tests.support.commands import Command, contents, refused, succeeded


@pytest.fixture
def go_on(corpus: Path, copied: Path, nmtkit: Command) -> Command:
    """Trains the copy for some more updates."""
    words = ["--resume", "--set", "training.max_updates=64"]
    return partial(nmtkit, "train", corpus / "tiny.yaml", "--run", copied, *words)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("place", [-9, 300])  # a number, and the facts
def test_a_damaged_state_is_refused_and_nothing_else_changes(
    copied: Path, nmtkit: Command, go_on: Command, place: int
) -> None:
    succeeded(nmtkit("average", "-m", copied))
    flip(copied / "checkpoints/last.safetensors", place)
    before = contents(copied)
    refused(go_on(), "last.safetensors: damaged", "use other weights from its folder")
    del before["recipe.yaml"]  # it says how long training was to go on
    after = contents(copied)
    # what was refused is told behind it
    assert after["train.log"].startswith(before.pop("train.log"))
    assert {path: after.get(path) for path in before} == before


def spoil(path: Path) -> None:
    flip(path, -9)


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("damage", daily([spoil, link_to_itself, Path.unlink]))
def test_training_is_not_resumed_beside_damaged_weights(
    copied: Path, go_on: Command, damage: Callable[[Path], object]
) -> None:
    """They may be the best in the end."""
    weights = copied / "checkpoints/weights-00000040.safetensors"
    damage(weights)
    before = (copied / "result.json").read_bytes()
    refused(go_on(), f"{weights}", "to continue without this file, delete it and ", "kept.json")
    assert (copied / "result.json").read_bytes() == before
    weights.unlink(missing_ok=True)
    (copied / "checkpoints/kept.json").unlink()
    succeeded(go_on())


def test_a_damaged_or_foreign_vocabulary_is_refused(
    copied: Path, nmtkit: Command, go_on: Command
) -> None:
    vocabulary = copied / "vocabulary/joint.vocab"
    flip(vocabulary, 39)
    refused(nmtkit("translate", "-m", copied, stdin="ba ce\n"), "joint.vocab: damaged", "copy")
    flip(vocabulary, 39)
    # as an earlier version left it, so that only the weights know
    (copied / "vocabulary/sums.json").unlink()
    succeeded(nmtkit("translate", "-m", copied, stdin="ba ce\n"))
    words = vocabulary.read_text().splitlines()
    vocabulary.write_text("".join(word + "\n" for word in [*words[:4], *reversed(words[4:])]))
    refused(
        nmtkit("translate", "-m", copied, stdin="ba ce\n"),
        "weights-",
        "trained with a different vocabulary",
    )
    refused(nmtkit("average", "-m", copied), "weights-", "trained with a different vocabulary")
    refused(go_on(), "train was preprocessed with a vocabulary that differs")


@pytest.mark.slow
def test_damaged_data_are_preprocessed_again(trained: Path, copied: Path, go_on: Command) -> None:
    whole = Path(shutil.copytree(copied, copied.with_name("whole")))
    succeeded(go_on())
    copied.rename(copied.with_name("expected"))
    whole.rename(copied)
    flip(copied / "data/train.src.ids", 100)
    done = succeeded(go_on())
    assert "train.src.ids: damaged" in done.err
    assert "reading and checking train" in done.err
    expected, weights = (
        read_weights(run / "checkpoints/weights-00000064.safetensors")
        for run in (copied.with_name("expected"), copied)
    )
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    manifest = copied / "data/train.json"
    manifest.write_text(manifest.read_text().replace('"<', '">'))  # the order of bytes: one bit
    assert "train.json: damaged" in go_on().err
    assert json.loads(manifest.read_text())["dtype"] == "<u2"


def test_an_average_that_cannot_be_read_is_refused(copied: Path, nmtkit: Command) -> None:
    (copied / "average.safetensors").symlink_to("average.safetensors")
    refused(nmtkit("translate", "-m", copied, stdin="ba ce\n"), "average.safetensors")
    refused(nmtkit("average", "-m", copied, "-o", "."), "a folder; use a file name")


ODD = {
    "bytes": b"\xff\xfe\n",
    "no objects": b"[]\n5\nnull\n{}\n",
    "deep": b'{"update": "x"}\n' + b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("text", daily(ODD.values()), ids=ODD.keys())
def test_a_damaged_log_does_not_stop_a_training(copied: Path, go_on: Command, text: bytes) -> None:
    log = copied / "metrics.jsonl"
    lines = log.read_bytes()
    log.write_bytes(text + lines)
    succeeded(go_on())
    assert log.read_bytes().startswith(lines)
    assert b'"update": 64,' in log.read_bytes()


@pytest.mark.parametrize(
    "name",
    daily(
        ["data/train.json", "metrics.jsonl", "vocabulary/tokenizer.json", "vocabulary/sums.json"]
    ),
)
def test_training_does_not_wait_for_a_pipe_in_place_of_a_file(
    copied: Path, nmtkit: Command, go_on: Command, name: str
) -> None:
    (copied / name).unlink()
    os.mkfifo(copied / name)
    if name.startswith("data"):  # made again from the text
        succeeded(go_on())
    else:
        refused(go_on(), name, "not a file")
    if name == "metrics.jsonl":
        refused(nmtkit("plot-training", copied), name, "not a file")


def test_translate_does_not_wait_for_a_pipe_in_place_of_the_recipe(
    copied: Path, nmtkit: Command
) -> None:
    (copied / "recipe.yaml").unlink()
    os.mkfifo(copied / "recipe.yaml")
    refused(nmtkit("translate", "-m", copied, stdin="a\n"), "it contains no recipe.yaml")
