"""Tuning of training: the candidates, how they are measured, and that a result is used again and leaves no trace."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any, ClassVar

import pytest
import torch
from ranks import join_as, start_two

from nmtkit.autotune import cache
from nmtkit.autotune import training as tuning
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.training import (
    TrainingSpeedConfig,
    TrainingWorkload,
    candidate_training_configs,
    planned_seconds,
    tune_training,
)
from nmtkit.core import device as devices
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn.rnn_encdec import RnnEncDec, RnnEncDecConfig
from nmtkit.training.config import TrainingConfig
from nmtkit.training.parallel import processes

CPU = torch.device("cpu")
FP32, BF16 = TrainingSpeedConfig("fp32", "highest", 1), TrainingSpeedConfig("bf16", "highest", 1)


def config(**settings: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"max_updates": 1000, **settings})


ALL = {"fp32 highest", "fp32 medium", "bf16 highest"}
NAMED = {"precision": "bf16", "matmul_precision": "medium", "threads": 2}


@pytest.mark.parametrize(
    ("device", "settings", "bf16_allowed", "kinds", "threads"),
    [
        ("cpu", {}, True, ALL, {4, 2, 1}),
        ("cpu", {}, False, {"fp32 highest", "fp32 medium"}, {4, 2, 1}),
        ("cpu", {"threads": 3}, True, ALL, {3}),
        ("cpu", {"matmul_precision": "high"}, True, {"fp32 high", "bf16 high"}, {4, 2, 1}),
        ("cpu", NAMED, False, {"bf16 medium"}, {2}),
        ("cuda", {}, True, {"fp32 highest", "fp32 high", "bf16 highest"}, {4}),
        ("mps", {}, True, {"fp32 highest"}, {4}),
    ],
)
def test_what_is_left_open_is_varied(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    settings: dict[str, object],
    bf16_allowed: bool,
    kinds: set[str],
    threads: set[int],
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "cpu_threads", lambda: 4)
    candidates = candidate_training_configs(config(**settings), torch.device(device), bf16_allowed)
    assert {f"{one.precision} {one.matmul_precision}" for one in candidates} == kinds
    assert {one.threads for one in candidates} == threads
    assert len(candidates) == len(kinds) * len(threads)
    if not settings:
        assert candidates[0] == TrainingSpeedConfig("fp32", "highest", 4)
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        assert {one.threads for one in candidate_training_configs(config(), CPU, True)} == {4}


def test_planned_time_is_the_nearest_limit() -> None:
    assert planned_seconds(config(), 0.5, 10) == 500
    assert planned_seconds(config(max_minutes=2), 0.5, 10) == 120
    assert planned_seconds(config(max_epochs=3), 0.5, 10) == 15
    assert planned_seconds(TrainingConfig(patience=3), 0.5, 10) == float("inf")


# -- measuring ------------------------------------------------------------------------------------------------------


class Small(RnnEncDecConfig):
    embedding_size: int = 8
    hidden_size: int = 8
    maxout_size: int = 8
    dropout: float = 0.0
    bf16_allowed: ClassVar = True


class Counted(RnnEncDec):
    """Counts the updates' forward passes, and in how many of them bfloat16 was on."""

    passes = in_bf16 = 0

    def __init__(self) -> None:
        super().__init__(Small(), VocabularySizes({"src": 12, "tgt": 12}, shared=False))

    def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
        Counted.passes += 1
        Counted.in_bf16 += torch.is_autocast_enabled("cpu")
        return super().unroll(batch, *arguments, **named)


def batches(count: int) -> Sequence[Batch]:
    rows = [[5, 6, 7, 8, 9, 10, 11, 4][: 2 + number % 6] for number in range(64)]
    return [collate(rows, rows) for _ in range(count)]


