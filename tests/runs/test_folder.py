"""A run that is set aside, or put back, is whole again whenever the process that moves it is killed."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from nmtkit.runs import folder as folders
from nmtkit.runs.folder import RunFolder, RunLock, ignore, lock_run
from tests.support.commands import contents

OLD = [
    "recipe.yaml",
    "text/valid.src",
    "vocabulary/joint.model",
    "data/train.ids",
    "data-report.json",
    "metrics.jsonl",
]
OLD += [
    "checkpoints/last.safetensors",
    "checkpoints/kept.json",
    "average.safetensors",
    "result.json",
    "test.out",
]
NEW = [
    "recipe.yaml",
    "chosen.yaml",
    "origin.json",
    "vocabulary/joint.model",
    "vocabulary/more",
    "train.log",
]


def write(run: Path, name: str, files: list[str]) -> None:
    for file in files:
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / f"{file}.new").write_text(f"{name} {file}", encoding="utf-8")
        (run / f"{file}.new").replace(run / file)


def killed(after: int, act: Callable[[RunLock], object], run: Path) -> bool:
    """Does something with the locked run, and ends as if killed before so many steps were made; whether it was."""
    steps = count()

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object) -> object:
            if next(steps) == after:
                raise KeyboardInterrupt
            return function(*given)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "replace"), (folders, "_remove"), (folders, "_linked")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        held = RunLock.__new__(RunLock)
        try:
            held.__init__(RunFolder(run), ignore)  # type: ignore[misc]  # it may be killed there
            act(held)
        except KeyboardInterrupt:
            return True
        finally:
            held._release()
    return False


def test_while_it_is_set_aside(tmp_path: Path) -> None:
    for steps in count():
        run = tmp_path / f"{steps}"
        write(run, "old", OLD)
        before = contents(run)
        again = killed(steps, RunLock.set_aside, run)
        lock_run(RunFolder(run), ignore).close()
        assert contents(run) == before, steps
        if not again:
            break
    assert steps > 6


def test_while_it_is_put_back(tmp_path: Path) -> None:
    for steps in count():
        run = tmp_path / f"{steps}"
        write(run, "old", OLD)
        before = contents(run)
        assert not killed(-1, RunLock.set_aside, run)
        write(run, "new", NEW)
        again = killed(steps, ignore, run)
        lock_run(RunFolder(run), ignore).close()
        assert contents(run) == before, steps
        if not again:
            break
    assert steps > 12
