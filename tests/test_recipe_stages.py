"""Recipes with stages: what a stage changes, where its faults are told, and how `--set` reaches it."""

from pathlib import Path

import pytest

from nmtkit import recipe
from nmtkit.core.errors import RecipeError

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
      coverage_weight: 1.0
      schedule: {kind: linear, updates: 5}
"""


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    path = tmp_path / "staged.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_stage_is_the_recipe_with_a_few_keys_changed(staged: Path) -> None:
    loaded = recipe.load(staged)
    short, coverage = loaded.by_stage().values()
    assert list(loaded.by_stage()) == ["short", "coverage"]
    assert short.data.limits == (20, 5)
    assert coverage.data.limits == (50, 50)
    assert (short.training.coverage_weight, coverage.training.coverage_weight) == (0.0, 1.0)
    assert coverage.training.lr == 0.1
    assert coverage.training.schedule.kind == "linear"
    assert coverage.model.model_dump()["coverage"] is True
    assert short.model.model_dump()["coverage"] is False
    assert short.name == coverage.name == "staged"
    assert short.stages == []


def test_without_stages_the_recipe_is_its_only_stage(staged: Path) -> None:
    loaded = recipe.load(staged, ["stages=[]"])
    assert loaded.by_stage() == {"": loaded}
    assert loaded.storage_config is loaded.data


def test_text_is_stored_at_the_longest_limits_and_for_any_stage_that_copies(staged: Path) -> None:
    assert recipe.load(staged).storage_config.limits == (50, 50)
    assert recipe.load(staged, ["stages.coverage.data.max_length=70"]).storage_config.limits == (70, 70)
    assert recipe.load(staged).copies
    plain = recipe.load(staged, ["model.copying=false"])
    assert not plain.copies
    assert recipe.load(staged, ["model.copying=false", "stages.coverage.model.copying=true"]).copies


def test_the_resolved_recipe_is_equal(staged: Path, tmp_path: Path) -> None:
    loaded = recipe.load(staged)
    (tmp_path / "resolved.yaml").write_text(loaded.to_yaml(), encoding="utf-8")
    again = recipe.load(tmp_path / "resolved.yaml")
    assert again == loaded
    assert again.by_stage() == loaded.by_stage()


def test_faults_of_stages_are_told_all_at_once_where_they_stand(staged: Path) -> None:
    text = TEXT.replace("coverage: true", "covrage: true").replace("updates: 5", "updates: 0")
    staged.write_text(text.replace("lr: 0.1", "lr: -1"), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        recipe.load(staged)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    # What all stages take over is told once, under the recipe's own key.
    assert lines[0].startswith(f"{staged}, line 9: `training.lr`")
    assert lines[1].startswith(
        f"{staged}, line 16: unknown key `stages.coverage.model.covrage`: did you mean 'coverage'"
    )
    assert lines[2].startswith(f"{staged}, line 19: `stages.coverage.training.schedule.updates`")


def test_what_does_not_go_together_names_the_stage(staged: Path) -> None:
    staged.write_text(TEXT.replace("coverage_weight: 1.0", "best_metric: bleu"), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"staged.yaml, line 15: stage coverage: .*summarization gives no 'bleu'"):
        recipe.load(staged)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: short", "nmae: short", r"line 13: unknown key `stages.0.nmae`: did you mean 'name'"),
        ("name: short", "name: coverage", "two stages are called 'coverage'"),
        ("name: short", "name: best", "a stage cannot be called 'best'"),
        ("name: short", "name: a/b", r"line 13: `stages.a/b.name`"),
        ("max_length: 20,", "folder: x,", "stage short: `data.folder` is for all stages"),
        ("model: {coverage: true}", "model: {kind: luong}", "stage coverage: `model.kind` is for all stages"),
        ("  over_long: truncate\n", "", "limits of length in a stage need `data.over_long: truncate`"),
    ],
    ids=["key", "twice", "word", "name", "folder", "kind", "drop"],
)
def test_what_a_stage_may_not_say(staged: Path, old: str, new: str, said: str) -> None:
    staged.write_text(TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(RecipeError, match=said):
        recipe.load(staged)


def test_set_reaches_a_stage_by_name_and_by_number(staged: Path) -> None:
    loaded = recipe.load(staged, ["stages.coverage.training.lr=0.5", "stages.0.training.max_updates=3"])
    short, coverage = loaded.by_stage().values()
    assert (short.training.lr, coverage.training.lr) == (0.1, 0.5)
    assert (short.training.max_updates, coverage.training.max_updates) == (3, 10)


def test_set_of_a_key_holds_in_stages_that_do_not_say_otherwise(staged: Path) -> None:
    short, coverage = recipe.load(staged, ["training.coverage_weight=0.5", "model.coverage=true"]).by_stage().values()
    assert (short.training.coverage_weight, coverage.training.coverage_weight) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.cov.training.lr=1", r"--set stages.cov.training.lr=1: no stage 'cov'.*coverage, short"),
        ("stages.2.training.lr=1", "no stage '2'"),
        ("stages.short=1", "name a key of the stage"),
        ("stages.short.training.lr=x", r"--set stages.short.training.lr=x: `stages.short.training.lr`"),
        ("stages.short.trianing.lr=1", "unknown key `stages.short.trianing`: did you mean 'training'"),
    ],
)
def test_faults_of_set(staged: Path, override: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load(staged, [override])


def test_set_that_would_change_nothing_is_refused(staged: Path) -> None:
    staged.write_text(TEXT.replace("max_tgt_length: 5}", "max_tgt_length: 5}\n    training: {coverage_weight: 0.0}"))
    with pytest.raises(RecipeError, match=r"every stage says `training.coverage_weight` itself"):
        recipe.load(staged, ["training.coverage_weight=2"])


def test_a_child_replaces_all_stages_or_none(staged: Path) -> None:
    child = staged.with_name("child.yaml")
    child.write_text("extends: staged.yaml\ntraining: {lr: 0.2}\n")
    assert [one.training.lr for one in recipe.load(child).by_stage().values()] == [0.2, 0.2]
    child.write_text("extends: staged.yaml\nstages: [{name: only}]\n")
    assert list(recipe.load(child).by_stage()) == ["only"]


def minutes_of(loaded: recipe.Recipe, *taken: float) -> list[float | None]:
    """The minutes of each stage, where the first have taken so many."""
    return [one.training.max_minutes for one in loaded.by_stage([60 * minutes for minutes in taken]).values()]


def test_minutes_of_a_recipe_are_those_of_all_its_stages(staged: Path) -> None:
    whole = ["training.max_minutes=10"]
    assert minutes_of(recipe.load(staged, whole)) == [5, 5]
    own = recipe.load(staged, [*whole, "stages.coverage.training.max_minutes=2"])
    assert minutes_of(own) == [8, 2]
    own = recipe.load(staged, [*whole, "stages.short.training.max_minutes=2"])
    assert minutes_of(own) == [2, 8]
    both = [f"stages.{name}.training.max_minutes=7" for name in ("short", "coverage")]
    assert minutes_of(recipe.load(staged, both)) == [7, 7]
    assert minutes_of(recipe.load(staged, ["stages.short.training.max_minutes=2"])) == [2, None]
    unlimited = recipe.load(staged, [*whole, "stages.short.training.max_minutes=null"])
    assert minutes_of(unlimited) == [None, 10]
    assert minutes_of(unlimited, 4) == [None, 6]
    again = recipe.load(staged, [*whole, "stages.coverage.training.max_minutes=2"]).to_yaml()
    staged.with_name("again.yaml").write_text(again, encoding="utf-8")
    assert minutes_of(recipe.load(staged.with_name("again.yaml"))) == [8, 2]


def test_time_that_a_stage_leaves_goes_on_to_the_later_ones(staged: Path) -> None:
    loaded = recipe.load(staged, ["training.max_minutes=9"])
    third = {"name": "third", "training": {"lr": 0.1}}
    loaded = loaded.model_copy(update={"stages": [*loaded.stages, recipe.Stage.model_validate(third)]})
    assert minutes_of(loaded) == [3, 3, 3]
    assert minutes_of(loaded, 1) == [3, 4, 4]
    assert minutes_of(loaded, 1, 5) == [3, 4, 3]
    assert minutes_of(loaded, 5, 2.5) == [3, 2, 1.5]
    assert minutes_of(loaded, 8, 2) == [3, 0.5, 0]
    own = recipe.load(staged, ["training.max_minutes=9", "stages.short.training.max_minutes=4"])
    assert minutes_of(own, 1) == [4, 8]


def test_stages_of_their_own_minutes_must_leave_some(staged: Path) -> None:
    with pytest.raises(RecipeError, match=r"stages have 3 of their own, which leaves none for stage short"):
        recipe.load(staged, ["training.max_minutes=3", "stages.coverage.training.max_minutes=3"])
