"""The plan of a training: what it checks, what it leaves to be measured, and that it changes nothing."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import DataError, NmtkitError, RecipeError
from nmtkit.data.text.checking import DataReport
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment.bench import require_lines, training_workload
from nmtkit.experiment.execute import Prepared, Trained, begin, execute
from nmtkit.experiment.plan import plan
from nmtkit.inference.answering import ScoredAnswers
from nmtkit.runs.folder import RunFolder, ignore
from nmtkit.runs.run import Run
from nmtkit.training.events import Evaluated, Saved, Step, Stopped

CPU = torch.device("cpu")
FEW = [
    "training.max_updates=2",
    "training.validate_every=1",
    "search.max_length=4",
    "evaluation.max_sentences=2",
]
EXACT = ["training.precision=fp32", "training.matmul_precision=highest", "training.threads=1"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_changes_nothing(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = config.load(small_corpus / "tiny.yaml")
    before = contents(small_corpus), torch.get_rng_state(), torch.get_num_threads()
    planned = plan(recipe, CPU)
    assert planned.recipe == recipe
    assert contents(small_corpus) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_num_threads() == before[2]
    assert not [*tmp_path.iterdir()]


def test_what_depends_on_the_preprocessed_text_is_said_by_its_rule(
    small_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("nmtkit.core.device.cpu_threads", lambda: 2)
    settings = ["batch.batch_tokens=auto", "training.precision=fp32", "training.threads=auto"]
    rows = dict(plan(config.load(small_corpus / "tiny.yaml", settings), CPU).rows)
    assert rows["batch.batch_tokens"].startswith(
        "measured on the preprocessed text: 512 padded tokens at first"
    )
    assert rows["training.threads"].startswith("2 or 1: whichever is fastest")
    assert "training.precision" not in rows
    # One thread and a processor without a choice of precision leave nothing to measure.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("nmtkit.core.device.cpu_threads", lambda: 1)
    rows = dict(plan(config.load(small_corpus / "tiny.yaml", settings), CPU).rows)
    assert rows["training.threads"] == "1"


def test_a_plan_makes_every_check(small_corpus: Path, tmp_path: Path) -> None:
    name = small_corpus / "tiny.yaml"
    missing = config.load(name, ["data.train={src: gone.src, tgt: gone.tgt}"])
    cases: list[tuple[config.Recipe, type[NmtkitError], str]] = [
        (missing, DataError, "these files are missing"),
        (config.load(name, ["data.valid=null"]), RecipeError, r"`data\.valid` is missing"),
        (config.load(name, [f"model.hidden_size={2**20}"]), RecipeError, "GiB of memory"),
        (config.load(name, ["init_from=gone"]), NmtkitError, "gone"),
    ]
    for recipe, error, message in cases:
        with pytest.raises(error, match=message):
            plan(recipe, CPU)
    assert ("data.train", "gone.src (missing)") in plan(missing, CPU, need_files=False).rows


@pytest.mark.parametrize("need_files", [True, False])
def test_a_plan_finds_missing_columns(small_corpus: Path, tmp_path: Path, need_files: bool) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("src\ttgt\na\tb\n", encoding="utf-8")
    files = f"data.train={{src: '{table}#source', tgt: '{table}#tgt'}}"
    recipe = config.load(small_corpus / "tiny.yaml", [files])
    with pytest.raises(DataError, match="no column 'source' in the first row"):
        plan(recipe, CPU, need_files=need_files)


def test_the_temporary_run_of_a_measurement_is_closed(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []

    def create(recipe: config.Recipe, path: str) -> Run:
        runs.append(original(recipe, path))
        return runs[-1]

    original = Run.create
    monkeypatch.setattr(Run, "create", create)
    monkeypatch.chdir(tmp_path)
    recipe = config.load(small_corpus / "tiny.yaml", [*FEW, *EXACT])
    with ExitStack() as stack:
        _, data = training_workload(recipe, None, CPU, stack, ignore)
    assert data == "its text"
    assert [run.may_write for run in runs] == [False]


def test_execute_yields_what_happens_and_a_run_goes_on_by_its_plan(
    small_corpus: Path, tmp_path: Path
) -> None:
    recipe = config.load(small_corpus / "tiny.yaml", [*FEW, *EXACT])
    path = str(tmp_path / "run")
    with Run.create(recipe, path) as run:
        assert run.may_write
        kinds = [type(event) for event in execute(plan(recipe, CPU), run)]
    assert not run.may_write
    assert kinds[:3] == [Diagnosis, DataReport, Prepared]
    assert kinds.count(Evaluated) == 2
    assert {Step, Saved, Stopped, Trained} <= {*kinds}
    assert kinds[-1] == ScoredAnswers
    with pytest.raises(NmtkitError, match="does not hold the lock"):
        list(execute(plan(recipe, CPU), Run.open(path)))
    longer = config.load(small_corpus / "tiny.yaml", [*FEW, *EXACT, "training.max_updates=3"])
    with pytest.raises(RecipeError, match="started with a different recipe"):
        begin(
            config.load(small_corpus / "tiny.yaml", [*FEW, "model.hidden_size=50"]),
            CPU,
            path,
            resume=True,
        )
    notes: list[str] = []
    planned, run = begin(longer, CPU, path, resume=True, notify=notes.append)
    with run:
        assert any("`training.max_updates` was 2 and is now 3" in note for note in notes)
        trained = [
            event for event in execute(planned, run, test=False) if isinstance(event, Trained)
        ]
    assert trained[0].stopped.update == 3
    assert plan(recipe, CPU, RunFolder(tmp_path / "run"), resume=True).resume


def test_empty_lines_cannot_be_measured() -> None:
    with pytest.raises(DataError, match=r"all lines are empty.*; use another file"):
        require_lines(["", " "], None)
