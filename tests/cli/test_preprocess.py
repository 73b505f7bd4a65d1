"""`nmtkit preprocess` of what is large: stopped by Ctrl-C and gone on with, any number of workers, weights."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import environment
from in_process import Console, console_in

from nmtkit.data import cutting, store
from nmtkit.data.store import Store

PROGRAM = """
import os, signal, sys
from nmtkit.cli import main
from nmtkit.data import cutting, store
from nmtkit.data.progress import Progress

store.SHARD_EXAMPLES, store.ALONE, cutting._EXAMPLES = 400, 1, 100
note = Progress.shard_done

def noted(self, shards, *given):
    note(self, shards, *given)
    if shards == 2:
        print(len(open(f"/proc/self/task/{os.getpid()}/children").read().split()), flush=True)
        os.kill(os.getpid(), signal.SIGINT)

Progress.shard_done = noted
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test that runs in the background is begun without it
main()
"""


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    """The command with small shards."""
    monkeypatch.setattr(store, "SHARD_EXAMPLES", 400)
    monkeypatch.setattr(store, "ALONE", 1)
    monkeypatch.setattr(cutting, "_EXAMPLES", 100)
    return console_in(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def stopped(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """A run folder whose preprocessing by two workers was stopped after two shards, and what was said."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    words = [sys.executable, "-c", PROGRAM, "preprocess", corpus / "tiny.yaml", "--run", run, "--workers", "2"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False, timeout=120)
    return run, done


def files_of(run: Path) -> dict[str, bytes]:
    files = [*(run / "data").iterdir(), *(run / "vocabulary").iterdir(), run / "data-report.json"]
    return {path.name: path.read_bytes() for path in files}


def test_ctrl_c_keeps_what_is_complete_and_the_same_command_goes_on(
    corpus: Path, console: Console, tmp_path: Path, stopped: tuple[Path, "subprocess.CompletedProcess[str]"]
) -> None:
    straight = console("preprocess", corpus / "tiny.yaml", "--run", tmp_path / "straight", "--workers", "1")
    assert straight.code == 0, straight
    assert "train: 800 pairs read, 800 stored" in straight.err
    command = ["preprocess", str(corpus / "tiny.yaml"), "--run", str(tmp_path / "run"), "--workers", "2"]
    folder, done = stopped
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("stopped; what is complete is kept") == 1
    assert "Traceback" not in done.stderr
    shutil.copytree(folder, tmp_path / "run")
    assert not (tmp_path / "run" / "data-report.json").exists()
    again = console(*command)
    assert again.code == 0, again
    assert "it goes on after the first 800 pairs of train, with the tokenizer it learned" in again.err
    assert "learning the tokenizer" not in again.err
    assert files_of(tmp_path / "run") == files_of(tmp_path / "straight")
    assert len(Store.open(tmp_path / "run" / "data", "train")) == 1500
    once_more = console(*command)
    assert "preprocessed before, and nothing has changed" in once_more.err


def test_other_settings_begin_anew(
    corpus: Path, console: Console, tmp_path: Path, stopped: tuple[Path, "subprocess.CompletedProcess[str]"]
) -> None:
    command = ["preprocess", str(corpus / "tiny.yaml"), "--run", str(tmp_path / "run"), "--workers", "2"]
    shutil.copytree(stopped[0], tmp_path / "run")
    assert (tmp_path / "run" / "data" / "progress.json").exists()
    done = console(*command, "--set", "data.max_length=4")
    assert done.code == 0, done
    assert "goes on" not in done.err
    assert "learning the tokenizer" in done.err
    report = json.loads((tmp_path / "run" / "data-report.json").read_text())
    assert report["splits"]["train"]["findings"]["over-long"]["count"] > 100
    kept = report["splits"]["train"]["kept"]
    assert len(Store.open(tmp_path / "run" / "data", "train")) == kept < 1400


def test_weights_are_trained_with(corpus: Path, console: Console, tmp_path: Path) -> None:
    files = "{src: [train.src, valid.src], tgt: [train.tgt, valid.tgt], weights: [0.5, 10]}"
    settings = ["--set", f"data.train={files}", "--set", f"data.folder={corpus}"]
    command = [str(corpus / "tiny.yaml"), "--run", str(tmp_path / "run"), *settings]
    done = console("preprocess", *command)
    assert done.code == 0, done
    opened = Store.open(tmp_path / "run" / "data", "train")
    assert opened.by_file == [1500, 30]
    epoch = ["--set", "training.max_updates=null", "--set", "training.max_epochs=1", "--set", "training.log_every=1"]
    done = console("train", *command, *epoch, "--set", "batch.batch_size=50", "--set", "training.validate_every=10")
    assert done.code == 0, done
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    updates = max(json.loads(line)["update"] for line in lines)
    assert 18 <= updates <= 26  # about 750 + 300 pairs, up to 50 in a batch


def test_weights_of_another_number_are_refused(corpus: Path, console: Console, tmp_path: Path) -> None:
    done = console("preprocess", corpus / "tiny.yaml", "--run", tmp_path / "run", "--set", "data.train.weights=[1, 2]")
    assert done.code == 2
    assert "src names 1 and weights 2: they must be paired" in done.err
