import math
import random
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nmtkit.core.errors import CheckpointError, TrainingError
from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import Seq2Seq
from nmtkit.models.rnn.rnn_encdec import RnnEncDec
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import read_weights
from nmtkit.training.events import Evaluated, Event, Saved
from nmtkit.training.loop import train
from nmtkit.training.losses.likelihood import likelihood
from tests.support.cases import daily
from tests.support.tiny_training import (
    Evaluate,
    FromList,
    Pace,
    TinyStream,
    constant_score,
    ended,
    run,
    same_states,
    same_weights,
    settings,
    start,
    steps,
    tiny_batch,
    tiny_model,
)


class Scores:
    """Gives the scores of a list, one for each validation."""

    def __init__(self, scores: Iterable[float]) -> None:
        self.left = list(scores)

    def __call__(self, model: Seq2Seq) -> dict[str, float]:
        score = self.left.pop(0)
        return {"bleu": score, "loss": score}


def joined(*batches: Batch) -> Batch:
    """One batch of the rows of several of equal widths."""
    parts = iter(
        [
            torch.cat(several)
            for several in zip(*(batch.tensors() for batch in batches), strict=True)
        ]
    )
    return batches[0].mapped(lambda tensor: next(parts))


def mean_gradient(model: Seq2Seq, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """The gradient of the mean loss per token, as one vector."""
    model.zero_grad()
    total, _ = likelihood(
        model(batch, keep=batch.targets.mask), batch, model.sizes["tgt"], smoothing
    )
    torch.autograd.backward(total / batch.n_tokens)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return gradient


def best_of(events: list[Event]) -> list[bool]:
    return [event.best for event in events if isinstance(event, Evaluated)]


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_events_of_a_short_training(tmp_path: Path) -> None:
    config = settings(max_updates=5, validate_every=4, save_every=2)
    _, events = run(tmp_path, config, evaluate=Scores([0.5, 0.25]))
    shape = [(type(event).__name__, event.update) for event in events]
    assert shape == [
        *[("Saved", 0), ("Step", 1)],
        *[("Step", 2), ("Saved", 2)],
        *[("Step", 4), ("Evaluated", 4), ("Saved", 4)],
        *[("Step", 5), ("Evaluated", 5), ("Saved", 5), ("Stopped", 5)],
    ]
    assert best_of(events) == [True, False]
    assert ended(events) == ("max_updates", 5)
    assert all(Path(event.path).is_file() for event in events if isinstance(event, Saved))


def test_an_update_is_one_sgd_step_on_the_mean_loss_per_token(tmp_path: Path) -> None:
    model = tiny_model(dtype=torch.float64)
    before, batch = vector(model), tiny_batch(0)
    gradient = mean_gradient(model, batch, 0.1)
    config = settings(optimizer="sgd", lr=0.5, max_updates=1, label_smoothing=0.1)
    _, events = run(tmp_path, config, model)
    torch.testing.assert_close(vector(model), before - 0.5 * gradient, rtol=1e-12, atol=1e-12)
    step = steps(events)[0]
    assert math.isclose(step.grad_norm, float(gradient.norm()), rel_tol=1e-12)
    assert step.tokens == int(batch.targets.mask.sum())
    assert math.isclose(step.terms["ppl"], math.exp(step.terms["nll"]))
    assert step.lr == 0.5
    assert step.loss != step.terms["nll"]


def test_a_loss_per_sentence_sums_over_words_and_the_log_shows_it_per_word(tmp_path: Path) -> None:
    """As in the program of Bahdanau et al. 2015: the cost is the sum over a batch's words, by its sentences."""
    model, halves = tiny_model(dtype=torch.float64), [tiny_batch(0, size=3), tiny_batch(1, size=5)]
    before, whole = vector(model), joined(*halves)
    _, nll = likelihood(model(whole, keep=whole.targets.mask), whole, model.sizes["tgt"])
    total = (
        -model(whole).gather(2, whole.targets.ids[..., None]).squeeze(2)[whole.targets.mask].sum()
        / 8
    )
    gradient = torch.cat(
        [one.flatten() for one in torch.autograd.grad(total, [*model.parameters()])]
    )
    norm = float(gradient.norm())
    config = settings(
        optimizer="sgd",
        lr=0.5,
        max_updates=1,
        accumulate=2,
        loss_unit="sentence",
        clip_norm=norm / 2,
    )
    _, events = run(tmp_path, config, model, FromList(halves))
    expected = before - 0.5 * gradient * (norm / 2) / (norm + 1e-6)
    torch.testing.assert_close(vector(model), expected, rtol=1e-12, atol=1e-12)
    step = steps(events)[0]
    assert math.isclose(step.grad_norm, norm, rel_tol=1e-12)
    assert math.isclose(step.loss, float(nll) / whole.n_tokens, rel_tol=1e-12)


def test_a_step_event_averages_over_the_tokens_since_the_last_one(tmp_path: Path) -> None:
    model, stream = tiny_model(dtype=torch.float64), TinyStream()
    total, tokens = 0.0, 0
    for number in range(1, 4):  # the first update is told of by itself
        batch = tiny_batch(number)
        _, nll = likelihood(model(batch, keep=batch.targets.mask), batch, model.sizes["tgt"])
        total, tokens = total + nll.item(), tokens + batch.n_tokens
    _, events = run(
        tmp_path, settings(optimizer="sgd", lr=1e-30, max_updates=4, log_every=4), model, stream
    )
    assert [step.update for step in steps(events)] == [1, 4]
    assert math.isclose(steps(events)[1].terms["nll"], total / tokens, rel_tol=1e-12)
    assert steps(events)[1].tokens == tokens


def test_accumulating_two_halves_is_one_whole_batch(tmp_path: Path) -> None:
    halves = [tiny_batch(n, size=2) for n in range(8)]
    # a mean of means would differ
    assert len({int(batch.targets.mask.sum()) for batch in halves}) > 1
    wholes = [joined(*halves[n : n + 2]) for n in range(0, 8, 2)]
    one, two = tiny_model(dtype=torch.float64), tiny_model(dtype=torch.float64)
    run(tmp_path / "one", settings(max_updates=4), one, FromList(wholes))
    run(tmp_path / "two", settings(max_updates=4, accumulate=2), two, FromList(halves))
    torch.testing.assert_close(vector(one), vector(two), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [1 / 3, 2.0])
def test_clipping_scales_a_longer_gradient_down_to_the_norm(tmp_path: Path, share: float) -> None:
    model = tiny_model(dtype=torch.float64)
    before, gradient = vector(model), mean_gradient(model, tiny_batch(0))
    norm = float(gradient.norm())
    _, events = run(
        tmp_path, settings(optimizer="sgd", lr=1.0, max_updates=1, clip_norm=share * norm), model
    )
    # torch adds 1e-6 to the norm, so that a gradient of zero is no division by zero
    scale = min(1.0, share * norm / (norm + 1e-6))
    torch.testing.assert_close(vector(model), before - gradient * scale, rtol=1e-10, atol=1e-12)
    assert math.isclose(steps(events)[0].grad_norm, norm, rel_tol=1e-12)


# -- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (
            {"kind": "inverse_sqrt", "warmup": 4},
            [1 / 4, 2 / 4, 3 / 4, 1, math.sqrt(4 / 5), math.sqrt(4 / 6)],
        ),
        ({"kind": "plateau"}, [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]),
        ({"kind": "luong_halving", "after": 1}, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
    ],
    ids=["by updates", "by validations", "by epochs"],
)
def test_the_schedule_sets_the_rate_of_every_update(
    tmp_path: Path, schedule: dict[str, int | str] | dict[str, str], rates: list[float]
) -> None:
    config = settings(lr=1.0, schedule=schedule, log_every=1, validate_every=1)
    _, events = run(
        tmp_path, config, stream=TinyStream(per_epoch=2), evaluate=Scores([1, 2, 1, 3, 2, 1])
    )
    assert [step.lr for step in steps(events)] == pytest.approx(rates)


