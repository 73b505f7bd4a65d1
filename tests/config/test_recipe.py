"""Reading recipes: extends, overrides, messages with the place of every fault."""

import re
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
import torch

from nmtkit import config, metrics
from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.experiment import checks
from nmtkit.experiment.plan import plan
from nmtkit.models.base import MODELS
from nmtkit.runs.origin import find_origin

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


def faults(path: Path, *overrides: str) -> list[str]:
    """The lines of the message with which a recipe is refused."""
    with pytest.raises(RecipeError) as caught:
        config.load(path, overrides)
    return str(caught.value).splitlines()


def test_extends_says_only_what_differs(base: Path) -> None:
    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\nmodel: {dropout: 0.5}\ntraining: {lr: 0.01}\n")
    loaded = config.load(child)
    assert (loaded.name, config.load(base).name) == ("child", "base")
    assert loaded.model.model_dump().items() >= {"hidden_size": 64, "dropout": 0.5}.items()
    assert (loaded.training.max_updates, loaded.training.lr) == (10, 0.01)
    assert loaded.data.train.src == [str(base.parent / "a.src")]
    # another kind starts afresh
    child.write_text("extends: base.yaml\nmodel: {kind: transformer, heads: 2}\n")
    # the Transformer's own default
    assert config.load(child).model.model_dump()["hidden_size"] == 256


def test_a_file_never_inherits_the_name_of_the_recipe_that_it_extends(base: Path) -> None:
    base.write_text(TEXT + "name: first\ndescription: The first.\n")
    child, grandchild = base.with_name("child.yaml"), base.with_name("grandchild.yaml")
    child.write_text("extends: base.yaml\nname: second\ndescription: The second.\n")
    grandchild.write_text("extends: child.yaml\n")
    names = [
        (loaded.name, loaded.description) for loaded in map(config.load, (base, child, grandchild))
    ]
    assert names == [("first", "The first."), ("second", "The second."), ("grandchild", "")]
    bundled = base.with_name("mine.yaml")
    bundled.write_text("extends: multi30k-en-de-transformer\n")
    assert (config.load(bundled).name, config.load(bundled).description) == ("mine", "")


OWN_TRAIN = "extends: base.yaml\ndata:\n  train: {src: c, tgt: d}\n"


@pytest.mark.parametrize(
    ("child", "test"),
    [
        ("extends: base.yaml\nmodel: {dropout: 0.1}\n", "test.src"),
        ("extends: base.yaml\ndata: {max_length: 50}\n", "test.src"),
        ("extends: base.yaml\ndata:\n  valid: {src: c, tgt: d}\n", "test.src"),
        (OWN_TRAIN, None),
        (OWN_TRAIN + "  test: {src: own.src, tgt: own.tgt}\n", "own.src"),
        (OWN_TRAIN + "  test: null\n", None),
        (
            "extends: base.yaml\ndata:\n  train: [{src: c, tgt: d}, {src: e, tgt: f, weight: 2}]\n",
            None,
        ),
    ],
)
def test_a_test_set_belongs_to_the_text_that_is_trained_on(
    base: Path, child: str, test: str | None
) -> None:
    base.write_text(TEXT.replace("data:\n", "data:\n  test: {src: test.src, tgt: test.tgt}\n"))
    path = base.with_name("child.yaml")
    path.write_text(child)
    files = config.load(path).data.test
    assert (None if files is None else [Path(name).name for name in files.src]) == (
        None if test is None else [test]
    )
    assert config.load(path).data.valid is not None


def test_of_a_chain_of_recipes_the_text_of_the_last_counts(base: Path) -> None:
    base.write_text(TEXT.replace("data:\n", "data:\n  test: {src: test.src, tgt: test.tgt}\n"))
    second, third = base.with_name("second.yaml"), base.with_name("third.yaml")
    second.write_text(OWN_TRAIN + "  test: {src: own.src, tgt: own.tgt}\n")
    third.write_text("extends: second.yaml\ntraining: {lr: 0.01}\n")
    files = config.load(third).data
    assert files.test is not None
    assert [Path(path).name for path in (*files.train.src, *files.test.src)] == ["c", "own.src"]
    third.write_text(OWN_TRAIN.replace("base", "second"))
    assert config.load(third).data.test is None


