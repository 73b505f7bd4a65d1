"""`nmtkit plot-training`: a figure or a table of one or several runs."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from commands import Command, refused, succeeded

from nmtkit.cli import cli
from nmtkit.core.errors import DataError


def plot(*words: object) -> Result:
    """The command within this process: loading torch anew for each call would take most of the time."""
    return CliRunner().invoke(cli, ["plot-training", *map(str, words)])


def test_a_table_without_a_file(trained: Path, nmtkit: Command) -> None:
    done = succeeded(nmtkit("plot-training", trained))
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    best = max((record for record in records if record["event"] == "evaluated"), key=lambda one: one["valid_bleu"])
    last = [record for record in records if record["event"] == "step"][-1]
    row = done.out.splitlines()[-1]
    assert row.split()[:3] == ["tiny", "60", f"{last['nll']:.3f}"]
    assert f"{best['valid_bleu']:.2f} at {best['update']}" in row


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
def test_a_figure(trained: Path, tmp_path: Path, suffix: str) -> None:
    done = plot(trained, "-o", tmp_path / f"a.{suffix}")
    assert done.exit_code == 0, done.output
    assert f"wrote {tmp_path / f'a.{suffix}'}" in done.output
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!"}[suffix]
    assert (tmp_path / f"a.{suffix}").read_bytes().startswith(head)


def test_runs_of_one_name_are_told_apart(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one/run", "two/run"):
        shutil.copytree(trained, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints", "data"))
    done = plot("one/run", tmp_path / "two" / "run", trained, "-o", "a.svg")
    assert done.exit_code == 0, done.output
    texts = {"".join(node.itertext()) for node in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")}
    assert {"one/run", "two/run", f"{trained.parent.name}/tiny"} <= texts


def logged(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(text)
    return folder


GOOD = '{"update": 10, "event": "step", "nll": 2.5, "ppl": 12.2, "lr": 0.1}\n'


def test_a_training_that_is_still_writing(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", GOOD + '{"update": 20, "event": "st')
    done = plot(run)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].split()[:3] == ["run", "10", "2.500"]


def test_the_log_of_a_finished_training_is_whole_or_refused(trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    whole = nmtkit("plot-training", run).out
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(text[:-1])  # the last line says all the same what it said
    assert nmtkit("plot-training", run).out == whole
    for left in (text[: len(text) // 2], b"", bytes(len(text))):
        (run / "metrics.jsonl").write_bytes(left)
        refused(nmtkit("plot-training", run), "metrics.jsonl")
    (run / "result.json").unlink()
    (run / "metrics.jsonl").write_bytes(text[: len(text) // 2])
    assert nmtkit("plot-training", run).code == 0


def test_what_was_not_finite_is_left_out(tmp_path: Path) -> None:
    lost = '{"update": 20, "event": "evaluated", "valid_loss": null, "valid_perplexity": null, "valid_bleu": 0.0}\n'
    done = plot(logged(tmp_path / "run", GOOD + lost))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].split() == ["run", "20", "2.500", "-", "-", "0.00", "at", "20"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "nonsense\n" + GOOD, "metrics.jsonl, line 2: not what training logs"),
        (GOOD + "[1]\n", "line 2"),
        ('{"update": "x", "event": "step"}\n', "line 1"),
        ('{"event": "step"}\n', "line 1"),
        ('{"update": 1, "event": "step", "nll": "high"}\n', "line 1"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    done = plot(logged(tmp_path / "run", text))
    assert isinstance(done.exception, DataError)
    assert message in str(done.exception)


def test_mistakes_end_in_one_message(nmtkit: Command, tmp_path: Path) -> None:
    done = refused(nmtkit("plot-training", tmp_path / "nothing"), "not the folder of a run: there is no such folder")
    assert len(done.err.splitlines()) == 1


def test_other_mistakes(tmp_path: Path) -> None:
    empty = logged(tmp_path / "empty", "")
    assert "logged nothing yet" in str(plot(empty, "-o", tmp_path / "a.png").exception)
    assert "'.gif' is not a picture format" in str(plot(empty, "-o", tmp_path / "a.gif").exception)
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    done = plot(tmp_path / "binary")
    assert isinstance(done.exception, DataError)
    assert "cannot read it" in str(done.exception)
    assert plot().exit_code == 2  # no run is named


def scored(update: int, stage: str, rouge: float) -> str:
    record = {"update": update, "event": "evaluated", "stage": stage, "valid_loss": 1.0, "valid_perplexity": 2.7}
    return json.dumps(record | {"valid_rouge1": 90.0, "valid_rougeL": rouge, "valid_seconds": 99.0}) + "\n"


def test_a_summarizer_shows_rouge_and_its_stages(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", scored(10, "pointer", 20.5) + scored(15, "coverage", 40.25))
    lines = plot(run).output.splitlines()
    assert lines[0].endswith("best ROUGE-L")
    assert lines[-1].endswith("40.25 at 15")
    assert plot(run, "-o", tmp_path / "a.svg").exit_code == 0
    svg = ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")
    assert {"ROUGE-L", "pointer", "coverage"} <= {"".join(node.itertext()) for node in svg}


def test_the_score_is_the_one_that_chose_the_weights(trained: Path, tmp_path: Path) -> None:
    run = logged(tmp_path / "run", scored(10, "", 20.5))
    text = (trained / "recipe.yaml").read_text().replace("best_metric: bleu", "best_metric: rouge1")
    (run / "recipe.yaml").write_text(text.replace("task: translation", "task: summarization"))
    lines = plot(run, trained).output.splitlines()
    assert lines[0].endswith("best score")
    assert lines[-2].endswith("90.00 at 10 ROUGE-1")
    assert lines[-1].endswith(" BLEU")
