"""`nmtkit train ... --init-from RUN`: a run is fine-tuned on text of its own; what it learned and forgot is shown."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nmtkit import config, metrics
from nmtkit.config import Recipe
from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.reading import read_pairs
from nmtkit.experiment.presets.without_recipe import RecipeRequest, propose_recipe
from nmtkit.inference.translator import Translator
from tests.cli.untrained_runs import CAPTIONER, make_run
from tests.support.commands import Command, sentence_pairs, sets, succeeded, write_pairs

SPEAKER = """\
task: language-modelling
data: {train: {tgt: [text]}, valid: {tgt: [text]}}
tokenizer: {kind: word}
model: {kind: rnn_lm, hidden_size: 8}
training: {max_updates: 1, best_metric: perplexity}
"""
QUICK = ["--device", "cpu", *sets("training.max_updates=4", "training.validate_every=2")]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Text of another kind: the same words, translated in their order."""
    pairs = [(source, source.upper()) for source, _ in sentence_pairs(80, 9)]
    write_pairs(tmp_path, "own", pairs)
    write_pairs(tmp_path, "general", sentence_pairs(160, 10))
    return tmp_path


def pair(folder: Path, name: str, kind: str = "") -> list[str]:
    files = [f"{folder}/{name}.src", f"{folder}/{name}.tgt"]
    return [kind, *files] if kind else ["--source", files[0], "--target", files[1]]


def bleu(run: Path, like: Recipe) -> float:
    """Of a run's translations of the test set of a recipe."""
    pairs = list(read_pairs(like.data.splits()["test"]))
    texts = Translator.load(str(run), "cpu").translate([pair.src for pair in pairs])
    return metrics.score_all(texts, [[pair.tgt or "" for pair in pairs]], ["bleu"])[0].value


def table(out: str) -> dict[str, list[float]]:
    """What the table says of each test set: before, after, change."""
    rows = re.findall(
        r"^(own text|general text) +([\d.]+) +([\d.]+) +([+-][\d.]+)", out, re.MULTILINE
    )
    return {name: [float(one) for one in figures] for name, *figures in rows}


@pytest.mark.slow
def test_both_tests_are_scored_before_and_after(own: Path, trained: Path, console: Command) -> None:
    shutil.copytree(trained, own / "general")
    words = [*pair(own, "own"), "--init-from", own / "general", *QUICK, "--set", "training.lr=0.02"]
    done = succeeded(console("train", *words, "--run", "tuned"))
    reasons = [line for line in done.err.splitlines() if line.startswith("  training.lr:")]
    assert reasons == ["  training.lr: 0.02, because you set it"]
    general, tuned = (config.load(own / name / "recipe.yaml") for name in ("general", "tuned"))
    assert tuned.model == general.model
    shown = table(done.out)
    for text, of_recipe in (("own text", tuned), ("general text", general)):
        scores = [bleu(own / run, of_recipe) for run in ("general", "tuned")]
        assert shown[text][:2] == pytest.approx(scores, abs=0.006)
    warned = "catastrophic forgetting" in done.err
    assert warned == (shown["general text"][2] < -1)
    origin = json.loads((own / "tuned" / "origin.json").read_text())
    assert [*origin["before"]] == ["own text", "general text"]

    shutil.rmtree(own / "general")  # training goes on without it, and so do the figures
    more = [*QUICK[:2], *sets("training.max_updates=6", "training.lr=0.02", QUICK[-1])]
    again = succeeded(console("train", "tuned/chosen.yaml", "--run", "tuned", "--resume", *more))
    assert table(again.out)["general text"][0] == shown["general text"][0]


def test_general_text_of_a_language_model_has_no_sources(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    make_run(own, "speaker", SPEAKER)
    text, general = (str(own / f"{name}.tgt") for name in ("own", "general"))
    request, told = (
        RecipeRequest(target=(text,), init_from="speaker", general=(general,)),
        list[str](),
    )
    alone = propose_recipe(replace(request, general=()), "alone", device="cpu", notify=told.append)
    assert alone is not None
    alone.close()
    assert any(text.endswith("it learned before; add some with --general TEXT") for text in told)
    lock = propose_recipe(request, "tuned", device="cpu")
    assert lock is not None
    lock.close()
    assert "Fine-tunes speaker on 72 texts with " in " ".join(
        Path("tuned/chosen.yaml").read_text().split()
    )
    train = config.load("tuned/chosen.yaml").data.train
    assert (train.src, train.tgt[1:], len(train.weights)) == ([], [general], 2)
    assert "are not scored before and after" in (
        replace(request, general_test=(general,)).fault() or ""
    )
    assert "--init-from RUN" in (
        replace(request, task="language-modelling", init_from=None).fault() or ""
    )


def test_a_captioner_is_fine_tuned_only_by_a_recipe(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    make_run(own, "pictures", CAPTIONER, features=24)
    source, target = (str(own / f"own.{side}") for side in ("src", "tgt"))
    with pytest.raises(
        NmtkitError,
        match=r"^pictures: continuing a run with task captioning requires a recipe; write one with `init_from`",
    ):
        propose_recipe(
            RecipeRequest(target=(target,), source=(source,), init_from="pictures"), device="cpu"
        )


def test_general_text_is_half_of_the_pairs(own: Path, trained: Path, console: Command) -> None:
    words = [
        "train",
        *pair(own, "own"),
        "--init-from",
        trained,
        *pair(own, "general", "--general"),
        *QUICK,
    ]
    done = succeeded(console(*words))
    assert (
        "  training.lr: 0.0003, because large steps cause more forgetting; the peak rate of tiny was 0.005"
        in done.err
    )
    chosen = own / "runs" / "own-src-tgt-from-tiny" / "chosen.yaml"
    loaded = config.load(chosen)
    assert loaded.data.train.src == [
        str(chosen.parent / "text" / "train.src"),
        str(own / "general.src"),
    ]
    assert loaded.data.train.weights == [1, 0.45]  # 72 of 80 pairs are trained on, beside 160
    assert "# data.train.weights: 0.45 for general text, because" in chosen.read_text()
    assert "general text" in table(done.out)
