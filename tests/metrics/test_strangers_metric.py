"""A metric that somebody adds is one file: here it is this one, and nothing of the package knows its name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from nmtkit import config, metrics
from nmtkit.cli import cli
from nmtkit.core.errors import NmtkitError, RecipeError
from nmtkit.metrics import METRICS, ExampleMetric, Options, Texts
from tests.support.commands import write_lines
from tests.support.registries import keep_members


class Untranslated(ExampleMetric):
    """The share of the output's words that stand in the source: lower is better. Pooled over the corpus."""

    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        assert texts.sources is not None
        pairs = [
            (hyp.split(), source.split())
            for hyp, source in zip(texts.hyps, texts.sources, strict=True)
        ]
        return np.array(
            [[sum(word in source for word in hyp), len(hyp)] for hyp, source in pairs], dtype=float
        )

    def value(self, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return 100 * means[..., 0] / np.maximum(means[..., 1], 1e-9)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_members(monkeypatch, METRICS)
    METRICS.register("untranslated")(
        Untranslated(
            "untranslated", "Untranslated", higher_is_better=False, needs="texts and sources"
        )
    )


SOURCES = ["a b c d", "e f"]
HYPS = ["A b c D", "E F"]
REFS = ["A B C D", "E F"]


def run(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lines in {
        "src": SOURCES * 20,
        "hyp": HYPS * 20,
        "good": REFS * 20,
        "ref": REFS * 20,
    }.items():
        write_lines(name, lines)
    return tmp_path


def test_it_scores(texts: Path) -> None:
    args = [
        "score",
        "hyp",
        "--ref",
        "ref",
        "--source",
        "src",
        "--metrics",
        "untranslated,bleu",
        "--json",
    ]
    score, bleu = json.loads(run(*args))["systems"][0]["scores"]
    assert (score["name"], score["value"]) == ("Untranslated", pytest.approx(100 * 2 / 6))
    assert score["signature"].startswith("nrefs:1|version:nmtkit-")
    assert bleu["name"] == "BLEU"
    with pytest.raises(NmtkitError, match="'untranslated' requires the source texts"):
        metrics.score_all(HYPS, [REFS], ["untranslated"])


def test_it_compares_systems_with_a_bootstrap(texts: Path) -> None:
    args = [
        "score",
        "hyp",
        "good",
        "--ref",
        "ref",
        "--source",
        "src",
        "--metrics",
        "untranslated",
        "--n-samples",
        99,
    ]
    first, second = (system["scores"][0] for system in json.loads(run(*args, "--json"))["systems"])
    assert first["mean"] == pytest.approx(100 / 3, abs=1)
    assert first["interval"] > 0
    assert first["p_value"] is None
    assert (second["value"], second["interval"], second["p_value"]) == (
        0,
        0,
        pytest.approx(1 / 100),
    )
    assert "bs:99|seed:12345" in second["signature"]
    assert "(p 0.010*)" in run(*args)


KEYS = ("evaluation.metrics=[untranslated, chrf]", "training.best_metric=untranslated")


def test_it_chooses_weights_and_is_tested_and_drawn(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    changes = [*KEYS, "training.max_updates=4", "training.validate_every=2"]
    run(
        "train",
        corpus / "tiny.yaml",
        "--run",
        folder,
        "--threads",
        1,
        *(f"--set={change}" for change in changes),
    )
    records: list[dict[str, Any]] = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    evaluated = [record for record in records if record["event"] == "evaluated"]
    assert [record["update"] for record in evaluated] == [2, 4]
    assert {"valid_untranslated", "valid_chrf", "valid_loss"} <= evaluated[0].keys()
    assert "valid_bleu" not in evaluated[0]
    test_metrics = json.loads((folder / "test.json").read_text())["scores"]
    assert [score["name"] for score in test_metrics] == ["BLEU", "chrF2", "Untranslated"]
    hyps, sources = (
        (path).read_text().splitlines() for path in (folder / "test.out", corpus / "test.src")
    )
    refs = (corpus / "test.tgt").read_text().splitlines()
    assert (
        test_metrics[2]["value"]
        == metrics.score_all(hyps, [refs], ["untranslated"], sources=sources)[0].value
    )
    assert "best Untranslated" in run("plot-training", folder)
    least = min(record["valid_untranslated"] for record in evaluated)
    assert f"{least:.2f} at " in run("plot-training", folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["evaluation.metrics=[untranslate]"], "did you mean 'untranslated'"),
        (["evaluation.metrics=[aer]"], "metric 'aer' needs alignments instead of texts"),
        (["evaluation.metrics=[]"], "no metric given"),
        (
            ["evaluation.metrics=[chrf]", "training.best_metric=bleu"],
            "validation of translation does not measure 'bleu'",
        ),
    ],
)
def test_a_recipe_that_names_metrics_is_checked(
    corpus: Path, changes: list[str], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        config.load(corpus / "tiny.yaml", changes)


def test_a_recipe_names_a_family_by_one_word(corpus: Path) -> None:
    loaded = config.load(corpus / "tiny.yaml", ["evaluation.metrics=[bleu, rouge]"])
    assert loaded.validation_metrics == ["bleu", *metrics.ROUGE_METRICS]
    assert loaded.test_metrics == ["bleu", "chrf", *metrics.ROUGE_METRICS]
