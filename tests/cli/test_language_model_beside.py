"""`--lm`, a language model beside a translation model, and how it gets the same tokenizer."""

import os
from pathlib import Path

import pytest
from commands import Command, json_lines, refused, succeeded, write_lines
from untrained_runs import LANGUAGE_MODEL, LINES, TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.core.formats import load_yaml
from nmtkit.inference.inputs import WINDOW
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
    refused(console(*translate, "--lm", "mine"), "rnnsearch cannot stand beside rnnsearch")
    refused(console(*translate, "--lm-weight", "0.1"), "name its run with --lm")
    refused(console("generate", "-m", "lm", "text", "--lm", "lm"), "transformer_lm cannot stand beside transformer_lm")
    make_run(runs, "own", LANGUAGE_MODEL.replace("init_from: {tokenizer: runs/mine}", "tokenizer: {kind: char}"))
    refused(
        console(*translate, "--lm", "own"),
        "differs from the target vocabulary of the model",
        "init_from: {tokenizer: RUN}",
    )


def test_the_tokenizer_of_another_run_is_taken_as_it_is(runs: Path, console: Command) -> None:
    succeeded(console("preprocess", "lm.yaml", "--run", "runs/new"))
    own, its = (SavedRun(RunFolder(Path("runs", name))) for name in ("new", "mine"))
    assert own.load_tokenizers().tgt.vocabulary == its.load_tokenizers().tgt.vocabulary
    assert own.recipe.tokenizer == its.recipe.tokenizer
    assert "is that of" in succeeded(console("check", "lm.yaml", "--run", "runs/other")).out
    Path("other.yaml").write_text(LANGUAGE_MODEL + "tokenizer: {vocab_size: 50}\n")
    done = console("preprocess", "other.yaml", "--run", "runs/other")
    refused(done, "`tokenizer.vocab_size` is 50, and there 8000")


def test_reranking_prints_the_best_of_its_candidates_and_tunes_its_weights(runs: Path, console: Command) -> None:
    words = ["rerank", "-m", "mine", "--channel", "mine", "--lm", "lm", "text", "-q"]
    records = json_lines(succeeded(console(*words, "--n-best", "4", "--json")).out)
    several = [[record["best"], *record["others"]] for record in records]
    assert all(len(candidates) > 1 for candidates in several)
    for candidates in several:
        assert candidates == sorted(candidates, key=lambda one: -one["score"])
        for one in candidates:
            assert one["score"] == pytest.approx(one["direct"] + one["channel"] + one["lm"], abs=1e-9)
    write_lines("ref", [candidates[-1]["text"] for candidates in several])
    tuned = succeeded(console(*words, "--n-best", "4", "--tune", "ref", "-o", "weights.yaml"))
    assert "with the model alone" in tuned.err
    printed = succeeded(console(*words, "--n-best", "4", "--weights", "weights.yaml")).out.splitlines()
    weights = load_yaml(Path("weights.yaml"))[0]
    for line, candidates in zip(printed, several, strict=True):
        sums = [one["direct"] + weights["channel"] * one["channel"] + weights["lm"] * one["lm"] for one in candidates]
        assert line == candidates[sums.index(max(sums))]["text"]
    refused(console(*words, "--tune", "ref", "--json"), "leave --weights and --json out")
    write_lines("short", ["one"])
    refused(console(*words, "--tune", "short"), "2 source lines but 1 reference lines")
    Path("weights.yaml").write_text("channel: -1\n")
    refused(console(*words, "--weights", "weights.yaml"), "weights.yaml", "channel")
    refused(console(*words[:5], "--lm", "mine", "text"), "was trained for translation")


def test_tuning_scores_text_as_the_recipe_does(runs: Path, console: Command) -> None:
    words = ("rerank", "-m", "mine", "--channel", "mine", "text", "-q", "--n-best", "1")
    words += ("--search", "min_length=6", "--search", "max_length=9")
    found = succeeded(console(*words)).out
    Path("upper").write_text(found.upper())
    assert found.upper() != found
    assert "bleu 100.00" not in succeeded(console(*words, "--tune", "upper")).err
    make_run(runs, "mine", TRANSLATION + "evaluation: {lowercase: true}\n")
    assert "bleu 100.00, and 100.00 with" in succeeded(console(*words, "--tune", "upper")).err
    os.utime(runs / "runs" / "lm" / "result.json", (2**32, 2**32))  # newer than the model that is found without -m
    assert "bleu 100.00, and 100.00 with" in succeeded(console(words[0], *words[3:], "--tune", "upper")).err


def test_what_is_chosen_though_the_length_limit_cut_it_is_told(runs: Path, console: Command) -> None:
    words = ("rerank", "-m", "mine", "--channel", "mine", "text", "-q", "--n-best", "3")
    assert "length limit" not in succeeded(console(*words, "--search", "at_limit=end")).err
    cut = succeeded(console(*words, "--search", "max_length=1")).err
    assert "2 of the translations reached the length limit" in cut


def test_samples_to_choose_among_are_those_of_their_lines(
    runs: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lines are read at a time, which a pipe decides."""
    write_lines("text", [*LINES[:1], "", *LINES[:1]])
    words = ("rerank", "-m", "mine", "--channel", "mine", "text", "-q", "--n-best", "3", "--search", "samples=3")

    def drawn() -> list[list[str]]:
        records = json_lines(succeeded(console(*words, "--json")).out)
        return [sorted(one["text"] for one in (record["best"], *record["others"])) for record in records]

    together = drawn()
    assert together[0] != together[2]
    monkeypatch.setitem(WINDOW, "cpu", 1)
    assert drawn() == together


def test_mistakes_of_tuning_are_told_before_anything_is_translated(runs: Path, console: Command) -> None:
    words = ("rerank", "-m", "mine", "--channel", "no-run", "text", "--tune")
    refused(console(*words, "text", "--metric", "rouge"), "rouge1, rouge2, rougeL, rougeLsum: name one of them")
    refused(console(*words, "text", "--metric", "blue"), "unknown metric 'blue'")
    refused(console(*words, "no-text"), "no-text")


def test_reranking_passes_over_no_metric_and_no_weight_in_silence(runs: Path, console: Command) -> None:
    words = ("rerank", "-m", "mine", "--channel", "mine", "text", "-q")
    refused(console(*words, "--metric", "chrf"), "--metric is for --tune")
    Path("weights.yaml").write_text("channel: 0.5\nlm: 0.3\n")
    refused(console(*words, "--weights", "weights.yaml"), "weights.yaml has a weight of a language model, 0.3")
    Path("weights.yaml").write_text("channel: 0.5\nlm: 0.0\n")
    succeeded(console(*words, "--weights", "weights.yaml"))
