"""The slot's rows, table and counting, and the whole of it on a CPU as far as that is quick."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.tools.gpu import __main__ as slot
from tests.tools.gpu import checks
from tests.tools.gpu.results import Part, read

CPU = torch.device("cpu")
TESTS = {
    "good": "assert True",
    "bad": "assert 1 + 1 == 3",
    "elsewhere": "pytest.skip('no CUDA device')",
}
PROGRAMS = ("bash", "timeout")
needs_programs = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason="needs bash and timeout"
)


@pytest.fixture
def part(tmp_path: Path) -> Part:
    slot.begin(tmp_path / "out", CPU)
    return Part("speed", CPU, tmp_path / "out")


def test_rows_come_one_by_one_and_the_table_counts_them(
    part: Part, capsys: pytest.CaptureFixture[str]
) -> None:
    part.add("tokens", None, "12 tok/s", tokens_per_second=[11.0, 12.0])
    assert read(part.results)["rows"][0]["values"] == {"tokens_per_second": [11.0, 12.0]}
    part.add("equal", True, "bit for bit")
    assert slot.show(part.results) == 0
    assert "1 hold, 0 do not, 1 only measured" in capsys.readouterr().out
    part.add("finite", False, "3 weights are not")
    assert slot.show(part.results) == 1
    shown = capsys.readouterr().out
    assert "1 hold, 1 do not, 1 only measured" in shown
    assert re.search(r"finite +NO +3 weights are not", shown)
    assert read(part.results)["machine"]["torch"] == torch.__version__


@needs_programs
@pytest.mark.parametrize(
    ("command", "limit", "figure"),
    [
        ("true", 60, "came to its end"),
        ("echo one; echo out of memory; echo; exit 3", 60, "exit code 3: out of memory"),
        ("exec sleep 60", 1, "stopped: out of time"),
    ],
    ids=["done", "failed", "stopped"],
)
def test_how_a_part_ended_is_a_row(part: Part, command: str, limit: int, figure: str) -> None:
    slot.run_limited(["sh", "-c", command], part, limit)
    (row,) = read(part.results)["rows"]
    assert (row["part"], row["holds"], row["figure"]) == (
        "speed",
        figure == "came to its end",
        figure,
    )


@pytest.mark.parametrize(
    ("names", "holds", "figure"),
    [
        (["good", "bad", "elsewhere"], False, "1 passed, 1 failed, 1 skipped (no CUDA device)"),
        (["good", "elsewhere"], True, "1 passed, 0 failed, 1 skipped (no CUDA device)"),
        (["elsewhere"], None, "0 passed, 0 failed, 1 skipped (no CUDA device)"),
    ],
    ids=["one fails", "one passes", "all are skipped"],
)
def test_what_pytest_says(part: Part, names: list[str], holds: bool | None, figure: str) -> None:
    functions = [f"@pytest.mark.cuda\ndef test_{name}():\n    {TESTS[name]}\n" for name in names]
    file = part.scratch / f"test_of_{len(names)}.py"
    file.write_text("import pytest\n" + "\n\n".join(functions), encoding="utf-8")
    with pytest.raises(SystemExit) if holds is False else nullcontext():
        checks.run_tests(part, [str(file)])
    *failed, all_tests = read(part.results)["rows"]
    assert (all_tests["name"], all_tests["holds"], all_tests["figure"]) == ("tests", holds, figure)
    assert [(row["name"], row["figure"]) for row in failed] == [
        ("test_bad", "assert (1 + 1) == 3")
    ] * ("bad" in names)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--device", "cuda:77"], "no such device: 'cuda:77'"),
        (
            ["--only", "doctor,ceiling"],
            "there is no part ceiling; there are: doctor ceilings contracts ",
        ),
        (["--device", "cpu", "--quick"], "holds other things than an earlier slot"),
    ],
    ids=["a device that is not there", "an unknown part", "a folder of somebody else"],
)
def test_what_cannot_begin_leaves_the_folder_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    (tmp_path / "mine.log").write_text("mine", encoding="utf-8")
    try:
        code = slot.main(["--out", str(tmp_path), *arguments])
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert fault in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.log"]


@needs_programs
@pytest.mark.slow
def test_the_slot_on_a_cpu(tmp_path: Path) -> None:
    parts = {"ceilings", "decoding", "peers", "training", "kernels"}
    words = [
        "tests/tools/gpu/slot.sh",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--quick",
        "--only",
        ",".join(parts),
    ]
    variables = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=slot.ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {row["part"] for row in content["rows"]} == parts
    assert not [row for row in content["rows"] if row["holds"] is False]
    assert f"all figures: {tmp_path / 'results.json'}" in done.stdout
