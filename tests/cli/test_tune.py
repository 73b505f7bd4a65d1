"""`nmtkit tune`, what `train` makes of it, and `nmtkit doctor`, which shows and clears it."""

from pathlib import Path

import pytest
import torch
from commands import Command, refused, sentence_pairs, succeeded, write_lines

from nmtkit import config
from nmtkit.autotune import cache
from nmtkit.autotune import training as tuning
from nmtkit.cli import train
from nmtkit.core import device as devices
from nmtkit.experiment import evaluation
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.experiment.run import Run, choose_device
from nmtkit.inference.translator import Translator
from nmtkit.runs.saved import SavedRun
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.parallel import processes

ONE = ["--set", "training.threads=1", "--set", "training.max_updates=4", "--device", "cpu"]
EXACT = ["--set", "training.precision=fp32", "--set", "training.matmul_precision=highest"]


@pytest.fixture
def console(tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, where every measuring is worth it and nothing was found before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_LEAST_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "300")  # what tables say is not wrapped
    return console


def test_what_is_tuned_is_used_shown_and_cleared(corpus: Path, console: Command, tmp_path: Path) -> None:
    tuned = succeeded(console("tune", corpus / "tiny.yaml", "--run", "run", *ONE))
    rows = [line for line in tuned.out.splitlines() if ", 1 thread" in line]
    assert {row.split(", 1 thread")[0] for row in rows} == {"fp32 highest", "fp32 medium"}
    (taken,) = (row.split(", 1 thread")[0] for row in rows if row.endswith("taken"))
    assert "fastest training here: " in tuned.err

    done = succeeded(console("train", corpus / "tiny.yaml", "--run", "run", *ONE))
    assert f"fastest training here: {taken}, 1 thread (" in done.err
    settled = config.load(tmp_path / "run" / "recipe.yaml").training
    assert (settled.precision, settled.matmul_precision, settled.threads) == (*taken.split(), 1)

    assert "the search is measured once the run is trained" in tuned.err
    done = succeeded(console("tune", corpus / "tiny.yaml", "--run", "run", *ONE))
    assert "the search is not measured: 30 validation sentences are too few, or take too long" in done.err
    assert any(row.endswith("taken") for row in done.out.splitlines()), "it is measured anew"
    assert "1, kept in " in console("doctor").out
    assert console("doctor", "--clear").out.startswith("1 forgotten")
    assert "0, kept in " in console("doctor").out


@pytest.mark.slow
def test_a_resumed_run_uses_what_it_was_begun_with(corpus: Path, console: Command, tmp_path: Path) -> None:
    """Even if the machine would choose otherwise by now; a recipe that names another value is another recipe."""
    given = ["train", corpus / "tiny.yaml", "--run", "run", *ONE]
    succeeded(console(*given, "--set", "training.matmul_precision=high"))
    more = ["--set", "training.max_updates=6", "--resume"]
    succeeded(console(*given, *more))
    assert config.load(tmp_path / "run" / "recipe.yaml").training.matmul_precision == "high"
    assert cache.entries() == []
    refused(
        console(*given, *more, "--set", "training.matmul_precision=medium"),
        "`training.matmul_precision` was 'high' and is 'medium'",
    )


def test_nothing_is_left_to_find(corpus: Path, console: Command) -> None:
    done = succeeded(console("tune", corpus / "tiny.yaml", *ONE, *EXACT))
    assert "the recipe leaves nothing open on cpu: fp32 highest, 1 thread" in done.err
    assert cache.entries() == []


def test_updates_too_slow_to_be_measured(corpus: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning.timing, "MAX_SECONDS", 1e-6)
    done = succeeded(console("tune", corpus / "tiny.yaml", *ONE))
    assert "updates are too slow for half a minute to compare settings, so training takes fp32 highest" in done.err


CLASSIFIER = """\
task: classification
data: {train: {src: [s], labels: [l]}, valid: {src: [s], labels: [l]}}
tokenizer: {kind: word}
model: {kind: word_mean, hidden_size: 8}
training: {best_metric: accuracy}
"""
SPEAKER = """\
task: language-modelling
data: {train: {tgt: [s]}, valid: {tgt: [s]}}
tokenizer: {kind: word}
model: {kind: transformer_lm, hidden_size: 8, feed_forward_size: 8, heads: 2, layers: 1}
training: {best_metric: perplexity, higher_is_better: false}
"""


@pytest.mark.parametrize("given", [CLASSIFIER, SPEAKER])
def test_no_search_is_measured_where_no_text_is_read_or_none_is_written(console: Command, given: str) -> None:
    Path("mine.yaml").write_text(given)
    write_lines(Path("s"), [source for source, _ in sentence_pairs(30, 3)])
    write_lines(Path("l"), ["one", "two"] * 15)
    succeeded(console("tune", "mine.yaml", *ONE, *EXACT))
    Path("runs/mine/result.json").write_text("{}")  # as if it were trained
    assert "no search is measured for " in succeeded(console("tune", "mine.yaml", *ONE, *EXACT)).err


class Reached(Exception):
    """Ends a work at the place that a test asks about."""


@pytest.fixture
def five_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_threads", lambda: 5)


@pytest.mark.usefixtures("five_cores")
@pytest.mark.parametrize("ask", ["test", "compare", "tune"])
def test_the_search_has_every_core_whatever_training_had(
    corpus: Path, console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    def open_translator(run: SavedRun, how: DecodingOptions) -> Translator:
        raise Reached(how.threads)

    for place in ("experiment.evaluation", "experiment.loading"):
        monkeypatch.setattr(f"nmtkit.{place}.open_translator", open_translator)
    monkeypatch.setattr(CheckpointManager, "read_metadata", lambda _: {"seconds": 0.0})  # nothing is trained
    tune = ["tune", corpus / "tiny.yaml", "--run", "run", *ONE, *EXACT]
    succeeded(console(*tune))
    run = Run.open(str(tmp_path / "run"))
    run.folder.result.write_text("{}", encoding="utf-8")
    asks = {
        "test": lambda: run.test(torch.device("cpu")),
        "compare": lambda: evaluation.compare_run(run, torch.device("cpu"), 10, [10]),
        "tune": lambda: console(*tune),
    }
    torch.set_num_threads(1)
    with pytest.raises(Reached) as reached:
        asks[ask]()
    assert reached.value.args == (5,)


@pytest.mark.usefixtures("five_cores")
def test_a_training_that_leaves_its_threads_open_begins_with_every_core(corpus: Path) -> None:
    """Whatever the one before it had, in one and the same process."""
    torch.set_num_threads(1)
    choose_device("cpu", config.load(corpus / "tiny.yaml", ("training.threads=2",)))
    assert torch.get_num_threads() == 2
    choose_device("cpu", config.load(corpus / "tiny.yaml"))
    assert torch.get_num_threads() == 5


@pytest.mark.parametrize(("together", "workers"), [(1, 3), (2, 7)])
def test_preprocessing_takes_the_cores_of_all_processes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, workers: int
) -> None:
    """Of several processes, which have few threads each, one does it while the others wait."""

    def begin(*_: object, **given: object) -> Run:
        raise Reached(given["processes"])

    monkeypatch.setattr(Run, "begin", begin)
    monkeypatch.setattr(processes, "size", lambda: together)
    monkeypatch.setattr(train, "available_cores", lambda: 7)
    torch.set_num_threads(3)
    loaded = config.load(corpus / "tiny.yaml")
    with pytest.raises(Reached) as reached:
        train.begin_training(loaded, str(tmp_path / "run"), False)
    assert reached.value.args == (workers,)
