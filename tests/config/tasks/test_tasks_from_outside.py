"""A task that is registered from outside gets its validation, its test and its command."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from nmtkit import config
from nmtkit.cli import cli
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS, Task
from nmtkit.core.errors import RecipeError
from nmtkit.data.text.blocks import Example
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.stages import train_stages
from nmtkit.inference import inputs
from nmtkit.inference.answering import answer_and_score, score_answers
from nmtkit.inference.translator import Translator
from nmtkit.metrics import Options, perplexity
from nmtkit.runs.run import Run
from nmtkit.training.events import Evaluated
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines
from tests.support.registries import keep_members

CPU = torch.device("cpu")
QUICK = [
    "model={kind: rnnsearch, hidden_size: 8}",
    "training.max_updates=2",
    "training.validate_every=2",
]
FIT = ["training.best_metric=perplexity"]


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is a translation under other names, and one whose models are judged by their fit alone."""
    keep_members(monkeypatch, TASKS)
    turning = replace(
        TRANSLATION, name="turning", command="turn", about="Turn sentences.", done="turned"
    )
    TASKS.register("turning")(turning)
    TASKS.register("fitting")(Task(name="fitting", columns=TRANSLATION.columns))


def begun(corpus: Path, folder: Path, *changes: str) -> Run:
    return begin_run(
        config.load(corpus / "tiny.yaml", [*QUICK, "search.max_length=8", *changes]), str(folder)
    )


@pytest.fixture
def turned(corpus: Path, tmp_path: Path) -> Path:
    """A run of the task `turning`."""
    run = begun(corpus, tmp_path / "turned", "task=turning")
    assert [*train_stages(run, CPU)]
    run.close()
    return tmp_path / "turned"


def test_the_command_of_a_task_answers_every_line_in_order(
    turned: Path, corpus: Path, console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inputs.WINDOW, "cpu", 7)  # so that the text is several windows
    lines = ["", *lines_in(corpus / "test.src")[:20], ""]
    text = write_lines(tmp_path / "text", lines)
    wanted = Translator.load(str(turned), "cpu", search_settings={"max_length": 5}).translate(lines)
    assert len({*wanted}) > 5
    how = ["-m", turned, "--device", "cpu", "--max-length", "5"]
    done = succeeded(console("turn", *how, text, "-o", tmp_path / "out"))
    assert lines_in(tmp_path / "out") == wanted
    assert "model" in done.err
    piped = succeeded(console("turn", *how, "--quiet", stdin=text.read_bytes()))
    assert piped.out.splitlines() == wanted


def test_help_lists_and_explains_the_command(console: Command) -> None:
    listed = succeeded(console("--help")).out
    using = listed[listed.index("Using a model:") : listed.index("Evaluation:")]
    assert "turn              Turn sentences." in using
    assert "turn" in cli.list_commands(click.Context(cli)), "completion knows it"
    assert "fitting" not in listed, "it has no command"
    shown = succeeded(console("turn", "--help")).out
    assert "Turn sentences." in shown
    assert "nmtkit turn FILE" in shown
    assert "--beam-size" in shown
    refused(console("trun"), "no such command 'trun'", "did you mean 'turn'?")


def test_a_run_of_another_task_is_refused_with_its_command(
    turned: Path, trained: Path, console: Command
) -> None:
    refused(console("translate", "-m", turned), "was trained for turning; use `nmtkit turn`")
    refused(console("turn", "-m", trained), "was trained for translation; use `nmtkit translate`")


