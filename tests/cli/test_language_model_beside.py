"""`--lm`, a language model beside a translation model, and how it gets the same tokenizer."""

import os
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.core.formats import load_yaml
from nmtkit.inference.inputs import WINDOW
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from tests.cli.untrained_runs import LANGUAGE_MODEL, LINES, TRANSLATION, make_run
from tests.support.command_cases import refusals
from tests.support.commands import Command, json_lines, refused, succeeded, write_lines


@pytest.fixture
def runs(tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A translation model `mine` and a language model `lm` with its tokenizer; both have random weights."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path, "mine", TRANSLATION)
    write_lines("text", LINES)
    make_run(tmp_path, "lm", LANGUAGE_MODEL)
    return tmp_path


def test_scores_include_the_weighted_log_probability_of_the_language_model(
    runs: Path, console: Command
) -> None:
    translate = ("translate", "-m", "mine", "text", "--scores", "-q")
    plain = succeeded(console(*translate)).out
    assert succeeded(console(*translate, "--lm", "lm", "--search", "lm_weight=0")).out == plain
    fused = ("--lm", "lm", "--search", "lm_weight=0.7")
    printed = succeeded(console(*translate, *fused)).out.splitlines()
    assert [line.split("\t")[2] for line in printed] != [
        line.split("\t")[2] for line in plain.splitlines()
    ]
    found = [one for (one,) in Translator.load("mine", "cpu", lm="lm", lm_weight=0.7).search(LINES)]
    translated = [one.log_prob for one in Translator.load("mine", "cpu").rescore(LINES, found)]
    spoken = [
        one.log_prob for one in Translator.load("lm", "cpu").rescore([""] * len(found), found)
    ]
    sums = [one + 0.7 * other for one, other in zip(translated, spoken, strict=True)]
    assert [float(line.split("\t")[1]) for line in printed] == pytest.approx(sums, abs=1e-4)
    succeeded(console("translate", "-m", "mine", "text", "--json", *fused, "-o", "found.jsonl"))
    again = succeeded(
        console("rescore", "-m", "mine", "--source", "text", "--target", "found.jsonl", *fused)
    )
    assert [float(line.split("\t")[1]) for line in again.out.splitlines()] == pytest.approx(
        sums, abs=1e-4
    )
    assert "language model runs/lm, weight 0.7; scores include its contribution" in again.err


REFUSED = {
    "translate -m mine text": {
        "--lm mine": "rnnsearch cannot be combined with rnnsearch",
        "--search lm_weight=0.1": "specify its run, too (--lm RUN)",
    },
    "generate -m lm text": {"--lm lm": "transformer_lm cannot be combined with transformer_lm"},
    "rerank -m mine --channel no-run text": {
        # Before anything is translated.
        "--tune text --metrics rouge": "rouge1, rouge2, rougeL, rougeLsum; choose one of them",
        "--tune text --metrics blue": "unknown metric 'blue'",
        "--tune no-text": "no-text",
    },
    "rerank -m mine --channel mine text -q": {
        "--metrics chrf": "--metrics requires --tune",
        "--lm mine": "was trained for translation",
        "--lm lm --tune text --json": "remove --weights and --json",
        "--lm lm --tune short": "2 source lines but 1 reference lines",
        "--lm lm --weights negative.yaml": "negative.yaml",
        "--weights lm.yaml": "lm.yaml sets the language model's weight to 0.3",
    },
}


@pytest.mark.parametrize(("line", "message"), refusals(REFUSED))
@pytest.mark.usefixtures("runs")
def test_options_that_do_not_fit_the_models_are_refused(
    console: Command, line: str, message: str
) -> None:
    write_lines("short", ["one"])
    write_lines("negative.yaml", ["channel: -1"])
    write_lines("lm.yaml", ["channel: 0.5", "lm: 0.3"])
    refused(console(*line.split()), message)


def test_a_language_model_of_another_vocabulary_is_refused(runs: Path, console: Command) -> None:
    make_run(
        runs,
        "own",
        LANGUAGE_MODEL.replace("init_from: {tokenizer: runs/mine}", "tokenizer: {kind: char}"),
    )
    done = console("translate", "-m", "mine", "text", "--lm", "own")
    refused(
        done, "differs from the target vocabulary of the main model", "init_from: {tokenizer: RUN}"
    )


def test_the_tokenizer_of_another_run_is_used_unchanged(runs: Path, console: Command) -> None:
    succeeded(console("preprocess", "lm.yaml", "--run", "runs/new"))
    own, its = (Run(RunFolder(Path("runs", name))) for name in ("new", "mine"))
    assert own.load_tokenizers().tgt.vocabulary == its.load_tokenizers().tgt.vocabulary
    assert own.recipe.tokenizer == its.recipe.tokenizer
    assert "comes from" in succeeded(console("check", "lm.yaml", "--run", "runs/other")).out
    Path("other.yaml").write_text(LANGUAGE_MODEL + "tokenizer: {vocab_size: 50}\n")
    done = console("preprocess", "other.yaml", "--run", "runs/other")
    refused(done, "`tokenizer.vocab_size` is 50, but 8000")


def test_reranking_prints_the_best_of_its_candidates_and_tunes_its_weights(
    runs: Path, console: Command
) -> None:
    words = ["rerank", "-m", "mine", "--channel", "mine", "--lm", "lm", "text", "-q"]
    records = json_lines(succeeded(console(*words, "--n-best", "4", "--json")).out)
    several = [[record["best"], *record["others"]] for record in records]
    assert all(len(candidates) > 1 for candidates in several)
    for candidates in several:
        assert candidates == sorted(candidates, key=lambda one: -one["score"])
        for one in candidates:
            assert one["score"] == pytest.approx(
                one["direct"] + one["channel"] + one["lm"], abs=1e-9
            )
    write_lines("ref", [candidates[-1]["text"] for candidates in several])
    tuned = succeeded(console(*words, "--n-best", "4", "--tune", "ref", "-o", "weights.yaml"))
    assert "with the model alone" in tuned.err
    printed = succeeded(
        console(*words, "--n-best", "4", "--weights", "weights.yaml")
    ).out.splitlines()
    weights = load_yaml(Path("weights.yaml"))[0]
    for line, candidates in zip(printed, several, strict=True):
        sums = [
            one["direct"] + weights["channel"] * one["channel"] + weights["lm"] * one["lm"]
            for one in candidates
        ]
        assert line == candidates[sums.index(max(sums))]["text"]


def test_tuning_scores_text_as_the_recipe_does(runs: Path, console: Command) -> None:
    words = ("rerank", "-m", "mine", "--channel", "mine", "text", "-q", "--n-best", "1")
    words += ("--search", "min_length=6", "--search", "max_length=9")
    found = succeeded(console(*words)).out
    Path("upper").write_text(found.upper())
    assert found.upper() != found
    assert "bleu 100.00" not in succeeded(console(*words, "--tune", "upper")).err
    make_run(runs, "mine", TRANSLATION + "evaluation: {lowercase: true}\n")
    assert (
        "bleu 100.00 with these weights; 100.00 with the model alone"
        in succeeded(console(*words, "--tune", "upper")).err
    )
    # newer than the model that is found without -m
    os.utime(runs / "runs" / "lm" / "result.json", (2**32, 2**32))
    assert (
        "bleu 100.00 with these weights; 100.00 with the model alone"
        in succeeded(console(words[0], *words[3:], "--tune", "upper")).err
    )


def test_chosen_candidates_that_the_length_limit_cut_are_reported(
    runs: Path, console: Command
) -> None:
    words = ("rerank", "-m", "mine", "--channel", "mine", "text", "-q", "--n-best", "3")
    assert "length limit" not in succeeded(console(*words, "--search", "at_limit=end")).err
    cut = succeeded(console(*words, "--search", "max_length=1")).err
    assert "warning: 2 of 2 translations reached the length limit (line 1, line 2)" in cut


def test_samples_of_rerank_do_not_depend_on_the_lines_read_at_a_time(
    runs: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lines are read at a time, which a pipe decides."""
    write_lines("text", [*LINES[:1], "", *LINES[:1]])
    words = (
        "rerank",
        "-m",
        "mine",
        "--channel",
        "mine",
        "text",
        "-q",
        "--n-best",
        "3",
        "--search",
        "samples=3",
    )

    def drawn() -> list[list[str]]:
        records = json_lines(succeeded(console(*words, "--json")).out)
        return [
            sorted(one["text"] for one in (record["best"], *record["others"])) for record in records
        ]

    together = drawn()
    assert together[0] != together[2]
    monkeypatch.setitem(WINDOW, "cpu", 1)
    assert drawn() == together


@pytest.mark.usefixtures("runs")
def test_weights_may_name_a_language_model_of_weight_zero(console: Command) -> None:
    write_lines("weights.yaml", ["channel: 0.5", "lm: 0.0"])
    succeeded(
        console(
            "rerank", "-m", "mine", "--channel", "mine", "text", "-q", "--weights", "weights.yaml"
        )
    )
