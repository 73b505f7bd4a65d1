"""`nmtkit plot-training`: a figure or a table of one or several runs."""

import json
import shutil
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import Command, logged, refused, succeeded


@pytest.fixture
def plot(console: Command) -> Command:
    return partial(console, "plot-training")


def words_in(svg: str) -> set[str]:
    return {
        "".join(node.itertext()) for node in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")
    }


def run_with_log(name: str, text: str) -> Path:
    """The folder of a run with this log."""
    Path(name).mkdir(parents=True)
    (Path(name) / "metrics.jsonl").write_text(text)
    return Path(name)


GOOD = '{"update": 10, "event": "step", "nll": 2.5, "ppl": 12.2, "lr": 0.1}\n'
LOST = '{"update": 20, "event": "evaluated", "valid_loss": null, "valid_perplexity": null, "valid_bleu": 0.0}\n'


def test_runs_of_one_name_are_shown_with_their_folders(trained: Path, plot: Command) -> None:
    names = [run_with_log(name, GOOD) for name in ("one/run", "two/run")]
    assert "wrote a.svg" in succeeded(plot(*names, "-o", "a.svg")).err
    assert {"one/run", "two/run"} <= words_in("a.svg")
    succeeded(plot(names[0], trained, "-o", "a.svg"))
    assert {"run", "tiny"} <= words_in("a.svg")


def test_a_table_has_the_last_loss_and_the_best_score(trained: Path, plot: Command) -> None:
    best = max(logged(trained, "evaluated"), key=lambda one: one["valid_bleu"])
    last = logged(trained, "step")[-1]
    row = succeeded(plot(trained)).out.splitlines()[-1]
    assert row.split()[:3] == ["tiny", "60", f"{last['nll']:.3f}"]
    assert f"{best['valid_bleu']:.2f} at {best['update']}" in row


@pytest.mark.parametrize(
    ("log", "cells"),
    [
        pytest.param(
            GOOD + '{"update": 20, "event": "st',
            ["run", "10", "2.500"],
            id="a line that is being written",
        ),
        pytest.param(
            GOOD + LOST,
            ["run", "20", "2.500", "-", "-", "0.00", "at", "20"],
            id="a validation loss that is not finite",
        ),
    ],
)
def test_a_table_has_a_row_for(plot: Command, log: str, cells: list[str]) -> None:
    done = succeeded(plot(run_with_log("run", log)))
    assert done.out.splitlines()[-1].split()[: len(cells)] == cells


def test_the_log_of_a_finished_training_is_refused_unless_it_is_complete(
    trained: Path, plot: Command
) -> None:
    run = Path(shutil.copytree(trained, "run"))
    whole = plot(run).out
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(text[:-1])  # the last line says all the same what it said
    assert plot(run).out == whole
    for left in (text[: len(text) // 2], b"", bytes(len(text))):
        (run / "metrics.jsonl").write_bytes(left)
        refused(plot(run), "metrics.jsonl")
    (run / "result.json").unlink()
    (run / "metrics.jsonl").write_bytes(text[: len(text) // 2])
    succeeded(plot(run))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "nonsense\n" + GOOD, "metrics.jsonl, line 2: this is not a log entry"),
        (GOOD + "[1]\n", "line 2"),
        ('{"update": "x", "event": "step"}\n', "line 1"),
        ('{"event": "step"}\n', "line 1"),
        ('{"update": 4, "event": "stepped"}\n', "line 1"),
        ('{"update": 1, "event": "step", "nll": "high"}\n', "line 1"),
    ],
)
def test_a_broken_log_is_one_clear_error(plot: Command, text: str, message: str) -> None:
    refused(plot(run_with_log("run", text)), message)


def scored(update: int, stage: str, rouge: float) -> str:
    record = {
        "update": update,
        "event": "evaluated",
        "stage": stage,
        "valid_loss": 1.0,
        "valid_perplexity": 2.7,
    }
    return (
        json.dumps(record | {"valid_rouge1": 90.0, "valid_rougeL": rouge, "valid_seconds": 99.0})
        + "\n"
    )


def test_the_best_score_is_of_the_metric_that_chose_the_weights(
    trained: Path, plot: Command
) -> None:
    """Of a summarizer ROUGE-L where its recipe is not there, with its stages."""
    stages = run_with_log("stages", scored(10, "pointer", 20.5) + scored(15, "coverage", 40.25))
    lines = succeeded(plot(stages, "-o", "a.svg")).out + plot(stages).out
    assert lines.splitlines()[0].endswith("best ROUGE-L")
    assert lines.splitlines()[-1].endswith("40.25 at 15")
    assert {"ROUGE-L", "pointer", "coverage"} <= words_in("a.svg")
    run = run_with_log("run", scored(10, "", 20.5))
    text = (trained / "recipe.yaml").read_text().replace("best_metric: bleu", "best_metric: rouge1")
    (run / "recipe.yaml").write_text(text.replace("task: translation", "task: summarization"))
    lines = plot(run, trained).out.splitlines()
    assert lines[0].endswith("best score")
    assert lines[-2].endswith("90.00 at 10 ROUGE-1")
    assert lines[-1].endswith(" BLEU")
