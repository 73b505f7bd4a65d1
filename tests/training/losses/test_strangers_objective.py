"""What a stranger adds without touching the package: an objective, an attention score, an optimizer."""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.optim import RMSprop

from nmtkit.cli.terminal import TrainingDisplay
from nmtkit.cli.terminal.progress import show_event
from nmtkit.config import load
from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import Registry
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.layers.attention import SCORES, AttentionScore
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn.luong import Luong, LuongConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import MetricsLog
from nmtkit.training.events import Step
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.training.losses.objective import OBJECTIVES, InputKind, Objective, ObjectiveInput
from nmtkit.training.optimizers import OPTIMIZERS
from tests.support.registries import keep_members
from tests.support.tiny_training import (
    TinyStream,
    ended,
    run,
    same_weights,
    settings,
    start,
    steps,
    tiny_batch,
)


@dataclass(frozen=True)
class Confidence(Objective):
    """Pereyra et al. 2017, section 3: the negative entropy of each word's distribution; here of words but not of EOS.

    Its mean is over a count that nobody else has, and it tells a second number.
    """

    normalizers: ClassVar = {"confidence": "words", "surest": "sentences"}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": batch.n_tokens - batch.size}

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        words = inputs.batch.targets.ids[inputs.batch.targets.mask][inputs.part] != EOS
        each = (inputs.log_probs.exp() * inputs.log_probs).sum(-1)
        return {
            "confidence": each[words].sum(),
            "surest": inputs.log_probs.detach().exp().amax(-1)[~words].sum(),
        }

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        return {**means, "entropy": -means["confidence"]}


@dataclass(frozen=True)
class Focus(Objective):
    """Reads the attention: how much of it is where it is most."""

    normalizers: ClassVar = {"focus": "tokens"}
    needs: ClassVar[InputKind] = "attention"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        return {"focus": -inputs.output.attention.amax(-1)[inputs.device_batch.targets.mask].sum()}


Enter = Callable[[Registry[Any], str, Any], None]


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Enters something in a registry for the time of a test."""

    def enter(registry: Registry[Any], name: str, member: Any) -> None:
        keep_members(monkeypatch, registry)
        registry.register(name)(member)

    return enter


@pytest.fixture
def objectives(enter: Enter) -> None:
    enter(OBJECTIVES, "confidence", Confidence)
    enter(OBJECTIVES, "focus", Focus)


PLAIN = {
    "lr": 0.01,
    "max_updates": 6,
    "log_every": 2,
    "best_metric": "bleu",
    "schedule": {"kind": "constant"},
}


@pytest.mark.usefixtures("objectives")
def test_an_objective_that_a_recipe_names_is_trained_by_logged_and_shown(tmp_path: Path) -> None:
    recipe = load("demo", ["training.objectives={confidence: 2, focus: 0.0}"])
    model, events = run(
        tmp_path / "with",
        recipe.training.changed({**PLAIN, "label_smoothing": 0.0, "accumulate": 2}),
    )
    assert ended(events) == ("max_updates", 6)
    for step in steps(events):
        assert list(step.terms) == ["nll", "ppl", "confidence", "surest", "entropy"]
        assert step.loss == pytest.approx(
            step.terms["nll"] + 2.0 * step.terms["confidence"], rel=1e-12
        )
        assert 0 < step.terms["entropy"] < 2.5  # of 12 words: at most ln 12
        assert 0 < step.terms["surest"] < 1
    plain, others = run(tmp_path / "without", settings(accumulate=2))
    assert list(steps(others)[0].terms) == ["nll", "ppl"]
    batch = tiny_batch(99)

    def entropy(of: Any) -> float:
        log_probs = of(batch, keep=batch.targets.mask).detach()
        return float(-(log_probs.exp() * log_probs).sum(-1).mean())

    assert entropy(model) > entropy(plain)  # what it is for

    log, stream = MetricsLog(RunFolder(tmp_path)), io.StringIO()
    with TrainingDisplay(stream, seconds_between_lines=0.0) as display:
        for event in events:
            log.add(event)
            if isinstance(event, Step):
                show_event(display, event, recipe, None)
    logged = steps([event for _, event in log.read()])
    assert [one.terms["confidence"] for one in logged] == [
        one.terms["confidence"] for one in steps(events)
    ]
    assert "confidence" in stream.getvalue()


@pytest.mark.usefixtures("objectives")
@pytest.mark.parametrize(
    ("objectives_of_recipe", "message"),
    [
        (
            "confidense: 1",
            "`: unknown training objective 'confidense'; did you mean 'confidence'? valid names: ",
        ),
        (
            "label_smoothing: 1",
            "`: 'label_smoothing' is not an objective; set it as `training.label_smoothing`",
        ),
        ("confidence: -1", ".confidence`: Input should be greater than or equal to 0"),
    ],
)
def test_objectives_that_cannot_be_named(objectives_of_recipe: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"`training.objectives{message}")):
        load("demo", [f"training.objectives={{{objectives_of_recipe}}}"])


@pytest.mark.usefixtures("objectives")
def test_one_that_reads_the_attention(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Luong(
        LuongConfig(embedding_size=8, hidden_size=8, dropout=0.0),
        VocabularySizes({"src": 12, "tgt": 12}, shared=False),
    )
    config = settings(objectives={"focus": 0.5}, reinforce={"gamma": 0.25, "max_length": 3})
    step, *_ = steps(list(start(tmp_path, config, model, TinyStream())))
    assert -1 <= step.terms["focus"] < 0
    assert {"nll", "ppl", "focus", "sampled_reward", "greedy_reward"} == set(step.terms)
    kind = "model={kind: rnn_encdec, embedding_size: 8, hidden_size: 8}"
    with pytest.raises(
        RecipeError,
        match=r"objectives\.focus`: .*attention of output words, which rnn_encdec does not have",
    ):
        load("demo", [kind, "training.objectives.focus=1"])


class Distance(AttentionScore):
    """`e_ij = -|W s_i - h_j|^2`."""

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.query = torch.nn.Linear(query_size, memory_size)

    def project(self, values: Tensor) -> Tensor:
        return values

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -(self.query(queries).unsqueeze(2) - keys.unsqueeze(1)).square().sum(-1)


def test_an_attention_score_that_a_recipe_chooses(enter: Enter) -> None:
    enter(SCORES, "distance", Distance)
    chosen = load(
        "demo", ["model={kind: luong, score: distance, embedding_size: 8, hidden_size: 8}"]
    )
    model, batch = (
        Luong(chosen.model, VocabularySizes({"src": 12, "tgt": 12}, shared=False)),
        tiny_batch(1),
    )
    assert isinstance(model.attention.score, Distance)
    torch.autograd.backward(likelihood(model(batch, keep=batch.targets.mask), batch, 12)[0])
    assert bool(model.attention.score.query.weight.grad.any())


def test_an_optimizer_that_a_recipe_chooses(tmp_path: Path, enter: Enter) -> None:
    enter(OPTIMIZERS, "rmsprop", lambda settings, groups: RMSprop(groups, lr=settings.lr))
    chosen = load("demo", ["training.optimizer=rmsprop"]).training.changed(PLAIN)
    straight, _ = run(tmp_path / "straight", chosen)
    run(tmp_path / "stopped", chosen.changed({"max_updates": 3}))
    resumed, events = run(tmp_path / "stopped", chosen, resume=True)
    assert ended(events) == ("max_updates", 6)
    assert same_weights(straight, resumed)
