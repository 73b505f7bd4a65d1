"""Configurations measured in turns, with seconds worked out by hand in place of a clock."""

import math
import random
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nmtkit.autotune import timing
from nmtkit.autotune.timing import GIVE_UP_RATIO, MAX_ROUNDS, TimeLimitError, time_interleaved, time_limit

NEVER = MAX_ROUNDS


class Machine:
    """Takes for each configuration what it costs, times the size of the round, times a random share of noise.

    From the round in `fails` on a configuration has no memory; with `gives_up` none takes longer than it may.
    """

    def __init__(
        self,
        costs: dict[str, float],
        sizes: tuple[float, ...] = (1,) * MAX_ROUNDS,
        noise: float = 0.0,
        seed: int = 0,
        fails: dict[str, int] | None = None,
        gives_up: bool = False,
    ) -> None:
        self.costs, self.sizes, self.noise = costs, sizes, noise
        self.fails, self.gives_up = fails or {}, gives_up
        self.draw = random.Random(seed)
        self.turns: list[str] = []

    def __call__(self, config: str, number: int, most: float) -> float:
        self.turns.append(config)
        seconds = self.costs[config] * self.sizes[number] * (1 + self.noise * self.draw.random())
        if self.gives_up and seconds > most:
            raise TimeLimitError
        return math.inf if number >= self.fails.get(config, NEVER) else seconds


def test_the_fastest_is_found_whatever_the_rounds_hold() -> None:
    machine = Machine({"a": 2.0, "b": 1.0, "c": 4.0}, sizes=(1, 5, 2, 1, 3, 1))
    timings = time_interleaved("abc", machine, limit=100)
    assert timings.best == "b"
    assert timings.slower == pytest.approx({"a": 2.0, "b": 1.0, "c": 4.0})


def test_those_clearly_slower_are_out_after_their_first_turn() -> None:
    machine = Machine({"a": 1.0, "b": 1.05, "c": 1.6})
    time_interleaved("abc", machine, limit=100)
    assert machine.turns[:3] == ["a", "b", "c"]
    assert [machine.turns.count(config) for config in "abc"] == [MAX_ROUNDS, MAX_ROUNDS, 1]


@pytest.mark.parametrize(
    ("costs", "fails", "limit", "best"),
    [
        pytest.param({"a": 1.02, "b": 1.0}, {}, 100, "a", id="of equals the first"),
        pytest.param({"a": 1.05, "b": 1.0}, {}, 100, "b", id="they are not equal"),
        pytest.param({"a": 3.0, "b": 1.0}, {}, 0, "b", id="the first round is always made"),
        pytest.param({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 2, "b": 2}, 100, "c", id="a slow one, where others fail"),
    ],
)
def test_the_best(costs: dict[str, float], fails: dict[str, int], limit: float, best: str) -> None:
    assert time_interleaved(list(costs), Machine(costs, fails=fails), limit).best == best


def test_no_round_is_begun_that_would_go_over_the_limit() -> None:
    machine = Machine({"a": 1.0, "b": 1.01})
    time_interleaved("ab", machine, limit=5)
    assert len(machine.turns) == 4  # the third round would end at 6.03 seconds


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_machine_does_not_hide_what_matters(seed: int) -> None:
    """Every turn takes up to a quarter longer by chance: 1.4 times as long is never the best."""
    machine = Machine({"a": 1.4, "b": 1.0, "c": 1.5}, noise=0.25, seed=seed)
    assert time_interleaved("abc", machine, limit=100).best == "b"


def test_configurations_that_take_turns_at_being_the_fastest_stay_in_question() -> None:
    """Each of three has one good round: none is within the bound of the best of every round, and one is taken."""
    timings = time_interleaved("abc", lambda config, number, _: 1.0 if "abc"[number % 3] == config else 1.2, limit=100)
    assert timings.best == "a"
    assert timings.slower == pytest.approx({"a": 1.0, "b": 1.0, "c": 1.0})