def tune(model: RnnEncDec | None = None, again: bool = False, **settings: object) -> TuningResult[TrainingSpeedConfig]:
    model = model or Counted()
    workload = TrainingWorkload(lambda: model, batches, config(**settings), CPU, {"test": 1}, updates_an_epoch=100)
    return tune_training(workload, again)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring is worth it however short it is."""
    monkeypatch.setattr(tuning, "_LEAST_SECONDS", 0.0)
    Counted.passes = Counted.in_bf16 = 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_result_is_used_again() -> None:
    model = Counted()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = tune(model, max_minutes=20)
    assert not first.kept
    assert len(first.speeds) >= 3
    assert first.speed == first.speeds[str(first.config)]
    assert max(first.speeds.values()) <= 1.03 * first.speeds[str(first.config)]
    assert Counted.in_bf16 > 0
    passes = Counted.passes
    second = tune(model, max_minutes=20)
    assert second == dataclasses.replace(first, kept=True)
    assert Counted.passes == passes
    (sentence,) = second.sentences()
    assert str(first.config) in sentence
    tune(model, again=True, max_minutes=3)
    assert Counted.passes > passes
    assert torch.equal(torch.rand(3), expected), "random numbers of the training were drawn"


@pytest.mark.usefixtures("quick")
def test_what_the_recipe_names_is_not_measured() -> None:
    result = tune(precision="fp32", matmul_precision="highest", threads=1)
    assert (result.config, result.speeds) == (FP32, {})
    assert Counted.passes == 0
    assert not list(result.sentences())


class Slow(Counted):
    """Stands in for the module `time` as well: its clock goes on only while it computes."""

    def __init__(self, fixed: float, a_sentence: float = 0.0) -> None:
        super().__init__()
        self.fixed, self.a_sentence, self.now = fixed, a_sentence, 0.0

    def monotonic(self) -> float:
        return self.now

    def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
        self.now += self.fixed + self.a_sentence * batch.size
        return super().unroll(batch, *arguments, **named)


@pytest.mark.parametrize(
    ("fixed", "a_sentence", "is_measured"),
    [
        (0.06, 0.0, True),  # 60 seconds are planned, of which 3 are for measuring
        (0.03, 0.0, False),  # 30 seconds, although eight times a piece would be 240
        (0.02, 0.0005, True),  # 52 seconds
        (0.01, 0.0003, False),  # 29 seconds
        (0.0, 0.03, True),  # a whole update takes too long to be tried
    ],
)
def test_measuring_takes_a_twentieth_of_the_time_at_most(
    monkeypatch: pytest.MonkeyPatch, fixed: float, a_sentence: float, is_measured: bool
) -> None:
    model, update = Slow(fixed, a_sentence), fixed + 64 * a_sentence
    monkeypatch.setattr(tuning, "time", model)
    monkeypatch.setattr(tuning.devices, "read_clock", lambda device: model.monotonic())
    result = tune(model, threads=1)
    assert model.now <= tuning.timing.MAX_SHARE * 1000 * update
    assert bool(result.speeds) == bool(cache.entries()) == is_measured
    if not is_measured:
        assert result.config == FP32
        assert result.rough_speed == pytest.approx(batches(1)[0].n_tokens / update)


def test_a_training_that_was_too_short_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it looks longer the next time: one recipe gives one model. Others are measured, and on demand."""
    model = Slow(0.03)
    monkeypatch.setattr(tuning, "time", model)
    monkeypatch.setattr(tuning.devices, "read_clock", lambda device: model.monotonic())

    def is_measured(max_updates: int, again: bool = False) -> bool:
        return bool(tune(model, again, threads=1, max_updates=max_updates).speeds)

    short = tune(model, threads=1)
    assert not short.speeds
    assert short.rough_speed == pytest.approx(batches(1)[0].n_tokens / 0.03)
    model.fixed = 0.06
    assert tune(model, threads=1).rough_speed == short.rough_speed
    assert not is_measured(1000)
    assert cache.entries() == []
    assert is_measured(1001)
    assert not is_measured(1000)
    assert is_measured(1000, again=True)
    assert is_measured(1000)


@pytest.mark.usefixtures("quick")
def test_a_less_exact_config_with_another_loss_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick it is: here only bfloat16 is quick, and its loss is twice the exact one."""
    monkeypatch.setattr(tuning, "_loss", lambda model, batch, one, device: 2.0 if one.precision == "bf16" else 1.0)
    real = tuning.timing.time_interleaved

    def only_bf16_is_quick(possible: Sequence[TrainingSpeedConfig], seconds_of: Any, limit: float) -> Any:
        return real(possible, lambda one, *_: 1.0 if one == BF16 else 3.0, limit)

    monkeypatch.setattr(tuning.timing, "time_interleaved", only_bf16_is_quick)
    assert tune(max_minutes=1, threads=1).config == FP32


def test_the_loss_is_that_of_a_token() -> None:
    """Such as a model gives that finds all words equally likely, whatever the batch."""
    model = Counted()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for rows in ([[5, 6, 7]], [[5], [8, 9, 10, 11], [4, 4]]):
        assert tuning._loss(model, collate(rows, rows), FP32, CPU) == pytest.approx(math.log(12), abs=1e-5)
    assert model.training


class Hungry(Counted):
    """Has memory for so many sentences in float32, and for all of them in bfloat16."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
        if batch.size > self.most and not torch.is_autocast_enabled("cpu"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a test")
        return super().unroll(batch, *arguments, **named)


def leaves_no_trace(model: RnnEncDec) -> bool:
    return all(bool(parameter.isfinite().all()) and parameter.grad is None for parameter in model.parameters())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_config_that_runs_out_of_memory_is_not_taken(accumulate: int) -> None:
    model = Hungry(8)  # an eighth of a batch fits
    result = tune(model, max_minutes=1, threads=1, matmul_precision="highest", accumulate=accumulate)
    assert result.config == BF16
    assert result.speeds[str(FP32)] == 0 < result.speeds[str(BF16)]
    assert leaves_no_trace(model)
    assert result.format_speed(str(FP32)) == "out of memory"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("most", [8, 0])
def test_where_nothing_has_the_memory_nothing_is_found(most: int) -> None:
    result = tune(Hungry(most), max_minutes=1, threads=1, precision="fp32")
    assert (result.config, result.speeds) == (FP32, {})
    assert not list(cache.cache_folder().glob("*")), "next time there may be more"


def one_of_two(rank: int, port: int, folder: str) -> None:
    os.environ["XDG_CACHE_HOME"] = folder
    join_as(rank, port)
    tuning._LEAST_SECONDS = 0.0
    result = tune(Hungry(8 if rank == 1 else 64), max_minutes=1, threads=1, matmul_precision="highest")
    assert (result.config, result.speeds[str(FP32)]) == (BF16, 0)
    processes.leave()


@pytest.mark.slow
def test_if_one_of_two_processes_runs_out_of_memory_neither_takes_the_config(tmp_path: Path) -> None:
    start_two(one_of_two, tmp_path)


class SlowInHalf(Counted):
    """An update takes ten seconds with bfloat16."""

    waits = 0

    def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            for _ in range(1000):
                self.waits += 1
                sleep(0.01)
                self.src_embedding(batch.inputs.ids)
        return super().unroll(batch, *arguments, **named)


@pytest.mark.usefixtures("quick")
def test_an_update_that_is_far_too_slow_is_given_up_in_its_middle() -> None:
    model = SlowInHalf()
    result = tune(model, max_minutes=100, threads=1, matmul_precision="highest")
    assert result.config == FP32
    assert 0 < model.waits < 500, "of 1000 for each update"
    assert result.format_speed(str(BF16)).startswith("at most ")
    assert leaves_no_trace(model)
