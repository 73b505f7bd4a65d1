"""Which run is meant, and that what it saved is read once."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nmtkit.core.errors import CheckpointError
from nmtkit.experiment.opening import Opening, open_run
from nmtkit.recipe import load
from nmtkit.runs import saved
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun, find_run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the recipe of each run was read, by the name of its folder."""
    counts: Counter[str] = Counter()

    def counted(path: Path, *given: Any, **named: Any) -> Any:
        counts[path.parent.name] += 1
        return load(path, *given, **named)

    monkeypatch.setattr(saved, "load", counted)
    monkeypatch.delenv("NMTKIT_MODEL", raising=False)
    return counts


def test_a_recipe_is_read_once_until_a_translator_is_open(trained: Path, reads: Counter[str]) -> None:
    _, why = find_run(str(trained))
    assert why == "as asked"
    assert not reads, "finding reads nothing that nobody has asked for"
    said: list[str] = []
    open_run(Opening(model=str(trained), device="cpu", n_best=9), "translation", said.append)  # as `translate` does
    assert len(said) == 2
    assert reads == {"tiny": 1}


def test_the_newest_run_of_a_task_is_found_reading_no_recipe_twice(
    trained: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    text = (trained / "recipe.yaml").read_text(encoding="utf-8")
    summaries = text.replace("task: translation", "task: summarization").replace("bleu", "rougeL")
    for number, (name, recipe) in enumerate({"old": text, "mid": text, "news": summaries}.items()):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        folder.recipe.write_text(recipe, encoding="utf-8")
        folder.result.write_text("{}")
        os.utime(folder.result, (number, number))
    run, why = find_run(runs=tmp_path, task="translation")
    assert (run.folder.path.name, run.recipe.name) == ("mid", "tiny")
    assert "the newest finished run for translation" in why
    assert reads == {"news": 1, "mid": 1}
    run, _ = find_run(runs=tmp_path)
    assert run.folder.path.name == "news"
    assert reads == {"news": 1, "mid": 1}


def test_a_folder_of_the_name_that_is_no_run_hides_none(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(trained)
    assert find_run("mine")[0].recipe.name == "tiny"


def test_no_folder_of_a_run(tmp_path: Path) -> None:
    run = SavedRun(RunFolder(tmp_path))
    with pytest.raises(CheckpointError, match=r"it has no recipe\.yaml"):
        _ = run.recipe
    with pytest.raises(CheckpointError, match=r"no finished run for summarization .*train demo-news-pointer-generator"):
        find_run(runs=tmp_path, task="summarization")
