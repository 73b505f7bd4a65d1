"""Reading recipes: extends, overrides, messages with the place of every fault."""

from pathlib import Path
from typing import get_args

import pytest

from nmtkit import metrics, recipe
from nmtkit.errors import RecipeError

TEXT = """\
data:
  train: {src: a.src, tgt: a.tgt}
  valid: {src: b.src, tgt: b.tgt}
model:
  kind: rnnsearch
  hidden_size: 64
training:
  max_updates: 10
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_name_is_the_files(base: Path) -> None:
    assert recipe.load(base).name == "base"


def test_extends_says_only_what_differs(base: Path) -> None:
    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\nmodel: {dropout: 0.5}\ntraining: {lr: 0.01}\n")
    loaded = recipe.load(child)
    assert loaded.model.model_dump()["hidden_size"] == 64
    assert loaded.model.model_dump()["dropout"] == 0.5
    assert loaded.training.max_updates == 10
    assert loaded.training.lr == 0.01
    assert loaded.data.train.src == [str(base.parent / "a.src")]


def test_another_kind_starts_afresh(base: Path) -> None:
    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\nmodel: {kind: transformer, heads: 2}\n")
    assert recipe.load(child).model.model_dump()["hidden_size"] == 256  # the Transformer's own default


def test_overrides_win_over_the_file(base: Path) -> None:
    loaded = recipe.load(base, ["training.lr=1e-3", "model.hidden_size=32", "name=other", "data.train.src=c"])
    assert (loaded.training.lr, loaded.name) == (0.001, "other")
    assert loaded.model.model_dump()["hidden_size"] == 32
    assert loaded.data.train.src == ["c"]


def test_override_of_a_kind(base: Path) -> None:
    loaded = recipe.load(base, ["model.kind=transformer", "model.heads=8"])
    assert loaded.model.kind == "transformer"


def test_a_fault_is_placed_where_it_stands(base: Path) -> None:
    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\n\nmodel:\n  dropout: 2.0\nsearch: {beam_size: 0}\n")
    base.write_text(TEXT.replace("max_updates: 10", "max_updates: ten"))
    with pytest.raises(RecipeError) as caught:
        recipe.load(child, ["seed=x"])
    sentences = str(caught.value).splitlines()
    assert len(sentences) == 4
    assert any(line.startswith(f"{child}, line 4: `model.dropout`") for line in sentences)
    assert any(line.startswith(f"{child}, line 5: `search.beam_size`") for line in sentences)
    assert any(line.startswith(f"{base}, line 8: `training.max_updates`") for line in sentences)
    assert any(line.startswith("--set seed=x: `seed`") for line in sentences)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    for key in ("data", "model", "training"):
        assert f"`{key}` is missing" in str(caught.value)


def test_an_unknown_model_lists_those_there_are(base: Path) -> None:
    base.write_text(TEXT.replace("kind: rnnsearch", "kind: rnnsaerch"))
    with pytest.raises(RecipeError, match=r"base.yaml, line 5: `model.kind`.*did you mean 'rnnsearch'"):
        recipe.load(base)


def test_paths_begin_at_the_recipes_folder(base: Path) -> None:
    (base.parent / "a.src").write_text("x\n")
    loaded = recipe.load(base)
    assert loaded.data.splits()["train"].src == [str(base.parent / "a.src")]
    # A file that is nowhere is reported where the recipe would have it.
    assert loaded.data.splits()["train"].tgt == [str(base.parent / "a.tgt")]


def test_a_child_elsewhere_leaves_the_parents_files_where_they_are(base: Path) -> None:
    child = base.parent / "sub" / "child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../base.yaml\ndata: {test: {src: t.src, tgt: t.tgt}}\n")
    splits = recipe.load(child).data.splits()
    assert splits["train"].src == [str(base.parent / "a.src")]
    assert splits["test"].src == [str(child.parent / "t.src")]


def test_a_folder_given_means_the_same_from_everywhere(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base.parent / "corpora").mkdir()
    monkeypatch.chdir(base.parent)
    assert recipe.load(base, ["data.folder=corpora"]).data.folder == str(base.parent / "corpora")
    assert recipe.load(base, ["data.folder=nowhere"]).data.folder == "nowhere"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.best_metric=loss", "`training.higher_is_better` must be false for 'loss'"),
        ("training.best_metric=blue", "did you mean 'bleu'"),
        ("evaluation.tokenize=13A", "did you mean '13a'"),
    ],
)
def test_validation_is_thought_of_before_training(base: Path, override: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load(base, [override])


def test_tokenizations_are_those_of_the_metrics() -> None:
    assert get_args(recipe.EvaluationConfig.model_fields["tokenize"].annotation) == metrics.TOKENIZERS


def test_schema_is_a_json_schema() -> None:
    schema = recipe.schema()
    assert {"data", "model", "training", "search"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_every_setting_has_a_meaning() -> None:
    """The text under each field is what `recipe explain` shows."""
    checked = 0
    for name, part in recipe.schema()["$defs"].items():
        for key, value in part.get("properties", {}).items():
            if key == "kind":
                continue
            checked += 1
            assert value.get("description"), f"{name}.{key} has no line of meaning"
    assert checked > 80