RAW = [
    "task",
    "name",
    "data",
    "data.train",
    "data.train.tags",
    "data.train.src",
    "tokenizer",
    "tokenizer.specials",
]
RAW += [
    "data.folder",
    "init_from",
    "init_from.run",
    "stages",
    "search",
    "model",
    "model.kind",
    "model.layers",
]
RAW += ["pretrained_embeddings", "training.max_minutes", "evaluation.metrics"]
"""Keys that are read before a recipe is checked, or lie above such keys."""


@pytest.mark.parametrize("key", RAW)
def test_a_wrong_type_is_a_fault_of_the_recipe(base: Path, key: str) -> None:
    for tags in ("[]", "[<x>]"):
        for value in (
            "3",
            "null",
            "true",
            "x",
            "[1]",
            "[null]",
            "[[]]",
            "[{a: 1}]",
            "{a: 1}",
            "{1: 2}",
        ):
            # no other error; some of the values are right for some of the keys
            with suppress(RecipeError):
                config.load(base, [f"data.train.tags={tags}", f"{key}={value}"])


@pytest.mark.parametrize(
    "override",
    [
        "model.kind=their_model",
        "training.objectives={their_objective: 1}",
        "training.optimizer=their_optimizer",
        "evaluation.metrics=[their_metric]",
        "task=their_task",
        "model={kind: luong, score: their_score}",
    ],
)
def test_a_name_that_a_file_of_the_users_may_register(base: Path, override: str) -> None:
    (fault,) = faults(base, override)
    assert "if your own file registers this name, add `--user-module FILE.py`" in fault
    near = override.replace("their_model", "rnnsearc").replace("their_optimizer", "adamm")
    if near != override:
        assert "did you mean" in faults(base, near)[0]
        assert "--user-module" not in faults(base, near)[0]


def test_missing_files_are_told_by_their_keys(base: Path) -> None:
    loaded = config.load(base, ["pretrained_embeddings={src: words.vec}"])
    with pytest.raises(DataError, match=r"a\.src"):
        checks.require_files(loaded)
    for name in [path for files in loaded.data.splits().values() for path in files.paths()]:
        Path(name).write_text("a\n")
    with pytest.raises(DataError, match=r"pretrained_embeddings\.src: .*words\.vec"):
        checks.require_files(loaded)
    checks.require_files(config.load(base))


def test_limits_that_differ_are_told(base: Path) -> None:
    stages = "stages=[{name: first, training: {max_updates: 5}}, {name: second}]"
    before = config.load(base, [stages])
    now = config.load(
        base, [stages, "training.max_minutes=3", "stages.first.training.max_updates=6"]
    )
    assert checks.limit_differences(before, before) == []
    assert checks.limit_differences(before, now) == [
        "`training.max_minutes` was unlimited and is now 3.0",
        "`stages.first.training.max_updates` was 5 and is now 6",
    ]


def test_overrides_win_over_the_file(base: Path) -> None:
    loaded = config.load(
        base, ["training.lr=1e-3", "model.hidden_size=32", "name=other", "data.train.src=c"]
    )
    assert (loaded.training.lr, loaded.name, loaded.data.train.src) == (0.001, "other", ["c"])
    assert loaded.model.model_dump()["hidden_size"] == 32
    assert (
        config.load(base, ["model.kind=transformer", "model.heads=8"]).model.kind == "transformer"
    )


def test_a_fault_is_placed_where_it_stands(base: Path) -> None:
    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\n\nmodel:\n  dropout: 2.0\nsearch: {beam_size: 0}\n")
    base.write_text(TEXT.replace("max_updates: 10", "max_updates: ten"))
    sentences = faults(child, "seed=x")
    assert len(sentences) == 4
    for start in (
        f"{child}, line 4: `model.dropout`",
        f"{child}, line 5: `search.beam_size`",
        f"{base}, line 8: `training.max_updates`",
        "--set seed=x: `seed`",
    ):
        assert any(line.startswith(start) for line in sentences)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    assert [line.rpartition(": ")[2] for line in faults(path)] == [
        f"`{key}` is missing" for key in ("data", "model", "training")
    ]


