"""The slot's file and table, its counting, and the whole of it on a CPU as far as that is quick."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import results

ROOT = Path(__file__).parents[2]
CASES = [
    '<testcase name="test_good" time="0.1" />',
    '<testcase name="test_bad" time="0.1"><failure message="assert (1 + 1) == 3" /></testcase>',
    '<testcase name="test_elsewhere" time="0.1"><skipped message="no CUDA device" /></testcase>',
]
"""What pytest writes into its report."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    assert results.begin(path, "cpu") == 0
    return path


def rows(file: Path) -> list[tuple[str, str, bool | None]]:
    return [(row["part"], row["name"], row["holds"]) for row in results.read(file)["rows"]]


def test_rows_come_one_by_one_and_the_table_counts_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = results.Results(file, "speed")
    part.add("tokens", None, "12 tok/s", tokens_per_second=[11.0, 12.0])
    assert results.read(file)["rows"][0]["values"] == {"tokens_per_second": [11.0, 12.0]}
    part.add("equal", True, "bit for bit")
    capsys.readouterr()
    assert results.table(file) == 0
    assert "1 hold, 0 do not, 1 only measured" in capsys.readouterr().out
    part.add("finite", False, "3 weights are not")
    assert results.table(file) == 1
    shown = capsys.readouterr().out
    assert "1 hold, 1 do not, 1 only measured" in shown
    line = next(line for line in shown.splitlines() if "finite" in line)
    assert "NO" in line
    assert "3 weights are not" in line
    assert rows(file) == [("speed", "tokens", None), ("speed", "equal", True), ("speed", "finite", False)]
    assert results.read(file)["machine"]["torch"] == torch.__version__


def test_a_part_that_fails_or_is_stopped_is_a_row(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\nRuntimeError: out of memory\n\n", encoding="utf-8")
    results.ended(file, "a", 0, 1.0, log)
    results.ended(file, "b", 1, 2.0, log)
    results.ended(file, "c", 124, 3.0, log)
    assert [row["figure"] for row in results.read(file)["rows"]] == [
        "came to its end",
        "exit code 1: RuntimeError: out of memory",
        "stopped: out of time",
    ]
    assert [holds for _, _, holds in rows(file)] == [True, False, False]


@pytest.mark.parametrize(
    ("cases", "holds", "figure"),
    [
        ((0, 1, 2), False, "1 passed, 1 failed, 1 skipped (no CUDA device)"),
        ((0, 2), True, "1 passed, 0 failed, 1 skipped (no CUDA device)"),
        ((2,), None, "0 passed, 0 failed, 1 skipped (no CUDA device)"),
    ],
)
def test_what_pytest_says(file: Path, tmp_path: Path, cases: tuple[int, ...], holds: bool | None, figure: str) -> None:
    report = tmp_path / "found.xml"
    report.write_text(f"<suites>{''.join(CASES[number] for number in cases)}</suites>", encoding="utf-8")
    results.from_pytest(file, "tests", report)
    all_tests, *failed = results.read(file)["rows"]
    assert (all_tests["name"], all_tests["holds"], all_tests["figure"]) == ("tests", holds, figure)
    assert [(row["name"], row["figure"]) for row in failed] == [("test_bad", "assert (1 + 1) == 3")] * (1 in cases)


def slot(out: Path, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    words = [str(ROOT / "tests/gpu/slot.sh"), "--out", str(out), *arguments]
    changes = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **changes}
    return subprocess.run(words, env={**os.environ, **changes}, capture_output=True, text=True, check=False)


needs_bash = pytest.mark.skipif(
    not shutil.which("bash") or not shutil.which("timeout"), reason="needs bash and timeout"
)


@needs_bash
@pytest.mark.slow
def test_without_the_device_one_line_says_so(tmp_path: Path) -> None:
    done = slot(tmp_path, "--device", "cuda:77")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "no such device: 'cuda:77'" in done.stderr


@needs_bash
def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    done = slot(tmp_path, "--device", "cpu", "--only", "doctor,ceiling")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no part ceiling; there are: doctor ceilings programs contracts " in done.stderr


@needs_bash
def test_a_folder_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.log").write_text("mine", encoding="utf-8")
    done = slot(tmp_path, "--device", "cpu", "--quick")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds other things than an earlier slot" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.log"]


@needs_bash
@pytest.mark.slow
def test_the_slot_on_a_cpu(tmp_path: Path) -> None:
    parts = {"ceilings", "programs", "processes", "decoding", "peers", "training", "kernels"}
    done = slot(tmp_path, "--device", "cpu", "--quick", "--only", ",".join(sorted(parts)))
    assert done.returncode == 0, done
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {row["part"] for row in content["rows"]} == parts
    assert not [row for row in content["rows"] if row["holds"] is False]
    assert f"all figures: {tmp_path / 'results.json'}" in done.stdout
