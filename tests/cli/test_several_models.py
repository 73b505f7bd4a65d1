"""Several `-m`: an ensemble in every command that opens a run; samples and minimum Bayes risk by option."""

import re
import shutil
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.data.text.blocks import Example
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run, build_model
from nmtkit.training.checkpoints.weights import get_weights, save_weights
from tests.cli.untrained_runs import LINES, TRANSLATION, make_run
from tests.support.commands import (
    Command,
    Finished,
    json_lines,
    lines_in,
    refused,
    succeeded,
    write_lines,
)
from tests.support.learned_tokenizers import learn_tokenizers


@pytest.fixture
def pair(trained: Path, corpus: Path, tmp_path: Path) -> list[object]:
    """Two runs, one the other's copy, and files of a few pairs."""
    shutil.copytree(trained, tmp_path / "runs" / "copy")
    for side in ("src", "tgt"):
        write_lines(tmp_path / f"few.{side}", lines_in(corpus / f"test.{side}")[:4])
    return ["-m", trained, "-m", "copy", "-q"]


@pytest.mark.parametrize(
    "line",
    [
        "translate few.src --scores",
        "rescore --source few.src --target few.tgt",
        "align --source few.src --target few.tgt",
    ],
)
def test_an_ensemble_of_a_model_and_its_copy_gives_the_same(
    pair: list[object], console: Command, line: str
) -> None:
    single = succeeded(console(*line.split(), *pair[:2]))
    ensemble = succeeded(console(*line.split(), *pair[:4]))
    assert ensemble.err.count("in an ensemble") == 2
    for field, other in zip(
        re.split("[\t\n]", single.out), re.split("[\t\n]", ensemble.out), strict=True
    ):
        same = field == other if "-" not in field[:1] else abs(float(field) - float(other)) < 1e-5
        assert same, (field, other)


def test_plots_and_scores_of_an_ensemble_name_its_models(
    pair: list[object], console: Command
) -> None:
    succeeded(console("plot-attention", *pair[:4], lines_in(Path("few.src"))[0], "-o", "both.svg"))
    assert "tiny" in Path("both.svg").read_text()
    done = succeeded(console("evaluate", *pair[:4], "--source", "few.src", "--ref", "few.tgt"))
    assert " + runs/copy  " in done.out


def test_an_ensemble_refuses_one_file_of_weights(pair: list[object], console: Command) -> None:
    file = Run(RunFolder(Path("runs/copy"))).weights("best")
    refused(
        console("translate", *pair, "--checkpoint", file, "few.src"),
        f"{file}: a single file cannot contain the weights of",
    )
    succeeded(console("translate", *pair[:4], "--checkpoint", "best", "few.src"))


def test_a_model_twice_translates_as_once(trained: Path, corpus: Path) -> None:
    lines = lines_in(corpus / "test.src")
    both = Translator.load(
        [str(trained), str(trained)], ensemble="log-probabilities", ensemble_weights=[3.0, 1.0]
    )
    assert both.translate(lines) == Translator.load(str(trained)).translate(lines)


@pytest.mark.slow
def test_workers_translate_with_an_ensemble(trained: Path, corpus: Path) -> None:
    lines = lines_in(corpus / "test.src")
    shared = Translator.load([str(trained)] * 2, workers=2)
    assert shared.translate(lines) == Translator.load(str(trained)).translate(lines)


def test_an_ensemble_of_different_vocabularies_is_refused(
    trained: Path, pair: list[object], console: Command
) -> None:
    recipe, other = Run(RunFolder(trained)).recipe, RunFolder(Path("runs/other"))
    shutil.copytree("runs/copy", other.path)
    tokenizers = learn_tokenizers(recipe.tokenizer, [Example("some other words", "and others", 1)])
    tokenizers.save(other.vocabulary)
    save_weights(other.average, get_weights(build_model(recipe, tokenizers)), tokenizers.checksum)
    done = console("translate", "-m", "copy", "-m", "other", "few.src")
    refused(done, "runs/copy and runs/other have different vocabularies")


def texts_of(done: Finished) -> list[str]:
    return [line.split("\t")[-1] for line in done.out.splitlines()]


def test_samples_are_all_printed_and_depend_on_the_seed(
    trained: Path, pair: list[object], console: Command
) -> None:
    draw = [
        "translate",
        "-m",
        trained,
        "-q",
        "few.src",
        "--samples",
        "3",
        "--temperature",
        "2",
        "--seed",
    ]
    drawn = console(*draw, "5")
    numbers = [line.split("\t")[0] for line in drawn.out.splitlines()]
    assert numbers == ["1"] * 3 + ["2"] * 3 + ["3"] * 3 + ["4"] * 3
    again = console(*draw, "5", "--batch-tokens", "9")
    assert texts_of(again) == texts_of(drawn)  # log-probabilities differ in their last digit
    assert texts_of(console(*draw, "6")) != texts_of(drawn)


def test_minimum_bayes_risk_chooses_one_sample(
    trained: Path, pair: list[object], console: Command
) -> None:
    alone = ("-m", trained, "-q", "few.src")
    best = console("translate", *alone, "--samples", "8", "--mbr", "bleu", "--json")
    chosen = [record["best"] for record in json_lines(best.out)]
    assert len(chosen) == 4
    assert all(0 < one["score"] <= 100 and one["log_prob"] < 0 for one in chosen)
    assert len(console("translate", *alone, "--mbr", "chrf").out.splitlines()) == 4


ENSEMBLE = "--search ensemble=log-probabilities"


@pytest.mark.parametrize(
    "line",
    [
        "rerank -m mine -m copy --channel mine --n-best 2 few",
        "align -m mine -m copy --reverse-model mine --source few --target few",
    ],
)
def test_the_kind_of_mean_is_not_for_the_model_of_the_other_direction(
    tmp_path: Path, console: Command, line: str
) -> None:
    shutil.copytree(make_run(tmp_path, "mine", TRANSLATION), "runs/copy")
    write_lines("few", LINES)
    succeeded(console(*line.split(), *ENSEMBLE.split()))


def test_the_kind_of_mean_is_refused_for_one_model(tmp_path: Path, console: Command) -> None:
    make_run(tmp_path, "mine", TRANSLATION)
    write_lines("few", LINES)
    done = console("translate", "-m", "mine", *ENSEMBLE.split(), "few")
    refused(done, "`ensemble` and `ensemble_weights` apply only to more than one run")


def test_a_recipe_with_minimum_bayes_risk_does_not_print_samples_unless_told(
    console: Command, tmp_path: Path
) -> None:
    run = make_run(
        tmp_path,
        "mine",
        TRANSLATION.replace("search: {beam_size: 2, ", "search: {kind: mbr, metric: bleu, "),
    )
    draw = ["translate", "-m", run, "--samples", 3]
    done = console(*draw, stdin="The dog sees.\n")
    refused(done, "the recipe's `search.kind: mbr` chooses one of them", "--mbr bleu", "--mbr none")
    assert (
        len(succeeded(console(*draw, "--mbr", "bleu", stdin="The dog sees.\n")).out.splitlines())
        == 1
    )
    assert (
        len(succeeded(console(*draw, "--mbr", "none", stdin="The dog sees.\n")).out.splitlines())
        == 3
    )
