import math
from collections.abc import Sequence
from typing import Any, get_args

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

UPDATES = [1, 2, 4, 6, 8, 10, 11]
CLIMB, DONE = [0.5, 1, 1, 1, 1, 1, 1], [0, 0, 0.25, 0.5, 0.75, 1, 1]  # 2 of 10 updates are warm-up
LINEAR = [2 * c * (1 - d) for c, d in zip(CLIMB, DONE, strict=True)]
COSINE = [c * (1 + math.cos(math.pi * d)) for c, d in zip(CLIMB, DONE, strict=True)]
BASE = [1, 1000, 4000, 16000, 100_000]


@pytest.mark.parametrize(
    ("schedule", "updates", "rates"),
    [
        (Constant(), [1, 100], [2.0, 2.0]),
        (Constant(warmup=4), [1, 2, 4, 5], [0.5, 1.0, 2.0, 2.0]),
        (Noam(size=512), BASE, [2 * 512**-0.5 * min(n**-0.5, n * 4000**-1.5) for n in BASE]),
        (Noam(size=512), [16000], [6.98771e-4]),  # the base model: its peak is 6.9877e-4
        (InverseSqrt(warmup=100), [1, 50, 100, 400, 10000], [0.02, 1.0, 2.0, 1.0, 0.2]),
        (LinearDecay(updates=10, warmup=2), UPDATES, LINEAR),
        (CosineDecay(updates=10, warmup=2), UPDATES, COSINE),
        (
            LuongHalving(after=4, every=2, unit="update"),
            range(1, 10),
            [2, 2, 2, 2, 1, 1, 0.5, 0.5, 0.25],
        ),
    ],
    ids=str,
)
def test_rates_by_update(schedule: Any, updates: Sequence[int], rates: Sequence[float]) -> None:
    found = [schedule.rate(2.0, TrainingProgress(update)) for update in updates]
    assert found == pytest.approx(rates, rel=1e-5 if len(rates) == 1 else 1e-12, abs=1e-15)


def test_luong_halving_by_epoch() -> None:
    schedule = LuongHalving()  # 5 epochs at the full rate, then halved every epoch
    rates = [schedule.rate(1.0, TrainingProgress(1, complete)) for complete in range(8)]
    assert rates == [1, 1, 1, 1, 1, 0.5, 0.25, 0.125]


def test_plateau_counts_validations_without_a_new_best() -> None:
    schedule = Plateau(patience=2)
    # best 3 at the second; 2, 3 (equal is not better): first drop; 1, 2: second; 4 is better; 4: one waited
    improvements = [True, True, False, False, False, False, True, False]  # scores 1 3 2 3 1 2 4 4
    drops = [0, 0, 0, 0, 1, 1, 2, 2, 2]
    rates = [schedule.rate(2.0, TrainingProgress(9, 0, improvements[:count])) for count in range(9)]
    assert rates == pytest.approx([2.0 * 0.5**count for count in drops], rel=1e-12)


def test_linear_and_cosine_over_the_budget_by_hand() -> None:
    linear, cosine = (
        LinearDecay(over="budget", warmup_share=0.2),
        CosineDecay(over="budget", warmup_share=0.2),
    )
    shares = [0.001, 0.1, 0.2, 0.4, 0.6, 0.9, 1.0]
    climb = [0.005, 0.5, 1, 1, 1, 1, 1]
    done = [0, 0, 0, 0.25, 0.5, 0.875, 1]  # (share - 0.2) / 0.8
    for number, share in enumerate(shares):
        progress = TrainingProgress(7, share=share)  # the number of the update says nothing here
        assert math.isclose(
            linear.rate(2.0, progress), 2 * climb[number] * (1 - done[number]), abs_tol=1e-15
        )
        half = (1 + math.cos(math.pi * done[number])) / 2
        assert math.isclose(cosine.rate(2.0, progress), 2 * climb[number] * half, abs_tol=1e-15)
    assert LinearDecay(over="budget").rate(1.0, TrainingProgress(1, share=0.25)) == 0.75


@pytest.mark.parametrize(
    ("limits", "done", "share"),
    [
        ({"max_updates": 40, "max_minutes": 2}, (30, 60), 0.75),
        ({"max_updates": 40, "max_minutes": 2}, (30, 108), 0.9),
        ({"max_updates": 40, "max_epochs": 5}, (30, 60, 4), 0.8),
        ({"max_minutes": 2}, (30, 600), 1.0),
        ({"patience": 2}, (30, 600), None),
    ],
)
def test_the_share_goes_by_the_nearest_limit(
    limits: dict[str, int], done: tuple[int, int, int] | tuple[int, int], share: float | None
) -> None:
    assert TrainingConfig(**limits).share(*done) == share


def test_every_schedule_can_be_chosen_in_a_recipe() -> None:
    kinds = [cls.model_fields["kind"].default for cls in get_args(get_args(Schedule)[0])]
    assert len(kinds) == 7
    for kind in kinds:
        extra = {"noam": {"size": 8}, "linear": {"updates": 9}, "cosine": {"updates": 9}}.get(
            kind, {}
        )
        config = parse(
            TrainingConfig, {"max_updates": 9, "schedule": {"kind": kind, **extra}}, "here"
        )
        assert config.schedule.kind == kind
        assert config.schedule.rate(config.lr, TrainingProgress(3)) > 0


LINEAR_BUDGET = {"kind": "linear", "over": "budget"}


@pytest.mark.parametrize(
    ("schedule", "training", "message"),
    [
        ({"kind": "linear"}, {}, "the update at which the rate reaches zero"),
        (
            {"kind": "cosine", "updates": 9, "warmup_share": 0.1},
            {},
            "remove `warmup_share`, or set `over: budget`",
        ),
        ({**LINEAR_BUDGET, "updates": 9}, {}, "remove `updates`"),
        ({**LINEAR_BUDGET, "warmup": 9}, {}, "set `warmup_share`, e.g. to 0.1"),
        (
            LINEAR_BUDGET,
            {"max_updates": None, "max_epochs": 2},
            "requires max_updates or max_minutes",
        ),
        ({"kind": "cosine", "over": "minutes"}, {}, "not a valid value"),
        ({"kind": "plateu"}, {}, "did you mean 'plateau'"),
        ({"kind": "noam"}, {}, r"schedule\.size` is missing"),
        ({"kind": "constant"}, {"max_updates": None}, "never end: set max_updates"),
        (
            {"kind": "constant"},
            {"objectives": {"guided_alignment": {}, "reinforce": {}}},
            "cannot be combined with guided_alignment",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    schedule: Any, training: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(TrainingConfig, {"max_updates": 9, **training, "schedule": schedule}, "here")


def test_a_warm_up_longer_than_the_schedule_is_no_end_of_it() -> None:
    """The rate is still climbing there, so that training is told to have ended before."""
    schedule = {"kind": "linear", "updates": 4, "warmup": 9}
    config = parse(TrainingConfig, {"max_updates": 4, "schedule": schedule}, "here")
    assert config.schedule.rate(1.0, TrainingProgress(4)) == 4 / 9
    assert [config.scheduled(update, 0.0) for update in (4, 10)] == [0.4, 1]
