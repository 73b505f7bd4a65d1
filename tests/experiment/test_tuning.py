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

from nmtkit.core import device as devices
from nmtkit.core import speed_cache
from nmtkit.core.speed_cache import TuningResult
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.experiment import tuning
from nmtkit.experiment.tuning import TrainingSpeedConfig, candidate_training_configs, tune_training
from nmtkit.experiment.workloads import MIN_TOKENS, TrainingWorkload, is_too_short, planned_seconds
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn.rnn_encdec import RnnEncDec, RnnEncDecConfig
from nmtkit.training.config import TrainingConfig
from nmtkit.training.parallel import processes
from tests.support.ranks import join_as, start_two

pytestmark = pytest.mark.usefixtures("cache_home")

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


def workload_of(
    model: RnnEncDec, updates_an_epoch: float = 100, **settings: object
) -> TrainingWorkload:
    return TrainingWorkload(
        lambda: model, batches, config(**settings), CPU, {"test": 1}, updates_an_epoch
    )


def tune(
    model: RnnEncDec | None = None,
    again: bool = False,
    need_speed: bool = False,
    **settings: object,
) -> TuningResult[TrainingSpeedConfig]:
    return tune_training(workload_of(model or Counted(), **settings), again, need_speed)


@pytest.fixture(autouse=True)
def count_from_zero() -> None:
    Counted.passes = Counted.in_bf16 = 0


LONG = {"max_updates": 10_000_000}


@pytest.mark.slow
def test_a_result_is_used_again() -> None:
    model = Counted()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = tune(model, **LONG)
    assert not first.kept
    assert len(first.speeds) >= 3
    assert first.speed == first.speeds[str(first.config)]
    assert max(first.speeds.values()) <= 1.03 * first.speeds[str(first.config)]
    assert Counted.in_bf16 > 0
    passes = Counted.passes
    second = tune(model, **LONG)
    assert second == dataclasses.replace(first, kept=True)
    assert Counted.passes == passes
    assert str(first.config) in str(second)
    tune(model, again=True, **LONG)
    assert Counted.passes > passes
    assert torch.equal(torch.rand(3), expected), "random numbers of the training were drawn"


def test_what_the_recipe_names_is_not_measured() -> None:
    result = tune(precision="fp32", matmul_precision="highest", threads=1, **LONG)
    assert (result.config, result.speeds) == (FP32, {})
    assert Counted.passes == 0


def tokens_of_a_batch() -> int:
    return batches(1)[0].n_tokens


@pytest.mark.parametrize(
    ("settings", "updates_an_epoch", "is_short"),
    [
        pytest.param({"max_minutes": 1.9, "max_updates": 10**9}, 100, True, id="few minutes"),
        pytest.param({"max_minutes": 2, "max_updates": 10**9}, 100, False, id="enough minutes"),
        pytest.param(
            {"max_updates": MIN_TOKENS // tokens_of_a_batch()}, 100, True, id="few updates"
        ),
        pytest.param(
            {"max_updates": MIN_TOKENS // tokens_of_a_batch() + 1}, 100, False, id="enough updates"
        ),
        pytest.param(
            {"max_updates": 1000, "accumulate": 4}, 100, False, id="enough tokens in an update"
        ),
        pytest.param({"max_epochs": 3, "max_updates": 10**9}, 100, True, id="short epochs"),
        pytest.param({"max_epochs": 3, "max_updates": 10**9}, 10_000, False, id="long epochs"),
    ],
)
def test_a_training_is_too_short_by_its_limits_alone(
    settings: dict[str, object], updates_an_epoch: float, is_short: bool
) -> None:
    assert is_too_short(workload_of(Counted(), updates_an_epoch, **settings)) == is_short


def test_a_training_that_is_too_short_is_exact_and_not_measured() -> None:
    result = tune(threads=1, max_updates=10)
    assert (result.config, result.speeds, Counted.passes) == (FP32, {}, 0)
    assert speed_cache.entries() == []


def test_a_short_training_keeps_its_settings() -> None:
    """Even where a long one has others by now: one recipe gives one model. On demand it is measured."""
    fastest = TuningResult(BF16, {str(BF16): 9.0})
    speed_cache.put({"test": 1}, fastest)
    assert tune(threads=1, **LONG).config == BF16
    assert tune(threads=1, max_updates=10).config == FP32
    measured = tune(again=True, threads=1, max_updates=10)
    assert measured.speeds
    kept = tune(threads=1, max_updates=10)
    assert kept == dataclasses.replace(measured, kept=True)


def test_the_speed_of_a_short_training_is_that_of_its_settings() -> None:
    result = tune(need_speed=True, threads=1, max_updates=10)
    assert result.config == FP32
    assert result.speeds.keys() == {str(FP32)}
    assert result.speed
    assert Counted.in_bf16 == 0
    assert tune(need_speed=True, threads=1, max_updates=10) == dataclasses.replace(
        result, kept=True
    )


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
    ("fixed", "a_sentence"),
    [
        pytest.param(0.01, 0.0, id="quick updates"),
        pytest.param(0.2, 0.0, id="slow updates"),
        pytest.param(0.0, 0.01, id="large batches"),
        pytest.param(0.0, 0.1, id="there is only time for pieces"),
    ],
)
def test_measuring_takes_five_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, fixed: float, a_sentence: float
) -> None:
    model = Slow(fixed, a_sentence)
    monkeypatch.setattr(tuning, "time", model)
    monkeypatch.setattr(tuning.devices, "read_clock", lambda device: model.monotonic())
    result = tune(model, threads=1, **LONG)
    assert model.now <= tuning.MAX_SECONDS
    a_whole_update, a_piece = fixed + 64 * a_sentence, fixed + 8 * a_sentence
    tokens = tokens_of_a_batch()
    assert tokens / 8 / a_piece * 0.8 <= result.speeds[str(FP32)] <= tokens / a_whole_update * 1.1


