"""Trainings in Python processes of their own, which share nothing but files with each other and with the test.

A copy of a process that has loaded everything has the same seeds of hashes and the same addresses as the first one, and
so hides what differs between two starts of a command. Here each process is started anew.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tests.support.commands import ROOT, environment

TIMES = {"seconds", "tokens_per_second", "valid_seconds", "used", "validating", "fingerprint"}
"""The fingerprint of preprocessed text depends on the times of its files."""
CHECKSUM = "sum"
"""The checksum of the facts in a file, times among them."""
NOT_COMPARED = re.compile(r"run\.lock|train\.log|report\.html|tensorboard/.*")
"""Files that have times, or the name of the run, in their text."""


@dataclass(frozen=True)
class Job:
    """A training by a recipe file."""

    run: str
    recipe: str
    changes: tuple[str, ...] = ()
    resume: bool = False
    leave_after: int | None = None
    """Leave this training when that update has been logged."""


def run_jobs(folder: Path, jobs: Sequence[Job], killed: bool = False, **variables: str) -> None:
    """Runs trainings one after the other in one new process; `killed`: which is killed in the end."""
    words = [
        sys.executable,
        "-m",
        "tests.support.separate_training",
        json.dumps([asdict(job) for job in jobs]),
        str(int(killed)),
    ]
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr


def differing_files(run: Path, other: Path) -> list[str]:
    """The files in which two runs differ, other than in times."""
    contents = [{**_contents(folder)} for folder in (run, other)]
    names = sorted({*contents[0], *contents[1]})
    return [name for name in names if contents[0].get(name) != contents[1].get(name)]


def _contents(run: Path) -> dict[str, Any]:
    contents: dict[str, Any] = {}
    for path in run.rglob("*"):
        name = path.relative_to(run).as_posix()
        if not path.is_file() or NOT_COMPARED.fullmatch(name):
            continue
        if path.suffix == ".json":
            contents[name] = _facts(path.read_text(encoding="utf-8"))
        elif path.suffix == ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            contents[name] = [_without_times(json.loads(line)) for line in lines]
        elif path.suffix == ".safetensors":
            contents[name] = _tensors(path)
        else:
            contents[name] = path.read_bytes()
    return contents


def _tensors(path: Path) -> dict[str, Any]:
    with safe_open(path, "numpy") as file:
        contents: dict[str, Any] = {}
        names = file.keys()
        for name in names:
            tensor = file.get_tensor(name)
            contents[name] = (str(tensor.dtype), tensor.shape, tensor.tobytes())
        for name, text in (file.metadata() or {}).items():
            try:
                contents[f"metadata {name}"] = _facts(text)
            except ValueError:
                contents[f"metadata {name}"] = text
    return contents


def _facts(text: str) -> Any:
    facts = json.loads(text)
    if isinstance(facts, dict):
        facts.pop(CHECKSUM, None)
    return _without_times(facts)


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(inner) for key, inner in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [_without_times(inner) for inner in value]
    return value


def main() -> None:
    # Only here: a test that starts such a process needs none of it.
    import torch

    from nmtkit import config
    from nmtkit.datacheck import language
    from nmtkit.experiment.evaluation import evaluate_test_set
    from nmtkit.experiment.stages import train_stages
    from tests.support.begun_runs import begin_run

    torch.set_num_threads(1)
    language._load_identifier = cache(language._load_identifier)
    device = torch.device("cpu")
    left = []
    for values in json.loads(sys.argv[1]):
        job = Job(**values)
        run = begin_run(config.load(job.recipe, list(job.changes)), job.run, resume=job.resume)
        events = train_stages(run, device, resume=job.resume)
        if job.leave_after is None:
            for _ in events:
                pass
            evaluate_test_set(run, device)
            run.close()
            continue
        for event in events:
            if getattr(event, "update", 0) >= job.leave_after:
                break
        left.append((run, events))  # what is deleted would end in order
    sys.stdout.flush()
    if int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
