"""The log of a training: what is written is read again, with the keys that it has on the disk."""

import json
import math
from pathlib import Path

from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import MetricsLog
from nmtkit.training.events import Evaluated, Saved, Step


def step(update: int, nll: float) -> Step:
    numbers = {
        "tokens": 9,
        "tokens_per_second": 90.0,
        "lr": 0.5,
        "grad_norm": 1.5,
        "seconds": 2.0 * update,
    }
    return Step(
        update=update,
        epoch=1,
        loss=3.0,
        terms={"nll": nll, "ppl": 7.5},
        skipped=1,
        oom_splits=2,
        **numbers,
    )


def evaluated(update: int) -> Evaluated:
    return Evaluated(update, {"bleu": 20.0, "loss": 2.5, "seconds": 0.5}, best=True, seconds=9.0)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    log = MetricsLog(RunFolder(tmp_path))
    log.add(step(1, 2.0))
    log.add(Saved("elsewhere", 1))
    log.add(evaluated(1), "second")
    first, (stage, event) = log.read()
    assert first == ("", step(1, 2.0))
    assert (stage, event.update) == ("second", 1)
    assert isinstance(event, Evaluated)
    assert event.metrics == evaluated(1).metrics
    assert event.best
    one, other = (json.loads(line) for line in log.path.read_text().splitlines())
    assert {
        "update": 1,
        "event": "step",
        "nll": 2.0,
        "lr": 0.5,
        "seconds": 2.0,
        "halved": 2,  # the key of earlier versions, for `oom_splits`
    }.items() <= one.items()
    assert other == {
        "update": 1,
        "event": "evaluated",
        "stage": "second",
        "valid_bleu": 20.0,
        "valid_loss": 2.5,
        "valid_seconds": 0.5,
        "best": True,
    }


def test_what_was_not_finite_or_not_logged_is_nan(tmp_path: Path) -> None:
    log = MetricsLog(RunFolder(tmp_path))
    log.add(step(1, math.inf))
    log.path.write_text(log.path.read_text() + '{"update": 2, "event": "step"}\n')
    assert json.loads(log.path.read_text().splitlines()[0])["nll"] is None
    first, second = (event for _, event in log.read())
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert math.isnan(first.terms["nll"])
    assert math.isnan(second.lr)
    assert second.terms == {}


def test_a_training_that_goes_on_takes_back_what_came_after_its_state(tmp_path: Path) -> None:
    log = MetricsLog(RunFolder(tmp_path))
    for update in (1, 2, 3):
        log.add(step(update, 2.0))
        log.add(evaluated(update), samples=[["a\u2028b", "c\x85d", "e"]])
    log.path.write_text(log.path.read_text() + '{"update": 4, "ev')
    log.truncate_after(after=2)
    assert [event.update for _, event in log.read()] == [1, 1, 2, 2]
    assert log.samples() == [(update, [["a\u2028b", "c\x85d", "e"]]) for update in (1, 2)]
