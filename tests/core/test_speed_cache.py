"""What was found stays until it is cleared, each work for itself."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from nmtkit.core import speed_cache
from nmtkit.core.speed_cache import TuningResult

pytestmark = pytest.mark.usefixtures("cache_home")

WORK = {"work": "training", "model": {"kind": "rnnsearch"}, "batch": [1500, None]}


@dataclass(frozen=True)
class ThreadConfig:
    threads: int


def threads(count: int) -> TuningResult[ThreadConfig]:
    return TuningResult(ThreadConfig(count), {"ThreadConfig(1)": 3.0})


def known(work: dict[str, object]) -> int | None:
    before = speed_cache.get(work, ThreadConfig)
    assert before is None or before == replace(threads(before.config.threads), kept=True)
    return None if before is None else before.config.threads


def test_what_is_kept_is_found_for_the_same_work_only_shown_and_cleared(cache_home: Path) -> None:
    assert known(WORK) is None
    assert speed_cache.put(WORK, threads(2))
    assert known(dict(reversed(WORK.items()))) == 2
    assert known(WORK | {"batch": [1500, 10]}) is None
    assert speed_cache.put(WORK, threads(1))
    assert known(WORK) == 1
    for size in (2, 3):
        speed_cache.put(WORK | {"batch": [size, None]}, threads(size))
    assert sorted(entry["result"]["config"]["threads"] for entry in speed_cache.entries()) == [
        1,
        2,
        3,
    ]
    assert speed_cache.cache_folder().is_relative_to(cache_home)
    assert speed_cache.clear() == 3
    assert speed_cache.entries() == []
    assert known(WORK) is None


def test_a_damaged_file_is_as_none() -> None:
    speed_cache.put(WORK, threads(2))
    (path,) = speed_cache.cache_folder().glob("*.json")
    for text in ("{", "[]", '{"key": {}}', '{"key": {}, "result": 3}'):
        path.write_text(text, encoding="utf-8")
        assert known(WORK) is None
        assert speed_cache.entries() == []
    path.write_text(json.dumps({"key": WORK, "result": {"config": {"turns": 2}}}), encoding="utf-8")
    assert known(WORK) is None


def test_a_folder_that_cannot_be_written_is_no_fault(cache_home: Path) -> None:
    (cache_home / "nmtkit").write_text("a file where the folder would be", encoding="utf-8")
    assert not speed_cache.put(WORK, threads(2))
    assert known(WORK) is None
    assert speed_cache.entries() == []
    assert speed_cache.clear() == 0


def test_variables_make_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = speed_cache.machine(torch.device("cpu"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert speed_cache.machine(torch.device("cpu")) == before | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
