"""Trains the demo as `nmtkit train demo` does, scores it, and lets the CPU translate with the same weights."""

from nmtkit import config
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.execute import choose_device, resolve_auto
from nmtkit.experiment.stages import train_stages
from nmtkit.inference.loading.opening import open_translator
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.training.events import Step, Stopped
from tests.support.begun_runs import begin_run

from .results import Part

ENOUGH = 80.0
"""BLEU that the demo promises."""
COMPARED = 200
"""Sentences that both devices translate."""


def main(part: Part) -> None:
    limits = ["training.max_updates=4", "evaluation.max_sentences=4"] if part.quick else []
    loaded = config.load("demo", limits)
    place = choose_device(str(part.place), loaded)
    run = begin_run(loaded, str(part.scratch / "run"))
    resolve_auto(run, place, print)
    speeds, reason = [], ""
    for event in train_stages(run, place):
        if isinstance(event, Step):
            speeds.append(event.tokens_per_second)
        if isinstance(event, Stopped):
            reason = f"{event.update} updates ({event.reason})"
    part.add(
        "training", None, f"{reason}, {max(speeds):,.0f} tok/s at best", tokens_per_second=speeds
    )
    result = evaluate_test_set(run, place)
    assert result is not None
    scores = {score.name: score.value for score in result.scores}
    holds = None if part.quick else scores["BLEU"] >= ENOUGH
    part.add(
        "test set",
        holds,
        ", ".join(f"{name} {value:.1f}" for name, value in scores.items()),
        **scores,
    )
    count = 4 if part.quick else COMPARED
    on_cpu = open_translator(run, DecodingOptions(device="cpu")).translate(
        [one.src for one in result.examples[:count]]
    )
    same = sum(map(str.__eq__, on_cpu, result.answers.texts))
    part.add("same text on the CPU", None, f"{same} of {count}", same=same, of=count)
