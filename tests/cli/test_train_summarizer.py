"""`train`, `recipe check` and `recipe explain` for a summarizer that trains in stages."""

import json
import random
from pathlib import Path

import pytest

from nmtkit.cli.terminal import TrainingDisplay
from nmtkit.cli.terminal.progress import show_event
from nmtkit.config import load
from nmtkit.config.tasks.builtin import SUMMARIZATION
from nmtkit.experiment.stages import StageStarted, more_time_advice
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.events import Stopped
from tests.support.command_cases import Case, by_name, run_case
from tests.support.commands import Command, logged, refused, succeeded, write_lines, write_pairs

RECIPE = """\
task: summarization
data:
  train: {stories: stories, story_lists: train.txt}
  valid: {jsonl: valid.jsonl, src_field: article, tgt_field: summary}
  test: {src: test.src, tgt: test.tgt}
  max_length: 10
  over_long: truncate
tokenizer: {kind: word, vocab_size: 14}
model: {kind: pointer_generator, embedding_size: 6, hidden_size: 6, attention_size: 6}
training: {lr: 0.01, max_updates: 2, log_every: 1, best_metric: rouge2}
search: {beam_size: 2, max_length: 8}
stages:
  - name: words
  - name: coverage
    model: {coverage: true}
    training: {objectives: {coverage_weight: 1.0}, max_updates: 1}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training text as stories, validation as JSON, test as line pairs."""
    folder = tmp_path_factory.mktemp("three-forms")
    draw = random.Random(3)
    pairs = []
    for _ in range(30):
        words = [f"w{draw.randrange(40)}" for _ in range(draw.randrange(4, 14))]
        pairs.append((" ".join(words), " ".join(words[:3])))
    for number, (article, summary) in enumerate(pairs[:20]):
        write_lines(
            folder / "stories" / f"s{number}.story", [article, "", "@highlight", "", summary]
        )
    write_lines(folder / "train.txt", [f"s{number}" for number in range(20)])
    valid = [
        json.dumps({"article": article, "summary": summary}) for article, summary in pairs[20:25]
    ]
    write_lines(folder / "valid.jsonl", valid)
    write_pairs(folder, "test", pairs[25:])
    (folder / "news.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


def test_training_reports_stages_validations_and_the_test_set(
    corpus: Path, tmp_path: Path, console: Command
) -> None:
    folder = tmp_path / "run"
    done = succeeded(console("train", corpus / "news.yaml", "--run", folder, "--device", "cpu"))
    said = done.err.splitlines()
    over = sum(len(line.split()) > 10 for line in (corpus / "test.src").read_text().splitlines())
    assert over
    order = [
        "stage words starts (1 of 2)",
        "validation at update 2: rouge1 ",
        "stage words ended after update 2 (max_updates)",
        "stage coverage starts (2 of 2) from ",
        "finished after update 3 (max_updates)",
        "summarized the test set: 5 lines",
        f"{over} test sources were truncated",
    ]
    places = [next(n for n, line in enumerate(said) if line.startswith(start)) for start in order]
    assert places == sorted(places)
    assert any(
        "articles are longer than 10 tokens and are truncated to 10" in line for line in said
    )
    scores = [line.split()[0] for line in done.out.splitlines() if line.startswith("ROUGE")]
    assert scores[:4] == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"]
    assert scores[4].startswith("ROUGE-1|nrefs:1|")
    assert "summary " in done.out
    scores = json.loads((folder / "test.json").read_text())["scores"]
    assert [score["name"] for score in scores][:2] == ["ROUGE-1", "ROUGE-2"]
    assert (folder / "test.out").read_text().count("\n") == 5
    events = logged(folder)
    assert {
        f"valid_{name}" for name in (*SUMMARIZATION.validation_metrics, "loss", "perplexity")
    } <= events[-1].keys()

    again = succeeded(
        console("train", corpus / "news.yaml", "--run", folder, "--resume", "--device", "cpu")
    )
    assert "stage coverage resumes (2 of 2)" in again.err
    assert logged(folder) == events

    refused(
        console("average", "-m", folder),
        "2-coverage: at least 2 checkpoints are required, but 1 was kept",
    )
    for which, stage in (("words", "1-words"), ("best", "2-coverage")):
        done = console(
            "summarize", "-m", folder, "--checkpoint", which, "--device", "cpu", stdin="w1 w2 w3\n"
        )
        assert f", {stage}/weights-" in succeeded(done).err


@pytest.fixture
def unwrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of a table is wrapped, however long the paths are."""
    monkeypatch.setenv("COLUMNS", "300")


COMMANDS = {
    "recipe check": Case(
        "recipe check NEWS",
        out=[
            "stage 2  ",
            "coverage: model.coverage True, training.objectives.coverage_weight 1.0, training.max_updates 1",
        ],
    ),
    "recipe explain of all stages": Case(
        "recipe explain stages --recipe NEWS",
        out=["stages.coverage.training.max_updates 1 2 (before)", "Maximum number of updates"],
    ),
    "recipe explain of a key": Case("recipe explain stages.coverage.model.coverage --recipe NEWS"),
    "recipe show": Case(
        "recipe show NEWS --resolved --set stages.coverage.training.lr=0.5",
        out=["- name: coverage", "lr: 0.5"],
    ),
}


@pytest.mark.usefixtures("unwrapped")
@pytest.mark.parametrize("case", by_name(COMMANDS))
def test_commands_show_stages(corpus: Path, console: Command, case: Case) -> None:
    run_case(console, case, {"NEWS": corpus / "news.yaml"})


def test_a_wrong_key_of_a_stage_is_named(corpus: Path, console: Command) -> None:
    key = "stages.coverage.training.objectives.coverage_wieght"
    wrong = console("recipe", "check", corpus / "news.yaml", "--set", f"{key}=1")
    refused(wrong, key, "did you mean 'coverage_weight'")


def advice(run: Run, updates: int, last_score: float, monkeypatch: pytest.MonkeyPatch) -> str:
    """The advice after a training that six minutes ended."""
    facts = {"validations": [[1, 1.0], [2, last_score]], "update": updates}
    monkeypatch.setattr(CheckpointManager, "read_metadata", lambda _: facts)
    return more_time_advice(run, Stopped("max_minutes", updates, 0.0, 0.1, 360.0)) or ""


def test_more_time_is_advised_while_the_score_improves(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ["stages=[]", "training.max_updates=100", "training.max_minutes=6"]
    run = Run(RunFolder(tmp_path))
    run.recipe = load(corpus / "news.yaml", limits)
    assert advice(run, 7, 0.5, monkeypatch) == ""
    assert "--resume and a larger training.max_minutes" in advice(run, 7, 2.0, monkeypatch)
    assert "--resume" in advice(run, 60, 2.0, monkeypatch)
    decaying = ["training.schedule={kind: linear, updates: 60}"]
    run.recipe = load(corpus / "news.yaml", [*limits, *decaying])
    assert "a larger training.schedule.updates" in advice(run, 60, 2.0, monkeypatch)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        pytest.param([], "training.max_minutes", id="of the recipe"),
        pytest.param(
            ["stages.coverage.training.max_minutes=2"], "stages.coverage.", id="of the stage"
        ),
    ],
)
def test_the_advice_names_the_limit_of_the_last_stage(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: list[str], key: str
) -> None:
    """The key of the recipe changes only the earlier stages, which are over."""
    run = Run(RunFolder(tmp_path))
    run.recipe = load(corpus / "news.yaml", ["training.max_minutes=6", *limits])
    assert f"a larger {key}" in advice(run, 7, 2.0, monkeypatch)


@pytest.mark.parametrize(("name", "prefix"), [("words", ""), ("coverage", "stages.coverage.")])
def test_a_schedule_that_is_cut_short_names_the_key_of_its_stage(
    corpus: Path, capsys: pytest.CaptureFixture[str], name: str, prefix: str
) -> None:
    """The key of the recipe changes only the stages that do not set it."""
    news = load(corpus / "news.yaml")
    stopped = Stopped("max_updates", 1, 0.01, 0.01, 1.0, scheduled=0.5)
    show_event(TrainingDisplay(), stopped, news, StageStarted(name, 0, 0.0, news.training))
    message = capsys.readouterr().err
    assert f"Raise {prefix}training.max_updates, or" in message
    assert "(training.schedule.over: budget" in message


def test_a_schedule_over_the_budget_that_is_cut_short_is_not_advised_to_be_one(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = "training.schedule={kind: linear, over: budget}"
    news = load(corpus / "news.yaml", [budget])
    stopped = Stopped("max_minutes", 31, 0.00015, 0.001, 51, scheduled=51 / 60)
    show_event(TrainingDisplay(), stopped, news, StageStarted("words", 0, 0.0, news.training))
    message = capsys.readouterr().err
    assert "85% of the learning rate's schedule" in message
    assert message.endswith("Raise training.max_minutes\n")