class Slowing(Pace):
    """Each batch takes a second more than the one before."""

    def tick(self) -> None:
        self.seconds += 1
        super().tick()


BUDGET = {"lr": 1.0, "optimizer": "sgd", "clip_norm": 1e-3, "log_every": 1}


def linear_rates(
    folder: Path,
    pace: TinyStream,
    evaluate: Evaluate = constant_score,
    warmup_share: float = 0.0,
    resume: bool = False,
    **given: Any,
) -> tuple[list[float], str]:
    schedule = {"kind": "linear", "over": "budget", "warmup_share": warmup_share}
    _, events = run(
        folder,
        settings(**{**BUDGET, "schedule": schedule, **given}),
        None,
        pace,
        evaluate,
        resume=resume,
    )
    return [step.lr for step in steps(events)], events[-1].reason


# seconds after n updates that slow down; the coming one takes the mean
USED = [n * (n + 1) / 2 for n in range(11)]
BUDGETS = {
    # The share is update / 10, and 60 s are never used up.
    "fast": (Pace(1), {"max_updates": 10}, [1 - n / 10 for n in range(1, 11)], "max_updates"),
    # The first is taken to last 0.06 s, so that its 1 / 10 of the updates counts; before the second 15 s are used, so
    # it should end at 30 of 60.
    "slow": (Pace(15), {"max_updates": 10}, [0.9, 0.5, 0.25, 0.0], "max_minutes"),
    "minutes alone": (Pace(15), {"max_updates": None}, [0.999, 0.5, 0.25, 0.0], "max_minutes"),
    # share 0.001, 2 / 40, 3 / 40, ..., of which the first tenth is warm-up
    "warm-up": (
        Pace(1.5),
        {"max_updates": None, "warmup_share": 0.1},
        [0.01, 0.5, 0.75, 1.0, *[(40 - n) / 36 for n in range(5, 41)]],
        "max_minutes",
    ),
    "slowing down": (
        Slowing(),
        {"max_updates": 100},
        [0.99, *[1 - min(1, max((n + 1) / 100, USED[n] * (n + 1) / n / 60)) for n in range(1, 11)]],
        "max_minutes",
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_schedule_over_the_budget_ends_at_zero_on_every_machine(
    tmp_path: Path, name: str
) -> None:
    pace, given, rates, reason = BUDGETS[name]
    assert linear_rates(tmp_path, pace, max_minutes=1, **given) == (
        pytest.approx(rates, abs=1e-12),
        reason,
    )
    assert rates[-1] < 0.01


def test_validations_use_up_the_budget_as_well(tmp_path: Path) -> None:
    pace = Pace(1)
    rates, reason = linear_rates(
        tmp_path, pace, pace.evaluation(10), max_updates=99, max_minutes=0.5, validate_every=4
    )
    # 4 s, a validation: what follows it begins at 14 s, its share still rests on the 4 s before. From now on 10 s are
    # left for the last validation.
    shares = [
        1 / 99,
        2 / 30,
        3 / 30,
        4 / 30,
        15 / 30,
        (10 + 15 * 6 / 5) / 30,
        (10 + 16 * 7 / 6) / 30,
    ]
    shares += [(10 + 17 * 8 / 7) / 30, 1, 1]
    assert rates == pytest.approx([1 - share for share in shares], abs=1e-12)
    assert (reason, pace.spent) == ("max_minutes", 30)


def test_a_training_whose_last_validation_would_be_its_first_ends_within_its_minutes(
    tmp_path: Path,
) -> None:
    pace = Pace(1)
    config = settings(max_updates=None, max_minutes=1, validate_every=1000)
    _, events = run(tmp_path, config, None, pace, pace.evaluation(10))
    assert [event.seconds for event in events if isinstance(event, Evaluated)] == [31 + 10, 50 + 10]
    assert (ended(events)[0], pace.spent) == ("max_minutes", 60)


def test_after_a_validation_that_leaves_no_time_for_a_second_one_training_ends(
    tmp_path: Path,
) -> None:
    pace, schedule = Pace(1), {"kind": "linear", "over": "budget"}
    config = settings(max_updates=None, max_minutes=1, validate_every=1000, schedule=schedule)
    _, events = run(tmp_path, config, None, pace, pace.evaluation(20))
    assert [event.seconds for event in events if isinstance(event, Evaluated)] == [31 + 20]
    assert (ended(events), pace.spent, events[-1].scheduled) == (("max_minutes", 31), 51, 51 / 60)
    _, events = run(tmp_path, config, None, pace, pace.evaluation(20), resume=True)
    assert (ended(events), events[-1].seconds) == (("max_minutes", 31), 51)


def test_a_validation_that_would_take_the_rest_of_the_time_is_left_to_the_end(
    tmp_path: Path,
) -> None:
    """Updates of 10 seconds, a validation of 15 after each second one: the one after update 6 is the last."""
    pace, schedule = Pace(10), {"kind": "linear", "over": "budget"}
    config = settings(
        max_updates=None, max_minutes=100 / 60, schedule=schedule, validate_every=2, save_every=50
    )
    _, events = run(tmp_path, config, None, pace, pace.evaluation(15))
    assert [event.update for event in events if isinstance(event, Evaluated)] == [2, 4, 6]
    assert ended(events) == ("max_minutes", 6)
    assert pace.spent == 105, "an update is made whole"
    assert steps(events)[-1].lr < 0.1 * config.lr


def test_a_schedule_over_the_budget_is_complete_where_the_last_validation_takes_less_time_than_was_left(
    tmp_path: Path,
) -> None:
    pace, schedule = Pace(1), {"kind": "cosine", "over": "budget", "warmup_share": 0.1}
    config = settings(max_updates=None, max_minutes=1, validate_every=30, schedule=schedule)
    _, events = run(tmp_path, config, None, pace, pace.evaluation(10, 5))
    assert (ended(events)[0], events[-1].lr, events[-1].scheduled) == ("max_minutes", 0.0, 1.0)


def test_epochs_are_no_part_of_a_schedule_over_the_budget(tmp_path: Path) -> None:
    config = settings(max_updates=50, max_epochs=1, schedule={"kind": "linear", "over": "budget"})
    _, events = run(tmp_path, config, stream=TinyStream(per_epoch=5))
    assert ended(events) == ("max_epochs", 5)
    assert (events[-1].lr, events[-1].scheduled) == (pytest.approx(0.9 * config.lr), 0.1)


@pytest.mark.parametrize(
    ("schedule", "scheduled"),
    [
        ({"kind": "linear", "updates": 12}, 0.25),
        ({"kind": "cosine", "updates": 3}, 1.0),
        ({"kind": "linear", "over": "budget"}, 1.0),
        ({"kind": "inverse_sqrt", "warmup": 2}, None),
    ],
)
def test_the_end_says_how_much_of_the_schedule_is_done(
    tmp_path: Path, schedule: dict[str, int | str] | dict[str, str], scheduled: float | None
) -> None:
    _, events = run(tmp_path, settings(max_updates=3, schedule=schedule))
    assert events[-1].scheduled == scheduled


def test_over_the_budget_three_updates_and_three_are_six_bit_for_bit(tmp_path: Path) -> None:
    schedule = {"kind": "cosine", "over": "budget", "warmup_share": 0.25}
    given = {
        "max_updates": 9,
        "max_minutes": 1.0,
        "save_every": 2,
        "validate_every": 4,
        "log_every": 1,
    }
    config = settings(optimizer="adam", schedule=schedule, **given)
    straight, expected = run(tmp_path / "a", config, tiny_model(dropout=0.3), Pace(10))
    assert ended(expected) == ("max_minutes", 6)

    asked = iter(range(9))
    _, before = run(
        tmp_path / "b", config, tiny_model(dropout=0.3), Pace(10), stop=lambda: next(asked) == 3
    )
    assert ended(before) == ("interrupted", 3)
    resumed, after = run(tmp_path / "b", config, tiny_model(99, 0.3), Pace(10), resume=True)
    assert ended(after) == ("max_minutes", 6)
    assert same_weights(straight, resumed)
    rates = [step.lr for step in steps(expected)]
    assert [step.lr for step in steps(before + after)] == rates
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert (after[-1].lr, after[-1].peak_lr, after[-1].seconds) == (rates[-1], max(rates), 60)
    assert same_states(tmp_path / "a", tmp_path / "b")


def test_where_the_limits_are_raised_the_schedule_runs_over_the_new_budget(tmp_path: Path) -> None:
    rates, _ = linear_rates(tmp_path, Pace(15), max_updates=None, max_minutes=1)
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    rates, _ = linear_rates(tmp_path, Pace(15), resume=True, max_updates=None, max_minutes=2)
    assert rates == pytest.approx([3 / 8, 2 / 8, 1 / 8, 0.0], abs=1e-12)


# -- optimizers and averages ----------------------------------------------------------------------------------------


def adam_steps(g: Tensor, h: Tensor) -> Tensor:
    first = g / (g.abs() + 1e-8)
    mean, square = (
        (0.9 * 0.1 * g + 0.1 * h) / (1 - 0.9**2),
        (0.98 * 0.02 * g**2 + 0.02 * h**2) / (1 - 0.98**2),
    )
    return first + mean / (square.sqrt() + 1e-8)


def adadelta_steps(g: Tensor, h: Tensor) -> Tensor:
    first = (1e-6 / (0.05 * g**2 + 1e-6)).sqrt() * g
    return first + ((0.05 * first**2 + 1e-6) / (0.95 * 0.05 * g**2 + 0.05 * h**2 + 1e-6)).sqrt() * h


@pytest.mark.parametrize(
    ("optimizer", "both_steps"),
    [
        ("adam", adam_steps),
        ("adamw", adam_steps),
        ("adadelta", adadelta_steps),
        ("adagrad", lambda g, h: g / (g.abs() + 1e-10) + h / ((g**2 + h**2).sqrt() + 1e-10)),
        ("sgd", lambda g, h: g + h),
    ],
)
def test_two_updates_of_every_optimizer_by_its_formula(
    tmp_path: Path, optimizer: str, both_steps: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """With a rate so small that the second gradient is that of the first weights."""
    model = tiny_model(dtype=torch.float64)
    before, gradients = (
        vector(model),
        [mean_gradient(model, tiny_batch(number)) for number in range(2)],
    )
    run(tmp_path, settings(optimizer=optimizer, lr=1e-9, max_updates=2), model)
    torch.testing.assert_close(
        (before - vector(model)) / 1e-9, both_steps(*gradients), rtol=1e-4, atol=1e-5
    )


def test_weight_decay_shrinks_matrices_only(tmp_path: Path) -> None:
    model = tiny_model(dtype=torch.float64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    untouched = [0, 1]  # PAD and UNK never occur in a source, so their rows have no gradient
    run(tmp_path, settings(optimizer="adamw", lr=0.1, weight_decay=0.5, max_updates=1), model)
    after = dict(model.named_parameters())
    torch.testing.assert_close(
        after["src_embedding.weight"][untouched], 0.95 * before["src_embedding.weight"][untouched]
    )
    plain = tiny_model(dtype=torch.float64)
    run(tmp_path / "plain", settings(optimizer="adamw", lr=0.1, max_updates=1), plain)
    torch.testing.assert_close(
        after["decoder.bias_hh_l0"], dict(plain.named_parameters())["decoder.bias_hh_l0"]
    )


def test_ema_by_its_formula(tmp_path: Path) -> None:
    model, seen = tiny_model(dtype=torch.float64), []
    config = settings(max_updates=4, ema_decay=0.3, validate_every=4, log_every=1)
    average = vector(model)

    def evaluate(evaluated: Seq2Seq) -> dict[str, float]:
        seen.append(vector(evaluated))
        return {"bleu": 1.0}

    for event in start(tmp_path, config, model, TinyStream(), evaluate):
        if type(event).__name__ == "Step":
            n = event.update
            decay = min(0.3, (1 + n) / (10 + n))
            average = decay * average + (1 - decay) * vector(model)
    torch.testing.assert_close(seen[0], average, rtol=1e-12, atol=1e-12)
    assert not torch.equal(seen[0], vector(model))
    plain = tiny_model(dtype=torch.float64)
    run(tmp_path / "plain", settings(max_updates=4), plain)
    assert same_weights(plain, model)  # averaging does not touch the training
    for path in (CheckpointManager(tmp_path).best()[0], CheckpointManager(tmp_path).last):
        saved = read_weights(path)
        assert torch.equal(
            torch.cat([saved[name].flatten() for name, _ in model.named_parameters()]), seen[0]
        )


# -- ends and validations -------------------------------------------------------------------------------------------


def test_stops_after_epochs_or_when_the_time_is_up(tmp_path: Path) -> None:
    _, events = run(
        tmp_path / "epochs",
        settings(max_updates=None, max_epochs=2),
        stream=TinyStream(per_epoch=3),
    )
    assert ended(events) == ("max_epochs", 6)
    _, events = run(
        tmp_path / "minutes", settings(max_updates=None, max_minutes=0.5), stream=Pace(4)
    )
    assert ended(events) == ("max_minutes", 8)
    assert events[-1].seconds == 32


@pytest.mark.parametrize(
    ("scores", "given", "is_best", "end"),
    [
        # Of two scores of 2 the newer is the best, but patience counts from the first.
        (
            [1, 2, 2, 1.5, 1.9, 9],
            {"patience": 3, "max_updates": None},
            [1, 1, 1, 0, 0],
            ("patience", 10),
        ),
        (
            [3.0, 2.0, 2.5, 2.25],
            {"patience": 2, "best_metric": "loss"},
            [1, 1, 0, 0],
            ("patience", 8),
        ),
        ([math.nan, 1.0, math.nan], {"max_updates": 6}, [0, 1, 0], ("max_updates", 6)),
    ],
    ids=["patience", "lower is better", "not a number"],
)
def test_the_best_validation(
    tmp_path: Path,
    scores: list[float],
    given: dict[str, int | None] | dict[str, int | str] | dict[str, int],
    is_best: list[int],
    end: tuple[str, int],
) -> None:
    config = settings(**{"validate_every": 2, "max_updates": 99, **given})
    _, events = run(tmp_path, config, evaluate=Scores(scores))
    assert (best_of(events), ended(events)) == (is_best, end)
    last_best = max(number for number, best in enumerate(is_best, start=1) if best)
    assert CheckpointManager(tmp_path).best()[0] == CheckpointManager(tmp_path).weights_path(
        2 * last_best
    )


def test_of_equal_scores_the_lower_loss_is_the_best_and_counts_for_patience(tmp_path: Path) -> None:
    losses = iter([4.0, 3.0, 2.0, 2.5, 2.0, 2.6, 2.7])

    def evaluate(model: Seq2Seq) -> dict[str, float]:
        return {"bleu": 0.0, "loss": next(losses)}

    config = settings(validate_every=2, patience=3, max_updates=None)
    _, events = run(tmp_path, config, evaluate=evaluate)
    assert best_of(events) == [1, 1, 1, 0, 1, 0]
    assert ended(events) == ("patience", 12), "an equal loss at an equal score is no progress"
    assert CheckpointManager(tmp_path).best()[0] == CheckpointManager(tmp_path).weights_path(10)


def test_a_resumed_training_knows_the_losses_of_equal_scores(tmp_path: Path) -> None:
    def evaluate_with(*losses: float) -> Evaluate:
        left = iter(losses)
        return lambda model: {"bleu": 0.0, "loss": next(left)}

    run(tmp_path, settings(validate_every=2, max_updates=4), evaluate=evaluate_with(2.0, 1.0))
    longer = settings(validate_every=2, max_updates=8)
    _, events = run(tmp_path, longer, evaluate=evaluate_with(1.5, 1.2), resume=True)
    assert best_of(events) == [0, 0]
    assert CheckpointManager(tmp_path).best()[0] == CheckpointManager(tmp_path).weights_path(4)


def test_evaluation_disturbs_neither_mode_nor_random_numbers(tmp_path: Path) -> None:
    modes = []

    def evaluate(model: Seq2Seq) -> dict[str, float]:
        modes.append((model.training, torch.is_grad_enabled()))
        torch.rand(100), random.random(), np.random.rand(3)
        return {"bleu": 1.0}

    one, two = tiny_model(dropout=0.4), tiny_model(dropout=0.4)
    run(tmp_path / "one", settings(max_updates=7), one)
    run(tmp_path / "two", settings(max_updates=7, validate_every=2), two, evaluate=evaluate)
    assert modes == [(False, False)] * 4
    assert two.training
    assert same_weights(one, two)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path: Path) -> None:
    models = [tiny_model(dropout=0.4) for _ in range(3)]
    for number, (model, seed) in enumerate(zip(models, (5, 5, 6), strict=True)):
        torch.rand(number)  # whatever was drawn before must not matter
        run(tmp_path / str(number), settings(), model, seed=seed)
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


# -- loss that is not finite --------------------------------------------------------------------------------------


class Poisoned(TinyStream):
    """Some batches (by number) hold the source word 11, whose embedding the test has made infinite."""

    def __init__(self, bad: Collection[int], per_epoch: int = 5) -> None:
        super().__init__(per_epoch)
        self.bad = bad

    def __next__(self) -> Batch:
        number = self.drawn
        batch = super().__next__()
        src = batch.inputs.ids.masked_fill(batch.inputs.ids == 11, 4)
        ids = src.masked_fill(batch.inputs.mask, 11) if number in self.bad else src
        return replace(batch, inputs=replace(batch.inputs, ids=ids))


def poisoned_model() -> RnnEncDec:
    model = tiny_model()
    with torch.no_grad():
        model.src_embedding.weight[11] = math.inf
    return model


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])  # fused and plain
def test_a_bad_batch_is_skipped_without_a_trace(tmp_path: Path, optimizer: str) -> None:
    config = settings(optimizer=optimizer, max_updates=6, log_every=3)
    skipping, events = run(tmp_path / "a", config, poisoned_model(), Poisoned({1, 4}))
    assert [step.skipped for step in steps(events)] == [0, 1, 1]
    assert all(math.isfinite(step.loss) and math.isfinite(step.grad_norm) for step in steps(events))
    batches = [next(stream) for stream in [Poisoned(set())] for _ in range(6)]
    without = FromList([batches[number] for number in (0, 2, 3, 5)])
    plain, _ = run(
        tmp_path / "b", settings(optimizer=optimizer, max_updates=4), poisoned_model(), without
    )
    assert same_weights(skipping, plain)


def test_a_loss_that_stays_bad_ends_the_training_with_the_last_good_state(tmp_path: Path) -> None:
    model, stream = poisoned_model(), Poisoned(set(range(4, 99)))
    with pytest.raises(TrainingError) as caught:
        run(tmp_path, settings(max_updates=99, save_every=4, log_every=5), model, stream)
    for part in (
        "update 14: the loss or its gradient was not finite for 10 updates in a row",
        "epoch 2, examples 3",  # update 14 drew batch 13, and an epoch has 5
        "in the output of module src_embedding (Embedding), whose weights already contain NaN or infinity",
        "--resume",
    ):
        assert part in str(caught.value)
    good, _ = run(tmp_path / "good", settings(max_updates=4), poisoned_model(), Poisoned(set()))
    assert same_weights(model, good)
    # a word of them is infinite, which read_weights refuses
    saved = load_file(CheckpointManager(tmp_path).last)
    assert all(torch.equal(saved[f"weights/{name}"], p) for name, p in good.named_parameters())


# -- resuming -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    daily(
        [
            {
                "optimizer": "adam",
                "schedule": {"kind": "inverse_sqrt", "warmup": 5},
                "ema_decay": 0.9,
            },
            {
                "optimizer": "adamw",
                "weight_decay": 0.1,
                "accumulate": 2,
                "schedule": {"kind": "plateau"},
            },
            {"optimizer": "sgd", "schedule": {"kind": "luong_halving", "after": 1}},
            {"optimizer": "adadelta", "lr": 1.0, "loss_unit": "sentence"},
            {"optimizer": "adagrad"},
        ],
        3,
    ),
    ids=lambda given: given["optimizer"],
)
def test_resumed_training_is_the_same_bit_for_bit(
    tmp_path: Path,
    given: dict[str, dict[str, int | str] | float | str]
    | dict[str, dict[str, str] | float | str]
    | dict[str, float | str]
    | dict[str, str],
) -> None:
    config = settings(
        max_updates=16, validate_every=4, log_every=1, keep_best=2, keep_recent=1, **given
    )

    def evaluate(model: Seq2Seq) -> dict[str, float]:
        return {"bleu": float(torch.round(vector(model).sum(), decimals=3))}

    straight, events = run(tmp_path / "a", config, tiny_model(dropout=0.3), evaluate=evaluate)

    stop = threading.Event()
    first_part = []
    broken = start(
        tmp_path / "b", config, tiny_model(dropout=0.3), TinyStream(), evaluate, stop=stop.is_set
    )
    for event in broken:
        first_part.append(event)
        # in the middle of the second epoch
        if type(event).__name__ == "Step" and event.update == 7:
            stop.set()
    assert ended(first_part) == ("interrupted", 7)
    assert first_part[-2] == Saved(str(CheckpointManager(tmp_path / "b").last), 7)

    torch.rand(17)
    random.random()
    resumed, second_part = run(
        tmp_path / "b", config, tiny_model(99, 0.3), evaluate=evaluate, resume=True
    )
    assert same_weights(straight, resumed)
    assert same_states(tmp_path / "a", tmp_path / "b", but=("seconds", "used", "validating"))
    has_state = any(
        name.startswith("optimizer/") for name in CheckpointManager(tmp_path / "a").load_last()[0]
    )
    assert has_state == (given["optimizer"] != "sgd")
    assert (
        CheckpointManager(tmp_path / "a").entries() == CheckpointManager(tmp_path / "b").entries()
    )

    def numbers(parts: list[Event]) -> list[tuple[Any, ...]]:
        return [
            (s.update, s.epoch, s.loss, s.terms["nll"], s.tokens, s.lr, s.grad_norm)
            for s in steps(parts)
        ]

    assert numbers(first_part + second_part) == numbers(events)
    assert steps(second_part)[0].seconds > steps(first_part)[-1].seconds


