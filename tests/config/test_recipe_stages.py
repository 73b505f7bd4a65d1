"""Recipes with stages: what a stage changes, where its faults are told, and how `--set` reaches it."""

from pathlib import Path

import pytest

from nmtkit import config
from nmtkit.core.errors import RecipeError
from nmtkit.experiment.checks import recipe_differences

TEXT = """\
task: summarization
data:
  train: {src: a.src, tgt: a.tgt}
  valid: {src: b.src, tgt: b.tgt}
  max_length: 50
  over_long: truncate
model: {kind: pointer_generator, hidden_size: 8}
training:
  lr: 0.1
  max_updates: 10
  best_metric: rougeL
stages:
  - name: short
    data: {max_length: 20, max_tgt_length: 5}
  - name: coverage
    model: {coverage: true}
    training:
      objectives: {coverage_weight: 1.0}
      schedule: {kind: linear, updates: 5}
"""


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    path = tmp_path / "staged.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_stage_is_the_recipe_with_a_few_keys_changed(staged: Path) -> None:
    stages = config.load(staged).by_stage()
    assert list(stages) == ["short", "coverage"]
    short, coverage = stages.values()
    assert [one.data.limits for one in (short, coverage)] == [(20, 5), (50, 50)]
    assert [one.training.objectives for one in (short, coverage)] == [{}, {"coverage_weight": 1.0}]
    assert [one.model.model_dump()["coverage"] for one in (short, coverage)] == [False, True]
    assert (coverage.training.lr, coverage.training.schedule.kind) == (0.1, "linear")
    assert short.name == coverage.name == "staged"
    assert short.stages == []
    alone = config.load(staged, ["stages=[]"])
    assert alone.by_stage() == {"": alone}
    assert alone.storage_config is alone.data


def test_text_is_stored_at_the_longest_limits_and_for_any_stage_that_copies(staged: Path) -> None:
    assert config.load(staged).storage_config.limits == (50, 50)
    assert config.load(staged, ["stages.coverage.data.max_length=70"]).storage_config.limits == (
        70,
        70,
    )
    assert [*config.load(staged).texts()] == [""]
    assert [*config.load(staged, ["data.over_long=drop"]).texts()] == ["", "short"]
    assert config.load(staged).copies
    assert not config.load(staged, ["model.copying=false"]).copies
    assert config.load(staged, ["model.copying=false", "stages.coverage.model.copying=true"]).copies


