"""Pretraining on texts alone and tuning on pairs as stages of one recipe, each with its own task and text."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import RecipeError
from nmtkit.core.speed_cache import TuningResult
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.experiment import execute as running
from nmtkit.experiment.batches import training_batches
from nmtkit.experiment.costs import operations_a_token
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.execute import resolve_auto
from nmtkit.experiment.preprocessing import preprocess
from nmtkit.experiment.report import save_report
from nmtkit.experiment.stages import train_stages
from nmtkit.experiment.tuning import TrainingSpeedConfig, candidate_training_configs
from nmtkit.experiment.workloads import TrainingWorkload, workload_of_run
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import read_weights
from nmtkit.training.events import Step
from tests.support.begun_runs import begin_run
from tests.support.commands import logged, sentence_pairs, write_lines
from tests.support.compare_runs import differences

CPU = torch.device("cpu")
RECIPE = """\
data:
  train: {src: train.src, tgt: train.tgt}
  valid: {src: valid.src, tgt: valid.tgt}
  test: {src: valid.src, tgt: valid.tgt}
tokenizer: {kind: word, vocab_size: 200, sentinels: 20}
model: {kind: transformer, layers: 1, hidden_size: 16, feed_forward_size: 16, heads: 2, tie: all}
batch: {batch_tokens: 256}
evaluation: {metrics: [bleu, chrf], max_sentences: 4}
training: {lr: 0.003, max_updates: 6, validate_every: 3, save_every: 2, log_every: 1}
stages:
  - name: pretrain
    task: language-modelling
    data: {train: {tgt: [mono.src, mono.tgt]}, valid: {tgt: valid.src}}
    training: {objectives: {span_corruption: {}}, best_metric: perplexity, max_updates: 8}
  - name: tune
  - name: tune-more
    training: {lr: 0.001}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, count, seed in (("mono", 60, 1), ("train", 30, 2), ("valid", 8, 3)):
        for number, side in enumerate(("src", "tgt")):
            write_lines(
                folder / f"{name}.{side}",
                [f"{pair[number]} {name}" for pair in sentence_pairs(count, seed)],
            )
    (folder / "two.yaml").write_text(RECIPE)
    return folder


def run_all(place: Path, folder: Path, most: int = 1000, resume: bool = False) -> Run:
    """Trains; up to so many updates as if it was killed behind them."""
    run = begin_run(config.load(place / "two.yaml"), str(folder), resume=resume)
    events = train_stages(run, CPU, resume=resume)
    for event in events:
        if isinstance(event, Step) and event.update == most:
            events.close()
            break
    run.close()
    return run


def test_each_text_is_stored_once_with_one_vocabulary(place: Path, tmp_path: Path) -> None:
    run = run_all(place, tmp_path / "run", most=1)
    pairs, mono = (
        Store.open(run.folder.data, "train"),
        Store.open(run.folder.data / "pretrain", "train"),
    )
    assert (len(pairs), len(mono)) == (30, 120)
    assert sorted(path.name for path in run.folder.data.iterdir() if path.is_dir()) == ["pretrain"]
    assert [stage.data.name for stage in run.stages()] == ["pretrain", "data", "data"]
    tokens = run.load_tokenizers().src.vocabulary
    assert run.load_tokenizers().shared
    assert "▁mono" in tokens
    assert "▁train" in tokens
    assert "▁mono" in tokens.tokens_of(mono.ids("tgt", 0))
    notes: list[str] = []
    assert not [*preprocess(run, notes.append)]
    assert notes == [f"{run.folder.data}: the text is already preprocessed and up to date"]