def test_a_fault_of_the_file_is_told_with_and_without_overrides(base: Path) -> None:
    base.write_text(TEXT.replace("rnnsearch", "rnnsaerch") + "stages: 5\n")
    for overrides in ([], ["training.lr=0.1"]):
        kind, stages = faults(base, *overrides)
        assert re.match(r".*base.yaml, line 5: `model.kind`.*did you mean 'rnnsearch'", kind)
        assert "line 9: `stages`" in stages


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("model.heads=2", r"unknown key `model\.heads`; valid names: "),  # a key of another kind
        ("training.zzz=2", r"unknown key `training\.zzz`; none of the "),
        ("lr=3", r"did you mean 'training\.lr'\?$"),
        ("training.lrr=3", "did you mean 'lr'"),
        ("data.train.tgt=[]", "`data.train`: tgt is missing; only a test set may have no targets"),
        ("data.valid.tgt=[]", "`data.valid`: tgt is missing; only a test set may have no targets"),
        (
            "data.train.src=[]",
            "`data.train`: src is missing; the task translation requires it in train and valid and test",
        ),
        (
            "data.valid.labels=b",
            "`data.valid`: the task translation has no labels column, only src and tgt; remove this column, or choose",
        ),
        (
            "data.valid.features=b",
            "no features column, only src and tgt; remove this column, or choose",
        ),
        (
            "data.test={jsonl: a, labels_field: b}",
            r"`data.test`: .* no labels column, .* remove this column, or choose another task",
        ),
        ("training.best_metric=blue", "did you mean 'bleu'"),
        ("evaluation.tokenize=13A", "did you mean '13a'"),
        *(
            (f"name={name}", r"--set name=.*: `name`")
            for name in ("../up", "/absolute", "..", ".hidden", "-x")
        ),
        *((f"name={name}", r"--set name=.*: `name`") for name in ("''", "a/b", "5")),
        ("stages." + "9" * 5000 + ".x=1", "--set"),
        ("stages.-1.x=1", "--set"),
        ("stages.٠.x=1", "--set"),
        (".".join("a" * 3000) + "=1", "--set"),
        ("a=" + "[" * 300, "--set"),
        ("x=&a [*a]", "--set"),
        ("seed=" + "9" * 5000, "--set"),
        ("y" * 5000 + "=1", "--set"),
        ("model.kind=" + "z" * 5000, "--set"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_override_is_refused_with_a_remedy_in_a_short_message(
    base: Path, override: str, match: str
) -> None:
    for stages in ("[]", "[{name: only}]"):
        with pytest.raises(RecipeError, match=match) as caught:
            config.load(base, [f"stages={stages}", override])
        assert len(str(caught.value)) < 700


def test_paths_begin_at_the_folder_of_the_recipe_that_names_them(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base.parent / "a.src").write_text("x\n")
    train = config.load(base).data.splits()["train"]
    # A file that is nowhere is reported where the recipe would have it.
    assert (train.src, train.tgt) == ([str(base.parent / "a.src")], [str(base.parent / "a.tgt")])
    child = base.parent / "sub" / "child.yaml"
    child.parent.mkdir()
    for name in ("a.src", "b.src"):
        (child.parent / name).write_text("here\n")
    monkeypatch.chdir(child.parent)
    assert config.load(base).data.train.src == train.src
    assert config.load(base).data.splits()["valid"].src == ["b.src"]  # which is here alone
    child.write_text("extends: ../base.yaml\ndata: {test: {src: t.src, tgt: t.tgt}}\n")
    splits = config.load(child).data.splits()
    assert (splits["train"].src, splits["test"].src) == (train.src, [str(child.parent / "t.src")])
    # A folder, if there is one, is meant from where it is named.
    set_folder = config.load(child, ["data.folder=../sub"]).data
    assert set_folder.folder == f"{child.parent}/../sub"
    assert set_folder.splits()["train"].src == [f"{child.parent}/../sub/a.src"]
    assert config.load(base, ["data.folder=nowhere"]).data.folder == "nowhere"


SMALLEST = {
    "translation": ("src, tgt", "rnnsearch", "bleu"),
    "captioning": ("features, tgt", "show_attend_tell", "bleu"),
    "classification": ("src, labels", "word_mean", "accuracy"),
    "language-modelling": ("tgt", "transformer_lm", "perplexity"),
    "parsing": ("src, tgt", "rnnsearch", "bracket-f1"),
    "summarization": ("src, tgt", "pointer_generator", "rougeL"),
}
"""For each task: its columns, a model, and the metric that chooses the best checkpoint by default."""


def written(folder: Path, text: str) -> Path:
    path = folder / "written.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def smallest(task: str) -> str:
    columns, model, _ = SMALLEST[task]
    files = ", ".join(f"{column}: a.{column}" for column in columns.split(", "))
    task_line = "" if task == "translation" else f"task: {task}\n"
    return f"{task_line}data: {{train: {{{files}}}}}\nmodel: {{kind: {model}}}\n"


@pytest.mark.parametrize("task", [*SMALLEST])
def test_a_recipe_that_names_no_metric_has_those_of_its_task(task: str, tmp_path: Path) -> None:
    best = SMALLEST[task][2]
    loaded = config.load(written(tmp_path, smallest(task) + "training: {max_updates: 1}\n"))
    assert loaded.training.best_metric == best
    assert loaded.training.higher_is_better == (best != "perplexity")
    assert config.load(written(tmp_path, loaded.to_yaml())) == loaded


@pytest.mark.parametrize("task", [task for task in [*SMALLEST] if task != "language-modelling"])
@pytest.mark.parametrize(
    ("metrics", "best"), [("ter", "ter"), ("chrf, bleu", None), ("rouge", None)]
)
def test_the_metrics_that_a_recipe_names_choose_the_best(
    task: str, metrics: str, best: str | None, tmp_path: Path
) -> None:
    named = f"training: {{max_updates: 1}}\nevaluation: {{metrics: [{metrics}]}}\n"
    training = config.load(written(tmp_path, smallest(task) + named)).training
    default = SMALLEST[task][2]
    first = {"chrf, bleu": "chrf", "rouge": "rouge1"}.get(metrics, best)
    is_measured = (default == "bleu" and "bleu" in metrics) or (
        default == "rougeL" and metrics == "rouge"
    )
    assert training.best_metric == (default if is_measured else first)
    assert training.higher_is_better == (training.best_metric != "ter")


def test_whether_higher_is_better_follows_from_the_metric(base: Path, tmp_path: Path) -> None:
    resolved = written(tmp_path, config.load(base).to_yaml())
    assert config.load(resolved).training.higher_is_better
    assert not config.load(resolved, ["training.best_metric=loss"]).training.higher_is_better
    child = tmp_path / "child.yaml"
    child.write_text("extends: written.yaml\ntraining: {best_metric: perplexity}\n")
    assert not config.load(child).training.higher_is_better


@pytest.mark.parametrize(
    ("stage", "best"),
    [
        (
            "task: language-modelling, data: {train: {tgt: t}, valid: {tgt: t}}, "
            "training: {objectives: {denoising: {}}}",
            "perplexity",
        ),
        ("training: {best_metric: loss}", "loss"),
        ("training: {lr: 0.1}", "bleu"),
    ],
    ids=["another task", "names a metric", "neither"],
)
def test_a_stage_has_a_metric_that_it_measures(
    stage: str, best: str, base: Path, tmp_path: Path
) -> None:
    text = (
        smallest("translation").replace("rnnsearch", "transformer")
        + "tokenizer: {specials: [<mask>]}\n"
    )
    text += "training: {max_updates: 1}\n"
    path = written(tmp_path, f"{text}stages: [{{name: first, {stage}}}, {{name: second}}]\n")
    loaded = config.load(path)
    again = config.load(written(tmp_path, loaded.to_yaml()))
    for one in (loaded, again):
        stages = one.by_stage()
        assert stages["first"].training.best_metric == best
        assert stages["first"].training.higher_is_better == (best == "bleu")
        assert stages["second"].training.best_metric == "bleu"


def test_tokenizations_are_those_of_the_metrics() -> None:
    assert (
        get_args(config.EvaluationConfig.model_fields["tokenize"].annotation) == metrics.TOKENIZERS
    )


def test_every_setting_has_a_meaning_in_the_schema() -> None:
    """The text under each field is what `recipe explain` shows."""
    schema = config.Recipe.model_json_schema()
    assert {"data", "model", "training", "search"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False
    settings = {
        f"{name}.{key}": value.get("description")
        for name, part in schema["$defs"].items()
        for key, value in part.get("properties", {}).items()
        if key != "kind"
    }
    assert len(settings) > 80
    assert [name for name, meaning in settings.items() if not meaning] == []


NUMBERS = """
model.hidden_size model.layers tokenizer.vocab_size data.max_length batch.batch_tokens
batch.sort_window training.accumulate training.threads training.keep_best search.beam_size search.max_length
search.max_length_offset search.no_repeat_ngram evaluation.max_sentences evaluation.beam_size
"""


@pytest.mark.parametrize(
    ("key", "values"),
    [
        *((key, [10**19]) for key in NUMBERS.split()),
        ("seed", [-1, 10**24]),
        *((f"model.{size}", [10**9]) for size in ("hidden_size", "embedding_size")),
        ("model.layers", [1000]),
        ("tokenizer.vocab_size", [10**10]),
        ("data.train.weights", ["[1e300]", "[.inf]", "[0]"]),
        ("training.accumulate", [10**12]),
        ("training.threads", [0, 10**6, "true"]),
        ("training.betas", ["[0.9, 1.0]", "[-0.1, 0.9]", "[.nan, 0.9]"]),
        ("training.lr", [".inf", ".nan", "1e400", "1e308"]),
        *((f"training.{key}", ["1e308"]) for key in ("weight_decay", "initial_accumulator")),
        ("training.objectives.reinforce", ["{gamma: 1e308}"]),
        *((f"{group}.beam_size", [1_000_000]) for group in ("search", "evaluation")),
        ("search.max_length", [10**9]),
    ],
    ids=str,
)
def test_every_number_has_bounds(base: Path, key: str, values: list[object]) -> None:
    for value in values:
        (fault,) = faults(base, f"{key}={value}")
        assert re.match(f"--set {key}=.*: `{key}", fault)


def test_what_writes_no_text_gets_no_reward(base: Path) -> None:
    texts = [f"data.{split}={{labels: b, tgt: []}}" for split in ("train", "valid")]
    given = ["task=classification", *texts, "model.kind=word_mean", "training.best_metric=accuracy"]
    assert "reinforce" not in config.load(base, given).training.objectives
    (fault,) = faults(base, *given, "training.objectives.reinforce={}")
    assert fault.endswith(
        "`training.objectives.reinforce`: word_mean generates no text that could be rewarded; remove the key"
    )


@pytest.mark.parametrize("kind", ["rnn_lm", "bert"])
def test_a_language_model_is_not_given_sources_that_it_does_not_read(base: Path, kind: str) -> None:
    with pytest.raises(
        RecipeError,
        match=f"models of kind {kind} do not read the column src of task translation; set `task` to",
    ):
        checks.require_fitting_stages(config.load(base, [f"model={{kind: {kind}}}"]))


def test_a_test_set_that_is_not_scored_before_and_after_is_refused(base: Path) -> None:
    given = ["tokenizer.kind=word", "init_from={tokenizer: x, test: {src: a, tgt: b}}"]
    loaded = config.load(base, given)
    assert loaded.init_from is not None
    whole = {"init_from": loaded.init_from.model_copy(update={"run": "x", "tokenizer": None})}
    with pytest.raises(CheckpointError):  # there is no run x
        find_origin(loaded.model_copy(update=whole))
    for one in (loaded, loaded.model_copy(update=whole | {"task": "language-modelling"})):
        with pytest.raises(
            RecipeError,
            match=r"`init_from\.test`: .* require `init_from.run` and a task with references",
        ):
            find_origin(one)


def test_a_text_of_a_stage_that_is_not_here_is_told(base: Path) -> None:
    loaded = config.load(
        base, ["stages=[{name: first, data: {train: {src: gone.src, tgt: gone.tgt}}}]"]
    )
    of_stages = [
        row
        for row in plan(loaded, torch.device("cpu"), need_files=False).rows
        if row[0].startswith("stages.")
    ]
    assert of_stages == [
        ("stages.first.data.train", f"gone.{side} (missing)") for side in ("src", "tgt")
    ]


def test_sizes_that_no_memory_holds_are_told_without_taking_any(base: Path) -> None:
    loaded = config.load(base, [f"model.hidden_size={2**20}", "model.layers=1"])
    with pytest.raises(RecipeError, match="GiB of memory; use fewer layers"):
        plan(loaded, torch.device("cpu"), need_files=False)
    checks.require_memory(config.load(base))
    # A vocabulary of words may turn out far smaller than it is allowed to be.
    checks.require_memory(
        config.load(base, ["tokenizer.kind=word", "tokenizer.vocab_size=100000000"])
    )


def test_a_list_in_place_of_a_group_is_told(base: Path) -> None:
    base.write_text(f"{TEXT}pretrained_embeddings:\n  - src: vectors.txt\n")
    (fault,) = faults(base)
    assert fault.startswith(f"{base}, line 9: `pretrained_embeddings`")


def test_a_file_that_is_no_name_wants_one(base: Path) -> None:
    odd = base.rename(base.with_name("{odd}.yaml"))
    with pytest.raises(RecipeError, match=r"`name`.*--set name=NAME"):
        config.load(odd)
    assert config.load(odd, ["name=even"]).name == "even"


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"k{number}: 1\n" for number in range(9_000)),
        "stages: [" + ", ".join(f"{{name: s{number}}}" for number in range(6_000)) + "]\n",
        "stages: [" + ", ".join(f"{{name: s{number}, x: {{}}}}" for number in range(100)) + "]\n",
    ],
    ids=["keys", "stages", "stages with a wrong key"],
)
def test_many_keys_and_many_stages_are_answered_at_once(base: Path, text: str) -> None:
    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\n" + text)
    assert len(faults(child)) <= 21


