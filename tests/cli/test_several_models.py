"""Several `-m`: an ensemble in every command that opens a run; and what is drawn, by option."""

import re
import shutil
from pathlib import Path

import pytest
from commands import Command, Finished, json_lines, lines_in, refused, succeeded, write_lines
from learned import learn_tokenizers
from untrained_runs import LINES, TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.data.text.blocks import Example
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun, build_model
from nmtkit.training.checkpoints.weights import get_weights, save_weights


@pytest.fixture
def pair(trained: Path, corpus: Path, tmp_path: Path) -> list[object]:
    """Two runs, one the other's copy, and files of a few pairs."""
    shutil.copytree(trained, tmp_path / "runs" / "copy")
    for side in ("src", "tgt"):
        write_lines(tmp_path / f"few.{side}", lines_in(corpus / f"test.{side}")[:4])
    return ["-m", trained, "-m", "copy", "-q"]


def test_a_model_with_its_copy_is_itself(pair: list[object], console: Command) -> None:
    alone = pair[:2]
    files = ("--source", "few.src", "--target", "few.tgt")
    for words in (["translate", "few.src", "--scores"], ["rescore", *files], ["align", *files]):
        one, both = succeeded(console(*words, *alone)), succeeded(console(*words, *pair[:4]))
        assert both.err.count("in an ensemble") == 2
        for field, other in zip(re.split("[\t\n]", one.out), re.split("[\t\n]", both.out), strict=True):
            same = field == other if "-" not in field[:1] else abs(float(field) - float(other)) < 1e-5
            assert same, (field, other)
    succeeded(console("plot-attention", *pair[:4], lines_in(Path("few.src"))[0], "-o", "both.svg"))
    assert "tiny" in Path("both.svg").read_text()
    done = succeeded(console("evaluate", *pair[:4], "--source", "few.src", "--ref", "few.tgt"))
    assert " + runs/copy  " in done.out


def test_an_ensemble_does_not_read_all_its_weights_from_one_file(pair: list[object], console: Command) -> None:
    file = SavedRun(RunFolder(Path("runs/copy"))).weights("best")
    refused(console("translate", *pair, "--checkpoint", file, "few.src"), f"{file}: one file would be the weights of")
    succeeded(console("translate", *pair[:4], "--checkpoint", "best", "few.src"))


def test_workers_take_an_ensemble(trained: Path, pair: list[object], corpus: Path) -> None:
    lines = lines_in(corpus / "test.src")
    both = Translator.load([str(trained), str(trained)], ensemble="log-probabilities", ensemble_weights=[3.0, 1.0])
    shared = Translator.load([str(trained)] * 2, workers=2)
    assert shared.translate(lines) == both.translate(lines) == Translator.load(str(trained)).translate(lines)


def test_an_ensemble_has_one_vocabulary(trained: Path, pair: list[object], console: Command) -> None:
    recipe, other = SavedRun(RunFolder(trained)).recipe, RunFolder(Path("runs/other"))
    shutil.copytree("runs/copy", other.path)
    tokenizers = learn_tokenizers(recipe.tokenizer, [Example("some other words", "and others", 1)])
    tokenizers.save(other.vocabulary)
    save_weights(other.average, get_weights(build_model(recipe, tokenizers)), tokenizers.checksum)
    done = console("translate", "-m", "copy", "-m", "other", "few.src")
    refused(done, "runs/copy and runs/other have different vocabularies")


def texts_of(done: Finished) -> list[str]:
    return [line.split("\t")[-1] for line in done.out.splitlines()]


def test_samples_are_all_printed_and_risk_chooses_one(trained: Path, pair: list[object], console: Command) -> None:
    alone = ("-m", trained, "-q", "few.src")
    draw = ["translate", *alone, "--samples", "3", "--temperature", "2", "--seed"]
    drawn = console(*draw, "5")
    numbers = [line.split("\t")[0] for line in drawn.out.splitlines()]
    assert numbers == [str(number) for number in (1, 2, 3, 4) for _ in range(3)]
    again = console(*draw, "5", "--batch-tokens", "9")
    assert texts_of(again) == texts_of(drawn)  # log-probabilities differ in their last digit
    assert texts_of(console(*draw, "6")) != texts_of(drawn)
    best = console("translate", *alone, "--samples", "8", "--mbr", "bleu", "--json")
    chosen = [record["best"] for record in json_lines(best.out)]
    assert len(chosen) == 4
    assert all(0 < one["score"] <= 100 and one["log_prob"] < 0 for one in chosen)
    assert len(console("translate", *alone, "--mbr", "chrf").out.splitlines()) == 4


def test_a_mean_is_of_several_models(tmp_path: Path, console: Command) -> None:
    """And not of the one that reads the other way beside them."""
    shutil.copytree(make_run(tmp_path, "mine", TRANSLATION), "runs/copy")
    write_lines("few", LINES)
    how = ["--search", "ensemble=log-probabilities"]
    refused(console("translate", "-m", "mine", *how, "few"), "ensemble and ensemble_weights are of several runs")
    both = ["-m", "mine", "-m", "copy", *how]
    succeeded(console("rerank", *both, "--channel", "mine", "--n-best", "2", "few"))
    succeeded(console("align", *both, "--reverse-model", "mine", "--source", "few", "--target", "few"))


def test_samples_and_the_risk_that_the_recipe_chooses_by(console: Command, tmp_path: Path) -> None:
    run = make_run(tmp_path, "mine", TRANSLATION.replace("search: {", "search: {mbr: bleu, "))
    draw = ["translate", "-m", run, "--samples", 3]
    done = console(*draw, stdin="The dog sees.\n")
    refused(done, "search.mbr, bleu, chooses one of the samples", "--mbr bleu", "--mbr none")
    assert len(succeeded(console(*draw, "--mbr", "bleu", stdin="The dog sees.\n")).out.splitlines()) == 1
    assert len(succeeded(console(*draw, "--mbr", "none", stdin="The dog sees.\n")).out.splitlines()) == 3
