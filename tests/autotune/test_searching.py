"""Tuning of the search: the candidates, how the best is found, and that it gives the same texts."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmtkit.autotune import searching
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.searching import candidate_search_configs, tune_search
from nmtkit.autotune.timing import MAX_SHARE, TimeLimitError
from nmtkit.core import device as devices
from nmtkit.experiment.loading import DecodingOptions, open_autotuned
from nmtkit.inference.inputs import SearchSpeedConfig, default_speed_config
from nmtkit.layers import inference
from nmtkit.layers.inference import PrecisionChoice
from nmtkit.runs.saved import find_run

CPU = torch.device("cpu")
LINES = [f"line {number}" for number in range(100)]


CLOCK = SimpleNamespace(now=0.0, monotonic=lambda: CLOCK.now)
"""Goes on only while something is searched; stands in for the module `time`."""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_threads", lambda: 2)
    monkeypatch.setattr(searching, "time", CLOCK)
    monkeypatch.setattr(inference, "is_supported", lambda precision: precision in ("bf16", "int8"))


@pytest.mark.parametrize(
    ("device", "named", "count"), [("cpu", "auto", 6), ("cpu", "int8", 4), ("cuda", "auto", 5), ("cuda", "fp16", 3)]
)
def test_the_default_comes_first_and_the_others_differ_in_one_thing(
    device: str, named: PrecisionChoice, count: int
) -> None:
    first, *others = candidate_search_configs(torch.device(device), named)
    precision = "fp32" if named == "auto" else named
    assert first == default_speed_config(torch.device(device), precision)
    assert first.precision == precision
    assert len(others) == count - 1
    for other in others:
        fields = ("precision", "batch_tokens", "one_a_core")
        assert sum(getattr(first, name) != getattr(other, name) for name in fields) == 1
        assert named == "auto" or other.precision == named


class Search:
    """Takes a thousandth of a second a line, in the quickest configuration a part of that."""

    def __init__(self, quickest: SearchSpeedConfig, same: bool = True, part: float = 0.3) -> None:
        self.quickest, self.same, self.part = quickest, same, part
        self.searched = 0

    def __call__(self, config: SearchSpeedConfig, lines: Sequence[str], most: float) -> list[str]:
        CLOCK.now += len(lines) * 0.001 * (self.part if config == self.quickest else 1)
        self.searched += len(lines)
        return [line if self.same or config != self.quickest else line.upper() for line in lines]


def tune(
    search: Callable[[SearchSpeedConfig, Sequence[str], float], list[str]],
    name: str,
    lines: Sequence[str] = LINES,
    planned_seconds: float = 100,
) -> TuningResult[SearchSpeedConfig]:
    return tune_search(search, lines, CPU, {"test": name}, planned_seconds)


def test_the_quickest_is_found_and_used_again() -> None:
    quickest = candidate_search_configs(CPU)[2]
    search = Search(quickest)
    result = tune(search, "again")
    assert result.config == quickest
    assert result.speeds[str(quickest)] > 2 * result.speeds[str(default_speed_config(CPU))]
    searched = search.searched
    assert tune(search, "again").config == quickest
    assert search.searched == searched


def test_a_less_exact_precision_that_gives_other_texts_is_refused_and_named() -> None:
    less_exact, _ = [config for config in candidate_search_configs(CPU) if config.precision != "fp32"]
    result = tune(Search(less_exact), "same")
    assert result.config == less_exact
    assert not any("--precision" in sentence for sentence in result.sentences())
    tune(Search(less_exact, same=False), "other")
    again = tune(Search(less_exact, same=False), "other")
    assert again.kept
    assert again.config.precision == "fp32"
    (hint,) = [sentence for sentence in again.sentences() if "--precision" in sentence]
    assert hint == "--precision bf16 would be 3.3 times as quick; 100 of 100 texts differ"


@pytest.mark.parametrize(("part", "taken"), [(0.85, True), (0.93, False)])
def test_a_less_exact_precision_is_taken_for_a_gain_of_a_tenth_only(part: float, taken: bool) -> None:
    default, *others = candidate_search_configs(CPU)
    less_exact, _ = [config for config in others if config.precision != "fp32"]
    result = tune(Search(less_exact, part=part), "tenth")
    assert result.config == (less_exact if taken else default)
    assert result.speeds[str(less_exact)] == max(result.speeds.values())
    assert tune(Search(others[0], part=part), "exact").config == others[0]


def test_what_is_too_short_is_not_measured() -> None:
    search = Search(candidate_search_configs(CPU)[2])
    assert not tune(search, "short", planned_seconds=1).speeds
    assert not tune(search, "few", LINES[: searching._FEWEST - 1]).speeds


@pytest.mark.parametrize("failing", [[0], [1, 2], [2, 3, 4], [0, 1, 2, 3, 4, 5]])
def test_a_config_that_runs_out_of_memory_is_not_taken(failing: list[int]) -> None:
    candidates = candidate_search_configs(CPU)
    search, hungry = Search(candidates[2]), [candidates[number] for number in failing]

    def with_little_memory(config: SearchSpeedConfig, lines: Sequence[str], most: float) -> list[str]:
        if config in hungry and len(lines) > max(searching._PIECES):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a test")
        return search(config, lines, most)

    result = tune(with_little_memory, "memory")
    if hungry == candidates:
        assert (result.config, result.speeds) == (default_speed_config(CPU), {})
    else:
        assert result.config not in hungry
        assert [config for config in candidates if not result.speeds[str(config)]] == hungry


@pytest.mark.parametrize("times", [15, 1000])
def test_a_config_that_is_far_too_slow_is_given_up_after_a_few_lines(times: int) -> None:
    quickest = candidate_search_configs(CPU)[2]
    slow = next(config for config in candidate_search_configs(CPU) if config.precision == "int8")
    others, pieces, begun = Search(quickest), [], CLOCK.now

    def search(config: SearchSpeedConfig, lines: Sequence[str], most: float) -> list[str]:
        if config != slow:
            return others(config, lines, most)
        pieces.append(len(lines))
        CLOCK.now += min(most, len(lines) * 0.1 * times)
        raise TimeLimitError

    result = tune(search, f"slow {times}")
    assert result.config == quickest
    assert pieces == [searching._PIECES[0]]
    assert CLOCK.now - begun < 5
    assert result.format_speed(str(slow)).startswith("at most ")


@pytest.mark.parametrize("planned", [1, 20, 100])
def test_measuring_ends_within_its_share_where_every_config_is_slow(planned: float) -> None:
    begun = CLOCK.now

    def search(config: SearchSpeedConfig, lines: Sequence[str], most: float) -> list[str]:
        CLOCK.now += min(most, 3.0 * len(lines))
        if most < 3.0 * len(lines):
            raise TimeLimitError
        return list(lines)

    assert not tune(search, f"all {planned}", planned_seconds=planned).speeds
    assert CLOCK.now - begun <= MAX_SHARE * planned * 1.001


@pytest.mark.slow
@pytest.mark.skipif("int8" not in inference.supported_precisions(CPU), reason="this torch has no products of int8 here")
def test_a_real_search_whose_products_are_slow_makes_few_of_them(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of int8 that take 0.05 s more, where nobody has noticed it before."""
    monkeypatch.undo()  # the clock is the real one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(inference, "lower_pays", lambda *_: [True] * 4)
    real, made = inference._of_whole_numbers, [0]

    def slow(*given: Any) -> torch.Tensor:
        made[0] += 1
        sleep(0.05)
        return real(*given)

    inference.supported_precisions(CPU)  # has tried them
    monkeypatch.setattr(inference, "_of_whole_numbers", slow)
    how = DecodingOptions(device="cpu", threads=1)
    _, result = open_autotuned(find_run(str(trained))[0], how, ["ba ce du ba", "du"] * 40, math.inf, again=True)
    assert result.config.precision != "int8"
    assert 0 < made[0] <= 45, "of some thousand"
    assert any(config.startswith("int8") for config in result.speeds)
