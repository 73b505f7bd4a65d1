"""Tasks of other columns than two texts: preprocessed, gone on with after a kill, checked, and batched."""

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nmtkit import config
from nmtkit.config.tasks.task import TASKS, Task
from nmtkit.core.columns import Column
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.batches import store as store_module
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream, sorted_batches
from nmtkit.data.batches.progress import PreprocessingProgress
from nmtkit.data.batches.store import Store
from nmtkit.data.text.checking import DataReport
from nmtkit.data.text.files import text_file
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.experiment.preprocessing import preprocess
from nmtkit.runs.run import Run, sizes_of
from tests.support.commands import Command

TEXT = Column("tgt", required=("train", "valid"))
COLUMNS = {
    "modelling": (Column("tgt"),),
    "sorting": (Column("src"), Column("labels", "label", ("train", "valid"))),
    "tagging": (Column("src"), Column("labels", "labels", ("train", "valid"))),
    "picturing": (Column("features", "features"), TEXT),
}
KINDS = {"modelling": ["tgt"], "sorting": ["src", "labels"], "tagging": ["src", "labels"]}
KINDS["picturing"] = ["features", "tgt"]
WORDS = {"a": "DET", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "hears": "VERB"}
COUNTS = {"train": 60, "valid": 6, "test": 5}