@pytest.mark.parametrize(
    "key", ["data.folder", "data.train.src", "pretrained_embeddings.src", "extends"]
)
def test_a_path_longer_than_any_files_is_a_file_that_is_not_there(base: Path, key: str) -> None:
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(key.split("."))]
    child = base.with_name("child.yaml")
    child.write_text(
        "\n".join(["extends: base.yaml"] * (key != "extends") + lines) + " " + "x" * 5000 + "\n"
    )
    if key == "extends":
        assert "line 1: `extends`" in faults(child)[0]
    else:
        with pytest.raises(DataError, match="files are missing"):
            checks.require_data(config.load(child))


def test_layers_are_those_of_both_sides_of_a_transformer(base: Path) -> None:
    """Whoever says it later wins, as with any key; both in one place contradict each other."""

    def depths(*overrides: str) -> tuple[int, int]:
        dumped = config.load(child, overrides).model.model_dump()
        return dumped["encoder_layers"], dumped["decoder_layers"]

    child = base.with_name("child.yaml")
    child.write_text("extends: base.yaml\nmodel: {kind: transformer, layers: 6}\n")
    assert depths() == (6, 6)
    assert depths("model.encoder_layers=4") == (4, 6)
    assert depths("model.encoder_layers=4", "model.layers=2") == (2, 2)
    assert config.load(child).to_yaml() == config.load(child, ["model.encoder_layers=6"]).to_yaml()
    for wrong in ("layers: 6, decoder_layers: 6", "layers: 0"):
        child.write_text(f"extends: base.yaml\nmodel: {{kind: transformer, {wrong}}}\n")
        with pytest.raises(RecipeError, match=r"child\.yaml, line 2: `model.*layers"):
            config.load(child)
    for kind in MODELS.names():
        if {"layers", "encoder_layers"} & {*MODELS.get(kind).Config.model_fields}:
            config.load(base, [f"model={{kind: {kind}, layers: 2}}"])


def test_a_path_with_detours_is_of_the_same_text(base: Path) -> None:
    (base.parent / "below").mkdir()
    child = base.parent / "below" / "child.yaml"
    child.write_text("extends: ../base.yaml\ndata: {train: {src: ../c.src}}\n")
    with_detour = config.load(child)
    assert with_detour.data.train.src == [f"{base.parent}/below/../c.src"]
    straight = config.load(child, [f"data.train.src={base.parent / 'c.src'}"])
    assert checks.is_same_text(straight, with_detour)
    assert checks.recipe_differences(straight, with_detour) == []
    assert not checks.is_same_text(straight, config.load(child, ["data.train.src=d.src"]))