def test_an_update_that_takes_longer_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow(0.0, 1.0)
    monkeypatch.setattr(tuning, "time", model)
    monkeypatch.setattr(tuning.devices, "read_clock", lambda device: model.monotonic())
    result = tune(model, threads=1, **LONG)
    assert result.config == FP32
    assert model.now <= 8 + 1, (
        "an eighth of a batch, and one look at the clock for each other configuration"
    )


def test_the_first_update_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds pass in each layer, so one that is aborted ends two seconds behind the limit at the latest."""
    model = Slow(0.0)
    layers = []

    def take_two_seconds(layer: torch.nn.Module, _inputs: object) -> None:
        layers.append(layer)
        model.now += 2.0

    for layer in model.modules():
        layer.register_forward_pre_hook(take_two_seconds)
    monkeypatch.setattr(tuning, "time", model)
    monkeypatch.setattr(tuning.devices, "read_clock", lambda device: model.monotonic())
    result = tune(model, threads=1, need_speed=True, **LONG)
    assert result == TuningResult(FP32)
    assert 1 < len(layers) <= 3
    assert model.now <= tuning.MAX_SECONDS + 2
    assert speed_cache.entries() == []
    assert leaves_no_trace(model)


def test_losses_are_not_compared_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exact configuration is taken then."""
    trials = tuning._Trials(Counted(), workload_of(Counted(), threads=1, **LONG))
    assert trials._has_loss_of(FP32, BF16)
    trials.spent = tuning.MAX_SECONDS
    assert not trials._has_loss_of(FP32, BF16)


def test_a_less_exact_config_with_another_loss_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick it is: here only bfloat16 is quick, and its loss is twice the exact one."""
    monkeypatch.setattr(
        tuning, "_loss", lambda model, batch, one, device: 2.0 if one.precision == "bf16" else 1.0
    )

    def only_bf16_is_quick(
        trials: Any, one: TrainingSpeedConfig, number: int, limit: float
    ) -> float:
        return 0.1 if one == BF16 else 0.3

    monkeypatch.setattr(tuning._Trials, "_update_seconds", only_bf16_is_quick)
    result = tune(threads=1, **LONG)
    assert result.config == FP32
    assert result.speeds[str(BF16)] == max(result.speeds.values())


def test_the_loss_is_that_of_a_token() -> None:
    """Such as a model gives that finds all words equally likely, whatever the batch."""
    model = Counted()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for rows in ([[5, 6, 7]], [[5], [8, 9, 10, 11], [4, 4]]):
        assert tuning._loss(model, collate(rows, rows), FP32, CPU) == pytest.approx(
            math.log(12), abs=1e-5
        )
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
    return all(
        bool(parameter.isfinite().all()) and parameter.grad is None
        for parameter in model.parameters()
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_config_that_runs_out_of_memory_is_not_taken(accumulate: int) -> None:
    model = Hungry(8)  # an eighth of a batch fits
    result = tune(model, threads=1, **LONG, matmul_precision="highest", accumulate=accumulate)
    assert result.config == BF16
    assert result.speeds[str(FP32)] == 0 < result.speeds[str(BF16)]
    assert leaves_no_trace(model)


@pytest.mark.parametrize("most", [8, 0])
def test_where_nothing_has_the_memory_nothing_is_found(most: int) -> None:
    result = tune(Hungry(most), threads=1, **LONG, precision="fp32")
    assert (result.config, result.speeds) == (FP32, {})
    assert not list(speed_cache.cache_folder().glob("*")), "next time there may be more"


def one_of_two(rank: int, port: int, folder: str) -> None:
    os.environ["XDG_CACHE_HOME"] = folder
    join_as(rank, port)
    result = tune(Hungry(8 if rank == 1 else 64), threads=1, **LONG, matmul_precision="highest")
    assert (result.config, result.speeds[str(FP32)]) == (BF16, 0)
    processes.leave()


@pytest.mark.slow
def test_if_one_of_two_processes_runs_out_of_memory_neither_takes_the_config(
    tmp_path: Path,
) -> None:
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


def test_an_update_that_is_far_too_slow_is_given_up_in_its_middle() -> None:
    model = SlowInHalf()
    result = tune(model, threads=1, **LONG, matmul_precision="highest")
    assert result.config == FP32
    assert 0 < model.waits < 500, "of 1000 for each update"
    assert result.speeds[str(BF16)] == 0
    assert leaves_no_trace(model)