@pytest.fixture(autouse=True)
def tasks() -> Iterator[None]:
    for name, columns in COLUMNS.items():
        TASKS.register(name)(Task(name=name, columns=columns))
    yield
    for name in COLUMNS:
        del TASKS._members[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sentences of four to eight words, their labels, and features of one to three rows of four numbers."""
    draw = np.random.default_rng(1)
    for split, count in COUNTS.items():
        lines = [list(draw.choice([*WORDS], size=draw.integers(4, 9))) for _ in range(count)]
        sentences = [" ".join(words) for words in lines]
        columns = {
            "src": sentences,
            "tgt": sentences,
            "label": [f"{words[0]} first" for words in lines],
            "tags": [" ".join(map(WORDS.__getitem__, words)) for words in lines],
        }
        for name, values in columns.items():
            (tmp_path / f"{split}.{name}").write_text(
                "".join(f"{value}\n" for value in values), encoding="utf-8"
            )
        numbers = {
            f"{n}": draw.normal(size=(n % 3 + 1, 4)).astype(np.float16) for n in range(count)
        }
        np.savez(tmp_path / f"{split}.features", **numbers)  # type: ignore[arg-type]  # names, not options
    return tmp_path


def written(folder: Path, task: str, **settings: object) -> Path:
    ends = {"sorting": "label", "tagging": "tags"}
    data: dict[str, object] = {
        split: {
            kind: f"{split}.{'features.npz' if kind == 'features' else ends[task] if kind == 'labels' else kind}"
            for kind in KINDS[task]
        }
        for split in COUNTS
    }
    whole = {
        "task": task,
        "data": data,
        "tokenizer": {"kind": "whitespace", "vocab_size": 50},
        "model": {"kind": "transformer_lm" if task == "modelling" else "rnnsearch"},
        "training": {"max_updates": 1, "best_metric": "loss"},
        **settings,
    }
    path = folder / f"{task}.yaml"
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def preprocessed(
    folder: Path, task: str, name: str = "run", **settings: object
) -> tuple[Tokenizers, Path]:
    run = Run.create(config.load(written(folder, task, **settings)), str(folder / name))
    told: list[str] = []
    try:
        assert [*preprocess(run, told.append, processes=1)]
        assert not re.search(r"learning .*\.(label|tags|npz)", "\n".join(told)), (
            "of text files alone"
        )
        return run.load_tokenizers(), run.folder.data
    finally:
        run.close()


def arrays(folder: Path, split: str) -> list[np.ndarray]:
    with np.load(folder / f"{split}.features.npz") as archive:
        return [archive[f"{number}"] for number in range(COUNTS[split])]


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_feature_files_of_all_stages_must_have_the_same_layout(folder: Path) -> None:
    texts: dict[str, dict[str, dict[str, str]]] = {"first": {}, "last": {}}
    for split in ("train", "valid"):
        numbers = {f"{n}": np.ones((1, 6), np.float16) for n in range(COUNTS[split])}
        np.savez(folder / f"{split}.wide", **numbers)  # type: ignore[arg-type]  # names, not options
        texts["first"][split] = {"features": f"{split}.wide.npz", "tgt": f"{split}.tgt"}
        texts["last"][split] = {"features": f"{split}.features.npz", "tgt": f"{split}.tgt"}
    stages = [{"name": "wide", "data": texts["first"]}, {"name": "narrow"}]
    with pytest.raises(DataError, match="all feature files in a recipe must have the same layout"):
        preprocessed(folder, "picturing", data=texts["last"], stages=stages)


def test_a_language_model_has_targets_alone(folder: Path) -> None:
    tokenizers, data = preprocessed(folder, "modelling")
    assert sizes_of(tokenizers) == {"src": 9, "tgt": 9}
    assert sorted(path.name for path in (folder / "run" / "vocabulary").iterdir()) == [
        "sums.json", "tgt.vocab", "tokenizer.json",
    ]  # fmt: skip
    assert [*Tokenizers.load(folder / "run" / "vocabulary")] == ["tgt"]
    store = Store.open(data, "train")
    assert not store.has("src")
    for number, line in enumerate(lines(folder / "train.tgt")):
        assert tokenizers.tgt.decode(store.ids("tgt", number).tolist()) == line
    batch = next(sorted_batches(store, 200))
    assert batch.inputs is None
    assert batch.targets.ids.shape == batch.loss_mask.shape


def test_labels_of_lines_become_ids_by_frequency(folder: Path) -> None:
    tokenizers, data = preprocessed(folder, "sorting")
    labels = tokenizers.labels
    assert labels is not None
    given = lines(folder / "train.label")
    assert labels.tokens == sorted({*given}, key=lambda label: (-given.count(label), label))
    assert lines(folder / "run" / "vocabulary" / "labels.vocab") == labels.tokens
    again = Tokenizers.load(folder / "run" / "vocabulary")
    assert (again.labels, again.checksum) == (labels, tokenizers.checksum)
    assert sizes_of(again) == {"src": 9, "labels": len(labels)}
    store = Store.open(data, "train")
    assert [
        labels.tokens[int(store.ids("labels", number)[0, 0])] for number in range(len(store))
    ] == given
    seen = 0
    for batch in sorted_batches(store, 100):
        assert batch.labels.shape == (batch.size,)
        assert batch.n_tokens == batch.size
        for ids, label in zip(batch.inputs.ids.tolist(), batch.labels.tolist(), strict=True):
            assert labels.tokens[label].split()[0] == tokenizers.src.decode(ids).split()[0]
            seen += 1
    assert seen == 60


def test_labels_of_words_stand_where_the_words_do(folder: Path) -> None:
    tokenizers, data = preprocessed(folder, "tagging", data={
        "train": {"src": "train.src", "labels": "train.tags"}, "max_length": 6, "over_long": "truncate",
    })  # fmt: skip
    labels = tokenizers.labels
    assert labels is not None
    for batch in sorted_batches(Store.open(data, "train"), 100, limits=(5, 5)):
        assert batch.labels.shape == batch.inputs.ids.shape
        assert batch.inputs.ids.shape[1] <= 6
        for ids, tags in zip(batch.inputs.ids.tolist(), batch.labels.tolist(), strict=True):
            words = tokenizers.src.decode(ids).split()
            assert [labels.tokens[tag] for tag in tags[: len(words)]] == [
                WORDS[word] for word in words
            ]
            assert {*tags[len(words) :]} == {-1}


@pytest.mark.parametrize(
    ("task", "file", "line", "content", "fault"),
    [
        (
            "sorting",
            "valid.label",
            3,
            "cow first",
            r"valid.label, line 3: the label 'cow first' does not occur in the training data \(known labels: ",
        ),
        ("sorting", "train.label", 2, " ", r"train.label, line 2: the label is missing"),
        (
            "tagging",
            "valid.tags",
            2,
            "",
            r"valid.tags, line 2: there are 0 labels, but the source has \d tokens",
        ),
        (
            "tagging",
            "train.tags",
            9,
            "DET DET",
            r"train.tags, line 9: there are 2 labels, but the source has \d tokens",
        ),
        (
            "tagging",
            "train.src",
            4,
            "a",
            r"train.tags, line 4: there are \d labels, but the source has 1 tokens",
        ),
        ("tagging", "test.tags", 1, "X", r"test.tags, line 1: there are 1 labels"),
    ],
)
def test_wrong_labels_are_told_with_file_and_line(
    folder: Path, console: Command, task: str, file: str, line: int, content: str, fault: str
) -> None:
    changed = lines(folder / file)
    changed[line - 1] = content
    (folder / file).write_text("".join(f"{one}\n" for one in changed), encoding="utf-8")
    with pytest.raises(DataError, match=fault):
        preprocessed(folder, task)
    done = console("check", f"{task}.yaml", "--run", "other")
    assert done.code == 2, done
    assert re.search(fault, done.err)


@pytest.mark.parametrize("task", COLUMNS)
def test_every_task_is_checked(folder: Path, console: Command, task: str) -> None:
    path = written(folder, task)
    done = console("check", path, "--json", "-")
    assert done.code == 0, done
    told = json.loads(done.out)
    assert told["tokens"]["data"]["splits"]["train"]["kept"] == 60
    assert told["splits"]["valid"]["pairs"] == 6
    shown = console("check", path).out
    assert ("target: mean" in shown) == ("tgt" in KINDS[task])
    assert ("source: mean" in shown) == ("src" in KINDS[task])


def test_features_are_stored_as_they_are(folder: Path) -> None:
    (folder / "test.tgt").unlink()
    data = {
        split: {"features": f"{split}.features.npz", "tgt": f"{split}.tgt"}
        for split in ("train", "valid")
    }
    _, stored = preprocessed(
        folder, "picturing", data={**data, "test": {"features": "test.features.npz"}}
    )
    for split, count in COUNTS.items():
        store = Store.open(stored, split)
        assert len(store) == count
        assert store.lengths("features").tolist() == [number % 3 + 1 for number in range(count)]
        for number, wanted in enumerate(arrays(folder, split)):
            assert store.ids("features", number).dtype == np.float16
            np.testing.assert_array_equal(store.ids("features", number), wanted)
    assert json.loads((stored / "train.json").read_text())["columns"] == {
        "features": {"dtype": "<f2", "width": 4}
    }
    given = dict(zip(lines(folder / "train.tgt"), arrays(folder, "train"), strict=True))
    tokenizers = Tokenizers.load(folder / "run" / "vocabulary")
    batch = next(BatchStream(Store.open(stored, "train"), BatchConfig(batch_size=8), seed=1))
    for features, mask, ids in zip(
        batch.inputs.features, batch.inputs.mask, batch.targets.ids, strict=True
    ):
        np.testing.assert_array_equal(
            features[mask].numpy(), given[tokenizers.tgt.decode(ids.tolist())]
        )
        assert not features[~mask].any()


def test_damage_to_stored_features_is_found(folder: Path) -> None:
    _, data = preprocessed(folder, "picturing")
    whole = (data / "train.features").read_bytes()
    (data / "train.features").write_bytes(whole[:-8])
    with pytest.raises(DataError, match=r"train.features: has \d+ bytes instead of \d+"):
        Store.open(data, "train")
    (data / "train.features").write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(DataError, match=r"train.features: damaged \(checksum mismatch\)"):
        Store.open(data, "train").check()
    preprocessed(folder, "picturing")
    assert (data / "train.features").read_bytes() == whole


def _stopped(folder: Path, path: Path, shard: int) -> None:
    """Preprocesses until a shard is noted, and then ends without a chance to tidy up."""
    note = PreprocessingProgress.complete_shard

    def noted(self: PreprocessingProgress, shards: int, report: object) -> None:
        note(self, shards, report)  # type: ignore[arg-type]  # passes on what it gets
        if shards == shard:
            os.kill(os.getpid(), signal.SIGKILL)

    PreprocessingProgress.complete_shard = noted  # type: ignore[method-assign, assignment]  # replaced for one test
    preprocessed(folder, path.stem, "killed")


def test_a_killed_preprocessing_of_captions_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SHARD_EXAMPLES", 15)
    monkeypatch.setattr(text_file, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text_file, "BLOCK_LINES", 1)
    _, whole = preprocessed(folder, "picturing", "whole")
    child = multiprocessing.get_context("fork").Process(
        target=_stopped, args=(folder, folder / "picturing.yaml", 2)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (folder / "killed" / "data" / "train.json").exists()
    told: list[str] = []
    run = Run.create(config.load(folder / "picturing.yaml"), str(folder / "killed"))
    (report,) = preprocess(run, told.append, processes=1)
    run.close()
    assert any("resuming interrupted preprocessing after the first 3" in line for line in told), (
        told
    )
    assert isinstance(report, DataReport)
    assert report.splits["train"].kept == 60
    names = sorted(path.name for path in whole.iterdir())
    assert len([name for name in names if name.endswith(".features")]) >= 4
    assert names == sorted(path.name for path in run.folder.data.iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (run.folder.data / name).read_bytes(), name


def test_the_settings_of_one_text_and_the_columns_of_a_task(folder: Path) -> None:
    tokenizers, _ = preprocessed(
        folder, "picturing", tokenizer={"kind": "bpe", "columns": {"tgt": {"kind": "word"}}}
    )
    assert tokenizers.tgt.config.kind == "word"
    assert Tokenizers.load(folder / "run" / "vocabulary").tgt.config == tokenizers.tgt.config
    path = written(folder, "picturing")
    for override, fault in (
        (
            "tokenizer.columns={src: {kind: word}}",
            r"`tokenizer.columns.src`: the task picturing has no such text column, only tgt",
        ),
        (
            "data.valid.features=[]",
            "`data.valid`: features is missing; the task picturing requires it in train and valid and t",
        ),
        (
            "data.train.labels=x",
            "`data.train`: the task picturing has no labels column, only features and tgt",
        ),
    ):
        with pytest.raises(RecipeError, match=fault):
            config.load(path, [override])


def test_weights_and_other_text_are_of_any_columns(folder: Path) -> None:
    for name in ("tgt", "features.npz"):
        shutil.copy(folder / f"valid.{name}", folder / f"more.{name}")
    data = {split: {"features": f"{split}.features.npz", "tgt": f"{split}.tgt"} for split in COUNTS}
    two: dict[str, object] = {
        "features": ["train.features.npz", "more.features.npz"],
        "tgt": ["train.tgt", "more.tgt"],
    }
    _, stored = preprocessed(
        folder, "picturing", data={**data, "train": {**two, "weights": [1, 3]}}
    )
    store = Store.open(stored, "train")
    assert store.examples_per_file == [60, 6]
    stream = BatchStream(store, BatchConfig(batch_size=1), seed=1, weights=[1, 3])
    seen = 0
    while stream.epoch == 0:
        next(stream)
        seen += 1
    assert seen == 60 + 3 * 6
    changed = arrays(folder, "train")
    changed[0] = changed[0] + np.float16(1)
    np.savez(folder / "train.features", **{str(n): one for n, one in enumerate(changed)})  # type: ignore[arg-type]  # numpy takes arrays by name
    run = Run.create(config.load(folder / "picturing.yaml"), str(folder / "run"))
    with pytest.raises(
        DataError, match=r"train.features.npz: this is not the text that .* was started with"
    ):
        list(preprocess(run, learned_before=True))
    run.close()


@pytest.mark.parametrize("task", ["picturing", "tagging"])
def test_what_is_left_out_takes_its_other_columns_along(folder: Path, task: str) -> None:
    first = "tgt" if task == "picturing" else "src"
    changed = lines(folder / f"train.{first}")
    changed[4] = ""
    (folder / f"train.{first}").write_text(
        "".join(f"{line}\n" for line in changed), encoding="utf-8"
    )
    data = config.load(written(folder, task)).model_dump()["data"]
    tokenizers, stored = preprocessed(folder, task, data={**data, "max_length": 6})
    store, tags, rows = (
        Store.open(stored, "train"),
        lines(folder / "train.tags"),
        arrays(folder, "train"),
    )
    kept = [number for number, line in enumerate(changed) if line and len(line.split()) <= 6]
    assert 10 < len(kept) < 50
    assert len(store) == len(kept)
    for place, number in enumerate(kept):
        assert tokenizers[first].decode(store.ids(first, place).tolist()) == changed[number]
        if tokenizers.labels is None:
            np.testing.assert_array_equal(store.ids("features", place), rows[number])
        else:
            assert (
                tokenizers.labels.tokens_of(store.ids("labels", place).tolist())
                == tags[number].split()
            )


def test_a_model_reads_text_or_features(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Task(name="picturing", columns=(Column("src"), *COLUMNS["picturing"]))
    monkeypatch.setitem(TASKS._members, "picturing", both)
    with pytest.raises(
        RecipeError,
        match="`task`: the task picturing has both src and features, but a model reads only",
    ):
        config.load(written(folder, "picturing"))


def test_files_are_cleaned_with_their_labels_but_not_with_features(
    folder: Path, console: Command
) -> None:
    for name in ("src", "tgt"):
        changed = lines(folder / f"train.{name}")
        changed[4], changed[7] = "", f"\N{REPLACEMENT CHARACTER} {changed[7]}"
        (folder / f"train.{name}").write_text(
            "".join(f"{line}\n" for line in changed), encoding="utf-8"
        )
    done = console("check", written(folder, "sorting"), "--fix", "clean", "--no-tokens")
    assert done.code == 0, done
    labels = lines(folder / "train.label")
    left = [json.loads(line) for line in lines(folder / "clean" / "dropped.jsonl")]
    duplicates = [one["line"] - 1 for one in left if one["kinds"] == ["duplicate"]]
    kept = [label for number, label in enumerate(labels) if number not in (4, 7, *duplicates)]
    assert lines(folder / "clean" / "train.label") == kept
    assert config.load(folder / "clean" / "sorting.yaml").data.train.labels
    done = console("check", written(folder, "picturing"), "--fix", "other", "--no-tokens")
    assert done.code == 1, done
    assert "train: not written: this split has features" in done.out
    assert not (folder / "other").exists()