@pytest.mark.parametrize(("after", "saved"), [(Saved, 0), (Evaluated, 3)])
def test_a_killed_training_resumes_from_its_last_save(
    tmp_path: Path, after: type[Event], saved: int
) -> None:
    config = settings(max_updates=10, validate_every=4, save_every=3)
    straight, _ = run(tmp_path / "a", config, tiny_model(dropout=0.3))
    events = start(tmp_path / "b", config, tiny_model(dropout=0.3), TinyStream())
    for event in events:  # dropped, as by a kill: nothing after it is run
        if isinstance(event, after):
            break
    events.close()
    assert CheckpointManager(tmp_path / "b").load_last()[1]["update"] == saved
    resumed, _ = run(tmp_path / "b", config, tiny_model(99, 0.3), resume=True)
    assert same_weights(straight, resumed)
    assert (
        CheckpointManager(tmp_path / "b").entries() == CheckpointManager(tmp_path / "a").entries()
    )


def test_resuming_a_finished_training_trains_nothing_and_a_longer_one_goes_on(
    tmp_path: Path,
) -> None:
    run(tmp_path, settings(max_updates=4), tiny_model())
    _, events = run(tmp_path, settings(max_updates=4), tiny_model(), resume=True)
    assert [type(event).__name__ for event in events] == ["Resumed", "Stopped"]
    assert ended(events) == ("max_updates", 4)
    longer, events = run(tmp_path, settings(max_updates=6), tiny_model(), resume=True)
    straight, _ = run(tmp_path / "straight", settings(max_updates=6), tiny_model())
    assert same_weights(longer, straight)


