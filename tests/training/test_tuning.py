"""The ways to train: which there are, how they are measured, that what is found is used again and leaves no trace."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from test_distributed import start_two
from tiny_training import TinyModel

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
from nmtkit.data.batch import Batch, collate
from nmtkit.models.base import Seq2Seq, VocabularySizes
from nmtkit.training import distributed
from nmtkit.training.config import TrainingConfig

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def config(**settings: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"max_updates": 1000, **settings})


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "cpu_threads", lambda: 4)


@pytest.mark.usefixtures("four_threads")
def test_every_way_that_is_left_open() -> None:
    found = candidate_training_configs(config(), CPU, bf16_allowed=True)
    assert found[0] == TrainingSpeedConfig("fp32", "highest", 4)
    assert {(way.precision, way.matmul_precision) for way in found} == {
        ("fp32", "highest"),
        ("fp32", "medium"),
        ("bf16", "highest"),
    }
    assert {way.threads for way in found} == {4, 2, 1}
    assert len(found) == 9


@pytest.mark.usefixtures("four_threads")
def test_what_is_named_is_not_varied() -> None:
    assert {way.precision for way in candidate_training_configs(config(), CPU, bf16_allowed=False)} == {"fp32"}
    assert {way.threads for way in candidate_training_configs(config(threads=3), CPU, True)} == {3}
    assert {way.matmul_precision for way in candidate_training_configs(config(matmul_precision="high"), CPU, True)} == {
        "high"
    }
    named = config(precision="bf16", matmul_precision="medium", threads=2)
    assert candidate_training_configs(named, CPU, False) == [TrainingSpeedConfig("bf16", "medium", 2)]


@pytest.mark.usefixtures("four_threads")
def test_threads_that_the_user_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert {way.threads for way in candidate_training_configs(config(), CPU, True)} == {4}


@pytest.mark.usefixtures("four_threads")
def test_a_gpu_varies_what_a_gpu_has() -> None:
    assert candidate_training_configs(config(), CUDA, True) == [
        TrainingSpeedConfig("fp32", "highest", 4),
        TrainingSpeedConfig("fp32", "high", 4),
        TrainingSpeedConfig("bf16", "highest", 4),
    ]
    assert candidate_training_configs(config(), torch.device("mps"), True) == [
        TrainingSpeedConfig("fp32", "highest", 4)
    ]


def test_planned_time_is_the_nearest_limit() -> None:
    assert planned_seconds(config(), 0.5, 10) == 500
    assert planned_seconds(config(max_minutes=2), 0.5, 10) == 120
    assert planned_seconds(config(max_epochs=3), 0.5, 10) == 15
    assert planned_seconds(TrainingConfig(patience=3), 0.5, 10) == float("inf")


class Counted(TinyModel):
    """Counts the updates' forward passes, and in how many of them bfloat16 was on."""

    class Config(TinyModel.Config):
        @property
        def bf16_allowed(self) -> bool:
            return True

    passes = 0
    in_bf16 = 0

    def unroll(self, *arguments: Any, **named: Any) -> Any:
        Counted.passes += 1
        Counted.in_bf16 += torch.is_autocast_enabled("cpu")
        return super().unroll(*arguments, **named)


def build() -> Seq2Seq:
    return Counted(Counted.Config(), VocabularySizes(12, 12, False))


