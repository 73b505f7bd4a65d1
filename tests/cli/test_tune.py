"""`nmtkit tune`, the use of its results by `train`, and `nmtkit doctor`, which shows and clears them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.cli.training import train
from nmtkit.core import device as devices
from nmtkit.core import speed_cache
from nmtkit.experiment import evaluation
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.execute import choose_device
from nmtkit.experiment.plan import Plan
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import TrainLog
from nmtkit.runs.run import Run
from nmtkit.training.parallel import processes
from tests.support.commands import Command, refused, succeeded

ONE = ["--set", "training.threads=1", "--set", "training.max_updates=4", "--device", "cpu"]
EXACT = ["--set", "training.precision=fp32", "--set", "training.matmul_precision=highest"]


@pytest.fixture
def console(tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")  # what tables say is not wrapped
    return console


def test_what_is_tuned_is_used_shown_and_cleared(
    corpus: Path, console: Command, tmp_path: Path
) -> None:
    tuned = succeeded(console("tune", corpus / "tiny.yaml", "--run", "run", *ONE))
    rows = [line for line in tuned.out.splitlines() if ", 1 thread" in line]
    measured = {row.partition(", 1 thread")[0]: row for row in rows}
    assert measured.keys() == {"fp32 highest", "fp32 medium"}
    (taken,) = (setting for setting, row in measured.items() if "chosen" in row)
    assert "fastest training settings: " in tuned.err

    done = succeeded(console("train", corpus / "tiny.yaml", "--run", "run", *ONE))
    assert f"fastest training settings: {taken}, 1 thread (" in done.err
    settled = config.load(tmp_path / "run" / "recipe.yaml").training
    assert (settled.precision, settled.matmul_precision, settled.threads) == (*taken.split(), 1)

    done = succeeded(console("tune", corpus / "tiny.yaml", "--run", "run", *ONE))
    assert "chosen" in done.out, "it is measured again"
    assert "1, stored in " in console("doctor").out
    assert console("doctor", "--clear").out.startswith("deleted 1 measurements from ")
    assert "0, stored in " in console("doctor").out


@pytest.mark.slow
def test_a_resumed_run_keeps_its_settings(corpus: Path, console: Command, tmp_path: Path) -> None:
    """Even if the machine would choose otherwise by now; a recipe that names another value is another recipe."""
    given = ["train", corpus / "tiny.yaml", "--run", "run", *ONE]
    succeeded(console(*given, "--set", "training.matmul_precision=high"))
    more = ["--set", "training.max_updates=6", "--resume"]
    succeeded(console(*given, *more))
    assert config.load(tmp_path / "run" / "recipe.yaml").training.matmul_precision == "high"
    assert speed_cache.entries() == []
    refused(
        console(*given, *more, "--set", "training.matmul_precision=medium"),
        "`training.matmul_precision` was 'high' and is 'medium'",
    )


def test_a_recipe_that_sets_everything_is_not_tuned(corpus: Path, console: Command) -> None:
    done = succeeded(console("tune", corpus / "tiny.yaml", *ONE, *EXACT))
    assert "the recipe leaves nothing to measure on cpu (fp32 highest, 1 thread)" in done.err
    assert speed_cache.entries() == []


class Reached(Exception):
    """Ends a work at the place that a test asks about."""


@pytest.fixture
def five_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_threads", lambda: 5)


@pytest.mark.usefixtures("five_cores")
@pytest.mark.parametrize("ask", ["test", "compare"])
def test_the_search_uses_every_core_though_training_has_one_thread(
    corpus: Path, console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    def open_translator(run: Run, how: DecodingOptions) -> Translator:
        raise Reached(how.threads)

    monkeypatch.setattr(evaluation, "open_translator", open_translator)
    monkeypatch.setattr(evaluation, "open_system", open_translator)
    succeeded(console("tune", corpus / "tiny.yaml", "--run", "run", *ONE, *EXACT))
    run = Run.open(str(tmp_path / "run"))
    asks = {
        "test": lambda: evaluate_test_set(run, torch.device("cpu")),
        "compare": lambda: evaluation.compare_run(run, torch.device("cpu"), [10]),
    }
    torch.set_num_threads(1)
    with pytest.raises(Reached) as reached:
        asks[ask]()
    assert reached.value.args == (5,)


@pytest.mark.usefixtures("five_cores")
def test_a_training_without_a_number_of_threads_uses_every_core(corpus: Path) -> None:
    """An earlier training in the same process had two threads."""
    torch.set_num_threads(1)
    choose_device("cpu", config.load(corpus / "tiny.yaml", ("training.threads=2",)))
    assert torch.get_num_threads() == 2
    choose_device("cpu", config.load(corpus / "tiny.yaml"))
    assert torch.get_num_threads() == 5


@pytest.mark.parametrize(("together", "workers"), [(1, 3), (2, 7)])
def test_preprocessing_uses_the_cores_of_all_processes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, workers: int
) -> None:
    """Of several processes, which have few threads each, one does it while the others wait."""

    def execute(*_: object, **given: object) -> Iterator[object]:
        raise Reached(given["workers"])

    monkeypatch.setattr(train, "execute", execute)
    monkeypatch.setattr(processes, "size", lambda: together)
    monkeypatch.setattr(train, "available_cores", lambda: 7)
    torch.set_num_threads(3)
    loaded = config.load(corpus / "tiny.yaml")
    with pytest.raises(Reached) as reached:
        train.train_run(
            Plan(loaded, torch.device("cpu")), Run(RunFolder(tmp_path / "run")), TrainLog([], print)
        )
    assert reached.value.args == (workers,)
