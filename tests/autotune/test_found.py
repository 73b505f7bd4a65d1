"""What was found stays until it is cleared, each work for itself."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from nmtkit.autotune import found
from nmtkit.autotune.found import Found

WORK = {"work": "training", "model": {"kind": "rnnsearch"}, "batch": [1500, None]}


@dataclass(frozen=True)
class Way:
    threads: int


def threads(count: int) -> Found[Way]:
    return Found("training", Way(count), "tokens/s", {"Way(1)": 3.0}, 1.5)


def known(work: dict[str, object]) -> int | None:
    before = found.look_up(work, Way)
    assert before is None or before == replace(threads(before.way.threads), kept=True)
    return None if before is None else before.way.threads


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_found_for_the_same_work_only() -> None:
    assert known(WORK) is None
    assert found.keep(WORK, threads(2))
    assert known(dict(reversed(WORK.items()))) == 2
    assert known(WORK | {"batch": [1500, 10]}) is None
    assert found.keep(WORK, threads(1))
    assert known(WORK) == 1


def test_everything_is_shown_and_cleared(cache: Path) -> None:
    for size in (1, 2, 3):
        found.keep(WORK | {"batch": [size, None]}, threads(size))
    assert sorted(entry["found"]["way"]["threads"] for entry in found.everything()) == [1, 2, 3]
    assert found.kept_folder().is_relative_to(cache)
    assert found.clear() == 3
    assert found.everything() == []
    assert known(WORK) is None


def test_plans_are_kept_for_themselves_and_forgotten_with_their_work() -> None:
    other = WORK | {"batch": [100, None]}
    plans = [work | {found.PLAN: {"max_updates": number}} for work in (WORK, other) for number in (10, 20)]
    for work in (WORK, *plans):
        found.keep(work, threads(1))
    assert [entry["work"] for entry in found.everything()] == [WORK]
    found.forget_plans(WORK)
    assert [known(work) for work in (WORK, *plans)] == [1, None, None, 1, 1]


def test_a_damaged_file_is_as_none() -> None:
    found.keep(WORK, threads(2))
    (path,) = found.kept_folder().glob("*.json")
    for text in ("{", "[]", '{"work": {}}', '{"work": {}, "found": 3}'):
        path.write_text(text, encoding="utf-8")
        assert known(WORK) is None
        assert found.everything() == []
    path.write_text(json.dumps({"work": WORK, "found": {"way": {"turns": 2}}}), encoding="utf-8")
    assert known(WORK) is None


def test_a_folder_that_cannot_be_written_is_no_fault(cache: Path) -> None:
    (cache / "nmtkit").write_text("a file where the folder would be", encoding="utf-8")
    assert not found.keep(WORK, threads(2))
    assert known(WORK) is None
    assert found.everything() == []
    assert found.clear() == 0


def test_variables_make_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found.machine(torch.device("cpu"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert found.machine(torch.device("cpu")) == before | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
