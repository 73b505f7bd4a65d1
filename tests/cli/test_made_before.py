"""What an earlier version made goes on: its recipes, its run, its command lines.

`tests/made_before/0.1.0.tar.gz` holds what nmtkit wrote before checksums, tasks as a table and rooms for experiments:
a finished run with its text and recipe (`old.yaml`, `run`, `text`; FOLDER stands for where it lies), what it said of
given translations (`rescored.tsv`), every recipe of that time with all its defaults (`recipes.json`), and the options
of every command (`options.json`).
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
from commands import Command

from nmtkit import recipe
from nmtkit.cli import cli
from nmtkit.settings import dump_yaml

ARCHIVE = Path(__file__).parent.parent / "made_before" / "0.1.0.tar.gz"
CPU = ("--device", "cpu", "--threads", "1")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    resolved = tmp_path / "run" / "recipe.yaml"
    resolved.write_text(resolved.read_text(encoding="utf-8").replace("FOLDER", str(tmp_path)), encoding="utf-8")
    return tmp_path


@pytest.fixture
def console(old: Path, console: Command) -> Command:
    assert old == Path.cwd()
    return console


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def numbers(rows: list[str]) -> list[list[float]]:
    return [[float(value) for value in row.split("\t")] for row in rows]


def test_an_old_run_translates_and_scores_as_it_did(old: Path, console: Command) -> None:
    """It had learned its language, so that rounding on another processor changes a line or two at most."""
    before = lines(old / "run" / "test.out")
    done = console("translate", "-m", "run", *CPU, stdin=(old / "text" / "test.src").read_text(encoding="utf-8"))
    assert done.code == 0, done.err
    same = [found == line for found, line in zip(done.out.splitlines(), before, strict=True)]
    assert sum(same) >= len(before) - 2

    rescored = console("rescore", "-m", "run", *CPU, "--source", "text/test.src", "--target", "text/test.tgt")
    assert rescored.code == 0, rescored.err
    found, wanted = (numbers(text) for text in (rescored.out.splitlines(), lines(old / "rescored.tsv")))
    assert len(found) == 20
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)

    scored = console("score", "run/test.out", "--ref", "text/test.tgt", "--json")
    assert scored.code == 0, scored.err
    kept = json.loads((old / "run" / "test.json").read_text(encoding="utf-8"))["scores"]
    now = {score["name"]: score for score in json.loads(scored.out)["systems"][0]["scores"]}
    for score in kept:
        found_again = now[score["name"]]
        assert (found_again["value"], found_again["signature"]) == (pytest.approx(score["value"]), score["signature"])


def test_an_old_run_trains_on(old: Path, console: Command) -> None:
    """Its text lies elsewhere since it was unpacked: the mark of text that nobody touched is put in its place."""
    assert console("preprocess", "old.yaml", "--run", "fresh").code == 0
    for split in ("train", "valid", "test"):
        fresh, kept = (old / run / "data" / f"{split}.json" for run in ("fresh", "run"))
        manifest = json.loads(kept.read_text(encoding="utf-8"))
        manifest["fingerprint"] = json.loads(fresh.read_text(encoding="utf-8"))["fingerprint"]
        kept.write_text(json.dumps(manifest), encoding="utf-8")
    logged = len(lines(old / "run" / "metrics.jsonl"))
    done = console(
        "train", "old.yaml", "--run", "run", "--resume", "--device", "cpu", "--set", "training.max_updates=240"
    )
    assert done.code == 0, done.err
    assert json.loads((old / "run" / "result.json").read_text(encoding="utf-8"))["updates"] == 240
    events = [json.loads(line) for line in lines(old / "run" / "metrics.jsonl")]
    assert len(events) > logged
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < 3 * losses[logged // 2]  # it went on from where it was, not from the beginning
    assert losses[-1] < losses[0] / 5


def test_an_old_run_is_drawn_averaged_and_aligned(old: Path, console: Command) -> None:
    for words in (
        ["plot-training", "run", "-o", "curve.svg"],
        ["plot-attention", "-m", "run", *CPU[:2], "ba zu fo", "-o", "picture.html"],
        ["align", "-m", "run", *CPU, "--source", "text/test.src", "--target", "text/test.tgt"],
        ["preprocess", "old.yaml", "--run", "again"],
    ):
        done = console(*words)
        assert done.code == 0, done.err


def made_then(name: str) -> Any:
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile(f"./{name}")
        assert file is not None
        return json.load(file)


RECIPES = made_then("recipes.json")
COMMANDS = made_then("options.json")


def test_there_are_recipes_and_commands_of_before() -> None:
    assert len(RECIPES) == 33
    assert len(COMMANDS) == 21


def assert_kept(before: Any, now: Any, place: str) -> None:
    """Every value that was given is there; a key that is new may be beside it."""
    if isinstance(before, dict):
        for key, value in before.items():
            assert key in now, f"{place}.{key}"
            assert_kept(value, now[key], f"{place}.{key}")
    elif isinstance(before, list):
        assert len(before) == len(now), place
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            assert_kept(one, other, f"{place}[{number}]")
    elif isinstance(before, str) and "/" in before:
        assert Path(str(now)).parts[-len(Path(before).parts) :] == Path(before).parts, place
    else:
        assert before == now, place


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_before_means_what_it_meant(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.yaml"
    file.write_text(dump_yaml(RECIPES[name]), encoding="utf-8")
    assert_kept(RECIPES[name], recipe.load(str(file)).model_dump(mode="json"), name)


@pytest.mark.parametrize("words", COMMANDS)
def test_an_option_of_before_is_an_option(words: str) -> None:
    command: click.Command = cli
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, words
        command = found
    known = [
        {*parameter.opts, *parameter.secondary_opts}
        if isinstance(parameter, click.Option)
        else {parameter.human_readable_name}
        for parameter in command.params
    ]
    for names in COMMANDS[words]:
        assert any(set(names) <= one for one in known), f"nmtkit {words} {' '.join(names)}"
