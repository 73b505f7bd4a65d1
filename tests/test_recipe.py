"""Reading recipes: extends, overrides, messages with the place of every fault."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from nmtkit import metrics, recipe
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.experiment import checks
from nmtkit.models.base import MODELS

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


def test_a_key_of_another_kind_is_not_advised_to_stay(base: Path) -> None:
    with pytest.raises(RecipeError, match=r"unknown key `model\.heads`: valid names: "):
        recipe.load(base, ["model.heads=2"])


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
    schema = recipe.recipe_schema()
    assert {"data", "model", "training", "search"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_every_setting_has_a_meaning() -> None:
    """The text under each field is what `recipe explain` shows."""
    checked = 0
    for name, part in recipe.recipe_schema()["$defs"].items():
        for key, value in part.get("properties", {}).items():
            if key == "kind":
                continue
            checked += 1
            assert value.get("description"), f"{name}.{key} has no line of meaning"
    assert checked > 80


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("seed", [-1, 10**24]),
        ("model.hidden_size", [10**9, 10**19]),
        ("model.embedding_size", [10**9]),
        ("model.layers", [1000, 10**19]),
        ("tokenizer.vocab_size", [10**10, 10**19]),
        ("tokenizer.train_lines", [10**19]),
        ("data.max_length", [10**19]),
        ("data.train.weights", ["[1e300]", "[.inf]", "[0]"]),
        ("batch.batch_tokens", [10**19]),
        ("batch.sort_window", [10**19]),
        ("training.accumulate", [10**12]),
        ("training.threads", [0, 10**6, 10**19, "true"]),
        ("training.keep_best", [10**19]),
        ("training.betas", ["[0.9, 1.0]", "[-0.1, 0.9]", "[.nan, 0.9]"]),
        ("training.lr", [".inf", ".nan", "1e400", "1e308"]),
        ("training.weight_decay", ["1e308"]),
        ("training.initial_accumulator", ["1e308"]),
        ("training.reinforce", ["{max_length_ratio: 1e308}"]),
        ("search.beam_size", [1_000_000, 10**19]),
        ("search.max_length", [10**9, 10**19]),
        ("search.max_length_offset", [10**19]),
        ("search.no_repeat_ngram", [10**19]),
        ("evaluation.beam_size", [1_000_000]),
        ("evaluation.max_sentences", [10**19]),
    ],
)
def test_every_number_has_bounds(base: Path, key: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(RecipeError, match=f"--set {key}=.*: `{key}") as caught:
            recipe.load(base, [f"{key}={value}"])
        assert len(str(caught.value).splitlines()) == 1


def test_sizes_that_no_memory_holds_are_told_without_taking_any(base: Path) -> None:
    loaded = recipe.load(base, [f"model.hidden_size={2**20}", "model.layers=1"])
    assert dict(checks.dry_run(loaded))["parameters"]
    with pytest.raises(RecipeError, match="GiB of memory; make it smaller"):
        checks.require_memory(loaded)


def test_what_fits_into_memory_is_let_through(base: Path) -> None:
    checks.require_memory(recipe.load(base))
    # A vocabulary of words may turn out far smaller than it is allowed to be.
    checks.require_memory(recipe.load(base, ["tokenizer.kind=word", "tokenizer.vocab_size=100000000"]))


@pytest.mark.parametrize("name", ["../escaped", "/absolute", "..", ".hidden", "-x", "''", "a/b", "5"])
def test_a_name_leads_nowhere_else(base: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=r"--set name=.*: `name`"):
        recipe.load(base, [f"name={name}"])


def test_a_file_that_is_no_name_wants_one(base: Path) -> None:
    odd = base.rename(base.with_name("{odd}.yaml"))
    with pytest.raises(RecipeError, match=r"`name`.*--set name=NAME"):
        recipe.load(odd)
    assert recipe.load(odd, ["name=even"]).name == "even"


@pytest.mark.parametrize(
    "override",
    [
        "stages." + "9" * 5000 + ".x=1",
        "stages.-1.x=1",
        "stages.٠.x=1",
        ".".join("a" * 3000) + "=1",
        "a=" + "[" * 3000,
        "x=&a [*a]",
        "seed=" + "9" * 5000,
        "y" * 5000 + "=1",
        "model.kind=" + "z" * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_a_hostile_override_is_one_short_message(base: Path, override: str) -> None:
    with pytest.raises(RecipeError, match="--set") as caught:
        recipe.load(base, ["stages=[{name: only}]", override])
    assert len(str(caught.value)) < 1000


def test_an_override_of_a_recipe_whose_stages_are_none(base: Path) -> None:
    base.write_text(TEXT + "stages: 5\n")
    with pytest.raises(RecipeError, match="line 9: `stages`"):
        recipe.load(base, ["training.lr=0.1"])


def test_many_keys_and_many_stages_are_answered_at_once(base: Path) -> None:
    child = base.with_name("child.yaml")
    for text in (
        "".join(f"k{number}: 1\n" for number in range(9_000)),
        "stages: [" + ", ".join(f"{{name: s{number}}}" for number in range(6_000)) + "]\n",
        "stages: [" + ", ".join(f"{{name: s{number}, x: {{}}}}" for number in range(100)) + "]\n",
    ):
        child.write_text("extends: base.yaml\n" + text)
        with pytest.raises(RecipeError) as caught:
            recipe.load(child)
        assert len(str(caught.value).splitlines()) <= 21


@pytest.mark.parametrize("key", ["data.folder", "data.train.src", "pretrained_embeddings.src", "extends"])
def test_a_path_longer_than_any_files_is_a_file_that_is_not_there(base: Path, key: str) -> None:
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(key.split("."))]
    child = base.with_name("child.yaml")
    child.write_text("\n".join(["extends: base.yaml"] * (key != "extends") + lines) + " " + "x" * 5000 + "\n")
    if key == "extends":
        with pytest.raises(RecipeError, match="line 1: `extends`"):
            recipe.load(child)
    else:
        loaded = recipe.load(child)
        assert dict(checks.dry_run(loaded))["model"] == "rnnsearch"
        with pytest.raises(DataError, match="not there"):
            checks.require_data(loaded)


@pytest.mark.slow
def test_a_model_of_a_recipe_is_written_out_by_a_process_that_made_none() -> None:
    """Settings are built when they are used; what a recipe holds is, whatever the process did before."""
    program = "from nmtkit.recipe import load; print(load('demo').to_yaml() == load('demo').to_yaml())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_layers_are_those_of_both_sides_of_a_transformer(base: Path) -> None:
    """Whoever says it later wins, as with any key; both in one place contradict each other."""

    def depths(*overrides: str) -> tuple[int, int]:
        dumped = recipe.load(child, overrides).model.model_dump()
        return dumped["encoder_layers"], dumped["decoder_layers"]

    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\nmodel: {kind: transformer, layers: 6}\n")
    assert depths() == (6, 6)
    assert depths("model.encoder_layers=4") == (4, 6)
    assert depths("model.encoder_layers=4", "model.layers=2") == (2, 2)
    assert recipe.load(child).to_yaml() == recipe.load(child, ["model.encoder_layers=6"]).to_yaml()
    child.write_text("extends: base.yaml\nmodel: {kind: transformer, encoder_layers: 5}\n")
    assert depths("model.layers=2") == (2, 2)
    for wrong in ("layers: 6, decoder_layers: 6", "layers: 0"):
        child.write_text(f"extends: base.yaml\nmodel: {{kind: transformer, {wrong}}}\n")
        with pytest.raises(RecipeError, match=r"child\.yaml, line 2: `model.*layers"):
            recipe.load(child)
    loaded = [recipe.load(base, [f"model={{kind: {kind}, layers: 1}}"]) for kind in MODELS.names()]
    assert len(loaded) > 5


def test_a_wrong_key_is_told_few_others(base: Path) -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'training\.lr'\?$"):
        recipe.load(base, ["lr=3"])
    with pytest.raises(RecipeError, match="did you mean 'lr'") as told:
        recipe.load(base, ["training.lrr=3"])
    assert len(str(told.value)) < 200


def test_paths_have_no_detours(base: Path) -> None:
    """A path given with them is of the same text all the same."""
    (base.parent / "texts").mkdir()
    below = base.parent / "below"
    below.mkdir()
    child = below / "child.yaml"
    child.write_text("extends: ../base.yaml\ndata: {folder: ../texts, train: {src: ../c.src}}\n")
    data = recipe.load(child).data
    assert data.folder == str(base.parent / "texts")
    child.write_text("extends: ../base.yaml\ndata: {train: {src: ../c.src}}\n")
    now = recipe.load(child)
    assert now.data.train.src == [str(base.parent / "c.src")]
    before = recipe.load(child, [f"data.train.src={below / '..' / 'c.src'}"])
    assert before.data.train.src == [f"{below}/../c.src"]
    assert checks.is_same_text(before, now)
    assert checks.recipe_differences(before, now) == []
    other = recipe.load(child, ["data.train.src=d.src"])
    assert not checks.is_same_text(before, other)


def test_a_path_through_a_link_stays(base: Path) -> None:
    elsewhere = base.parent / "far" / "away"
    elsewhere.mkdir(parents=True)
    (elsewhere.parent / "a.src").write_text("a\n", encoding="utf-8")
    (base.parent / "link").symlink_to(elsewhere)
    base.write_text(TEXT.replace("src: a.src", "src: link/../a.src"), encoding="utf-8")
    assert recipe.load(base).data.train.src == [str(base.parent / "link/../a.src")]