def test_faults_of_stages_are_told_all_at_once_where_they_stand(staged: Path) -> None:
    text = TEXT.replace("coverage: true", "covrage: true").replace("updates: 5", "updates: 0")
    staged.write_text(text.replace("lr: 0.1", "lr: -1"), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        config.load(staged)
    starts = [
        # what all stages take over is told once, under the recipe's own key
        "line 9: `training.lr`",
        "line 16: unknown key `model.covrage`; did you mean 'coverage'",
        "line 19: `training.schedule.updates`",
    ]
    for line, start in zip(str(caught.value).splitlines(), starts, strict=True):
        assert line.startswith(f"{staged}, {start}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "name: short",
            "nmae: short",
            r"line 13: unknown key `stages.0.nmae`; did you mean 'name'",
        ),
        ("name: short", "name: coverage", "two stages are called 'coverage'"),
        ("name: short", "name: best", "a stage cannot be called 'best'"),
        ("name: short", "name: a/b", r"line 13: `stages.0.name`"),
        (
            "max_length: 20,",
            "test: null,",
            "stage short sets `data.test`, which applies to all stages",
        ),
        (
            "model: {coverage: true}",
            "model: {kind: luong}",
            "stage coverage sets `model.kind`, but all stages train the same model",
        ),
        (
            "objectives: {coverage_weight: 1.0}",
            "best_metric: bleu",
            "line 15: stage coverage: .*summarization does not measure 'bleu'",
        ),
    ],
    ids=["key", "twice", "word", "name", "test", "kind", "metric"],
)
def test_what_a_stage_may_not_say(staged: Path, old: str, new: str, said: str) -> None:
    staged.write_text(TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(RecipeError, match=said):
        config.load(staged)


def test_set_reaches_a_stage_by_name_and_by_number_and_all_stages_at_once(staged: Path) -> None:
    loaded = config.load(
        staged, ["stages.coverage.training.lr=0.5", "stages.0.training.max_updates=3"]
    )
    short, coverage = loaded.by_stage().values()
    assert (short.training.lr, coverage.training.lr) == (0.1, 0.5)
    assert (short.training.max_updates, coverage.training.max_updates) == (3, 10)
    short, coverage = (
        config.load(staged, ["training.objectives.coverage_weight=0.5", "model.coverage=true"])
        .by_stage()
        .values()
    )
    weights = [one.training.objectives["coverage_weight"] for one in (short, coverage)]
    assert weights == [0.5, 1.0]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            "stages.cov.training.lr=1",
            r"--set stages.cov.training.lr=1: the recipe has no stage 'cov'.*coverage, short",
        ),
        ("stages.2.training.lr=1", "no stage '2'"),
        ("stages.short=1", "specify which key of the stage to set"),
        ("stages.short.training.lr=x", r"--set stages.short.training.lr=x: `training.lr`"),
        (
            "stages.short.trianing.lr=1",
            r"--set stages.*: unknown key `stages.0.trianing`; did you mean 'training'",
        ),
        (
            "stages.short.training.objectives.coverage_weight=0 training.objectives.coverage_weight=2",
            "every stage sets `training.objectives.coverage_weight` itself",
        ),
        (
            "training.max_minutes=3 stages.coverage.training.max_minutes=3",
            "already take 3, so none are left for stage short",
        ),
    ],
)
def test_faults_of_set(staged: Path, overrides: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        config.load(staged, overrides.split())


def test_a_child_replaces_all_stages_or_none(staged: Path) -> None:
    child = staged.with_name("child.yaml")
    child.write_text("extends: staged.yaml\ntraining: {lr: 0.2}\n")
    assert [one.training.lr for one in config.load(child).by_stage().values()] == [0.2, 0.2]
    child.write_text("extends: staged.yaml\nstages: [{name: only}]\n")
    assert list(config.load(child).by_stage()) == ["only"]


THREE = "stages=[{name: a}, {name: b}, {name: c}]"
SHORT, COVERAGE = ("stages.short.training.max_minutes", "stages.coverage.training.max_minutes")


@pytest.mark.parametrize(
    ("overrides", "taken", "minutes"),
    [
        (["training.max_minutes=10"], [], [5, 5]),
        (["training.max_minutes=10", f"{COVERAGE}=2"], [], [8, 2]),
        (["training.max_minutes=10", f"{SHORT}=2"], [], [2, 8]),
        ([f"{SHORT}=7", f"{COVERAGE}=7"], [], [7, 7]),
        ([f"{SHORT}=2"], [], [2, None]),
        (["training.max_minutes=10", f"{SHORT}=null"], [], [None, 10]),
        (["training.max_minutes=10", f"{SHORT}=null"], [4], [None, 6]),
        (["training.max_minutes=9", f"{SHORT}=4"], [1], [4, 8]),
        (["training.max_minutes=9", THREE], [], [3, 3, 3]),
        (["training.max_minutes=9", THREE], [1], [3, 4, 4]),
        (["training.max_minutes=9", THREE], [1, 5], [3, 4, 3]),
        (["training.max_minutes=9", THREE], [5, 2.5], [3, 2, 1.5]),
        (["training.max_minutes=9", THREE], [8, 2], [3, 0.5, 0]),
    ],
    ids=str,
)
def test_minutes_of_a_recipe_are_those_of_all_its_stages(
    staged: Path, overrides: list[str], taken: list[float], minutes: list[float | None]
) -> None:
    """What a stage leaves of its time goes on to the later ones; `taken` are the minutes of the first stages."""
    staged.with_name("again.yaml").write_text(
        config.load(staged, overrides).to_yaml(), encoding="utf-8"
    )
    stages = (
        config.load(staged.with_name("again.yaml")).by_stage([60 * one for one in taken]).values()
    )
    assert [one.training.max_minutes for one in stages] == minutes


def test_a_run_does_not_go_on_with_its_stages_in_another_order(staged: Path) -> None:
    """Its checkpoints are in folders that have the numbers of their stages."""
    before = config.load(staged)
    turned = before.model_copy(update={"stages": before.stages[::-1]})
    (said,) = recipe_differences(before, turned)
    assert said == "`order of stages` was ['short', 'coverage'] and is ['coverage', 'short']"


def test_a_text_is_stored_as_all_its_stages_need_it(staged: Path) -> None:
    """Also where they share one that is not the recipe's, and the first of them reads less."""
    other = "{train: {src: c.src, tgt: c.tgt}, valid: {src: b.src, tgt: b.tgt}, max_length: 20}"
    first = f"{{name: first, data: {other}, model: {{copying: false}}}}"
    second = f"{{name: second, data: {other.replace(', max_length: 20', '')}}}"
    text = config.load(staged, [f"stages=[{first}, {second}]"]).texts()["first"]
    assert [stage.name for stage in text.stages] == ["first", "second"]
    assert text.storage_config.limits == (50, 50)
    assert text.copies
