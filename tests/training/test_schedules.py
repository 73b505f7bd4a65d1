import math
from typing import get_args

import pytest

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.training.config import TrainingConfig
from nmtkit.training.schedules import (
    Constant,
    CosineDecay,
    InverseSqrt,
    LinearDecay,
    LuongHalving,
    Noam,
    Plateau,
    Schedule,
    TrainingProgress,
)


def rates(schedule, updates, lr=2.0):
    return [schedule.rate(lr, TrainingProgress(update)) for update in updates]


def test_constant():
    assert rates(Constant(), [1, 100]) == [2.0, 2.0]
    assert rates(Constant(warmup=4), [1, 2, 4, 5]) == [0.5, 1.0, 2.0, 2.0]


def test_noam_is_equation_3_of_the_paper():
    # base model: d_model 512, warm-up 4000; the peak is 512^-0.5 * 4000^-0.5 = 6.9877e-4
    schedule = Noam(size=512, warmup=4000)
    for update in (1, 1000, 4000, 16000, 100000):
        expected = 512**-0.5 * min(update**-0.5, update * 4000**-1.5)
        assert math.isclose(schedule.rate(1.0, TrainingProgress(update)), expected, rel_tol=1e-12)
    assert math.isclose(schedule.rate(1.0, TrainingProgress(4000)), 6.98771e-4, rel_tol=1e-5)
    assert math.isclose(schedule.rate(2.0, TrainingProgress(16000)), 6.98771e-4, rel_tol=1e-5)


def test_inverse_sqrt_peaks_at_lr():
    assert rates(InverseSqrt(warmup=100), [1, 50, 100, 400, 10000]) == pytest.approx([0.02, 1.0, 2.0, 1.0, 0.2])


def test_linear_and_cosine_end_at_zero():
    updates = [1, 2, 4, 6, 8, 10, 11]
    done = [0, 0, 0.25, 0.5, 0.75, 1, 1]
    climb = [0.5, 1, 1, 1, 1, 1, 1]
    linear = [2 * c * (1 - d) for c, d in zip(climb, done, strict=True)]
    cosine = [2 * c * (1 + math.cos(math.pi * d)) / 2 for c, d in zip(climb, done, strict=True)]
    assert rates(LinearDecay(updates=10, warmup=2), updates) == pytest.approx(linear)
    assert rates(CosineDecay(updates=10, warmup=2), updates) == pytest.approx(cosine, abs=1e-15)


def test_linear_and_cosine_over_the_budget_by_hand():
    linear, cosine = LinearDecay(over="budget", warmup_share=0.2), CosineDecay(over="budget", warmup_share=0.2)
    shares = [0.001, 0.1, 0.2, 0.4, 0.6, 0.9, 1.0]
    climb = [0.005, 0.5, 1, 1, 1, 1, 1]
    done = [0, 0, 0, 0.25, 0.5, 0.875, 1]  # (share - 0.2) / 0.8
    for number, share in enumerate(shares):
        progress = TrainingProgress(7, share=share)  # the number of the update says nothing here
        assert math.isclose(linear.rate(2.0, progress), 2 * climb[number] * (1 - done[number]), abs_tol=1e-15)
        half = (1 + math.cos(math.pi * done[number])) / 2
        assert math.isclose(cosine.rate(2.0, progress), 2 * climb[number] * half, abs_tol=1e-15)
    assert LinearDecay(over="budget").rate(1.0, TrainingProgress(1, share=0.25)) == 0.75


@pytest.mark.parametrize(
    ("given", "training", "said"),
    [
        ({}, {}, r"`updates`, where the rate reaches zero, is missing; or let it run `over: budget`"),
        ({"updates": 9, "warmup_share": 0.1}, {}, "`warmup_share` is for `over: budget`"),
        ({"over": "budget", "updates": 9}, {}, "there are no `updates` and no `warmup` in updates: leave them out"),
        ({"over": "budget", "warmup": 9}, {}, "give `warmup_share`, e.g. 0.1"),
        ({"over": "budget"}, {"max_updates": None, "max_epochs": 2}, "set max_updates or max_minutes"),
        ({"over": "minutes"}, {}, "not one of its values"),
    ],
)
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_what_does_not_fit_a_schedule_with_an_end_is_said(kind, given, training, said):
    with pytest.raises(RecipeError, match=said):
        parse(TrainingConfig, {"max_updates": 9, **training, "schedule": {"kind": kind, **given}}, "here")


def test_the_share_goes_by_the_nearest_limit():
    def share(updates, seconds, epochs=0, **limits):
        return parse(TrainingConfig, limits, "here").share(updates, seconds, epochs)

    assert share(30, 60, max_updates=40, max_minutes=2) == 0.75
    assert share(30, 108, max_updates=40, max_minutes=2) == 0.9
    assert share(30, 60, 4, max_updates=40, max_epochs=5) == 0.8
    assert share(30, 600, max_minutes=2) == 1.0
    assert share(30, 600, patience=2) is None


def test_plateau_counts_validations_without_a_new_best():
    schedule = Plateau(factor=0.1, patience=2)
    # best 3 at the second; 2, 3 (equal is not better): first drop; 1, 2: second; 4 is better; 4: one waited
    scores = [1, 3, 2, 3, 1, 2, 4, 4]
    expected = [0, 0, 0, 0, 1, 1, 2, 2, 2]
    for seen, drops in enumerate(expected):
        rate = schedule.rate(2.0, TrainingProgress(9, 0, scores[:seen]))
        assert math.isclose(rate, 2.0 * 0.1**drops, rel_tol=1e-12)


def test_luong_halving_by_epoch_and_by_update():
    schedule = LuongHalving()  # 5 epochs at the full rate, then halved every epoch
    rates_by_epoch = [schedule.rate(1.0, TrainingProgress(1, complete)) for complete in range(8)]
    assert rates_by_epoch == [1, 1, 1, 1, 1, 0.5, 0.25, 0.125]
    by_update = LuongHalving(after=4, every=2, unit="update")
    assert rates(by_update, range(1, 10), 1.0) == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_every_schedule_can_be_chosen_in_a_recipe():
    kinds = [cls.model_fields["kind"].default for cls in get_args(get_args(Schedule)[0])]
    assert len(kinds) == 7
    for kind in kinds:
        extra = {"noam": {"size": 8}, "linear": {"updates": 9}, "cosine": {"updates": 9}}.get(kind, {})
        config = parse(TrainingConfig, {"max_updates": 9, "schedule": {"kind": kind, **extra}}, "here")
        assert config.schedule.kind == kind
        assert config.schedule.rate(config.lr, TrainingProgress(3)) > 0


def test_a_wrong_schedule_is_named():
    with pytest.raises(RecipeError, match="did you mean 'plateau'"):
        parse(TrainingConfig, {"max_updates": 9, "schedule": {"kind": "plateu"}}, "here")
    with pytest.raises(RecipeError, match=r"schedule\.size` is missing"):
        parse(TrainingConfig, {"max_updates": 9, "schedule": {"kind": "noam"}}, "here")


def test_a_training_without_an_end_is_refused():
    with pytest.raises(RecipeError, match="never end: set max_updates"):
        parse(TrainingConfig, {}, "here")