def batches(count: int) -> Sequence[Batch]:
    rows = [[5, 6, 7, 8, 9, 10, 11, 4][: 2 + number % 6] for number in range(64)]
    return [collate(rows, rows) for _ in range(count)]


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was found before, and nothing is left to others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring is worth it however short it is."""
    monkeypatch.setattr(tuning, "_LEAST_SECONDS", 0.0)
    Counted.passes = Counted.in_bf16 = 0


def trial(build: Callable[[], Seq2Seq], config: TrainingConfig, name: str) -> TrainingWorkload:
    return TrainingWorkload(build, batches, config, CPU, {"test": name}, updates_an_epoch=100)


def find(config: TrainingConfig, name: str, again: bool = False) -> TuningResult[TrainingSpeedConfig]:
    return tune_training(trial(build, config, name), again)


@pytest.mark.usefixtures("quick")
def test_what_was_found_is_used_again() -> None:
    first = find(config(max_minutes=1), "again")
    assert not first.kept
    assert len(first.speeds) >= 3
    assert first.speed == first.speeds[str(first.config)]
    assert max(first.speeds.values()) <= 1.03 * first.speeds[str(first.config)]
    assert Counted.in_bf16 > 0
    passes = Counted.passes
    second = find(config(max_minutes=1), "again")
    assert second == dataclasses.replace(first, kept=True)
    assert Counted.passes == passes
    assert find(config(max_minutes=1), "again", again=True).day
    assert Counted.passes > passes
    (said,) = second.sentences()
    assert str(first.config) in said


@pytest.mark.usefixtures("quick")
def test_what_the_recipe_names_is_not_measured() -> None:
    found = find(config(precision="fp32", matmul_precision="highest", threads=1), "named")
    assert (found.config, found.speeds) == (TrainingSpeedConfig("fp32", "highest", 1), {})
    assert Counted.passes == 0
    assert not list(found.sentences())


def test_a_short_training_is_not_measured() -> None:
    found = find(config(max_updates=20), "short")
    assert (found.config.precision, found.config.matmul_precision) == ("fp32", "highest")
    assert not found.speeds


class Clock:
    """Goes on only when it is told to; stands in for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


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
    clock = Clock()
    monkeypatch.setattr(tuning, "time", clock)

    class Slow(Counted):
        def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
            clock.now += fixed + a_sentence * batch.size
            return super().unroll(batch, *arguments, **named)

    def build() -> Seq2Seq:
        return Slow(Slow.Config(), VocabularySizes(12, 12, False))

    chosen = config(max_updates=1000, threads=1)
    found = tune_training(trial(build, chosen, "share"))
    assert bool(found.speeds) == is_measured
    assert clock.now <= tuning.MOST_SHARE * 1000 * (fixed + 64 * a_sentence)


def test_a_training_that_was_too_short_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it looks longer the next time: one recipe gives one model. Others are measured, and whatever one asks."""
    clock, seconds = Clock(), 0.03
    monkeypatch.setattr(tuning, "time", clock)

    class Slow(Counted):
        def unroll(self, *arguments: Any, **named: Any) -> Any:
            clock.now += seconds
            return super().unroll(*arguments, **named)

    def found_for(max_updates: int, again: bool = False) -> TuningResult[TrainingSpeedConfig]:
        def build() -> Seq2Seq:
            return Slow(Slow.Config(), VocabularySizes(12, 12, False))

        chosen = config(max_updates=max_updates, threads=1)
        return tune_training(trial(build, chosen, "plan"), again)

    def is_measured(max_updates: int, again: bool = False) -> bool:
        return bool(found_for(max_updates, again).speeds)

    short = found_for(1000)
    assert not short.speeds
    mask = batches(1)[0].tgt_mask
    assert mask is not None
    assert short.rough_speed == pytest.approx(int(mask.sum()) / 0.03)
    seconds = 0.06
    assert found_for(1000).rough_speed == short.rough_speed
    assert not is_measured(1000)
    assert cache.entries() == []
    assert is_measured(1001)
    assert not is_measured(1000)
    assert is_measured(1000, again=True)
    assert is_measured(1000)


@pytest.mark.usefixtures("quick")
def test_no_random_number_of_the_training_is_used() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    find(config(max_minutes=1), "random")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.usefixtures("quick")
def test_a_less_exact_way_with_another_loss_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick it is: here only bfloat16 is quick, and its loss is twice the exact one."""
    monkeypatch.setattr(tuning, "_loss", lambda model, batch, way, device: 2.0 if way.precision == "bf16" else 1.0)
    quickest = TrainingSpeedConfig("bf16", "highest", 1)
    real = tuning.time_interleaved

    def only_bf16_is_quick(possible: Sequence[TrainingSpeedConfig], seconds_of: Any, limit: float) -> Any:
        return real(possible, lambda way, *_: 1.0 if way == quickest else 3.0, limit)

    monkeypatch.setattr(tuning, "time_interleaved", only_bf16_is_quick)
    assert find(config(max_minutes=1, threads=1), "loss").config == TrainingSpeedConfig("fp32", "highest", 1)


