"""A summarizer trained in stages: lengthening text, coverage, reinforcement; stopped anywhere and taken up again."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from nmtkit import config
from nmtkit.config.tasks.builtin import SUMMARIZATION
from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.experiment.checks import require_fitting_stages, require_same_recipe
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.stages import StageStarted, train_stages
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training import trainer as trainers
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import read_weights
from nmtkit.training.events import Evaluated, Event, Saved, Step, Stopped
from tests.support.begun_runs import begin_run
from tests.support.cases import daily
from tests.support.compare_runs import differences, logged_without_times

CPU = torch.device("cpu")
RECIPE = """\
task: summarization
data:
  train: {jsonl: train.jsonl, src_field: article, tgt_field: summary}
  valid: {jsonl: valid.jsonl, src_field: article, tgt_field: summary}
  max_length: 12
  max_tgt_length: 6
  over_long: truncate
tokenizer: {kind: word, vocab_size: 12}
model: {kind: pointer_generator, embedding_size: 6, hidden_size: 6, attention_size: 6, dropout: 0.1}
batch: {batch_size: 8}
training: {lr: 0.01, max_updates: 5, validate_every: 4, save_every: 3, log_every: 1, best_metric: rougeL}
evaluation: {max_sentences: 4}
search: {beam_size: 2, max_length: 8}
stages:
  - name: short
    data: {max_length: 6, max_tgt_length: 3}
  - name: coverage
    model: {coverage: true}
    training: {objectives: {coverage_weight: 1.0}}
  - name: reward
    model: {coverage: true}
    training: {optimizer: sgd, objectives: {reinforce: {max_length: 6}}, max_updates: 4}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles of three to twenty words, of which few are known; the summary is the first five."""
    folder = tmp_path_factory.mktemp("staged")
    draw = random.Random(5)
    for name, count in (("train", 60), ("valid", 8)):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(count):
                words = [
                    f"w{min(int(draw.expovariate(0.1)), 99)}" for _ in range(draw.randrange(3, 20))
                ]
                record = {"article": " ".join(words), "summary": " ".join(words[:5])}
                file.write(json.dumps(record) + "\n")
    (folder / "staged.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


AnyEvent = Event | StageStarted


class Straight(NamedTuple):
    """A training without a stop: its folder, its events and its messages."""

    folder: Path
    events: list[AnyEvent]
    notes: list[str]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def begin(corpus: Path, folder: Path, *changes: str, resume: bool = False) -> Run:
    return begin_run(config.load(corpus / "staged.yaml", changes), str(folder), resume=resume)


def train(corpus: Path, folder: Path, *changes: str, resume: bool = False) -> Straight:
    notes: list[str] = []
    events = list(
        train_stages(begin(corpus, folder, *changes, resume=resume), CPU, notes.append, resume)
    )
    return Straight(folder, events, notes)


def train_until(
    corpus: Path, folder: Path, is_last: Callable[[AnyEvent], bool], *changes: str
) -> None:
    """Nothing is saved after that event, as if the process had been killed."""
    events = train_stages(begin(corpus, folder, *changes), CPU)
    while not is_last(next(events)):
        pass
    events.close()


def ends_of(events: list[AnyEvent]) -> list[int]:
    return [event.update for event in events if isinstance(event, Stopped)]


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return train(corpus, tmp_path_factory.mktemp("straight") / "run")


def assert_same_run(run: Path, expected: Path) -> None:
    assert len([*(expected / "checkpoints").glob("*/*.safetensors")]) == 8
    assert differences(run, expected) == []
    assert json.loads((run / "result.json").read_text())["updates"] == 14


def test_stages_follow_each_other(straight: Straight) -> None:
    folder, events, _ = straight
    begun = [event for event in events if isinstance(event, StageStarted)]
    names = ["short", "coverage", "reward"]
    assert [(one.name, one.updates_before) for one in begun] == list(
        zip(names, [0, 5, 10], strict=True)
    )
    assert begun[2].training.max_updates == 4
    assert ends_of(events) == [5, 10, 14]
    assert [event.update for event in events if isinstance(event, Step)] == list(range(1, 15))
    seconds = [event.seconds for event in events if isinstance(event, Step | Evaluated)]
    assert seconds == sorted(seconds)

    logged = logged_without_times(folder)
    assert [record["update"] for record in logged if record["event"] == "step"] == list(
        range(1, 15)
    )
    validations = [record for record in logged if record["event"] == "evaluated"]
    assert [record["stage"] for record in validations] == [
        "short",
        "short",
        "coverage",
        "coverage",
        "reward",
    ]
    metrics = (*SUMMARIZATION.validation_metrics, "loss", "perplexity")
    assert {f"valid_{name}" for name in metrics} <= validations[-1].keys()
    assert {record["stage"] for record in logged if "coverage_loss" in record} == {"coverage"}
    assert {
        record["stage"] for record in logged if {"sampled_reward", "greedy_reward"} <= record.keys()
    } == {"reward"}

    result = json.loads((folder / "result.json").read_text())
    updates = [(stage["name"], stage["updates"]) for stage in result["stages"]]
    assert updates == list(zip(names, (5, 5, 4), strict=True))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "1-short",
        "2-coverage",
        "3-reward",
    ]


def test_what_is_said_of_the_stages(corpus: Path, straight: Straight) -> None:
    assert any(
        note.startswith("valid: ") and note.endswith("are truncated to 6")
        for note in straight.notes
    )
    notes = [note for note in straight.notes if not note.startswith("valid: ")]
    lengths = [len(record["article"].split()) for record in lines_of(corpus / "train.jsonl")]
    assert notes[0] == "stage short starts (1 of 3)"
    # those that were cut when they were stored are counted too
    for note, limit in ((notes[1], 6), (notes[4], 12)):
        over = sum(length > limit for length in lengths)
        assert (
            note
            == f"train: {over} of 60 articles are longer than {limit} tokens and are truncated to {limit}"
        )
    assert "summaries are longer than 3 tokens and are truncated to 3" in notes[2]
    start = "stage coverage starts (2 of 3) from the best checkpoint of stage short (update"
    assert notes[3].startswith(start)
    assert (
        "newly initialized weights: attention.score.coverage; the optimizer adam keeps its state"
        in notes[3]
    )
    assert notes[5].endswith("; the optimizer sgd starts without the state of adam")
    assert "new" not in notes[5]


@pytest.mark.parametrize(
    ("kind", "update"), daily([(Step, 7), (Stopped, 5), (Stopped, 10), (Step, 2), (Step, 12)], 1)
)
def test_killed_within_a_stage_or_at_its_end_and_resumed(
    corpus: Path, straight: Straight, tmp_path: Path, kind: type[Step] | type[Stopped], update: int
) -> None:
    train_until(
        corpus, tmp_path / "run", lambda event: isinstance(event, kind) and event.update == update
    )
    train(corpus, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", straight.folder)


@pytest.mark.slow
def test_stopped_by_a_signal_and_resumed(corpus: Path, straight: Straight, tmp_path: Path) -> None:
    seen: list[AnyEvent] = []
    run = begin(corpus, tmp_path / "run")
    for event in train_stages(
        run, CPU, stop=lambda: any(isinstance(one, Step) and one.update == 8 for one in seen)
    ):
        seen.append(event)
    assert isinstance(seen[-1], Stopped)
    assert (seen[-1].reason, seen[-1].update) == ("interrupted", 8)
    assert not (tmp_path / "run/result.json").exists()
    train(corpus, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", straight.folder)


def test_a_stage_begins_with_the_best_weights_and_the_last_optimizer(
    corpus: Path, tmp_path: Path
) -> None:
    # The state of the second stage is saved before its first update.
    train_until(
        corpus,
        tmp_path / "run",
        lambda event: isinstance(event, Saved) and "2-coverage" in event.path,
    )
    first, second = (
        CheckpointManager(tmp_path / "run/checkpoints" / name) for name in ("1-short", "2-coverage")
    )
    before, after = first.load_last()[0], second.load_last()[0]
    best = read_weights(first.best()[0])
    for name, tensor in best.items():
        assert torch.equal(after[f"weights/{name}"], tensor), name
    kept = {name: tensor for name, tensor in before.items() if name.startswith("optimizer/")}
    assert kept
    # coverage has no past
    assert kept.keys() == {name for name in after if name.startswith("optimizer/")}
    for name, tensor in kept.items():
        assert torch.equal(after[name], tensor), name


def test_the_newest_stage_is_opened_with_its_own_settings(straight: Straight) -> None:
    run = Run(RunFolder(straight.folder))
    for which, folder, coverage, length in (
        ("auto", "3-reward", True, 12),
        ("short", "1-short", False, 6),
    ):
        model, _, opened = run.open_model(CPU, which)
        assert run.weights(which).parent.name == folder
        assert (model.config.model_dump()["coverage"], opened.data.max_length) == (coverage, length)
    file = next((straight.folder / "checkpoints/2-coverage").glob("weights-*"))
    assert run.open_model(CPU, str(file))[2].training.objectives == {"coverage_weight": 1.0}
    with pytest.raises(
        CheckpointError, match="the checkpoints are best, last, short, coverage, reward"
    ):
        run.weights("shrot")


def test_while_a_stage_has_no_weights_the_one_before_is_opened(
    corpus: Path, tmp_path: Path
) -> None:
    train_until(
        corpus, tmp_path / "run", lambda event: isinstance(event, Step) and event.update == 6
    )
    assert Run(RunFolder(tmp_path / "run")).weights().parent.name == "1-short"


def test_only_limits_of_training_may_change_when_a_run_goes_on(
    corpus: Path, straight: Straight
) -> None:
    longer = config.load(
        corpus / "staged.yaml", ["stages.reward.training.max_updates=9", "name=other"]
    )
    require_same_recipe(Run.open(str(straight.folder)), longer)
    other = config.load(
        corpus / "staged.yaml", ["stages.coverage.training.objectives.coverage_weight=2.0"]
    )
    with pytest.raises(
        RecipeError,
        match=r"`stages.coverage.training.objectives.coverage_weight` was 1.0 and is 2.0",
    ):
        require_same_recipe(Run.open(str(straight.folder)), other)


def test_new_limits_of_a_stage_that_is_over_are_told_to_change_nothing(
    corpus: Path, straight: Straight
) -> None:
    changes = [f"stages.{stage}.training.max_updates=9" for stage in ("short", "reward")]
    notes: list[str] = []
    recipe = config.load(corpus / "staged.yaml", changes)
    begin_run(recipe, str(straight.folder), resume=True, notify=notes.append).close()
    of_stages = [note for note in notes if note.startswith("stage ")]
    assert of_stages == ["stage short has ended, so a new max_updates does not affect it"]


def test_a_stage_cannot_change_sizes(corpus: Path) -> None:
    changed = config.load(corpus / "staged.yaml", ["stages.coverage.model.hidden_size=7"])
    with pytest.raises(
        RecipeError, match="stage coverage: the `model` settings change the shape of"
    ):
        require_fitting_stages(changed)


@pytest.mark.parametrize("cut", [4, 300])
def test_validation_reads_articles_as_the_stage_does(
    corpus: Path, tmp_path: Path, cut: int
) -> None:
    """What lies behind the limit of the stage cannot change the validation."""
    changes = [f"data.max_length={cut}", "stages=[]", "training.max_updates=1", "training.lr=0.5"]
    figures = []
    for place, tail in (("a", ""), ("b", " w1 w2 w3")):
        folder = tmp_path / place
        folder.mkdir()
        for name in ("train.jsonl", "staged.yaml"):
            shutil.copy(corpus / name, folder)
        lines = [
            line for line in lines_of(corpus / "valid.jsonl") if len(line["article"].split()) > 4
        ]
        for line in lines:
            line["article"] += tail
        (folder / "valid.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        events = train(folder, folder / "run", *changes).events
        (evaluated,) = [event for event in events if isinstance(event, Evaluated)]
        figures.append({key: value for key, value in evaluated.metrics.items() if key != "seconds"})
    assert (figures[0] == figures[1]) == (cut == 4)


def test_a_run_without_stages_names_none_and_its_test_says_how_many_articles_were_cut(
    corpus: Path, tmp_path: Path
) -> None:
    test = (
        f"data.test={{jsonl: [{corpus / 'valid.jsonl'}], src_field: article, tgt_field: summary}}"
    )
    run = begin(corpus, tmp_path / "run", test, "stages=[]", "training.max_updates=1")
    assert not any(isinstance(event, StageStarted) for event in train_stages(run, CPU))
    assert (tmp_path / "run/checkpoints/last.safetensors").is_file()
    assert all("stage" not in record for record in logged_without_times(tmp_path / "run"))
    assert "stages" not in json.loads((tmp_path / "run/result.json").read_text())
    result = evaluate_test_set(run, CPU)
    over = sum(len(record["article"].split()) > 12 for record in lines_of(corpus / "valid.jsonl"))
    assert over > 0
    assert result is not None
    assert (
        json.loads((tmp_path / "run/test.json").read_text())["sources_cut"]
        == result.answers.n_truncated
        == over
    )


class Minutes:
    """A clock of the training loop in which every update takes a minute; validations and saves take none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        make_update = trainers.Trainer.make_update
        make = trainers.Trainer.__init__

        def slow(trainer: trainers.Trainer) -> None:
            self.now += 60
            make_update(trainer)

        def with_clock(trainer: trainers.Trainer, **arguments: Any) -> None:
            arguments["clock"] = lambda: self.now
            make(trainer, **arguments)

        monkeypatch.setattr(trainers.Trainer, "make_update", slow)
        monkeypatch.setattr(trainers.Trainer, "__init__", with_clock)