def test_validation_is_that_of_the_task_of_each_stage(place: Path, tmp_path: Path) -> None:
    run = run_all(place, tmp_path / "run")
    validations = logged(run.folder.path, "evaluated")
    assert [one["stage"] for one in validations] == ["pretrain"] * 3 + ["tune"] * 2 + [
        "tune-more"
    ] * 2
    assert ["valid_chrf" in one for one in validations] == [False] * 3 + [True] * 4
    best = min(validations[:3], key=lambda one: one["valid_perplexity"])
    assert run.stages()[0].checkpoints.best()[0].stem == f"weights-{best['update']:08}"
    assert run.inference.task == "translation"
    tuned = read_weights(run.weights("tune"))
    assert tuned.keys() == read_weights(run.weights("pretrain")).keys()
    assert evaluate_test_set(run, CPU) is not None


def test_a_stage_of_one_text_cuts_that_one_anew(place: Path, tmp_path: Path) -> None:
    changes = [
        f"tokenizer.{one}" for one in ("kind=bpe", "vocab_size=90", "sentinels=20", "sampling=0.3")
    ]
    run = begin_run(config.load(place / "two.yaml", changes), str(tmp_path / "run"))
    tokenizers, texts = run.load_tokenizers(), []
    for stage in run.stages()[:2]:
        whole = stage.recipe.batch.changed({"batch_tokens": 100_000})
        one = stage.recipe.model_copy(update={"batch": whole, "training": run.recipe.training})
        stream = training_batches(one, Store.open(stage.data, "train"), tokenizers, 1)
        first, second = (next(stream).targets.ids.tolist() for _ in range(2))
        texts.append(
            [
                sorted(tokenizers.tgt.decode(row[: row.index(EOS)]) for row in rows)
                for rows in (first, second)
            ]
        )
        assert sorted(first) != sorted(second)
    run.close()
    for files, found in zip((("mono.src", "mono.tgt"), ("train.tgt",)), texts, strict=True):
        lines = [
            line
            for file in files
            for line in (place / file).read_text(encoding="utf-8").splitlines()
        ]
        assert found == [sorted(lines)] * 2


def test_a_model_that_copies_is_pretrained_on_one_text(place: Path, tmp_path: Path) -> None:
    changes = ["model.copying=learned", "tokenizer={kind: word, vocab_size: 20, sentinels: 4}"]
    run = begin_run(config.load(place / "two.yaml", changes), str(tmp_path / "run"))
    pairs, mono = (Store.open(stage.data, "train") for stage in run.stages()[1::-1])
    assert [pairs.has("src_extended"), mono.has("tgt"), mono.has("tgt_extended")] == [
        True,
        True,
        False,
    ]
    assert next(event.update for event in train_stages(run, CPU) if isinstance(event, Step)) == 1
    run.close()


