"""`nmtkit watch`: a training's curves, of a run that is finished, one that has not begun, and a copy that grows."""

import json
import shutil
from contextlib import chdir
from pathlib import Path

from nmtkit.runs.folder import RunFolder, ignore, lock_run
from tests.support.commands import Command, refused, succeeded


def test_watch_shows_a_finished_run_and_does_not_change_it(trained: Path, console: Command) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    shown = succeeded(console("watch", trained)).out
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before
    first, *rest = shown.splitlines()
    last = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()][-2]
    assert first.startswith(f"{trained.name}: update {last['update']:,}, epoch ")
    assert first.endswith("; finished")
    assert any(line.startswith("loss  training ") for line in rest)
    assert any("\u2801" <= character <= "\u28ff" for character in shown)


def test_watch_reads_a_growing_log(trained: Path, console: Command) -> None:
    shutil.copytree(trained, "copy")
    Path("copy", "result.json").unlink()
    log = Path("copy", "metrics.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text(lines[0] + lines[1][:20])  # the second line is being written
    assert "update 1, " in succeeded(console("watch", "copy")).out
    log.write_text("".join(lines))
    shown = succeeded(console("watch", "copy")).out
    assert "update 1, " not in shown
    assert "not being trained on this machine" in shown
    log.write_text("")
    assert succeeded(console("watch", "copy")).out.strip() == "copy: nothing has been logged yet"
    with chdir("copy"):
        assert succeeded(console("watch", ".")).out.strip() == "copy: nothing has been logged yet"
    log.write_text("no json\n")
    refused(console("watch", "copy"), "metrics.jsonl, line 1")


def test_a_training_that_replaces_another_is_shown_before_its_first_state(console: Command) -> None:
    folder = RunFolder(Path("runs", "mine"))
    folder.checkpoints.mkdir(parents=True)
    for part in (
        folder.recipe,
        folder.metrics,
        folder.result,
        folder.checkpoints / "last.safetensors",
    ):
        part.write_text("{}")
    with lock_run(folder, ignore) as lock:
        lock.set_aside()
        assert "mine: nothing has been logged yet" in succeeded(console("watch", "mine")).out
        refused(console("plot-training", "mine"), "runs/mine/metrics.jsonl cannot be read")