def test_resuming_nothing_overwriting_something_and_another_optimizer_are_errors(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run(tmp_path, settings(), resume=True)
    run(tmp_path, settings())
    with pytest.raises(CheckpointError, match="contains an earlier training run"):
        run(tmp_path, settings())
    with pytest.raises(
        CheckpointError, match="saved with optimizer 'adam', but the recipe sets 'sgd'"
    ):
        run(tmp_path, settings(optimizer="sgd", max_updates=9), resume=True)


def test_bf16_trains_on_the_cpu(tmp_path: Path) -> None:
    model, events = run(tmp_path, settings(precision="bf16", max_updates=40, log_every=10, lr=0.02))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert steps(events)[-1].terms["nll"] < 0.9 * steps(events)[0].terms["nll"]


# -- CUDA -----------------------------------------------------------------------------------------------------------


def on_cuda(
    folder: Path, dropout: float = 0.0, resume: bool = False, **given: Any
) -> tuple[RnnEncDec, list[Event]]:
    """The model and events of a training on a CUDA device."""
    model, cuda = tiny_model(dropout=dropout), torch.device("cuda")
    events = train(
        model,
        TinyStream(),
        settings(**given),
        constant_score,
        CheckpointManager(folder),
        cuda,
        resume,
    )
    return model, list(events)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_on_cuda(tmp_path: Path, precision: str) -> None:
    given = {"precision": precision, "log_every": 10, "lr": 0.02, "ema_decay": 0.9}
    _, events = on_cuda(tmp_path, max_updates=40, **given)
    assert steps(events)[-1].terms["nll"] < 0.9 * steps(events)[0].terms["nll"]
    _, events = on_cuda(tmp_path, max_updates=50, resume=True, **given)
    assert ended(events) == ("max_updates", 50)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_deterministic_training_on_cuda_is_resumed_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    straight, _ = on_cuda(tmp_path / "a", 0.3, max_updates=40, deterministic=True)
    on_cuda(tmp_path / "b", 0.3, max_updates=20, deterministic=True)
    resumed, _ = on_cuda(tmp_path / "b", 0.3, resume=True, max_updates=40, deterministic=True)
    assert same_weights(straight, resumed)
