"""A run that was stopped or killed goes on bit for bit as if it never had been."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Command, environment

from nmtkit.training.checkpoint import read_weights

SETTINGS = ["--set", "training.max_updates=40", "--set", "training.save_every=7", "--set", "training.log_every=1"]


def begin(corpus: Path, folder: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "nmtkit", "train", str(corpus / "tiny.yaml"), "--run", str(folder), *SETTINGS]
    return subprocess.Popen(words, stderr=subprocess.PIPE, env=environment())


def wait_for_update(folder: Path, update: int, process: "subprocess.Popen[bytes]") -> None:
    """Until `metrics.jsonl` tells of that update."""
    path = folder / "metrics.jsonl"
    for _ in range(6000):
        if path.exists() and any(f'"update": {update},' in line for line in path.read_text().splitlines()):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("no update")


def records(folder: Path) -> list[dict[str, object]]:
    timing = {"seconds", "tokens_per_second", "valid_seconds"}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in timing} for line in lines]


@pytest.fixture(scope="module")
def straight(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training without a stop."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    done = nmtkit("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS)
    assert done.code == 0, done
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_resume_is_bit_for_bit(
    corpus: Path, nmtkit: Command, straight: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with begin(corpus, folder) as process:
        wait_for_update(folder, 25, process)
        os.kill(process.pid, number)
        _, err = process.communicate()
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:  # the state was saved, and the user is told how to go on
        assert process.returncode == 130, err
        assert b"--resume" in err
    assert not (folder / "result.json").exists()

    done = nmtkit("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS, "--resume")
    assert done.code == 0, done
    weights = sorted((straight / "checkpoints").glob("weights-*"))
    assert [path.name for path in weights] == sorted(path.name for path in (folder / "checkpoints").glob("weights-*"))
    assert len(weights) == 2
    for path in weights:
        # The files' heads may list their facts in another order; every number must be the same.
        expected, found = read_weights(path), read_weights(folder / "checkpoints" / path.name)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, found[name]), name
    assert records(folder) == records(straight)


def test_resume_of_another_recipe_is_refused(corpus: Path, nmtkit: Command, straight: Path) -> None:
    command = ["train", corpus / "tiny.yaml", "--run", straight, *SETTINGS, "--resume"]
    done = nmtkit(*command, "--set", "model.hidden_size=50", "--set", "training.lr=0.1")
    assert done.code == 2, done
    assert "`model.hidden_size` was 48 and is 50" in done.err
    assert "`training.lr` was 0.005 and is 0.1" in done.err


def test_a_run_is_not_trained_over(corpus: Path, nmtkit: Command, straight: Path) -> None:
    before = (straight / "metrics.jsonl").read_bytes()
    done = nmtkit("train", corpus / "tiny.yaml", "--run", straight, *SETTINGS)
    assert done.code == 2, done
    assert "--resume" in done.err
    assert "--overwrite" in done.err
    assert (straight / "metrics.jsonl").read_bytes() == before
