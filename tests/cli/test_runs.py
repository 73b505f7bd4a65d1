"""`nmtkit runs`, and what a training writes down about itself."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.core.formats import dump_yaml, load_yaml
from nmtkit.core.version import __version__
from nmtkit.runs.folder import RunFolder, ignore, lock_run
from nmtkit.runs.inventory import rename_run
from nmtkit.runs.metrics_log import TrainLog, code_state
from nmtkit.runs.run import Run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines


@pytest.fixture
def runs(trained: Path, tmp_path: Path, console: Command) -> Path:
    """A folder of runs: one finished, one that was stopped, one damaged, and a folder that is none."""
    folder = tmp_path / "runs"
    for name in ("whole", "half", "broken"):
        shutil.copytree(trained, folder / name)
    (folder / "half" / "result.json").unlink()
    (folder / "half" / "test.json").unlink()
    (folder / "broken" / "result.json").write_text("{", encoding="utf-8")
    write_lines(folder / "notes" / "recipe.yaml", ["soup: water"])
    return folder


@pytest.fixture
def held(runs: Path) -> Iterator[RunFolder]:
    with lock_run(RunFolder(runs / "whole"), ignore):
        yield RunFolder(runs / "whole")


def test_runs_are_listed_with_what_they_came_to(
    runs: Path, trained: Path, console: Command
) -> None:

    def listed() -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in json.loads(succeeded(console("runs", "--json")).out)}

    summaries = listed()
    whole, half, broken = (summaries[name] for name in ("whole", "half", "broken"))
    kept = json.loads((trained / "result.json").read_text(encoding="utf-8"))
    scores = json.loads((trained / "test.json").read_text(encoding="utf-8"))["scores"]
    assert (whole["recipe"], whole["state"], whole["why"]) == ("tiny", "finished", "max_updates")
    assert (whole["updates"], whole["metric"]) == (60, "bleu")
    assert whole["validation"] == pytest.approx(max(one["value"] for one in kept["kept"]))
    assert whole["test"] == {score["name"]: score["value"] for score in scores}
    assert whole["size"] == sum(
        path.stat().st_size for path in (runs / "whole").rglob("*") if path.is_file()
    )
    assert (half["state"], half["updates"], half["test"]) == ("stopped", 60, {})
    assert (broken["state"], "result.json" in broken["why"]) == ("damaged", True)
    table = console("runs").out
    assert "60   bleu" in table
    cut = {**kept, "reason": "max_minutes", "scheduled": 0.4}
    (runs / "whole" / "result.json").write_text(json.dumps(cut), encoding="utf-8")
    summaries = listed()
    assert (summaries["whole"]["state"], summaries["whole"]["why"]) == (
        "finished",
        "cut short by max_minutes",
    )
    assert f"BLEU {scores[0]['value']:.2f}" in " ".join(table.split())
    assert "no runs in elsewhere/" in console("runs", "--runs", "elsewhere").err


def test_a_run_is_removed_and_what_is_not_ours_stays(runs: Path, console: Command) -> None:
    (runs / "half" / "mine.txt").write_text("mine\n", encoding="utf-8")
    refused(console("runs", "rm", "whole", "half"), "--yes")
    assert (runs / "whole" / "recipe.yaml").is_file()
    succeeded(console("runs", "rm", "whole", "half", "--yes"))
    assert not (runs / "whole").exists()
    assert [path.name for path in (runs / "half").iterdir()] == ["mine.txt"]
    for name, said in (
        ("wholly", "there is no such run; runs under runs/: broken, notes"),
        ("notes", "not a run folder"),
    ):
        refused(console("runs", "rm", "broken", name, "--yes"), said)
    assert (runs / "notes" / "recipe.yaml").is_file()
    assert (runs / "broken" / "recipe.yaml").is_file()


def test_a_run_that_is_being_written_stays(held: RunFolder, console: Command) -> None:
    writer = f"process {os.getpid()} on "
    assert (
        writer
        in next(one for one in json.loads(console("runs", "--json").out) if one["name"] == "whole")[
            "why"
        ]
    )
    for words in (["rm", "whole"], ["mv", "whole", "other"]):
        refused(console("runs", *words, "--yes"), writer)
        assert held.recipe.is_file()


def test_a_run_is_renamed_with_the_text_that_it_holds(runs: Path, console: Command) -> None:
    recipe = runs / "whole" / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "valid.src" in line).split("- ")[1]
    recipe.write_text(
        text.replace(line, str(runs / "whole" / "text" / "valid.src")), encoding="utf-8"
    )
    refused(console("runs", "mv", "whole", "half", "--yes"))
    succeeded(console("runs", "mv", "whole", "other", "--yes"))
    assert not (runs / "whole").exists()
    valid = Run(RunFolder(runs / "other")).recipe.data.valid
    assert valid is not None
    assert valid.src == [str(runs / "other" / "text" / "valid.src")]
    refused(console("runs", "mv", "other", "~", "--yes"))


def test_a_run_is_renamed_whose_paths_yaml_breaks_at_blanks(tmp_path: Path) -> None:
    old = RunFolder(tmp_path / " ".join(["folder"] * 20))
    text = dump_yaml({"data": {"src": [str(old.path / "text" / "a b.en")]}})
    assert str(old.path) not in text
    write_lines(old.recipe, text.splitlines())
    for name in ("try #2", "de: en", '"new"'):
        with pytest.raises(NmtkitError, match="would make them invalid YAML"):
            rename_run(old, f"{tmp_path}/{name}", ignore)
    new = rename_run(old, f"{tmp_path}/new name", ignore)
    assert load_yaml(new.recipe)[0]["data"]["src"] == [str(new.path / "text" / "a b.en")]


def test_a_run_with_a_recipe_that_is_no_text_is_renamed(runs: Path, console: Command) -> None:
    recipe, place = runs / "broken" / "recipe.yaml", str(runs / "broken" / "text").encode()
    recipe.write_bytes(b"\xff" + place)
    succeeded(console("runs", "mv", "broken", "other", "--yes"))
    assert (runs / "other" / "recipe.yaml").read_bytes() == b"\xff" + place.replace(
        b"broken", b"other"
    )


def test_a_training_is_written_down(trained: Path) -> None:
    lines = lines_in(trained / "train.log")
    assert "$ nmtkit train " in lines[0]
    assert f"nmtkit {__version__}, torch " in lines[1]
    assert f"code: {code_state()}"[:20] in lines[2]
    assert lines == sorted(lines, key=lambda line: line[:19])
    for said in ("update 60", "validation at update 20: bleu", "finished after update 60", "BLEU"):
        assert any(said in line for line in lines), said


def test_a_journal_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    journal = TrainLog(["nmtkit", "train", "a b"], said.append)
    (tmp_path / "train.log").mkdir()
    journal.open(RunFolder(tmp_path))
    journal.write("more")
    journal.close()
    assert len(said) == 1
    assert "train.log (Is a directory); training continues without this log" in said[0]


def test_a_training_that_goes_on_writes_behind(tmp_path: Path) -> None:
    for word in ("first", "second"):
        journal = TrainLog(["nmtkit", "train", "a b"], ignore)
        journal.write("waits\nfor it")
        journal.open(RunFolder(tmp_path))
        journal.write(word)
        journal.close()
        journal.write("too late")
    said = [line[21:] for line in lines_in(tmp_path / "train.log")]
    assert len(said) == 12
    assert said[0] == said[6] == "$ nmtkit train 'a b'"
    messages = [line for line in said if line in ("waits", "for it", "first", "second", "too late")]
    assert messages == ["waits", "for it", "first", "waits", "for it", "second"]
