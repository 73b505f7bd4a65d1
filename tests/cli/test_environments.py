"""Commands give the same results in environments that differ."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import IN_LOCALE_C, contents, environment
from tests.support.separate_training import differing_files

SETTINGS = [
    "precision=fp32",
    "matmul_precision=highest",
    "threads=1",
    "max_updates=12",
    "validate_every=6",
]
TRAIN = ["train", "--source", "train.src", "--target", "train.tgt", "--run", "made"]
TRAIN += [word for setting in SETTINGS for word in ("--set", f"training.{setting}")]
COMMANDS = {
    "translate": ["translate", "-m", "trained", "--workers", "{workers}", "test.src"],
    "n-best": ["translate", "-m", "trained", "--n-best", "3", "test.src"],
    "samples": [
        "translate",
        "-m",
        "trained",
        "--samples",
        "2",
        "--seed",
        "7",
        "--workers",
        "{workers}",
        "test.src",
    ],
    "backtranslate": [
        "backtranslate",
        "-m",
        "trained",
        "test.src",
        "-o",
        "back",
        "--samples",
        "1",
        "--seed",
        "3",
    ],
    "align": ["align", "-m", "trained", "--source", "test.src", "--target", "test.tgt"],
    "rescore": ["rescore", "-m", "trained", "--source", "test.src", "--target", "test.tgt"],
    "check": ["check", "train.src", "train.tgt", "--json", "check.json"],
    "fix": ["check", "train.src", "train.tgt", "--fix", "fixed"],
    "score": [
        "score",
        "--ref",
        "test.tgt",
        "test.tgt",
        "test.src",
        "--metrics",
        "bleu,chrf,ter,cider",
        "--json",
    ],
    "train": TRAIN,
}
ENVIRONMENTS = {
    "east": {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0", "TZ": "Asia/Tokyo"},
    "west": {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "TZ": "America/New_York"},
}
PROGRAMS = {"east": ["-c", IN_LOCALE_C], "west": ["-m", "nmtkit"]}


@pytest.mark.slow
def test_commands_give_the_same_results_in_another_environment(
    trained: Path, corpus: Path, tmp_path: Path
) -> None:
    outputs: dict[str, dict[str, str]] = {}
    for workers, (name, variables) in enumerate(ENVIRONMENTS.items(), start=1):
        # a run names its files by their full paths, so all work in one place
        folder = tmp_path / "here"
        folder.mkdir()
        for path in corpus.iterdir():
            if path.is_file():
                shutil.copy2(path, folder)
        shutil.copytree(trained, folder / "trained")
        outputs[name] = {}
        for command, words in COMMANDS.items():
            line = [
                sys.executable,
                *PROGRAMS[name],
                *(word.format(workers=workers) for word in words),
            ]
            done = subprocess.run(
                line, cwd=folder, env=environment(**variables), capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr.decode()
            outputs[name][command] = done.stdout.decode("utf-8")
        # Scores are added up in batches, which differ with the number of workers: their last digits may differ.
        lines = outputs[name]["samples"].splitlines()
        outputs[name]["samples"] = "\n".join(line.rpartition("\t")[2] for line in lines)
        folder.rename(tmp_path / name)
    east, west = outputs.values()
    # What training prints has times in it; its run is compared below.
    assert [
        command for command in COMMANDS if command != "train" and east[command] != west[command]
    ] == []
    folders = [tmp_path / name for name in ENVIRONMENTS]
    for made in ("back", "fixed"):
        assert contents(folders[0] / made) == contents(folders[1] / made)
    assert (folders[0] / "check.json").read_bytes() == (folders[1] / "check.json").read_bytes()
    assert differing_files(folders[0] / "made", folders[1] / "made") == []
