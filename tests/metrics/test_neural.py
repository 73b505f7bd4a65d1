"""BERTScore: what its library is given, and what is made of its scores; a stub stands in for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmtkit import config, metrics
from nmtkit.core.errors import NmtkitError, RecipeError
from nmtkit.metrics import METRICS, neural
from tests.support.commands import Command, refused, write_lines

HYPS, REFS, SOURCES = ["the cat", "a dog"], ["the cat", "the dog"], ["le chat", "le chien"]


@pytest.mark.parametrize("name", ["bertscore", "bertscore-en"])
def test_a_metric_that_is_not_installed_says_how_to_get_it(
    console: Command, corpus: Path, name: str
) -> None:
    if METRICS.get(name).installed:
        pytest.skip(f"{name} is installed")
    write_lines("hyp", HYPS)
    remedy = f"metric '{name}' is not installed; install it with `pip install 'nmtkit[{METRICS.get(name).extra}]'`"
    refused(console("score", "hyp", "--ref", "hyp", "-m", "bleu", name), remedy)
    # said before the training, not after it
    with pytest.raises(RecipeError, match="is not installed"):
        config.load(corpus / "tiny.yaml", [f"evaluation.metrics=[{name}]"])


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the library was given; it finds one translation good and the other half as good."""
    calls: list[Any] = []

    def score(
        hyps: list[str], refs: list[list[str]]
    ) -> tuple[list[float], list[float], list[float]]:
        calls.append((hyps, refs))
        return [0.1, 0.1], [0.2, 0.2], [0.8, 0.4]

    monkeypatch.setattr(metrics.metric, "find_spec", lambda name: True)
    monkeypatch.setattr(neural, "version", lambda name: "1.2")
    monkeypatch.setattr(neural, "_bert_scorer", lambda model: SimpleNamespace(score=score))
    return calls


def test_bertscore_is_the_mean_f1_against_all_references(given: list[Any]) -> None:
    (score,) = metrics.score_all(HYPS, [REFS, SOURCES], ["bertscore"])
    assert given == [(HYPS, [["the cat", "le chat"], ["the dog", "le chien"]])]
    assert score.value == pytest.approx(60)
    assert score.signature == "nrefs:2|model:bert-base-multilingual-cased|version:bert-score-1.2"


def test_comet_is_explained(console: Command) -> None:
    write_lines("hyp", HYPS)
    refused(
        console("score", "hyp", "--ref", "hyp", "-m", "comet"),
        "in a separate environment",
        "`nmtkit guide second`",
    )


def test_a_model_that_cannot_be_loaded(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(model: str) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(neural, "_bert_scorer", offline)
    with pytest.raises(
        NmtkitError,
        match=r"cannot load the model .*roberta-large \(no route to host\).*with an internet connection",
    ):
        metrics.score_all(HYPS, [REFS], ["bertscore-en"])
