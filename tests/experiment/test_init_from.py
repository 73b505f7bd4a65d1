"""Fine-tuning: a training begins with the weights, tokenizer and vocabulary of another run."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.config import Recipe
from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.experiment.stages import train_stages
from nmtkit.inference.translator import Translator
from nmtkit.runs.origin import read_origin
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import read_weights
from nmtkit.training.events import Evaluated, Step
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, sentence_pairs, succeeded, write_pairs

TUNED = """\
init_from: general
data:
  train: {src: own.src, tgt: own.tgt}
  valid: {src: valid.src, tgt: valid.tgt}
model: {dropout: 0.2}
batch: {batch_tokens: 256}
training: {lr: 0.001, max_updates: 6, validate_every: 2, log_every: 1}
"""
CPU = torch.device("cpu")


@pytest.fixture
def place(corpus: Path, trained: Path, tmp_path: Path) -> Path:
    """A folder with the run `general`, text of its own, and the recipe `tuned.yaml`."""
    shutil.copytree(trained, tmp_path / "general")
    write_pairs(tmp_path, "own", sentence_pairs(60, 7))
    for end in ("src", "tgt"):
        shutil.copy(corpus / f"valid.{end}", tmp_path)
    (tmp_path / "tuned.yaml").write_text(TUNED, encoding="utf-8")
    return tmp_path


def losses(run: Run, resume: bool = False, most: int | None = None) -> list[float]:
    """Trains, up to so many updates if that is said; the loss of every update."""
    found: list[float] = []
    for event in train_stages(
        run, CPU, resume=resume, stop=lambda: most is not None and len(found) >= most
    ):
        if isinstance(event, Step):
            found.append(event.loss)
    return found


def test_model_tokenizer_and_search_are_of_the_run(place: Path) -> None:
    before, tuned = (
        config.load(place / "general" / "recipe.yaml"),
        config.load(place / "tuned.yaml"),
    )
    assert tuned.init_from is not None
    assert tuned.init_from.run == str(place / "general")
    assert tuned.model == before.model.model_copy(update={"dropout": 0.2})
    assert (tuned.tokenizer, tuned.search, tuned.task) == (
        before.tokenizer,
        before.search,
        before.task,
    )
    assert (
        config.load(place / "tuned.yaml", ["init_from.checkpoint=last"]).init_from
        != tuned.init_from
    )


def test_training_begins_where_the_other_ended(place: Path) -> None:
    general = Run.open(str(place / "general"))
    tuned = config.load(place / "tuned.yaml", ["training.lr=1e-12", "training.max_updates=1"])
    run = begin_run(tuned, str(place / "tuned"))
    scores = [
        event.metrics["loss"] for event in train_stages(run, CPU) if isinstance(event, Evaluated)
    ]
    run.close()
    known = [json.loads(line) for line in general.folder.metrics.read_text().splitlines()]
    best = [one["valid_loss"] for one in known if one["event"] == "evaluated" and one["best"]][-1]
    # else some processors round products to bfloat16
    exact = torch.get_float32_matmul_precision() == "highest"
    assert scores == [pytest.approx(best, abs=1e-5 if exact else 2e-3)]
    assert run.load_tokenizers().checksum == general.load_tokenizers().checksum
    old, new = read_weights(general.weights("best")), read_weights(run.weights("best"))
    assert max(float((old[name] - new[name]).abs().max()) for name in old) < 1e-8


@pytest.mark.slow
def test_the_run_is_recorded_and_may_go(place: Path) -> None:
    """Resume is bit-exact without it, by the same recipe; the model still translates."""
    loaded = config.load(place / "tuned.yaml")
    whole = begin_run(loaded, str(place / "whole"))
    expected = losses(whole)
    whole.close()
    run = begin_run(loaded, str(place / "tuned"))
    first = losses(run, most=3)
    run.close()
    origin = read_origin(run.folder)
    assert origin is not None
    assert origin.sha256 == hashlib.sha256(Path(origin.weights).read_bytes()).hexdigest()
    (place / "general").rename(place / "elsewhere")
    run = begin_run(loaded, str(place / "tuned"), resume=True)
    assert first + losses(run, resume=True) == expected
    run.close()
    old, new = (read_weights(one.weights("last")) for one in (whole, run))
    assert all(torch.equal(old[name], new[name]) for name in old)
    texts = [
        Translator.load(str(place / name), "cpu").translate("ba de") for name in ("tuned", "whole")
    ]
    assert texts[0] == texts[1]
    with pytest.raises(RecipeError, match="has no model and no tokenizer"):
        config.load(place / "tuned.yaml")
    with pytest.raises(
        CheckpointError, match="general: there is no such run; there are no runs under"
    ):
        begin_run(loaded, str(place / "anew"))


def test_another_model_is_refused_by_name(place: Path) -> None:
    changed = config.load(place / "tuned.yaml", ["model.hidden_size=32", "tokenizer.vocab_size=90"])
    with pytest.raises(RecipeError) as refused:
        begin_run(changed, str(place / "tuned"))
    assert "`model.hidden_size` is 32, but 48" in str(refused.value)
    assert "`tokenizer.vocab_size` is 90, but 100" in str(refused.value)
    assert not (place / "tuned").exists()
    own = config.load(place / "tuned.yaml")
    with pytest.raises(
        RecipeError, match="`init_from` is the folder of the new run itself; use another folder"
    ):
        begin_run(own, str(place / "general"), overwrite=True)
    assert (place / "general" / "result.json").exists()


def test_arrays_of_another_vocabulary_are_made_anew(place: Path) -> None:
    """The settings of the tokenizer are the same, and its words are not."""
    plain: Recipe = config.load(place / "tuned.yaml").model_copy(update={"init_from": None})
    run = begin_run(plain, str(place / "tuned"))
    learned = run.load_tokenizers().checksum
    run.close()
    run = begin_run(config.load(place / "tuned.yaml"), str(place / "tuned"))
    assert run.load_tokenizers().checksum != learned
    assert len(losses(run)) == 6
    run.close()


def test_it_is_explained_and_checked(place: Path, console: Command) -> None:
    assert "init_from.checkpoint" in succeeded(console("recipe", "explain", "init_from")).out
    assert "weights-" in succeeded(console("recipe", "check", place / "tuned.yaml")).out
    with pytest.raises(RecipeError, match="remove `pretrained_embeddings`"):
        config.load(place / "tuned.yaml", ["pretrained_embeddings.src=vectors.txt"])
