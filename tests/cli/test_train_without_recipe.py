"""`nmtkit train --source FILE --target FILE`: from two text files to translations, and the recipe that was chosen."""

import builtins
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from nmtkit import config, metrics
from nmtkit.data.text.files import text_file
from nmtkit.experiment.checks import with_values_of
from nmtkit.runs.run import Run
from tests.support.commands import (
    Command,
    Finished,
    as_text,
    environment,
    lines_in,
    logged,
    refused,
    sets,
    succeeded,
    write_lines,
)

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo-en-fr"
NEWS = Path(__file__).resolve().parents[2] / "data" / "demo-news"
SMALL = [
    "model.hidden_size=16",
    "model.feed_forward_size=16",
    "search.max_length=4",
    "training.log_every=1",
]
SHORT = ["--device", "cpu", *sets(*SMALL)]
QUICK = [*SHORT, "--set", "training.max_updates=3"]


def demo(split: str, end: str) -> list[str]:
    with gzip.open(DEMO / f"{split}.{end}.gz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 pairs of the demo; small validation and test sets; two corpora, one of them packed; 50 pairs."""
    folder = tmp_path_factory.mktemp("texts")
    for end in ("en", "fr"):
        train = demo("train", end)
        for name, lines in (
            ("train", train[:600]),
            ("few", train[:50]),
            ("valid", demo("valid", end)[:20]),
        ):
            write_lines(folder / f"{name}.{end}", lines)
        write_lines(folder / f"test.{end}", demo("test", end)[:10])
        with gzip.open(folder / f"more.{end}.gz", "wt", encoding="utf-8") as file:
            file.write(as_text(train[600:900]))
    return folder


def pair(texts: Path, name: str = "train", kind: str = "") -> list[str]:
    packed = ".gz" if name == "more" else ""
    files = [f"{texts}/{name}.en{packed}", f"{texts}/{name}.fr{packed}"]
    return [kind, *files] if kind else ["--source", files[0], "--target", files[1]]


@pytest.fixture(scope="module")
def finished(
    texts: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Finished]:
    """The folder of a run that was trained with nothing but `QUICK`, and what was said."""
    folder = tmp_path_factory.mktemp("finished")
    return folder / "runs" / "train-en-fr", nmtkit("train", *pair(texts), *QUICK, cwd=folder)


@pytest.fixture
def copied(finished: tuple[Path, Finished], tmp_path: Path) -> Path:
    """A copy of that run, in the test's own folder."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def losses(run: Path) -> list[float]:
    return [step["loss"] for step in logged(run, "step")]


def test_two_files_are_enough_to_train_and_translate(
    console: Command, finished: tuple[Path, Finished]
) -> None:
    run, done = finished
    succeeded(done)
    said = done.err.splitlines()
    assert "540 pairs with " in done.err
    assert "  preset: tiny, because 540 pairs are too few for anything larger" in said
    assert any(line.startswith("  tokenizer: bpe with ") and "because" in line for line in said)
    assert (
        "held out: 30 for valid and 30 for test; none of their sources are used for training"
        in done.err
    )
    assert any(
        line.startswith("warning: there are few pairs (540: 600 minus 60 held out") for line in said
    )
    limits = [line.strip() for line in said if "training.max_updates" in line]
    assert limits == ["training.max_updates: 3, because you set it"]
    assert any("runs/train-en-fr/chosen.yaml" in line for line in said)
    assert "BLEU" in done.out

    sources = {
        split: lines_in(run / "text" / f"{split}.en") for split in ("train", "valid", "test")
    }
    assert {split: len(lines) for split, lines in sources.items()} == {
        "train": 540,
        "valid": 30,
        "test": 30,
    }
    targets = dict(zip(demo("train", "en")[:600], demo("train", "fr")[:600], strict=True))
    assert [targets[source] for source in sources["valid"]] == lines_in(run / "text" / "valid.fr")

    text = (run / "chosen.yaml").read_text(encoding="utf-8")
    assert all(
        part in text
        for part in ("extends: preset-tiny\n", "# tokenizer: bpe with ", "src: text/train.en")
    )
    assert len(lines_in(run / "test.out")) == 30
    done = succeeded(
        console("translate", "-m", run, "--device", "cpu", stdin="The old man sleeps.\n\n")
    )
    assert done.out.count("\n") == 2


def test_the_chosen_recipe_means_the_same_from_anywhere(
    console: Command, finished: tuple[Path, Finished]
) -> None:
    run = finished[0]
    write_lines("text/train.en", ["another text of this name"])
    chosen = config.load(run / "chosen.yaml", QUICK[3::2])
    assert with_values_of(Run.open(run).recipe, chosen) == config.load(run / "recipe.yaml")
    succeeded(console("train", run / "chosen.yaml", *QUICK, "--run", "again"))
    assert losses(Path("again")) == losses(run)
    assert len(losses(run)) == 3


@pytest.mark.slow
def test_a_training_without_a_recipe_is_resumed_with_the_same_options(
    texts: Path, console: Command
) -> None:
    options = [*SHORT, "--run", "run"]
    train = ["train", *pair(texts), *options]
    succeeded(console(*train, "--set", "training.max_updates=2"))
    text = Path("run/chosen.yaml").read_text(encoding="utf-8")
    done = succeeded(console(*train, "--set", "training.max_updates=4", "--resume"))
    assert "finished after update 4" in done.err
    assert Path("run/chosen.yaml").read_text(encoding="utf-8") == text
    assert len(losses(Path("run"))) == 4
    done = succeeded(
        console("train", "run/chosen.yaml", *options, "--set", "training.max_updates=5", "--resume")
    )
    assert "finished after update 5" in done.err

    changed = console(*train, "--preset", "small", "--resume")
    refused(changed, "started with different options", "--preset was not given and is now small")
    done = console("train", *pair(texts, "few"), *options, "--resume")
    refused(done, f"--source was {texts}/train.en and is now {texts}/few.en")
    refused(
        console("train", *pair(texts), "--run", "nowhere", "--resume"),
        "no run that was started without a recipe",
    )
    assert not Path("nowhere").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("copied")
def test_an_earlier_run_is_replaced_only_by_overwrite(texts: Path, console: Command) -> None:
    before = Path("run/chosen.yaml").read_text(encoding="utf-8")
    given = ["train", *pair(texts, "few"), *QUICK, "--run"]
    refused(console(*given, "run"), "already contains a training run")
    assert Path("run/chosen.yaml").read_text(encoding="utf-8") == before
    own = ["--source", "run/text/train.en", "--target", "run/text/train.fr"]
    refused(
        console("train", *own, *QUICK, "--run", "run", "--overwrite"),
        "in the folder of the run, which would be",
    )
    assert len(lines_in(Path("run/text/train.en"))) == 540
    succeeded(console(*given, "run", *pair(texts, "valid", "--valid"), "--overwrite"))
    assert Path("run/chosen.yaml").read_text(encoding="utf-8") != before
    assert not Path("run/text").exists()
    write_lines("other/letter.txt", ["mine"])
    refused(console(*given, "other", "--overwrite"), "neither a run folder nor empty")
    assert [path.name for path in Path("other").iterdir()] == ["letter.txt"]


@pytest.mark.slow
def test_an_interrupted_start_can_be_repeated(texts: Path, console: Command) -> None:
    """Killed while it wrote the held-out pairs: a chosen recipe, half of the text, and nothing else."""
    write_lines("run/text/train.en", ["half"])
    write_lines("run/chosen.yaml", ["name: half"])
    succeeded(console("train", *pair(texts), *QUICK, "--run", "run"))
    assert len(lines_in(Path("run/text/train.en"))) == 540


@pytest.mark.slow
def test_named_validation_and_test_sets_are_used_unchanged(texts: Path, console: Command) -> None:
    own = [*pair(texts, "valid", "--valid"), *pair(texts, "test", "--test")]
    assert "held out" not in succeeded(console("train", *pair(texts), *own, *QUICK)).err
    run = Path("runs/train-en-fr")
    assert not (run / "text").exists()
    data = config.load(run / "chosen.yaml").data
    assert data.valid is not None
    assert (data.train.src, data.valid.tgt) == ([f"{texts}/train.en"], [f"{texts}/valid.fr"])
    assert len(lines_in(run / "test.out")) == 10
    # A test set without targets is only translated.
    done = succeeded(
        console("train", *pair(texts), "--test", texts / "test.en", *QUICK, "--run", "run")
    )
    assert "held out: 30 for valid;" in done.err
    assert len(lines_in(Path("run/test.out"))) == 10
    assert not Path("run/text/test.en").exists()


@pytest.mark.slow
def test_several_corpora_are_read_as_often_as_needed(
    texts: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text is read to choose and to be divided; its parts to be looked at, to be checked and to be encoded.

    The beginning of train is read once more, to be compared with the test set.
    """
    opened: Counter[str] = Counter()
    unwatched = builtins.open

    def counting(path: Any, mode: str = "r", *given: Any, **more: Any) -> Any:
        opened[str(path)] += mode.startswith("r")
        return unwatched(path, mode, *given, **more)

    class CountedFile(FileIO):
        def __init__(self, path: str) -> None:
            opened[path] += 1
            super().__init__(path)

    weights = ["--set", "data.train.weights=[1.0, 2.0]"]
    with monkeypatch.context() as watched:
        watched.setattr(builtins, "open", counting)
        watched.setattr(text_file, "FileIO", CountedFile)
        done = console("train", *pair(texts), *pair(texts, "more"), *QUICK, *weights)
    assert "810 pairs" in succeeded(done).err
    run = Path("runs/train-en-fr-and-1-more")
    parts = [
        str((run / "text" / f"train-{number}.{end}").absolute())
        for number in (1, 2)
        for end in ("en", "fr")
    ]
    given = [f"{texts}/{name}" for name in ("train.en", "train.fr", "more.en.gz", "more.fr.gz")]
    assert {path: opened[path] for path in (*given, *parts)} == dict.fromkeys(
        given, 2
    ) | dict.fromkeys(parts, 4)
    sums = json.loads((run / "data-report.json").read_text(encoding="utf-8"))["files"]["train"]
    assert sums == {
        path: hashlib.sha256(hashlib.sha256(Path(path).read_bytes()).digest()).hexdigest()
        for path in parts
    }
    counts = [len(lines_in(run / "text" / f"train-{number}.fr")) for number in (1, 2)]
    assert sum(counts) == 810
    assert 500 < counts[0] < 580
    assert config.load(run / "recipe.yaml").data.train.weights == [1.0, 2.0]


def test_fifty_pairs_are_enough_to_run(texts: Path, console: Command) -> None:
    done = succeeded(console("train", *pair(texts, "few"), *QUICK, "--minutes", "1"))
    assert "there are few pairs (46: 50 minus 4 held out" in done.err
    assert "2 pairs are too few for precise validation scores" in done.err
    loaded = config.load(Path("runs/few-en-fr/chosen.yaml"))
    assert loaded.tokenizer.vocab_size < 500
    assert loaded.training.max_minutes == 1


@pytest.mark.slow
def test_a_summarizer_is_trained_without_a_recipe(console: Command) -> None:
    with gzip.open(NEWS / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(next(file)) for _ in range(60)]
    for name in ("article", "summary"):
        write_lines(f"{name}.txt", [" ".join(record[name].split()) for record in records])
    files = ["--source", "article.txt", "--target", "summary.txt", "--task", "summarization"]
    limits = [
        "training.max_updates=3",
        "stages.coverage.training.max_updates=2",
        "data.max_length=40",
    ]
    small = ["search.max_length=4", "model.hidden_size=16", "model.embedding_size=16"]
    done = succeeded(console("train", *files, "--device", "cpu", *sets(*limits, *small)))
    run = Path("runs/article-summary")
    assert "model: pointer-generator" in done.err
    assert "stage coverage ended after update 5" in done.err
    assert "ROUGE-L" in done.out
    assert (run / "text" / "valid.src").is_file()
    succeeded(
        console("summarize", "-m", run, "--device", "cpu", stdin=records[0]["article"] + "\n")
    )


@pytest.mark.slow
def test_two_processes_train_on_the_text_that_the_first_wrote(texts: Path, tmp_path: Path) -> None:
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "nmtkit",
        "train",
    ]
    done = subprocess.run(
        [sys.executable, *words, *pair(texts), *QUICK, "--threads", "1"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("held out: ") == 1
    assert len(losses(tmp_path / "runs" / "train-en-fr")) == 3


@pytest.mark.slow
def test_tiny_learns_the_demo_corpus(nmtkit: Command, tmp_path: Path) -> None:
    """All of it, in some minutes of a CPU core, with no settings but the preset and the number of updates."""
    files = ["--source", DEMO / "train.en.gz", "--target", DEMO / "train.fr.gz"]
    quick = ["--device", "cpu", "--preset", "tiny", "--set", "training.max_updates=1600"]
    succeeded(nmtkit("train", *files, *quick, "--run", tmp_path / "run"))
    given = as_text(demo("test", "en"))
    translations = nmtkit(
        "translate", "-m", tmp_path / "run", "--device", "cpu", stdin=given
    ).out.splitlines()
    assert metrics.score_all(translations, [demo("test", "fr")], ["bleu"])[0].value > 60