@pytest.mark.parametrize("since", [0, 1, 2, 5])
def test_a_configuration_that_fails_is_not_taken(since: int) -> None:
    machine = Machine({"a": 1.0, "b": 1.01, "c": 1.02}, fails={"a": since})
    timings = time_interleaved("abc", machine, limit=100)
    assert timings.best == "b"
    assert machine.turns.count("a") == since + 1
    assert machine.turns.count("b") == MAX_ROUNDS, "what fails takes no time"
    assert timings.slower == {"a": math.inf, "b": pytest.approx(1.0), "c": pytest.approx(1.01, abs=0.01)}


@pytest.mark.parametrize("since", [0, 2, 5])
def test_where_every_configuration_fails_the_first_is_named(since: int) -> None:
    timings = time_interleaved("ab", Machine({"a": 1.0, "b": 1.0}, fails={"a": since, "b": since}), limit=100)
    assert (timings.best, timings.slower) == ("a", {"a": math.inf, "b": math.inf})


def test_a_configuration_that_cannot_win_is_given_up_in_its_first_turn() -> None:
    machine = Machine({"a": 1.0, "b": 100.0, "c": 0.9, "d": 1.9}, gives_up=True)
    timings = time_interleaved("abcd", machine, limit=100)
    assert timings.best == "c"
    assert timings.slower == pytest.approx({"a": 1 / 0.9, "b": GIVE_UP_RATIO, "c": 1.0, "d": GIVE_UP_RATIO})
    assert (machine.turns.count("b"), machine.turns.count("d")) == (1, 1)


def test_a_turn_that_is_held_up_once_is_not_given_up() -> None:
    machine = Machine({"a": 1.0, "b": 1.1}, sizes=(1, 1, 30, 1, 1, 1), gives_up=True)
    assert time_interleaved("ab", machine, limit=1000).slower == pytest.approx({"a": 1.0, "b": 1.1})


def test_a_later_turn_ends_with_the_time_for_measuring_and_what_was_given_up_counts() -> None:
    given: list[tuple[str, int, float]] = []

    def seconds_of(config: str, number: int, most: float) -> float:
        given.append((config, number, most))
        if config == "slow":
            raise TimeLimitError
        return 1.0

    assert time_interleaved(["a", "b", "slow"], seconds_of, limit=9.0).best == "a"
    assert [(config, number) for config, number, _ in given] == [
        *[(config, 0) for config in ("a", "b", "slow")],
        *[(config, number) for number in (1, 2) for config in ("a", "b")],
    ], "2 + 2 given up + 2 + 2 seconds, and no third round more"
    assert [round(most) for *_, most in given] == [9, 2, 2, 5, 4, 3, 2]


def test_what_a_model_does_ends_in_the_middle_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer takes a second; after three and a half the fifth is not called."""
    now, called = [0.0], []
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Layer(nn.Module):
        def forward(self, inputs: int) -> int:
            now[0] += 1.0
            called.append(inputs)
            return inputs + 1

    model = nn.Sequential(*[Layer() for _ in range(9)])
    with pytest.raises(TimeLimitError), time_limit(3.5, model):
        model(0)
    assert called == [0, 1, 2, 3]
    with time_limit(20.0, model):
        assert model(0) == 9
    assert model(0) == 9, "nothing is left behind"
    assert not any(layer._forward_pre_hooks for layer in model)


def test_a_backward_pass_that_is_over_its_time_is_left_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count()
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(6)))
    with pytest.raises(TimeLimitError), time_limit(9.5, model):  # one look at its begin, seven in forward, with itself
        model(torch.ones(1)).backward()
    assert [layer.weight.grad is not None for layer in model] == [False, False, False, True, True, True]
    model.zero_grad()
    model(torch.ones(1)).backward()
    assert all(layer.weight.grad is not None for layer in model), "nothing is left behind"