def test_what_the_first_stage_sets_is_not_what_auto_finds(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(workload: TrainingWorkload) -> TuningResult[TrainingSpeedConfig]:
        assert workload.key["training"]["precision"] == "auto"
        return TuningResult(candidate_training_configs(workload.config, CPU, True)[0])

    monkeypatch.setattr(running, "tune_training", tune)
    run = begin_run(
        config.load(place / "two.yaml", ["stages.pretrain.training.precision=bf16"]),
        str(tmp_path / "run"),
    )
    resolve_auto(run, CPU, print)
    assert [stage.recipe.training.precision for stage in run.stages()] == ["bf16", "fp32", "fp32"]
    run.close()


def test_what_is_tuned_is_the_first_stage_on_its_own_text(place: Path, tmp_path: Path) -> None:
    run = begin_run(config.load(place / "two.yaml"), str(tmp_path / "run"))
    mono, workload = Store.open(run.folder.data / "pretrain", "train"), workload_of_run(run, CPU)
    assert workload.updates_an_epoch == (mono.lengths("tgt") + 1).sum() / 256
    first = training_batches(run.stages()[0].recipe, mono, run.load_tokenizers(), run.recipe.seed)
    assert torch.equal(workload.first_batches(1)[0].inputs.ids, next(first).inputs.ids)
    pairwise = Run(run.folder)
    pairwise.recipe = config.load(place / "two.yaml", ["batch.batch_size=2"])
    assert workload_of_run(pairwise, CPU).updates_an_epoch == len(mono) / 2
    run.close()


def test_the_page_counts_the_operations_of_each_stage_by_its_own_work(
    place: Path, tmp_path: Path
) -> None:
    run = run_all(place, tmp_path / "run")
    save_report(run, tmp_path / "page.html")
    tokens = Counter({stage.name: 0 for stage in run.stages()})
    for step in logged(run.folder.path, "step"):
        tokens[step["stage"]] += step["tokens"]
    costs = [operations_a_token(workload_of_run(run, CPU, number)) for number in range(3)]
    assert costs[0] != costs[1] == costs[2]
    wanted = sum(count * cost for count, cost in zip(tokens.values(), costs, strict=True))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"all updates</th><td>{wanted:.2e}</td>" in page
    assert f"target tokens</th><td>{tokens.total():,}</td>" in page


def test_each_stage_has_its_own_threads_and_exactness(place: Path, tmp_path: Path) -> None:
    given = [
        f"training.{one}"
        for one in ("threads=1", "matmul_precision=high", "max_updates=1", "validate_every=1")
    ]
    changes = [
        f"stages.{name}.training.max_updates=1" for name in ("pretrain", "tune", "tune-more")
    ]
    changes += ["stages.tune.training.threads=2", "stages.tune.training.matmul_precision=medium"]
    run = begin_run(config.load(place / "two.yaml", [*given, *changes]), str(tmp_path / "run"))
    before, found = (torch.get_num_threads(), torch.get_float32_matmul_precision()), []
    try:
        for event in train_stages(run, CPU):
            if isinstance(event, Step):
                found.append((torch.get_num_threads(), torch.get_float32_matmul_precision()))
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
        run.close()
    assert found == [(1, "high"), (2, "medium"), (1, "high")]


@pytest.mark.slow
@pytest.mark.parametrize("update", [5, 8, 11])
def test_killed_and_resumed_in_any_stage_it_is_the_same_run(
    place: Path, tmp_path: Path, update: int
) -> None:
    run_all(place, tmp_path / "whole")
    run_all(place, tmp_path / "parted", most=update)
    run_all(place, tmp_path / "parted", resume=True)
    assert differences(tmp_path / "parted", tmp_path / "whole") == []


def test_preprocessing_that_was_stopped_goes_on_with_the_same_tokenizer(
    place: Path, tmp_path: Path
) -> None:
    run = run_all(place, tmp_path / "run", most=1)
    learned = run.load_tokenizers().checksum
    for name in ("progress", "train"):
        (run.folder.data / "pretrain" / f"{name}.json").unlink(missing_ok=True)
    (run.folder.data / "train.json").touch()
    notes: list[str] = []
    assert [*preprocess(run, notes.append, learned_before=True)]
    assert len([note for note in notes if note.startswith("reading and checking")]) == 2
    assert run.load_tokenizers().checksum == learned
    assert (run.folder.data / "pretrain" / "train.json").is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "tokenizer.joint=false",
            "different tasks must share a vocabulary; set `tokenizer.joint` to true",
        ),
        (
            "stages.tune-more.task=summarization",
            "the last stage must have the same task as the recipe",
        ),
        ("stages.pretrain.data.train=null", "translation|train"),
        (
            "stages.pretrain.data.test={tgt: valid.tgt}",
            "stage pretrain sets `data.test`, which applies to all stages; move it to the recipe",
        ),
        (
            "stages.tune.data.train={src: mono.src, tgt: mono.tgt, tags: [<m>]}",
            "the tag <m> is used only in a stage, so the tokenizer has no token for it; add the tag to ",
        ),
        ("stages.pretrain.task=languages", "there is no task 'languages'"),
        (
            "stages.pretrain.data.train={src: mono.src, tgt: mono.tgt}",
            "the task language-modelling has no src column, only tgt",
        ),
        (
            "stages.pretrain.training.best_metric=bleu",
            "validation of language-modelling does not measure 'bleu'",
        ),
    ],
)
def test_what_does_not_go_together(place: Path, change: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        config.load(place / "two.yaml", [change])