def test_a_task_without_answers_is_judged_by_its_fit(
    corpus: Path, tmp_path: Path, console: Command
) -> None:
    run = begun(
        corpus,
        tmp_path / "run",
        "task=fitting",
        *FIT,
        f"data.test={{src: {corpus}/valid.src, tgt: {corpus}/valid.tgt}}",
    )
    (evaluated,) = (event for event in train_stages(run, CPU) if isinstance(event, Evaluated))
    assert evaluated.metrics.keys() == {"loss", "perplexity", "seconds"}
    result = evaluate_test_set(run, CPU)
    run.close()
    assert result is not None
    assert result.answers.texts == []
    assert [(score.name, score.value) for score in result.scores] == [
        (name, pytest.approx(evaluated.metrics[name])) for name in ("loss", "perplexity")
    ], "the test set is the validation set"
    written = json.loads(run.folder.test_scores.read_text(encoding="utf-8"))["scores"]
    assert [one["value"] for one in written] == [score.value for score in result.scores]
    assert not run.folder.test_output.exists()
    # The same figure from the log-probabilities of the given targets, added up one by one.
    pairs = [lines_in(corpus / f"valid.{side}") for side in ("src", "tgt")]
    rescored = Translator.load(str(tmp_path / "run"), "cpu", "last").rescore(*pairs)
    tokens = sum(len(one.token_log_probs) for one in rescored)
    total = sum(one.log_prob for one in rescored)
    assert result.scores[1].value == pytest.approx(perplexity(total, tokens).value, rel=1e-5)
    refused(
        console("translate", "-m", tmp_path / "run"),
        "was trained for fitting; use a different run (-m RUN)",
    )
    texts = ["--source", corpus / "valid.src", "--ref", corpus / "valid.tgt"]
    refused(
        console("evaluate", tmp_path / "run", *texts),
        "evaluate requires source texts and references",
        "the task fitting does not have",
    )


def test_a_recipe_of_a_task_without_answers_names_a_figure_of_fit(corpus: Path) -> None:
    with pytest.raises(
        RecipeError,
        match="validation of fitting does not measure 'bleu'; valid names: loss, perplexity",
    ):
        config.load(corpus / "tiny.yaml", ["task=fitting", "training.best_metric=bleu"])
    assert config.load(corpus / "tiny.yaml", ["task=fitting"]).training.best_metric == "perplexity"
    with pytest.raises(
        RecipeError,
        match=r"`evaluation.metrics`: these metrics compare outputs .* fitting has no references",
    ):
        config.load(corpus / "tiny.yaml", ["task=fitting", "evaluation.metrics=[bleu]", *FIT])
    assert config.load(corpus / "tiny.yaml", ["task=fitting", *FIT]).test_metrics == []


def test_the_whole_line_is_one_label_where_the_task_says_so() -> None:
    task = Task(
        name="naming",
        columns=(
            *TRANSLATION.columns,
            replace(TRANSLATION.columns[0], name="labels", type="label"),
        ),
    )
    task = replace(task, references="labels")
    examples = [Example("a", None, 1, labels="New York"), Example("b", None, 2, labels="Rome")]
    (score,) = score_answers(task, ["New Haven", "Rome"], examples, ["accuracy"], Options())
    assert score.value == 50
    several = replace(task, columns=(replace(task.columns[-1], type="labels"),))
    (score,) = score_answers(several, ["New Haven", "Rome"], examples, ["accuracy"], Options())
    assert score.value == pytest.approx(100 * 2 / 3)
    assert (
        score_answers(
            task, ["a", "b"], [examples[0], Example("b", None, 2)], ["accuracy"], Options()
        )
        == []
    )


def test_a_task_may_find_its_answers_in_its_own_way(trained: Path) -> None:
    def spelled_backwards(system: Any, examples: Sequence[Any]) -> list[str]:
        return [
            translation[::-1]
            for translation in system.translate([example.src for example in examples])
        ]

    system = Translator.load(str(trained), "cpu")
    examples = [Example(line, line.upper(), 1) for line in ("ba zu fo", "du ba")]
    written = answer_and_score(TRANSLATION, system, examples, ["chrf"], Options())
    backwards = answer_and_score(
        replace(TRANSLATION, predict=spelled_backwards), system, examples, ["chrf"], Options()
    )
    assert (
        backwards.answers.texts
        == [text[::-1] for text in written.answers.texts]
        != written.answers.texts
    )
    assert [score.name for score in backwards.scores] == ["chrF2"]