def test_the_loss_is_that_of_a_token() -> None:
    """Such as a model gives that finds all words equally likely, whatever the batch."""
    model = build()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for rows in ([[5, 6, 7]], [[5], [8, 9, 10, 11], [4, 4]]):
        loss = tuning._loss(model, collate(rows, rows), TrainingSpeedConfig("fp32", "highest", 1), CPU)
        assert loss == pytest.approx(math.log(12), abs=1e-5)
    assert model.training


class Hungry(Counted):
    """Has memory for so many sentences in float32, and for all of them in bfloat16."""

    most = 0

    def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
        if batch.size > self.most and not torch.is_autocast_enabled("cpu"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a test")
        return super().unroll(batch, *arguments, **named)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_way_that_runs_out_of_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    monkeypatch.setattr(Hungry, "most", 8)  # an eighth of a batch fits
    model = Hungry(Hungry.Config(), VocabularySizes(12, 12, False))
    chosen = config(max_minutes=1, threads=1, matmul_precision="highest", accumulate=accumulate)
    found = tune_training(trial(lambda: model, chosen, "memory"))
    assert found.config == TrainingSpeedConfig("bf16", "highest", 1)
    assert found.speeds[str(TrainingSpeedConfig("fp32", "highest", 1))] == 0
    assert found.speeds[str(found.config)] > 0
    assert all(parameter.isfinite().all() and parameter.grad is None for parameter in model.parameters())
    assert "fp32 highest, 1 thread out of memory" in next(found.sentences())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("most", [8, 0])
def test_where_no_way_has_the_memory_nothing_is_found(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(Hungry, "most", most)
    named = config(max_minutes=1, threads=1, precision="fp32")
    found = tune_training(trial(lambda: Hungry(Hungry.Config(), VocabularySizes(12, 12, False)), named, "none"))
    assert (found.config, found.speeds) == (TrainingSpeedConfig("fp32", "highest", 1), {})
    assert not list(cache.cache_folder().glob("*")), "next time there may be more"


def one_of_two(rank: int, port: int, folder: str) -> None:
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in named.items()}, XDG_CACHE_HOME=folder)
    distributed.join(CPU)
    tuning._LEAST_SECONDS = 0.0
    Hungry.most = 8 if rank == 1 else 64
    chosen = config(max_minutes=1, threads=1, matmul_precision="highest")
    sizes = VocabularySizes(12, 12, False)
    found = tune_training(trial(lambda: Hungry(Hungry.Config(), sizes), chosen, "two"))
    assert found.config == TrainingSpeedConfig("bf16", "highest", 1)
    assert found.speeds[str(TrainingSpeedConfig("fp32", "highest", 1))] == 0
    distributed.leave()


@pytest.mark.slow
def test_if_one_of_two_processes_runs_out_of_memory_neither_takes_the_way(tmp_path: Path) -> None:
    start_two(one_of_two, tmp_path)


class SlowInHalf(Counted):
    """An update takes ten seconds with bfloat16."""

    waits = 0

    def unroll(self, batch: Batch, *arguments: Any, **named: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            for _ in range(1000):
                SlowInHalf.waits += 1
                sleep(0.01)
                self.src_embedding(batch.src)
        return super().unroll(batch, *arguments, **named)


@pytest.mark.usefixtures("quick")
def test_an_update_that_is_far_too_slow_is_given_up_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowInHalf, "waits", 0)
    model = SlowInHalf(SlowInHalf.Config(), VocabularySizes(12, 12, False))
    chosen = config(max_minutes=100, threads=1, matmul_precision="highest")
    found = tune_training(trial(lambda: model, chosen, "slow"))
    assert found.config == TrainingSpeedConfig("fp32", "highest", 1)
    assert 0 < SlowInHalf.waits < 500, "of 1000 for each update"
    assert "bf16, 1 thread at most " in next(found.sentences())
    assert all(parameter.isfinite().all() and parameter.grad is None for parameter in model.parameters())