TIMED = (
    "training.max_minutes=12",
    "training.max_updates=100",
    "stages.reward.training.max_updates=100",
    "training.validate_every=100",
)
SHARED = [4, 8, 12]


@pytest.mark.parametrize(
    ("changes", "ends"),
    daily(
        [
            ((), SHARED),
            (("stages.short.training.max_minutes=8",), [8, 10, 12]),
            (("stages.short.training.max_updates=2",), [2, 7, 12]),  # what it leaves goes on
            (
                ("stages.short.training.max_minutes=8", "stages.short.training.max_updates=2"),
                [2, 7, 12],
            ),
            (
                (
                    "stages.coverage.training.max_minutes=null",
                    "stages.coverage.training.max_updates=1",
                ),
                [6, 7, 12],
            ),
        ],
        1,
    ),
)
def test_minutes_of_a_recipe_are_those_of_the_whole_training(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: tuple[str, ...],
    ends: list[int],
) -> None:
    Minutes(monkeypatch)
    events = train(corpus, tmp_path / "run", *TIMED, *changes).events
    assert ends_of(events) == ends
    assert [round(event.seconds) for event in events if isinstance(event, Stopped)] == [
        60 * end for end in ends
    ]


@pytest.mark.slow
def test_a_schedule_over_the_budget_ends_with_the_part_of_its_stage(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Minutes(monkeypatch)
    events = train(
        corpus, tmp_path / "run", *TIMED, "training.schedule={kind: linear, over: budget}"
    ).events
    rates = [event.lr for event in events if isinstance(event, Step)]
    assert rates[1:4] == pytest.approx([0.005, 0.0025, 0])
    assert rates[5:8] == pytest.approx([0.005, 0.0025, 0])


@pytest.mark.slow
@pytest.mark.parametrize("update", daily([6, 2, 9]))
def test_parts_of_the_time_are_the_same_when_a_run_goes_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    Minutes(monkeypatch)
    changes = (*TIMED, "stages.short.training.max_updates=3", "training.save_every=1")
    train_until(
        corpus,
        tmp_path / "run",
        lambda one: isinstance(one, Saved) and one.update == update,
        *changes,
    )
    after = train(corpus, tmp_path / "run", *changes, resume=True).events
    assert ends_of(after) == [
        end for end in (3, 8, 12) if end > update
    ]  # (12 - 3) / 2 is 4.5 minutes


@pytest.mark.slow
def test_more_time_is_the_last_stages(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Minutes(monkeypatch)
    train(corpus, tmp_path / "run", *TIMED)
    after = train(corpus, tmp_path / "run", "training.max_minutes=15", *TIMED[1:], resume=True)
    assert ends_of(after.events) == [15]


@pytest.mark.slow
def test_a_stage_for_which_no_time_is_left_hands_on_what_it_got(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Minutes(monkeypatch)
    changes = (
        *TIMED,
        "stages.short.training.max_minutes=null",
        "stages.short.training.max_updates=13",
    )
    _, events, notes = train(corpus, tmp_path / "run", *changes)
    stops = [(event.update, event.reason) for event in events if isinstance(event, Stopped)]
    assert stops == [(13, "max_updates"), (13, "max_minutes"), (13, "max_minutes")]
    assert sum("used up training.max_minutes" in note for note in notes) == 2
    assert Run(RunFolder(tmp_path / "run")).weights().parent.name == "3-reward"
    assert (tmp_path / "run/result.json").exists()


def test_a_last_validation_that_is_made_again_is_logged_once(corpus: Path, tmp_path: Path) -> None:
    """The state was saved before it, and training was killed before it was saved again."""
    changes = ("stages=[]", "training.max_updates=3", "model.coverage=false")
    train_until(corpus, tmp_path / "run", lambda one: isinstance(one, Evaluated), *changes)
    train(corpus, tmp_path / "run", *changes, resume=True)
    events = logged_without_times(tmp_path / "run")
    assert [one["update"] for one in events if one["event"] == "evaluated"] == [3]
