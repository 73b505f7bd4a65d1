"""`--lm`, a language model beside a translation model, and how it gets the same tokenizer."""

from pathlib import Path

import pytest
from commands import Command, refused, succeeded, write_lines
from untrained_runs import LANGUAGE_MODEL, LINES, TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun


@pytest.fixture
def runs(tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A translation model `mine` and a language model `lm` with its tokenizer; both have random weights."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path, "mine", TRANSLATION)
    write_lines("text", LINES)
    make_run(tmp_path, "lm", LANGUAGE_MODEL)
    return tmp_path


def test_scores_include_the_weighted_log_probability_of_the_language_model(runs: Path, console: Command) -> None:
    translate = ("translate", "-m", "mine", "text", "--scores", "-q")
    plain = succeeded(console(*translate)).out
    assert succeeded(console(*translate, "--lm", "lm", "--lm-weight", "0")).out == plain
    fused = ("--lm", "lm", "--lm-weight", "0.7")
    printed = succeeded(console(*translate, *fused)).out.splitlines()
    assert [line.split("\t")[2] for line in printed] != [line.split("\t")[2] for line in plain.splitlines()]
    found = [one for (one,) in Translator.load("mine", "cpu", lm="lm", lm_weight=0.7).search(LINES)]
    translated = [one.log_prob for one in Translator.load("mine", "cpu").rescore(LINES, found)]
    spoken = [one.log_prob for one in Translator.load("lm", "cpu").rescore([""] * len(found), found)]
    sums = [one + 0.7 * other for one, other in zip(translated, spoken, strict=True)]
    assert [float(line.split("\t")[1]) for line in printed] == pytest.approx(sums, abs=1e-4)
    succeeded(console("translate", "-m", "mine", "text", "--json", *fused, "-o", "found.jsonl"))
    again = succeeded(console("rescore", "-m", "mine", "--source", "text", "--target", "found.jsonl", *fused))
    assert [float(line.split("\t")[1]) for line in again.out.splitlines()] == pytest.approx(sums, abs=1e-4)
    assert "language model runs/lm, weight 0.7; scores include its part" in again.err


def test_what_cannot_stand_beside_a_model_is_refused(runs: Path, console: Command) -> None:
    translate = ("translate", "-m", "mine", "text")
    refused(console(*translate, "--lm", "mine"), "rnnsearch is no language model")
    refused(console(*translate, "--lm-weight", "0.1"), "name its run with --lm")
    refused(console("generate", "-m", "lm", "text", "--lm", "lm"), "transformer_lm does not")
    make_run(runs, "own", LANGUAGE_MODEL.replace("init_from: {tokenizer: runs/mine}", "tokenizer: {kind: char}"))
    refused(console(*translate, "--lm", "own"), "not that of the model's target", "init_from: {tokenizer: RUN}")


def test_the_tokenizer_of_another_run_is_taken_as_it_is(runs: Path, console: Command) -> None:
    succeeded(console("preprocess", "lm.yaml", "--run", "runs/new"))
    own, its = (SavedRun(RunFolder(Path("runs", name))) for name in ("new", "mine"))
    assert own.load_tokenizers().tgt.vocabulary == its.load_tokenizers().tgt.vocabulary
    assert own.recipe.tokenizer == its.recipe.tokenizer
    assert "is that of" in succeeded(console("check", "lm.yaml", "--run", "runs/other")).out
    Path("other.yaml").write_text(LANGUAGE_MODEL + "tokenizer: {vocab_size: 50}\n")
    done = console("preprocess", "other.yaml", "--run", "runs/other")
    refused(done, "`tokenizer.vocab_size` is 50, and there 8000")
