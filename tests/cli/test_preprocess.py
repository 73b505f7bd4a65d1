"""`nmtkit preprocess` of what is large: stopped by Ctrl-C and gone on with, any number of workers, weights."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from nmtkit.cli.training import recipe
from nmtkit.data.batches import encoding, store
from nmtkit.data.batches.store import Store
from nmtkit.data.text.files import text_file
from nmtkit.experiment.execute import begin
from nmtkit.experiment.plan import Plan
from nmtkit.runs.run import Run
from tests.support.commands import Command, Finished, logged, refused, sets, succeeded

STOPPED = """
import os, signal
from nmtkit.data.batches import encoding
from nmtkit.data.batches import store
from nmtkit.data.text.files import text_file
from nmtkit.data.batches.progress import PreprocessingProgress

store.SHARD_EXAMPLES, encoding.SERIAL_CHARACTERS = 400, 1
text_file.BLOCK_BYTES, text_file.BLOCK_LINES = 2000, 1
note = PreprocessingProgress.complete_shard

def noted(self, shards, *given):
    note(self, shards, *given)
    if shards == 2:
        os.kill(os.getpid(), signal.SIGINT)

PreprocessingProgress.complete_shard = noted
"""


@pytest.fixture
def console(console: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with small shards."""
    monkeypatch.setattr(store, "SHARD_EXAMPLES", 400)
    monkeypatch.setattr(encoding, "SERIAL_CHARACTERS", 1)
    monkeypatch.setattr(text_file, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(text_file, "BLOCK_LINES", 1)
    return console


@pytest.fixture(scope="module")
def stopped(
    corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Finished]:
    """A run folder whose preprocessing by two workers was stopped after two shards, and what was said."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    return run, nmtkit(
        "preprocess", corpus / "tiny.yaml", "--run", run, "--workers", "2", first=STOPPED
    )


def files_of(run: Path) -> dict[str, bytes]:
    files = [*(run / "data").iterdir(), *(run / "vocabulary").iterdir(), run / "data-report.json"]
    return {path.name: path.read_bytes() for path in files}


def test_ctrl_c_keeps_what_is_complete_and_the_same_command_goes_on(
    corpus: Path, console: Command, tmp_path: Path, stopped: tuple[Path, Finished]
) -> None:
    straight = succeeded(
        console(
            "preprocess", corpus / "tiny.yaml", "--run", tmp_path / "straight", "--workers", "1"
        )
    )
    shards = re.findall(r"train: ([\d,]+) pairs read, \1 stored", straight.err)
    assert [int(count.replace(",", "")) // 100 for count in shards] == [4, 8, 13]
    command = ["preprocess", corpus / "tiny.yaml", "--run", "run", "--workers", "2"]
    folder, done = stopped
    assert done.code == 130, done
    assert done.err.count("stopped; to continue from the finished parts") == 1
    assert "Traceback" not in done.err
    shutil.copytree(folder, tmp_path / "run")
    assert not (tmp_path / "run" / "data-report.json").exists()
    again = succeeded(console(*command))
    assert (
        f"resuming interrupted preprocessing after the first {shards[1]} training pairs with the existing tokenizer"
        in again.err
    )
    assert "training the tokenizer" not in again.err
    assert files_of(tmp_path / "run") == files_of(tmp_path / "straight")
    assert len(Store.open(tmp_path / "run" / "data", "train")) == 1500
    once_more = console(*command)
    assert "already preprocessed and up to date" in once_more.err


def test_other_settings_begin_anew(
    corpus: Path, console: Command, tmp_path: Path, stopped: tuple[Path, Finished]
) -> None:
    shutil.copytree(stopped[0], tmp_path / "run")
    assert (tmp_path / "run" / "data" / "progress.json").exists()
    shorter = ["--run", "run", "--workers", "2", "--set", "data.max_length=4"]
    done = succeeded(console("preprocess", corpus / "tiny.yaml", *shorter))
    assert "goes on" not in done.err
    assert "training the tokenizer" in done.err
    report = json.loads((tmp_path / "run" / "data-report.json").read_text())
    assert report["splits"]["train"]["findings"]["over-long"]["count"] > 100
    kept = report["splits"]["train"]["kept"]
    assert len(Store.open(tmp_path / "run" / "data", "train")) == kept < 1400


def test_preprocess_closes_its_run(
    corpus: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []

    def begin_and_keep(*arguments: Any, **settings: Any) -> tuple[Plan, Run]:
        planned, run = begin(*arguments, **settings)
        runs.append(run)
        return planned, run

    monkeypatch.setattr(recipe, "begin", begin_and_keep)
    succeeded(console("preprocess", corpus / "tiny.yaml", "--run", "run", "--workers", "1"))
    assert [run.may_write for run in runs] == [False]


@pytest.mark.slow
def test_weights_are_trained_with(corpus: Path, console: Command, tmp_path: Path) -> None:
    files = "{src: [train.src, valid.src], tgt: [train.tgt, valid.tgt], weights: [0.5, 10]}"
    command = [
        corpus / "tiny.yaml",
        "--run",
        "run",
        *sets(f"data.train={files}", f"data.folder={corpus}"),
    ]
    said = succeeded(console("preprocess", *command)).err.rpartition("next: ")[2]
    same = [f"--set=data.train={files}", f"--set=data.folder={corpus}", "--run=run"]
    assert shlex.split(said) == ["nmtkit", "train", str(corpus / "tiny.yaml"), *same]
    opened = Store.open(tmp_path / "run" / "data", "train")
    assert opened.examples_per_file == [1500, 30]
    epoch = ["training.max_updates=null", "training.max_epochs=1", "training.log_every=1"]
    succeeded(
        console(
            "train", *command, *sets(*epoch, "batch.batch_size=50", "training.validate_every=10")
        )
    )
    updates = max(record["update"] for record in logged(tmp_path / "run"))
    assert 18 <= updates <= 26  # about 750 + 300 pairs, up to 50 in a batch


def test_a_model_that_cannot_be_built_is_refused_before_the_text_is_read(
    console: Command, corpus: Path
) -> None:
    settings = [
        "--set",
        "model.kind=transformer",
        "--set",
        "model.tie=all",
        "--set",
        "tokenizer.joint=false",
    ]
    refused(
        console("preprocess", corpus / "tiny.yaml", "--run", "run", *settings),
        "model.tie",
        "tokenizer.joint",
    )
    assert not Path("run").exists()
